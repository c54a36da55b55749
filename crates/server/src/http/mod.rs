//! The HTTP API: OpenAI's completions and models, tokenization, summaries, compression, editing over WebSockets, the Open Inference
//! Protocol, metrics, and a playground.
//!
//! A request becomes calls of the handlers in [`grpc`](super::grpc), made by [`calls`](super::calls), so keys, limits, deadlines,
//! metrics and traces apply as to any call. This file has the connections, the paths and the bodies.
//!
//! hyper itself answers a request whose head it cannot parse: 400, 414 or 431 without a body.

mod check;
pub(crate) mod codec;
mod completions;
pub(crate) mod editing;
mod error;
pub(crate) mod open_inference;
mod playground;
mod response;
pub(crate) mod state;
pub(crate) mod summaries;
mod tokenize;

use crate::{
    call::{Call, ClientContext, EDIT, REQUEST_ID, SUMMARIZE, request_id},
    calls::Calls,
    config::{HttpMetrics, LiveCredentials, TransportConfig},
    grpc::{
        editing::EditMessage,
        request_parts::RequestParts,
        response::{TaskResponse, log_rejection},
    },
    http::{
        error::{ApiError, Json},
        state::{ApiState, PathResult, Summarized},
    },
    middleware::{
        CallResponse,
        auth::principal,
        limits::{GuardedBody, RequestMemory},
        observe::{PATH_BYTES, Refusal, RefusalLog, count_http},
    },
    transport::{
        admin_port::{METRICS, metrics_response},
        connections::{Connection, HyperConnection, LingeringClose, OpenConnection, UnreadBody, serve_connections},
        http1::{
            BrowserChecks, Cors, HeadArrived, HeadLimit, ReceivedBytes, UpgradableConnection, UpgradeContext,
            remove_empty_segments,
        },
        http2,
    },
};
use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header::ALLOW},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use prost::Message;
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc};
use tokio::sync::mpsc::Receiver;
use tokio_io_timeout::TimeoutWriter;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tower::{ServiceExt, service_fn};
use weir_engine::codec::DEFAULT_BLOCK;
use weir_kernels::error::{Result, clip, quoted};
use weir_proto::v1;

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
pub(crate) async fn serve(
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
    let router = router.layer(from_fn_with_state(Arc::clone(engines.metrics()), count_http));
    let start = |connection: Connection| -> HyperConnection {
        let is_http2 = connection.is_http2();
        let Connection { stream, peer, open } = connection;
        if is_http2 {
            let refuse = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
                let call = open.begin_keyless_call();
                async move {
                    let response = needs_http1(request).await;
                    Ok::<_, Infallible>(response.map(|body| GuardedBody::new(body, call)))
                }
            });
            return Box::pin(http2::builder(config).serve_connection(TokioIo::new(stream), refuse));
        }
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
            remove_empty_segments(request.uri_mut());
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

/// Returns the answer to a request over HTTP/2, or to a gRPC call.
async fn needs_http1(request: hyper::Request<Incoming>) -> Response {
    let message = "this port speaks HTTP/1.1; only the gRPC port (--listen) speaks HTTP/2";
    // At once: a gRPC client may wait for a response before it ends its request.
    if http2::is_grpc(&request) {
        return Status::failed_precondition(message).into_http();
    }
    let is_head = request.method() == Method::HEAD;
    http2::discard(request.into_body()).await;
    let response = ApiError::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "http_version", message).into_response();
    if is_head { response.map(|_| Body::empty()) } else { response }
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

/// Stores the [`ClientContext`] in a request. Logs the request if it is refused, in a span like a gRPC call's.
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

/// Adds the request's id to the response.
async fn add_request_id(Extension(client): Extension<ClientContext>, request: Request, next: Next) -> Response {
    client.with_request_id(next.run(request).await)
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
    let path = request.uri().path();
    if context.open.is_health_only() && !HEALTH_PATHS.contains(&path) && path != METRICS {
        let message = "all connections have requests in progress; this one is for health checks only";
        return ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "connections", message).into_response();
    }
    next.run(request).await
}

/// Counts a request as a call of its connection.
async fn track_call(open: OpenConnection, request: Request, router: Router) -> Result<Response, Infallible> {
    let path = request.uri().path();
    let needs_no_key = HEALTH_PATHS.contains(&path) || ["/", METRICS].contains(&path);
    let call = if needs_no_key { open.begin_keyless_call() } else { open.begin_call() };
    let response = router.oneshot(request).await?;
    let response = response::end_with_connection(response, open.ending().clone());
    Ok(response.map(|body| Body::new(GuardedBody::new(body, call))))
}

