//! Tests of the segment cache with states made of shared pages.

use crate::cache::segment::{MAX_OPEN_STATES, OpenMatch, OpenState, *};
use crate::text_window::SharedPrefix;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use weir_models::contract::{PageUse, ReplayStart, SkippedSegments};
use weir_models::random::{Purpose, uniform};

impl<T> Tree<T> {
    /// Returns all texts with their nodes, and checks the invariants of the tree.
    fn check(&self) -> Vec<(Vec<u32>, NodeId)> {
        let mut found = Vec::new();
        let mut size = TreeSize { nodes: 0, symbols: 0 };
        let mut open = vec![(ROOT, Vec::new())];
        while let Some((id, text)) = open.pop() {
            let node = self.node(id).unwrap();
            size.nodes += 1;
            size.symbols += node.edge.len();
            let text = [&text[..], &node.edge].concat();
            assert_eq!(node.edge.is_empty(), id == ROOT);
            assert!(id == ROOT || node.held.is_some() || node.children.len() > 1, "a superfluous node");
            assert!(node.children.is_sorted_by(|a, b| a.0 < b.0));
            let mut reach = node.held.as_ref().map_or(PrefixReach::NONE, |held| held.reach);
            for &(first, child) in &node.children {
                let below = self.node(child).unwrap();
                assert_eq!((below.parent, below.edge[0]), (id, first));
                reach = reach.union(below.reach);
                open.push((child, text.clone()));
            }
            assert_eq!(reach, node.reach);
            if node.held.is_some() {
                found.push((text, id));
            }
        }
        assert_eq!(size, self.size());
        found.sort();
        found
    }
}

/// The key of the tree of whole texts.
const WHOLE: TreeKey = TreeKey { start: 0, before: None };

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
        let mut state = Self { text: Vec::new(), dropped: 0, pages: Vec::new(), window, replay_start: None, alive };
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
        let end = boundary(text);
        if end < self.earliest() { 0 } else { end }
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

fn paged(state: &dyn State) -> &PagedState {
    weir_models::contract::state_ref(state).unwrap()
}

/// Returns a state's text, and checks that its pages hold it. Pages of a rolled back state may hold more.
fn text_of(state: &dyn State) -> Vec<u32> {
    let state = paged(state);
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
    Key { tenant: tenant.into(), mode: Some(BoundaryMode::Given), seed: None, threshold: None }
}

