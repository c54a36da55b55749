//! The segment cache: states of texts that were computed before, found by the symbols they share with a new one.
//!
//! A radix tree for each [`Key`], over the symbols that a state depends on: all of its text, or where windows have moved on
//! the end of it, in a tree of its own for each place where texts are cut. What is below one key is never seen under another.
//! An entry is a fork, so its pages are shared with the row it came from and with every row that goes on from it, until one of
//! them writes. Entries end where a segment does (for a model without segments: where they were kept), and a hit is rolled
//! back to the end of the last segment that lies wholly within what is shared: an entry serves every text that begins as it
//! does, whatever comes after. One whose windows have moved on cannot be rolled back far: shorter entries stay beside it, and
//! share what pages they have in common. Nothing is told apart by where it came from: a row that starts from a hit has the
//! numbers of one that starts cold.
//!
//! A pure type, without clock, threads or channels. Its memory is that of the distinct pages its entries refer to, and
//! roughly that of the tree itself; beyond the limit the entry that was used least recently goes.

#[cfg(test)]
mod tests;
mod tree;
mod tree_key;

use super::page_accounting::PageAccounting;
use crate::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Card, Noise, State},
        text_window::TextView,
    },
    error::Result,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};
use tree::{NodeId, Tree};
use tree_key::{TreeKey, Trees};

/// What must be equal for a text's state to be another's: who asks, and how boundaries are decided. A model's generation has
/// a cache of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    tenant: Arc<str>,
    mode: Option<BoundaryMode>,
    /// Where boundaries are sampled: the seed of their noise.
    seed: Option<u64>,
}

impl Key {
    /// The key of a tenant's sequence; none if such a sequence is not to be cached: its noise was given, or it does not start
    /// at its stream's start.
    pub fn of(tenant: &Arc<str>, boundaries: &BoundaryOptions, card: &Card) -> Option<Self> {
        let mode = boundaries.mode.or(card.boundary_modes.first().copied());
        let seed = match boundaries.noise {
            _ if mode != Some(BoundaryMode::Sampled) => None,
            Noise::Seeded(seed) => Some(seed),
            Noise::Given(_) => return None,
        };
        (boundaries.offset == 0).then(|| Self { tenant: Arc::clone(tenant), mode, seed })
    }
}

/// How much a cache may hold.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Bytes of pages and of the tree together.
    pub bytes: usize,
    /// Entries.
    pub entries: usize,
    /// Keys: tenants, times the seeds of their sampled boundaries.
    pub keys: usize,
}

impl Capacity {
    /// So many bytes, and as many entries and keys as no server needs.
    pub fn of_bytes(bytes: usize) -> Self {
        Self { bytes, entries: 1 << 16, keys: 1 << 12 }
    }
}

/// What a cache holds and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentCacheUsage {
    /// Entries held.
    pub entries: usize,
    /// Keys that they are under.
    pub keys: usize,
    /// Bytes of distinct pages, and roughly of the tree.
    pub bytes: usize,
    /// Of these, of pages.
    pub page_bytes: usize,
    /// Lookups that found something.
    pub hits: u64,
    /// Lookups that found nothing.
    pub misses: u64,
    /// Symbols that were looked up.
    pub lookup_symbols: u64,
    /// Symbols that hits spared feeding.
    pub hit_symbols: u64,
    /// Bytes of the pages that hits shared.
    pub hit_bytes: u64,
    /// Entries that had to go.
    pub evictions: u64,
}

/// A state to go on from.
pub struct Hit {
    /// It has been fed the first `len` of the symbols looked up.
    pub state: Box<dyn State>,
    /// At least 1.
    pub len: usize,
}

/// The cache.
pub struct SegmentCache {
    capacity: Capacity,
    trees: HashMap<Key, Trees<Box<dyn State>>>,
    /// The entries by when they were used last.
    order: BTreeMap<u64, Entry>,
    pages: PageAccounting,
    /// Bytes of entries and trees beside pages.
    own_bytes: usize,
    /// Uses so far.
    now: u64,
    counts: SegmentCacheUsage,
}

/// Where an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    key: Key,
    stem: TreeKey,
    node: NodeId,
}

/// Bytes that a node and its place in the tree take, roughly.
const NODE_BYTES: usize = 192;
/// Bytes that an entry takes beside its node, its pages and its state, roughly.
const ENTRY_BYTES: usize = 256;
/// Bytes that a key and its tree take beside the tree's nodes, roughly.
const KEY_BYTES: usize = 256;

