//! Counts every request when the head of its response is known, by path, method and status code.

use crate::metrics::Metrics;
use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use std::sync::Arc;

/// The methods that are counted by name. All others count as `other`; otherwise clients could create any number of series.
const METHODS: [Method; 4] = [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST];
/// The label of paths and methods that the API does not have.
const OTHER: &str = "other";
/// nginx's status code for a request whose connection closed before the response.
const CLIENT_CLOSED_REQUEST: u16 = 499;
/// The status code of a request whose handler panics. Its connection ends without a response.
const PANIC: u16 = 500;

/// Counts a request. The router sets [`MatchedPath`] before it calls its layers.
pub(super) async fn count(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let method = METHODS.iter().find(|known| *known == request.method()).map_or(OTHER, Method::as_str).to_owned();
    let mut open = OpenRequest {
        metrics,
        handler: request.extensions().get::<MatchedPath>().cloned(),
        method,
        status: CLIENT_CLOSED_REQUEST,
    };
    let response = next.run(request).await;
    open.status = response.status().as_u16();
    response
}

/// A request that has no response yet. It is counted when this is dropped.
struct OpenRequest {
    metrics: Arc<Metrics>,
    handler: Option<MatchedPath>,
    method: String,
    status: u16,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let handler = self.handler.as_ref().map_or(OTHER, MatchedPath::as_str);
        let status = if std::thread::panicking() { PANIC } else { self.status };
        self.metrics.count_http_request(handler, &self.method, status);
    }
}
