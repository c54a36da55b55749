//! Converts errors of calls within the process to the field names of this protocol.

use super::tensors::TEXT_INPUT;
use crate::{error::is_field_name, serve::completion_request::api_field_name};
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

/// The method that requests are converted to.
const GENERATE: &str = "Generate";
/// The method that the client has called.
const CLIENT_CALL: &str = "ModelInfer";

/// Returns the status with the client's names for the field and the method.
pub(super) fn for_client(status: &Status) -> Status {
    let mut details = status.get_error_details();
    let violation = details.bad_request().and_then(|bad| bad.field_violations.first()).cloned();
    let Some(violation) = violation else { return with_client_names(status) };
    let name = if violation.field == "prompt" { TEXT_INPUT } else { api_field_name(&violation.field) };
    let rename = |text: &str| {
        text.strip_prefix(&violation.field).map_or_else(|| text.to_owned(), |rest| format!("{name}{rest}"))
    };
    let mut renamed = ErrorDetails::with_bad_request_violation(name, rename(&violation.description));
    if let Some(mut info) = details.error_info().cloned() {
        if let Some(field) = info.metadata.get_mut("field") {
            name.clone_into(field);
        }
        renamed.set_error_info(info.reason, info.domain, info.metadata);
    }
    if let Some(request) = details.request_info().cloned() {
        renamed.set_request_info(request.request_id, request.serving_data);
    }
    details = renamed;
    Status::with_error_details_and_metadata(status.code(), rename(status.message()), details, status.metadata().clone())
}

/// Replaces the method or the unsupported field in the status for a model of the wrong kind with the client's name for it.
fn with_client_names(status: &Status) -> Status {
    let mut details = status.get_error_details();
    let Some(mut info) = details.error_info().cloned() else { return status.clone() };
    let (name, message) = match info.metadata.get("call") {
        Some(call) if call == GENERATE => {
            let message = status.message().replace(&format!("(for {GENERATE})"), &format!("(for {CLIENT_CALL})"));
            (CLIENT_CALL, message)
        }
        Some(field) if is_field_name(field) => {
            let name = api_field_name(field);
            let rest = status.message().strip_prefix(field.as_str());
            (name, rest.map_or_else(|| status.message().to_owned(), |rest| format!("{name}{rest}")))
        }
        _ => return status.clone(),
    };
    let name = name.to_owned();
    info.metadata.insert("call".into(), name);
    details.set_error_info(info.reason, info.domain, info.metadata);
    Status::with_error_details_and_metadata(status.code(), message, details, status.metadata().clone())
}

#[cfg(test)]
mod tests {
    use super::{super::super::status::status, *};
    use crate::error::Error;

    #[test]
    fn errors_have_the_clients_names() {
        let error = Error::BadOption { field: "stopping.max_chars", found: "0".into(), bound: "1 to 9".into() };
        let renamed = for_client(&status(&error, "r"));
        assert_eq!(renamed.message(), "max_tokens: expected 1 to 9, found 0");
        let details = renamed.get_error_details();
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "max_tokens");
        assert_eq!(details.error_info().unwrap().metadata["bound"], "1 to 9");
        assert_eq!(details.request_info().unwrap().request_id, "r");
        let found = "one that does not".into();
        let error = Error::WrongKind { call: "Generate", model: "m".into(), wanted: "continues text", found };
        let wrong_kind = for_client(&status(&error, "r"));
        let expected = "model: expected one that continues text (for ModelInfer), found \"m\", one that does not";
        assert_eq!(wrong_kind.message(), expected);
        assert_eq!(wrong_kind.get_error_details().error_info().unwrap().metadata["call"], "ModelInfer");
        let found = "which does not".into();
        let error = Error::WrongKind { call: "stopping.max_segments", model: "m".into(), wanted: "pools", found };
        let unsupported = for_client(&status(&error, "r"));
        assert_eq!(unsupported.message(), "max_segments: expected a model that pools, found \"m\", which does not");
        assert_eq!(unsupported.get_error_details().error_info().unwrap().metadata["call"], "max_segments");
        let error = Error::TooLong { field: "prompt", length: 9, limit: 8, unit: "characters", why: None };
        assert!(for_client(&status(&error, "r")).message().starts_with("text_input: expected at most 8 characters"));
    }
}
