//! Tests of the segment cache with states made of shared pages.

mod open_states;
mod storm;

use super::*;
use crate::decode::{contract::PageUse, replay::ReplayStart};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Symbols of a page.
const PAGE: usize = 4;
const PAGE_BYTES: usize = 1000;
/// Symbols before its current position that a windowed state needs.
const SEEN: usize = 2;

struct TestPage {
    symbols: Vec<u32>,
    /// Number of pages alive.
    alive: Arc<AtomicUsize>,
}

impl TestPage {
    fn new(symbols: Vec<u32>, alive: &Arc<AtomicUsize>) -> Arc<Self> {
        alive.fetch_add(1, SeqCst);
        Arc::new(Self { symbols, alive: Arc::clone(alive) })
    }
}

impl Drop for TestPage {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
    }
}

/// A state that stores its symbols in pages, which forks share until they write. Symbol 0 ends a segment.
#[derive(Clone)]
struct PagedState {
    text: Vec<u32>,
    /// Pages dropped from the front.
    dropped: usize,
    pages: Vec<Arc<TestPage>>,
    segmented: bool,
    /// Number of last symbols whose pages it holds; `None`: all.
    window: Option<usize>,
    replay_start: Option<ReplayStart>,
    alive: Arc<AtomicUsize>,
}

impl PagedState {
    fn new(text: &[u32], alive: &Arc<AtomicUsize>) -> Self {
        Self::windowed(text, None, alive)
    }

    fn windowed(text: &[u32], window: Option<usize>, alive: &Arc<AtomicUsize>) -> Self {
        let alive = Arc::clone(alive);
        let mut state = Self {
            text: Vec::new(),
            dropped: 0,
            pages: Vec::new(),
            segmented: true,
            window,
            replay_start: None,
            alive,
        };
        text.iter().for_each(|&symbol| state.push(symbol));
        state
    }

    fn push(&mut self, symbol: u32) {
        let within = self.text.len() % PAGE;
        if within == 0 {
            self.pages.push(TestPage::new(vec![symbol], &self.alive));
        } else {
            let last = self.pages.last_mut().unwrap();
            *last = TestPage::new([&last.symbols[..within], &[symbol]].concat(), &self.alive);
        }
        self.text.push(symbol);
        let left = self.window.map_or(0, |window| self.text.len().saturating_sub(window) / PAGE);
        self.pages.drain(..left.saturating_sub(self.dropped));
        self.dropped = self.dropped.max(left);
    }
}

impl State for PagedState {
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
        self.pages.truncate(len.div_ceil(PAGE) - self.dropped);
        Ok(())
    }

    fn earliest(&self) -> usize {
        if self.dropped == 0 { 0 } else { self.dropped * PAGE + SEEN }
    }

    fn restart(&mut self, _: usize) {
        self.text.clear();
        self.dropped = 0;
        self.pages.clear();
    }

    fn replay_start(&self) -> Option<ReplayStart> {
        self.replay_start
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
            each(PageUse {
                id: Arc::as_ptr(page).addr(),
                bytes: PAGE_BYTES,
                references: Arc::strong_count(page),
                own: 1,
            });
        }
    }

    fn own_bytes(&self) -> usize {
        10
    }
}

/// Returns the end of the last segment of a text.
fn boundary(text: &[u32]) -> usize {
    text.iter().rposition(|&symbol| symbol == 0).map_or(0, |last| last + 1)
}

/// Returns a state's text, and checks that its pages hold it. Pages of a rolled back state may hold more.
fn text_of(state: &dyn State) -> Vec<u32> {
    let state = crate::decode::contract::state_ref::<PagedState>(state).unwrap();
    let held: Vec<u32> = state.pages.iter().flat_map(|page| page.symbols.iter().copied()).collect();
    let text = &state.text[state.dropped * PAGE..];
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

fn keep(cache: &mut SegmentCache, text: &[u32], alive: &Arc<AtomicUsize>) -> bool {
    cache.keep(&key("a"), text, &PagedState::new(text, alive)).unwrap()
}

/// Looks a text up and returns how many of its symbols the hit serves.
fn served(cache: &mut SegmentCache, text: &[u32]) -> Option<usize> {
    cache.find(&key("a"), text).unwrap().map(|hit| hit.len)
}

#[test]
fn a_text_serves_all_texts_with_its_prefix() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 20));
    let text = [1, 2, 0, 1, 1, 0, 2];
    assert!(keep(&mut cache, &text, &alive));
    assert_eq!(served(&mut cache, &text), Some(6), "up to the end of the last segment");
    assert_eq!(served(&mut cache, &[1, 2, 0, 1, 1]), Some(3));
    assert_eq!(served(&mut cache, &[1, 2, 0, 2, 2]), Some(3));
    assert_eq!(served(&mut cache, &[1, 2]), None);
    assert_eq!(served(&mut cache, &[2, 2, 0]), None);
    assert_eq!(served(&mut cache, &[]), None);
    let longer = [1, 2, 0, 1, 1, 0, 2, 0, 0];
    assert!(keep(&mut cache, &longer, &alive));
    assert!(keep(&mut cache, &text, &alive));
    assert_eq!(cache.usage().entries, 1, "the longer serves both");
    let usage = cache.usage();
    assert_eq!((usage.hits, usage.misses, usage.hit_symbols, usage.evictions), (3, 2, 12, 0));
    cache.clear();
    assert_eq!((cache.usage().bytes, alive.load(SeqCst)), (0, 0));
    assert_eq!(cache.usage().hits, 3);
}

