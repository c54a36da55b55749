//! The middleware around all services. [`stack`] fixes the order and gives the reason for each position. Each gRPC call passes it
//! once. [`Calls::begin`](super::calls::Calls::begin) applies the parts of it that do not concern bytes to calls of other protocols.

pub(super) mod auth;
pub(super) mod body_limits;
pub(crate) mod call_limits;
pub(super) mod compression;
pub(super) mod count;
pub(super) mod deadline;
mod decompression;
pub(super) mod guarded_body;
mod keyless_calls;
pub(super) mod layer;
pub(super) mod panics;
mod reflection_errors;
pub(super) mod refusal_log;
pub(super) mod request_id;
mod shared_limit;
#[cfg(test)]
mod testing;
pub(super) mod tonic_errors;
mod unread_responses;
mod unread_streams;
pub(super) mod whole_messages;

use super::{registry::engines::Engines, tokenization::TokenizationWorkers, traces::Traces};
use crate::config::TransportConfig;
use body_limits::BodyMemory;
use call_limits::CallTable;
use layer::{Around, HttpRequest, Middleware, Next};
use refusal_log::RefusalLog;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, codegen::http::StatusCode, service::Routes};
use tower::{Layer, ServiceExt};

/// The parts of the server that the middleware uses.
pub(super) struct Parts<'a> {
    pub(super) config: &'a TransportConfig,
    /// The memory of requests and of responses that are not read.
    pub(super) memory: &'a Arc<BodyMemory>,
    pub(super) engines: &'a Engines,
    /// The calls in progress.
    pub(super) calls: &'a Arc<CallTable>,
    /// Decompress requests.
    pub(super) workers: &'a TokenizationWorkers,
    pub(super) traces: Option<&'a Traces>,
    /// Cancelled when the drain begins.
    pub(super) draining: &'a CancellationToken,
    /// The log of refused calls.
    pub(super) refusals: &'a RefusalLog,
}

/// Puts the middleware around the services, innermost first, and returns the whole stack.
pub(super) fn stack(routes: Routes, parts: &Parts<'_>) -> Next {
    let &Parts { config, memory, engines, calls, workers, traces, draining, refusals } = parts;
    // Innermost, because only the services look at how a response may be compressed.
    let service = Around(compression::mirror).layer(routes);
    // Inside all other middleware, which should see a panic in a service as an ordinary failure.
    let service = Around(panics::catch).layer(service);
    // Inside the limits on bodies, which pass on whole messages; outside the services, which swallow the errors.
    let service = Around(reflection_errors::report).layer(service);
    // Inside everything that counts or logs failures, because it adds code and details to those of tonic.
    let service = Around(tonic_errors::add_details).layer(service);
    // Outside the services, because it may stop waiting for their response.
    let service = Around(deadline::enforce).layer(service);
    // Inside authentication, which sets the tenant whose limit applies; outside the services, which read the body.
    let limit = body_limits::limit(Arc::clone(memory), config, workers.clone(), draining.clone());
    let service = Around(limit).layer(service);
    // Inside authentication, which sets the tenant whose limit applies; outside the services, which encode the response.
    let engines_here = engines.clone();
    let stall = move || engines_here.stall();
    let service = Around(unread_responses::limit(Arc::clone(memory), stall.clone())).layer(service);
    let service = Around(unread_streams::limit(stall)).layer(service);
    // Inside authentication, which sets the tenant; outside everything that uses memory or time.
    let service = Around(call_limits::limit(Arc::clone(calls), config)).layer(service);
    // Inside the log span, in which it records the principal; outside everything that uses memory or time.
    let service = Around(auth::authenticate(config.access.credentials.clone())).layer(service);
    // Outside everything that can fail, so that every failure is logged within the call's span.
    let service = Around(request_id::open_log_span(refusals.clone())).layer(service);
    // Outside everything that may answer UNAVAILABLE.
    let service = Around(http_status(config.late_headers)).layer(service);
    // Outside everything that answers, so that every call is counted with the status that the client sees.
    let service = Around(count::count(Arc::clone(engines.metrics()), traces.cloned())).layer(service);
    // Outermost, so that every response carries the request's id.
    Next::new(Around(request_id::assign).layer(service))
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
