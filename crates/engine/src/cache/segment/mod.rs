//! The segment cache: states of texts that were computed before, found by the prefix that they share with a new text.
//!
//! Each [`Key`] has a radix tree over the symbols that a state depends on: its whole text, or the end of the text if windows
//! have moved on, in a tree for each cut position. Entries of one key are never visible under another. An entry is a fork that
//! shares its pages. It ends at the end of a segment, and a hit is rolled back to the last segment end within the shared prefix,
//! so one entry serves every text with that prefix. A row that starts from a hit has the same numbers as one that starts cold.
//!
//! [`SegmentCache`] has no clock, threads or channels. Beyond its limit of pages and tree memory, entries are evicted by tenant,
//! and open states if they take more than a small part.

#[cfg(test)]
mod tests;

use crate::observer::{EngineEvent, Measurements};
use crate::session::Session;
use crate::text_window::{Digest, TextView};
use crate::{accounting, clock};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_kernels::error::Result;
use weir_models::contract::{BoundaryMode, BoundaryOptions, Card, Noise, PageUse, State, SymbolSlices};

/// Texts share states only under equal keys: same tenant, same boundary decisions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    tenant: Arc<str>,
    mode: Option<BoundaryMode>,
    /// Seed of sampled boundaries.
    seed: Option<u64>,
    /// Bits of the threshold of entropies, if the model has one.
    threshold: Option<u32>,
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
        // Adding zero makes −0 and 0 the same.
        let threshold = boundaries.threshold.or(card.boundary_threshold).map(|threshold| (threshold + 0.0).to_bits());
        (boundaries.offset == 0).then(|| Self { tenant: Arc::clone(tenant), mode, seed, threshold })
    }
}

/// Limits of a segment cache.
#[derive(Debug, Clone, Copy, Default)]
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

/// Contents of a segment cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentCacheUsage {
    /// Entries held, without open states.
    pub entries: usize,
    /// Keys of the entries held.
    pub keys: usize,
    /// Bytes of distinct pages, and estimated bytes of the trees, open states included.
    pub bytes: usize,
    /// Bytes of distinct pages.
    pub page_bytes: usize,
}

/// A state to continue from.
pub struct Hit {
    /// It has been fed the first `len` of the symbols that were looked up.
    pub state: Box<dyn State>,
    /// Number of symbols that the state has been fed, at least 1.
    pub len: usize,
}

