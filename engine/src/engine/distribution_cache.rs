//! The distribution cache of an editing session: the distributions that its last searches computed.
//!
//! A distribution depends only on the text that it follows. The next keystroke extends the text, or takes its last character away,
//! so the next search asks for many of the same distributions. The cache compares texts, not revisions: an edit anywhere before
//! a text makes it another one.
//!
//! All texts of the cache begin with the same symbols, of which it holds a digest, and end near the cursor. A search whose text
//! begins with others empties the cache, and so does one whose text is shorter than that beginning. Its memory has a strict limit; the
//! distributions of the oldest search are dropped first.

use crate::decode::{
    next_symbol::Distribution,
    symbol_slices::SymbolSlices,
    text_window::{Digest, TextView},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Symbols before the cursor that are compared one by one: as many can be taken away without emptying the cache.
const NEAR_SYMBOLS: usize = 64;
/// Estimated bytes of an entry without its symbols and logits.
const ENTRY_BYTES: usize = 160;

/// The distribution cache of a session. Clones share it.
#[derive(Clone, Default)]
pub(super) struct DistributionCache(Arc<Mutex<Distributions>>);

/// The place of a search in the cache.
pub(super) struct SearchPlace {
    /// The beginning that the cache's texts had when the search began.
    beginning: u64,
    search: u64,
    /// Symbols of the searched text after that beginning.
    text: Vec<u32>,
}

#[derive(Default)]
struct Distributions {
    /// Maximum bytes.
    limit: usize,
    bytes: usize,
    /// Number of symbols with which all texts begin.
    start: usize,
    /// Digest of these symbols; none before the first search.
    before: Option<Digest>,
    /// Number of the current beginning. A [`SearchPlace`] of an earlier one is void.
    beginning: u64,
    /// Number of the last search.
    search: u64,
    /// Distributions by the rest of the text that they follow.
    entries: HashMap<Box<[u32]>, Entry>,
}

struct Entry {
    distribution: Arc<Distribution>,
    /// The last search that asked for it.
    search: u64,
}

/// Digests of the beginnings of a searched text.
struct BeginningDigests {
    /// Digest of the symbols before the start of the cached texts; none if the text is shorter.
    start: Option<Digest>,
    /// Digest of the symbols before the start that the text would get.
    near: Option<Digest>,
}

impl BeginningDigests {
    fn of(text: TextView<'_>, start: usize, near: usize) -> Self {
        let mut digests = text.digests();
        if start <= near {
            let start = digests.digest_before(start);
            return Self { start, near: digests.digest_before(near) };
        }
        let near = digests.digest_before(near);
        Self { start: digests.digest_before(start), near }
    }
}

impl DistributionCache {
    /// Sets the maximum number of bytes. A new cache has a maximum of 0.
    pub(super) fn set_limit(&self, bytes: usize) {
        let mut distributions = self.lock();
        if distributions.limit == 0 {
            // the places of searches without a cache have no text
            distributions.beginning += 1;
        }
        distributions.limit = bytes;
        while distributions.bytes > bytes && distributions.drop_oldest() {}
    }

    /// Begins a search after `text`.
    pub(super) fn begin<'a>(&self, text: impl Into<TextView<'a>>) -> SearchPlace {
        let text = text.into();
        let near = text.len().saturating_sub(NEAR_SYMBOLS);
        let mut distributions = self.lock();
        distributions.search += 1;
        let search = distributions.search;
        while distributions.limit > 0 {
            let start = distributions.start;
            drop(distributions);
            // a long text is digested while the cache is not locked
            let digests = BeginningDigests::of(text, start, near);
            distributions = self.lock();
            // unless another search has moved the start
            if distributions.start == start {
                distributions.move_start(text, near, digests);
                let text = text.after(distributions.start).unwrap_or_default().to_vec();
                return SearchPlace { beginning: distributions.beginning, search, text };
            }
        }
        SearchPlace { beginning: distributions.beginning, search, text: Vec::new() }
    }

    /// Returns the distribution after a continuation of a search's text.
    pub(super) fn get(&self, place: &SearchPlace, continuation: &[u32]) -> Option<Arc<Distribution>> {
        let mut distributions = self.lock();
        if place.beginning != distributions.beginning || distributions.entries.is_empty() {
            return None;
        }
        let entry = distributions.entries.get_mut(&*[&place.text, continuation].concat())?;
        entry.search = entry.search.max(place.search);
        Some(Arc::clone(&entry.distribution))
    }

    /// Keeps the distribution after a continuation of a search's text, if it fits without a distribution of the same search or a
    /// later one being dropped.
    pub(super) fn keep(&self, place: &SearchPlace, continuation: &[u32], distribution: &Arc<Distribution>) {
        self.lock().keep(place, continuation, distribution);
    }

    fn lock(&self) -> MutexGuard<'_, Distributions> {
        // each change is complete before anything can panic
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Distributions {
    /// Moves the start of the cached texts to `near`, close to the end of `text`, unless it is close already. Drops the texts that
    /// do not continue from there.
    fn move_start(&mut self, text: TextView<'_>, near: usize, digests: BeginningDigests) {
        let same = self.before.is_some() && digests.start == self.before;
        if same && text.len() - self.start <= 2 * NEAR_SYMBOLS {
            return;
        }
        let typed = if same { text.prefix(near).after(self.start).map(SymbolSlices::to_vec) } else { None };
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        for (rest, entry) in entries {
            let Some(rest) = typed.as_ref().and_then(|typed| rest.strip_prefix(&typed[..])) else { continue };
            self.bytes += entry_bytes(rest, &entry.distribution);
            self.entries.insert(rest.into(), entry);
        }
        self.before = digests.near;
        self.start = near;
        self.beginning += 1;
    }

    fn keep(&mut self, place: &SearchPlace, continuation: &[u32], distribution: &Arc<Distribution>) {
        if place.beginning != self.beginning {
            return;
        }
        let text = [&place.text, continuation].concat();
        let needed = entry_bytes(&text, distribution);
        if self.limit < needed || self.entries.contains_key(&*text) {
            return;
        }
        while self.bytes > self.limit - needed {
            let oldest = self.entries.values().map(|entry| entry.search).min();
            if oldest.is_none_or(|oldest| oldest >= place.search) || !self.drop_oldest() {
                return;
            }
        }
        self.bytes += needed;
        let entry = Entry { distribution: Arc::clone(distribution), search: place.search };
        self.entries.insert(text.into(), entry);
    }

    /// Drops the distributions that only the oldest search asked for. Returns false if the cache is empty.
    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.entries.values().map(|entry| entry.search).min() else { return false };
        let mut freed = 0;
        self.entries.retain(|text, entry| {
            let stays = entry.search > oldest;
            freed += if stays { 0 } else { entry_bytes(text, &entry.distribution) };
            stays
        });
        self.bytes -= freed;
        true
    }
}

