//! Seniority of requests: the most senior one is admitted first and preempted last.
//!
//! A rank is the value of the work clock when the request arrived, moved back by its priority. Priorities therefore age by
//! work done: one priority level counts as much as having arrived [`Rules::age`](super::Rules) units of work earlier. A
//! later request cannot overtake by more than that. A rank never changes, so queues are never sorted again.

use std::ops::RangeInclusive;

/// Range of priorities. Higher goes first.
pub const PRIORITIES: RangeInclusive<i32> = -8..=7;

/// Rank of a request; the least is the most senior. Ranks are unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    effective_arrival: i64,
    /// Order of arrival, which breaks ties.
    number: u64,
}

impl Rank {
    /// Returns the rank of the `number`th request, which arrives when the work clock is at `clock`.
    pub(super) fn new(clock: u64, priority: i32, age: u64, number: u64) -> Self {
        let priority = i64::from(priority.clamp(*PRIORITIES.start(), *PRIORITIES.end()));
        let clock = i64::try_from(clock).unwrap_or(i64::MAX);
        let age = i64::try_from(age).unwrap_or(i64::MAX);
        Self { effective_arrival: clock.saturating_sub(age.saturating_mul(priority)), number }
    }
}
