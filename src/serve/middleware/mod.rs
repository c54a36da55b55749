//! The middleware around all services. [`stack`] fixes the order and gives the reason for each position.

pub(super) mod auth;
pub(super) mod body_limits;
pub(super) mod compression;
mod count;
mod deadline;
pub(super) mod layer;
pub(super) mod panics;
mod request_id;
#[cfg(test)]
mod testing;
pub(super) mod tonic_errors;

use super::traces::Traces;
use crate::{config::TransportConfig, metrics::Metrics};
use layer::{Around, HttpRequest, Middleware, Next};
use std::sync::Arc;
use tokio::sync::watch;
use tonic::{Code, codegen::http::StatusCode, service::Routes};
use tower::{Layer, ServiceExt};

/// Puts the middleware around the services, innermost first.
pub(super) fn stack(
    routes: Routes,
    config: &TransportConfig,
    metrics: &Arc<Metrics>,
    traces: Option<Traces>,
    ending: watch::Receiver<bool>,
) -> Next {
    // Innermost: only the services look at how a response may be compressed.
    let calls = Around(compression::mirror).layer(routes);
    // Around the services: only their code can panic, and the middleware above should see an ordinary failure.
    let calls = Around(panics::catch).layer(calls);
    // Directly above tonic: it adds code and details to failures of tonic's before anything counts or logs them.
    let calls = Around(tonic_errors::add_details).layer(calls);
    // Above the services, because it may stop waiting for their response.
    let calls = Around(deadline::enforce).layer(calls);
    // Below the middleware that may refuse a call; above the services, which read the body.
    let calls = Around(body_limits::limit(config, ending)).layer(calls);
    // Within the log span, where it records the principal; above everything that costs anything.
    let calls = Around(auth::authenticate(config.access.keys.clone())).layer(calls);
    // Above everything that can fail, so that every failure is logged within the call's span.
    let calls = Around(request_id::open_log_span).layer(calls);
    // Above everything that may answer UNAVAILABLE.
    let calls = Around(http_status(config.late_headers)).layer(calls);
    // Above everything that answers, so that every call is counted with the status that the client sees.
    let calls = Around(count::count(Arc::clone(metrics), traces)).layer(calls);
    // Outermost: every response carries the request's id.
    Next::new(Around(request_id::assign).layer(calls))
}

/// Answers UNAVAILABLE with HTTP 503, too, if `enabled`: proxies read no other status.
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
