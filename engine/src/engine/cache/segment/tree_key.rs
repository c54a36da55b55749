//! Which radix tree a text's entry belongs to, and where in the text that tree begins.
//!
//! A state whose windows have moved on depends only on its last symbols ([`State::replay_start`]). Its entry serves every text
//! with these symbols at the same positions. If the model counts segments, the text before must be equal too; a digest of it
//! is compared. So the entry of an endless text is as small as that of a short one.

use super::tree::Tree;
use crate::decode::{
    contract::State,
    symbol_slices::SymbolSlices,
    text_window::{Digest, TextView},
};
use std::collections::BTreeMap;

pub(super) type Trees<T> = BTreeMap<TreeKey, Tree<T>>;

/// The position at which the texts of a tree begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TreeKey {
    /// Symbols before the tree's texts.
    pub(super) start: usize,
    /// Digest of these symbols, if the state depends on them.
    before: Option<Digest>,
}

impl TreeKey {
    /// The key of the tree of whole texts.
    #[cfg(test)]
    pub(super) const WHOLE: Self = Self { start: 0, before: None };

    /// Returns a state's tree key and the part of its text that belongs into the tree. `None` if too much was dropped.
    pub(super) fn for_state<'a>(state: &dyn State, text: TextView<'a>) -> Option<(Self, SymbolSlices<'a>)> {
        let replay = state.replay_start();
        // a text that was cut later than necessary is stored from its cut on
        let start = replay.map_or(0, |replay| replay.cut_position().max(text.dropped()).min(replay.symbol));
        let counts_segments = start > 0 && replay.is_some_and(|replay| replay.skipped.is_some());
        let rest = text.after(start)?;
        let before = if counts_segments { Some(text.digests().digest_before(start)?) } else { None };
        Some((Self { start, before }, rest))
    }

    /// Returns true if the state does not depend on the symbols before the tree's start, or if `text` has the same ones there.
    pub(super) fn precedes(&self, text: TextView<'_>) -> bool {
        self.before.is_none_or(|before| text.digests().digest_before(self.start) == Some(before))
    }
}

/// A tree that may hold entries for a text.
pub(super) struct TreeMatch<'t, 'a, T> {
    pub(super) key: TreeKey,
    pub(super) tree: &'t Tree<T>,
    pub(super) rest: SymbolSlices<'a>,
}

pub(super) fn matching_trees<'t, 'a, T>(
    trees: &'t Trees<T>,
    text: TextView<'a>,
) -> impl Iterator<Item = TreeMatch<'t, 'a, T>> {
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
        Some(TreeMatch { key, tree, rest })
    })
}
