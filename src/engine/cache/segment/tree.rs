//! A radix tree over symbols that holds values: each edge is a run of symbols, and no two edges that leave a node begin alike.
//!
//! A value stands where its text ends, and serves the beginnings of its text down to a length of its own: one whose windows have
//! moved on knows no shorter ones. Every leaf holds a value; an inner node may hold one beside those below, which serve less of
//! its text. One that holds none has no lone child, but for the root; what removal leaves behind is merged. Each node knows when
//! a value at or below it was used last, and the shortest beginning that any of these serves.

use std::cmp::Reverse;

/// A node's place; it stays the same as long as the node is there.
pub(super) type NodeId = usize;

const ROOT: NodeId = 0;

/// The tree.
#[derive(Debug)]
pub(super) struct Tree<T> {
    nodes: Vec<Option<Node<T>>>,
    /// Places without a node.
    free: Vec<NodeId>,
    /// Symbols on all edges.
    symbols: usize,
}

#[derive(Debug)]
struct Node<T> {
    /// The symbols between the parent and here; empty at the root only.
    edge: Vec<u32>,
    parent: NodeId,
    /// By their edges' first symbols, which rise.
    children: Vec<(u32, NodeId)>,
    /// Of the values here and below.
    reach: Reach,
    /// The one whose text ends here.
    held: Option<Held<T>>,
}

#[derive(Debug)]
struct Held<T> {
    value: T,
    reach: Reach,
}

/// What values are good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reach {
    /// The shortest beginning that one of them serves, and when the one that does was used last.
    least: (Reverse<usize>, u64),
    /// When any was used last.
    latest: u64,
}

impl Reach {
    /// Of no value.
    const NONE: Self = Self { least: (Reverse(usize::MAX), 0), latest: 0 };

    /// Of one that serves the beginnings from a length on.
    fn of(least: usize, latest: u64) -> Self {
        Self { least: (Reverse(least), latest), latest }
    }

    fn and(self, other: Self) -> Self {
        Self { least: self.least.max(other.least), latest: self.latest.max(other.latest) }
    }
}

/// Where a text leaves the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ByteRange {
    /// The node whose edge the text ends in, or at whose end.
    node: NodeId,
    /// Symbols of that edge that the text shares.
    on_edge: usize,
    /// Symbols that the text shares in all.
    depth: usize,
}

impl<T> Tree<T> {
    /// An empty one.
    pub(super) fn new() -> Self {
        let root = Node { edge: Vec::new(), parent: ROOT, children: Vec::new(), reach: Reach::NONE, held: None };
        Self { nodes: vec![Some(root)], free: Vec::new(), symbols: 0 }
    }

    /// Whether it holds no value.
    pub(super) fn is_empty(&self) -> bool {
        self.node(ROOT).is_none_or(|root| root.children.is_empty())
    }