/// The segment cache.
#[derive(Default)]
pub struct SegmentCache {
    capacity: Capacity,
    trees: HashMap<Key, Trees<Box<dyn State>>>,
    tenants: TenantTable,
    open_states: OpenStates,
    pages: PageAccounting,
    /// Estimated bytes of entries and trees without pages.
    own_bytes: usize,
    /// Number of uses, as a clock.
    now: u64,
    /// Entries that were evicted.
    evictions: u64,
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

const NODE_BYTES: usize = 192;

/// Estimated bytes of an entry without its node, pages and state.
const ENTRY_BYTES: usize = 256;

/// Estimated bytes of a key and its tree without the tree's nodes.
const KEY_BYTES: usize = 256;

impl SegmentCache {
    /// Creates an empty cache.
    pub fn new(capacity: Capacity) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Returns the state of the longest cached prefix of `text`: one that ends at the end of a segment, or the whole text of an open
    /// state. For the logits after the text, pass at most [`cacheable_prefix`](crate::session::Session::cacheable_prefix) symbols. Fails
    /// if the entry cannot be rolled back, and drops it.
    pub fn find<'a>(&mut self, key: &Key, text: impl Into<TextView<'a>>) -> Result<Option<Hit>> {
        let text = text.into();
        let closed = self.longest_match(key, text);
        let open = self.open_states.longest(key, text, closed.as_ref().map_or(0, |longest| longest.len));
        match (open, closed) {
            (Some(OpenMatch { index, len }), _) => Ok(self.open_states.fork(index).map(|state| Hit { state, len })),
            (None, Some(LongestMatch { entry, len, state })) => self.hit_closed(&entry, state.fork(), len).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Rolls back a fork of an entry's state, and records the use. Drops the entry if that fails.
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
        self.open_states.longest(key, text, closed).map_or(closed, |open| open.len)
    }

    fn longest_match(&self, key: &Key, text: TextView<'_>) -> Option<LongestMatch<'_>> {
        let matches = matching_trees(self.trees.get(key)?, text);
        let entries = matches.filter_map(|(tree_key, tree, rest)| {
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

    /// Stores the state of `text` up to the end of its last segment. If `text` continues a shared prefix, only segments that end
    /// within the prefix count. Returns false if no segment has ended, or if the entry is too large. Of entries whose texts
    /// start with each other, only the longest is held, provided that it can be rolled back as far. Fails if the state cannot be
    /// rolled back.
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
        while self.tenants.entries > self.capacity.entries {
            self.evict_from_largest(|tenant| tenant.order.len());
        }
        Ok(self.tenants.all.get(&key.tenant).is_some_and(|tenant| tenant.order.contains_key(&stored_at)))
    }

    /// Evicts an open state, or else an entry by the rules of `tenants`, for a row that needs pages. Returns the freed bytes of pages,
    /// or `None` if empty. A page that a running row shares is not freed and not counted.
    pub fn evict(&mut self) -> Option<usize> {
        self.drop_open_state().or_else(|| self.evict_from_largest(|tenant| tenant.bytes))
    }

    fn evict_from_largest(&mut self, size: impl Fn(&TenantEntries) -> usize) -> Option<usize> {
        let (_, entry) = self.tenants.victim(size)?.order.first_key_value()?;
        let entry = entry.clone();
        self.evictions += 1;
        Some(self.drop_entry(&entry))
    }

    /// Starts a new period. A tenant that has used nothing in the present one and the one before loses its entries first.
    pub fn start_period(&mut self) {
        self.tenants.period += 1;
    }

    /// Returns the bytes of pages that only entries and open states refer to: evicting all of these would free them.
    pub fn evictable_bytes(&self) -> usize {
        let trees = self.trees.values().flat_map(Trees::values);
        let entries = trees.flat_map(|tree| tree.values().filter_map(|node| tree.value(node)));
        let open_states = self.open_states.states.iter().map(|open| &*open.state);
        self.pages.evictable_bytes(entries.map(|(state, _)| &**state).chain(open_states))
    }

    /// Drops all entries. These do not count as evicted.
    pub fn clear(&mut self) {
        let Self { capacity, evictions, .. } = *self;
        *self = Self { evictions, ..Self::new(capacity) };
    }

    /// Returns the contents.
    pub fn usage(&self) -> SegmentCacheUsage {
        SegmentCacheUsage {
            entries: self.tenants.entries,
            keys: self.trees.len(),
            bytes: self.all_bytes(),
            page_bytes: self.pages.bytes + self.pages.open_state_bytes,
        }
    }

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
        self.pages.add(&*state, Holder::Entry);
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
        let count = |tenant: &TenantEntries| tenant.keys + usize::from(*tenant.tenant == *newest);
        let Some(tenant) = self.tenants.victim(count) else { return };
        let own = self.trees.iter().filter(|(key, _)| key.tenant == tenant.tenant);
        let Some((key, trees)) = own.min_by_key(|(_, trees)| last_used(trees)) else { return };
        let entry = |&tree_key: &TreeKey, node| EntryId { key: key.clone(), tree_key, node };
        let entries = trees.iter().flat_map(|(tree_key, tree)| tree.values().map(move |node| entry(tree_key, node)));
        for entry in entries.collect::<Vec<_>>() {
            self.evictions += 1;
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
        let freed = self.pages.remove(&*state, Holder::Entry);
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

// A radix tree over symbols that holds values. Each value serves the prefixes of its text down to a minimum length, since a
// state whose windows have moved on cannot be rolled back further. Every leaf holds a value; an inner node without one has at
// least two children, except the root.

/// Index of a node, stable while the node exists.
type NodeId = usize;

const ROOT: NodeId = 0;

#[derive(Debug)]
struct Tree<T> {
    nodes: Vec<Option<Node<T>>>,
    free: Vec<NodeId>,
    /// Symbols on all edges.
    symbols: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TreeSize {
    nodes: usize,
    /// Symbols on all edges.
    symbols: usize,
}

#[derive(Debug)]
struct Node<T> {
    /// Symbols between the parent and this node; empty only at the root.
    edge: Vec<u32>,
    parent: NodeId,
    /// Sorted by the first symbol of their edges.
    children: Vec<(u32, NodeId)>,
    reach: PrefixReach,
    /// The value whose text ends here.
    held: Option<Held<T>>,
}

#[derive(Debug)]
struct Held<T> {
    value: T,
    reach: PrefixReach,
}

/// The shortest prefix that a set of values serves, and when they were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PrefixReach {
    /// The shortest prefix that one of them serves, and when that value was last used.
    shortest: (Reverse<usize>, u64),
    last_used: u64,
}

impl PrefixReach {
    const NONE: Self = Self { shortest: (Reverse(usize::MAX), 0), last_used: 0 };

    /// Returns the reach of a value that serves prefixes of at least `min_len` symbols.
    fn new(min_len: usize, last_used: u64) -> Self {
        Self { shortest: (Reverse(min_len), last_used), last_used }
    }

    fn union(self, other: Self) -> Self {
        Self { shortest: self.shortest.max(other.shortest), last_used: self.last_used.max(other.last_used) }
    }
}

/// Where a text leaves the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Walk {
    /// The node at the end of the edge on which the text leaves.
    node: NodeId,
    /// Symbols of that edge that the text shares.
    on_edge: usize,
    /// Symbols of the text that the tree shares.
    depth: usize,
}

impl<T> Tree<T> {
    fn new() -> Self {
        let root = Node { edge: Vec::new(), parent: ROOT, children: Vec::new(), reach: PrefixReach::NONE, held: None };
        Self { nodes: vec![Some(root)], free: Vec::new(), symbols: 0 }
    }

    fn is_empty(&self) -> bool {
        self.node(ROOT).is_none_or(|root| root.children.is_empty())
    }

    fn size(&self) -> TreeSize {
        TreeSize { nodes: self.nodes.len() - self.free.len(), symbols: self.symbols }
    }

    fn last_used(&self) -> u64 {
        self.node(ROOT).map_or(0, |root| root.reach.last_used)
    }

    fn value(&self, node: NodeId) -> Option<(&T, u64)> {
        let held = self.node(node)?.held.as_ref()?;
        Some((&held.value, held.reach.last_used))
    }

    /// Returns the values that share a prefix with `text`, longest prefix first; of equals, one that serves the shortest.
    fn sharing(&self, text: SymbolSlices<'_>) -> impl Iterator<Item = (usize, NodeId)> {
        self.upwards(self.walk(text)).map(|walk| (walk.depth, self.furthest_reaching(walk.node)))
    }

    /// Returns the values whose texts are prefixes of `text` or equal to it, the longest first.
    fn prefixes(&self, text: SymbolSlices<'_>) -> impl Iterator<Item = NodeId> {
        let ends = |walk: &Walk| self.node(walk.node).is_some_and(|node| node.edge.len() == walk.on_edge);
        let nodes = self.upwards(self.walk(text)).filter(ends).map(|walk| walk.node);
        nodes.filter(|&node| self.value(node).is_some())
    }

    fn values(&self) -> impl Iterator<Item = NodeId> {
        (0..self.nodes.len()).filter(|&id| self.value(id).is_some())
    }

    fn touch(&mut self, node: NodeId, now: u64) {
        let Some(held) = self.nodes[node].as_mut().and_then(|node| node.held.as_mut()) else { return };
        held.reach = PrefixReach::new(held.reach.shortest.0.0, now);
        let reach = held.reach;
        self.extend_reach(node, reach);
    }

    /// Adds a value at `text`, which has none. It serves the prefixes from `min_len` symbols on and was used at `now`.
    fn insert(&mut self, text: SymbolSlices<'_>, value: T, min_len: usize, now: u64) -> NodeId {
        let Walk { node, on_edge, depth } = self.walk(text);
        let parent = self.split(node, on_edge);
        let edge = text.skip(depth).to_vec();
        let reach = PrefixReach::new(min_len, now);
        let held = Some(Held { value, reach });
        let id = if edge.is_empty() {
            // the text ends at an inner node
            if let Some(node) = self.nodes[parent].as_mut() {
                node.held = held;
            }
            parent
        } else {
            self.symbols += edge.len();
            let leaf = self.add(Node { edge, parent, children: Vec::new(), reach, held });
            self.link(parent, leaf);
            leaf
        };
        self.extend_reach(id, reach);
        id
    }

    /// Removes a node's value, and the nodes that only led to it.
    fn remove(&mut self, id: NodeId) -> Option<T> {
        let node = self.nodes.get_mut(id)?.as_mut()?;
        let Held { value, .. } = node.held.take()?;
        let parent = node.parent;
        if node.children.is_empty() {
            let Node { edge, .. } = self.take(id)?;
            self.symbols -= edge.len();
            self.nodes[parent].as_mut()?.children.retain(|&(_, child)| child != id);
            self.update(parent);
        } else {
            self.update(id);
        }
        Some(value)
    }

    /// Merges a node that has become superfluous, and recomputes the reach of it and its ancestors, after a removal.
    fn update(&mut self, id: NodeId) {
        let Some(node) = self.node(id) else { return };
        let mut id = match &node.children[..] {
            &[(_, only)] if id != ROOT && node.held.is_none() => {
                self.merge(id, only);
                only
            }
            _ => id,
        };
        while let Some(node) = self.node(id) {
            let own = node.held.as_ref().map_or(PrefixReach::NONE, |held| held.reach);
            let below = node.children.iter().filter_map(|&(_, child)| Some(self.node(child)?.reach));
            let reach = below.fold(own, PrefixReach::union);
            let parent = node.parent;
            if let Some(node) = self.nodes[id].as_mut() {
                node.reach = reach;
            }
            if id == ROOT {
                break;
            }
            id = parent;
        }
    }

    /// Adds the reach of a value at a node to the node and its ancestors.
    fn extend_reach(&mut self, mut id: NodeId, reach: PrefixReach) {
        while let Some(node) = self.nodes[id].as_mut() {
            node.reach = node.reach.union(reach);
            if id == ROOT {
                break;
            }
            id = node.parent;
        }
    }

    fn node(&self, id: NodeId) -> Option<&Node<T>> {
        self.nodes.get(id)?.as_ref()
    }

    fn take(&mut self, id: NodeId) -> Option<Node<T>> {
        let node = self.nodes[id].take()?;
        self.free.push(id);
        Some(node)
    }

    fn add(&mut self, node: Node<T>) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id] = Some(node);
            return id;
        }
        self.nodes.push(Some(node));
        self.nodes.len() - 1
    }

    /// Adds a child to its parent, or replaces the child whose edge has the same first symbol.
    fn link(&mut self, parent: NodeId, child: NodeId) {
        let Some(&first) = self.node(child).and_then(|node| node.edge.first()) else { return };
        let Some(parent) = self.nodes[parent].as_mut() else { return };
        match parent.children.binary_search_by_key(&first, |&(symbol, _)| symbol) {
            Ok(index) => parent.children[index].1 = child,
            Err(index) => parent.children.insert(index, (first, child)),
        }
    }

    /// Follows a text as far as the tree shares it.
    fn walk(&self, text: SymbolSlices<'_>) -> Walk {
        let mut walk = Walk { node: ROOT, on_edge: 0, depth: 0 };
        while let Some(node) = self.node(walk.node) {
            let child = text.get(walk.depth).and_then(|next| {
                let index = node.children.binary_search_by_key(&next, |&(symbol, _)| symbol).ok()?;
                Some(node.children[index].1)
            });
            let Some((child, edge)) = child.and_then(|child| Some((child, &self.node(child)?.edge))) else { break };
            let shared = text.skip(walk.depth).common_len(edge);
            walk = Walk { node: child, on_edge: shared, depth: walk.depth + shared };
            if shared < edge.len() {
                break;
            }
        }
        walk
    }

    /// Returns `walk` and the ends of the edges above it, down to a depth of one symbol.
    fn upwards(&self, walk: Walk) -> impl Iterator<Item = Walk> {
        let parent = |walk: &Walk| {
            let node = self.node(walk.node)?.parent;
            Some(Walk { node, on_edge: self.node(node)?.edge.len(), depth: walk.depth - walk.on_edge })
        };
        std::iter::successors(Some(walk), parent).take_while(|walk| walk.depth > 0)
    }

    /// Returns the value at or below a node that serves the shortest prefix, or the last used of equals.
    fn furthest_reaching(&self, mut id: NodeId) -> NodeId {
        while let Some(node) = self.node(id) {
            let shortest = |id: NodeId| self.node(id).is_some_and(|below| below.reach.shortest == node.reach.shortest);
            let Some(&(_, child)) = node.children.iter().find(|&&(_, child)| shortest(child)) else { break };
            id = child;
        }
        id
    }

    /// Returns a node that ends after `on_edge` symbols of a node's edge: the node itself, or a new one above it.
    fn split(&mut self, id: NodeId, on_edge: usize) -> NodeId {
        let Some(node) = self.nodes[id].as_mut().filter(|node| on_edge < node.edge.len()) else { return id };
        let lower_edge = node.edge.split_off(on_edge);
        let edge = std::mem::replace(&mut node.edge, lower_edge);
        let parent = node.parent;
        let reach = node.reach;
        let upper = self.add(Node { edge, parent, children: Vec::new(), reach, held: None });
        self.link(parent, upper);
        if let Some(node) = self.nodes[id].as_mut() {
            node.parent = upper;
        }
        self.link(upper, id);
        upper
    }

    /// Joins a node with its only child, which stays.
    fn merge(&mut self, id: NodeId, child: NodeId) {
        let Some(Node { mut edge, parent, .. }) = self.take(id) else { return };
        if let Some(node) = self.nodes[child].as_mut() {
            edge.append(&mut node.edge);
            node.edge = edge;
            node.parent = parent;
        }
        self.link(parent, child);
    }
}

// Which radix tree a text's entry belongs to. A state whose windows have moved on depends only on its last symbols, so its entry
// serves every text with these symbols at the same positions. If the model counts segments, a digest of the text before must be
// equal too.

type Trees<T> = BTreeMap<TreeKey, Tree<T>>;

/// The position at which the texts of a tree begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TreeKey {
    /// Symbols before the tree's texts.
    start: usize,
    /// Digest of these symbols, if the state depends on them.
    before: Option<Digest>,
}

impl TreeKey {
    /// Returns a state's tree key and the part of its text that belongs into the tree. `None` if too much was dropped.
    fn for_state<'a>(state: &dyn State, text: TextView<'a>) -> Option<(Self, SymbolSlices<'a>)> {
        let replay = state.replay_start();
        // a text that was cut later than necessary is stored from its cut on
        let start = replay.map_or(0, |replay| replay.cut_position().max(text.dropped()).min(replay.symbol));
        let counts_segments = start > 0 && replay.is_some_and(|replay| replay.skipped.is_some());
        let rest = text.after(start)?;
        let before = if counts_segments { Some(text.digests().digest_before(start)?) } else { None };
        Some((Self { start, before }, rest))
    }

