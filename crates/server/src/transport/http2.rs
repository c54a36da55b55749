//! The HTTP/2 connections of gRPC. tonic's own server has no limit on idle connections, and cannot close one of them.

use crate::{
    call::{Peer, request_id},
    config::TransportConfig,
    metrics::Metrics,
    middleware::{
        auth::{is_health_check, needs_no_key},
        layer::Next,
        limits::{GuardedBody, KeylessCall, KeylessCalls},
        observe::count_refused,
    },
    status::status,
    transport::{
        connections::{CallInProgress, Connection, HyperConnection, NEEDS_GRPC, OpenConnection, serve_connections},
        filters::{Adapted, Allowance, ReadStop},
    },
};
use http_body::Body as _;
use hyper::{body::Incoming, server::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Code,
    body::Body,
    codegen::{
        StdError,
        http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE},
    },
};
use tower::ServiceExt;
use weir_kernels::error::{Error, Result};

/// Maximum bytes of a response that wait for a client that does not read.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// Maximum bytes that a call may send before the server reads them.
const STREAM_WINDOW: u32 = 64 << 10;

/// Maximum bytes that all calls of a connection may send before the server reads them. The server reads some calls no faster than it
/// answers them; several such calls must leave room for others.
const CONNECTION_WINDOW: u32 = 512 << 10;

/// Maximum headers of a call. Each takes more memory than its bytes; hyper has the same limit for HTTP/1.1.
const MAX_HEADERS: usize = 100;

/// Maximum bytes of a refused request's body that are read before its response: many clients lose a response whose stream is reset
/// while they send.
const DISCARDED_BYTES: usize = 1 << 20;

/// Maximum time for which a refused request's body is read.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// Delay after which a client without a place should connect again.
const RETRY: Duration = Duration::from_secs(1);

/// Maximum calls of a stranger that are refused at once on its connection. Each takes a task and a response: strangers who repeat them on
/// many connections would delay all other calls.
const REFUSALS: f64 = 32.0;

/// The header of a response with the status of its call.
const STATUS: &str = "grpc-status";

/// Serves these connections until `closing` is cancelled, and then until the last one has its responses. Requests that reach none
/// of the `calls` are counted in `metrics`.
pub(crate) async fn serve(
    incoming: impl Stream<Item = Connection> + Unpin,
    calls: Next,
    metrics: &Arc<Metrics>,
    config: &TransportConfig,
    closing: CancellationToken,
) {
    let builder = builder(config);
    let limit = config.connections;
    let keyless = KeylessCalls::new(config);
    let start = |Connection { stream, peer, open }: Connection| -> HyperConnection {
        let calls = calls.clone();
        let metrics = Arc::clone(metrics);
        let caller = peer.principal().tenant();
        let refusals = Arc::new(Refusals::new(peer.clone()));
        let stream = Adapted { stream, adapter: ReadStop(Arc::clone(&refusals.is_closing)) };
        let keyless = Arc::clone(&keyless);
        let service = CallService { calls, metrics, peer, caller, keyless, refusals, open, limit };
        Box::pin(builder.serve_connection(TokioIo::new(stream), service))
    };
    serve_connections(incoming, config, closing, start).await;
}

/// Configures HTTP/2 connections.
pub(crate) fn builder(config: &TransportConfig) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        // gRPC has no use for it, and the length of its compressed form would differ between runs of a simulation.
        .auto_date_header(false)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(config.concurrent_streams)
        .max_header_list_size(config.header_bytes)
        .max_pending_accept_reset_streams(config.pending_resets)
        .max_local_error_reset_streams(config.error_resets)
        .keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout);
    builder
}

/// The calls of one connection.
struct CallService {
    calls: Next,
    metrics: Arc<Metrics>,
    peer: Peer,
    /// Tenant of its calls that need no key.
    caller: Arc<str>,
    keyless: Arc<KeylessCalls>,
    refusals: Arc<Refusals>,
    open: OpenConnection,
    /// Maximum connections, for the error.
    limit: usize,
}

