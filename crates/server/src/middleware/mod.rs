//! The middleware around all services. [`stack`] lists the layers in the order in which a call meets them, with the reason for each
//! position. A gRPC call passes the stack once; [`Calls::begin`](super::calls::Calls::begin) applies what does not concern bytes to
//! calls of other protocols.

pub(crate) mod auth;
pub(crate) mod compression;
pub(crate) mod deadlines;
pub(crate) mod layer;
pub(crate) mod limits;
pub(crate) mod observe;
#[cfg(test)]
mod testing;

use crate::{
    config::TransportConfig,
    middleware::{
        layer::{Around, HttpRequest, Middleware, MiddlewareFuture, Next},
        limits::{BodyMemory, CallTable},
        observe::RefusalLog,
    },
    registry::Engines,
    tokenization::TokenizationWorkers,
    traces::Traces,
};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, codegen::http::StatusCode, service::Routes};
use tower::{ServiceBuilder, ServiceExt};

/// The parts of the server that the middleware uses.
pub(crate) struct Parts<'a> {
    pub(crate) config: &'a TransportConfig,
    /// The memory of requests and of responses that are not read.
    pub(crate) memory: &'a Arc<BodyMemory>,
    pub(crate) engines: &'a Engines,
    /// The calls in progress.
    pub(crate) calls: &'a Arc<CallTable>,
    /// Decompress requests.
    pub(crate) workers: &'a TokenizationWorkers,
    pub(crate) traces: Option<&'a Traces>,
    /// Cancelled when the drain begins.
    pub(crate) draining: &'a CancellationToken,
    /// The log of refused calls.
    pub(crate) refusals: &'a RefusalLog,
}

/// Puts the middleware around the services. A call meets the layers from the first to the last.
pub(crate) fn stack(routes: Routes, parts: &Parts<'_>) -> Next {
    let &Parts { config, memory, engines, calls, workers, traces, draining, refusals } = parts;
    let engines_here = engines.clone();
    let stall = move || engines_here.stall();
    let services = ServiceBuilder::new()
        // First, so that every response carries the request's id.
        .layer(Around(observe::assign))
        // Outside everything that answers, so that every call is counted with the status that the client sees.
        .layer(Around(observe::count(Arc::clone(engines.metrics()), traces.cloned())))
        // Outside everything that may answer UNAVAILABLE.
        .layer(Around(http_status(config.late_headers)))
        // Outside everything that can fail, so that every failure is logged within the call's span.
        .layer(Around(observe::open_log_span(refusals.clone())))
        // Inside the log span, in which it records the principal; outside everything that uses memory or time.
        .layer(Around(auth::authenticate(config.access.credentials.clone())))
        // From here on inside authentication, which sets the tenant. First the limit that costs neither memory nor time.
        .layer(Around(limits::limit_calls(Arc::clone(calls), config)))
        // Outside the services, which encode the responses.
        .layer(Around(deadlines::limit_unread_streams(stall.clone())))
        .layer(Around(deadlines::limit_unread_responses(Arc::clone(memory), stall)))
        // Outside the services, which read the bodies.
        .layer(Around(limits::limit_bodies(Arc::clone(memory), config, workers.clone(), draining.clone())))
        // Outside the services, because it may stop waiting for their response.
        .layer(Around(deadlines::enforce))
        // Inside everything that counts or logs failures, because it adds code and details to those of tonic.
        .layer(Around(observe::add_details))
        // Inside the limits on bodies, which pass on whole messages; outside the services, which swallow the errors.
        .layer(Around(observe::report))
        // Inside all other middleware, which should see a panic in a service as an ordinary failure.
        .layer(Around(observe::catch))
        // Last, because only the services look at how a response may be compressed.
        .layer(Around(compression::mirror))
        .service(routes);
    Next::new(services)
}

/// If `enabled`, gives an UNAVAILABLE answer the HTTP status 503, because proxies read no gRPC status.
fn http_status(enabled: bool) -> impl Middleware {
    move |request: HttpRequest, next: Next| {
        Box::pin(async move {
            let mut response = next.oneshot(request).await?;
            let code = response.headers().get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()));
            if enabled && code == Some(Code::Unavailable) {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            Ok(response)
        })
    }
}

impl<F: Fn(HttpRequest, Next) -> MiddlewareFuture + Clone + Send + Sync + 'static> Middleware for F {}
