//! Who calls over HTTP, and how their calls go on.

use super::super::{
    connections::Peer,
    layers::{REQUEST_ID, request_id},
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, request::Parts},
    response::Response,
};
use std::{convert::Infallible, sync::Arc};
use tonic::metadata::MetadataMap;

/// Headers that a call inherits: the key, and what ties it to its trace.
const INHERITED: [&str; 3] = ["authorization", "traceparent", "tracestate"];

/// Whoever sent a request.
pub(super) struct Caller {
    id: Arc<str>,
    headers: HeaderMap,
    peer: Option<Peer>,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let mut headers = HeaderMap::new();
        for name in INHERITED {
            for value in parts.headers.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        let id = request_id(&parts.headers);
        if let Ok(value) = HeaderValue::from_str(&id) {
            headers.insert(REQUEST_ID, value);
        }
        Ok(Self { id, headers, peer: parts.extensions.get().cloned() })
    }
}

impl Caller {
    /// The request's name.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// A call on their behalf.
    pub(super) fn call<T>(&self, message: T) -> tonic::Request<T> {
        let mut call = tonic::Request::new(message);
        *call.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        if let Some(peer) = &self.peer {
            call.extensions_mut().insert(peer.clone());
        }
        call
    }

    /// An answer with the request's name.
    pub(super) fn named(&self, mut response: Response) -> Response {
        if let Ok(value) = HeaderValue::from_str(&self.id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        response
    }
}
