//! What the status of a call says: the name of its code, the rule that was broken, and the wrong field.

use tonic_types::ErrorDetails;
use weir_kernels::error::is_field_name;

/// Names of gRPC's status codes, by number.
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The reason of an error about a model of another kind.
pub const WRONG_KIND_OF_MODEL: &str = "WRONG_KIND_OF_MODEL";

/// The reason of an error about the field `model`.
pub const UNKNOWN_MODEL: &str = "UNKNOWN_MODEL";

/// The reason of an error about the field `document_id`.
pub const UNKNOWN_DOCUMENT: &str = "UNKNOWN_DOCUMENT";

/// Returns the rule that a status says was broken, and the request's field that is wrong. Both are empty if unknown.
pub fn rule_and_field(details: &ErrorDetails) -> (&str, Option<&str>) {
    let violation = details.bad_request().and_then(|bad| bad.field_violations.first());
    let field = violation.map(|violation| violation.field.as_str());
    let Some(info) = details.error_info() else { return ("", field) };
    // Their errors have no violation of a field.
    let field = match info.reason.as_str() {
        UNKNOWN_MODEL => Some("model"),
        UNKNOWN_DOCUMENT => Some("document_id"),
        // `call` is a method that the model does not support, or an option.
        WRONG_KIND_OF_MODEL => {
            info.metadata.get("call").map(String::as_str).filter(|call| is_field_name(call)).or(Some("model"))
        }
        _ => field,
    };
    (&info.reason, field)
}
