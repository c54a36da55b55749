//! The states of texts that end within a segment, for requests that try many short continuations of one text.
//!
//! The trees hold states up to the end of a segment. A search for completions asks for the distributions after many beginnings of
//! one word: without these states, each of its requests would feed the word from its first character. An open state serves only
//! the texts that begin with the whole of its own. At most [`MAX_OPEN_STATES`] are kept; the least recently used one is dropped
//! first.

use crate::{
    decode::{contract::State, shared_prefix::TextHash, text_window::TextView},
    engine::accounting,
};
use std::collections::VecDeque;

/// Maximum open states of a cache: about as many as twenty-five searches leave.
pub(super) const MAX_OPEN_STATES: usize = 512;

/// The open states of a cache, with keys `K`.
pub(super) struct OpenStates<K> {
    /// The least recently used one first.
    states: VecDeque<OpenState<K>>,
    /// Estimated bytes without pages.
    own_bytes: usize,
}

/// The state of a text whose last segment has not ended.
pub(super) struct OpenState<K> {
    key: K,
    text: Box<[u32]>,
    /// Hash of the text.
    hash: TextHash,
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
    /// Creates the state of `text`; none if symbols of the text were dropped. `own_bytes`: its estimated bytes without pages.
    pub(super) fn new(key: K, text: TextView<'_>, state: Box<dyn State>, own_bytes: usize) -> Option<Self> {
        let hash = *text.hashes()?.before(text.len())?;
        Some(Self { key, text: text.after(0)?.into(), hash, state, own_bytes })
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
    ///
    /// Hashes the text once, and compares it only with states of equal hash: with one, unless hashes collide. None if symbols of
    /// the text were dropped.
    pub(super) fn longest<'a>(&self, key: &K, text: impl Into<TextView<'a>>, shortest: usize) -> Option<OpenMatch> {
        let text = text.into();
        let mut hashes = text.hashes()?;
        let text = text.after(0)?;
        let may_continue = |open: &OpenState<K>| {
            let len = open.text.len();
            // the key last, because its comparison takes longest
            (shortest + 1..=text.len()).contains(&len) && text[..len].last() == open.text.last() && open.key == *key
        };
        let mut candidates: Vec<(usize, &OpenState<K>)> =
            self.states.iter().enumerate().filter(|(_, open)| may_continue(open)).collect();
        candidates.sort_unstable_by_key(|(_, open)| open.text.len());
        candidates.retain(|(_, open)| hashes.before(open.text.len()) == Some(&open.hash));
        let found = candidates.into_iter().rev().find(|(_, open)| text.starts_with(&open.text));
        found.map(|(index, open)| OpenMatch { index, len: open.text.len() })
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
