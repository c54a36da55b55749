//! Failures of calls made within, by the names that this protocol has for their fields.

use super::tensors::TEXT_INPUT;
use crate::serve::openai::request::api_field_name;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

/// The call that a request is made into.
const GENERATE: &str = "Generate";
/// The one that the caller has made.
const CALL: &str = "ModelInfer";

/// The same failure, about the field as the caller knows it.
pub(super) fn renamed(status: &Status) -> Status {
    let mut details = status.get_error_details();
    let violation = details.bad_request().and_then(|bad| bad.field_violations.first()).cloned();
    let Some(violation) = violation else { return recalled(status) };
    let name = if violation.field == "prompt" { TEXT_INPUT } else { api_field_name(&violation.field) };
    let said = |text: &str| {
        text.strip_prefix(&violation.field).map_or_else(|| text.to_owned(), |rest| format!("{name}{rest}"))
    };
    let mut renamed = ErrorDetails::with_bad_request_violation(name, said(&violation.description));
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
    Status::with_error_details_and_metadata(status.code(), said(status.message()), details, status.metadata().clone())
}

/// The same failure, of the call that was made: `Generate` was only made for it.
fn recalled(status: &Status) -> Status {
    let mut details = status.get_error_details();
    let own = details.error_info().is_some_and(|info| info.metadata.get("call").is_some_and(|call| call == GENERATE));
    let Some(rest) = status.message().strip_prefix(GENERATE).filter(|_| own) else { return status.clone() };
    let said = format!("{CALL}{rest}");
    if let Some(mut info) = details.error_info().cloned() {
        info.metadata.insert("call".into(), CALL.into());
        details.set_error_info(info.reason, info.domain, info.metadata);
    }
    Status::with_error_details_and_metadata(status.code(), said, details, status.metadata().clone())
}

#[cfg(test)]
mod tests {
    use super::{super::super::status::status, *};
    use crate::error::Error;

    #[test]
    fn fields_have_the_callers_names() {
        let error = Error::BadOption { field: "stopping.max_chars", found: "0".into(), bound: "1 to 9".into() };
        let renamed = renamed(&status(&error, "r"));
        assert_eq!(renamed.message(), "max_tokens: 0 is out of bounds: 1 to 9");
        let details = renamed.get_error_details();
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "max_tokens");
        assert_eq!(details.error_info().unwrap().metadata["bound"], "1 to 9");
        assert_eq!(details.request_info().unwrap().request_id, "r");
        let (wanted, found) = ("continues text", "one that does not".into());
        let error = Error::WrongKind { call: "Generate", model: "m".into(), wanted, found };
        let of_kind = super::renamed(&status(&error, "r"));
        assert!(of_kind.message().starts_with("ModelInfer needs a model that continues text"), "{of_kind}");
        assert_eq!(of_kind.get_error_details().error_info().unwrap().metadata["call"], "ModelInfer");
        let error = Error::TooLong { field: "prompt", length: 9, limit: 8, unit: "characters", why: None };
        assert!(super::renamed(&status(&error, "r")).message().starts_with("text_input: 9 characters"));
    }
}