fn keep(cache: &mut SegmentCache, text: &[u32], alive: &Arc<AtomicUsize>) -> bool {
    cache.keep(&key("a"), text, &PagedState::new(text, alive)).unwrap()
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
    assert!(cache.evictions > 400 && all_held(&cache), "{:?}", cache.usage());
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

/// Naive implementation of the cache: a list of entries.
struct NaiveCache {
    capacity: Capacity,
    entries: Vec<NaiveEntry>,
    now: u64,
    period: u64,
    /// Period of the last use of each tenant with entries.
    last_periods: BTreeMap<Arc<str>, u64>,
}

#[derive(Clone)]
struct NaiveEntry {
    key: Key,
    text: Vec<u32>,
    pages: Vec<usize>,
    earliest: usize,
    used: u64,
}

impl NaiveEntry {
    /// Returns how many of the first `len` symbols it serves, up to the end of a segment.
    fn serves(&self, len: usize) -> usize {
        let end = boundary(&self.text[..len]);
        if end < self.earliest { 0 } else { end }
    }

    /// Returns true if its text starts with the other's and it serves all that the other serves.
    fn replaces(&self, other: &NaiveEntry) -> bool {
        self.text.starts_with(&other.text) && self.earliest <= other.earliest
    }
}

fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl NaiveCache {
    fn new(capacity: Capacity) -> Self {
        Self { capacity, entries: Vec::new(), now: 0, period: 0, last_periods: BTreeMap::new() }
    }

    /// Returns a cache of only the entries that pass `filter`.
    fn part(&self, filter: impl Fn(&NaiveEntry) -> bool) -> Self {
        let entries = self.entries.iter().filter(|entry| filter(entry)).cloned().collect();
        Self { entries, ..Self::new(self.capacity) }
    }

    /// Returns the part of each tenant.
    fn parts(&self) -> BTreeMap<Arc<str>, Self> {
        let tenants = self.entries.iter().map(|entry| &entry.key.tenant);
        tenants.map(|tenant| (Arc::clone(tenant), self.part(|entry| entry.key.tenant == *tenant))).collect()
    }

    /// Returns the entries of the tenant that must give way: an idle one, or else the one of largest `size`.
    fn victim(&self, size: impl Fn(&Arc<str>, &Self) -> usize) -> Self {
        let oldest = |part: &Self| part.entries.iter().map(|entry| entry.used).min();
        let parts = self.parts();
        let idle = parts.iter().filter(|(tenant, _)| self.last_periods[*tenant] + 1 < self.period);
        let idle = idle.min_by_key(|(_, part)| oldest(part));
        let largest = || parts.iter().max_by_key(|(name, part)| (size(name, part), std::cmp::Reverse(oldest(part))));
        let (tenant, _) = idle.or_else(largest).unwrap();
        self.part(|entry| entry.key.tenant == *tenant)
    }

    /// Forgets tenants without entries.
    fn forget(&mut self) {
        let entries = &self.entries;
        self.last_periods.retain(|tenant, _| entries.iter().any(|entry| entry.key.tenant == *tenant));
    }

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

    /// Returns the bytes by the definition of a radix tree: a node at the root, at the end of each text, and where texts diverge.
    fn bytes(&self) -> usize {
        let mut sum = self.page_bytes() + self.entries.len() * (ENTRY_BYTES + 10);
        for key in self.keys() {
            let own = self.entries.iter().filter(|entry| entry.key == *key);
            let mut texts: Vec<&[u32]> = own.map(|entry| &entry.text[..]).collect();
            texts.sort_unstable();
            let diverge = |pair: &[&[u32]]| pair[0][..shared(pair[0], pair[1])].to_vec();
            let mut inner: Vec<Vec<u32>> = texts.windows(2).map(diverge).collect();
            let edges = texts.iter().map(|text| text.len()).sum::<usize>() - inner.iter().map(Vec::len).sum::<usize>();
            inner.push(Vec::new());
            inner.extend(texts.iter().map(|text| text.to_vec()));
            inner.sort_unstable();
            inner.dedup();
            sum += KEY_BYTES + key.tenant.len() + inner.len() * NODE_BYTES + edges * 4;
        }
        sum
    }

    fn touch(&mut self, index: usize) {
        self.now += 1;
        self.entries[index].used = self.now;
        self.last_periods.insert(Arc::clone(&self.entries[index].key.tenant), self.period);
    }

    fn own<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = usize> + 'a {
        (0..self.entries.len()).filter(move |&index| self.entries[index].key == *key)
    }

    /// Finds the entry that serves most; ties go to the one that shares most, serves the shortest prefix, was used last.
    fn find(&mut self, key: &Key, text: &[u32]) -> Option<usize> {
        let rank = |index: usize| {
            let entry = &self.entries[index];
            let shared = shared(&entry.text, text);
            (entry.serves(shared), shared, std::cmp::Reverse(entry.earliest), entry.used)
        };
        let index = self.own(key).max_by_key(|&index| rank(index))?;
        let (len, ..) = rank(index);
        (len > 0).then(|| {
            self.touch(index);
            len
        })
    }

    fn keep(&mut self, key: &Key, row: &PagedState) -> bool {
        let len = row.boundary_before(row.len());
        if len == 0 {
            return false;
        }
        let mut pages = page_ids(row);
        pages.truncate(len.div_ceil(PAGE) - row.dropped);
        let earliest = row.earliest();
        let entry = NaiveEntry { key: key.clone(), text: row.text[..len].to_vec(), pages, earliest, used: 0 };
        let longer = self.own(key).filter(|&index| self.entries[index].text.starts_with(&entry.text));
        let furthest = |&index: &usize| (std::cmp::Reverse(self.entries[index].earliest), self.entries[index].used);
        if let Some(index) = longer.max_by_key(furthest).filter(|&index| self.entries[index].replaces(&entry)) {
            self.touch(index);
            return true;
        }
        let alone = NaiveCache { entries: vec![entry.clone()], ..NaiveCache::new(self.capacity) };
        if alone.bytes() > self.capacity.bytes {
            return false;
        }
        self.entries.retain(|other| other.key != *key || !entry.replaces(other));
        self.forget();
        if !self.keys().contains(&key) && self.keys().len() == self.capacity.keys {
            let part = self.victim(|tenant, part| part.keys().len() + usize::from(*tenant == key.tenant));
            let latest = |key: &Key| part.entries.iter().filter(|e| e.key == *key).map(|e| e.used).max();
            let oldest = part.keys().into_iter().min_by_key(|key| latest(key)).unwrap().clone();
            self.entries.retain(|entry| entry.key != oldest);
            self.forget();
        }
        self.entries.push(entry);
        self.touch(self.entries.len() - 1);
        let stored_at = self.now;
        while self.bytes() > self.capacity.bytes {
            self.evict();
        }
        while self.entries.len() > self.capacity.entries {
            self.evict_from(|_, part| part.entries.len());
        }
        self.entries.iter().any(|entry| entry.used == stored_at)
    }

    fn evict(&mut self) {
        self.evict_from(|_, part| part.bytes());
    }

    fn evict_from(&mut self, size: impl Fn(&Arc<str>, &Self) -> usize) {
        let oldest = self.victim(size).entries.iter().map(|entry| entry.used).min();
        self.entries.retain(|entry| Some(entry.used) != oldest);
        self.forget();
    }

    /// Returns the bytes of pages that only entries refer to.
    fn evictable_bytes(&self, held: &[usize]) -> usize {
        let mut pages: Vec<_> = self.entries.iter().flat_map(|entry| &entry.pages).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.iter().filter(|page| !held.contains(page)).count() * PAGE_BYTES
    }
}

