//! Errors of the HTTP API: an HTTP status, and a body in OpenAI's form.

use crate::{
    completion_request::NAMES,
    middleware::observe::Refusal,
    status::{rule_and_field, status},
};
use axum::{
    Json,
    extract::rejection::PathRejection,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use weir_kernels::error::Error;

/// The error response to a request.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    /// The message, after the field if `named`.
    text: String,
    /// The request's field, by its name in this API.
    param: Option<String>,
    /// True if the message begins with the field.
    named: bool,
    /// The name of the violated rule, if known.
    code: Option<String>,
    /// Seconds after which the client should retry.
    retry_after: Option<u64>,
    /// The code under which the log counts this refusal. `None` if it has no line.
    log_code: Option<Code>,
}

impl ApiError {
    /// Creates an error of a rule that only HTTP has.
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let log_code = log_code(status);
        let code = Some(code.into());
        Self { status, text: message.into(), param: None, named: false, code, retry_after: None, log_code }
    }

    /// Names the field of the request that is wrong.
    pub(crate) fn with_param(self, param: &str) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// Sets the code under which the log counts this refusal.
    pub(crate) fn logged_as(self, code: Code) -> Self {
        Self { log_code: Some(code), ..self }
    }

    /// Replaces the field's name by that in a table of (found, wanted) names.
    pub(crate) fn renamed(self, names: &[(&str, &str)]) -> Self {
        let wanted = names.iter().find(|(found, _)| self.param.as_deref() == Some(*found));
        let param = wanted.map(|(_, wanted)| (*wanted).to_owned()).or(self.param);
        Self { param, ..self }
    }

    fn message(&self) -> String {
        let field = self.param.as_deref().filter(|_| self.named).unwrap_or_default();
        format!("{field}{}", self.text)
    }

    /// Returns the response in the form of the Open Inference Protocol, whose errors are a text.
    pub(crate) fn into_text_response(self) -> Response {
        let body = json!({ "error": self.message() });
        self.with_headers((self.status, Json(body)).into_response())
    }

    /// Returns the body in OpenAI's form.
    pub(crate) fn body(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        json!({ "error": { "message": self.message(), "type": kind, "param": self.param, "code": self.code } })
    }
}

/// A path whose percent-escapes are not valid UTF-8.
impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_path", format!("malformed path: {}", rejection.body_text()))
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        status(&error, "").into()
    }
}

impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let (rule, field) = rule_and_field(&details);
        let text = field.and_then(|field| status.message().strip_prefix(field));
        let named = text.is_some();
        let text = NAMES.text(text.unwrap_or(status.message()));
        let param = field.map(|field| NAMES.field(field).to_owned());
        let code = Some(rule).filter(|rule| !rule.is_empty()).map(str::to_ascii_lowercase);
        let wait = details.retry_info().and_then(|retry| retry.retry_delay);
        // Whole seconds, rounded up.
        let retry_after = wait.map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
        let log_code = Some(status.code());
        Self { status: http_status(status.code()), text, param, named, code, retry_after, log_code }
    }
}

