//! Gives each call its id and its log span, and the response the header that carries the id. The log never contains text of a
//! request. tower-http's request-id layer does not suffice: it takes a client's id without validating it.

use super::{
    layer::{HttpRequest, Middleware, MiddlewareFuture, Next},
    refusal_log::RefusalLog,
};
use crate::{
    engine::clock,
    error::clip,
    serve::call::{Call, REQUEST_ID, request_id},
};
use std::sync::Arc;
use tonic::{Code, Status, codegen::http::HeaderValue};
use tower::ServiceExt;
use tracing::{Instrument, Span};

/// Maximum bytes of a path that are logged.
pub(in crate::serve) const PATH_BYTES: usize = 128;

/// Stores a new [`Call`] in the request, and adds the id to the response.
///
/// Reads the clock here and not in the future that it returns: tonic starts its own timer for `grpc-timeout` when this
/// function has returned, and ours must not be later than that.
pub(super) fn assign(mut request: HttpRequest, next: Next) -> MiddlewareFuture {
    let arrived = clock::now();
    let id = request_id(request.headers());
    request.extensions_mut().insert(Call::new(Arc::clone(&id), arrived));
    Box::pin(async move {
        let mut response = next.oneshot(request).await?;
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        Ok(response)
    })
}

/// Runs the call in its log span. Calls that are refused before their response begins go to `refusals`.
pub(super) fn open_log_span(refusals: RefusalLog) -> impl Middleware {
    move |request: HttpRequest, next: Next| {
        let span = log_span(request.uri().path(), &Call::of_http(&request).id);
        let started = clock::now();
        let refusals = refusals.clone();
        let response = async move {
            let response = next.oneshot(request).await?;
            let status = Status::from_header_map(response.headers());
            let code = status.as_ref().map_or(Code::Ok, Status::code);
            tracing::debug!(?code, elapsed = ?clock::since(started), "response begins");
            if let Some(status) = status {
                refusals.record_status(&status);
            }
            Ok(response)
        };
        Box::pin(response.instrument(span))
    }
}

/// Creates the log span of a call. Authentication records its principal.
pub(in crate::serve) fn log_span(path: &str, id: &str) -> Span {
    tracing::info_span!("call", path = clip(path, PATH_BYTES), id, principal = tracing::field::Empty)
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{respond, seconds_left},
        *,
    };

    #[tokio::test]
    async fn responses_carry_the_request_id() {
        let response = respond(assign, seconds_left, &[(REQUEST_ID, "mine")]).await;
        assert_eq!(response.headers()[REQUEST_ID], "mine");
        let response = respond(assign, seconds_left, &[(REQUEST_ID, "not mine")]).await;
        assert_eq!(response.headers()[REQUEST_ID].len(), 16);
    }
}
