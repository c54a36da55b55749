//! Seniority: who goes first of those who wait, and last of those who must make way.
//!
//! A job's place is where the work clock stood when it came, moved back by its priority. So priorities age by work done: a
//! level counts as much as having come [`Rules::age`](super::Rules) units of work earlier, and nobody can be overtaken by
//! those who come later than that. A place never changes, hence nothing is ever sorted again.

use std::ops::RangeInclusive;

/// What a priority may be; higher goes first.
pub const PRIORITIES: RangeInclusive<i32> = -8..=7;

/// A job's place; the least is the most senior. No two jobs have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct Rank {
    place: i64,
    /// Of those at one place, who came first.
    number: u64,
}

impl Rank {
    /// Of the job of that number, which comes when so much work was done.
    pub(super) fn new(clock: u64, priority: i32, age: u64, number: u64) -> Self {
        let priority = i64::from(priority.clamp(*PRIORITIES.start(), *PRIORITIES.end()));
        let (clock, age) = (i64::try_from(clock).unwrap_or(i64::MAX), i64::try_from(age).unwrap_or(i64::MAX));
        Self { place: clock.saturating_sub(age.saturating_mul(priority)), number }
    }
}
