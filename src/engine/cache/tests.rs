//! The cache over states made of shared pages, against a twin that is a list of texts.

use super::*;
use crate::decode::{
    contract::PageUse,
    random::{Purpose, uniform},
};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Symbols of a page, and its bytes.
const PAGE: usize = 4;
const PAGE_BYTES: usize = 1000;

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
struct Paged {
    pages: Vec<Arc<Page>>,
    len: usize,
    segmented: bool,
    living: Arc<AtomicUsize>,
}

impl Paged {
    fn new(living: &Arc<AtomicUsize>) -> Self {
        Self { pages: Vec::new(), len: 0, segmented: true, living: Arc::clone(living) }
    }

    fn of(text: &[u32], living: &Arc<AtomicUsize>) -> Self {
        let mut state = Self::new(living);
        text.iter().for_each(|&symbol| state.push(symbol));
        state
    }

    fn push(&mut self, symbol: u32) {
        let within = self.len % PAGE;
        if within == 0 {
            self.pages.push(Page::new(vec![symbol], &self.living));
        } else {
            let last = self.pages.last_mut().unwrap();
            *last = Page::new([&last.0[..within], &[symbol]].concat(), &self.living);
        }
        self.len += 1;
    }

    fn text(&self) -> Vec<u32> {
        let mut text: Vec<u32> = self.pages.iter().flat_map(|page| page.0.iter().copied()).collect();
        text.truncate(self.len);
        text
    }
}

impl State for Paged {
    fn len(&self) -> usize {
        self.len
    }

    fn segments(&self) -> usize {
        self.text().iter().filter(|&&symbol| symbol == 0).count()
    }

    fn fork(&self) -> Box<dyn State> {
        let (pages, len, segmented, living) = (self.pages.clone(), self.len, self.segmented, Arc::clone(&self.living));
        Box::new(Self { pages, len, segmented, living })
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        assert!(len <= self.len);
        self.pages.truncate(len.div_ceil(PAGE));
        self.len = len;
        Ok(())
    }

    fn restart(&mut self, _: usize) {
        (self.pages, self.len) = (Vec::new(), 0);
    }

