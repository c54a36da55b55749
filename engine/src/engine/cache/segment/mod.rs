//! The segment cache: states of texts that were computed before, found by the prefix that they share with a new text.
//!
//! Each [`Key`] has a radix tree over the symbols that a state depends on: its whole text, or the end of the text if
//! windows have moved on, in a tree for each cut position. Entries of one key are never visible under another.
//!
//! An entry is a fork. Its pages are shared with the row that it came from and with every row that continues from it, until one
//! of them writes. Entries end at the end of a segment; for a model without segments, where they were stored. A hit is rolled
//! back to the end of the last segment that lies within the shared prefix: one entry serves every text with the same prefix.
//! An entry whose windows have moved on cannot be rolled back far. Shorter entries stay next to it and share its pages. A row
//! that starts from a hit has the same numbers as one that starts cold. Next to the trees, the cache holds a few states of texts
//! that end within a segment or after their shared prefix ([`open_states`]).
//!
//! Pure: no clock, threads or channels. Its memory is that of the distinct pages of its entries plus an estimate of the trees;
//! beyond the limit, entries are evicted by the rules of [`tenants`], and open states if they take more than a small part.

mod open_states;
mod searched;
mod tenants;
#[cfg(test)]
mod tests;
mod tree;
mod tree_key;

use super::page_accounting::PageAccounting;
use crate::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Card, Noise, State},
        symbol_slices::SymbolSlices,
        text_window::TextView,
    },
    engine::accounting,
    error::Result,
};
use open_states::{OpenMatch, OpenStates};
use std::{collections::HashMap, sync::Arc};
use tenants::{TenantEntries, TenantTable};
use tree::{NodeId, Tree, TreeSize};
use tree_key::{TreeKey, TreeMatch, Trees, matching_trees};

/// Texts share states only under equal keys: same tenant, same boundary decisions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    tenant: Arc<str>,
    mode: Option<BoundaryMode>,
    /// Seed of sampled boundaries.
    seed: Option<u64>,
}

impl Key {
    /// Returns the key of a tenant's sequence. `None` if it is not cached: with given noise, or from within a stream.
    pub fn for_sequence(tenant: &Arc<str>, boundaries: &BoundaryOptions, card: &Card) -> Option<Self> {
        let mode = boundaries.mode.or(card.boundary_modes.first().copied());
        let seed = match boundaries.noise {
            _ if mode != Some(BoundaryMode::Sampled) => None,
            Noise::Seeded(seed) => Some(seed),
            Noise::Given(_) => return None,
        };
        (boundaries.offset == 0).then(|| Self { tenant: Arc::clone(tenant), mode, seed })
    }
}

/// Limits of a segment cache.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Maximum bytes of pages and trees together.
    pub bytes: usize,
    /// Maximum entries.
    pub entries: usize,
    /// Maximum keys: tenants times the seeds of their sampled boundaries.
    pub keys: usize,
}

impl Capacity {
    /// Returns a capacity of `bytes` bytes, with more entries and keys than a server needs.
    pub fn with_bytes(bytes: usize) -> Self {
        Self { bytes, entries: 1 << 16, keys: 1 << 12 }
    }
}

/// Contents and totals of a segment cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentCacheUsage {
    /// Entries held, without open states.
    pub entries: usize,
    /// Keys of the entries held.
    pub keys: usize,
    /// Bytes of distinct pages, and estimated bytes of the trees, including those of open states.
    pub bytes: usize,
    /// Bytes of distinct pages.
    pub page_bytes: usize,
    /// Lookups that found an entry.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Symbols that were looked up.
    pub lookup_symbols: u64,
    /// Symbols that hits saved from being fed.
    pub hit_symbols: u64,
    /// Bytes of the pages that hits shared.
    pub hit_bytes: u64,
    /// Entries that were evicted.
    pub evictions: u64,
}

/// A state to continue from.
pub struct Hit {
    /// It has been fed the first `len` of the symbols that were looked up.
    pub state: Box<dyn State>,
    /// At least 1.
    pub len: usize,
}

