//! The HTTP API: OpenAI's completions and models, summaries, and a playground page.
//!
//! A request becomes calls of the gRPC services within the process ([`in_process`](super::in_process)), so keys, limits, deadlines,
//! metrics and traces apply as to any call. This folder has the connections, the bodies, and the translation between both forms:
//! `request` (also used by `oip`), `response`, `sse` (streams) and `error`.
//!
//! hyper itself answers a request whose head it cannot parse: 400, 414 or 431 without a body.

mod bounded;
mod completions;
mod error;
mod models;
mod playground;
pub(super) mod request;
mod response;
mod seed;
mod sse;
mod state;
mod summaries;

use crate::{
    config::TransportConfig,
    serve::transport::{
        connections::Connection,
        lingering_close::{LingeringClose, UnreadBody},
    },
};
use axum::{
    Extension, Router,
    extract::State,
    http::StatusCode,
    middleware::map_request,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use error::ApiError;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
pub(super) use state::ApiState;
use std::{pin::pin, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::JoinSet,
};
use tokio_io_timeout::TimeoutWriter;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Connected;

/// Minimum size in bytes of hyper's read buffer.
const MIN_READ_BUFFER: usize = 8 << 10;

/// Serves these connections until `closing` is set, and then until the last one has its response.
pub(super) async fn serve(
    mut incoming: impl Stream<Item = std::io::Result<Connection>> + Unpin,
    api: ApiState,
    config: &TransportConfig,
    mut closing: watch::Receiver<bool>,
) {
    let engines = api.monitor.engines().clone();
    let router = router(api);
    let mut connections = JoinSet::new();
    loop {
        let connection = tokio::select! {
            connection = incoming.next() => connection,
            Some(_) = connections.join_next() => continue,
            () = is_set(&mut closing) => break,
        };
        let Some(Ok(connection)) = connection else { break };
        let unread = UnreadBody::default();
        let watched = unread.clone();
        let watch_body = map_request(move |request| std::future::ready(watched.watch(request)));
        let router = router.clone().layer(watch_body).layer(Extension(connection.connect_info()));
        // HTTP/1.1 can only end a response early by closing the connection. A client that reads nothing for as long as the engines
        // allow would otherwise keep its connection for ever.
        let mut connection = TimeoutWriter::new(connection);
        connection.set_timeout(engines.all().iter().map(|engine| engine.limits().stall).max());
        let connection = LingeringClose::wrap(Box::pin(connection), unread);
        // hyper needs a request's whole head in its read buffer.
        let header_bytes = (config.header_bytes as usize).max(MIN_READ_BUFFER);
        connections.spawn(serve_connection(connection, router, config.handshake, header_bytes, closing.clone()));
    }
    drop(incoming);
    while connections.join_next().await.is_some() {}
}

/// Serves all requests of one connection.
async fn serve_connection(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    header_timeout: Duration,
    header_bytes: usize,
    mut closing: watch::Receiver<bool>,
) {
    let mut server = http1::Builder::new();
    server.max_buf_size(header_bytes).timer(TokioTimer::new()).header_read_timeout(header_timeout);
    let mut served = pin!(server.serve_connection(TokioIo::new(connection), TowerToHyperService::new(router)));
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = is_set(&mut closing) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "an HTTP connection failed");
    }
}

/// Waits until the flag is set or its sender is gone.
async fn is_set(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|set| *set).await;
}

fn router(state: ApiState) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::complete))
        .route("/v1/summaries", post(summaries::summarize))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{name}", get(models::get))
        .route("/health", get(health))
        .route("/", get(playground::page))
        .fallback(|| async { ApiError::new(StatusCode::NOT_FOUND, "unknown_path", "this path does not exist") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "unknown_method", "this path does not support this method")
        })
        .with_state(state)
}

async fn health(State(state): State<ApiState>) -> Response {
    match state.monitor.ready() {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}
