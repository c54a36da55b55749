//! The one map from errors to gRPC: the code, the message, and details that a program can read.
//!
//! Every status names the request (`RequestInfo`) and the rule that was broken (`ErrorInfo.reason`, one per variant of
//! [`Error`]); one that is about a field of the request says which (`BadRequest`), one that may pass later says when to
//! try again (`RetryInfo`).

use crate::error::{Code, Error, clip};
use std::{collections::HashMap, time::Duration};
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of `ErrorInfo.reason`.
pub const DOMAIN: &str = "weir";

/// Bytes of a message: statuses travel in headers, which clients limit to a few kilobytes, and part of a message may be
/// the caller's own text.
const MESSAGE_BYTES: usize = 1024;
/// Bytes of one value in the details, for the same reason.
const VALUE_BYTES: usize = 256;

/// The status of an error, as an answer to the request of that id.
pub fn status(error: &Error, request: &str) -> Status {
    let mut about = About { details: ErrorDetails::new(), values: HashMap::new() };
    let reason = about.describe(error);
    let About { mut details, values } = about;
    details.set_request_info(clip(request, VALUE_BYTES), "");
    details.set_error_info(reason, DOMAIN, values);
    Status::with_error_details(code(error.code()), clip(&error.to_string(), MESSAGE_BYTES), details)
}

/// gRPC's code for a kind of failure.
fn code(code: Code) -> tonic::Code {
    match code {
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::NotFound => tonic::Code::NotFound,
        Code::Unimplemented => tonic::Code::Unimplemented,
        Code::FailedPrecondition => tonic::Code::FailedPrecondition,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
        Code::Unauthenticated => tonic::Code::Unauthenticated,
        Code::DeadlineExceeded => tonic::Code::DeadlineExceeded,
        Code::Cancelled => tonic::Code::Cancelled,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::OutOfRange => tonic::Code::OutOfRange,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::Internal => tonic::Code::Internal,
    }
}

