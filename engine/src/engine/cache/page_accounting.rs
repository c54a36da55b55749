//! Counts the pages that cache entries refer to: each once, however many entries share it.

use crate::{
    decode::contract::{PageUse, State},
    engine::accounting,
};
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub(super) struct PageAccounting {
    pages: HashMap<usize, CountedPage>,
    /// Bytes of all distinct pages of entries.
    pub(super) bytes: usize,
    /// Bytes of the distinct pages that only short-lived states refer to.
    pub(super) short_lived_bytes: usize,
}

#[derive(Debug)]
struct CountedPage {
    /// Entries that refer to it.
    entries: usize,
    /// Short-lived states that refer to it.
    short_lived: usize,
    /// References that these entries and states hold.
    references: usize,
    bytes: usize,
}

impl PageAccounting {
    pub(super) fn add(&mut self, state: &dyn State) {
        self.count(state, |page, bytes, short_lived_bytes| {
            accounting::add(&mut page.entries, 1);
            if page.entries == 1 {
                accounting::add(bytes, page.bytes);
                if page.short_lived > 0 {
                    accounting::subtract(short_lived_bytes, page.bytes);
                }
            }
        });
    }

    /// Adds the pages of a short-lived state. Its own part of the memory is counted separately: the accounts of tenants add up
    /// what their entries add to [`bytes`](Self::bytes).
    pub(super) fn add_short_lived(&mut self, state: &dyn State) {
        self.count(state, |page, _, short_lived_bytes| {
            accounting::add(&mut page.short_lived, 1);
            if page.short_lived == 1 && page.entries == 0 {
                accounting::add(short_lived_bytes, page.bytes);
            }
        });
    }

    fn count(&mut self, state: &dyn State, mut each: impl FnMut(&mut CountedPage, &mut usize, &mut usize)) {
        let Self { pages, bytes: entry_bytes, short_lived_bytes } = self;
        state.pages(&mut |PageUse { id, bytes, own, .. }| {
            let new = || CountedPage { entries: 0, short_lived: 0, references: 0, bytes };
            let page = pages.entry(id).or_insert_with(new);
            accounting::add(&mut page.references, own);
            each(page, entry_bytes, short_lived_bytes);
        });
    }

    /// Subtracts the pages of an entry that is about to be dropped. Returns the bytes that dropping it frees: those of pages
    /// that no other entry and no running row refers to.
    pub(super) fn remove(&mut self, state: &dyn State) -> usize {
        self.discount(state, |page, bytes, short_lived_bytes| {
            accounting::subtract(&mut page.entries, 1);
            if page.entries == 0 {
                accounting::subtract(bytes, page.bytes);
                if page.short_lived > 0 {
                    accounting::add(short_lived_bytes, page.bytes);
                }
            }
        })
    }

    /// Subtracts the pages of a short-lived state as [`remove`](Self::remove) does.
    pub(super) fn remove_short_lived(&mut self, state: &dyn State) -> usize {
        self.discount(state, |page, _, short_lived_bytes| {
            accounting::subtract(&mut page.short_lived, 1);
            if page.short_lived == 0 && page.entries == 0 {
                accounting::subtract(short_lived_bytes, page.bytes);
            }
        })
    }

    fn discount(&mut self, state: &dyn State, mut each: impl FnMut(&mut CountedPage, &mut usize, &mut usize)) -> usize {
        let Self { pages, bytes, short_lived_bytes } = self;
        let mut freed = 0;
        state.pages(&mut |PageUse { id, references, own, .. }| {
            let Some(page) = pages.get_mut(&id) else { return };
            accounting::subtract(&mut page.references, own);
            each(page, bytes, short_lived_bytes);
            if page.entries == 0 && page.short_lived == 0 {
                freed += if references == own { page.bytes } else { 0 };
                pages.remove(&id);
            }
        });
        freed
    }

    /// Returns the bytes of pages that only `entries` refer to. These must be all counted entries and short-lived states.
    pub(super) fn evictable_bytes<'a>(&self, entries: impl Iterator<Item = &'a (dyn State + 'static)>) -> usize {
        let mut evictable = 0;
        let mut shared = HashSet::new();
        for state in entries {
            state.pages(&mut |PageUse { id, references, bytes, .. }| {
                let Some(page) = self.pages.get(&id) else { return };
                if page.references == references && (page.entries + page.short_lived == 1 || shared.insert(id)) {
                    evictable += bytes;
                }
            });
        }
        evictable
    }
}