    /// Its nodes and the symbols on their edges.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.nodes.len() - self.free.len(), self.symbols)
    }

    /// When a value was used last.
    pub(super) fn latest(&self) -> u64 {
        self.node(ROOT).map_or(0, |root| root.reach.latest)
    }

    /// A node's value, and when it was used last.
    pub(super) fn value(&self, node: NodeId) -> Option<(&T, u64)> {
        let held = self.node(node)?.held.as_ref()?;
        Some((&held.value, held.reach.latest))
    }

    /// Of the values whose texts share as much with this one as any, the one that serves the shortest beginning (the one used
    /// last of equals), with how many symbols that is; then of those that share less, and so on.
    pub(super) fn sharing(&self, text: &[u32]) -> impl Iterator<Item = (usize, NodeId)> {
        self.upwards(self.walk(text)).map(|ByteRange { node, depth, .. }| (depth, self.furthest_reaching(node)))
    }

    /// The values whose texts this one begins with, its own included: the longest first, with their lengths.
    pub(super) fn beginnings(&self, text: &[u32]) -> impl Iterator<Item = (usize, NodeId)> {
        let ends = |place: &ByteRange| self.node(place.node).is_some_and(|node| node.edge.len() == place.on_edge);
        let places = self.upwards(self.walk(text)).filter(ends).map(|place| (place.depth, place.node));
        places.filter(|&(_, node)| self.value(node).is_some())
    }

    /// All nodes that hold a value, in no particular order.
    pub(super) fn values(&self) -> impl Iterator<Item = NodeId> {
        (0..self.nodes.len()).filter(|&id| self.value(id).is_some())
    }

    /// Notes that a value was used, later than any before.
    pub(super) fn touch(&mut self, node: NodeId, now: u64) {
        let Some(held) = self.nodes[node].as_mut().and_then(|node| node.held.as_mut()) else { return };
        held.reach = Reach::of(held.reach.least.0.0, now);
        let reach = held.reach;
        self.note(node, reach);
    }

    /// Adds a value, used now, that serves the beginnings of a text from a length on. None stands at that text yet.
    pub(super) fn insert(&mut self, text: &[u32], value: T, least: usize, now: u64) -> NodeId {
        let ByteRange { node, on_edge, depth } = self.walk(text);
        let parent = self.split(node, on_edge);
        let (edge, reach) = (text[depth..].to_vec(), Reach::of(least, now));
        let held = Some(Held { value, reach });
        let id = if edge.is_empty() {
            // others go on from here
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
        self.note(id, reach);
        id
    }

    /// Removes a node's value, and what only led to it.
    pub(super) fn remove(&mut self, id: NodeId) -> Option<T> {
        let node = self.nodes.get_mut(id)?.as_mut()?;
        let Held { value, .. } = node.held.take()?;
        let above = node.parent;
        if node.children.is_empty() {
            let Node { edge, .. } = self.take(id)?;
            self.symbols -= edge.len();
            self.nodes[above].as_mut()?.children.retain(|&(_, child)| child != id);
            self.settle(above);
        } else {
            self.settle(id);
        }
        Some(value)
    }

    /// Brings a node and those above it up to date, after something went that stood at or below it.
    fn settle(&mut self, id: NodeId) {
        let Some(node) = self.node(id) else { return };
        let mut at = match &node.children[..] {
            &[(_, only)] if id != ROOT && node.held.is_none() => {
                self.merge(id, only);
                only
            }
            _ => id,
        };
        while let Some(node) = self.node(at) {
            let own = node.held.as_ref().map_or(Reach::NONE, |held| held.reach);
            let below = node.children.iter().filter_map(|&(_, child)| Some(self.node(child)?.reach));
            let (reach, parent) = (below.fold(own, Reach::and), node.parent);
            if let Some(node) = self.nodes[at].as_mut() {
                node.reach = reach;
            }
            if at == ROOT {
                break;
            }
            at = parent;
        }
    }

    /// Tells a node and those above it of what a value at the node is good for.
    fn note(&mut self, id: NodeId, reach: Reach) {
        let mut at = id;
        while let Some(node) = self.nodes[at].as_mut() {
            node.reach = node.reach.and(reach);
            if at == ROOT {
                break;
            }
            at = node.parent;
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

    /// Hangs a child, whose edge's first symbol no other one has, under its parent; in the place of what hung there.
    fn link(&mut self, parent: NodeId, child: NodeId) {
        let Some(&first) = self.node(child).and_then(|node| node.edge.first()) else { return };
        let Some(above) = self.nodes[parent].as_mut() else { return };
        match above.children.binary_search_by_key(&first, |&(symbol, _)| symbol) {
            Ok(at) => above.children[at].1 = child,
            Err(at) => above.children.insert(at, (first, child)),
        }
    }

    /// Follows a text as far as the tree knows it.
    fn walk(&self, text: &[u32]) -> ByteRange {
        let mut place = ByteRange { node: ROOT, on_edge: 0, depth: 0 };
        while let Some(node) = self.node(place.node) {
            let next = text.get(place.depth);
            let child = next.and_then(|next| {
                let at = node.children.binary_search_by_key(next, |&(symbol, _)| symbol).ok()?;
                Some(node.children[at].1)
            });
            let Some((child, edge)) = child.and_then(|child| Some((child, &self.node(child)?.edge))) else { break };
            let shared = edge.iter().zip(&text[place.depth..]).take_while(|(a, b)| a == b).count();
            place = ByteRange { node: child, on_edge: shared, depth: place.depth + shared };
            if shared < edge.len() {
                break;
            }
        }
        place
    }

    /// A place, and the ends of the edges above it, up to the first symbol's.
    fn upwards(&self, place: ByteRange) -> impl Iterator<Item = ByteRange> {
        let above = |place: &ByteRange| {
            let (edge, node) = (place.on_edge, self.node(place.node)?.parent);
            Some(ByteRange { node, on_edge: self.node(node)?.edge.len(), depth: place.depth - edge })
        };
        std::iter::successors(Some(place), above).take_while(|place| place.depth > 0)
    }

    /// At or below a node, the value that serves the shortest beginning; the one used last of equals.
    fn furthest_reaching(&self, node: NodeId) -> NodeId {
        let mut at = node;
        while let Some(node) = self.node(at) {
            let here = |id: NodeId| self.node(id).is_some_and(|below| below.reach.least == node.reach.least);
            let Some(&(_, child)) = node.children.iter().find(|&&(_, child)| here(child)) else { break };
            at = child;
        }
        at
    }

    /// A node that ends after so many symbols of this one's edge: itself, or a new one above it.
    fn split(&mut self, id: NodeId, on_edge: usize) -> NodeId {
        let Some(node) = self.nodes[id].as_mut().filter(|node| on_edge < node.edge.len()) else { return id };
        let below = node.edge.split_off(on_edge);
        let edge = std::mem::replace(&mut node.edge, below);
        let (parent, reach) = (node.parent, node.reach);
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
            (node.edge, node.parent) = (edge, parent);
        }
        self.link(parent, child);
    }
}

#[cfg(test)]
impl<T> Tree<T> {
    /// All texts with their leaves. Checks on the way that the tree is as its doc says.
    pub(super) fn check(&self) -> Vec<(Vec<u32>, NodeId)> {
        let mut found = Vec::new();
        let (mut nodes, mut symbols) = (0, 0);
        let mut open = vec![(ROOT, Vec::new())];
        while let Some((id, text)) = open.pop() {
            let node = self.node(id).unwrap();
            (nodes, symbols) = (nodes + 1, symbols + node.edge.len());
            let text = [&text[..], &node.edge].concat();
            assert_eq!(node.edge.is_empty(), id == ROOT);
            assert!(id == ROOT || node.held.is_some() || node.children.len() > 1, "leads to nothing, or to one only");
            assert!(node.children.is_sorted_by(|a, b| a.0 < b.0));
            let mut reach = node.held.as_ref().map_or(Reach::NONE, |held| held.reach);
            for &(first, child) in &node.children {
                let below = self.node(child).unwrap();
                assert_eq!((below.parent, below.edge[0]), (id, first));
                reach = reach.and(below.reach);
                open.push((child, text.clone()));
            }
            assert_eq!(reach, node.reach);
            if node.held.is_some() {
                found.push((text, id));
            }
        }
        assert_eq!((nodes, symbols), self.size());
        found.sort();
        found
    }
}
