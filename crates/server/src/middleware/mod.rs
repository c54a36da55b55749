//! The middleware around all services. [`stack`] fixes the order and gives the reason for each position. Each gRPC call passes it
//! once. [`Calls::begin`](super::calls::Calls::begin) applies the parts of it that do not concern bytes to calls of other protocols.

pub(crate) mod auth;
pub(crate) mod compression;
pub(crate) mod deadlines;
pub(crate) mod limits;
pub(crate) mod observe;
#[cfg(test)]
mod testing;

use crate::{
    config::TransportConfig,
    middleware::{
        limits::{BodyMemory, CallTable},
        observe::RefusalLog,
    },
    registry::Engines,
    tokenization::TokenizationWorkers,
    traces::Traces,
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code,
    body::Body,
    codegen::{
        StdError,
        http::{Request, Response, StatusCode},
    },
    service::Routes,
};
use tower::{
    Layer, Service, ServiceExt,
    util::{BoxCloneSyncService, MapErr},
};

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

/// Puts the middleware around the services, innermost first, and returns the whole stack.
pub(crate) fn stack(routes: Routes, parts: &Parts<'_>) -> Next {
    let &Parts { config, memory, engines, calls, workers, traces, draining, refusals } = parts;
    // Innermost, because only the services look at how a response may be compressed.
    let service = Around(compression::mirror).layer(routes);
    // Inside all other middleware, which should see a panic in a service as an ordinary failure.
    let service = Around(observe::catch).layer(service);
    // Inside the limits on bodies, which pass on whole messages; outside the services, which swallow the errors.
    let service = Around(observe::report).layer(service);
    // Inside everything that counts or logs failures, because it adds code and details to those of tonic.
    let service = Around(observe::add_details).layer(service);
    // Outside the services, because it may stop waiting for their response.
    let service = Around(deadlines::enforce).layer(service);
    // Inside authentication, which sets the tenant whose limit applies; outside the services, which read the body.
    let limit = limits::limit(Arc::clone(memory), config, workers.clone(), draining.clone());
    let service = Around(limit).layer(service);
    // Inside authentication, which sets the tenant whose limit applies; outside the services, which encode the response.
    let engines_here = engines.clone();
    let stall = move || engines_here.stall();
    let service = Around(deadlines::limit(Arc::clone(memory), stall.clone())).layer(service);
    let service = Around(deadlines::unread_streams_limit(stall)).layer(service);
    // Inside authentication, which sets the tenant; outside everything that uses memory or time.
    let service = Around(limits::call_limits_limit(Arc::clone(calls), config)).layer(service);
    // Inside the log span, in which it records the principal; outside everything that uses memory or time.
    let service = Around(auth::authenticate(config.access.credentials.clone())).layer(service);
    // Outside everything that can fail, so that every failure is logged within the call's span.
    let service = Around(observe::open_log_span(refusals.clone())).layer(service);
    // Outside everything that may answer UNAVAILABLE.
    let service = Around(http_status(config.late_headers)).layer(service);
    // Outside everything that answers, so that every call is counted with the status that the client sees.
    let service = Around(observe::count(Arc::clone(engines.metrics()), traces.cloned())).layer(service);
    // Outermost, so that every response carries the request's id.
    Next::new(Around(observe::assign).layer(service))
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

// A middleware as a function of the request and the rest of the stack.

/// The rest of the stack, as one middleware sees it.
pub(crate) type Next = BoxCloneSyncService<HttpRequest, Response<Body>, StdError>;

type HttpRequest = Request<Body>;

type Answered = Result<Response<Body>, StdError>;

/// The response future of a middleware.
type MiddlewareFuture = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// A function of the request and the rest of the stack.
trait Middleware: Fn(HttpRequest, Next) -> MiddlewareFuture + Clone + Send + Sync + 'static {}

impl<F: Fn(HttpRequest, Next) -> MiddlewareFuture + Clone + Send + Sync + 'static> Middleware for F {}

/// A [`Layer`] made from a [`Middleware`].
#[derive(Debug, Clone, Copy)]
struct Around<F>(F);

/// The service that [`Around`] makes from the one below it.
#[derive(Clone)]
struct Surrounded<F> {
    around: F,
    next: Next,
}

impl<S, F: Clone> Layer<S> for Around<F>
where
    S: Service<HttpRequest, Response = Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<StdError>,
    S::Future: Send + 'static,
{
    type Service = Surrounded<F>;

    fn layer(&self, inner: S) -> Surrounded<F> {
        let next = BoxCloneSyncService::new(MapErr::new(inner, Into::into));
        Surrounded { around: self.0.clone(), next }
    }
}

impl<F: Fn(HttpRequest, Next) -> MiddlewareFuture> Service<HttpRequest> for Surrounded<F> {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = MiddlewareFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        // Each call waits for its own clone of the service below.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> MiddlewareFuture {
        (self.around)(request, self.next.clone())
    }
}