/// A cache, its naive counterpart, and rows that share their pages.
struct CacheSimulation {
    seed: u64,
    draws: usize,
    /// Lookups without a hit, and with one.
    lookups: [u64; 2],
    cache: SegmentCache,
    naive: NaiveCache,
    window: Option<usize>,
    rows: Vec<(Key, PagedState)>,
    alive: Arc<AtomicUsize>,
}

impl CacheSimulation {
    fn new(seed: u64, capacity: Capacity, window: Option<usize>) -> Self {
        let naive = NaiveCache::new(capacity);
        let cache = SegmentCache::new(capacity);
        Self { seed, draws: 0, lookups: [0; 2], cache, naive, window, rows: Vec::new(), alive: Arc::default() }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.draws += 1;
        ((uniform(self.seed, Purpose::Sampling, self.draws) * limit as f32) as usize).min(limit - 1)
    }

    fn symbols(&mut self, max: usize) -> Vec<u32> {
        (0..self.below(max + 1)).map(|_| self.below(3) as u32).collect()
    }

    /// Returns a random key. The first tenant has as many as the others together.
    fn key(&mut self) -> Key {
        let seed = |seed| Key { mode: Some(BoundaryMode::Sampled), seed: Some(seed), ..key("a") };
        match self.below(6) {
            0 => key(""),
            1 => key("bb"),
            2 => key("ccc"),
            3 => key("a"),
            4 => seed(1),
            _ => seed(2),
        }
    }

