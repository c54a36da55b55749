//! The states that a search for completions leaves in the cache and continues from: entries at the ends of the document's segments,
//! and open states.

use super::{
    Key, SegmentCache, entry_bytes,
    open_states::{MAX_OPEN_STATES, OpenMatch, OpenState},
    tenants::TenantEntries,
    tree_key::TreeKey,
};
use crate::{
    decode::{contract::State, text_window::TextView},
    error::Result,
};

/// Divisor of the cache's capacity: the quotient limits the memory of open states apart from their pages. In a full cache, open
/// states give way to entries if they take more with the pages that only they refer to.
const OPEN_STATES_PART: usize = 8;

impl SegmentCache {
    /// Returns the longest open state from which `text` continues, if it serves more than `shortest` symbols.
    pub(super) fn longest_open(&self, key: &Key, text: TextView<'_>, shortest: usize) -> Option<OpenMatch> {
        self.open_states.longest(key, text, shortest)
    }

    /// Stores the state after `text` as [`keep`](Self::keep) does. If `text` is longer than the text of that entry, or gets none, the
    /// state is also stored as an open state. It serves the texts that begin with `text`.
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
        if own_bytes > limit || self.longest_open(key, text, text.len() - 1).is_some() {
            return Ok(());
        }
        while self.open_states.len() >= MAX_OPEN_STATES || self.open_states.own_bytes() + own_bytes > limit {
            if self.drop_open_state().is_none() {
                return Ok(());
            }
        }
        let open = OpenState::new(key.clone(), place, rest, state, own_bytes);
        self.pages.add_short_lived(&*open.state);
        self.open_states.push(open);
        self.make_room();
        Ok(())
    }

    /// Evicts entries until the cache is within its capacity, but open states first while they take more than their part or one
    /// entry is left.
    pub(super) fn make_room(&mut self) {
        while self.all_bytes() > self.capacity.bytes {
            let open_bytes = self.pages.short_lived_bytes + self.open_states.own_bytes();
            let evicts_entry = open_bytes <= self.open_limit() && self.tenants.entries() > 1;
            let evicted = if evicts_entry { self.evict_from_largest(TenantEntries::bytes) } else { self.evict() };
            if evicted.is_none() {
                return;
            }
        }
    }

    /// Returns the maximum bytes of open states in a full cache.
    fn open_limit(&self) -> usize {
        self.capacity.bytes / OPEN_STATES_PART
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
