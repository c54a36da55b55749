//! The admin port: metrics, health and version over plain HTTP, for operators. It is read-only.

use crate::{
    config::checks::AllowedNames,
    middleware::limits::GuardedBody,
    registry::Monitor,
    transport::{
        connections::{AcceptFailures, ConnectionLimits, ConnectionTable, OpenConnection},
        http1::{BrowserChecks, remove_empty_segments},
    },
};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{Next, from_fn, map_request},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tower::ServiceExt;
use weir_kernels::error::Result;

/// Maximum connections, in all and of one network. A further one closes the oldest that has not sent a request.
const CONNECTIONS: ConnectionLimits = ConnectionLimits { total: 256, per_network: 64 };

/// Maximum time for a request's headers to arrive.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum lifetime of a connection, which carries one request and its response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The path of the metrics.
pub(crate) const METRICS: &str = "/metrics";

const LIVE: &str = "/health/live";

const READY: &str = "/health/ready";

const VERSION: &str = "/version";

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves the admin port on this listener; never returns. Requests may carry the names in `allowed`.
pub async fn serve_admin_port(listener: TcpListener, monitor: Monitor, allowed: Arc<AllowedNames>) {
    let checks = BrowserChecks::of_open_port(allowed);
    let router = Router::new()
        .route(METRICS, get(metrics))
        .route(LIVE, get(|State(monitor): State<Monitor>| async move { health(monitor.alive()) }))
        .route(READY, get(|State(monitor): State<Monitor>| async move { health(monitor.ready()) }))
        .route(VERSION, get(version))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .with_state(monitor)
        .layer(map_request(move |request| std::future::ready(checks.check(request))));
    let table = ConnectionTable::new(CONNECTIONS);
    let mut failures = AcceptFailures::default();
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                failures.wait(&error).await;
                continue;
            }
        };
        let Some(open) = OpenConnection::open(table.begin_handshake(address.ip())) else { continue };
        tokio::spawn(serve_connection(stream, open, router.clone()));
    }
}

/// Serves the one request of a connection.
async fn serve_connection(stream: TcpStream, open: OpenConnection, router: Router) {
    let tracked = open.clone();
    let track_call = from_fn(move |request: Request, next: Next| {
        let call = tracked.begin_call();
        async move { next.run(request).await.map(|body| Body::new(GuardedBody::new(body, call))) }
    });
    // Not a layer of the router, which has chosen a path by then.
    let service = router.layer(track_call).map_request(|mut request: hyper::Request<Incoming>| {
        remove_empty_segments(request.uri_mut());
        request
    });
    let service = TowerToHyperService::new(service);
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    let served = server.serve_connection(TokioIo::new(stream), service);
    let result = tokio::select! {
        biased;
        result = timeout(CONNECTION_TIMEOUT, served) => result,
        () = open.evicted() => return tracing::debug!("a connection to the admin port made room for another"),
    };
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to the admin port broke"),
        Err(_) => tracing::debug!("a connection to the admin port timed out"),
    }
}

async fn metrics(State(monitor): State<Monitor>, headers: HeaderMap) -> Response {
    monitor.record();
    metrics_response(monitor.engines().render_metrics(), &headers)
}

/// Responds with metrics, which are rendered as OpenMetrics text, in the format that the client accepts.
pub(crate) fn metrics_response(rendered: Result<String>, headers: &HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    match rendered {
        Ok(text) if accept.contains("application/openmetrics-text") => {
            ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response()
        }
        Ok(text) => ([(header::CONTENT_TYPE, PROMETHEUS)], prometheus_text(&text)).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn health(state: Result<(), String>) -> Response {
    match state {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// Lists the paths to a client that asked for another.
async fn unknown_path() -> Response {
    (StatusCode::NOT_FOUND, paths("this path does not exist")).into_response()
}

async fn unknown_method() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, paths("this port answers GET and HEAD only")).into_response()
}

/// Returns a text with the reason of a refusal and the paths of the port.
fn paths(reason: &str) -> String {
    format!("{reason}; weir's admin port has {METRICS}, {LIVE}, {READY} and {VERSION}\n")
}

async fn version() -> Response {
    let version = serde_json::json!({ "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION") });
    ([(header::CONTENT_TYPE, "application/json")], format!("{version}\n")).into_response()
}

/// Converts OpenMetrics to Prometheus' older text format, for clients that do not accept OpenMetrics. There the description of a
/// counter names it with `_total` and an info's with `_info`, and the text has no end mark.
fn prometheus_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let help = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '));
        match (help, lines.peek().and_then(|next| next.strip_prefix("# TYPE "))) {
            (Some((name, help)), Some(kind)) => {
                let (ending, kind) = match kind.rsplit(' ').next() {
                    Some("counter") => ("_total", "counter"),
                    Some("info") => ("_info", "gauge"),
                    kind => ("", kind.unwrap_or("untyped")),
                };
                out.push_str(&format!("# HELP {name}{ending} {help}\n# TYPE {name}{ending} {kind}\n"));
                lines.next();
            }
            _ if line == "# EOF" => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_text_names_counters_in_full() {
        let open = "# HELP a A.\n# TYPE a counter\na_total{m=\"x\"} 1\n# HELP b B.\n# TYPE b gauge\nb 2\n\
                    # HELP c C.\n# TYPE c info\nc_info{v=\"1\"} 1\n# EOF\n";
        let old = "# HELP a_total A.\n# TYPE a_total counter\na_total{m=\"x\"} 1\n# HELP b B.\n# TYPE b gauge\nb 2\n\
                   # HELP c_info C.\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n";
        assert_eq!(prometheus_text(open), old);
    }
}
