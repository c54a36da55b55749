//! The HTTP API: OpenAI's completions and models, summaries, editing over WebSockets, the Open Inference Protocol, and a playground.
//!
//! A request becomes calls of the handlers in [`grpc`](super::grpc), made by [`calls`](super::calls), so keys, limits, deadlines,
//! metrics and traces apply as to any call. This folder has the connections, the bodies, and the translation between both forms:
//! [`completion_request`](super::completion_request) (also used by `oip`), `response`, `sse` (streams) and `error`.
//!
//! hyper itself answers a request whose head it cannot parse: 400, 414 or 431 without a body.

mod chat;
mod completions;
mod count;
pub(super) mod editing;
mod error;
pub(super) mod inference;
mod models;
mod playground;
mod response;
mod sse;
mod state;
pub(super) mod summaries;
mod summary_completions;
mod summary_requests;
mod text_offsets;

use crate::{
    config::{LiveCredentials, TransportConfig},
    error::{clip, quoted},
    serve::{
        call::{REQUEST_ID, request_id},
        calls::ClientContext,
        middleware::{
            auth::principal,
            guarded_body::GuardedBody,
            refusal_log::{Refusal, RefusalLog},
            request_id::PATH_BYTES,
        },
        transport::{
            browser_checks::BrowserChecks,
            connections::Connection,
            cors::Cors,
            head_limit::{HeadArrived, HeadLimit},
            lifetime::{HyperConnection, OpenConnection},
            lingering_close::{LingeringClose, UnreadBody},
            serving::serve_connections,
            upgrades::{ReceivedBytes, UpgradableConnection, UpgradeContext},
        },
    },
};
use axum::{
    Extension, Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, Uri, header::ALLOW},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use error::ApiError;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
pub(super) use state::{ApiState, unix_seconds};
use std::{convert::Infallible, sync::Arc};
use tokio_io_timeout::TimeoutWriter;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tower::{ServiceExt, service_fn};

/// The path of health checks.
const HEALTH: &str = "/health";
const LIVE: &str = "/v2/health/live";
const READY: &str = "/v2/health/ready";
/// Paths that are answered also while all connections have requests in progress.
const HEALTH_PATHS: [&str; 3] = [HEALTH, LIVE, READY];
/// The methods of a path that is only read.
const READS: &str = "GET, HEAD, OPTIONS";
/// Minimum size in bytes of hyper's read buffer.
const MIN_READ_BUFFER: usize = 8 << 10;

/// Serves these connections until `closing` is cancelled, and then until the last one has its response.
pub(super) async fn serve(
    incoming: impl Stream<Item = Connection> + Unpin,
    api: ApiState,
    config: &TransportConfig,
    refusals: RefusalLog,
    closing: CancellationToken,
) {
    let engines = api.monitor.engines().clone();
    let pages = PageAccess { checks: BrowserChecks::of_port(&config.access), cors: Cors::new(&config.access.cors) };
    let refused = RefusedRequests { log: refusals, credentials: config.access.credentials.clone() };
    let router = router(api).layer(from_fn_with_state(refused, identify));
    // Outside the identification, which reads the key from `authorization`.
    let router = router.layer(from_fn(editing::read_key));
    let router = router.layer(from_fn_with_state(pages, check_page));
    let router = router.layer(from_fn(check_place));
    // Outside everything that may refuse a request.
    let router = router.layer(from_fn_with_state(Arc::clone(engines.metrics()), count::count));
    let start = |Connection { stream, peer, open }: Connection| -> HyperConnection {
        let unread = UnreadBody::default();
        let watched = unread.clone();
        let received = ReceivedBytes::default();
        let counted = received.clone();
        let router = router.clone();
        let connection = open.clone();
        let arrived = HeadArrived::default();
        let head = arrived.clone();
        let limited = open.clone();
        // Not layers of the router, which would be built anew for each connection.
        let calls = service_fn(move |request: hyper::Request<Incoming>| {
            arrived.record();
            let mut request = watched.watch(request.map(Body::new));
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(UpgradeContext { open: open.clone(), received: counted.clone() });
            track_call(open.clone(), request, router.clone())
        });
        // HTTP/1.1 can only end a response early by closing the connection. A client that reads nothing for as long as the engines
        // allow would otherwise keep its connection for ever.
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(engines.stall()));
        let stream = ReceivedBytes::wrap(LingeringClose::wrap(Box::pin(stream), unread), received);
        let stream = HeadLimit::wrap(stream, config.handshake, limited, head);
        let mut server = http1::Builder::new();
        // hyper needs a request's whole head in its read buffer.
        server.max_buf_size((config.header_bytes as usize).max(MIN_READ_BUFFER));
        // `HeadLimit` replaces hyper's limit, which also counts the time between two requests.
        server.header_read_timeout(None);
        let server = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(calls));
        Box::pin(UpgradableConnection::new(server.with_upgrades(), connection))
    };
    serve_connections(incoming, config, closing, start).await;
}

/// Decides which web pages may send requests and read responses.
#[derive(Clone)]
struct PageAccess {
    checks: BrowserChecks,
    cors: Cors,
}

