//! Calls of our own services made within the process, through all their layers, on behalf of whoever speaks another protocol:
//! keys, limits, deadlines, metrics and traces are those of every call, and there is no second way to an engine.

use crate::serve::{
    call::{Call, Peer, REQUEST_ID, request_id},
    middleware::layer::Next,
};
use axum::{extract::FromRequestParts, http::request::Parts, response::Response};
use std::{convert::Infallible, sync::Arc, time::Instant};
use tonic::{
    Status,
    body::Body,
    codegen::http::{self, HeaderMap, HeaderValue},
    metadata::MetadataMap,
};
use tower::util::{BoxCloneSyncService, MapErr};

/// The gRPC services with their layers. Their failures are statuses: a boxed error would be of no one lifetime.
pub(super) type Services = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// These services as clients within the process see them.
pub(super) fn services(layered: Next) -> Services {
    Services::new(MapErr::new(layered, Status::from_error))
}

/// Headers that a call inherits: the key, and what ties it to its trace.
const INHERITED: [&str; 3] = ["authorization", "traceparent", "tracestate"];

/// Whoever sent a request.
#[derive(Clone)]
pub(super) struct Caller {
    id: Arc<str>,
    headers: HeaderMap,
    peer: Option<Peer>,
    /// When the answer is worth nothing any more.
    deadline: Option<Instant>,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let id = request_id(&parts.headers);
        Ok(Self::new(id, &parts.headers, parts.extensions.get().cloned(), None))
    }
}

impl Caller {
    fn new(id: Arc<str>, given: &HeaderMap, peer: Option<Peer>, deadline: Option<Instant>) -> Self {
        let mut headers = HeaderMap::new();
        for name in INHERITED {
            for value in given.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        Self { id, headers, peer, deadline }
    }

    /// The one whose call of another gRPC service this is.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Self {
        let call = Call::of(request);
        let headers = request.metadata().clone().into_headers();
        Self::new(call.id, &headers, request.extensions().get().cloned(), call.deadline)
    }

    /// The request's name.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The same, of the request of that number among those that they sent together.
    pub(super) fn numbered(&self, number: u64) -> Self {
        Self { id: format!("{}/{number}", self.id).into(), ..self.clone() }
    }

    /// The same by that time, if it is sooner.
    pub(super) fn until(self, deadline: Option<Instant>) -> Self {
        let deadline = [self.deadline, deadline].into_iter().flatten().min();
        Self { deadline, ..self }
    }

    /// A call on their behalf.
    pub(super) fn call<T>(&self, message: T) -> tonic::Request<T> {
        let mut headers = self.headers.clone();
        if let Ok(value) = HeaderValue::from_str(&self.id) {
            headers.insert(REQUEST_ID, value);
        }
        let mut call = tonic::Request::new(message);
        *call.metadata_mut() = MetadataMap::from_headers(headers);
        if let Some(peer) = &self.peer {
            call.extensions_mut().insert(peer.clone());
        }
        if let Some(deadline) = self.deadline {
            call.set_timeout(deadline.saturating_duration_since(Instant::now()));
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
