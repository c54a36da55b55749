//! The segment cache as the worker and the handles share it: behind a lock, and possibly off.

use super::segment::{Capacity, Hit, Key, SegmentCache, SegmentCacheUsage};
use crate::decode::{
    contract::{BoundaryOptions, Card, State},
    session::Session,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct SegmentCacheHandle(Option<Mutex<SegmentCache>>);

impl SegmentCacheHandle {
    /// Creates a cache of `bytes` bytes; 0: off.
    pub(crate) fn new(bytes: usize) -> Self {
        Self((bytes > 0).then(|| Mutex::new(SegmentCache::new(Capacity::with_bytes(bytes)))))
    }

    /// Returns the key of a tenant's sequence; `None` if it is not cached.
    pub(crate) fn key(&self, tenant: &Arc<str>, boundaries: &BoundaryOptions, card: &Card) -> Option<Key> {
        self.0.as_ref().and_then(|_| Key::for_sequence(tenant, boundaries, card))
    }

    /// Returns how many of a session's symbols the cache holds now.
    pub(crate) fn cached_len(&self, key: Option<&Key>, session: &Session) -> usize {
        let (Some(cache), Some(key)) = (self.lock(), key) else { return 0 };
        cache.known(key, session.text().prefix(session.cacheable_prefix()))
    }

    /// Returns a state that a session can continue from.
    pub(crate) fn find(&self, key: Option<&Key>, session: &Session) -> Option<Hit> {
        let hit = self.lock()?.find(key?, session.text().prefix(session.cacheable_prefix()));
        hit.unwrap_or_else(|error| {
            tracing::error!(%error, "dropped a cached state that could not be rolled back");
            None
        })
    }

    pub(crate) fn keep(&self, key: Option<&Key>, session: &Session, state: &dyn State) {
        let (Some(mut cache), Some(key)) = (self.lock(), key) else { return };
        if let Err(error) = cache.keep(key, session.text(), state) {
            tracing::error!(%error, "cannot cache a state");
        }
    }

    /// Evicts the least recently used entry. Returns false if there is none.
    pub(crate) fn evict(&self) -> bool {
        self.lock().and_then(|mut cache| cache.evict()).is_some()
    }

    /// Returns the bytes of pages that only the cache refers to. Visits all pages.
    pub(crate) fn evictable_bytes(&self) -> usize {
        self.lock().map_or(0, |cache| cache.evictable_bytes())
    }

    pub(crate) fn clear(&self) {
        if let Some(mut cache) = self.lock() {
            cache.clear();
        }
    }

    pub(crate) fn usage(&self) -> SegmentCacheUsage {
        self.lock().map(|cache| cache.usage()).unwrap_or_default()
    }

    fn lock(&self) -> Option<MutexGuard<'_, SegmentCache>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
