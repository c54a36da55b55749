//! Counts the pages that cache entries refer to: each once, however many entries share it.

use crate::{
    decode::contract::{PageUse, State},
    engine::accounting,
};
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub(super) struct PageAccounting {
    pages: HashMap<usize, CountedPage>,
    /// Bytes of all distinct pages.
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct CountedPage {
    /// Entries that refer to it.
    entries: usize,
    bytes: usize,
}

impl PageAccounting {
    pub(super) fn add(&mut self, state: &dyn State) {
        state.pages(&mut |PageUse { id, bytes, .. }| {
            let page = self.pages.entry(id).or_insert_with(|| {
                accounting::add(&mut self.bytes, bytes);
                CountedPage { entries: 0, bytes }
            });
            accounting::add(&mut page.entries, 1);
        });
    }

    /// Subtracts the pages of an entry that is about to be dropped. Returns the bytes that dropping it frees: those of pages
    /// that no other entry and no running row refers to.
    pub(super) fn remove(&mut self, state: &dyn State) -> usize {
        let mut freed = 0;
        state.pages(&mut |PageUse { id, references, .. }| {
            let Some(page) = self.pages.get_mut(&id) else { return };
            accounting::subtract(&mut page.entries, 1);
            if page.entries == 0 {
                accounting::subtract(&mut self.bytes, page.bytes);
                freed += if references == 1 { page.bytes } else { 0 };
                self.pages.remove(&id);
            }
        });
        freed
    }

    /// Returns the bytes of pages that only `entries`, all the entries counted, refer to.
    pub(super) fn evictable_bytes<'a>(&self, entries: impl Iterator<Item = &'a (dyn State + 'static)>) -> usize {
        let mut evictable = 0;
        let mut shared = HashSet::new();
        for state in entries {
            state.pages(&mut |PageUse { id, references, bytes }| {
                let entries = self.pages.get(&id).map_or(0, |page| page.entries);
                if entries == references && (entries == 1 || shared.insert(id)) {
                    evictable += bytes;
                }
            });
        }
        evictable
    }
}