    /// Returns true if the state does not depend on the symbols before the tree's start, or if `text` has the same ones there.
    fn precedes(&self, text: TextView<'_>) -> bool {
        self.before.is_none_or(|before| text.digests().digest_before(self.start) == Some(before))
    }
}

/// Returns the trees whose entries may serve a text, with the part of it that the tree compares.
fn matching_trees<'t, 'a, T>(
    trees: &'t Trees<T>,
    text: TextView<'a>,
) -> impl Iterator<Item = (TreeKey, &'t Tree<T>, SymbolSlices<'a>)> {
    // by rising positions, as the digests require
    let mut digests = text.digests();
    let mut latest = None;
    trees.range(..TreeKey { start: text.len(), before: None }).filter_map(move |(&key, tree)| {
        let rest = text.after(key.start)?;
        if let Some(before) = key.before {
            if latest.is_none_or(|(start, _)| start != key.start) {
                latest = Some((key.start, digests.digest_before(key.start)?));
            }
            latest.filter(|(_, digest)| *digest == before)?;
        }
        Some((key, tree, rest))
    })
}

// The states of texts that end within a segment or after their shared prefix. A search for completions asks for the
// distributions after many beginnings of one word; in the trees its states would soon take the place of documents. At most
// `MAX_OPEN_STATES` are kept, and each serves only texts that begin with its own.

