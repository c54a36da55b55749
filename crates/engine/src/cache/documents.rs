//! The document cache: encoded documents for later requests of the same tenant, found by their id. The tenant whose documents
//! have the most bytes loses its least recently used one first, so a tenant within an equal part of the cache loses none.

use crate::accounting;
use crate::observer::{EngineEvent, Measurements};
use crate::summary::EncodedDocument;
use lru::LruCache;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use uuid::Uuid;
use weir_models::contract::Document;

#[derive(Clone)]
pub(crate) struct CachedDocument {
    pub(crate) document: Arc<Document>,
    pub(crate) encoded: Arc<EncodedDocument>,
    /// Its tokens: a request that was preempted may have to encode it again.
    pub(crate) ids: Arc<[u32]>,
    /// True if it was encoded with hard pooling.
    pub(crate) hard: bool,
}

/// Contents of a document cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DocumentCacheUsage {
    /// Documents held.
    pub entries: usize,
    /// Bytes of the documents held.
    pub bytes: usize,
}

pub(crate) struct DocumentCache {
    /// Maximum bytes; 0: off.
    capacity: usize,
    /// How long a document is kept that no request uses.
    keep: Duration,
    entries: Mutex<Entries>,
    measurements: Arc<Measurements>,
}

struct Entries {
    /// Documents by id. The byte limit bounds it, not the number of entries.
    lru: LruCache<String, StoredDocument>,
    tenant_bytes: HashMap<Arc<str>, usize>,
    /// Bytes of all documents.
    bytes: usize,
}

struct StoredDocument {
    cached: CachedDocument,
    tenant: Arc<str>,
    bytes: usize,
    used_at: Instant,
}

impl CachedDocument {
    fn bytes(&self) -> usize {
        let own_bytes = self.document.own_bytes + self.encoded.own_bytes() + size_of_val(&*self.ids);
        self.document.bytes + own_bytes
    }

    /// Returns true if no request uses it, so that dropping it frees its pages.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.document) == 1
    }
}

impl DocumentCache {
    pub(crate) fn new(capacity: usize, keep: Duration, measurements: Arc<Measurements>) -> Self {
        let entries = Entries { lru: LruCache::unbounded(), tenant_bytes: HashMap::new(), bytes: 0 };
        Self { capacity, keep, entries: Mutex::new(entries), measurements }
    }

    /// Stores a document and returns its id; `None` if it is larger than the cache, or than what other tenants leave of it.
    pub(crate) fn insert(&self, tenant: &Arc<str>, cached: CachedDocument, now: Instant) -> Option<String> {
        let bytes = cached.bytes();
        if bytes > self.capacity {
            return None;
        }
        let mut entries = self.lock();
        let free = self.capacity.saturating_sub(entries.bytes);
        let victims = entries.victims_for(tenant, bytes, free)?;
        victims.iter().for_each(|victim| entries.drop_document(victim));
        // 122 random bits: other tenants cannot guess an id
        let id = Uuid::new_v4().simple().to_string();
        accounting::add(&mut entries.bytes, bytes);
        accounting::add(entries.tenant_bytes.entry(Arc::clone(tenant)).or_default(), bytes);
        entries.lru.put(id.clone(), StoredDocument { cached, tenant: Arc::clone(tenant), bytes, used_at: now });
        drop(entries);
        victims.iter().for_each(|_| self.measurements.record(EngineEvent::DocumentEvicted));
        Some(id)
    }

    /// Returns the document of a new request and records the lookup. A document of another tenant is not found.
    pub(crate) fn find(&self, tenant: &str, id: &str, now: Instant) -> Option<CachedDocument> {
        let found = self.get(tenant, id, now);
        self.measurements.record(EngineEvent::DocumentLookup { found: found.is_some() });
        found
    }

    /// Returns the document of a request that starts or resumes.
    pub(crate) fn get(&self, tenant: &str, id: &str, now: Instant) -> Option<CachedDocument> {
        let mut entries = self.lock();
        entries.expire(now, self.keep);
        // a request of another tenant does not count as a use
        entries.lru.peek(id).filter(|entry| *entry.tenant == *tenant)?;
        let entry = entries.lru.get_mut(id)?;
        entry.used_at = now;
        Some(entry.cached.clone())
    }

