//! The rows of a stub's model: requests that it answers at once, others in the order in which they came.
//!
//! A row is free again from the moment at which its request was due to end, and whoever waited for it begins then, however late this
//! program came to notice: waits are those of queueing theory, and no delay of the machine is passed on to those who come later.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// All rows of a model.
pub(super) struct StubSlots {
    places: Arc<Semaphore>,
    /// Since when rows are free that were taken before.
    free: Mutex<VecDeque<Instant>>,
}

/// A row that is taken, until it is dropped.
pub(super) struct StubSlot {
    /// When its request's turn came.
    pub(super) begun: Instant,
    /// When it is due to end; none of a request that was given up.
    until: Option<Instant>,
    rows: Arc<StubSlots>,
    // given back after the moment was noted, or who gets the place would not find it
    _place: OwnedSemaphorePermit,
}

impl StubSlots {
    pub(super) fn new(count: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(count)), free: Mutex::default() }
    }

    /// A row for a request that came then; waits for one. None if there will be none.
    pub(super) async fn acquire(self: &Arc<Self>, came: Instant) -> Option<StubSlot> {
        let place = self.places.clone().acquire_owned().await.ok()?;
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let begun = free.map_or(came, |free| free.max(came));
        Some(StubSlot { begun, until: None, rows: self.clone(), _place: place })
    }
}

impl StubSlot {
    /// Its request is due to end then.
    pub(super) fn until(&mut self, due: Instant) {
        self.until = Some(due);
    }
}

impl Drop for StubSlot {
    fn drop(&mut self) {
        let mut free = self.rows.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push_back(self.until.unwrap_or_else(Instant::now));
    }
}
