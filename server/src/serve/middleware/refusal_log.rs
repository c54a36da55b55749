//! Log lines about refused calls, so that an operator sees at the default level that a limit is reached or a client errs.
//!
//! A client can cause refusals at will, so each status code has one line in [`INTERVAL`] at most. The next line counts the refusals
//! that had none. A line has the rule and the field, and no value: a value may be a client's text.

use crate::engine::clock;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Minimum time between two lines about the same code.
const INTERVAL: Duration = Duration::from_secs(10);
/// The codes of refusals that no other part of the server logs.
const CODES: [Code; 5] =
    [Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition, Code::ResourceExhausted, Code::OutOfRange];
/// The reason of an error whose field may be a key that the client chose.
const UNREADABLE: &str = "UNREADABLE";

/// The state of the lines. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalLog {
    /// In the order of [`CODES`].
    codes: Arc<Mutex<[Refusals; CODES.len()]>>,
}

/// The refusals with one code.
#[derive(Debug, Clone, Copy, Default)]
struct Refusals {
    /// When the last line was logged.
    last_line: Option<Instant>,
    /// Refusals since then.
    unlogged: u64,
}

impl RefusalLog {
    /// Logs a status, in the current span, if its code has had no line in [`INTERVAL`].
    pub(super) fn record(&self, status: &Status) {
        let code = status.code();
        let Some(unlogged) = self.count(code, clock::now()) else { return };
        let details = status.get_error_details();
        let rule = details.error_info().map_or("", |info| &*info.reason);
        let violations = details.bad_request().map_or(&[][..], |bad| &bad.field_violations);
        let field = violations.first().filter(|_| rule != UNREADABLE).map(|violation| &*violation.field);
        if code == Code::ResourceExhausted {
            // These messages have only names and numbers of limits.
            tracing::warn!(?code, rule, limit = status.message(), unlogged, "refused a call: a limit is reached");
        } else {
            tracing::info!(?code, rule, field, unlogged, "refused a call");
        }
    }

    /// Counts a refusal. Returns the number of earlier refusals without a line if this one gets a line.
    fn count(&self, code: Code, now: Instant) -> Option<u64> {
        let index = CODES.iter().position(|logged| *logged == code)?;
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let refusals = codes.get_mut(index)?;
        if refusals.last_line.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            refusals.unlogged += 1;
            return None;
        }
        refusals.last_line = Some(now);
        Some(std::mem::take(&mut refusals.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_line_in_the_interval() {
        let log = RefusalLog::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(log.count(Code::InvalidArgument, at(0)), Some(0));
        assert_eq!(log.count(Code::InvalidArgument, at(1)), None);
        assert_eq!(log.count(Code::InvalidArgument, at(9)), None);
        assert_eq!(log.count(Code::ResourceExhausted, at(9)), Some(0), "another code");
        assert_eq!(log.clone().count(Code::InvalidArgument, at(10)), Some(2));
        assert_eq!(log.count(Code::InvalidArgument, at(20)), Some(0));
        for quiet in [Code::Ok, Code::Cancelled, Code::Unauthenticated, Code::Internal] {
            assert_eq!(log.count(quiet, at(30)), None, "{quiet:?}");
        }
    }
}
