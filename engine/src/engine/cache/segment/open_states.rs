//! The states of texts that end within a segment, for requests that try many short continuations of one text.
//!
//! The trees hold states up to the end of a segment. A search for completions asks for the distributions after many beginnings of
//! one word: without these states, each of its requests would feed the word from its first character. An open state serves only
//! the texts that begin with the whole of its own. The cache holds few: the least recently used one is dropped first.

use crate::{decode::contract::State, engine::accounting};
use std::collections::VecDeque;

/// Maximum open states of a cache.
pub(super) const MAX_OPEN_STATES: usize = 64;

/// The open states of a cache, with keys `K`.
pub(super) struct OpenStates<K> {
    /// The least recently used one first.
    states: VecDeque<OpenState<K>>,
    /// Estimated bytes without pages.
    own_bytes: usize,
}

/// The state of a text whose last segment has not ended.
pub(super) struct OpenState<K> {
    pub(super) key: K,
    pub(super) text: Box<[u32]>,
    pub(super) state: Box<dyn State>,
    /// Estimated bytes without pages.
    pub(super) own_bytes: usize,
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

    /// Returns the index of the longest state from which `text` continues.
    pub(super) fn longest(&self, key: &K, text: &[u32]) -> Option<usize> {
        // most texts differ at their ends
        let continues = |open: &OpenState<K>| {
            let beginning = text.get(..open.text.len());
            beginning.is_some_and(|beginning| beginning.iter().rev().eq(open.text.iter().rev())) && open.key == *key
        };
        let found = self.states.iter().enumerate().filter(|(_, open)| continues(open));
        found.max_by_key(|(_, open)| open.text.len()).map(|(index, _)| index)
    }

    /// Returns the number of symbols of a state's text.
    pub(super) fn symbols(&self, index: usize) -> usize {
        self.states.get(index).map_or(0, |open| open.text.len())
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
