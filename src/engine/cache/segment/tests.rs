//! The cache over states made of shared pages.

mod storm;

use super::*;
use crate::decode::contract::PageUse;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Symbols of a page, and its bytes.
const PAGE: usize = 4;
const PAGE_BYTES: usize = 1000;
/// Symbols before it that a windowed state needs to go on.
const SEEN: usize = 2;

/// Symbols, and the count of living pages.
struct Page(Vec<u32>, Arc<AtomicUsize>);

impl Page {
    fn new(symbols: Vec<u32>, living: &Arc<AtomicUsize>) -> Arc<Self> {
        living.fetch_add(1, SeqCst);
        Arc::new(Self(symbols, Arc::clone(living)))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.1.fetch_sub(1, SeqCst);
    }
}

/// A state that remembers its symbols, in pages that forks share until they write. A segment ends with 0.
#[derive(Clone)]
struct Paged {
    text: Vec<u32>,
    /// Pages forgotten, then those held.
    forgotten: usize,
    pages: Vec<Arc<Page>>,
    segmented: bool,
    /// Of how many of the last symbols it holds the pages; of all if none.
    window: Option<usize>,
    living: Arc<AtomicUsize>,
}

impl Paged {
    fn new(window: Option<usize>, living: &Arc<AtomicUsize>) -> Self {
        let (text, pages, living) = (Vec::new(), Vec::new(), Arc::clone(living));
        Self { text, forgotten: 0, pages, segmented: true, window, living }
    }

    fn of(text: &[u32], living: &Arc<AtomicUsize>) -> Self {
        Self::windowed(text, None, living)
    }

    fn windowed(text: &[u32], window: Option<usize>, living: &Arc<AtomicUsize>) -> Self {
        let mut state = Self::new(window, living);
        text.iter().for_each(|&symbol| state.push(symbol));
        state
    }

    fn push(&mut self, symbol: u32) {
        let within = self.text.len() % PAGE;
        if within == 0 {
            self.pages.push(Page::new(vec![symbol], &self.living));
        } else {
            let last = self.pages.last_mut().unwrap();
            *last = Page::new([&last.0[..within], &[symbol]].concat(), &self.living);
        }
        self.text.push(symbol);
        let left = self.window.map_or(0, |window| self.text.len().saturating_sub(window) / PAGE);
        self.pages.drain(..left.saturating_sub(self.forgotten));
        self.forgotten = self.forgotten.max(left);
    }
}

impl State for Paged {
    fn len(&self) -> usize {
        self.text.len()
    }

    fn segments(&self) -> usize {
        self.text.iter().filter(|&&symbol| symbol == 0).count()
    }

    fn fork(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        assert!((self.earliest()..=self.len()).contains(&len));
        self.text.truncate(len);
        self.pages.truncate(len.div_ceil(PAGE) - self.forgotten);
        Ok(())
    }

    fn earliest(&self) -> usize {
        if self.forgotten == 0 { 0 } else { self.forgotten * PAGE + SEEN }
    }

    fn restart(&mut self, _: usize) {
        (self.text, self.forgotten, self.pages) = (Vec::new(), 0, Vec::new());
    }

    fn boundary_before(&self, len: usize) -> usize {
        let text = &self.text[..len.min(self.len())];
        let end = if self.segmented { boundary(text) } else { text.len() };
        if end < self.earliest() { 0 } else { end }
    }

    fn bytes(&self) -> usize {
        self.pages.len() * PAGE_BYTES
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        for page in &self.pages {
            each(PageUse { id: Arc::as_ptr(page).addr(), bytes: PAGE_BYTES, references: Arc::strong_count(page) });
        }
    }

    fn own_bytes(&self) -> usize {
        10
    }
}

/// Where the last segment of a text ends.
fn boundary(text: &[u32]) -> usize {
    text.iter().rposition(|&symbol| symbol == 0).map_or(0, |last| last + 1)
}

/// A state's text, which its pages hold, and a rolled back one's pages at least.
fn text_of(state: &dyn State) -> Vec<u32> {
    let state = crate::decode::contract::state_ref::<Paged>(state).unwrap();
    let held: Vec<u32> = state.pages.iter().flat_map(|page| page.0.iter().copied()).collect();
    let text = &state.text[state.forgotten * PAGE..];
    assert_eq!(&held[..text.len()], text);
    state.text.clone()
}

fn page_ids(state: &dyn State) -> Vec<usize> {
    let mut ids = Vec::new();
    state.pages(&mut |page| ids.push(page.id));
    ids
}

fn key(tenant: &str) -> Key {
    Key { tenant: tenant.into(), mode: Some(BoundaryMode::Given), seed: None }
}

#[test]
fn a_text_serves_all_that_begin_as_it_does() {
    let living = Arc::default();
    let mut cache = SegmentCache::new(Capacity::of_bytes(1 << 20));
    let text = [1, 2, 0, 1, 1, 0, 2];
    assert!(cache.keep(&key("a"), &text, &Paged::of(&text, &living)).unwrap());
    let len = |cache: &mut SegmentCache, text: &[u32]| cache.find(&key("a"), text).unwrap().map(|hit| hit.len);
    assert_eq!(len(&mut cache, &text), Some(6), "to the last segment's end");
    assert_eq!(len(&mut cache, &[1, 2, 0, 1, 1]), Some(3));
    assert_eq!(len(&mut cache, &[1, 2, 0, 2, 2]), Some(3));
    assert_eq!(len(&mut cache, &[1, 2]), None);
    assert_eq!(len(&mut cache, &[2, 2, 0]), None);
    assert_eq!(len(&mut cache, &[]), None);
    let longer = [1, 2, 0, 1, 1, 0, 2, 0, 0];
    assert!(cache.keep(&key("a"), &longer, &Paged::of(&longer, &living)).unwrap());
    assert!(cache.keep(&key("a"), &text, &Paged::of(&text, &living)).unwrap());
    assert_eq!(cache.usage().entries, 1, "the longer serves both");
    let usage = cache.usage();
    assert_eq!((usage.hits, usage.misses, usage.hit_symbols, usage.evictions), (3, 2, 12, 0));
    cache.clear();
    assert_eq!((cache.usage().bytes, living.load(SeqCst)), (0, 0));
    assert_eq!(cache.usage().hits, 3);
}

