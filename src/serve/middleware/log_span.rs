//! The log span of a call. No part of a request's text is ever logged.

use super::layer::{MiddlewareFuture, Next};
use crate::{error::clip, serve::call::Call};
use std::time::Instant;
use tonic::{Code, Status, body::Body, codegen::http::Request};
use tower::ServiceExt;
use tracing::Instrument;

/// Maximum bytes of a path that are logged.
const PATH_BYTES: usize = 128;

/// Runs the call in a span with its path, id and principal.
pub(super) fn open(request: Request<Body>, next: Next) -> MiddlewareFuture {
    let call = Call::of_http(&request);
    let path = clip(request.uri().path(), PATH_BYTES);
    let span = tracing::info_span!("call", path, id = &*call.id, principal = tracing::field::Empty);
    let started = Instant::now();
    let response = async move {
        let response = next.oneshot(request).await?;
        let code = Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code());
        tracing::debug!(?code, elapsed = ?started.elapsed(), "response begins");
        Ok(response)
    };
    Box::pin(response.instrument(span))
}
