//! Where the part of a text begins that a state depends on, and so its entry's place in a tree.
//!
//! A state whose windows have moved on is what its last symbols make it ([`State::replay_start`]): its entry serves every text that
//! has these symbols at the same positions. Where segments are counted, what came before must be the same text as well, of which
//! a digest is enough. So an entry of a text without end is as small as one of a short text.

use super::tree::Tree;
use crate::decode::{
    contract::State,
    text_window::{Digest, TextView},
};
use std::collections::BTreeMap;

/// Trees of the texts that go on from a stem.
pub(super) type Trees<T> = BTreeMap<TreeKey, Tree<T>>;

/// What an entry's own part of a text stands behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TreeKey {
    /// Symbols before it.
    pub(super) from: usize,
    /// Their digest, if they make a difference.
    before: Option<Digest>,
}

impl TreeKey {
    /// Nothing: the part is all of the text.
    #[cfg(test)]
    pub(super) const NONE: Self = Self { from: 0, before: None };

    /// Of a text that a state has seen, with the rest of the text; none if too much of that was dropped.
    pub(super) fn of<'a>(state: &dyn State, text: TextView<'a>) -> Option<(Self, &'a [u32])> {
        let origin = state.replay_start();
        // a text that was cut later than it needed to be is held from there on
        let from = origin.map_or(0, |origin| origin.cut_position().max(text.dropped()).min(origin.symbol));
        let counts = from > 0 && origin.is_some_and(|origin| origin.skipped.is_some());
        let rest = text.after(from)?;
        let before = if counts { Some(text.digests().before(from)?) } else { None };
        Some((Self { from, before }, rest))
    }
}

/// The stems that a text stands on, each with its tree and the rest of the text.
pub(super) fn of<'t, 'a, T>(
    stems: &'t Trees<T>,
    text: TextView<'a>,
) -> impl Iterator<Item = (&'t TreeKey, &'t Tree<T>, &'a [u32])> {
    // by rising positions, as the digests want them
    let mut digests = text.digests();
    let mut latest = None;
    stems.range(..TreeKey { from: text.len(), before: None }).filter_map(move |(stem, tree)| {
        let rest = text.after(stem.from)?;
        if let Some(before) = stem.before {
            if latest.is_none_or(|(from, _)| from != stem.from) {
                latest = Some((stem.from, digests.before(stem.from)?));
            }
            latest.filter(|(_, digest)| *digest == before)?;
        }
        Some((stem, tree, rest))
    })
}