    /// Returns a prefix of a stored text, extended by random symbols.
    fn likely_text(&mut self, key: &Key) -> Vec<u32> {
        let stored: Vec<&NaiveEntry> = self.naive.entries.iter().filter(|entry| entry.key == *key).collect();
        let mut text = match stored.len() {
            0 => Vec::new(),
            count => {
                let text = stored[self.draws % count].text.clone();
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
        assert!(usage.bytes <= self.naive.capacity.bytes && usage.entries <= self.naive.capacity.entries);
        assert!(usage.keys <= self.naive.capacity.keys);
        let expected = (self.naive.entries.len(), self.naive.keys().len(), self.naive.page_bytes());
        assert_eq!((usage.entries, usage.keys, usage.page_bytes), expected);
    }

    fn find(&mut self) {
        let key = self.key();
        let text = self.likely_text(&key);
        let hit = self.cache.find(&key, &text).unwrap();
        assert_eq!(hit.as_ref().map(|hit| hit.len), self.naive.find(&key, &text));
        self.lookups[usize::from(hit.is_some())] += 1;
        if let Some(Hit { state, len }) = hit {
            assert_eq!(text_of(&*state), text[..len]);
            let mut row = paged(&*state).clone();
            // feed the rest of the text
            text[len..].iter().for_each(|&symbol| row.push(symbol));
            self.add_row(key, row);
        } else if self.below(2) == 0 {
            let row = PagedState::windowed(&text, self.window, &self.alive);
            self.add_row(key, row);
        }
    }

    fn add_row(&mut self, key: Key, row: PagedState) {
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
        let held = self.cache.keep(key, &row.text, row).unwrap();
        assert_eq!(held, self.naive.keep(key, row));
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
            self.naive = NaiveCache { now: self.naive.now, ..NaiveCache::new(self.naive.capacity) };
        } else if self.below(12) == 0 {
            self.cache.start_period();
            self.naive.period += 1;
        } else if self.below(4) == 0 {
            let held: Vec<usize> = self.rows.iter().flat_map(|(_, row)| page_ids(row)).collect();
            assert_eq!(self.cache.evictable_bytes(), self.naive.evictable_bytes(&held));
            for _ in 0..self.below(6) {
                let before = self.alive.load(SeqCst);
                let evictable = self.naive.evictable_bytes(&held);
                let Some(freed) = self.cache.evict() else { break };
                let freed_pages = before - self.alive.load(SeqCst);
                assert_eq!(freed, freed_pages * PAGE_BYTES, "reported bytes differ from freed ones");
                self.naive.evict();
                assert_eq!(freed, evictable - self.naive.evictable_bytes(&held));
            }
        }
    }

    /// Compares the whole contents of both.
    fn compare(&self) {
        let mut found = Vec::new();
        for (key, trees) in &self.cache.trees {
            let (tree_key, tree) = trees.first_key_value().unwrap();
            assert_eq!((tree_key, trees.len()), (&WHOLE, 1), "these states need their whole texts");
            for (text, node) in tree.check() {
                let (state, last_used) = tree.value(node).unwrap();
                assert_eq!(text_of(&**state), text);
                let entry = EntryId { key: key.clone(), tree_key: *tree_key, node };
                assert_eq!(self.cache.tenants.all[&key.tenant].order.get(&last_used), Some(&entry));
                found.push((key.tenant.clone(), key.seed, text));
            }
        }
        found.sort();
        let expected = self.naive.entries.iter();
        let mut expected: Vec<_> =
            expected.map(|NaiveEntry { key, text, .. }| (key.tenant.clone(), key.seed, text.clone())).collect();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(self.cache.usage().entries, found.len());
        assert_eq!(self.cache.usage().bytes, self.naive.bytes());
        let parts = self.naive.parts().into_iter().map(|(tenant, part)| (tenant, part.bytes()));
        let held = self.cache.tenants.all.iter().map(|(tenant, own)| (Arc::clone(tenant), own.bytes));
        assert_eq!(held.collect::<BTreeMap<_, _>>(), parts.collect());
    }
}

#[test]
fn the_cache_equals_the_naive_implementation_on_random_texts() {
    let capacities = [
        Capacity { bytes: usize::MAX, entries: 24, keys: 4 },
        Capacity { bytes: 40_000, entries: 1000, keys: 4 },
        Capacity { bytes: 25_000, entries: 12, keys: 2 },
        Capacity { bytes: 9_000, entries: 1000, keys: 3 },
    ];
    let windows = [None, Some(10)];
    let all = windows.into_iter().flat_map(|window| capacities.map(|capacity| (capacity, window)));
    for (seed, (capacity, window)) in all.enumerate() {
        let mut simulation = CacheSimulation::new(seed as u64, capacity, window);
        for round in 0..20_000 {
            simulation.step();
            if round % 64 == 0 {
                simulation.compare();
            }
        }
        simulation.compare();
        let [misses, hits] = simulation.lookups;
        let uses = [hits, misses, simulation.cache.evictions];
        assert!(uses.iter().all(|&count| count > 500), "a simulation without events: {uses:?}");
        let CacheSimulation { cache, rows, alive, .. } = simulation;
        drop((cache, rows));
        assert_eq!(alive.load(SeqCst), 0, "pages leaked");
    }
}

fn keep_open(cache: &mut SegmentCache, text: &[u32], alive: &Arc<AtomicUsize>) {
    cache.keep_open(&key("a"), text, Box::new(PagedState::new(text, alive))).unwrap();
}

/// Checks that a hit has the state of what it serves, and that the cache counts the pages that exist. Returns what it serves.
fn checked(cache: &mut SegmentCache, text: &[u32], alive: &Arc<AtomicUsize>) -> usize {
    let known = cache.known(&key("a"), text);
    let hit = cache.find(&key("a"), text).unwrap();
    let len = hit.as_ref().map_or(0, |hit| hit.len);
    assert_eq!(len, known);
    if let Some(hit) = hit {
        assert_eq!(text_of(&*hit.state), text[..len]);
    }
    assert_eq!(cache.usage().page_bytes, alive.load(SeqCst) * PAGE_BYTES);
    assert_eq!(cache.evictable_bytes(), cache.usage().page_bytes);
    len
}

#[test]
fn a_segment_of_a_continuation_gets_no_entry() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity { entries: 2, ..Capacity::with_bytes(1 << 20) });
    let keep_fork = |cache: &mut SegmentCache, document: &[u32], tried: &[u32]| {
        let fork = SharedPrefix::new(document.to_vec()).fork(tried);
        let state = PagedState::new(&fork.symbols().to_vec(), &alive);
        assert!(cache.keep(&key("a"), fork.text(), &state).unwrap());
        cache.keep_open(&key("a"), fork.text(), Box::new(state)).unwrap();
    };
    keep_fork(&mut cache, &[1, 0, 2], &[]);
    assert!(keep(&mut cache, &[7, 0], &alive));
    for tried in [&[2, 0][..], &[3, 0, 4], &[3, 0, 4, 0]] {
        keep_fork(&mut cache, &[1, 0, 2], tried);
        let text = [&[1, 0, 2], tried].concat();
        assert_eq!(checked(&mut cache, &[&text[..], &[5]].concat(), &alive), text.len());
    }
    assert_eq!(checked(&mut cache, &[1, 0, 2, 3, 0, 5], &alive), 3, "an open state cannot be rolled back");
    assert_eq!((cache.usage().entries, cache.evictions), (2, 0));
    // the entry of the document was used later than the other one
    assert!(keep(&mut cache, &[8, 0], &alive));
    assert_eq!([[1, 0, 9], [7, 0, 9], [8, 0, 9]].map(|text| checked(&mut cache, &text, &alive)), [2, 0, 2]);
    // the document now contains the segment, so a continuation of it stores an entry there
    keep_fork(&mut cache, &[1, 0, 2, 2, 0], &[6]);
    while cache.drop_open_state().is_some() {}
    assert_eq!(checked(&mut cache, &[1, 0, 2, 2, 0, 7], &alive), 5);
}

