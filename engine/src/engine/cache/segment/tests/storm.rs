//! The cache compared with a naive implementation, a list of texts, in seeded storms.

use super::*;
use crate::decode::random::{Purpose, uniform};
use std::collections::BTreeMap;

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
struct CacheStorm {
    seed: u64,
    draws: usize,
    cache: SegmentCache,
    naive: NaiveCache,
    window: Option<usize>,
    rows: Vec<(Key, PagedState)>,
    alive: Arc<AtomicUsize>,
}

impl CacheStorm {
    fn new(seed: u64, capacity: Capacity, window: Option<usize>) -> Self {
        let naive = NaiveCache::new(capacity);
        let cache = SegmentCache::new(capacity);
        Self { seed, draws: 0, cache, naive, window, rows: Vec::new(), alive: Arc::default() }
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
        if let Some(Hit { state, len }) = hit {
            assert_eq!(text_of(&*state), text[..len]);
            let mut row = crate::decode::contract::state_ref::<PagedState>(&*state).unwrap().clone();
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
            assert_eq!((tree_key, trees.len()), (&TreeKey::WHOLE, 1), "these states need their whole texts");
            for (text, node) in tree.check() {
                let (state, last_used) = tree.value(node).unwrap();
                assert_eq!(text_of(&**state), text);
                let entry = EntryId { key: key.clone(), tree_key: *tree_key, node };
                assert_eq!(self.cache.tenants.get(&key.tenant, last_used), Some(&entry));
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
        assert_eq!(self.cache.tenants.bytes(), parts.collect());
    }
}

#[test]
fn the_cache_equals_the_naive_implementation_in_storms() {
    let capacities = [
        Capacity { bytes: usize::MAX, entries: 24, keys: 4 },
        Capacity { bytes: 40_000, entries: 1000, keys: 4 },
        Capacity { bytes: 25_000, entries: 12, keys: 2 },
        Capacity { bytes: 9_000, entries: 1000, keys: 3 },
    ];
    let windows = [None, Some(10)];
    let all = windows.into_iter().flat_map(|window| capacities.map(|capacity| (capacity, window)));
    for (seed, (capacity, window)) in all.enumerate() {
        let mut storm = CacheStorm::new(seed as u64, capacity, window);
        for round in 0..20_000 {
            storm.step();
            if round % 64 == 0 {
                storm.compare();
            }
        }
        storm.compare();
        let usage = storm.cache.usage();
        let uses = [usage.hits, usage.misses, usage.hit_symbols, usage.evictions];
        assert!(uses.iter().all(|&count| count > 500), "a storm without events: {usage:?}");
        let CacheStorm { cache, rows, alive, .. } = storm;
        drop((cache, rows));
        assert_eq!(alive.load(SeqCst), 0, "pages leaked");
    }
}