impl SegmentCache {
    /// An empty one.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            trees: HashMap::new(),
            order: BTreeMap::new(),
            pages: PageAccounting::default(),
            own_bytes: 0,
            now: 0,
            counts: SegmentCacheUsage::default(),
        }
    }

    /// The state of the longest known beginning of these symbols that ends where a segment does. Whoever needs the logits after
    /// the last symbol leaves it out, for it has to be fed: give at most
    /// [`cacheable_prefix`](crate::decode::session::Session::cacheable_prefix) symbols.
    ///
    /// # Errors
    /// An entry that cannot be rolled back; it is gone.
    pub fn find<'a>(&mut self, key: &Key, text: impl Into<TextView<'a>>) -> Result<Option<Hit>> {
        let text = text.into();
        if text.is_empty() {
            return Ok(None);
        }
        self.counts.lookup_symbols += text.len() as u64;
        let found = self.longest(key, text).map(|(entry, len, state)| (entry, len, state.fork()));
        let Some((entry, len, mut state)) = found else {
            self.counts.misses += 1;
            return Ok(None);
        };
        if let Err(error) = state.rollback(len) {
            self.drop_entry(&entry);
            return Err(error);
        }
        self.touch(&entry);
        self.counts.hits += 1;
        self.counts.hit_symbols += len as u64;
        self.counts.hit_bytes += state.bytes() as u64;
        Ok(Some(Hit { state, len }))
    }

    /// How many of these symbols a [`find`](Self::find) would spare feeding. Counts for no use.
    pub fn known<'a>(&self, key: &Key, text: impl Into<TextView<'a>>) -> usize {
        self.longest(key, text.into()).map_or(0, |(_, len, _)| len)
    }

    /// The entry that knows most of a text, how much, and its state.
    fn longest(&self, key: &Key, text: TextView<'_>) -> Option<(Entry, usize, &dyn State)> {
        let stems = self.trees.get(key)?;
        let found = tree_key::of(stems, text).filter_map(|(stem, tree, rest)| {
            tree.sharing(rest).find_map(|(shared, node)| {
                let (state, _) = tree.value(node)?;
                let len = state.boundary_before(stem.from + shared);
                // what lies before its own part of the text is not for it to tell
                (len > stem.from).then_some((stem, node, len, &**state))
            })
        });
        let (stem, node, len, state) = found.max_by_key(|&(_, _, len, _)| len)?;
        Some((Entry { key: key.clone(), stem: *stem, node }, len, state))
    }

    /// Keeps what a state knows of these symbols, the first of which it has been fed, up to the last segment's end. Tells
    /// whether it is held now: not if no segment ended yet, or if it is larger than the whole cache may be. Of two entries one of
    /// which begins as the other does, the longer one serves both if it can be rolled back as far.
    ///
    /// # Errors
    /// A state that cannot be rolled back; nothing is kept.
    pub fn keep<'a>(&mut self, key: &Key, text: impl Into<TextView<'a>>, state: &dyn State) -> Result<bool> {
        let text = text.into();
        // a fork forgets a symbol that is on its way
        let mut state = state.fork();
        let len = state.boundary_before(state.len().min(text.len()));
        let text = text.to(len);
        // nothing is left of what it depends on, if its text was cut behind that
        let Some((stem, rest)) = TreeKey::of(&*state, text).filter(|_| len > 0) else { return Ok(false) };
        state.rollback(len)?;
        let at = |node| Entry { key: key.clone(), stem, node };
        let tree = self.trees.get(key).and_then(|stems| stems.get(&stem));
        let known = tree.and_then(|tree| {
            let (_, node) = tree.sharing(rest).next().filter(|&(shared, _)| shared == rest.len())?;
            tree.value(node).is_some_and(|(held, _)| held.earliest() <= state.earliest()).then_some(node)
        });
        if let Some(node) = known {
            self.touch(&at(node));
            return Ok(true);
        }
        let replaced: Vec<NodeId> = tree.map_or_else(Vec::new, |tree| {
            let shorter = tree.beginnings(rest).map(|(_, node)| node);
            shorter
                .filter(|&node| tree.value(node).is_some_and(|(held, _)| state.earliest() <= held.earliest()))
                .collect()
        });
        if self.least_bytes(key, rest, &*state) > self.capacity.bytes || self.capacity.entries == 0 {
            return Ok(false);
        }
        replaced.into_iter().for_each(|node| {
            self.drop_entry(&at(node));
        });
        self.insert(key, (stem, rest), state);
        while self.usage().bytes > self.capacity.bytes || self.order.len() > self.capacity.entries {
            self.evict();
        }
        Ok(true)
    }

    /// Evicts the entry that was used least recently; tells how many bytes of pages that gave back, none if there was none. A
    /// page that a running row shares is not given back by dropping an entry, and not counted.
    pub fn evict(&mut self) -> Option<usize> {
        let entry = self.order.first_key_value().map(|(_, entry)| entry.clone())?;
        self.counts.evictions += 1;
        Some(self.drop_entry(&entry))
    }

    /// Bytes of the pages that nobody but entries refers to: what evicting all of them would give back.
    pub fn spare(&self) -> usize {
        let trees = self.trees.values().flat_map(Trees::values);
        let entries = trees.flat_map(|tree| tree.values().filter_map(|node| tree.value(node)));
        self.pages.spare(entries.map(|(state, _)| &**state))
    }

    /// Drops all entries; what was counted stays.
    pub fn clear(&mut self) {
        let Self { capacity, counts, .. } = *self;
        *self = Self { counts, ..Self::new(capacity) };
    }

    /// What it holds and what became of it.
    pub fn usage(&self) -> SegmentCacheUsage {
        let page_bytes = self.pages.bytes();
        let bytes = page_bytes + self.own_bytes;
        SegmentCacheUsage { entries: self.order.len(), keys: self.trees.len(), bytes, page_bytes, ..self.counts }
    }

    /// What the cache would hold with this entry alone.
    fn least_bytes(&self, key: &Key, text: &[u32], state: &dyn State) -> usize {
        // the root and the entry's
        state.bytes() + entry_bytes(state) + key_bytes(key) + tree_bytes(2, text.len())
    }

    /// Adds an entry. No other one stands at its text.
    fn insert(&mut self, key: &Key, (stem, text): (TreeKey, &[u32]), state: Box<dyn State>) {
        if !self.trees.contains_key(key) {
            if self.trees.len() >= self.capacity.keys.max(1) {
                self.evict_key();
            }
            self.own_bytes += key_bytes(key);
        }
        self.pages.add(&*state);
        self.own_bytes += entry_bytes(&*state);
        self.now += 1;
        let stems = self.trees.entry(key.clone()).or_default();
        let before = stems.get(&stem).map_or((0, 0), Tree::size);
        let tree = stems.entry(stem).or_insert_with(Tree::new);
        let least = state.earliest().saturating_sub(stem.from);
        let node = tree.insert(text, state, least, self.now);
        let after = tree.size();
        self.own_bytes += tree_bytes(after.0, after.1) - tree_bytes(before.0, before.1);
        self.order.insert(self.now, Entry { key: key.clone(), stem, node });
    }

    fn touch(&mut self, Entry { key, stem, node }: &Entry) {
        let Some(tree) = self.trees.get_mut(key).and_then(|stems| stems.get_mut(stem)) else { return };
        let Some((_, before)) = tree.value(*node) else { return };
        self.now += 1;
        tree.touch(*node, self.now);
        if let Some(entry) = self.order.remove(&before) {
            self.order.insert(self.now, entry);
        }
    }

    /// Drops the entries of the key used least recently.
    fn evict_key(&mut self) {
        let latest = |stems: &Trees<_>| stems.values().map(Tree::latest).max();
        let Some((key, stems)) = self.trees.iter().min_by_key(|(_, stems)| latest(stems)) else { return };
        let entry = |stem: &TreeKey, node| Entry { key: key.clone(), stem: *stem, node };
        let entries = stems.iter().flat_map(|(stem, tree)| tree.values().map(move |node| entry(stem, node)));
        for entry in entries.collect::<Vec<_>>() {
            self.counts.evictions += 1;
            self.drop_entry(&entry);
        }
    }

    /// Drops an entry, its tree if that is empty then, and its key if that has no tree then; returns the bytes of pages that
    /// this gave back.
    fn drop_entry(&mut self, Entry { key, stem, node }: &Entry) -> usize {
        let Some(stems) = self.trees.get_mut(key) else { return 0 };
        let Some(tree) = stems.get_mut(stem) else { return 0 };
        let (before, used) = (tree.size(), tree.value(*node).map(|(_, used)| used));
        let Some(state) = tree.remove(*node) else { return 0 };
        let after = if tree.is_empty() { (0, 0) } else { tree.size() };
        self.own_bytes -= tree_bytes(before.0, before.1) - tree_bytes(after.0, after.1);
        if after.0 == 0 {
            stems.remove(stem);
        }
        if stems.is_empty() {
            self.trees.remove(key);
            self.own_bytes -= key_bytes(key);
        }
        if let Some(used) = used {
            self.order.remove(&used);
        }
        self.own_bytes -= entry_bytes(&*state);
        self.pages.remove(&*state)
    }
}

fn tree_bytes(nodes: usize, symbols: usize) -> usize {
    nodes * NODE_BYTES + symbols * size_of::<u32>()
}

fn entry_bytes(state: &dyn State) -> usize {
    ENTRY_BYTES + state.own_bytes()
}

fn key_bytes(key: &Key) -> usize {
    KEY_BYTES + key.tenant.len()
}