/// Returns the name of a status code as gRPC writes it.
pub(super) fn code_name(code: tonic::Code) -> &'static str {
    match code {
        tonic::Code::Ok => "OK",
        tonic::Code::Cancelled => "CANCELLED",
        tonic::Code::Unknown => "UNKNOWN",
        tonic::Code::InvalidArgument => "INVALID_ARGUMENT",
        tonic::Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        tonic::Code::NotFound => "NOT_FOUND",
        tonic::Code::AlreadyExists => "ALREADY_EXISTS",
        tonic::Code::PermissionDenied => "PERMISSION_DENIED",
        tonic::Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        tonic::Code::FailedPrecondition => "FAILED_PRECONDITION",
        tonic::Code::Aborted => "ABORTED",
        tonic::Code::OutOfRange => "OUT_OF_RANGE",
        tonic::Code::Unimplemented => "UNIMPLEMENTED",
        tonic::Code::Internal => "INTERNAL",
        tonic::Code::Unavailable => "UNAVAILABLE",
        tonic::Code::DataLoss => "DATA_LOSS",
        tonic::Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// What the details are gathered in.
struct About {
    details: ErrorDetails,
    values: HashMap<String, String>,
}

impl About {
    /// Adds what programs can use; returns the reason.
    fn describe(&mut self, error: &Error) -> &'static str {
        match error {
            Error::UnknownModel { name, known } => {
                self.tell("model", name).tell("known", &known.join(", ")).named("UNKNOWN_MODEL")
            }
            Error::UnknownMethod { path } => self.tell("path", path).named("UNKNOWN_METHOD"),
            Error::UnknownDocument { id } => self.tell("document_id", id).named("UNKNOWN_DOCUMENT"),
            Error::UnknownSymbol { field, found, offset } => self
                .field(field, error)
                .tell("symbol", found)
                .tell("offset", &offset.to_string())
                .named("UNKNOWN_SYMBOL"),
            Error::BadOption { field, found, bound } => {
                self.field(field, error).tell("value", found).tell("bound", bound).named("BAD_OPTION")
            }
            Error::Unreadable { field: Some(field), .. } => self.field(field, error).named("UNREADABLE"),
            Error::Unreadable { field: None, .. } => "UNREADABLE",
            Error::Exclusive { first, second } => {
                self.field(first, error).field(second, error).named("EXCLUSIVE_OPTIONS")
            }
            Error::TooLong { field, length, limit, unit, why } => {
                self.field(field, error).tell("unit", unit);
                self.tell("length", &length.to_string()).tell("limit", &limit.to_string()).because(*why);
                "TOO_LONG"
            }
            // To a program the same rule; how long it is in all is not known.
            Error::LongerThan { field, limit, unit, why } => {
                self.field(field, error).tell("unit", unit);
                self.tell("length", &format!("more than {limit}")).tell("limit", &limit.to_string()).because(*why);
                "TOO_LONG"
            }
            Error::WrongKind { call, model, wanted, found } => self
                .tell("call", call)
                .tell("model", model)
                .tell("wanted", wanted)
                .tell("found", found)
                .named("WRONG_KIND_OF_MODEL"),
            Error::Unauthenticated { .. } => "UNAUTHENTICATED",
            Error::QueueFull { what, limit, retry } => {
                self.retry(*retry).tell("what", what).tell("limit", &limit.to_string()).named("QUEUE_FULL")
            }
            Error::NeverFits { field, needed, limit } => {
                self.field(field, error).bytes("needed", *needed).bytes("limit", *limit).named("NEVER_FITS")
            }
            Error::OutOfPages { needed, limit } => {
                self.bytes("needed", *needed).bytes("limit", *limit).named("OUT_OF_MEMORY")
            }
            Error::PermissionDenied { what } => self.tell("what", what).named("PERMISSION_DENIED"),
            Error::Stalled { limit } => self.tell("limit", &format!("{limit:?}")).named("STALLED"),
            Error::Deadline { stage } => self.tell("stage", stage).named("DEADLINE"),
            Error::Draining { retry } => self.retry(*retry).named("DRAINING"),
            Error::Cancelled => "CANCELLED",
            Error::Incomplete { .. } => "INCOMPLETE",
            Error::Oversized { limit, .. } => self.bytes("limit", *limit).named("OVERSIZED"),
            Error::Remote { .. } => "REMOTE",
            Error::NoMemory { .. } | Error::TooManyModels { .. } | Error::Checkpoint { .. } | Error::Io { .. } => {
                self.describe_loading(error)
            }
            Error::Setting(_) => "SETTING",
            Error::Internal(_) => "INTERNAL",
        }
    }

    /// What stands in the way of loading a model.
    fn describe_loading(&mut self, error: &Error) -> &'static str {
        match error {
            Error::NoMemory { needed, available } => {
                self.bytes("needed", *needed).bytes("available", *available).named("NO_MEMORY")
            }
            Error::TooManyModels { limit } => self.tell("limit", &limit.to_string()).named("TOO_MANY_MODELS"),
            Error::Checkpoint { file, key, expected, found } => self
                .tell("file", &file.display().to_string())
                .tell("key", key)
                .tell("expected", expected)
                .tell("found", found)
                .named("CHECKPOINT"),
            Error::Io { path, source } => {
                self.tell("file", &path.display().to_string()).tell("found", &source.to_string()).named("FILE")
            }
            _ => "INTERNAL",
        }
    }

    fn tell(&mut self, key: &str, value: &str) -> &mut Self {
        self.values.insert(key.to_owned(), clip(value, VALUE_BYTES));
        self
    }

    fn bytes(&mut self, key: &str, count: usize) -> &mut Self {
        self.tell(key, &count.to_string())
    }

    fn because(&mut self, why: Option<&str>) {
        if let Some(why) = why {
            self.tell("why", why);
        }
    }

    fn field(&mut self, field: &str, error: &Error) -> &mut Self {
        self.details.add_bad_request_violation(field, clip(&error.to_string(), VALUE_BYTES));
        self.tell("field", field)
    }

    /// The reason, once all is told.
    fn named(&self, reason: &'static str) -> &'static str {
        reason
    }

    fn retry(&mut self, delay: Duration) -> &mut Self {
        self.details.set_retry_info(Some(delay));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One error of each variant that a request can meet, and what DESIGN's table asks for.
    fn table() -> Vec<(Error, tonic::Code, &'static str)> {
        let retry = Duration::from_millis(1500);
        vec![
            (Error::UnknownModel { name: "x".into(), known: vec!["a".into()] }, tonic::Code::NotFound, "known"),
            (Error::UnknownDocument { id: "x".into() }, tonic::Code::NotFound, "document_id"),
            (Error::UnknownMethod { path: "/x".into() }, tonic::Code::Unimplemented, "path"),
            (
                Error::UnknownSymbol { field: "prompt", found: "'é'".into(), offset: 3 },
                tonic::Code::InvalidArgument,
                "offset",
            ),
            (
                Error::BadOption { field: "sampling.top_p", found: "NaN".into(), bound: "0 to 1".into() },
                tonic::Code::InvalidArgument,
                "bound",
            ),
            (Error::Unreadable { field: Some("a".into()), why: "x".into() }, tonic::Code::InvalidArgument, "field"),
            (Error::Exclusive { first: "a", second: "b" }, tonic::Code::InvalidArgument, "field"),
            (
                Error::TooLong { field: "prompt", length: 9, limit: 8, unit: "characters", why: None },
                tonic::Code::InvalidArgument,
                "limit",
            ),
            (
                Error::WrongKind { call: "Segment", model: "m".into(), wanted: "pools", found: "vanilla".into() },
                tonic::Code::FailedPrecondition,
                "found",
            ),
            (Error::Unauthenticated { why: "no key" }, tonic::Code::Unauthenticated, ""),
            (Error::QueueFull { what: "requests", limit: 1, retry }, tonic::Code::ResourceExhausted, "limit"),
            (Error::NeverFits { field: "prompt", needed: 2, limit: 1 }, tonic::Code::InvalidArgument, "needed"),
            (Error::OutOfPages { needed: 2, limit: 1 }, tonic::Code::ResourceExhausted, "needed"),
            (Error::Deadline { stage: "in the queue" }, tonic::Code::DeadlineExceeded, "stage"),
            (Error::NoMemory { needed: 2, available: 1 }, tonic::Code::ResourceExhausted, "available"),
            (Error::TooManyModels { limit: 1 }, tonic::Code::ResourceExhausted, "limit"),
            (Error::PermissionDenied { what: "a token" }, tonic::Code::PermissionDenied, "what"),
            (Error::Cancelled, tonic::Code::Cancelled, ""),
            (Error::Incomplete { code: Code::Cancelled, why: "x".into() }, tonic::Code::Cancelled, ""),
            (Error::Oversized { what: "the message", limit: 8 }, tonic::Code::OutOfRange, "limit"),
            (Error::Draining { retry }, tonic::Code::Unavailable, ""),
            (Error::Internal("x".into()), tonic::Code::Internal, ""),
        ]
    }

    #[test]
    fn every_error_has_its_code_and_details() {
        for (error, code, key) in table() {
            let status = status(&error, "r1");
            let details = status.get_error_details();
            assert_eq!(status.code(), code, "{error}");
            assert_eq!(status.message(), error.to_string());
            assert_eq!(details.request_info().unwrap().request_id, "r1");
            let info = details.error_info().unwrap();
            assert_eq!(info.domain, DOMAIN);
            assert!(key.is_empty() || info.metadata.contains_key(key), "{error}: {info:?}");
            let invalid = code == tonic::Code::InvalidArgument;
            assert_eq!(details.bad_request().is_some(), invalid, "{error}");
            let passing = matches!(error, Error::QueueFull { .. } | Error::Draining { .. });
            assert_eq!(details.retry_info().is_some(), passing, "{error}");
        }
    }

    #[test]
    fn a_length_that_is_not_known_breaks_the_same_rule() {
        let status = status(&Error::LongerThan { field: "prompt", limit: 8, unit: "characters", why: None }, "r");
        let info = status.get_error_details().error_info().unwrap().clone();
        assert_eq!((status.code(), info.reason.as_str()), (tonic::Code::InvalidArgument, "TOO_LONG"));
        assert_eq!((info.metadata["length"].as_str(), info.metadata["limit"].as_str()), ("more than 8", "8"));
    }

    #[test]
    fn reasons_are_distinct() {
        let reason = |error: &Error| status(error, "").get_error_details().error_info().unwrap().reason.clone();
        let mut reasons: Vec<_> = table().iter().map(|(error, ..)| reason(error)).collect();
        let count = reasons.len();
        reasons.sort();
        reasons.dedup();
        assert_eq!(reasons.len(), count);
    }

    #[test]
    fn a_callers_own_text_does_not_burst_the_headers() {
        let found = "é".repeat(1 << 20);
        let status = status(&Error::BadOption { field: "f", found, bound: "b".into() }, "r");
        assert!(status.message().len() <= MESSAGE_BYTES + '…'.len_utf8());
        assert!(status.details().len() < 2048, "{}", status.details().len());
    }
}