/// Returns the bytes that an entry takes.
fn entry_bytes(text: &[u32], distribution: &Distribution) -> usize {
    ENTRY_BYTES + size_of_val(text) + size_of_val(&distribution.logits[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(number: usize) -> Arc<Distribution> {
        Arc::new(Distribution { logits: vec![number as f32; 10], boundary: None })
    }

    fn cache(limit: usize) -> DistributionCache {
        let cache = DistributionCache::default();
        cache.set_limit(limit);
        cache
    }

    fn bytes(cache: &DistributionCache) -> usize {
        let distributions = cache.lock();
        let entries = distributions.entries.iter();
        let sum: usize = entries.map(|(text, entry)| entry_bytes(text, &entry.distribution)).sum();
        assert_eq!(sum, distributions.bytes);
        sum
    }

    #[test]
    fn equal_texts_are_found_wherever_the_cursor_was() {
        let cache = cache(1 << 16);
        let text: Vec<u32> = (0..500).collect();
        let known = |len: usize, continuation: &[u32]| {
            let place = cache.begin(&text[..len]);
            cache.get(&place, continuation).map(|distribution| distribution.logits[0])
        };
        let place = cache.begin(&text[..200]);
        cache.keep(&place, &[200, 201], &distribution(1));
        cache.keep(&place, &[9], &distribution(2));
        assert_eq!(cache.get(&place, &[200, 201]).map(|found| found.logits[0]), Some(1.0));
        assert_eq!(
            (known(201, &[201]), known(202, &[]), known(203, &[]), known(202, &[9])),
            (Some(1.0), Some(1.0), None, None)
        );
        // the start moves on, and the text after it is still found
        assert_eq!((known(199, &[199, 200, 201]), known(200, &[9])), (Some(1.0), Some(2.0)));
        assert_eq!((known(260, &[]), known(202, &[])), (None, Some(1.0)));
        assert_eq!(known(270, &[]), None);
        assert_eq!(cache.lock().start, 206);
        assert!(cache.lock().entries.is_empty() && bytes(&cache) == 0, "texts that end before the start");
    }

    #[test]
    fn another_beginning_empties_the_cache() {
        let cache = cache(1 << 16);
        let mut text: Vec<u32> = (0..200).collect();
        let place = cache.begin(&text);
        cache.keep(&place, &[1], &distribution(1));
        text[3] = 9;
        let other = cache.begin(&text);
        assert!(cache.get(&other, &[1]).is_none() && bytes(&cache) == 0);
        // a search that began before that cannot store what it computes
        cache.keep(&place, &[1], &distribution(1));
        assert!(cache.get(&other, &[1]).is_none() && cache.get(&place, &[1]).is_none());
        // an edit near the cursor leaves the texts that it does not touch
        cache.keep(&other, &[1], &distribution(1));
        text[190] = 7;
        assert!(cache.get(&cache.begin(&text), &[1]).is_none());
        text[190] = 190;
        assert!(cache.get(&cache.begin(&text), &[1]).is_some());
    }

    #[test]
    fn memory_has_a_limit() {
        let entry = ENTRY_BYTES + 4 * (5 + 1 + 10);
        let cache = cache(3 * entry);
        let old = cache.begin(&[1, 2, 3, 4, 5]);
        (0..4).for_each(|number| cache.keep(&old, &[number], &distribution(number as usize)));
        assert_eq!((bytes(&cache), cache.get(&old, &[3]).is_none()), (3 * entry, true));
        let new = cache.begin(&[1, 2, 3, 4, 5]);
        assert!(cache.get(&new, &[1]).is_some());
        // what the new search asked for stays
        cache.keep(&new, &[7], &distribution(7));
        assert_eq!([0, 1, 2, 7].map(|number| cache.get(&new, &[number]).is_some()), [false, true, false, true]);
        cache.keep(&old, &[0], &distribution(0));
        cache.keep(&old, &[2], &distribution(2));
        assert_eq!((bytes(&cache), cache.get(&new, &[2]).is_none()), (3 * entry, true));
        cache.set_limit(0);
        cache.keep(&new, &[1], &distribution(1));
        assert_eq!(bytes(&cache), 0);
    }
}