/// Refuses requests of foreign pages, answers preflights, and lets the pages of listed origins read responses.
async fn check_page(State(pages): State<PageAccess>, request: Request, next: Next) -> Response {
    let request = match pages.checks.check(request) {
        Ok(request) => request,
        Err(refusal) => return refusal.into_response(),
    };
    match pages.cors.preflight(request.headers(), request.method()) {
        Some(answer) => answer,
        None => {
            let readable = pages.cors.allows(request.headers());
            pages.cors.mark(next.run(request).await, readable)
        }
    }
}

/// Identifies clients, and logs refused requests.
#[derive(Clone)]
struct RefusedRequests {
    log: RefusalLog,
    credentials: LiveCredentials,
}

/// Stores the [`ClientContext`] in a request. Logs the request if it is refused, in a span like that of a gRPC call.
async fn identify(State(refused): State<RefusedRequests>, mut request: Request, next: Next) -> Response {
    let uri = request.uri().clone();
    let principal = principal(refused.credentials.current().keys.as_ref(), &request);
    let client = ClientContext::new(request_id(request.headers()), request.headers(), principal);
    request.extensions_mut().insert(client.clone());
    let mut response = next.run(request).await;
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        let path = clip(uri.path(), PATH_BYTES);
        let id = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
        let principal = client.principal().ok().map(tracing::field::display);
        tracing::info_span!("call", path, id, principal).in_scope(|| refused.log.record(&refusal));
    }
    response
}

impl ClientContext {
    /// Adds the request's id to a response.
    fn with_request_id(&self, mut response: Response) -> Response {
        if let Ok(value) = HeaderValue::from_str(&self.request_id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        response
    }
}

/// Refuses a request on a connection that is only for health checks, unless it is one.
async fn check_place(Extension(context): Extension<UpgradeContext>, request: Request, next: Next) -> Response {
    if context.open.is_health_only() && !HEALTH_PATHS.contains(&request.uri().path()) {
        let message = "all connections have requests in progress; this one is for health checks only";
        return ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "connections", message).into_response();
    }
    next.run(request).await
}

/// Counts a request as a call of its connection.
async fn track_call(open: OpenConnection, request: Request, router: Router) -> Result<Response, Infallible> {
    let path = request.uri().path();
    let needs_no_key = HEALTH_PATHS.contains(&path) || path == "/";
    let call = if needs_no_key { open.begin_keyless_call() } else { open.begin_call() };
    let response = router.oneshot(request).await?;
    let response = sse::end_with_connection(response, open.ending().clone());
    Ok(response.map(|body| Body::new(GuardedBody::new(body, call))))
}

fn router(state: ApiState) -> Router {
    Router::new()
        .route("/v1/completions", with_options(post(completions::complete), "OPTIONS, POST"))
        .route("/v1/chat/completions", with_options(post(chat::refuse), "OPTIONS, POST"))
        .route("/v1/summaries", with_options(post(summaries::summarize), "OPTIONS, POST"))
        .route(editing::PATH, with_options(get(editing::edit), "GET, OPTIONS"))
        .route("/v1/models", with_options(get(models::list), READS))
        .route("/v1/models/{name}", with_options(get(models::get), READS))
        .route("/v2", with_options(get(inference::server), READS))
        .route(LIVE, with_options(get(inference::live), READS))
        .route(READY, with_options(get(inference::ready), READS))
        .route("/v2/models/{name}", with_options(get(inference::model), READS))
        .route("/v2/models/{name}/ready", with_options(get(inference::model_ready), READS))
        .route("/v2/models/{name}/infer", with_options(post(inference::infer), "OPTIONS, POST"))
        .route("/v2/models/{name}/versions/{version}", with_options(get(inference::model), READS))
        .route("/v2/models/{name}/versions/{version}/ready", with_options(get(inference::model_ready), READS))
        .route("/v2/models/{name}/versions/{version}/infer", with_options(post(inference::infer), "OPTIONS, POST"))
        .route(HEALTH, with_options(get(health), READS))
        .route("/", with_options(get(playground::page), READS))
        .fallback(|uri: Uri| async move {
            let paths = "completions, models and summaries are under /v1, the Open Inference Protocol under /v2";
            let message = format!("{}: this path does not exist; {paths}", quoted(uri.path()));
            ApiError::new(StatusCode::NOT_FOUND, "unknown_path", message)
        })
        .with_state(state)
}

/// Adds the method `OPTIONS`, which needs no key and lists the methods of the path. The error of any other method lists them, too.
fn with_options(methods: MethodRouter<ApiState>, allowed: &'static str) -> MethodRouter<ApiState> {
    let methods = methods.options(move || std::future::ready((StatusCode::NO_CONTENT, [(ALLOW, allowed)])));
    methods.fallback(move |method: Method| {
        let message = format!("method: expected one of {allowed}, found {}", quoted(method.as_str()));
        let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "unknown_method", message);
        std::future::ready(([(ALLOW, allowed)], error))
    })
}

async fn health(State(state): State<ApiState>) -> Response {
    match state.monitor.ready() {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}