/// Maximum open states of a cache. A search for words leaves about twenty.
const MAX_OPEN_STATES: usize = 512;

/// Symbols at the end of a text that are compared first. The texts of one search differ there.
const LAST_SYMBOLS: usize = 16;

#[derive(Default)]
struct OpenStates {
    /// The least recently used one first.
    states: VecDeque<OpenState>,
    /// Estimated bytes without pages.
    own_bytes: usize,
}

/// The state of a text, which serves only texts that begin with all of it.
struct OpenState {
    key: Key,
    place: TreeKey,
    /// The symbols of the text from the start of `place` on. Never empty.
    rest: Box<[u32]>,
    state: Box<dyn State>,
    /// Estimated bytes without pages.
    own_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenMatch {
    /// Index of the state, until the states change.
    index: usize,
    len: usize,
}

impl OpenState {
    fn len(&self) -> usize {
        self.place.start + self.rest.len()
    }

    /// Returns true if `text` has the last symbols of this state's text at the same positions. Compares few of them.
    fn may_begin(&self, text: TextView<'_>) -> bool {
        let last = &self.rest[self.rest.len().saturating_sub(LAST_SYMBOLS)..];
        text.after(self.len() - last.len()).is_some_and(|text| text.starts_with(last))
    }

    /// Returns true if `text` begins with this state's text, or differs only in what the state does not depend on.
    fn begins(&self, text: TextView<'_>) -> bool {
        text.after(self.place.start).is_some_and(|text| text.starts_with(&self.rest)) && self.place.precedes(text)
    }
}

impl OpenStates {
    /// Returns the longest state from which `text` continues, if it serves more than `shortest` symbols.
    fn longest(&self, key: &Key, text: TextView<'_>, shortest: usize) -> Option<OpenMatch> {
        // the key last, because its comparison takes longest
        let may_serve = |open: &OpenState| open.len() > shortest && open.may_begin(text) && open.key == *key;
        let mut candidates: Vec<_> = self.states.iter().enumerate().filter(|(_, open)| may_serve(open)).collect();
        candidates.sort_by_key(|(_, open)| Reverse(open.len()));
        let found = candidates.into_iter().find(|(_, open)| open.begins(text));
        found.map(|(index, open)| OpenMatch { index, len: open.len() })
    }