#[test]
fn few_are_held() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 22));
    let text = |number: usize| [1, 0, 5, 5, 5, number as u32 + 1];
    (0..MAX_OPEN_STATES + 2).for_each(|number| keep_open(&mut cache, &text(number), &alive));
    assert_eq!([0, 1, 2, MAX_OPEN_STATES].map(|number| checked(&mut cache, &text(number), &alive)), [2, 2, 6, 6]);
    cache.clear();
    assert_eq!((cache.usage().bytes, alive.load(SeqCst)), (0, 0));
    // a long text would take too much of the cache, and leaves the others there
    let mut small = SegmentCache::new(Capacity::with_bytes(8_000));
    keep_open(&mut small, &[1, 0, 2, 2], &alive);
    keep_open(&mut small, &[&[1, 0][..], &[3; 200]].concat(), &alive);
    assert_eq!(checked(&mut small, &[&[1, 0][..], &[3; 201]].concat(), &alive), 2);
    assert_eq!(checked(&mut small, &[1, 0, 2, 2], &alive), 4);
}

#[test]
fn entries_of_a_full_cache_make_room() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(100_000));
    let mut texts = (10..).map(|number| [number, number, 0]);
    while cache.evictions < 5 {
        keep(&mut cache, &texts.next().unwrap(), &alive);
    }
    keep_open(&mut cache, &[1, 0, 5, 5, 5], &alive);
    assert_eq!(checked(&mut cache, &[1, 0, 5, 5, 5, 6], &alive), 5);
    let evictions = cache.evictions;
    texts.by_ref().take(20).for_each(|text| assert!(keep(&mut cache, &text, &alive)));
    assert!(cache.usage().bytes <= 100_000 && cache.evictions >= evictions + 20);
    assert_eq!(checked(&mut cache, &[1, 0, 5, 5, 5, 6], &alive), 5, "later entries replace entries");
    // a row that needs pages first gets pages of open states
    let entries = cache.usage().entries;
    assert!(cache.evict().is_some());
    assert_eq!(cache.usage().entries, entries);
    assert_eq!(checked(&mut cache, &[1, 0, 5, 5, 5, 6], &alive), 2);
    // open states with many pages of their own give way to entries
    let long = |number: u32| [&[1, 0][..], &[number; 60]].concat();
    (10..20).for_each(|number| keep_open(&mut cache, &long(number), &alive));
    assert!(cache.usage().bytes <= 100_000 && cache.usage().entries > entries / 2, "{:?}", cache.usage());
    assert!((10..20).filter(|&number| checked(&mut cache, &long(number), &alive) == 62).count() < 3);
}