/// The refused calls of a connection.
struct Refusals {
    peer: Peer,
    allowance: Mutex<Allowance>,
    /// True once the server reads nothing more of the connection.
    is_closing: Arc<AtomicBool>,
}

impl Refusals {
    fn new(peer: Peer) -> Self {
        Self { peer, allowance: Mutex::new(Allowance::new(REFUSALS)), is_closing: Arc::default() }
    }

    /// Counts a refused call. Closes the connection of a stranger that repeats them.
    fn count(&self) {
        let is_stranger = self.peer.certificate.is_none() && self.peer.used_keys.is_empty();
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        if is_stranger && !allowance.take(1) && !self.is_closing.swap(true, Relaxed) {
            tracing::debug!(address = ?self.peer.address, "closing a connection: its client repeats refused calls");
            self.peer.close.cancel();
        }
    }
}

/// The content types of gRPC with protobuf, without parameters. gRPC-Web and other encodings of messages have types of their own.
const GRPC_TYPES: [&[u8]; 2] = [b"application/grpc", b"application/grpc+proto"];

/// Returns true for a request with the content type of gRPC. The path alone is not enough: the server also answers calls of unknown
/// methods.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    let mut kinds = request.headers().get_all(CONTENT_TYPE).iter();
    let kind = kinds.next().and_then(|kind| kind.as_bytes().split(|byte| *byte == b';').next()).unwrap_or_default();
    kinds.next().is_none() && GRPC_TYPES.iter().any(|known| kind.trim_ascii().eq_ignore_ascii_case(known))
}

/// Returns the path for the metrics. Empty for a request that is not gRPC, which does not call the method in its path.
fn called_path<B>(request: &Request<B>) -> &str {
    if is_grpc(request) { request.uri().path() } else { "" }
}

/// Reads and drops the body of a refused request, up to [`DISCARDED_BYTES`] and [`DISCARD_TIME`].
pub(crate) async fn discard(mut body: Incoming) {
    let read = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
            && bytes < DISCARDED_BYTES
        {
            bytes += frame.data_ref().map_or(0, |data| data.len());
        }
    };
    // A client that sends more, or sends slowly, may lose the response.
    drop(timeout(DISCARD_TIME, read).await);
}

impl CallService {
    /// Admits a call to its connection. Returns its place if it is a call of health or reflection.
    fn admit(&self, request: &Request<Incoming>) -> Result<Option<Arc<KeylessCall>>> {
        let path = request.uri().path();
        let is_check = is_health_check(path);
        if self.open.is_health_only() && !is_check {
            return Err(Error::TooMany { what: "connections", limit: self.limit, retry: RETRY });
        }
        if request.headers().len() > MAX_HEADERS {
            return Err(Error::LongerThan { field: "headers", limit: MAX_HEADERS, unit: "headers", why: None });
        }
        let begin = || self.keyless.begin(Arc::clone(&self.caller), is_check, self.peer.close.clone());
        needs_no_key(path).then(begin).transpose()
    }
}

impl hyper::service::Service<Request<Incoming>> for CallService {
    type Response = Response<GuardedBody<Body, CallInProgress>>;
    type Error = StdError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, StdError>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let keyless = needs_no_key(request.uri().path());
        let call = if keyless { self.open.begin_keyless_call() } else { self.open.begin_call() };
        let place = match self.admit(&request) {
            Ok(place) => place,
            Err(refusal) => {
                self.refusals.count();
                let refusal = status(&refusal, &request_id(request.headers()));
                count_refused(&self.metrics, called_path(&request), refusal.code());
                let response = refusal.into_http();
                return Box::pin(std::future::ready(Ok(response.map(|body| GuardedBody::new(body, call)))));
            }
        };
        if !is_grpc(&request) {
            tracing::debug!(id = &*request_id(request.headers()), "refused a request that is not a gRPC call");
            // A request that is not a call has no method.
            count_refused(&self.metrics, "", Code::InvalidArgument);
            let has_body = request.method() != Method::HEAD;
            let mut response = Response::new(if has_body { Body::new(NEEDS_GRPC.to_owned()) } else { Body::empty() });
            // The status that the protocol of gRPC requires for other content types.
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            return Box::pin(async move {
                discard(request.into_body()).await;
                Ok(response.map(|body| GuardedBody::new(body, call)))
            });
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.peer.clone());
        if let Some(place) = place {
            request.extensions_mut().insert(place);
        }
        let response = self.calls.clone().oneshot(request);
        let refusals = Arc::clone(&self.refusals);
        Box::pin(async move {
            let response = response.await?;
            let status = response.headers().get(STATUS).map(HeaderValue::as_bytes);
            if status.map(Code::from_bytes) == Some(Code::Unauthenticated) {
                refusals.count();
            }
            Ok(response.map(|body| GuardedBody::new(body, call)))
        })
    }
}