    /// Returns a fork of a state, which was used now.
    fn fork(&mut self, index: usize) -> Option<Box<dyn State>> {
        let open = self.states.remove(index)?;
        let fork = open.state.fork();
        self.states.push_back(open);
        Some(fork)
    }

    fn push(&mut self, open: OpenState) {
        accounting::add(&mut self.own_bytes, open.own_bytes);
        self.states.push_back(open);
    }

    /// Removes the least recently used state.
    fn pop(&mut self) -> Option<OpenState> {
        let open = self.states.pop_front()?;
        accounting::subtract(&mut self.own_bytes, open.own_bytes);
        Some(open)
    }
}

/// Divisor of the cache's capacity that limits open states: they give way to entries if they take more.
const OPEN_STATES_PART: usize = 8;

impl SegmentCache {
    /// Stores the state after `text` as [`keep`](Self::keep) does. What lies after that entry's text becomes an open state.
    pub fn keep_open<'a>(&mut self, key: &Key, text: impl Into<TextView<'a>>, state: Box<dyn State>) -> Result<()> {
        let text = text.into();
        let document = text.prefix(text.shared_prefix_len());
        let end = state.boundary_before(state.len().min(document.len()));
        let held = self.longest_match(key, document.prefix(end)).filter(|longest| longest.len == end && end > 0);
        match held.map(|longest| longest.entry) {
            Some(entry) => self.touch(&entry),
            None => drop(self.keep(key, text, &*state)?),
        }
        let is_open = text.len() == state.len() && state.len() > end;
        let place = if is_open { TreeKey::for_state(&*state, text) } else { None };
        let Some((place, rest)) = place.filter(|(_, rest)| !rest.is_empty()) else { return Ok(()) };
        let own_bytes = entry_bytes(&*state) + key.tenant.len() + rest.len() * size_of::<u32>();
        let limit = self.open_limit();
        if own_bytes > limit || self.open_states.longest(key, text, text.len() - 1).is_some() {
            return Ok(());
        }
        while self.open_states.states.len() >= MAX_OPEN_STATES || self.open_states.own_bytes + own_bytes > limit {
            if self.drop_open_state().is_none() {
                return Ok(());
            }
        }
        self.pages.add(&*state, Holder::OpenState);
        let rest = rest.to_vec().into();
        self.open_states.push(OpenState { key: key.clone(), place, rest, state, own_bytes });
        self.make_room();
        Ok(())
    }