    /// Drops expired documents. Returns when the next one expires.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut entries = self.lock();
        entries.expire(now, self.keep);
        entries.lru.peek_lru().and_then(|(_, entry)| entry.used_at.checked_add(self.keep))
    }

    /// Evicts a document that no request uses. Returns false if there is none.
    pub(crate) fn evict(&self) -> bool {
        let mut entries = self.lock();
        let Some(victim) = entries.unused_victim() else { return false };
        entries.drop_document(&victim);
        drop(entries);
        self.measurements.record(EngineEvent::DocumentEvicted);
        true
    }

    /// Returns the bytes of pages that only the cache refers to.
    pub(crate) fn evictable_bytes(&self) -> usize {
        let entries = self.lock();
        let unused = entries.lru.iter().map(|(_, entry)| &entry.cached).filter(|cached| cached.is_unused());
        unused.map(|cached| cached.document.bytes).sum()
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    pub(crate) fn usage(&self) -> DocumentCacheUsage {
        let entries = self.lock();
        DocumentCacheUsage { entries: entries.lru.len(), bytes: entries.bytes }
    }

    /// Locks the entries. Drops them if a panic may have left them inconsistent.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(|poisoned| {
            self.entries.clear_poison();
            let mut entries = poisoned.into_inner();
            entries.clear();
            entries
        })
    }
}

impl Entries {
    fn clear(&mut self) {
        self.lru.clear();
        self.tenant_bytes.clear();
        self.bytes = 0;
    }

    fn bytes_of(&self, tenant: &str) -> usize {
        self.tenant_bytes.get(tenant).copied().unwrap_or(0)
    }

    /// Returns the documents to evict so that a new one of `bytes` bytes fits, when `free` bytes are free. `None` if no document
    /// is left, or if the tenant with the most bytes holds less than `tenant` would.
    fn victims_for(&self, tenant: &str, bytes: usize, mut free: usize) -> Option<Vec<String>> {
        let mut evicted: HashMap<&str, usize> = HashMap::new();
        let mut left: Vec<_> = self.lru.iter().rev().collect();
        let mut victims = Vec::new();
        while free < bytes {
            // bytes of a tenant once the victims are gone and the new document is stored
            let held = |other: &str| {
                let own = if other == tenant { bytes } else { 0 };
                self.bytes_of(other).saturating_add(own).saturating_sub(evicted.get(other).copied().unwrap_or(0))
            };
            let (place, largest) = largest_holder(left.iter().map(|(_, entry)| held(&entry.tenant)))?;
            if largest < held(tenant) {
                return None;
            }
            let (id, entry) = left.remove(place);
            free = free.saturating_add(entry.bytes);
            accounting::add(evicted.entry(&*entry.tenant).or_default(), entry.bytes);
            victims.push(id.clone());
        }
        Some(victims)
    }

    /// Returns the least recently used document that no request uses, of the tenant with the most bytes among theirs.
    fn unused_victim(&self) -> Option<String> {
        let unused: Vec<_> = self.lru.iter().rev().filter(|(_, entry)| entry.cached.is_unused()).collect();
        let (place, _) = largest_holder(unused.iter().map(|(_, entry)| self.bytes_of(&entry.tenant)))?;
        Some(unused[place].0.clone())
    }

    fn drop_document(&mut self, id: &str) {
        if let Some(entry) = self.lru.pop(id) {
            self.subtract(&entry);
        }
    }

    fn subtract(&mut self, entry: &StoredDocument) {
        accounting::subtract(&mut self.bytes, entry.bytes);
        let mut left = self.bytes_of(&entry.tenant);
        accounting::subtract(&mut left, entry.bytes);
        if left == 0 {
            self.tenant_bytes.remove(&entry.tenant);
        } else {
            self.tenant_bytes.insert(Arc::clone(&entry.tenant), left);
        }
    }

    fn expire(&mut self, now: Instant, keep: Duration) {
        let expired = |entry: &StoredDocument| now.saturating_duration_since(entry.used_at) >= keep;
        while self.lru.peek_lru().is_some_and(|(_, entry)| expired(entry)) {
            if let Some((_, entry)) = self.lru.pop_lru() {
                self.subtract(&entry);
            }
        }
    }
}

