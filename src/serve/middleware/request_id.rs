//! Gives each call its id, and the response the header that carries it.

use super::layer::{MiddlewareFuture, Next};
use crate::serve::call::{Call, REQUEST_ID, request_id};
use std::{sync::Arc, time::Instant};
use tonic::{
    body::Body,
    codegen::http::{HeaderValue, Request},
};
use tower::ServiceExt;

/// Stores a new [`Call`] in the request, and adds the id to the response.
///
/// Reads the clock here and not in the future that it returns: tonic starts its own timer for `grpc-timeout` when this
/// function has returned, and ours must not be later than that.
pub(super) fn assign(mut request: Request<Body>, next: Next) -> MiddlewareFuture {
    let arrived = Instant::now();
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
