//! Slots of a stub's model: requests that it answers at once. Others wait in order of arrival.
//!
//! A slot counts as free from the moment at which its request was due to end, and the next request begins then, however late this
//! program notices. Waits are therefore those of queueing theory, without the delays of this machine.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

pub(super) struct StubSlots {
    permits: Arc<Semaphore>,
    /// Times since which slots that were taken before are free.
    free_since: Mutex<VecDeque<Instant>>,
}

/// Slot of a request, until it is dropped.
pub(super) struct StubSlot {
    /// When the request's turn came.
    pub(super) begun: Instant,
    /// When the request is due to end; absent if the client cancelled it.
    pub(super) end: Option<Instant>,
    slots: Arc<StubSlots>,
    // dropped after `free_since` was written, because the next request reads it
    _permit: OwnedSemaphorePermit,
}

impl StubSlots {
    pub(super) fn new(count: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(count)), free_since: Mutex::default() }
    }

    /// Waits for a slot for a request that arrived at `arrived`. Returns `None` if the semaphore is closed.
    pub(super) async fn acquire(self: &Arc<Self>, arrived: Instant) -> Option<StubSlot> {
        let permit = self.permits.clone().acquire_owned().await.ok()?;
        let free_since = self.free_since.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let begun = free_since.map_or(arrived, |free_since| free_since.max(arrived));
        Some(StubSlot { begun, end: None, slots: self.clone(), _permit: permit })
    }
}

impl Drop for StubSlot {
    fn drop(&mut self) {
        let mut free_since = self.slots.free_since.lock().unwrap_or_else(PoisonError::into_inner);
        free_since.push_back(self.end.unwrap_or_else(Instant::now));
    }
}