/// Returns the first place of the largest number, with the number.
fn largest_holder(bytes: impl Iterator<Item = usize>) -> Option<(usize, usize)> {
    bytes.enumerate().reduce(|most, next| if next.1 > most.1 { next } else { most })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Observer;

    fn cached(bytes: usize) -> CachedDocument {
        let document = Arc::new(Document {
            tokens: 1,
            vectors: 1,
            bytes,
            unpooled_bytes: bytes,
            own_bytes: 0,
            choices: Vec::new(),
            timings: Vec::new(),
            memory_ns: 0,
            memory: Box::new(()),
        });
        let encoded = Arc::new(EncodedDocument::new(&document, Vec::new(), false));
        CachedDocument { document, encoded, ids: Arc::from([]), hard: false }
    }

    fn cache(keep: Duration) -> DocumentCache {
        DocumentCache::new(10_000, keep, Arc::new(Measurements::new(Arc::new(()))))
    }

    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl Observer for Recorder {
        fn record(&self, event: EngineEvent<'_>) {
            self.0.lock().unwrap().push(format!("{event:?}"));
        }
    }

    #[test]
    fn a_document_belongs_to_its_tenant_until_it_expires() {
        let recorder = Arc::new(Recorder::default());
        let observer = Arc::clone(&recorder) as Arc<dyn Observer>;
        let cache = DocumentCache::new(10_000, Duration::from_secs(10), Arc::new(Measurements::new(observer)));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let id = cache.insert(&"a".into(), cached(1000), start).unwrap();
        assert_eq!(id.len(), 32);
        assert!(cache.find("a", &id, after(6)).is_some() && cache.find("b", &id, after(6)).is_none());
        // it expires after its last use
        assert!(cache.find("a", &id, after(12)).is_some());
        assert_eq!(cache.expire(after(20)), Some(after(22)));
        assert_eq!(cache.expire(after(22)), None);
        assert_eq!(cache.usage(), DocumentCacheUsage { entries: 0, bytes: 0 });
        let lookups = [true, false, true].map(|found| format!("{:?}", EngineEvent::DocumentLookup { found }));
        assert_eq!(*recorder.0.lock().unwrap(), lookups, "a document that expires is not evicted");
        assert!(cache.insert(&"a".into(), cached(1000), after(23)).is_some() && cache.evict());
        assert_eq!(recorder.0.lock().unwrap()[3..], [format!("{:?}", EngineEvent::DocumentEvicted)]);
    }

    #[test]
    fn the_least_recently_used_document_is_evicted() {
        let cache = cache(Duration::from_secs(10));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let first = cache.insert(&"a".into(), cached(4000), start).unwrap();
        let second = cache.insert(&"a".into(), cached(4000), after(1)).unwrap();
        assert!(cache.find("a", &first, after(2)).is_some());
        let third = cache.insert(&"a".into(), cached(4000), after(3)).unwrap();
        assert!(cache.find("a", &second, after(4)).is_none() && cache.find("a", &third, after(4)).is_some());
        assert_eq!(cache.insert(&"a".into(), cached(20_000), after(5)), None, "larger than the cache");
        assert_eq!((cache.usage().entries, cache.evictable_bytes()), (2, 8000));
        let used = cache.find("a", &first, after(6)).unwrap();
        assert_eq!(cache.evictable_bytes(), 4000, "a document in use is not evictable");
        assert!(cache.evict() && !cache.evict(), "evicting a document in use frees nothing");
        drop(used);
        assert!(cache.evict() && !cache.evict());
        assert_eq!(cache.usage().bytes, 0);
    }

    #[test]
    fn a_tenant_keeps_its_documents_while_another_stores_many() {
        let cache = cache(Duration::from_secs(1000));
        let now = Instant::now();
        let insert = |tenant: &str, bytes| cache.insert(&tenant.into(), cached(bytes), now);
        let quiet = [insert("quiet", 2000).unwrap(), insert("quiet", 2000).unwrap()];
        for _ in 0..50 {
            assert!(insert("busy", 1500).is_some());
        }
        for id in &quiet {
            assert!(cache.find("quiet", id, now).is_some());
        }
        let before = cache.usage();
        assert_eq!(insert("busy", 7000), None, "larger than what the other tenant leaves");
        assert_eq!(cache.usage(), before, "a document that is not stored evicts none");
        // the tenant that holds more than an equal part gives way
        let newest = insert("quiet", 5000).unwrap();
        assert!(cache.find("quiet", &newest, now).is_some());
        for _ in 0..50 {
            assert!(insert("busy", 4000).is_some());
        }
        assert!(cache.find("quiet", &newest, now).is_some());
        assert!(quiet.iter().all(|id| cache.find("quiet", id, now).is_none()));
        // so does it when requests need memory
        let held = |tenant: &str| cache.lock().bytes_of(tenant);
        assert!(held("quiet") > held("busy") && cache.evict());
        assert_eq!((held("quiet"), cache.usage().entries), (0, 1));
    }
}
