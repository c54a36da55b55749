//! The clock of the heartbeat, which no test here uses.

use std::time::{Duration, Instant};

pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
