//! A radix tree over symbols that holds values. Edges are runs of symbols; a node's edges differ in their first symbol.
//!
//! A value is at the end of its text, and serves the prefixes of its text down to a minimum length of its own: a state whose
//! windows have moved on cannot be rolled back further. Every leaf holds a value. An inner node may hold one in addition to
//! those below it, which serve fewer prefixes. An inner node without a value has at least two children, except the root;
//! removal merges nodes to keep this. Each node records the last use and the shortest prefix of the values at or below it.

use crate::decode::symbol_slices::SymbolSlices;
use std::cmp::Reverse;

/// Index of a node, stable while the node exists.
pub(super) type NodeId = usize;

const ROOT: NodeId = 0;

#[derive(Debug)]
pub(super) struct Tree<T> {
    nodes: Vec<Option<Node<T>>>,
    free: Vec<NodeId>,
    /// Symbols on all edges.
    symbols: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeSize {
    pub(super) nodes: usize,
    /// Symbols on all edges.
    pub(super) symbols: usize,
}

#[derive(Debug)]
struct Node<T> {
    /// Symbols between the parent and this node; empty only at the root.
    edge: Vec<u32>,
    parent: NodeId,
    /// Sorted by the first symbol of their edges.
    children: Vec<(u32, NodeId)>,
    /// Summary of the values here and below.
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
    /// When any of them was last used.
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
    pub(super) fn new() -> Self {
        let root = Node { edge: Vec::new(), parent: ROOT, children: Vec::new(), reach: PrefixReach::NONE, held: None };
        Self { nodes: vec![Some(root)], free: Vec::new(), symbols: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.node(ROOT).is_none_or(|root| root.children.is_empty())
    }

    pub(super) fn size(&self) -> TreeSize {
        TreeSize { nodes: self.nodes.len() - self.free.len(), symbols: self.symbols }
    }

    pub(super) fn last_used(&self) -> u64 {
        self.node(ROOT).map_or(0, |root| root.reach.last_used)
    }

    /// Returns a node's value and when it was last used.
    pub(super) fn value(&self, node: NodeId) -> Option<(&T, u64)> {
        let held = self.node(node)?.held.as_ref()?;
        Some((&held.value, held.reach.last_used))
    }

    /// Returns the values that share a prefix with `text`, longest prefix first, each with the prefix length. Returns one
    /// of the values with equal prefixes: the one that serves the shortest prefix, or the last used of equals.
    pub(super) fn sharing(&self, text: SymbolSlices<'_>) -> impl Iterator<Item = (usize, NodeId)> {
        self.upwards(self.walk(text)).map(|walk| (walk.depth, self.furthest_reaching(walk.node)))
    }

    /// Returns the values whose texts are prefixes of `text` or equal to it, the longest first.
    pub(super) fn prefixes(&self, text: SymbolSlices<'_>) -> impl Iterator<Item = NodeId> {
        let ends = |walk: &Walk| self.node(walk.node).is_some_and(|node| node.edge.len() == walk.on_edge);
        let nodes = self.upwards(self.walk(text)).filter(ends).map(|walk| walk.node);
        nodes.filter(|&node| self.value(node).is_some())
    }

    /// Returns all nodes that hold a value, in no particular order.
    pub(super) fn values(&self) -> impl Iterator<Item = NodeId> {
        (0..self.nodes.len()).filter(|&id| self.value(id).is_some())
    }

    /// Records that a value was used at `now`, later than any other.
    pub(super) fn touch(&mut self, node: NodeId, now: u64) {
        let Some(held) = self.nodes[node].as_mut().and_then(|node| node.held.as_mut()) else { return };
        held.reach = PrefixReach::new(held.reach.shortest.0.0, now);
        let reach = held.reach;
        self.extend_reach(node, reach);
    }

    /// Adds a value at `text`, which has none. It serves the prefixes from `min_len` symbols on and was used at `now`.
    pub(super) fn insert(&mut self, text: SymbolSlices<'_>, value: T, min_len: usize, now: u64) -> NodeId {
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
    pub(super) fn remove(&mut self, id: NodeId) -> Option<T> {
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

#[cfg(test)]
impl<T> Tree<T> {
    /// Returns all texts with their nodes, and checks the invariants of the tree.
    pub(super) fn check(&self) -> Vec<(Vec<u32>, NodeId)> {
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
