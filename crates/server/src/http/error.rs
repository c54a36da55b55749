//! Errors of the HTTP API: an HTTP status, and a body in OpenAI's form. Also the form of JSON in responses.

use crate::{
    completion_request::Names,
    middleware::observe::Refusal,
    status::{code, details, message, rule_and_field},
};
use axum::{
    extract::rejection::PathRejection,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};
use tonic::Code;
use weir_kernels::error::{self, Error};

/// The error response to a request.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// The request's field, by its name in this API.
    param: Option<String>,
    /// The name of the violated rule.
    code: String,
    /// Seconds after which the client should retry.
    retry_after: Option<u64>,
    /// The code under which the log counts this refusal. `None` if it has no line.
    log_code: Option<Code>,
}

impl ApiError {
    /// Creates an error of a rule that only HTTP has.
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let log_code = log_code(status);
        Self { status, message: message.into(), param: None, code: code.into(), retry_after: None, log_code }
    }

    /// Creates the response to an error, with the names of its request.
    pub(crate) fn named(error: Error, names: &Names) -> Self {
        let error = names.name(error);
        let details = details(&error);
        let (rule, field) = rule_and_field(&details);
        let wait = details.retry_info().and_then(|retry| retry.retry_delay);
        Self {
            status: http_status(error.code()),
            message: message(&error),
            param: field.map(str::to_owned),
            code: rule.to_ascii_lowercase(),
            // Whole seconds, rounded up.
            retry_after: wait.map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0)),
            log_code: Some(code(&error)),
        }
    }

    /// Names the field of the request that is wrong.
    pub(crate) fn with_param(self, param: &str) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// Sets the code under which the log counts this refusal.
    pub(crate) fn logged_as(self, code: Code) -> Self {
        Self { log_code: Some(code), ..self }
    }

    /// Returns the response in the form of the Open Inference Protocol, whose errors are a text.
    pub(crate) fn into_text_response(self) -> Response {
        let body = json!({ "error": self.message });
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
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
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
        Self::named(error, &Names::default())
    }
}

/// Maps the code of an error to an HTTP status, as gRPC gateways do.
fn http_status(code: error::Code) -> StatusCode {
    use error::Code;
    match code {
        Code::InvalidArgument | Code::FailedPrecondition => StatusCode::BAD_REQUEST,
        Code::OutOfRange => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled | Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
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
            let rule = self.code.to_ascii_uppercase();
            let refusal = Refusal::of_json(code, rule, self.param.as_deref(), &self.message);
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

/// The body of a response in JSON.
pub(crate) struct Json<T = Value>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], json_text(&self.0)).into_response()
    }
}

/// Returns a value as JSON, which has no line break. Some clients of server-sent events, such as Python's `splitlines`, also break
/// lines at these characters.
pub(crate) fn json_text(value: &impl Serialize) -> String {
    // Never fails: all keys are strings.
    let json = serde_json::to_string(value).unwrap_or_default();
    if json.is_ascii() {
        return json;
    }
    let escaped = |json: String, character: char| match json.contains(character) {
        true => json.replace(character, &format!("\\u{:04x}", u32::from(character))),
        false => json,
    };
    ['\u{85}', '\u{2028}', '\u{2029}'].into_iter().fold(json, escaped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion_request::Surface;
    use std::time::Duration;

    #[test]
    fn refusals_are_logged_with_the_names_of_this_api() {
        let logged = |error: ApiError| {
            let refusal = error.into_response().extensions().get::<Refusal>().cloned();
            refusal.map(|Refusal { code, rule, field, .. }| (code, rule, field))
        };
        let invalid = |rule: &str, field: &str| Some((Code::InvalidArgument, rule.to_owned(), Some(field.to_owned())));
        assert_eq!(logged(Error::bad_option("best_of", "3", "1").into()), invalid("BAD_OPTION", "best_of"));
        let of_a_call = Error::bad_option("sampling.top_p", "3", "0 to 1");
        assert_eq!(logged(ApiError::named(of_a_call, &Surface::Completions.into())), invalid("BAD_OPTION", "top_p"));
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
            let response = ApiError::from(error).into_response();
            assert_eq!(
                (response.status().as_u16(), &response.headers()[header::RETRY_AFTER]),
                (status, &seconds.parse().unwrap())
            );
        }
    }

    #[test]
    fn errors_of_the_server_have_their_status_and_type() {
        let statuses = [
            (Error::Deadline { stage: "in the queue" }, 504, "server_error"),
            (Error::Internal("x".into()), 500, "server_error"),
        ];
        for (error, status, kind) in statuses {
            let answer = ApiError::from(error);
            assert_eq!((answer.status.as_u16(), &answer.body()["error"]["type"]), (status, &kind.into()), "{answer:?}");
        }
    }
}
