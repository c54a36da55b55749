//! The client's context, read from a request over HTTP and returned in its response.

use crate::serve::{
    call::{REQUEST_ID, request_id},
    in_process::ClientContext,
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, request::Parts},
    response::Response,
};
use std::convert::Infallible;

impl<S: Sync> FromRequestParts<S> for ClientContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let id = request_id(&parts.headers);
        Ok(Self::new(id, &parts.headers, parts.extensions.get().cloned(), None))
    }
}

impl ClientContext {
    /// Adds the request's id to a response.
    pub(super) fn with_request_id(&self, mut response: Response) -> Response {
        if let Ok(value) = HeaderValue::from_str(&self.request_id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        response
    }
}
