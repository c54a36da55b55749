//! The same services for clients that speak HTTP and JSON: OpenAI's completions and models, and
//! summaries; and a page to try them.
//!
//! A request becomes calls of the gRPC services, made within the process through all their layers: keys, limits, deadlines,
//! metrics and traces are those of every call, and there is no second way to an engine. Here are only connections, bodies, and
//! the two forms' translation: `asked`, which other protocols use, too, and `reply`; `refusal` for errors.

mod completions;
mod hyper_errors;
mod models;
mod playground;
mod refusal;
mod reply;
pub(super) mod request;
mod seed;
mod summaries;

use crate::{
    config::Wire,
    error::Error,
    serve::{
        in_process::Services,
        registry::health::Monitor,
        transport::{
            connections::Connection,
            lingering_close::{Lingering, Unread},
            write_timeout::Patient,
        },
    },
};
use axum::{
    Extension, Router,
    body::Bytes,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::map_request,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper::server::conn::http1;
use hyper_errors::Worded;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use refusal::Refusal;
use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Connected;

/// The least that hyper reads at a time.
const LEAST_READ: usize = 8 << 10;
/// Bytes that a place for bodies stands for.
const PLACE: usize = 1024;

/// What every request comes through.
#[derive(Clone)]
struct Door {
    services: Services,
    monitor: Monitor,
    /// Room for bodies that are coming in, in places.
    room: Arc<Semaphore>,
    /// Bytes of the longest body.
    longest: usize,
    /// How long a body may take to come in.
    upload: Duration,
    /// When the server began, in seconds since 1970.
    since: u64,
}

/// Answers on these connections until `closing` says so, and then until the last one has its answer.
pub(super) async fn serve(
    mut incoming: impl Stream<Item = std::io::Result<Connection>> + Unpin,
    services: Services,
    monitor: Monitor,
    wire: &Wire,
    mut closing: watch::Receiver<bool>,
) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let room = Arc::new(Semaphore::new((wire.request_memory / PLACE).min(Semaphore::MAX_PERMITS)));
    let engines = monitor.engines().clone();
    let door = Door { services, monitor, room, longest: wire.message_bytes, upload: wire.upload, since };
    let router = router(door);
    let mut connections = JoinSet::new();
    loop {
        let connection = tokio::select! {
            connection = incoming.next() => connection,
            Some(_) = connections.join_next() => continue,
            () = said(&mut closing) => break,
        };
        let Some(Ok(connection)) = connection else { break };
        let unread = Unread::default();
        let seen = unread.clone();
        let seen = map_request(move |request| std::future::ready(seen.watch(request)));
        let router = router.clone().layer(seen).layer(Extension(connection.connect_info()));
        // as long as the engines wait for readers
        let stall = engines.all().iter().map(|engine| engine.limits().stall).max().unwrap_or(Duration::MAX);
        // a head has to fit into what is read at a time, of which hyper wants that much at least
        let header_bytes = (wire.header_bytes as usize).max(LEAST_READ);
        let connection = Lingering::new(Patient::new(connection, stall), unread);
        let connection = Worded::new(connection, header_bytes);
        let bounds = (wire.handshake, header_bytes);
        connections.spawn(converse(connection, router, bounds, closing.clone()));
    }
    drop(incoming);
    while connections.join_next().await.is_some() {}
}

/// All requests of one connection.
async fn converse(
    connection: Worded<Lingering<Patient<Connection>>>,
    router: Router,
    (patience, header_bytes): (Duration, usize),
    mut closing: watch::Receiver<bool>,
) {
    let mut server = http1::Builder::new();
    server.max_buf_size(header_bytes);
    server.timer(TokioTimer::new()).header_read_timeout(patience);
    let service = TowerToHyperService::new(router);
    let mut served = pin!(server.serve_connection(TokioIo::new(connection), service));
    let served = tokio::select! {
        served = served.as_mut() => served,
        () = said(&mut closing) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection over HTTP broke");
    }
}

/// Waits until it is said, or nobody is left to say it.
async fn said(what: &mut watch::Receiver<bool>) {
    let _ = what.wait_for(|said| *said).await;
}

fn router(door: Door) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::complete))
        .route("/v1/summaries", post(summaries::summarize))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{name}", get(models::get))
        .route("/health", get(health))
        .route("/", get(playground::page))
        .fallback(|| async { Refusal::plain(StatusCode::NOT_FOUND, "unknown_path", "there is nothing at this path") })
        .method_not_allowed_fallback(|| async {
            Refusal::plain(StatusCode::METHOD_NOT_ALLOWED, "unknown_method", "this path does not take this method")
        })
        .with_state(door)
}

async fn health(State(door): State<Door>) -> Response {
    match door.monitor.ready() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

impl Door {
    /// A request's body, within the limits of one and of all.
    async fn read(&self, request: Request) -> Result<Bytes, Refusal> {
        let encoded = request.headers().get_all(header::CONTENT_ENCODING).iter().any(|coding| coding != "identity");
        if encoded {
            let message = "Content-Encoding: bodies are taken as they are, not compressed";
            return Err(Refusal::plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, "compressed", message));
        }
        let told = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let length: usize = told.unwrap_or(self.longest);
        let long = || Refusal::from(Error::Oversized { what: "the body", limit: self.longest });
        if length > self.longest {
            return Err(long());
        }
        let places = u32::try_from(length.div_ceil(PLACE)).unwrap_or(u32::MAX);
        let Ok(_place) = self.room.try_acquire_many(places) else {
            let message = "there is no room for this request while others are coming in";
            return Err(Refusal::plain(StatusCode::TOO_MANY_REQUESTS, "no_room", message).after(1));
        };
        let body = async {
            let (mut parts, mut whole) = (request.into_body().into_data_stream(), Vec::new());
            while let Some(part) = parts.next().await {
                let broken = |_| {
                    let message = "the body: not whole, or not as HTTP has it";
                    Refusal::plain(StatusCode::BAD_REQUEST, "incomplete", message)
                };
                let part = part.map_err(broken)?;
                if part.len() > self.longest - whole.len() {
                    return Err(long());
                }
                whole.extend_from_slice(&part);
            }
            Ok(Bytes::from(whole))
        };
        let message = "the body did not come in whole in time";
        let late = |_| Err(Refusal::plain(StatusCode::REQUEST_TIMEOUT, "incomplete", message));
        tokio::time::timeout(self.upload, body).await.unwrap_or_else(late)
    }
}