    /// Evicts entries until the cache is within its capacity, but open states first while they take more than their part or one
    /// entry is left.
    fn make_room(&mut self) {
        while self.all_bytes() > self.capacity.bytes {
            let open_bytes = self.pages.open_state_bytes + self.open_states.own_bytes;
            let evicts_entry = open_bytes <= self.open_limit() && self.tenants.entries > 1;
            let evicted = if evicts_entry { self.evict_from_largest(|tenant| tenant.bytes) } else { self.evict() };
            if evicted.is_none() {
                return;
            }
        }
    }

    /// Returns the maximum bytes of open states in a full cache.
    fn open_limit(&self) -> usize {
        self.capacity.bytes / OPEN_STATES_PART
    }

    fn all_bytes(&self) -> usize {
        self.bytes() + self.pages.open_state_bytes + self.open_states.own_bytes
    }

    /// Drops the least recently used open state. Returns the bytes of pages that this freed; `None` if there is none.
    fn drop_open_state(&mut self) -> Option<usize> {
        let open = self.open_states.pop()?;
        Some(self.pages.remove(&*open.state, Holder::OpenState))
    }
}

/// The pages of entries and open states, each counted once.
#[derive(Debug, Default)]
struct PageAccounting {
    pages: HashMap<usize, CountedPage>,
    /// Bytes of all distinct pages of entries.
    bytes: usize,
    /// Bytes of the distinct pages that only open states refer to.
    open_state_bytes: usize,
}

#[derive(Debug, Default)]
struct CountedPage {
    /// Entries that refer to it.
    entries: usize,
    /// Open states that refer to it.
    open_states: usize,
    /// References that these entries and states hold.
    references: usize,
    bytes: usize,
}

/// A kind of state that refers to a page. Open states are counted apart from the entries of tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Entry,
    OpenState,
}

impl CountedPage {
    fn uses(&mut self, holder: Holder) -> &mut usize {
        match holder {
            Holder::Entry => &mut self.entries,
            Holder::OpenState => &mut self.open_states,
        }
    }

    /// Returns the kind of state that its bytes count for; `None` if nothing refers to it.
    fn holder(&self) -> Option<Holder> {
        let open_state = (self.open_states > 0).then_some(Holder::OpenState);
        if self.entries > 0 { Some(Holder::Entry) } else { open_state }
    }
}

impl PageAccounting {
    fn add(&mut self, state: &dyn State, holder: Holder) {
        state.pages(&mut |PageUse { id, bytes, own, .. }| {
            let page = self.pages.entry(id).or_insert_with(|| CountedPage { bytes, ..CountedPage::default() });
            let before = page.holder();
            accounting::add(&mut page.references, own);
            accounting::add(page.uses(holder), 1);
            let after = page.holder();
            let bytes = page.bytes;
            self.move_bytes(bytes, before, after);
        });
    }

