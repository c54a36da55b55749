//! The states that a search for completions leaves in the cache and continues from: those at the ends of segments, and open ones.

use super::{
    Hit, Key, SegmentCache, entry_bytes,
    open_states::{MAX_OPEN_STATES, OpenState},
};
use crate::{
    decode::{contract::State, text_window::TextView},
    error::Result,
};

/// Divisor of the cache's capacity: the quotient limits the memory of open states apart from their pages.
const OPEN_STATES_PART: usize = 8;

impl SegmentCache {
    /// Returns the longest open state from which `text` continues, unless an entry serves more of it.
    pub(super) fn find_open(&mut self, key: &Key, text: TextView<'_>) -> Option<Hit> {
        let index = self.open_states.longest(key, text.after(0)?)?;
        let len = self.open_states.symbols(index);
        if self.longest_match(key, text).is_some_and(|longest| longest.len >= len) {
            return None;
        }
        let state = self.open_states.fork(index)?;
        Some(Hit { state, len })
    }

    /// Returns the symbols of the longest open state from which `text` continues.
    pub(super) fn open_symbols(&self, key: &Key, text: TextView<'_>) -> usize {
        let found = text.after(0).and_then(|text| self.open_states.longest(key, text));
        found.map_or(0, |index| self.open_states.symbols(index))
    }

    /// Stores the state after `text` as [`keep`](Self::keep) does, and also as an open state if `text` ends within a segment. The
    /// open state serves the texts that begin with `text`.
    pub fn keep_open<'a>(&mut self, key: &Key, text: impl Into<TextView<'a>>, state: Box<dyn State>) -> Result<()> {
        let text = text.into();
        let end = state.boundary_before(state.len());
        let held = self.longest_match(key, text.prefix(end)).filter(|longest| longest.len == end && end > 0);
        match held.map(|longest| longest.entry) {
            Some(entry) => self.touch(&entry),
            None => drop(self.keep(key, text, &*state)?),
        }
        let Some(whole) = text.after(0).filter(|whole| whole.len() == state.len() && state.len() > end) else {
            return Ok(());
        };
        if self.open_symbols(key, text) == whole.len() {
            return Ok(());
        }
        let own_bytes = entry_bytes(&*state) + key.tenant.len() + size_of_val(whole);
        let open = OpenState { key: key.clone(), text: whole.into(), state, own_bytes };
        // they get a small part of the cache, except for pages that they share
        let limit = self.capacity.bytes / OPEN_STATES_PART;
        let needed = open.own_bytes;
        while self.open_states.len() >= MAX_OPEN_STATES || self.open_states.own_bytes() + needed > limit {
            if self.drop_open_state().is_none() {
                return Ok(());
            }
        }
        self.pages.add_short_lived(&*open.state);
        self.open_states.push(open);
        while self.all_bytes() > self.capacity.bytes {
            self.evict();
        }
        Ok(())
    }

    /// Returns the bytes of entries and open states.
    pub(super) fn all_bytes(&self) -> usize {
        self.bytes() + self.pages.short_lived_bytes + self.open_states.own_bytes()
    }

    /// Drops the least recently used open state. Returns the bytes of pages that this freed; `None` if there is none.
    pub(super) fn drop_open_state(&mut self) -> Option<usize> {
        let open = self.open_states.pop()?;
        Some(self.pages.remove_short_lived(&*open.state))
    }
}
