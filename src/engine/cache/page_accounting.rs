//! Which pages the cache's entries refer to, each counted once however many entries share it.

use crate::decode::contract::{PageUse, State};
use std::collections::{HashMap, HashSet};

/// Pages by their ids.
#[derive(Debug, Default)]
pub(super) struct PageAccounting {
    /// How many entries refer to a page, and its bytes.
    pages: HashMap<usize, (usize, usize)>,
    bytes: usize,
}

impl PageAccounting {
    /// Bytes of distinct pages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts the pages of an entry.
    pub(super) fn add(&mut self, state: &dyn State) {
        state.pages(&mut |PageUse { id, bytes, .. }| {
            let (entries, _) = self.pages.entry(id).or_insert_with(|| {
                self.bytes += bytes;
                (0, bytes)
            });
            *entries += 1;
        });
    }

    /// Counts the pages of an entry that is about to be dropped no longer. Returns the bytes that dropping it gives back:
    /// those of pages that nobody else refers to, no entry and no running row.
    pub(super) fn remove(&mut self, state: &dyn State) -> usize {
        let mut released = 0;
        state.pages(&mut |PageUse { id, references, .. }| {
            let Some((entries, bytes)) = self.pages.get_mut(&id) else { return };
            *entries -= 1;
            if *entries == 0 {
                self.bytes -= *bytes;
                released += if references == 1 { *bytes } else { 0 };
                self.pages.remove(&id);
            }
        });
        released
    }

    /// Bytes of the pages that nobody but these entries, all that were counted, refers to.
    pub(super) fn spare<'a>(&self, entries: impl Iterator<Item = &'a (dyn State + 'static)>) -> usize {
        let (mut bytes, mut shared) = (0, HashSet::new());
        for state in entries {
            state.pages(&mut |PageUse { id, references, bytes: page }| {
                let entries = self.pages.get(&id).map_or(0, |(entries, _)| *entries);
                if entries == references && (entries == 1 || shared.insert(id)) {
                    bytes += page;
                }
            });
        }
        bytes
    }
}