    /// Subtracts the pages of a state. Returns the bytes of those that no other counted state and no running row refers to.
    fn remove(&mut self, state: &dyn State, holder: Holder) -> usize {
        let mut freed = 0;
        state.pages(&mut |PageUse { id, references, own, .. }| {
            let Some(page) = self.pages.get_mut(&id) else { return };
            let before = page.holder();
            accounting::subtract(&mut page.references, own);
            accounting::subtract(page.uses(holder), 1);
            let after = page.holder();
            let bytes = page.bytes;
            if after.is_none() {
                freed += if references == own { bytes } else { 0 };
                self.pages.remove(&id);
            }
            self.move_bytes(bytes, before, after);
        });
        freed
    }

    fn move_bytes(&mut self, bytes: usize, before: Option<Holder>, after: Option<Holder>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            accounting::subtract(self.account(before), bytes);
        }
        if let Some(after) = after {
            accounting::add(self.account(after), bytes);
        }
    }

    fn account(&mut self, holder: Holder) -> &mut usize {
        match holder {
            Holder::Entry => &mut self.bytes,
            Holder::OpenState => &mut self.open_state_bytes,
        }
    }

    /// Returns the bytes of pages that only `states` refer to. These must be all counted entries and open states.
    fn evictable_bytes<'a>(&self, states: impl Iterator<Item = &'a (dyn State + 'static)>) -> usize {
        let mut evictable = 0;
        let mut shared = HashSet::new();
        for state in states {
            state.pages(&mut |PageUse { id, references, bytes, .. }| {
                let Some(page) = self.pages.get(&id) else { return };
                if page.references == references && (page.entries + page.open_states == 1 || shared.insert(id)) {
                    evictable += bytes;
                }
            });
        }
        evictable
    }
}

// The entries of each tenant. A tenant that has not used the cache for a period or two loses its entries first; then the tenant
// that holds the most. So a tenant that uses the cache and holds no more than an equal part keeps its entries.

#[derive(Debug, Default)]
struct TenantTable {
    all: HashMap<Arc<str>, TenantEntries>,
    entries: usize,
    period: u64,
}

#[derive(Debug)]
struct TenantEntries {
    tenant: Arc<str>,
    /// Entries by the time of their last use.
    order: BTreeMap<u64, EntryId>,
    /// Bytes of pages and trees. Tenants share neither.
    bytes: usize,
    keys: usize,
    last_period: u64,
}

impl TenantTable {
    /// Returns the tenant that loses an entry: an idle one, or else the one of largest `size`.
    fn victim(&self, size: impl Fn(&TenantEntries) -> usize) -> Option<&TenantEntries> {
        let is_idle = |tenant: &&TenantEntries| tenant.last_period + 1 < self.period;
        let oldest_use = |tenant: &TenantEntries| tenant.order.first_key_value().map(|(used, _)| *used);
        let idle = self.all.values().filter(is_idle).min_by_key(|tenant| oldest_use(tenant));
        idle.or_else(|| self.all.values().max_by_key(|tenant| (size(tenant), Reverse(oldest_use(tenant)))))
    }

    /// Adds an entry of a tenant that was used at `now`, and the `bytes` and the key that it brings.
    fn add(&mut self, tenant: &Arc<str>, now: u64, entry: EntryId, bytes: usize, is_new_key: bool) {
        let tenant = self.all.entry(Arc::clone(tenant)).or_insert_with_key(|tenant| TenantEntries {
            tenant: Arc::clone(tenant),
            order: BTreeMap::new(),
            bytes: 0,
            keys: 0,
            last_period: 0,
        });
        tenant.order.insert(now, entry);
        accounting::add(&mut tenant.bytes, bytes);
        accounting::add(&mut tenant.keys, usize::from(is_new_key));
        tenant.last_period = self.period;
        accounting::add(&mut self.entries, 1);
    }

    /// Records that the entry last used at `before` was used at `now`.
    fn touch(&mut self, tenant: &str, before: u64, now: u64) {
        let Some(tenant) = self.all.get_mut(tenant) else { return };
        tenant.last_period = self.period;
        if let Some(entry) = tenant.order.remove(&before) {
            tenant.order.insert(now, entry);
        }
    }

    /// Removes the entry last used at `used`, and the `bytes` that were freed with it.
    fn remove(&mut self, name: &str, used: u64, bytes: usize, is_last_of_key: bool) {
        let Some(tenant) = self.all.get_mut(name) else { return };
        if tenant.order.remove(&used).is_some() {
            accounting::subtract(&mut self.entries, 1);
        }
        accounting::subtract(&mut tenant.bytes, bytes);
        accounting::subtract(&mut tenant.keys, usize::from(is_last_of_key));
        if tenant.order.is_empty() {
            self.all.remove(name);
        }
    }
}