    fn boundary_before(&self, len: usize) -> usize {
        if self.segmented { boundary(&self.text()[..len.min(self.len)]) } else { len.min(self.len) }
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

fn text_of(state: &dyn State) -> Vec<u32> {
    crate::decode::contract::state_ref::<Paged>(state).unwrap().text()
}

fn page_ids(state: &dyn State) -> Vec<usize> {
    let mut ids = Vec::new();
    state.pages(&mut |page| ids.push(page.id));
    ids
}

fn key(tenant: &str) -> Key {
    Key { tenant: tenant.into(), mode: Some(BoundaryMode::Given), seed: None }
}

/// What the cache is to hold, as a list.
struct Twin {
    capacity: Capacity,
    entries: Vec<Kept>,
    now: u64,
}

#[derive(Clone)]
struct Kept {
    key: Key,
    text: Vec<u32>,
    pages: Vec<usize>,
    used: u64,
}

fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Twin {
    fn keys(&self) -> Vec<&Key> {
        let mut keys: Vec<&Key> = Vec::new();
        self.entries.iter().for_each(|entry| {
            if !keys.contains(&&entry.key) {
                keys.push(&entry.key);
            }
        });
        keys
    }

    fn page_bytes(&self) -> usize {
        let mut pages: Vec<usize> = self.entries.iter().flat_map(|entry| entry.pages.iter().copied()).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len() * PAGE_BYTES
    }

    /// From the definition of a radix tree: a node at each text's end and wherever two texts part.
    fn bytes(&self) -> usize {
        let mut sum = self.page_bytes() + self.entries.len() * (ENTRY_BYTES + 10);
        for key in self.keys() {
            let own = self.entries.iter().filter(|entry| entry.key == *key);
            let mut texts: Vec<&[u32]> = own.map(|entry| &entry.text[..]).collect();
            texts.sort_unstable();
            let parting = |pair: &[&[u32]]| pair[0][..shared(pair[0], pair[1])].to_vec();
            let mut inner: Vec<Vec<u32>> = texts.windows(2).map(parting).collect();
            let edges = texts.iter().map(|text| text.len()).sum::<usize>() - inner.iter().map(Vec::len).sum::<usize>();
            inner.push(Vec::new());
            inner.sort_unstable();
            inner.dedup();
            sum += KEY_BYTES + key.tenant.len() + (inner.len() + texts.len()) * NODE_BYTES + edges * 4;
        }
        sum
    }

    fn touch(&mut self, index: usize) {
        self.now += 1;
        self.entries[index].used = self.now;
    }

    /// The entry that shares most, the one used last of equals.
    fn longest(&self, key: &Key, text: &[u32]) -> Option<usize> {
        let own = (0..self.entries.len()).filter(|&index| self.entries[index].key == *key);
        own.max_by_key(|&index| (shared(&self.entries[index].text, text), self.entries[index].used))
    }

    fn find(&mut self, key: &Key, text: &[u32]) -> Option<usize> {
        let index = self.longest(key, text)?;
        let len = boundary(&text[..shared(&self.entries[index].text, text)]);
        (len > 0).then(|| {
            self.touch(index);
            len
        })
    }

    fn keep(&mut self, key: &Key, text: &[u32], pages: &[usize]) -> bool {
        let len = boundary(text);
        let (text, pages) = (&text[..len], pages[..len.div_ceil(PAGE)].to_vec());
        if len == 0 {
            return false;
        }
        if let Some(index) = self.longest(key, text).filter(|&index| self.entries[index].text.starts_with(text)) {
            self.touch(index);
            return true;
        }
        let entry = Kept { key: key.clone(), text: text.to_vec(), pages, used: 0 };
        let alone = Twin { capacity: self.capacity, entries: vec![entry.clone()], now: 0 };
        if alone.bytes() > self.capacity.bytes {
            return false;
        }
        self.entries.retain(|other| other.key != *key || !text.starts_with(&other.text));
        if !self.keys().contains(&key) && self.keys().len() == self.capacity.keys {
            let latest = |key: &Key| self.entries.iter().filter(|e| e.key == *key).map(|e| e.used).max();
            let oldest = self.keys().into_iter().min_by_key(|key| latest(key)).unwrap().clone();
            self.entries.retain(|entry| entry.key != oldest);
        }
        self.entries.push(entry);
        self.touch(self.entries.len() - 1);
        while self.bytes() > self.capacity.bytes || self.entries.len() > self.capacity.entries {
            self.evict();
        }
        true
    }

    fn evict(&mut self) -> Kept {
        let oldest = (0..self.entries.len()).min_by_key(|&index| self.entries[index].used).unwrap();
        self.entries.remove(oldest)
    }

    /// What only entries refer to.
    fn spare(&self, held: &[usize]) -> usize {
        let mut pages: Vec<_> = self.entries.iter().flat_map(|entry| &entry.pages).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.iter().filter(|page| !held.contains(page)).count() * PAGE_BYTES
    }
}

/// Cache, twin, and rows that run beside them.
struct Storm {
    seed: u64,
    draws: usize,
    cache: SegmentCache,
    twin: Twin,
    rows: Vec<(Key, Paged)>,
    living: Arc<AtomicUsize>,
}

impl Storm {
    fn new(seed: u64, capacity: Capacity) -> Self {
        let twin = Twin { capacity, entries: Vec::new(), now: 0 };
        Self { seed, draws: 0, cache: SegmentCache::new(capacity), twin, rows: Vec::new(), living: Arc::default() }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.draws += 1;
        ((uniform(self.seed, Purpose::Sampling, self.draws) * limit as f32) as usize).min(limit - 1)
    }

    fn symbols(&mut self, most: usize) -> Vec<u32> {
        (0..self.below(most + 1)).map(|_| self.below(3) as u32).collect()
    }

    fn key(&mut self) -> Key {
        key(["", "a", "bb", "ccc"][self.below(4)])
    }

    /// The beginning of something that is known, or was, and something else.
    fn likely_text(&mut self, key: &Key) -> Vec<u32> {
        let known: Vec<&Kept> = self.twin.entries.iter().filter(|entry| entry.key == *key).collect();
        let mut text = match known.len() {
            0 => Vec::new(),
            count => {
                let text = known[self.draws % count].text.clone();
                text[..self.below(text.len() + 1)].to_vec()
            }
        };
        text.extend(self.symbols(6));
        text
    }

    fn step(&mut self) {
        match self.below(20) {
            0..8 => self.find(),
            8..14 => self.keep(),
            14..17 => self.extend(),
            17..19 => self.drop_row(),
            _ => self.seldom(),
        }
        let usage = self.cache.usage();
        assert!(usage.bytes <= self.twin.capacity.bytes && usage.entries <= self.twin.capacity.entries);
        assert!(usage.keys <= self.twin.capacity.keys);
        let expected = (self.twin.entries.len(), self.twin.keys().len(), self.twin.page_bytes());
        assert_eq!((usage.entries, usage.keys, usage.page_bytes), expected);
    }

    fn find(&mut self) {
        let key = self.key();
        let text = self.likely_text(&key);
        let hit = self.cache.find(&key, &text).unwrap();
        assert_eq!(hit.as_ref().map(|hit| hit.len), self.twin.find(&key, &text));
        if let Some(Hit { state, len }) = hit {
            assert_eq!(text_of(&*state), text[..len]);
            let mut row = Paged::of(&[], &self.living);
            row.pages.clone_from(&crate::decode::contract::state_ref::<Paged>(&*state).unwrap().pages);
            row.len = len;
            // it goes on as its text does
            text[len..].iter().for_each(|&symbol| row.push(symbol));
            self.add_row(key, row);
        } else if self.below(2) == 0 {
            let row = Paged::of(&text, &self.living);
            self.add_row(key, row);
        }
    }

    fn add_row(&mut self, key: Key, row: Paged) {
        self.rows.push((key, row));
        if self.rows.len() > 6 {
            self.rows.remove(0);
        }
    }

    fn keep(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        let index = self.below(self.rows.len());
        let (key, row) = &self.rows[index];
        let text = row.text();
        let held = self.cache.keep(key, &text, row).unwrap();
        assert_eq!(held, self.twin.keep(key, &text, &page_ids(row)));
    }

    fn extend(&mut self) {
        let more = self.symbols(9);
        if !self.rows.is_empty() {
            let index = self.below(self.rows.len());
            more.into_iter().for_each(|symbol| self.rows[index].1.push(symbol));
        }
    }

    fn drop_row(&mut self) {
        if !self.rows.is_empty() {
            let index = self.below(self.rows.len());
            self.rows.remove(index);
        }
    }

    fn seldom(&mut self) {
        if self.below(50) == 0 {
            self.cache.clear();
            self.twin.entries.clear();
        } else if self.below(4) == 0 {
            let held: Vec<usize> = self.rows.iter().flat_map(|(_, row)| page_ids(row)).collect();
            assert_eq!(self.cache.spare(), self.twin.spare(&held));
            for _ in 0..self.below(6) {
                let (before, spare) = (self.living.load(SeqCst), self.twin.spare(&held));
                let Some(released) = self.cache.evict() else { break };
                assert_eq!(
                    released,
                    (before - self.living.load(SeqCst)) * PAGE_BYTES,
                    "what is said was given back is"
                );
                self.twin.evict();
                assert_eq!(released, spare - self.twin.spare(&held));
            }
        }
    }

    /// The whole of both.
    fn compare(&self) {
        let mut found = Vec::new();
        for (key, stems) in &self.cache.trees {
            let (stem, tree) = stems.first_key_value().unwrap();
            assert_eq!((stem, stems.len()), (&Stem::NONE, 1), "these states need their whole texts");
            for (text, node) in tree.check() {
                let (state, used) = tree.leaf(node).unwrap();
                assert_eq!(text_of(&**state), text);
                assert_eq!(self.cache.order.get(&used), Some(&Leaf { key: key.clone(), stem: *stem, node }));
                found.push((key.tenant.clone(), text));
            }
        }
        found.sort();
        let mut expected: Vec<_> =
            self.twin.entries.iter().map(|entry| (entry.key.tenant.clone(), entry.text.clone())).collect();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(self.cache.order.len(), found.len());
        assert_eq!(self.cache.usage().bytes, self.twin.bytes());
    }
}

#[test]
fn does_as_the_naive_twin_in_a_storm() {
    let capacities = [
        Capacity { bytes: usize::MAX, entries: 24, keys: 4 },
        Capacity { bytes: 40_000, entries: 1000, keys: 4 },
        Capacity { bytes: 25_000, entries: 12, keys: 2 },
        Capacity { bytes: 9_000, entries: 1000, keys: 3 },
    ];
    for (seed, capacity) in capacities.into_iter().enumerate() {
        let mut storm = Storm::new(seed as u64, capacity);
        for round in 0..30_000 {
            storm.step();
            if round % 64 == 0 {
                storm.compare();
            }
        }
        storm.compare();
        let usage = storm.cache.usage();
        let uses = [usage.hits, usage.misses, usage.hit_symbols, usage.evictions];
        assert!(uses.iter().all(|&count| count > 500), "a storm that meets nothing: {usage:?}");
        let Storm { cache, rows, living, .. } = storm;
        drop((cache, rows));
        assert_eq!(living.load(SeqCst), 0, "pages leaked");
    }
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