/// Maps a gRPC code to an HTTP status, as gRPC gateways do.
fn http_status(code: Code) -> StatusCode {
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

/// Maps the HTTP status of a rule that only HTTP has to the gRPC code of similar refusals.
fn log_code(status: StatusCode) -> Option<Code> {
    match status.as_u16() {
        400 | 415 => Some(Code::InvalidArgument),
        // anyone may ask for unknown paths and methods, without a key: their lines would displace others
        _ => None,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.with_headers((self.status, Json(self.body())).into_response())
    }
}

impl ApiError {
    /// Adds the headers that clients expect with the error's status, and the [`Refusal`] for the log.
    fn with_headers(&self, mut response: Response) -> Response {
        if let Some(code) = self.log_code {
            let rule = self.code.as_deref().unwrap_or_default().to_ascii_uppercase();
            let refusal = Refusal::of_json(code, rule, self.param.as_deref(), &self.message());
            response.extensions_mut().insert(refusal);
        }
        let mut set = |name, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        };
        if let Some(seconds) = self.retry_after {
            set(header::RETRY_AFTER, &seconds.to_string());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            set(header::WWW_AUTHENTICATE, "Bearer");
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn api_error(error: &Error) -> ApiError {
        status(error, "r").into()
    }

    #[test]
    fn fields_have_the_names_of_this_api() {
        let error = Error::BadOption { field: "stopping.max_chars", found: "0".into(), bound: "1 to 9".into() };
        let answer = api_error(&error);
        assert_eq!((answer.status, answer.param.as_deref()), (StatusCode::BAD_REQUEST, Some("max_tokens")));
        assert_eq!(answer.message(), "max_tokens: expected 1 to 9, found 0");
        assert_eq!(answer.body()["error"]["code"], "bad_option");
        let (field, unit) = ("stopping.stop[1]", "character");
        let error = Error::UnknownSymbol { field, found: "'é'".into(), offset: 0, unit };
        assert_eq!(api_error(&error).param.as_deref(), Some("stop"));
    }

    #[test]
    fn refusals_are_logged_with_the_names_of_this_api() {
        let logged = |error: ApiError| {
            let refusal = error.into_response().extensions().get::<Refusal>().cloned();
            refusal.map(|Refusal { code, rule, field, .. }| (code, rule, field))
        };
        let invalid = |rule: &str, field: &str| Some((Code::InvalidArgument, rule.to_owned(), Some(field.to_owned())));
        assert_eq!(logged(Error::bad_option("best_of", "3", "1").into()), invalid("BAD_OPTION", "best_of"));
        let of_a_call = api_error(&Error::bad_option("sampling.top_p", "3", "0 to 1"));
        assert_eq!(logged(of_a_call), invalid("BAD_OPTION", "top_p"));
        let chat = ApiError::new(StatusCode::BAD_REQUEST, "no_chat_template", "no").with_param("messages");
        assert_eq!(logged(chat), invalid("NO_CHAT_TEMPLATE", "messages"));
        let late = ApiError::new(StatusCode::REQUEST_TIMEOUT, "incomplete", "late");
        assert_eq!(logged(late), None);
    }

    #[test]
    fn retry_after_is_set_in_whole_seconds() {
        let full = Error::QueueFull { what: "requests", limit: 1, retry: Duration::from_millis(1200) };
        let draining = Error::Draining { retry: Duration::from_secs(1) };
        for (error, status, seconds) in [(full, 429, "2"), (draining, 503, "1")] {
            let response = api_error(&error).into_response();
            assert_eq!(
                (response.status().as_u16(), &response.headers()[header::RETRY_AFTER]),
                (status, &seconds.parse().unwrap())
            );
        }
    }

    #[test]
    fn a_wrong_model_is_reported_as_its_field() {
        let wrong_kind = |call| Error::WrongKind { call, model: "m".into(), wanted: "w", found: "f".into() };
        for (error, param, start) in [
            (Error::UnknownModel { name: "x".into(), known: vec![] }, "model", "model: expected one of "),
            (wrong_kind("Generate"), "model", "model: expected one that w (for /v1/completions), found "),
            (wrong_kind("stopping.max_segments"), "max_segments", "max_segments: expected a model that w, found "),
        ] {
            let answer = api_error(&error);
            assert_eq!(answer.param.as_deref(), Some(param), "{error}");
            assert!(answer.message().starts_with(start), "{}", answer.message());
        }
    }

    #[test]
    fn every_error_has_its_status_and_type() {
        let statuses = [
            (Error::UnknownModel { name: "x".into(), known: vec![] }, 404, "not_found_error"),
            (Error::Unauthenticated { why: "no" }, 401, "authentication_error"),
            (Error::Deadline { stage: "in the queue" }, 504, "server_error"),
            (Error::Internal("x".into()), 500, "server_error"),
        ];
        for (error, status, kind) in statuses {
            let answer = api_error(&error);
            assert_eq!((answer.status.as_u16(), &answer.body()["error"]["type"]), (status, &kind.into()), "{error}");
        }
    }
}
