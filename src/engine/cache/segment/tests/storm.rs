//! The cache against a twin that is a list of texts, in seeded storms.

use super::*;
use crate::decode::random::{Purpose, uniform};

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
    earliest: usize,
    used: u64,
}

impl Kept {
    /// How many of the first `len` symbols it serves, up to a segment's end.
    fn serves(&self, len: usize) -> usize {
        let end = boundary(&self.text[..len]);
        if end < self.earliest { 0 } else { end }
    }

    /// Whether it serves what another one does, whose text it begins with.
    fn replaces(&self, other: &Kept) -> bool {
        self.text.starts_with(&other.text) && self.earliest <= other.earliest
    }
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

    /// From the definition of a radix tree: a node at its root, at each text's end, and wherever two texts part.
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
    }

    fn own<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = usize> + 'a {
        (0..self.entries.len()).filter(move |&index| self.entries[index].key == *key)
    }

    /// The entry that serves most; of equals the one that shares most, then the one that serves the shortest, then the one used
    /// last.
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

    fn keep(&mut self, key: &Key, row: &Paged) -> bool {
        let (len, pages, earliest) = (row.boundary_before(row.len()), page_ids(row), row.earliest());
        if len == 0 {
            return false;
        }
        let pages = pages[..len.div_ceil(PAGE) - row.forgotten].to_vec();
        let entry = Kept { key: key.clone(), text: row.text[..len].to_vec(), pages, earliest, used: 0 };
        let longer = self.own(key).filter(|&index| self.entries[index].text.starts_with(&entry.text));
        let furthest = |&index: &usize| (std::cmp::Reverse(self.entries[index].earliest), self.entries[index].used);
        if let Some(index) = longer.max_by_key(furthest).filter(|&index| self.entries[index].replaces(&entry)) {
            self.touch(index);
            return true;
        }
        let alone = Twin { capacity: self.capacity, entries: vec![entry.clone()], now: 0 };
        if alone.bytes() > self.capacity.bytes {
            return false;
        }
        self.entries.retain(|other| other.key != *key || !entry.replaces(other));
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
    window: Option<usize>,
    rows: Vec<(Key, Paged)>,
    living: Arc<AtomicUsize>,
}

impl Storm {
    fn new(seed: u64, capacity: Capacity, window: Option<usize>) -> Self {
        let twin = Twin { capacity, entries: Vec::new(), now: 0 };
        let (cache, rows, living) = (SegmentCache::new(capacity), Vec::new(), Arc::default());
        Self { seed, draws: 0, cache, twin, window, rows, living }
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
            let mut row = crate::decode::contract::state_ref::<Paged>(&*state).unwrap().clone();
            // it goes on as its text does
            text[len..].iter().for_each(|&symbol| row.push(symbol));
            self.add_row(key, row);
        } else if self.below(2) == 0 {
            let row = Paged::windowed(&text, self.window, &self.living);
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
        let held = self.cache.keep(key, &row.text, row).unwrap();
        assert_eq!(held, self.twin.keep(key, row));
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
            assert_eq!((stem, stems.len()), (&TreeKey::NONE, 1), "these states need their whole texts");
            for (text, node) in tree.check() {
                let (state, used) = tree.value(node).unwrap();
                assert_eq!(text_of(&**state), text);
                assert_eq!(self.cache.order.get(&used), Some(&Entry { key: key.clone(), stem: *stem, node }));
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
    let windows = [None, Some(10)];
    let all = windows.into_iter().flat_map(|window| capacities.map(|capacity| (capacity, window)));
    for (seed, (capacity, window)) in all.enumerate() {
        let mut storm = Storm::new(seed as u64, capacity, window);
        for round in 0..20_000 {
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
