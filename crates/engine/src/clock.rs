//! The clock of engine and server. All of their times come from here.

use std::time::{Duration, Instant};

/// Returns the current time: the operating system's, or the virtual time of a simulation that paused its runtime's clock.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns a duration in nanoseconds.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time since `start`.
pub fn since(start: Instant) -> Duration {
    now().saturating_duration_since(start)
}
