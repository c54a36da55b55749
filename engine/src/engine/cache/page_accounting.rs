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
    /// References that these entries hold.
    references: usize,
    bytes: usize,
}

impl PageAccounting {
    pub(super) fn add(&mut self, state: &dyn State) {
        state.pages(&mut |PageUse { id, bytes, own, .. }| {
            let page = self.pages.entry(id).or_insert_with(|| {
                accounting::add(&mut self.bytes, bytes);
                CountedPage { entries: 0, references: 0, bytes }
            });
            accounting::add(&mut page.entries, 1);
            accounting::add(&mut page.references, own);
        });
    }

    /// Subtracts the pages of an entry that is about to be dropped. Returns the bytes that dropping it frees: those of pages
    /// that no other entry and no running row refers to.
    pub(super) fn remove(&mut self, state: &dyn State) -> usize {
        let mut freed = 0;
        state.pages(&mut |PageUse { id, references, own, .. }| {
            let Some(page) = self.pages.get_mut(&id) else { return };
            accounting::subtract(&mut page.entries, 1);
            accounting::subtract(&mut page.references, own);
            if page.entries == 0 {
                accounting::subtract(&mut self.bytes, page.bytes);
                freed += if references == own { page.bytes } else { 0 };
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
            state.pages(&mut |PageUse { id, references, bytes, .. }| {
                let Some(page) = self.pages.get(&id) else { return };
                if page.references == references && (page.entries == 1 || shared.insert(id)) {
                    evictable += bytes;
                }
            });
        }
        evictable
    }
}
