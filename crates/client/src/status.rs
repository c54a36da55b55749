//! What the status of a call says: the name of its code, the rule that was broken, the wrong field, and the error with its names.

use tonic_types::ErrorDetails;
use weir_kernels::error::Error;

/// The reason of an error about the value of an option.
pub const BAD_OPTION: &str = "BAD_OPTION";

/// The reason of an error about two options.
pub const EXCLUSIVE_OPTIONS: &str = "EXCLUSIVE_OPTIONS";

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

/// The reason of an error about a text that a model can only compress after normalising it.
pub const NEEDS_NORMALISER: &str = "NEEDS_NORMALISER";

/// The reason of an error about the name of a model.
pub const UNKNOWN_MODEL: &str = "UNKNOWN_MODEL";

/// The reason of an error about the field `document_id`.
pub const UNKNOWN_DOCUMENT: &str = "UNKNOWN_DOCUMENT";

/// The names in errors for which programs have names of their own: methods, and fields of requests, dotted as on the wire.
const NAMES: &str = "Generate Summarize model name path text ids prompt prompt_ids resume_text resume_ids boundary_mode \
    boundary_threshold priority speculate block_chars normalise threshold chunk chunk.text chunk.ids complete.until windows.length windows.stride details.top_logprobs \
    sampling.temperature sampling.top_k sampling.top_p sampling.min_p sampling.repetition_penalty \
    sampling.presence_penalty sampling.frequency_penalty sampling.seed sampling.logit_bias stopping.max_chars \
    stopping.min_chars stopping.max_segments stopping.stop options.beam_size options.hypotheses options.length_penalty \
    options.min_tokens options.max_tokens options.no_repeat_ngram options.early_stopping options.repetition_penalty \
    options.hard_topk options.cut options.long_documents options.document_id options.mode options.sentences \
    options.sampling constraint.regex constraint.choice constraint.json_schema constraint.json_object constraint.grammar \
    options.constraint.regex options.constraint.choice options.constraint.json_schema options.constraint.json_object \
    options.constraint.grammar";

/// Returns a method or a field of `NAMES`. An element of a list has the name of the list.
pub fn api_name(name: &str) -> Option<&'static str> {
    let list = name.split_once('[').map_or(name, |(list, _)| list);
    NAMES.split(' ').find(|known| *known == list)
}

/// Returns the rule that a status says was broken, and the request's field that is wrong. Both are empty if unknown.
pub fn rule_and_field(details: &ErrorDetails) -> (&str, Option<&str>) {
    let violation = details.bad_request().and_then(|bad| bad.field_violations.first());
    let field = violation.map(|violation| violation.field.as_str());
    let Some(info) = details.error_info() else { return ("", field) };
    // Their errors have no violation of a field.
    let field = match info.reason.as_str() {
        UNKNOWN_DOCUMENT => Some("document_id"),
        UNKNOWN_MODEL | WRONG_KIND_OF_MODEL => info.metadata.get("field").map(String::as_str),
        _ => field,
    };
    (&info.reason, field)
}

/// Returns the error of a refused call, so that a program can print its own names. `None` if it has none of [`NAMES`].
pub(crate) fn refusal(details: &ErrorDetails, message: &str) -> Option<Error> {
    let (reason, field) = rule_and_field(details);
    two_names(reason, details).or_else(|| answer(field?, message))
}

/// Returns the error of an answer about `field`, with which it begins. `None` if it is none of [`NAMES`].
pub(crate) fn answer(field: &str, message: &str) -> Option<Error> {
    Some(Error::Answer { field: api_name(field)?, why: message.strip_prefix(field)?.to_owned() })
}

/// Returns the error of a refused call if its message may have two names.
fn two_names(reason: &str, details: &ErrorDetails) -> Option<Error> {
    let info = details.error_info()?;
    let text = |key: &str| info.metadata.get(key).cloned();
    let name = |key: &str| api_name(info.metadata.get(key)?);
    let count = |key: &str| info.metadata.get(key)?.parse().ok();
    match reason {
        BAD_OPTION => Some(Error::AboveOption {
            field: name("field")?,
            found: count("value")?,
            limit: count("limit")?,
            other: name("other")?,
        }),
        EXCLUSIVE_OPTIONS => Some(Error::Exclusive { first: name("field")?, second: name("other")? }),
        WRONG_KIND_OF_MODEL => Some(Error::WrongKind {
            field: name("field")?,
            model: text("model")?,
            wanted: text("wanted")?,
            found: text("found")?,
            instead: name("instead"),
        }),
        NEEDS_NORMALISER => Some(Error::NeedsNormaliser {
            found: text("symbol")?,
            offset: count("offset")?,
            normaliser: text("normaliser")?,
            option: name("other")?,
        }),
        _ => None,
    }
}