#[test]
fn the_longest_state_is_that_of_a_naive_search() {
    let alive = Arc::default();
    let mut found = 0;
    for round in 0..2_000 {
        let below = |draw, sides| (uniform(round, Purpose::Sampling, draw) * sides as f32) as usize;
        let symbols = |first| (0..below(first, 7)).map(|index| below(first + 1 + index, 2) as u32).collect();
        let mut states = OpenStates::default();
        let mut texts: Vec<(Key, Vec<u32>)> = Vec::new();
        for number in 0..12 {
            let text: Vec<u32> = symbols(100 + 10 * number);
            let own = (key(["a", "b"][number % 2]), text);
            if !own.1.is_empty() && !texts.contains(&own) {
                let state = Box::new(PagedState::new(&[], &alive));
                let rest = own.1[..].into();
                states.push(OpenState { key: own.0.clone(), place: WHOLE, rest, state, own_bytes: 1 });
                texts.push(own);
            }
        }
        let text: Vec<u32> = symbols(300);
        let shortest = below(400, 3);
        let all = texts.iter().enumerate();
        let asked = key("b");
        let serving = all.filter(|(_, (key, own))| *key == asked && own.len() > shortest && text.starts_with(own));
        let naive = serving.max_by_key(|(_, (_, own))| own.len());
        let naive = naive.map(|(index, (_, own))| OpenMatch { index, len: own.len() });
        assert_eq!(states.longest(&asked, (&text).into(), shortest), naive);
        let shared = SharedPrefix::new(text[..below(401, text.len() + 1)].to_vec());
        let prefix = states.longest(&asked, shared.text(), shortest);
        assert_eq!(prefix, states.longest(&asked, (&text[..shared.len()]).into(), shortest));
        let fork = shared.fork(&text[shared.len()..]);
        assert_eq!(states.longest(&asked, fork.text(), shortest), naive);
        found += usize::from(naive.is_some());
    }
    assert!(found > 300, "{found}");
}