/// Length of the cache's periods: a tenant that is idle for one to two of them loses its entries first.
const PERIOD: Duration = Duration::from_secs(300);

pub(crate) struct SegmentCacheHandle {
    /// `None` without a cache.
    cache: Option<Mutex<PeriodicCache>>,
    measurements: Arc<Measurements>,
}

struct PeriodicCache {
    cache: SegmentCache,
    period_began: Instant,
}

impl SegmentCacheHandle {
    /// Creates a cache of `bytes` bytes; 0: off.
    pub(crate) fn new(bytes: usize, measurements: Arc<Measurements>) -> Self {
        let cache = || SegmentCache::new(Capacity::with_bytes(bytes));
        let cache = (bytes > 0).then(|| Mutex::new(PeriodicCache { cache: cache(), period_began: clock::now() }));
        Self { cache, measurements }
    }

    /// Returns the key of a tenant's sequence; `None` if it is not cached.
    pub(crate) fn key(&self, tenant: &Arc<str>, boundaries: &BoundaryOptions, card: &Card) -> Option<Key> {
        self.cache.as_ref().and_then(|_| Key::for_sequence(tenant, boundaries, card))
    }

    /// Returns how many of a session's symbols the cache holds now.
    pub(crate) fn cached_len(&self, key: Option<&Key>, session: &Session) -> usize {
        self.known(key, session.text().prefix(session.cacheable_prefix()))
    }

    /// Returns how many symbols of a text the cache holds now.
    pub(crate) fn known(&self, key: Option<&Key>, text: TextView<'_>) -> usize {
        key.and_then(|key| self.with(|cache| cache.known(key, text))).unwrap_or(0)
    }

    /// Returns a state that a session can continue from.
    pub(crate) fn find(&self, key: Option<&Key>, session: &Session) -> Option<Hit> {
        let key = key?;
        let text = session.text().prefix(session.cacheable_prefix());
        let hit = self.with(|cache| cache.find(key, text))?.unwrap_or_else(|error| {
            tracing::error!(%error, "dropped a cached state that could not be rolled back");
            None
        });
        let (found, bytes) = hit.as_ref().map_or((0, 0), |hit| (hit.len, hit.state.bytes()));
        self.measurements.record(EngineEvent::CacheLookup { symbols: text.len(), found, bytes });
        hit
    }

    pub(crate) fn keep(&self, key: Option<&Key>, session: &Session, state: &dyn State) {
        let kept = key.and_then(|key| self.with(|cache| cache.keep(key, session.text(), state)));
        if let Some(Err(error)) = kept {
            tracing::error!(%error, "cannot cache a state");
        }
    }

    /// Stores the state after the symbols that were fed. It serves every text that begins with them.
    pub(crate) fn keep_open(&self, key: Option<&Key>, session: &Session, state: Box<dyn State>) {
        let text = session.text().prefix(state.len());
        let kept = key.and_then(|key| self.with(|cache| cache.keep_open(key, text, state)));
        if let Some(Err(error)) = kept {
            tracing::error!(%error, "cannot cache a state");
        }
    }

    pub(crate) fn evict(&self) -> bool {
        self.with(SegmentCache::evict).flatten().is_some()
    }

    /// Returns the bytes of pages that only the cache refers to. Visits all pages.
    pub(crate) fn evictable_bytes(&self) -> usize {
        self.with(|cache| cache.evictable_bytes()).unwrap_or(0)
    }

    pub(crate) fn clear(&self) {
        self.with(SegmentCache::clear);
    }

    pub(crate) fn usage(&self) -> SegmentCacheUsage {
        self.with(|cache| cache.usage()).unwrap_or_default()
    }

    /// Locks the cache for `act`, after starting a new period if one has passed, and records what `act` evicts. Empties the cache
    /// first if a panic may have left it inconsistent.
    fn with<T>(&self, act: impl FnOnce(&mut SegmentCache) -> T) -> Option<T> {
        let mutex = self.cache.as_ref()?;
        let mut locked = mutex.lock().unwrap_or_else(|poisoned| {
            mutex.clear_poison();
            let mut locked = poisoned.into_inner();
            locked.cache.clear();
            locked
        });
        let PeriodicCache { cache, period_began } = &mut *locked;
        let now = clock::now();
        if now.saturating_duration_since(*period_began) >= PERIOD {
            cache.start_period();
            *period_began = now;
        }
        let before = cache.evictions;
        let result = act(cache);
        let evicted = cache.evictions - before;
        drop(locked);
        if evicted > 0 {
            self.measurements.record(EngineEvent::CacheEvicted(evicted));
        }
        Some(result)
    }
}