#[test]
fn a_longer_text_does_not_replace_one_that_its_window_has_left() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 20));
    let text: Vec<u32> = (0..100).map(|position| if position % 5 == 4 { 0 } else { 1 }).collect();
    let mut row = PagedState::windowed(&text[..40], Some(16), &alive);
    let mut extend_and_keep = |cache: &mut SegmentCache, to: usize| {
        text[row.len()..to].iter().for_each(|&symbol| row.push(symbol));
        assert!(cache.keep(&key("a"), &row.text, &row).unwrap());
        cache.usage().entries
    };
    // at first nothing more is dropped, then more each time
    assert_eq!([40, 42, 45, 70, 100].map(|to| extend_and_keep(&mut cache, to)), [1, 1, 2, 3, 4]);
    assert_eq!([39, 44, 69, 99].map(|to| served(&mut cache, &text[..to])), [35, 40, 65, 95].map(Some));
    let branch = [&text[..45], &[2, 2, 0, 1, 1]].concat();
    assert_eq!(served(&mut cache, &branch), Some(45));
    assert_eq!(served(&mut cache, &text[..53]), Some(45), "a shorter entry: no longer one can be rolled back so far");
    assert_eq!(served(&mut cache, &text[..25]), None);
    let usage = cache.usage();
    assert_eq!((usage.entries, usage.page_bytes), (4, alive.load(SeqCst) * PAGE_BYTES));
    // storing it again changes nothing
    let again = PagedState::windowed(&text[..45], Some(16), &alive);
    assert!(cache.keep(&key("a"), &again.text, &again).unwrap());
    drop((again, row));
    assert_eq!(cache.usage(), usage);
    // the least recently used entry is evicted first, wherever it is
    for (gone, entries, expected) in [(39, 3, 35), (69, 2, 45), (99, 1, 45), (44, 0, 0)] {
        assert!(cache.evict().is_some());
        let usage = cache.usage();
        assert_eq!((usage.entries, usage.page_bytes), (entries, alive.load(SeqCst) * PAGE_BYTES));
        assert_eq!(cache.known(&key("a"), &text[..gone]), expected);
    }
    assert_eq!((cache.usage().bytes, alive.load(SeqCst)), (0, 0));
}

#[test]
fn texts_without_segments_are_stored_whole() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 20));
    let text = [1, 0, 2, 2, 1];
    let state = PagedState { segmented: false, ..PagedState::new(&text, &alive) };
    assert!(cache.keep(&key("a"), &text, &state).unwrap());
    assert_eq!((served(&mut cache, &text), served(&mut cache, &text[..4])), (Some(5), Some(4)));
}

#[test]
fn texts_that_are_too_large_or_have_no_segment_are_not_stored() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(6_000));
    let small = [1, 0];
    assert!(keep(&mut cache, &small, &alive));
    let large = [0; 40];
    assert!(!keep(&mut cache, &large, &alive));
    assert!(!keep(&mut cache, &[2, 2], &alive));
    assert_eq!((cache.usage().entries, cache.usage().evictions), (1, 0), "nothing was evicted for it");
    assert!(!keep(&mut SegmentCache::new(Capacity::with_bytes(0)), &small, &alive));
}

#[test]
fn other_keys_find_nothing() {
    let with = |mode, seed| Key { mode: Some(mode), seed, ..key("a") };
    let sampled = |seed| with(BoundaryMode::Sampled, Some(seed));
    let all = [key("a"), key("b"), sampled(1), sampled(2), with(BoundaryMode::Threshold, None)];
    assert_eq!(all[0], with(BoundaryMode::Given, None));
    let alive = Arc::default();
    let text = [1, 0];
    for stored in &all {
        let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 20));
        cache.keep(stored, &text, &PagedState::new(&text, &alive)).unwrap();
        for other in &all {
            assert_eq!(cache.find(other, &text).unwrap().is_some(), other == stored);
        }
    }
}

#[test]
fn a_tenant_keeps_its_entries_while_another_stores_many() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity { bytes: 60_000, entries: 40, keys: 8 });
    let text = |number: u32| [1, 2, number, number / 7, 0];
    let store = |cache: &mut SegmentCache, key: &Key, number: u32| {
        cache.keep(key, &text(number), &PagedState::new(&text(number), &alive)).unwrap()
    };
    let quiet = key("quiet");
    (0..3).for_each(|number| assert!(store(&mut cache, &quiet, number)));
    let all_held = |cache: &SegmentCache| (0..3).all(|number| cache.known(&quiet, &text(number)) == 5);
    let flood = |cache: &mut SegmentCache| {
        // bytes, entries and keys run out
        for number in 0..500 {
            let seed = Some(u64::from(number) % 20);
            assert!(store(cache, &Key { mode: Some(BoundaryMode::Sampled), seed, ..key("busy") }, number));
        }
    };
    flood(&mut cache);
    assert!(cache.usage().evictions > 400 && all_held(&cache), "{:?}", cache.usage());
    // as when requests need memory: the larger tenant loses its entries first
    while cache.usage().entries > 6 {
        assert!(cache.evict().is_some());
    }
    assert!(all_held(&cache));
    // in the next period too, but not after a whole period without a use
    cache.start_period();
    flood(&mut cache);
    assert!(all_held(&cache));
    cache.start_period();
    flood(&mut cache);
    assert!(!all_held(&cache));
}
