//! A radix tree over symbols whose leaves hold values: each edge is a run of symbols, and no two edges that leave a node begin
//! alike.
//!
//! Every leaf holds a value and no inner node does, so a text that another one extends is not kept beside it. A node has no
//! lone child but for the root's; what removal leaves behind is merged. Each node knows when a leaf below it was used last.

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
    /// When a leaf below was used last.
    latest: u64,
    /// A leaf's.
    value: Option<T>,
}

/// Where a text leaves the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
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
        let root = Node { edge: Vec::new(), parent: ROOT, children: Vec::new(), latest: 0, value: None };
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

    /// When a leaf was used last.
    pub(super) fn latest(&self) -> u64 {
        self.node(ROOT).map_or(0, |root| root.latest)
    }

    /// A leaf's value, and when it was used last.
    pub(super) fn leaf(&self, leaf: NodeId) -> Option<(&T, u64)> {
        let node = self.node(leaf)?;
        Some((node.value.as_ref()?, node.latest))
    }

    /// How many symbols of this text the tree knows, and of the leaves that share them the one used last.
    pub(super) fn longest(&self, text: &[u32]) -> Option<(usize, NodeId)> {
        let place = self.walk(text);
        (!self.is_empty()).then(|| (place.depth, self.latest_leaf(place.node)))
    }

    /// The leaf whose text this one extends.
    pub(super) fn extended(&self, text: &[u32]) -> Option<NodeId> {
        let place = self.walk(text);
        let whole = self.node(place.node)?.edge.len() == place.on_edge && place.depth < text.len();
        (whole && self.leaf(place.node).is_some()).then_some(place.node)
    }

    /// All leaves, in no particular order.
    pub(super) fn leaves(&self) -> impl Iterator<Item = NodeId> {
        (0..self.nodes.len()).filter(|&id| self.leaf(id).is_some())
    }

    /// Notes that a leaf was used, later than any before.
    pub(super) fn touch(&mut self, leaf: NodeId, now: u64) {
        let mut at = leaf;
        while let Some(node) = self.nodes[at].as_mut() {
            node.latest = now;
            if at == ROOT {
                break;
            }
            at = node.parent;
        }
    }

    /// Adds a text that no other one extends and that extends none, used now.
    pub(super) fn insert(&mut self, text: &[u32], value: T, now: u64) -> NodeId {
        let Place { node, on_edge, depth } = self.walk(text);
        let parent = self.split(node, on_edge);
        let edge = text[depth..].to_vec();
        self.symbols += edge.len();
        let leaf = self.add(Node { edge, parent, children: Vec::new(), latest: now, value: Some(value) });
        self.link(parent, leaf);
        self.touch(leaf, now);
        leaf
    }

    /// Removes a leaf, and what only led to it.
    pub(super) fn remove(&mut self, leaf: NodeId) -> Option<T> {
        self.leaf(leaf)?;
        let Node { edge, parent, value, .. } = self.take(leaf)?;
        self.symbols -= edge.len();
        let above = self.nodes[parent].as_mut()?;
        above.children.retain(|&(_, child)| child != leaf);
        if let (&[(_, only)], true) = (&above.children[..], parent != ROOT) {
            self.merge(parent, only);
        }
        value
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
    fn walk(&self, text: &[u32]) -> Place {
        let mut place = Place { node: ROOT, on_edge: 0, depth: 0 };
        while let Some(node) = self.node(place.node) {
            let next = text.get(place.depth);
            let child = next.and_then(|next| {
                let at = node.children.binary_search_by_key(next, |&(symbol, _)| symbol).ok()?;
                Some(node.children[at].1)
            });
            let Some((child, edge)) = child.and_then(|child| Some((child, &self.node(child)?.edge))) else { break };
            let shared = edge.iter().zip(&text[place.depth..]).take_while(|(a, b)| a == b).count();
            place = Place { node: child, on_edge: shared, depth: place.depth + shared };
            if shared < edge.len() {
                break;
            }
        }
        place
    }

    /// The leaf below, or at, a node that was used last.
    fn latest_leaf(&self, node: NodeId) -> NodeId {
        let mut at = node;
        while let Some(node) = self.node(at) {
            let children = node.children.iter().map(|&(_, child)| child);
            let Some(next) = children.max_by_key(|&child| self.node(child).map_or(0, |child| child.latest)) else {
                break;
            };
            at = next;
        }
        at
    }

    /// A node that ends after so many symbols of this one's edge: itself, or a new one above it.
    fn split(&mut self, id: NodeId, on_edge: usize) -> NodeId {
        let Some(node) = self.nodes[id].as_mut().filter(|node| on_edge < node.edge.len()) else { return id };
        let below = node.edge.split_off(on_edge);
        let edge = std::mem::replace(&mut node.edge, below);
        let (parent, latest) = (node.parent, node.latest);
        let upper = self.add(Node { edge, parent, children: Vec::new(), latest, value: None });
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
            assert_eq!(node.value.is_some(), id != ROOT && node.children.is_empty());
            assert!(id == ROOT || node.children.len() != 1, "a lone child");
            assert!(node.children.is_sorted_by(|a, b| a.0 < b.0));
            let mut latest = None;
            for &(first, child) in &node.children {
                let below = self.node(child).unwrap();
                assert_eq!((below.parent, below.edge[0]), (id, first));
                latest = latest.max(Some(below.latest));
                open.push((child, text.clone()));
            }
            assert!(latest.is_none_or(|latest| latest == node.latest), "of the leaf used last");
            if node.value.is_some() {
                found.push((text, id));
            }
        }
        assert_eq!((nodes, symbols), self.size());
        found.sort();
        found
    }
}
