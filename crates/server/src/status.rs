//! Maps errors to gRPC statuses: the code, the message, and details for programs.
//!
//! Every status has the request's id (`RequestInfo`) and the rule that was broken (`ErrorInfo.reason`, one per variant of
//! [`Error`]). An error in a field names the field (`BadRequest`); a temporary one says when to retry (`RetryInfo`).

use prost::Message;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt, pb};
pub use weir_client::status::WRONG_KIND_OF_MODEL;
use weir_client::status::{BAD_OPTION, EXCLUSIVE_OPTIONS, NEEDS_NORMALISER, UNKNOWN_DOCUMENT, UNKNOWN_MODEL};
pub(crate) use weir_client::status::{CODE_NAMES, rule_and_field};
use weir_kernels::error::{Error, clip};

/// The domain of `ErrorInfo.reason`.
pub const DOMAIN: &str = "weir";

/// Maximum bytes of a message. A status travels in headers, which clients limit to a few kilobytes, and may repeat the
/// client's own text.
const MESSAGE_BYTES: usize = 1024;

/// Maximum bytes of a value in the details, for the same reason.
const VALUE_BYTES: usize = 256;

/// Returns the status of an error, for the request of that id.
pub fn status(error: &Error, request_id: &str) -> Status {
    let mut builder = DetailsBuilder::default();
    let reason = builder.describe(error);
    let DetailsBuilder { mut details, metadata, .. } = builder;
    details.set_request_info(clip(request_id, VALUE_BYTES), "");
    details.set_error_info(reason, DOMAIN, HashMap::new());
    metadata.add_to(Status::with_error_details(code(error), message(error), details))
}

/// Returns the details of an error's status, except for the request's id.
pub(crate) fn details(error: &Error) -> ErrorDetails {
    let mut builder = DetailsBuilder::default();
    let reason = builder.describe(error);
    let DetailsBuilder { mut details, metadata, .. } = builder;
    details.set_error_info(reason, DOMAIN, metadata.entries.into_iter().collect::<HashMap<_, _>>());
    details
}

/// Returns the code of an error's status.
pub(crate) fn code(error: &Error) -> tonic::Code {
    tonic::Code::from_i32(error.code() as i32)
}

/// Returns the message of an error's status.
pub(crate) fn message(error: &Error) -> String {
    clip(&error.to_string(), MESSAGE_BYTES)
}

/// The metadata of `ErrorInfo`, in the order of its names: the same error always has the same bytes.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(btree_map = "string, string", tag = "3")]
    entries: BTreeMap<String, String>,
}

impl Metadata {
    /// Adds the metadata to the `ErrorInfo` of a status. The field numbers are `ErrorInfo`'s.
    fn add_to(&self, status: Status) -> Status {
        let Ok(mut encoded) = pb::Status::decode(status.details()) else { return status };
        let infos = encoded.details.iter_mut().filter(|detail| detail.type_url.ends_with("/google.rpc.ErrorInfo"));
        infos.for_each(|info| info.value.extend(self.encode_to_vec()));
        let details = encoded.encode_to_vec().into();
        Status::with_details_and_metadata(status.code(), status.message(), details, status.metadata().clone())
    }
}

/// Collects the details of a status.
#[derive(Default)]
struct DetailsBuilder {
    /// Path of the item that the error is about, before the names of its fields.
    item: String,
    details: ErrorDetails,
    metadata: Metadata,
}

