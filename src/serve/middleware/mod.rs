//! The middleware that every call passes, whatever its service. [`stack`] fixes the order and gives the reason for each place.

pub(super) mod auth;
pub(super) mod body_limits;
pub(super) mod compression;
mod count;
mod deadline;
mod log_span;
pub(super) mod panics;
mod request_id;
#[cfg(test)]
mod testing;
pub(super) mod tonic_errors;

use super::{call::Call, status, traces::Traces};
use crate::{config::Wire, metrics::Metrics};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::watch;
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

/// The rest of the stack, as one middleware sees it.
pub(super) type Next = BoxCloneSyncService<Request<Body>, Response<Body>, StdError>;
type Answered = Result<Response<Body>, StdError>;
/// The response future of a middleware.
pub(super) type ResponseFuture = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// A [`Layer`] made from a function of the request and the rest of the stack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around<F>(pub(super) F);

/// The service that [`Around`] makes from the one below it.
#[derive(Clone)]
pub(super) struct Surrounded<F> {
    around: F,
    next: Next,
}

impl<S, F: Clone> Layer<S> for Around<F>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<StdError>,
    S::Future: Send + 'static,
{
    type Service = Surrounded<F>;

    fn layer(&self, inner: S) -> Surrounded<F> {
        let next = BoxCloneSyncService::new(MapErr::new(inner, Into::into));
        Surrounded { around: self.0.clone(), next }
    }
}

impl<F: Fn(Request<Body>, Next) -> ResponseFuture> Service<Request<Body>> for Surrounded<F> {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        // Each call waits for its own clone of the service below.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        (self.around)(request, self.next.clone())
    }
}

/// Puts the middleware around the services, innermost first.
pub(super) fn stack(
    routes: Routes,
    wire: &Wire,
    metrics: &Arc<Metrics>,
    traces: Option<Traces>,
    ending: watch::Receiver<bool>,
) -> Next {
    // Innermost: only the services look at how a response may be compressed.
    let calls = Around(compression::mirror).layer(routes);
    // Around the services: only their code can panic, and the middleware above should see an ordinary failure.
    let calls = Around(panics::catch).layer(calls);
    // Directly above tonic, whose message it replaces before anything counts or logs the failure.
    let calls = Around(tonic_errors::reword).layer(calls);
    // Above the services, because it may stop waiting for their response.
    let calls = Around(deadline::enforce).layer(calls);
    // Below the middleware that may refuse a call; above the services, which read the body.
    let calls = Around(body_limits::limit(wire, ending)).layer(calls);
    // Within the log span, where it records the principal; above everything that costs anything.
    let calls = Around(auth::authenticate(wire.access.keys.clone())).layer(calls);
    // Above everything that can fail, so that every failure is logged within the call's span.
    let calls = Around(log_span::open).layer(calls);
    // Above everything that may answer UNAVAILABLE.
    let calls = Around(http_status(wire.late_headers)).layer(calls);
    // Above everything that answers, so that every call is counted with the status that the client sees.
    let calls = Around(count::count(Arc::clone(metrics), traces)).layer(calls);
    // Outermost: every response carries the request's id.
    Next::new(Around(request_id::assign).layer(calls))
}

/// Answers UNAVAILABLE with HTTP 503, too, if `enabled`: proxies read no other status.
fn http_status(enabled: bool) -> impl Fn(Request<Body>, Next) -> ResponseFuture + Clone + Send + Sync + 'static {
    move |request, next| {
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
