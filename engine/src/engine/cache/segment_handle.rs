//! The segment cache as the worker and the handles share it: behind a lock, and possibly off.

use super::segment::{Capacity, Hit, Key, SegmentCache, SegmentCacheUsage};
use crate::{
    decode::{
        contract::{BoundaryOptions, Card, State},
        session::Session,
        text_window::TextView,
    },
    engine::clock,
};
use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// Length of the cache's periods: a tenant that has not used the cache for this time, or for twice this time at most, loses
/// its entries first.
const PERIOD: Duration = Duration::from_secs(300);

pub(crate) struct SegmentCacheHandle(Option<Mutex<PeriodicCache>>);

struct PeriodicCache {
    cache: SegmentCache,
    /// When the cache's present period began.
    period_began: Instant,
}

/// The locked cache.
struct Locked<'a>(MutexGuard<'a, PeriodicCache>);

impl Deref for Locked<'_> {
    type Target = SegmentCache;

    fn deref(&self) -> &SegmentCache {
        &self.0.cache
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut SegmentCache {
        &mut self.0.cache
    }
}

impl SegmentCacheHandle {
    /// Creates a cache of `bytes` bytes; 0: off.
    pub(crate) fn new(bytes: usize) -> Self {
        let cache = || SegmentCache::new(Capacity::with_bytes(bytes));
        Self((bytes > 0).then(|| Mutex::new(PeriodicCache { cache: cache(), period_began: clock::now() })))
    }

    /// Returns the key of a tenant's sequence; `None` if it is not cached.
    pub(crate) fn key(&self, tenant: &Arc<str>, boundaries: &BoundaryOptions, card: &Card) -> Option<Key> {
        self.0.as_ref().and_then(|_| Key::for_sequence(tenant, boundaries, card))
    }

    /// Returns how many of a session's symbols the cache holds now.
    pub(crate) fn cached_len(&self, key: Option<&Key>, session: &Session) -> usize {
        self.known(key, session.text().prefix(session.cacheable_prefix()))
    }

    /// Returns how many symbols of a text the cache holds now.
    pub(crate) fn known(&self, key: Option<&Key>, text: TextView<'_>) -> usize {
        let (Some(cache), Some(key)) = (self.lock(), key) else { return 0 };
        cache.known(key, text)
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

    /// Stores the state after the symbols that were fed. It serves every text that begins with them.
    pub(crate) fn keep_open(&self, key: Option<&Key>, session: &Session, state: Box<dyn State>) {
        let (Some(mut cache), Some(key)) = (self.lock(), key) else { return };
        if let Err(error) = cache.keep_open(key, session.text().prefix(state.len()), state) {
            tracing::error!(%error, "cannot cache a state");
        }
    }

    /// Evicts an entry. Returns false if there is none.
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

    /// Locks the cache, and starts a new period if the present one has passed. Empties the cache if a panic may have left it
    /// inconsistent.
    fn lock(&self) -> Option<Locked<'_>> {
        let cache = self.0.as_ref()?;
        let mut locked = Locked(cache.lock().unwrap_or_else(|poisoned| {
            cache.clear_poison();
            let mut cache = poisoned.into_inner();
            cache.cache.clear();
            cache
        }));
        let now = clock::now();
        if now.saturating_duration_since(locked.0.period_began) >= PERIOD {
            locked.start_period();
            locked.0.period_began = now;
        }
        Some(locked)
    }
}