#[test]
fn a_longer_text_does_not_replace_what_its_window_has_left_behind() {
    let living = Arc::default();
    let mut cache = SegmentCache::new(Capacity::of_bytes(1 << 20));
    let text: Vec<u32> = (0..100).map(|at| if at % 5 == 4 { 0 } else { 1 }).collect();
    let mut row = Paged::windowed(&text[..40], Some(16), &living);
    let mut keep = |cache: &mut SegmentCache, to: usize| {
        text[row.len()..to].iter().for_each(|&symbol| row.push(symbol));
        assert!(cache.keep(&key("a"), &row.text, &row).unwrap());
        cache.usage().entries
    };
    let len = |cache: &mut SegmentCache, text: &[u32]| cache.find(&key("a"), text).unwrap().map_or(0, |hit| hit.len);
    // nothing more is forgotten; then ever more
    assert_eq!([40, 42, 45, 70, 100].map(|to| keep(&mut cache, to)), [1, 1, 2, 3, 4]);
    assert_eq!([39, 44, 69, 99].map(|to| len(&mut cache, &text[..to])), [35, 40, 65, 95]);
    let branch = [&text[..45], &[2, 2, 0, 1, 1]].concat();
    assert_eq!(len(&mut cache, &branch), 45);
    assert_eq!(len(&mut cache, &text[..53]), 45, "what is kept before, as nothing that is longer goes back so far");
    assert_eq!(len(&mut cache, &text[..25]), 0);
    let usage = cache.usage();
    assert_eq!((usage.entries, usage.page_bytes), (4, living.load(SeqCst) * PAGE_BYTES));
    // once more: it is known, and others stay
    let again = Paged::windowed(&text[..45], Some(16), &living);
    assert!(cache.keep(&key("a"), &again.text, &again).unwrap());
    drop((again, row));
    assert_eq!(cache.usage(), usage);
    // the one used least recently goes first, wherever it stands
    for (gone, entries, served) in [(39, 3, 35), (69, 2, 45), (99, 1, 45), (44, 0, 0)] {
        assert!(cache.evict().is_some());
        let usage = cache.usage();
        assert_eq!((usage.entries, usage.page_bytes), (entries, living.load(SeqCst) * PAGE_BYTES));
        assert_eq!(cache.known(&key("a"), &text[..gone]), served);
    }
    assert_eq!((cache.usage().bytes, living.load(SeqCst)), (0, 0));
}

#[test]
fn texts_without_segments_are_kept_as_they_are() {
    let living = Arc::default();
    let mut cache = SegmentCache::new(Capacity::of_bytes(1 << 20));
    let text = [1, 0, 2, 2, 1];
    let state = Paged { segmented: false, ..Paged::of(&text, &living) };
    assert!(cache.keep(&key("a"), &text, &state).unwrap());
    assert_eq!(cache.find(&key("a"), &text).unwrap().map(|hit| hit.len), Some(5));
    assert_eq!(cache.find(&key("a"), &text[..4]).unwrap().map(|hit| hit.len), Some(4));
}

#[test]
fn what_is_too_large_or_has_no_end_is_not_kept() {
    let living = Arc::default();
    let mut cache = SegmentCache::new(Capacity::of_bytes(6_000));
    let small = [1, 0];
    assert!(cache.keep(&key("a"), &small, &Paged::of(&small, &living)).unwrap());
    let large = [0; 40];
    assert!(!cache.keep(&key("a"), &large, &Paged::of(&large, &living)).unwrap());
    assert!(!cache.keep(&key("a"), &[2, 2], &Paged::of(&[2, 2], &living)).unwrap());
    assert_eq!((cache.usage().entries, cache.usage().evictions), (1, 0), "and nobody had to go for it");
    assert!(!SegmentCache::new(Capacity::of_bytes(0)).keep(&key("a"), &small, &Paged::of(&small, &living)).unwrap());
}

#[test]
fn whoever_asks_otherwise_finds_nothing() {
    let with = |mode, seed| Key { mode: Some(mode), seed, ..key("a") };
    let (given, sampled) = (BoundaryMode::Given, BoundaryMode::Sampled);
    let all = [key("a"), key("b"), with(sampled, Some(1)), with(sampled, Some(2)), with(BoundaryMode::Threshold, None)];
    assert_eq!(all[0], with(given, None));
    let (living, text) = (Arc::default(), [1, 0]);
    for kept in &all {
        let mut cache = SegmentCache::new(Capacity::of_bytes(1 << 20));
        cache.keep(kept, &text, &Paged::of(&text, &living)).unwrap();
        for asked in &all {
            assert_eq!(cache.find(asked, &text).unwrap().is_some(), asked == kept);
        }
    }
}