/// The segment cache.
pub struct SegmentCache {
    capacity: Capacity,
    trees: HashMap<Key, Trees<Box<dyn State>>>,
    tenants: TenantTable<EntryId>,
    open_states: OpenStates<Key>,
    pages: PageAccounting,
    /// Estimated bytes of entries and trees without pages.
    own_bytes: usize,
    /// Number of uses, as a clock.
    now: u64,
    counts: SegmentCacheUsage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct EntryId {
    key: Key,
    tree_key: TreeKey,
    node: NodeId,
}

/// The entry that serves most of a text.
struct LongestMatch<'a> {
    entry: EntryId,
    /// Symbols of the text that it serves.
    len: usize,
    state: &'a dyn State,
}

/// Estimated bytes of a tree node.
const NODE_BYTES: usize = 192;
/// Estimated bytes of an entry without its node, pages and state.
const ENTRY_BYTES: usize = 256;
/// Estimated bytes of a key and its tree without the tree's nodes.
const KEY_BYTES: usize = 256;

impl SegmentCache {
    /// Creates an empty cache.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            trees: HashMap::new(),
            tenants: TenantTable::new(),
            open_states: OpenStates::new(),
            pages: PageAccounting::default(),
            own_bytes: 0,
            now: 0,
            counts: SegmentCacheUsage::default(),
        }
    }

    /// Returns the state of the longest cached prefix of `text`: one that ends at the end of a segment, or the whole text of an open
    /// state. For the logits after the text, pass at most [`cacheable_prefix`](crate::decode::session::Session::cacheable_prefix) symbols. Fails
    /// if the entry cannot be rolled back, and drops it.
    pub fn find<'a>(&mut self, key: &Key, text: impl Into<TextView<'a>>) -> Result<Option<Hit>> {
        let text = text.into();
        if text.is_empty() {
            return Ok(None);
        }
        self.counts.lookup_symbols += text.len() as u64;
        let closed = self.longest_match(key, text);
        let open = self.longest_open(key, text, closed.as_ref().map_or(0, |longest| longest.len));
        let hit = match (open, closed) {
            (Some(OpenMatch { index, len }), _) => self.open_states.fork(index).map(|state| Hit { state, len }),
            (None, Some(LongestMatch { entry, len, state })) => Some(self.hit_closed(&entry, state.fork(), len)?),
            (None, None) => None,
        };
        match &hit {
            None => self.counts.misses += 1,
            Some(Hit { state, len }) => {
                self.counts.hits += 1;
                self.counts.hit_symbols += *len as u64;
                self.counts.hit_bytes += state.bytes() as u64;
            }
        }
        Ok(hit)
    }

    /// Rolls back a fork of an entry's state, and counts the use. Drops the entry if that fails.
    fn hit_closed(&mut self, entry: &EntryId, mut state: Box<dyn State>, len: usize) -> Result<Hit> {
        if let Err(error) = state.rollback(len) {
            self.drop_entry(entry);
            return Err(error);
        }
        self.touch(entry);
        Ok(Hit { state, len })
    }

    /// Returns how many symbols [`find`](Self::find) would save, without counting a use.
    pub fn known<'a>(&self, key: &Key, text: impl Into<TextView<'a>>) -> usize {
        let text = text.into();
        let closed = self.longest_match(key, text).map_or(0, |longest| longest.len);
        self.longest_open(key, text, closed).map_or(closed, |open| open.len)
    }

    fn longest_match(&self, key: &Key, text: TextView<'_>) -> Option<LongestMatch<'_>> {
        let matches = matching_trees(self.trees.get(key)?, text);
        let entries = matches.filter_map(|TreeMatch { key: tree_key, tree, rest }| {
            tree.sharing(rest).find_map(|(shared, node)| {
                let (state, _) = tree.value(node)?;
                let len = state.boundary_before(tree_key.start + shared);
                // an entry does not serve the text before its tree's start
                let entry = EntryId { key: key.clone(), tree_key, node };
                (len > tree_key.start).then_some(LongestMatch { entry, len, state: &**state })
            })
        });
        entries.max_by_key(|entry| entry.len)
    }

    /// Stores the state of `text` up to the end of its last segment. If `text` continues a shared prefix, only segments that end within
    /// the prefix count. The state has been fed the first symbol of `text`.
    ///
    /// Returns true if the cache holds it now; false if no segment has ended, or if it is larger than the whole cache or than
    /// what other tenants leave of it.
    /// If one entry's text starts with another's, only the longer entry is held, provided that it can be rolled back as
    /// far. Fails if the state cannot be rolled back; nothing is stored.
    pub fn keep<'a>(&mut self, key: &Key, text: impl Into<TextView<'a>>, state: &dyn State) -> Result<bool> {
        let text = text.into();
        let text = text.prefix(text.shared_prefix_len());
        // a fork forgets a symbol that is in flight
        let mut state = state.fork();
        let len = state.boundary_before(state.len().min(text.len()));
        let text = text.prefix(len);
        // the text may have been cut after the part that the state depends on
        let Some((tree_key, rest)) = TreeKey::for_state(&*state, text).filter(|_| len > 0) else { return Ok(false) };
        state.rollback(len)?;
        let entry_at = |node| EntryId { key: key.clone(), tree_key, node };
        let tree = self.trees.get(key).and_then(|trees| trees.get(&tree_key));
        let held = tree.and_then(|tree| {
            let (_, node) = tree.sharing(rest).next().filter(|&(shared, _)| shared == rest.len())?;
            tree.value(node).is_some_and(|(held, _)| held.earliest() <= state.earliest()).then_some(node)
        });
        if let Some(node) = held {
            self.touch(&entry_at(node));
            return Ok(true);
        }
        let replaced: Vec<NodeId> = tree.map_or_else(Vec::new, |tree| {
            let serves_less =
                |&node: &NodeId| tree.value(node).is_some_and(|(held, _)| state.earliest() <= held.earliest());
            tree.prefixes(rest).filter(serves_less).collect()
        });
        if self.min_bytes(key, rest, &*state) > self.capacity.bytes || self.capacity.entries == 0 {
            return Ok(false);
        }
        replaced.into_iter().for_each(|node| {
            self.drop_entry(&entry_at(node));
        });
        self.insert(key, tree_key, rest, state);
        let stored_at = self.now;
        self.make_room();
        while self.tenants.entries() > self.capacity.entries {
            self.evict_from_largest(TenantEntries::len);
        }
        Ok(self.tenants.has(&key.tenant, stored_at))
    }

    /// Evicts an open state, or else an entry by the rules of `tenants`, for a row that needs pages. Returns the freed bytes of pages,
    /// or `None` if empty. A page that a running row shares is not freed and not counted.
    pub fn evict(&mut self) -> Option<usize> {
        self.drop_open_state().or_else(|| self.evict_from_largest(TenantEntries::bytes))
    }

    fn evict_from_largest(&mut self, size: impl Fn(&TenantEntries<EntryId>) -> usize) -> Option<usize> {
        let entry = self.tenants.victim(size)?.oldest()?.clone();
        self.counts.evictions += 1;
        Some(self.drop_entry(&entry))
    }

    /// Starts a new period. A tenant that has used nothing in the present one and the one before loses its entries first.
    pub fn start_period(&mut self) {
        self.tenants.start_period();
    }

    /// Returns the bytes of pages that only entries and open states refer to: evicting all of these would free them.
    pub fn evictable_bytes(&self) -> usize {
        let trees = self.trees.values().flat_map(Trees::values);
        let entries = trees.flat_map(|tree| tree.values().filter_map(|node| tree.value(node)));
        self.pages.evictable_bytes(entries.map(|(state, _)| &**state).chain(self.open_states.states()))
    }

    /// Drops all entries. The totals stay.
    pub fn clear(&mut self) {
        let Self { capacity, counts, .. } = *self;
        *self = Self { counts, ..Self::new(capacity) };
    }

    /// Returns contents and totals.
    pub fn usage(&self) -> SegmentCacheUsage {
        let page_bytes = self.pages.bytes + self.pages.short_lived_bytes;
        let bytes = self.all_bytes();
        SegmentCacheUsage { entries: self.tenants.entries(), keys: self.trees.len(), bytes, page_bytes, ..self.counts }
    }

    /// Returns the bytes of the entries, which the accounts of tenants add up to.
    fn bytes(&self) -> usize {
        self.pages.bytes + self.own_bytes
    }

    /// Returns the bytes of a cache that holds only this entry: its node and the root.
    fn min_bytes(&self, key: &Key, text: SymbolSlices<'_>, state: &dyn State) -> usize {
        let tree = TreeSize { nodes: 2, symbols: text.len() };
        state.bytes() + entry_bytes(state) + key_bytes(key) + tree_bytes(tree)
    }

    /// Adds an entry. The tree has no other entry at `text`.
    fn insert(&mut self, key: &Key, tree_key: TreeKey, text: SymbolSlices<'_>, state: Box<dyn State>) {
        let is_new_key = !self.trees.contains_key(key);
        if is_new_key && self.trees.len() >= self.capacity.keys.max(1) {
            self.evict_key(&key.tenant);
        }
        let bytes = self.bytes();
        if is_new_key {
            accounting::add(&mut self.own_bytes, key_bytes(key));
        }
        self.pages.add(&*state);
        accounting::add(&mut self.own_bytes, entry_bytes(&*state));
        self.now += 1;
        let trees = self.trees.entry(key.clone()).or_default();
        let before = trees.get(&tree_key).map_or(0, |tree| tree_bytes(tree.size()));
        let tree = trees.entry(tree_key).or_insert_with(Tree::new);
        let min_len = state.earliest().saturating_sub(tree_key.start);
        let node = tree.insert(text, state, min_len, self.now);
        accounting::replace(&mut self.own_bytes, before, tree_bytes(tree.size()));
        let added = self.bytes().saturating_sub(bytes);
        self.tenants.add(&key.tenant, self.now, EntryId { key: key.clone(), tree_key, node }, added, is_new_key);
    }

    fn touch(&mut self, EntryId { key, tree_key, node }: &EntryId) {
        let Some(tree) = self.trees.get_mut(key).and_then(|trees| trees.get_mut(tree_key)) else { return };
        let Some((_, before)) = tree.value(*node) else { return };
        self.now += 1;
        tree.touch(*node, self.now);
        self.tenants.touch(&key.tenant, before, self.now);
    }

    /// Evicts all entries of the least recently used key of a tenant: of the one with the most keys, one more for `newest`.
    fn evict_key(&mut self, newest: &str) {
        let last_used = |trees: &Trees<_>| trees.values().map(Tree::last_used).max();
        let count = |tenant: &TenantEntries<EntryId>| tenant.keys() + usize::from(tenant.is_of(newest));
        let Some(tenant) = self.tenants.victim(count) else { return };
        let own = self.trees.iter().filter(|(key, _)| tenant.is_of(&key.tenant));
        let Some((key, trees)) = own.min_by_key(|(_, trees)| last_used(trees)) else { return };
        let entry = |&tree_key: &TreeKey, node| EntryId { key: key.clone(), tree_key, node };
        let entries = trees.iter().flat_map(|(tree_key, tree)| tree.values().map(move |node| entry(tree_key, node)));
        for entry in entries.collect::<Vec<_>>() {
            self.counts.evictions += 1;
            self.drop_entry(&entry);
        }
    }

    /// Drops an entry, and its tree and key if these are empty then. Returns the bytes of pages that this freed.
    fn drop_entry(&mut self, EntryId { key, tree_key, node }: &EntryId) -> usize {
        let bytes = self.bytes();
        let Some(trees) = self.trees.get_mut(key) else { return 0 };
        let Some(tree) = trees.get_mut(tree_key) else { return 0 };
        let before = tree_bytes(tree.size());
        let last_used = tree.value(*node).map(|(_, last_used)| last_used);
        let Some(state) = tree.remove(*node) else { return 0 };
        let after = if tree.is_empty() { 0 } else { tree_bytes(tree.size()) };
        accounting::replace(&mut self.own_bytes, before, after);
        if after == 0 {
            trees.remove(tree_key);
        }
        let is_last_of_key = trees.is_empty();
        if is_last_of_key {
            self.trees.remove(key);
            accounting::subtract(&mut self.own_bytes, key_bytes(key));
        }
        accounting::subtract(&mut self.own_bytes, entry_bytes(&*state));
        let freed = self.pages.remove(&*state);
        if let Some(last_used) = last_used {
            let removed = bytes.saturating_sub(self.bytes());
            self.tenants.remove(&key.tenant, last_used, removed, is_last_of_key);
        }
        freed
    }
}

fn tree_bytes(size: TreeSize) -> usize {
    size.nodes * NODE_BYTES + size.symbols * size_of::<u32>()
}

fn entry_bytes(state: &dyn State) -> usize {
    ENTRY_BYTES + state.own_bytes()
}

fn key_bytes(key: &Key) -> usize {
    KEY_BYTES + key.tenant.len()
}
