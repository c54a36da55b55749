//! The states of texts that end within a segment or after their shared prefix, for requests that try many short continuations of one
//! text.
//!
//! The trees hold states up to the end of a segment of the document. A search for completions asks for the distributions after many
//! beginnings of one word: without open states, each of its requests would feed the word from its first character. The states after
//! whole words that a search tried are here, too. In the trees they would soon take the place of documents. An open state serves only
//! the texts that begin with all of its own text. As in the trees, only the symbols that the state depends on are kept and
//! compared: see [`TreeKey`]. At most [`MAX_OPEN_STATES`] are kept; the least recently used one is dropped first.

use super::tree_key::TreeKey;
use crate::{
    decode::{contract::State, symbol_slices::SymbolSlices, text_window::TextView},
    engine::accounting,
};
use std::{cmp::Reverse, collections::VecDeque};

/// Maximum open states of a cache. A search for words leaves about twenty.
pub(super) const MAX_OPEN_STATES: usize = 512;
/// Symbols at the end of a text that are compared first. The texts of one search differ there.
const LAST_SYMBOLS: usize = 16;

/// The open states of a cache, with keys `K`.
pub(super) struct OpenStates<K> {
    /// The least recently used one first.
    states: VecDeque<OpenState<K>>,
    /// Estimated bytes without pages.
    own_bytes: usize,
}

/// The state of a text, which serves only texts that begin with all of it.
pub(super) struct OpenState<K> {
    key: K,
    place: TreeKey,
    /// The symbols of the text from the start of `place` on. Never empty.
    rest: Box<[u32]>,
    pub(super) state: Box<dyn State>,
    /// Estimated bytes without pages.
    own_bytes: usize,
}

/// An open state from which a text continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenMatch {
    /// Index of the state, until the states change.
    pub(super) index: usize,
    /// Symbols of its text.
    pub(super) len: usize,
}

impl<K> OpenState<K> {
    /// Creates an open state from the `place` and `rest` that [`TreeKey::for_state`] returns for its text. `own_bytes` is its
    /// estimated size without pages.
    pub(super) fn new(key: K, place: TreeKey, rest: SymbolSlices<'_>, state: Box<dyn State>, own_bytes: usize) -> Self {
        Self { key, place, rest: rest.to_vec().into(), state, own_bytes }
    }

    /// Number of symbols of its text.
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

impl<K: PartialEq> OpenStates<K> {
    pub(super) fn new() -> Self {
        Self { states: VecDeque::new(), own_bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn own_bytes(&self) -> usize {
        self.own_bytes
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &dyn State> {
        self.states.iter().map(|open| &*open.state)
    }

    /// Returns the longest state from which `text` continues, if it serves more than `shortest` symbols.
    pub(super) fn longest<'a>(&self, key: &K, text: impl Into<TextView<'a>>, shortest: usize) -> Option<OpenMatch> {
        let text = text.into();
        // the key last, because its comparison takes longest
        let may_serve = |open: &OpenState<K>| open.len() > shortest && open.may_begin(text) && open.key == *key;
        let mut candidates: Vec<(usize, &OpenState<K>)> =
            self.states.iter().enumerate().filter(|(_, open)| may_serve(open)).collect();
        candidates.sort_by_key(|(_, open)| Reverse(open.len()));
        let found = candidates.into_iter().find(|(_, open)| open.begins(text));
        found.map(|(index, open)| OpenMatch { index, len: open.len() })
    }

    /// Returns a fork of a state, which was used now.
    pub(super) fn fork(&mut self, index: usize) -> Option<Box<dyn State>> {
        let open = self.states.remove(index)?;
        let fork = open.state.fork();
        self.states.push_back(open);
        Some(fork)
    }

    pub(super) fn push(&mut self, open: OpenState<K>) {
        accounting::add(&mut self.own_bytes, open.own_bytes);
        self.states.push_back(open);
    }

    /// Removes the least recently used state.
    pub(super) fn pop(&mut self) -> Option<OpenState<K>> {
        let open = self.states.pop_front()?;
        accounting::subtract(&mut self.own_bytes, open.own_bytes);
        Some(open)
    }
}
