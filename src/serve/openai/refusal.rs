//! What is answered to a request that cannot be served: HTTP's status, and OpenAI's form of an error.

use super::request::named;
use crate::{error::Error, serve::status::status};
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Calls that requests are made into, and the paths that take those.
const CALLS: [(&str, &str); 2] = [("Generate", "/v1/completions"), ("Summarize", "/v1/summaries")];

/// A request that is not served.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
    field: Option<String>,
    /// The rule that was broken, if it is known.
    rule: Option<String>,
    /// Seconds after which to try again.
    retry: Option<u64>,
}

impl Refusal {
    /// Of what only HTTP has: a rule of its own.
    pub(super) fn plain(status: StatusCode, rule: &str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), field: None, rule: Some(rule.into()), retry: None }
    }

    /// To be tried again after so many seconds.
    pub(super) fn after(self, seconds: u64) -> Self {
        Self { retry: Some(seconds), ..self }
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> u16 {
        self.status.as_u16()
    }

    #[cfg(test)]
    pub(super) fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// OpenAI's form.
    pub(super) fn body(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.field, "code": self.rule } })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        status(&error, "").into()
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let violation = details.bad_request().and_then(|bad| bad.field_violations.first());
        let (mut message, mut field) = (status.message().to_owned(), None);
        if let Some(violation) = violation {
            let name = named(&violation.field);
            // messages begin with the field's name
            if let Some(rest) = message.strip_prefix(&violation.field) {
                message = format!("{name}{rest}");
            }
            field = Some(name.to_owned());
        }
        if let Some(info) = details.error_info() {
            let told = |key: &str| info.metadata.get(key).map(String::as_str);
            match (info.reason.as_str(), told("call")) {
                ("UNKNOWN_MODEL", _) => field = Some("model".to_owned()),
                ("UNKNOWN_DOCUMENT", _) => field = Some("document_id".to_owned()),
                ("WRONG_KIND_OF_MODEL", Some(call)) => {
                    let path = CALLS.iter().find(|(ours, _)| *ours == call).map(|(_, path)| *path);
                    let name = path.unwrap_or(named(call));
                    if let Some(rest) = message.strip_prefix(call) {
                        message = format!("{name}{rest}");
                    }
                    // an option that the model does not have, or the model that cannot answer the call
                    field = Some(if path.is_some() { "model" } else { name }.to_owned());
                }
                _ => {}
            }
        }
        let rule = details.error_info().map(|info| info.reason.to_ascii_lowercase());
        let wait = details.retry_info().and_then(|retry| retry.retry_delay);
        // in whole seconds, and never too early
        let retry = wait.map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
        Self { status: http(status.code()), message, field, rule, retry }
    }
}

/// HTTP's status for gRPC's, as gRPC gateways map it.
fn http(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition => StatusCode::BAD_REQUEST,
        Code::OutOfRange => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let mut tell = |name, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        };
        if let Some(seconds) = self.retry {
            tell(header::RETRY_AFTER, &seconds.to_string());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            tell(header::WWW_AUTHENTICATE, "Bearer");
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn refused(error: &Error) -> Refusal {
        status(error, "r").into()
    }

    #[test]
    fn fields_have_this_apis_names() {
        let error = Error::BadOption { field: "stopping.max_chars", found: "0".into(), bound: "1 to 9".into() };
        let refusal = refused(&error);
        assert_eq!((refusal.status(), refusal.field()), (400, Some("max_tokens")));
        assert_eq!(refusal.message, "max_tokens: 0 is out of bounds: 1 to 9");
        assert_eq!(refusal.body()["error"]["code"], "bad_option");
        let error = Error::UnknownSymbol { field: "stopping.stop[1]", found: "'é'".into(), offset: 0 };
        assert_eq!(refused(&error).field(), Some("stop"));
    }

    #[test]
    fn whoever_may_come_again_is_told_when() {
        let error = Error::QueueFull { what: "requests", limit: 1, retry: Duration::from_millis(1200) };
        let response = refused(&error).into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::RETRY_AFTER]),
            (429, &"2".parse().unwrap())
        );
        let response = refused(&Error::Draining { retry: Duration::from_secs(1) }).into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::RETRY_AFTER]),
            (503, &"1".parse().unwrap())
        );
    }

    #[test]
    fn the_model_is_a_field_as_well() {
        let of = |call| Error::WrongKind { call, model: "m".into(), wanted: "w", found: "f".into() };
        for (error, field, told) in [
            (Error::UnknownModel { name: "x".into(), known: vec![] }, "model", "unknown model"),
            (of("Generate"), "model", "/v1/completions needs a model that w"),
            (of("stopping.max_segments"), "max_segments", "max_segments needs a model that w"),
        ] {
            let refusal = refused(&error);
            assert_eq!(refusal.field(), Some(field), "{error}");
            assert!(refusal.message.starts_with(told), "{}", refusal.message);
        }
    }

    #[test]
    fn every_kind_has_its_status() {
        let statuses = [
            (Error::UnknownModel { name: "x".into(), known: vec![] }, 404, "not_found_error"),
            (Error::Unauthenticated { why: "no" }, 401, "authentication_error"),
            (Error::Deadline { stage: "in the queue" }, 504, "server_error"),
            (Error::Internal("x".into()), 500, "server_error"),
        ];
        for (error, status, kind) in statuses {
            let refusal = refused(&error);
            assert_eq!((refusal.status(), &refusal.body()["error"]["type"]), (status, &kind.into()), "{error}");
        }
    }
}
