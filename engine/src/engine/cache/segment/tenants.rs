//! The entries of each tenant, and whose entry is evicted.
//!
//! A tenant that has used the cache neither in the present period nor in the one before loses its entries first, the least
//! recently used one before the others. If there is none, the tenant that holds the most loses its least recently used entry.
//! So whatever one tenant stores, another keeps its entries while it holds no more than an equal part and uses the cache.

use crate::engine::accounting;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The tenants that have entries.
#[derive(Debug)]
pub(super) struct TenantTable<E> {
    all: HashMap<Arc<str>, TenantEntries<E>>,
    /// Entries of all tenants.
    entries: usize,
    /// Number of the present period.
    period: u64,
}

#[derive(Debug)]
pub(super) struct TenantEntries<E> {
    tenant: Arc<str>,
    /// Entries by the time of their last use.
    order: BTreeMap<u64, E>,
    /// Bytes of pages and trees. Tenants share neither.
    bytes: usize,
    keys: usize,
    /// Period of the tenant's last use.
    last_period: u64,
}

impl<E> TenantEntries<E> {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    pub(super) fn is_of(&self, tenant: &str) -> bool {
        *self.tenant == *tenant
    }

    /// Returns the least recently used entry.
    pub(super) fn oldest(&self) -> Option<&E> {
        self.order.first_key_value().map(|(_, entry)| entry)
    }

    fn oldest_use(&self) -> Option<u64> {
        self.order.first_key_value().map(|(used, _)| *used)
    }
}

impl<E> TenantTable<E> {
    pub(super) fn new() -> Self {
        Self { all: HashMap::new(), entries: 0, period: 0 }
    }

    /// Returns the number of entries of all tenants.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Returns true if a tenant has an entry that was last used at `used`.
    pub(super) fn has(&self, tenant: &str, used: u64) -> bool {
        self.all.get(tenant).is_some_and(|tenant| tenant.order.contains_key(&used))
    }

    pub(super) fn start_period(&mut self) {
        self.period += 1;
    }

    /// Returns the tenant that loses an entry: an idle one, or else the one of largest `size`.
    pub(super) fn victim(&self, size: impl Fn(&TenantEntries<E>) -> usize) -> Option<&TenantEntries<E>> {
        let is_idle = |tenant: &&TenantEntries<E>| tenant.last_period + 1 < self.period;
        let idle = self.all.values().filter(is_idle).min_by_key(|tenant| tenant.oldest_use());
        idle.or_else(|| self.all.values().max_by_key(|tenant| (size(tenant), Reverse(tenant.oldest_use()))))
    }

    /// Adds an entry of a tenant that was used at `now`, and the `bytes` and the key that it brings.
    pub(super) fn add(&mut self, tenant: &Arc<str>, now: u64, entry: E, bytes: usize, is_new_key: bool) {
        let tenant = self.all.entry(Arc::clone(tenant)).or_insert_with_key(|tenant| TenantEntries {
            tenant: Arc::clone(tenant),
            order: BTreeMap::new(),
            bytes: 0,
            keys: 0,
            last_period: 0,
        });
        tenant.order.insert(now, entry);
        accounting::add(&mut tenant.bytes, bytes);
        accounting::add(&mut tenant.keys, usize::from(is_new_key));
        tenant.last_period = self.period;
        accounting::add(&mut self.entries, 1);
    }

    /// Records that the entry last used at `before` was used at `now`.
    pub(super) fn touch(&mut self, tenant: &str, before: u64, now: u64) {
        let Some(tenant) = self.all.get_mut(tenant) else { return };
        tenant.last_period = self.period;
        if let Some(entry) = tenant.order.remove(&before) {
            tenant.order.insert(now, entry);
        }
    }

    /// Removes the entry last used at `used`, and the `bytes` that were freed with it.
    pub(super) fn remove(&mut self, name: &str, used: u64, bytes: usize, is_last_of_key: bool) {
        let Some(tenant) = self.all.get_mut(name) else { return };
        if tenant.order.remove(&used).is_some() {
            accounting::subtract(&mut self.entries, 1);
        }
        accounting::subtract(&mut tenant.bytes, bytes);
        accounting::subtract(&mut tenant.keys, usize::from(is_last_of_key));
        if tenant.order.is_empty() {
            self.all.remove(name);
        }
    }

    /// Returns an entry by its tenant and last use.
    #[cfg(test)]
    pub(super) fn get(&self, tenant: &str, used: u64) -> Option<&E> {
        self.all.get(tenant)?.order.get(&used)
    }

    /// Returns the bytes of each tenant.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> BTreeMap<Arc<str>, usize> {
        self.all.values().map(|tenant| (Arc::clone(&tenant.tenant), tenant.bytes)).collect()
    }
}
