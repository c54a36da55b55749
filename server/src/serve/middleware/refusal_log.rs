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
/// The reason of an error about the field `model`.
const UNKNOWN_MODEL: &str = "UNKNOWN_MODEL";

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

/// A refused call, as the log describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::serve) struct Refusal {
    pub(in crate::serve) code: Code,
    /// The name of the violated rule, in upper case.
    pub(in crate::serve) rule: String,
    /// The field of the request that is wrong.
    pub(in crate::serve) field: Option<String>,
    /// The error's message. The log has it only if a limit is reached.
    pub(in crate::serve) message: String,
}

impl Refusal {
    /// Describes the status of a gRPC call.
    fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let rule = details.error_info().map_or_else(String::new, |info| info.reason.clone());
        let violation = details.bad_request().and_then(|bad| bad.field_violations.first());
        // This error has no violation of a field.
        let field = if rule == UNKNOWN_MODEL { Some("model") } else { violation.map(|violation| &*violation.field) };
        Self { code: status.code(), field: field.map(str::to_owned), rule, message: status.message().to_owned() }
    }

    /// Logs this refusal, and the number of earlier ones that had no line.
    fn log(&self, unlogged: u64) {
        let Self { code, rule, field, message } = self;
        let field = field.as_deref().filter(|_| rule != UNREADABLE);
        if *code == Code::ResourceExhausted {
            // These messages have only names and numbers of limits.
            tracing::warn!(?code, rule, limit = message, unlogged, "refused a call: a limit is reached");
        } else {
            tracing::info!(?code, rule, field, unlogged, "refused a call");
        }
    }
}

impl RefusalLog {
    /// Logs the status of a gRPC call, in the current span, if its code has had no line in [`INTERVAL`].
    pub(super) fn record_status(&self, status: &Status) {
        if let Some(unlogged) = self.count(status.code(), clock::now()) {
            Refusal::of(status).log(unlogged);
        }
    }

    /// Logs a refusal, in the current span, if its code has had no line in [`INTERVAL`].
    pub(in crate::serve) fn record(&self, refusal: &Refusal) {
        if let Some(unlogged) = self.count(refusal.code, clock::now()) {
            refusal.log(unlogged);
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
    use crate::{error::Error, serve::status::status};

    #[test]
    fn a_refusal_names_its_field() {
        let field = |error: Error| Refusal::of(&status(&error, "")).field;
        assert_eq!(field(Error::UnknownModel { name: "x".into(), known: vec![] }).as_deref(), Some("model"));
        assert_eq!(field(Error::bad_option("n", "0", "1")).as_deref(), Some("n"));
        assert_eq!(field(Error::Oversized { what: "the body", limit: 1 }), None);
    }

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