fn router(state: ApiState) -> Router {
    let mut router = Router::new()
        .route("/v1/completions", with_id(post(completions::complete), "OPTIONS, POST"))
        .route("/v1/completions/render", with_id(post(tokenize::render), "OPTIONS, POST"))
        .route("/tokenize", with_id(post(tokenize::tokenize), "OPTIONS, POST"))
        .route("/detokenize", with_id(post(tokenize::detokenize), "OPTIONS, POST"))
        .route("/v1/chat/completions", with_id(post(completions::refuse_chat), "OPTIONS, POST"))
        .route("/v1/check", with_id(post(check::check), "OPTIONS, POST"))
        .route("/v1/summaries", with_id(post(summaries::summarize), "OPTIONS, POST"))
        .route("/v1/compress", with_id(post(codec::compress), "OPTIONS, POST"))
        .route("/v1/decompress", with_id(post(codec::decompress), "OPTIONS, POST"))
        .route(editing::PATH, with_id(get(editing::edit), "GET, OPTIONS"))
        .route("/v1/models", with_id(get(list_models), READS))
        .route("/v2", with_id(get(open_inference::server), READS))
        .route(LIVE, with_id(get(open_inference::live), READS))
        .route(READY, with_id(get(open_inference::ready), READS))
        .route(HEALTH, with_options(get(health), READS))
        .route("/", with_options(get(playground::page), READS));
    if state.metrics != HttpMetrics::Off {
        router = router.route(METRICS, with_options(get(metrics), READS));
    }
    // The name of a model may be one of the Hugging Face Hub, `ORG/NAME`.
    for name in ["{name}", "{name}/{part}"] {
        router = router.route(&format!("/v1/models/{name}"), with_id(get(get_model), READS));
        for version in ["", "/versions/{version}"] {
            let model = format!("/v2/models/{name}{version}");
            router = router
                .route(&model, with_id(get(open_inference::model), READS))
                .route(&format!("{model}/ready"), with_id(get(open_inference::model_ready), READS))
                .route(&format!("{model}/infer"), with_id(post(open_inference::infer), "OPTIONS, POST"));
        }
    }
    router
        .fallback(|uri: Uri| async move {
            let paths =
                "completions, models, summaries and compression are under /v1, the Open Inference Protocol under /v2";
            let message = format!("{}: this path does not exist; {paths}", quoted(uri.path()));
            ApiError::new(StatusCode::NOT_FOUND, "unknown_path", message)
        })
        .with_state(state)
}

/// Adds the request's id to the responses of these methods, and adds `OPTIONS` as [`with_options`] does.
fn with_id(methods: MethodRouter<ApiState>, allowed: &'static str) -> MethodRouter<ApiState> {
    with_options(methods.route_layer(from_fn(add_request_id)), allowed)
}

/// Adds the method `OPTIONS`, which needs no key and lists the methods of the path. The error of any other method also lists them.
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

/// Responds with all metrics but the histograms, which no router reads.
async fn metrics(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    headers: HeaderMap,
) -> Response {
    match client.principal() {
        Err(error) if state.metrics != HttpMetrics::Open => ApiError::from(error).into_response(),
        _ => {
            state.monitor.record();
            metrics_response(state.monitor.engines().render_load_metrics(), &headers)
        }
    }
}

async fn list_models(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
) -> Result<Json, ApiError> {
    let listed = state.calls.ask("/weir.v1.Models/ListModels", &client, || Ok(state.models.list(false))).await?;
    let models = listed.models.into_iter().map(|model| model_json(model, state.started_at));
    Ok(Json(json!({ "object": "list", "data": models.collect::<Vec<_>>() })))
}

async fn get_model(
    State(state): State<ApiState>,
    path: PathResult,
    Extension(client): Extension<ClientContext>,
) -> Result<Json, ApiError> {
    let Path(path) = path?;
    let name = path.model();
    let get = || state.models.get(Some(&name), false);
    let model = state.calls.ask("/weir.v1.Models/GetModel", &client, get).await?;
    Ok(Json(model_json(model, state.started_at)))
}

/// Converts a model to OpenAI's form. This API calls symbols tokens; `token` names their kind.
fn model_json(model: v1::Model, created: u64) -> Value {
    let token = match &model.vocabulary {
        Some(vocabulary) if vocabulary.bytes => "byte",
        Some(vocabulary) if vocabulary.pieces => "piece",
        _ => "character",
    };
    let max_body_bytes = model.limits.map(|limits| limits.message_bytes);
    let document_tokens = model.documents.as_ref().map(|documents| documents.max_tokens);
    json!({
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "weir",
        "max_model_len": document_tokens.or(model.limits.map(|limits| limits.max_symbols)),
        "token": token,
        "family": model.family,
        "shape": model.shape,
        "scope": model.scope,
        "parameters": model.parameters,
        "dtype": model.dtype,
        "pooled": model.pooled,
        "boundary_modes": model.boundary_modes,
        "boundary_threshold": model.boundary_threshold,
        "training_length": model.training_length,
        "max_body_bytes": max_body_bytes,
        "block_chars": DEFAULT_BLOCK,
        "documents": model.documents.map(|documents| json!({
            "max_tokens": documents.max_tokens,
            "max_summary_tokens": documents.max_summary_tokens,
            "poolings": documents.poolings.iter().map(|pooling| pooling.layer).collect::<Vec<_>>(),
        })),
    })
}

/// The calls that only this API makes.
impl Calls {
    /// Calls `Summarize` with the messages of a request.
    async fn summarize(&self, client: &ClientContext, messages: Vec<v1::SummarizeRequest>) -> Result<Summarized> {
        let bytes = messages.iter().map(Message::encoded_len).sum();
        self.begin(SUMMARIZE, client, bytes, async |call: Call, memory| {
            let parts = RequestParts::new(tokio_stream::iter(messages).map(Ok), Some(memory));
            self.jobs.start_summary(parts, call).await.inspect_err(log_rejection)
        })
        .await
    }

    /// Calls `Edit`. `memory` counts the messages that are sent to the call, until the call has taken them.
    async fn edit(
        &self,
        client: &ClientContext,
        messages: Receiver<EditMessage>,
        memory: RequestMemory,
    ) -> Result<CallResponse<TaskResponse<v1::EditResponse>>> {
        self.begin(EDIT, client, 0, async |call: Call, _| {
            let parts = RequestParts::new(ReceiverStream::new(messages).map(Ok), Some(memory));
            self.jobs.start_editing(parts, &call).inspect_err(log_rejection)
        })
        .await
    }

    /// Calls a method whose response is known at once.
    async fn ask<R>(
        &self,
        path: &'static str,
        client: &ClientContext,
        handler: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.begin(path, client, 0, async |_, _| handler()).await.map(CallResponse::into_complete)
    }
}
