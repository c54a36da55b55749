//! Encoded documents, kept for later requests: found by their id, by the tenant whose they are, until they were not asked for
//! for a while, or others need their memory. The least recently used go first.

use crate::decode::{document::Document, summary::EncodedDocument};
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A document that can be read again.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) document: Arc<dyn Document>,
    pub(super) encoded: Arc<EncodedDocument>,
    /// Its tokens: a job that had to make way may have to encode it anew.
    pub(super) ids: Arc<[u32]>,
    /// Whether vectors were kept as they are.
    pub(super) hard: bool,
}

/// What a shelf holds and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Documents.
    pub entries: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Requests for one that was there.
    pub hits: u64,
    /// And for one that was not.
    pub misses: u64,
    /// Documents that made way for others, or for requests.
    pub evictions: u64,
}

/// The documents of one model.
pub(super) struct Shelf {
    /// Bytes that they may have together; 0: none is kept.
    bytes: usize,
    /// How long one is kept that nobody asks for.
    keep: Duration,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<String, Entry>,
    usage: Usage,
}

struct Entry {
    kept: Kept,
    tenant: Arc<str>,
    bytes: usize,
    used: Instant,
}

impl Kept {
    fn bytes(&self) -> usize {
        let own = self.document.own_bytes() + self.encoded.own_bytes() + size_of_val(&*self.ids);
        self.document.bytes() + own
    }
}

impl Shelf {
    /// One of so many bytes, for documents that were asked for within so long.
    pub(super) fn new(bytes: usize, keep: Duration) -> Self {
        Self { bytes, keep, inner: Mutex::default() }
    }

    /// Keeps a document; returns the id by which this tenant finds it again. None if it is larger than the shelf.
    pub(super) fn keep(&self, tenant: &Arc<str>, kept: Kept, now: Instant) -> Option<String> {
        let bytes = kept.bytes();
        if bytes > self.bytes {
            return None;
        }
        let mut inner = self.inner();
        while inner.usage.bytes + bytes > self.bytes && inner.evict(|_| true) {}
        let id = draw_id();
        inner.usage.bytes += bytes;
        inner.entries.insert(id.clone(), Entry { kept, tenant: Arc::clone(tenant), bytes, used: now });
        Some(id)
    }

    /// A tenant's document of that id, asked for by a new job. To anybody else it is as if there were none.
    pub(super) fn find(&self, tenant: &str, id: &str, now: Instant) -> Option<Kept> {
        let found = self.again(tenant, id, now);
        let usage = &mut self.inner().usage;
        *(if found.is_some() { &mut usage.hits } else { &mut usage.misses }) += 1;
        found
    }

    /// The same, for a job that was taken because it was there.
    pub(super) fn again(&self, tenant: &str, id: &str, now: Instant) -> Option<Kept> {
        let (mut inner, keep) = (self.inner(), self.keep);
        inner.expire(now, keep);
        inner.entries.get_mut(id).filter(|entry| *entry.tenant == *tenant).map(|entry| {
            entry.used = now;
            entry.kept.clone()
        })
    }

    /// Drops what nobody asked for for too long; tells when the next one is due.
    pub(super) fn expire(&self, now: Instant) -> Option<Instant> {
        let (mut inner, keep) = (self.inner(), self.keep);
        inner.expire(now, keep);
        inner.entries.values().filter_map(|entry| entry.used.checked_add(keep)).min()
    }

    /// Drops what was used least recently of what nobody reads; tells whether there was anything.
    pub(super) fn evict(&self) -> bool {
        self.inner().evict(|kept| Arc::strong_count(&kept.document) == 1)
    }

    /// Bytes of pages that nobody else refers to.
    pub(super) fn spare(&self) -> usize {
        let inner = self.inner();
        let spare = inner.entries.values().filter(|entry| Arc::strong_count(&entry.kept.document) == 1);
        spare.map(|entry| entry.kept.document.bytes()).sum()
    }

    /// Drops everything.
    pub(super) fn clear(&self) {
        let mut inner = self.inner();
        inner.entries.clear();
        inner.usage.bytes = 0;
    }

