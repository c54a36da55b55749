//! When a running request may be preempted for another tenant: after it did at least as much new work as it repeated.

/// A request is not preempted for another tenant before it did this part of a quantum of new work.
const STAY_PART: u64 = 4;

/// Work of a running request since it was admitted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stay {
    new: u64,
    repeated: u64,
    /// Minimum new work before it is preempted for another tenant: twice what its last preemption lost.
    min: u64,
}

impl Stay {
    /// Starts the stay of a request whose last preemption lost `lost` units of work.
    pub(super) fn new(lost: u64) -> Self {
        Self { min: lost.saturating_mul(2), ..Self::default() }
    }

    pub(super) fn count(&mut self, new: u64, repeated: u64) {
        self.new = self.new.saturating_add(new);
        self.repeated = self.repeated.saturating_add(repeated);
    }

    /// Returns all work of the stay.
    pub(super) fn work(&self) -> u64 {
        self.new.saturating_add(self.repeated)
    }

    /// Returns true if it may be preempted for another tenant, by the scheduler's quantum of work.
    pub(super) fn is_long_enough(&self, quantum: u64) -> bool {
        self.new >= self.repeated.max(self.min).max(quantum / STAY_PART)
    }
}
