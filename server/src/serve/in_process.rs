//! Calls of the gRPC services within the process, on behalf of clients of other protocols.
//!
//! Such a call passes the whole middleware stack, so keys, limits, deadlines, metrics and traces apply to it as to any other call.

use crate::{
    engine::clock,
    serve::{
        call::{Call, Peer, REQUEST_ID, RefusalLoggedByCaller, WithinProcess},
        middleware::layer::Next,
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tonic::{
    Status,
    body::Body,
    codegen::http::{self, HeaderMap, HeaderValue},
    metadata::MetadataMap,
};
use tower::util::{BoxCloneSyncService, MapErr};

/// The gRPC services behind their middleware. Errors are statuses, as clients of tonic need an error type that they can name.
pub(super) type Services = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// Makes the services callable by clients within the process.
pub(super) fn services(stack: Next) -> Services {
    Services::new(MapErr::new(stack, Status::from_error))
}

/// Headers that a call inherits: the API key, and the trace context.
const INHERITED: [&str; 3] = ["authorization", "traceparent", "tracestate"];

/// Longest time that a call is given. `grpc-timeout` has room for 11,415 years, and tonic panics beyond them.
const MAX_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The properties of a client's request that calls on its behalf inherit.
#[derive(Clone)]
pub(super) struct ClientContext {
    pub(super) request_id: Arc<str>,
    headers: HeaderMap,
    peer: Option<Peer>,
    /// When the client stops waiting.
    deadline: Option<Instant>,
    /// True if a refused call makes the server refuse the client's request. The log then has the request in place of the call.
    logs_refusals: bool,
}

impl ClientContext {
    /// Creates the context of a request with these headers.
    pub(super) fn new(request_id: Arc<str>, all: &HeaderMap, peer: Option<Peer>, deadline: Option<Instant>) -> Self {
        let mut headers = HeaderMap::new();
        for name in INHERITED {
            for value in all.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        Self { request_id, headers, peer, deadline, logs_refusals: true }
    }

    /// Returns the context of a call of another gRPC service.
    pub(super) fn from_grpc<T>(request: &tonic::Request<T>) -> Self {
        let call = Call::of(request);
        let headers = request.metadata().clone().into_headers();
        Self::new(call.id, &headers, request.extensions().get().cloned(), call.deadline)
    }

    /// Returns the context of request number `number` of a stream of requests.
    pub(super) fn numbered(&self, number: u64) -> Self {
        Self { request_id: format!("{}/{number}", self.request_id).into(), ..self.clone() }
    }

    /// Returns the context of calls whose refusals are parts of a response that begins without an error.
    pub(super) fn of_stream(self) -> Self {
        Self { logs_refusals: false, ..self }
    }

    /// Shortens the deadline to `deadline` if that is sooner.
    pub(super) fn until(self, deadline: Option<Instant>) -> Self {
        let deadline = [self.deadline, deadline].into_iter().flatten().min();
        Self { deadline, ..self }
    }

    /// Builds a call on the client's behalf.
    pub(super) fn call<T>(&self, message: T) -> tonic::Request<T> {
        let mut headers = self.headers.clone();
        if let Ok(value) = HeaderValue::from_str(&self.request_id) {
            headers.insert(REQUEST_ID, value);
        }
        let mut call = tonic::Request::new(message);
        *call.metadata_mut() = MetadataMap::from_headers(headers);
        if let Some(peer) = &self.peer {
            call.extensions_mut().insert(peer.clone());
        }
        call.extensions_mut().insert(WithinProcess);
        if self.logs_refusals {
            call.extensions_mut().insert(RefusalLoggedByCaller);
        }
        if let Some(deadline) = self.deadline {
            call.set_timeout(deadline.saturating_duration_since(clock::now()).min(MAX_TIMEOUT));
        }
        call
    }
}
