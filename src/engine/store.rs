//! The segment cache as a model's worker and those who submit jobs share it. It may be off.

use super::cache::{Capacity, Hit, Key, SegmentCache, Usage};
use crate::decode::{
    contract::{BoundaryOptions, Card, State},
    session::Session,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// States of texts that were computed before; none if there is no memory for them.
pub(super) struct Store(Option<Mutex<SegmentCache>>);

impl Store {
    /// One of so many bytes; 0: off.
    pub(super) fn new(bytes: usize) -> Self {
        Self((bytes > 0).then(|| Mutex::new(SegmentCache::new(Capacity::of_bytes(bytes)))))
    }

    /// Under what a tenant's sequence is kept and found; none if it is neither.
    pub(super) fn key(&self, tenant: &Arc<str>, boundaries: &BoundaryOptions, card: &Card) -> Option<Key> {
        self.0.as_ref().and_then(|_| Key::of(tenant, boundaries, card))
    }

    /// How many of a session's symbols need not be fed, as things stand.
    pub(super) fn known(&self, key: Option<&Key>, session: &Session) -> usize {
        let (Some(cache), Some(key)) = (self.open(), key) else { return 0 };
        cache.known(key, session.text().to(session.cacheable_prefix()))
    }

    /// A state for a session to go on from.
    pub(super) fn find(&self, key: Option<&Key>, session: &Session) -> Option<Hit> {
        let mut cache = self.open()?;
        let found = cache.find(key?, session.text().to(session.cacheable_prefix()));
        found.unwrap_or_else(|error| {
            tracing::error!(%error, "a cached state was lost");
            None
        })
    }

    /// Keeps what a session's state knows.
    pub(super) fn keep(&self, key: Option<&Key>, session: &Session, state: &dyn State) {
        let (Some(mut cache), Some(key)) = (self.open(), key) else { return };
        if let Err(error) = cache.keep(key, session.text(), state) {
            tracing::error!(%error, "a state could not be cached");
        }
    }

    /// Drops what was used least recently; tells whether there was anything.
    pub(super) fn evict(&self) -> bool {
        self.open().and_then(|mut cache| cache.evict()).is_some()
    }

    /// Bytes of pages that nobody else refers to. Goes through all of them.
    pub(super) fn spare(&self) -> usize {
        self.open().map_or(0, |cache| cache.spare())
    }

    /// Drops everything.
    pub(super) fn clear(&self) {
        if let Some(mut cache) = self.open() {
            cache.clear();
        }
    }

    /// What it holds and what became of it.
    pub(super) fn usage(&self) -> Usage {
        self.open().map(|cache| cache.usage()).unwrap_or_default()
    }

    fn open(&self) -> Option<MutexGuard<'_, SegmentCache>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