    /// What it holds and what became of it.
    pub(super) fn usage(&self) -> Usage {
        let inner = self.inner();
        Usage { entries: inner.entries.len(), ..inner.usage }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn evict(&mut self, may: impl Fn(&Kept) -> bool) -> bool {
        let candidates = self.entries.iter().filter(|(_, entry)| may(&entry.kept));
        let oldest = candidates.min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone());
        let Some(entry) = oldest.and_then(|id| self.entries.remove(&id)) else { return false };
        self.usage.bytes -= entry.bytes;
        self.usage.evictions += 1;
        true
    }

    fn expire(&mut self, now: Instant, keep: Duration) {
        let usage = &mut self.usage;
        self.entries.retain(|_, entry| {
            let stays = now.saturating_duration_since(entry.used) < keep;
            usage.bytes -= if stays { 0 } else { entry.bytes };
            stays
        });
    }
}

/// A name that nobody guesses: 128 bits of the operating system's, by way of the keys of the standard library's hashes.
fn draw_id() -> String {
    let [high, low] = std::array::from_fn(|_| RandomState::new().build_hasher().finish());
    format!("{high:016x}{low:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::document::{LayerTime, PoolingChoice};

    struct Fake(usize);

    impl Document for Fake {
        fn tokens(&self) -> usize {
            1
        }
        fn vectors(&self) -> usize {
            1
        }
        fn bytes(&self) -> usize {
            self.0
        }
        fn unpooled_bytes(&self) -> usize {
            self.0
        }
        fn own_bytes(&self) -> usize {
            0
        }
        fn choices(&self) -> &[PoolingChoice] {
            &[]
        }
        fn timings(&self) -> &[LayerTime] {
            &[]
        }
        fn memory_ns(&self) -> u64 {
            0
        }
    }

    fn kept(bytes: usize) -> Kept {
        let document: Arc<dyn Document> = Arc::new(Fake(bytes));
        let encoded = Arc::new(EncodedDocument::of(&*document, Vec::new(), false));
        Kept { document, encoded, ids: Arc::from([]), hard: false }
    }

    fn tenant(name: &str) -> Arc<str> {
        name.into()
    }

    #[test]
    fn a_document_is_its_tenants_until_it_expires() {
        let (shelf, begin) = (Shelf::new(10_000, Duration::from_secs(10)), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        let id = shelf.keep(&tenant("a"), kept(1000), begin).unwrap();
        assert_eq!(id.len(), 32);
        assert!(shelf.find("a", &id, after(6)).is_some() && shelf.find("b", &id, after(6)).is_none());
        // from the last time that it was asked for
        assert!(shelf.find("a", &id, after(12)).is_some());
        assert_eq!(shelf.expire(after(20)), Some(after(22)));
        assert_eq!(shelf.expire(after(22)), None);
        let Usage { entries, bytes, hits, misses, evictions } = shelf.usage();
        assert_eq!((entries, bytes, hits, misses, evictions), (0, 0, 2, 1, 0));
    }

    #[test]
    fn the_least_recently_used_makes_way() {
        let (shelf, begin) = (Shelf::new(10_000, Duration::from_secs(10)), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        let first = shelf.keep(&tenant("a"), kept(4000), begin).unwrap();
        let second = shelf.keep(&tenant("a"), kept(4000), after(1)).unwrap();
        assert!(shelf.find("a", &first, after(2)).is_some());
        let third = shelf.keep(&tenant("a"), kept(4000), after(3)).unwrap();
        assert!(shelf.find("a", &second, after(4)).is_none() && shelf.find("a", &third, after(4)).is_some());
        assert_eq!(shelf.keep(&tenant("a"), kept(20_000), after(5)), None, "larger than the shelf");
        assert_eq!((shelf.usage().entries, shelf.spare()), (2, 8000));
        let used = shelf.find("a", &first, after(6)).unwrap();
        assert_eq!(shelf.spare(), 4000, "what somebody reads is not spare");
        assert!(shelf.evict() && !shelf.evict(), "what somebody reads gives no memory back");
        drop(used);
        assert!(shelf.evict() && !shelf.evict());
        assert_eq!(shelf.usage().bytes, 0);
    }
}