/// The state depends on the symbols from 2,500 on, and on the text before if it counts segments. Texts are cut at 2,048.
#[test]
fn a_windowed_state_serves_all_texts_with_the_symbols_that_it_depends_on() {
    let alive = Arc::default();
    let text: Vec<u32> = (0..3000).map(|index| if index % 7 == 6 { 0 } else { 1 + index % 3 }).collect();
    let changed_at = |position: usize| {
        let mut text = [&text[..], &[5]].concat();
        text[position] = 9;
        text
    };
    for skipped in [None, Some(SkippedSegments { count: 1, next_start: 2501, next_end: 2504 })] {
        let mut state = PagedState::windowed(&text, Some(16), &alive);
        state.replay_start = Some(ReplayStart { symbol: 2500, valid_from: 2510, skipped });
        let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 20));
        cache.keep_open(&key("a"), &text, Box::new(state)).unwrap();
        let served = [3000, 5, 2047, 2048, 2998].map(|position| cache.known(&key("a"), &changed_at(position)));
        let before = if skipped.is_some() { 0 } else { 3000 };
        assert_eq!(served, [3000, before, before, 0, boundary(&text)]);
        // the entry and the open state keep only the symbols after the cut
        let symbols = cache.usage().bytes - cache.usage().page_bytes;
        assert!((2 * 952 * 4..3000 * 4).contains(&symbols), "{symbols}");
    }
}

/// Rows continue from hits, so that entries and open states share pages in every order.
#[test]
fn random_texts_have_their_own_states() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(20_000));
    let mut open_hits = 0;
    for round in 0..6_000 {
        let below = |draw, sides| (uniform(round, Purpose::Sampling, draw) * sides as f32) as usize;
        let len = 1 + below(0, 9);
        let text: Vec<u32> = (0..len).map(|index| below(index + 3, 3) as u32).collect();
        let hit = cache.find(&key("a"), &text).unwrap();
        let mut row = hit.map_or_else(|| PagedState::new(&[], &alive), |hit| paged(&*hit.state).clone());
        text[row.len()..].iter().for_each(|&symbol| row.push(symbol));
        match below(1, 8) {
            0..3 => {
                let (document, tried) = text.split_at(below(2, len + 1));
                let fork = SharedPrefix::new(document.to_vec()).fork(tried);
                cache.keep_open(&key("a"), fork.text(), Box::new(row)).unwrap();
            }
            3..6 => {
                cache.keep(&key("a"), &text, &row).unwrap();
                drop(row);
            }
            6 => drop((row, cache.evict())),
            _ => drop(row),
        }
        let served = checked(&mut cache, &text, &alive);
        open_hits += usize::from(served > boundary(&text[..served]));
        assert!(cache.usage().bytes <= 20_000);
    }
    assert!(open_hits > 300, "{open_hits}");
    while cache.evict().is_some() {}
    assert_eq!((cache.usage().bytes, alive.load(SeqCst)), (0, 0));
}
