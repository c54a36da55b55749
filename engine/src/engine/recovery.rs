//! Panics of the worker: which part of its work a panic ends, and how often the worker may start over.
//!
//! A panic in a step, or in the bookkeeping of one request, ends the requests that took part ([`guarded`]). After any other
//! panic the worker ends all requests and starts over. A worker that panics again and again is broken ([`RestartLimit`]).

use crate::error::{Error, Result};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// Restarts of a worker within [`RESTART_PERIOD`] after which a further panic breaks it.
const MAX_RESTARTS: usize = 3;
const RESTART_PERIOD: Duration = Duration::from_secs(60);

/// Runs `work` and turns a panic into an error, so that it ends the requests in `work` and nothing else.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(work).unwrap_or_else(|| Err(Error::Internal("a panic in the worker".into())))
}

/// Runs `work` and logs a panic. Returns `None` after one.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).inspect_err(|panic| log(&**panic)).ok()
}

/// Drops values one by one, so that a panic while one is dropped spares the others.
pub(super) fn drop_each<T>(values: impl IntoIterator<Item = T>) {
    values.into_iter().for_each(|value| _ = caught(|| drop(value)));
}

fn log(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied();
    let message = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(message, "caught a panic");
}

/// Counts a worker's latest restarts.
#[derive(Debug, Default)]
pub(super) struct RestartLimit {
    /// When it restarted, within the last period.
    recent: Vec<Instant>,
}

impl RestartLimit {
    /// Counts a restart at `now`. Returns false, without counting it, if there were too many within the last period.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        self.recent.retain(|&restart| now.saturating_duration_since(restart) < RESTART_PERIOD);
        let allowed = self.recent.len() < MAX_RESTARTS;
        if allowed {
            self.recent.push(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_have_a_limit_within_a_period() {
        let mut limit = RestartLimit::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(
            [0, 10, 50, 59, 60, 61, 70].map(|at| limit.allow(after(at))),
            [true, true, true, false, true, false, true]
        );
    }

    #[test]
    fn a_panic_while_a_value_is_dropped_spares_the_others() {
        struct Counted<'a>(&'a std::cell::Cell<usize>);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
                assert!(self.0.get() != 2, "the second drop panics");
            }
        }
        let dropped = std::cell::Cell::new(0);
        drop_each((0..4).map(|_| Counted(&dropped)));
        assert_eq!(dropped.get(), 4);
    }
}