impl DetailsBuilder {
    /// Adds the details of an error. Returns the reason.
    fn describe(&mut self, error: &Error) -> &'static str {
        match error {
            Error::UnknownModel { field, name, known } => {
                self.add("field", field).add("model", name).add("known", &known.join(", ")).reason(UNKNOWN_MODEL)
            }
            Error::UnknownMethod { path } => self.add("path", path).reason("UNKNOWN_METHOD"),
            Error::UnknownDocument { id } => self.add("document_id", id).reason(UNKNOWN_DOCUMENT),
            Error::UnknownSymbol { field, found, offset, .. } => {
                self.field(field, error).add("symbol", found).number("offset", *offset).reason("UNKNOWN_SYMBOL")
            }
            Error::BadOption { field, found, bound } => {
                self.field(field, error).add("value", found).add("bound", bound).reason(BAD_OPTION)
            }
            Error::AboveOption { field, found, limit, other } => {
                let bound = format!("0 to {limit} (the value of {other})");
                self.field(field, error).number("value", *found).add("bound", &bound);
                self.number("limit", *limit).add("other", other).reason(BAD_OPTION)
            }
            Error::Unreadable { field: Some(field), .. } => self.field(field, error).reason("UNREADABLE"),
            Error::Unreadable { field: None, .. } => "UNREADABLE",
            Error::InItem { list, index, error } => {
                self.item.push_str(&format!("{list}[{index}]."));
                self.describe(error)
            }
            Error::Unverified { model, difference } => {
                self.add("model", model).add("difference", difference).reason("UNVERIFIED")
            }
            Error::Exclusive { first, second } => {
                let both = self.field(first, error).field(second, error);
                both.add("field", first).add("other", second).reason(EXCLUSIVE_OPTIONS)
            }
            Error::TooLong { field, length, limit, unit, why } => {
                self.field(field, error).add("unit", unit).number("limit", *limit).add_optional("why", *why);
                self.number("length", *length).reason("TOO_LONG")
            }
            // The same rule; the total length is unknown.
            Error::LongerThan { field, limit, unit, why } => {
                self.field(field, error).add("unit", unit).number("limit", *limit).add_optional("why", *why);
                self.add("length", &format!("more than {limit}")).reason("TOO_LONG")
            }
            Error::WrongKind { field, model, wanted, found, instead } => {
                self.add("field", field).add("model", model).add("wanted", wanted).add("found", found);
                self.add_optional("instead", *instead).reason(WRONG_KIND_OF_MODEL)
            }
            Error::Unauthenticated { .. } => "UNAUTHENTICATED",
            Error::QueueFull { what, limit, retry } => {
                self.retry(*retry).add("what", what).number("limit", *limit).reason("QUEUE_FULL")
            }
            Error::TooMany { what, limit, retry } => {
                self.retry(*retry).add("what", what).number("limit", *limit).reason("TOO_MANY")
            }
            Error::NeverFits { field, needed, limit } => {
                self.field(field, error).number("needed", *needed).number("limit", *limit).reason("NEVER_FITS")
            }
            Error::TooMuchWork { field, work, limit } => {
                self.field(field, error).number("work", *work).number("limit", *limit).reason("TOO_MUCH_WORK")
            }
            Error::OutOfPages { needed, limit } => {
                self.number("needed", *needed).number("limit", *limit).reason("OUT_OF_MEMORY")
            }
            Error::PermissionDenied { what } => self.add("what", what).reason("PERMISSION_DENIED"),
            Error::Stalled { limit } => self.add("limit", &format!("{limit:?}")).reason("STALLED"),
            Error::Deadline { stage } => self.add("stage", stage).reason("DEADLINE"),
            Error::RanTooLong { limit } => self.add("limit", &format!("{limit:?}")).reason("RAN_TOO_LONG"),
            Error::Draining { retry } => self.retry(*retry).reason("DRAINING"),
            Error::Broken => "BROKEN",
            Error::FileChanged { file, tensor, found } => {
                self.add("file", file).add("key", tensor).add("found", found).reason("FILE_CHANGED")
            }
            Error::Cancelled => "CANCELLED",
            Error::Incomplete { .. } => "INCOMPLETE",
            Error::Oversized { limit, .. } => self.number("limit", *limit).reason("OVERSIZED"),
            Error::Remote { .. } | Error::Refused { .. } | Error::Answer { .. } => "REMOTE",
            Error::NoMemory { needed, available } => {
                self.number("needed", *needed).number("available", *available).reason("NO_MEMORY")
            }
            Error::NoThread { work, .. } => self.add("work", work).reason("NO_THREAD"),
            Error::TooManyModels { limit } => self.number("limit", *limit).reason("TOO_MANY_MODELS"),
            Error::Checkpoint { file, key, expected, found } => {
                let place = self.add("file", &file.display().to_string()).add("key", key);
                place.add("expected", expected).add("found", found).reason("CHECKPOINT")
            }
            Error::Io { path, source } => {
                self.add("file", &path.display().to_string()).add("found", &source.to_string()).reason("FILE")
            }
            Error::Damaged { what, expected, found } => {
                self.add("part", what).add("expected", expected).add("found", found).reason("DAMAGED")
            }
            Error::CompressedWith { what, found, model, expected } => {
                let difference = self.add("difference", what).add("model", model);
                difference.add("expected", expected).add("found", found).reason("COMPRESSED_WITH")
            }
            Error::NeedsNormaliser { found, offset, normaliser, option } => self
                .field("text", error)
                .add("symbol", found)
                .number("offset", *offset)
                .add("normaliser", normaliser)
                .add("other", option)
                .reason(NEEDS_NORMALISER),
            Error::Setting(_) => "SETTING",
            Error::Internal(_) => "INTERNAL",
        }
    }

    fn add(&mut self, key: &str, value: &str) -> &mut Self {
        self.metadata.entries.insert(key.to_owned(), clip(value, VALUE_BYTES));
        self
    }

    fn number(&mut self, key: &str, count: usize) -> &mut Self {
        self.add(key, &count.to_string())
    }

    fn add_optional(&mut self, key: &str, value: Option<&str>) -> &mut Self {
        match value {
            Some(value) => self.add(key, value),
            None => self,
        }
    }

    fn field(&mut self, field: &str, error: &Error) -> &mut Self {
        let field = format!("{}{field}", self.item);
        self.details.add_bad_request_violation(&field, clip(&format!("{}{error}", self.item), VALUE_BYTES));
        self.add("field", &field)
    }

    /// Ends a chain of details with the reason.
    fn reason(&self, reason: &'static str) -> &'static str {
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
    use std::collections::BTreeSet;
    use tonic::Code;
    use weir_kernels::error;

    #[test]
    fn an_error_in_an_item_has_the_path_of_its_field() {
        let error = Box::new(Error::bad_option("start_byte", "9", "at most 8"));
        let status = status(&Error::InItem { list: "splice.splices", index: 2, error }, "r");
        let details = status.get_error_details();
        assert_eq!(status.code(), Code::InvalidArgument);
        let violation = &details.bad_request().unwrap().field_violations[0];
        let path = "splice.splices[2].start_byte";
        assert_eq!((violation.field.as_str(), details.error_info().unwrap().reason.as_str()), (path, "BAD_OPTION"));
        assert_eq!(violation.description, format!("{path}: expected at most 8, found 9"));
        assert_eq!(details.error_info().unwrap().metadata["field"], path);
    }

    /// One error of each variant that a request can meet, its code, and a key of its metadata.
    fn cases() -> Vec<(Error, Code, &'static str)> {
        let retry = Duration::from_millis(1500);
        vec![
            (Error::UnknownModel { field: "a", name: "x".into(), known: vec!["a".into()] }, Code::NotFound, "known"),
            (Error::UnknownDocument { id: "x".into() }, Code::NotFound, "document_id"),
            (Error::UnknownMethod { path: "/x".into() }, Code::Unimplemented, "path"),
            (
                Error::UnknownSymbol { field: "prompt", found: "'é'".into(), offset: 3, unit: "character" },
                Code::InvalidArgument,
                "offset",
            ),
            (
                Error::BadOption { field: "sampling.top_p", found: "NaN".into(), bound: "0 to 1".into() },
                Code::InvalidArgument,
                "bound",
            ),
            (Error::Unreadable { field: Some("a".into()), why: "x".into() }, Code::InvalidArgument, "field"),
            (Error::Exclusive { first: "a", second: "b" }, Code::InvalidArgument, "field"),
            (
                Error::TooLong { field: "prompt", length: 9, limit: 8, unit: "symbols", why: None },
                Code::InvalidArgument,
                "limit",
            ),
            (Error::only_continues_text("m", "vanilla"), Code::FailedPrecondition, "instead"),
            (Error::Unauthenticated { why: "no key" }, Code::Unauthenticated, ""),
            (Error::QueueFull { what: "requests", limit: 1, retry }, Code::ResourceExhausted, "limit"),
            (Error::TooMany { what: "calls", limit: 1, retry }, Code::ResourceExhausted, "limit"),
            (Error::NeverFits { field: "prompt", needed: 2, limit: 1 }, Code::InvalidArgument, "needed"),
            (Error::TooMuchWork { field: "text", work: 2, limit: 1 }, Code::InvalidArgument, "work"),
            (Error::OutOfPages { needed: 2, limit: 1 }, Code::ResourceExhausted, "needed"),
            (Error::Deadline { stage: "in the queue" }, Code::DeadlineExceeded, "stage"),
            (Error::RanTooLong { limit: retry }, Code::DeadlineExceeded, "limit"),
            (Error::NoMemory { needed: 2, available: 1 }, Code::ResourceExhausted, "available"),
            (
                Error::NoThread { work: "x", source: std::io::ErrorKind::WouldBlock.into() },
                Code::ResourceExhausted,
                "work",
            ),
            (Error::TooManyModels { limit: 1 }, Code::ResourceExhausted, "limit"),
            (Error::PermissionDenied { what: "a token" }, Code::PermissionDenied, "what"),
            (Error::Cancelled, Code::Cancelled, ""),
            (Error::Incomplete { code: error::Code::Cancelled, why: "x".into() }, Code::Cancelled, ""),
            (Error::Oversized { what: "the message", limit: 8 }, Code::OutOfRange, "limit"),
            (Error::Draining { retry }, Code::Unavailable, ""),
            (Error::Broken, Code::Unavailable, ""),
            (
                Error::FileChanged { file: "f".into(), tensor: "t".into(), found: "x".into() },
                Code::Unavailable,
                "found",
            ),
            (Error::Internal("x".into()), Code::Internal, ""),
        ]
    }

    #[test]
    fn every_error_has_its_code_and_details() {
        let mut reasons = BTreeSet::new();
        for (error, code, key) in cases() {
            let status = status(&error, "r1");
            let details = status.get_error_details();
            assert_eq!(status.code(), code, "{error}");
            assert_eq!(error.code().name(), CODE_NAMES[code as usize]);
            assert_eq!(status.message(), error.to_string());
            assert_eq!(details.request_info().unwrap().request_id, "r1");
            let info = details.error_info().unwrap();
            assert_eq!(info.domain, DOMAIN);
            assert!(reasons.insert(info.reason.clone()), "{error}: another error has this reason");
            assert!(key.is_empty() || info.metadata.contains_key(key), "{error}: {info:?}");
            let invalid = code == Code::InvalidArgument;
            assert_eq!(details.bad_request().is_some(), invalid, "{error}");
            let temporary = matches!(error, Error::QueueFull { .. } | Error::TooMany { .. } | Error::Draining { .. });
            assert_eq!(details.retry_info().is_some(), temporary, "{error}");
        }
    }

    #[test]
    fn an_unknown_length_breaks_the_same_rule() {
        let status = status(&Error::LongerThan { field: "prompt", limit: 8, unit: "symbols", why: None }, "r");
        let info = status.get_error_details().error_info().unwrap().clone();
        assert_eq!((status.code(), info.reason.as_str()), (Code::InvalidArgument, "TOO_LONG"));
        assert_eq!((info.metadata["length"].as_str(), info.metadata["limit"].as_str()), ("more than 8", "8"));
    }

    #[test]
    fn a_clients_own_text_fits_into_the_headers() {
        let found = "é".repeat(1 << 20);
        let status = status(&Error::BadOption { field: "f", found, bound: "b".into() }, "r");
        assert!(status.message().len() <= MESSAGE_BYTES + '…'.len_utf8());
        assert!(status.details().len() < 2048, "{}", status.details().len());
    }
}