#[cfg(test)]
mod tests {

    use crate::transport::filters::{
        Adapted, BURST, DuplicateAckFilter, FrameLimits, FramePart, FrameReader, RATE, SETTINGS_ACK,
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
        time::{Duration, sleep},
    };

    #[test]
    fn headers_are_found_however_the_bytes_are_split() {
        let frame = |length: u8, kind: u8, flags: u8| {
            [&[0, 0, length, kind, flags, 0, 0, 0, 1][..], &vec![4; length.into()]].concat()
        };
        let frames = [frame(6, 4, 0), frame(0, 4, 1), frame(30, 0, 1), frame(0, 4, 0), frame(2, 3, 0)];
        let all = frames.concat();
        for size in 1..=all.len() {
            let mut reader = FrameReader::default();
            let mut found = Vec::new();
            all.chunks(size).for_each(|bytes| {
                reader.read(bytes, |part| {
                    found.extend(if let FramePart::Header(header) = part { Some(header) } else { None })
                });
            });
            assert_eq!(found.iter().map(|header| header.payload()).collect::<Vec<_>>(), [6, 0, 30, 0, 2], "{size}");
            let changes: Vec<_> = found.iter().map(|header| header.changes_settings()).collect();
            assert_eq!(changes, [true, false, false, true, false], "{size}");
        }
    }

    #[tokio::test]
    async fn only_the_first_ack_passes_however_the_bytes_are_split() {
        let frame =
            |length: u8, kind: u8| [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], &vec![kind; length.into()]].concat();
        // A payload that looks like an acknowledgement stays.
        let data = [&[0, 0, 9, 0, 0, 0, 0, 0, 1][..], &SETTINGS_ACK.0].concat();
        let all = [
            frame(6, 4),
            SETTINGS_ACK.0.to_vec(),
            frame(3, 1),
            SETTINGS_ACK.0.to_vec(),
            data.clone(),
            SETTINGS_ACK.0.to_vec(),
            frame(0, 6),
        ]
        .concat();
        let expected = [frame(6, 4), SETTINGS_ACK.0.to_vec(), frame(3, 1), data, frame(0, 6)].concat();
        for size in 1..all.len() {
            let (mut client, server) = tokio::io::duplex(1 << 16);
            let mut server = DuplicateAckFilter::wrap(server);
            let sends = async {
                for part in all.chunks(size) {
                    client.write_all(part).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(client);
            };
            let mut read = Vec::new();
            let (_, result) = tokio::join!(sends, server.read_to_end(&mut read));
            result.unwrap();
            assert_eq!(read, expected, "{size}");
        }
    }

    const CHANGE: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 1, 0];

    /// Sends `count` changes of settings, and reads them on the other side.
    async fn exchanged(
        ends: &mut (DuplexStream, Adapted<DuplexStream, FrameLimits>),
        count: usize,
    ) -> std::io::Result<()> {
        for _ in 0..count {
            ends.0.write_all(&CHANGE).await?;
            ends.1.read_exact(&mut [0; CHANGE.len()]).await?;
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_limited_by_number_and_rate() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let mut ends = (client, FrameLimits::wrap(server));
        exchanged(&mut ends, BURST as usize).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        exchanged(&mut ends, RATE as usize).await.unwrap();
        let error = exchanged(&mut ends, 1).await.unwrap_err();
        assert_eq!(error.to_string(), "the client changes its settings too often");
    }
}
