//! The HTTP/1.1 ports: which web pages may use them, upgrades to WebSockets, answers to clients of another protocol, and
//! [`StreamAdapter`], with which all ports change the reads or the shutdown of a connection.

use crate::{
    config::{
        Access,
        checks::{AllowedNames, CorsOrigins},
    },
    middleware::{
        limits::Reservation,
        observe::{Refusal as Denied, RefusalLog},
    },
    transport::{
        connections::{ClosingConnection, OpenConnection},
        filters::{Adapted, StreamAdapter},
    },
};
use axum::{
    Json,
    extract::Request,
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
            ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
        },
        uri::Authority,
    },
    response::{IntoResponse, Response},
};
use hyper::{body::Incoming, rt, server::conn::http1, service::HttpService};
use serde_json::json;
use std::{
    error::Error,
    io::{self, ErrorKind},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};
use tonic::Code;
use weir_engine::clock;
use weir_kernels::error::quoted;

/// Removes empty segments from a path: clients add a slash to an address that ends with one, or at the end of a path.
pub(crate) fn remove_empty_segments(uri: &mut Uri) {
    if uri.path() == "/" || !(uri.path().contains("//") || uri.path().ends_with('/')) {
        return;
    }
    let mut path = String::new();
    for segment in uri.path().split('/').filter(|segment| !segment.is_empty()) {
        path.push('/');
        path.push_str(segment);
    }
    if path.is_empty() {
        path.push('/');
    }
    if let Some(query) = uri.query() {
        path.push('?');
        path.push_str(query);
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = path.parse().ok();
    if let Ok(shorter) = Uri::from_parts(parts) {
        *uri = shorter;
    }
}

// Web pages of other servers must not use a port through their visitors' browsers. A page of another origin can send requests, and a
// page whose host name points at this server (DNS rebinding) can also read the responses. A browser sends both names, in `Origin` and
// `Host`. Other clients send no `Origin`, and `Host` as they like.

/// The checks of one port.
#[derive(Debug, Clone)]
pub(crate) struct BrowserChecks {
    allowed: Arc<AllowedNames>,
    /// Origins whose pages may also read responses.
    cors: Arc<CorsOrigins>,
    /// The flags that list an origin.
    flags: &'static str,
    /// Limits the log lines about refused requests, which a peer without a key can cause at any rate.
    log: RefusalLog,
    /// False if a rebound name gains a page nothing: its requests lack the API key, or the certificate has another name.
    checks_host: bool,
}

impl BrowserChecks {
    /// The checks of a port without keys and encryption.
    pub(crate) fn of_open_port(allowed: Arc<AllowedNames>) -> Self {
        let log = RefusalLog::default();
        Self { allowed, cors: Arc::default(), flags: "--allowed-origins", log, checks_host: true }
    }

    /// The checks of a port with this access control.
    pub(crate) fn of_port(access: &Access) -> Self {
        let credentials = access.credentials.current();
        let checks_host = credentials.keys.is_none() && credentials.tls.is_none();
        let flags = "--allowed-origins or --cors-origin";
        let log = RefusalLog::default();
        Self { allowed: Arc::clone(&access.allowed), cors: Arc::clone(&access.cors), flags, log, checks_host }
    }

    /// Returns the request if its headers are accepted.
    pub(crate) fn check(&self, request: Request) -> Result<Request, Refusal> {
        match self.refusal(request.uri().authority(), request.headers()) {
            None => Ok(request),
            Some(message) => {
                // Each message begins with the name of a header.
                let field = message.split(':').next().map(str::to_owned);
                let rule = "BROWSER".to_owned();
                let kind = Denied { code: Code::PermissionDenied, rule, field, message: message.clone() };
                if let Some(unlogged) = self.log.count(&kind, clock::now()) {
                    tracing::info!(field = kind.field, reason = message, unlogged, "rejected");
                }
                Err(Refusal(message))
            }
        }
    }

    /// Returns why a request with these headers is refused, if it is. A complete URL in the first line (`target`) goes before `Host`
    /// (RFC 9112, section 3.2.2).
    fn refusal(&self, target: Option<&Authority>, headers: &HeaderMap) -> Option<String> {
        let host = match single(headers, &HOST) {
            Ok(host) => target.map(Authority::as_str).or(host),
            Err(message) => return Some(message),
        };
        let origin = match single(headers, &ORIGIN) {
            Ok(origin) => origin,
            Err(message) => return Some(message),
        };
        let authority = host.and_then(|host| host.parse::<Authority>().ok());
        let name = authority.as_ref().map(Authority::host).filter(|_| host.is_some_and(|host| !host.contains('@')));
        // Browsers always send a host.
        if let Some(host) =
            host.filter(|_| self.checks_host && !name.is_some_and(|name| self.allowed.allows_host(name)))
        {
            let host = quoted(host);
            return Some(format!(
                "host: expected a name of this server, found {host}; list the name in --allowed-hosts to allow it"
            ));
        }
        let is_listed = |origin: &str| self.allowed.lists_origin(origin) || self.cors.allows(origin);
        let origin = origin.filter(|origin| !is_listed(origin))?;
        if authority.is_some_and(|authority| is_same(origin, &authority)) {
            return None;
        }
        let origin = quoted(origin);
        let host = host.map_or_else(|| "nothing".to_owned(), quoted);
        let flags = self.flags;
        Some(format!(
            "origin: expected that of this server, whose host is {host}, found {origin}; list it in {flags} to allow it, or \
             make the proxy forward the client's Host header"
        ))
    }
}

/// Why a request is refused. The response has the form of OpenAI's errors on every port.
#[derive(Debug)]
pub(crate) struct Refusal(String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let error = json!({ "message": self.0, "type": "permission_error", "param": null, "code": "foreign_page" });
        (StatusCode::FORBIDDEN, Json(json!({ "error": error }))).into_response()
    }
}

/// Returns the value of a header that may occur once, if it is present. Fails if it is repeated or not visible ASCII.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(format!("{name}: expected one header, found several"));
    }
    first.map(|value| value.to_str().map_err(|_| format!("{name}: expected visible ASCII characters"))).transpose()
}

/// Returns true if an origin has this host and port. The scheme does not matter: a proxy may add the encryption.
fn is_same(origin: &str, authority: &Authority) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    let default_port = match origin.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return false,
    };
    let same_host = origin.host().is_some_and(|host| host.eq_ignore_ascii_case(authority.host()));
    same_host && origin.port_u16().unwrap_or(default_port) == authority.port_u16().unwrap_or(default_port)
}

// Cross-origin resource sharing (CORS). Responses never allow credentials that a browser adds, such as client certificates: an API key
// is a header that the page sets.

/// The header with the number of characters that normalising changed.
pub(crate) const NORMALIZED_CHARS: &str = "x-weir-normalized-chars";

/// The methods that pages may use.
pub(super) const METHODS: &str = "GET, HEAD, OPTIONS, POST";

/// The response headers that pages may read, in addition to those that they always may.
const EXPOSED: &str = "retry-after, x-request-id, x-weir-normalized-chars";

/// Seconds for which a browser may keep the answer to a preflight.
const MAX_AGE: &str = "600";

/// The rules of one port.
#[derive(Debug, Clone)]
pub(crate) struct Cors(Arc<CorsOrigins>);

impl Cors {
    pub(crate) fn new(origins: &Arc<CorsOrigins>) -> Self {
        Self(Arc::clone(origins))
    }

    /// Returns the origin of a request whose page may read the response, as the response states it.
    pub(crate) fn allows(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let is_allowed = self.0.allows(origin.to_str().ok()?);
        is_allowed.then(|| match *self.0 {
            CorsOrigins::Any => HeaderValue::from_static("*"),
            _ => origin.clone(),
        })
    }

    /// Returns the answer to a preflight, with which a browser asks whether a page may send a request.
    pub(crate) fn preflight(&self, headers: &HeaderMap, method: &Method) -> Option<Response> {
        let asks = method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let origin = self.allows(headers).filter(|_| asks)?;
        let mut answer = self.mark(StatusCode::NO_CONTENT.into_response(), Some(origin));
        let fields = answer.headers_mut();
        fields.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        fields.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
        // OpenAI's client sends a dozen headers of its own, and `*` would not include the API key.
        if let Some(names) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        fields.append(VARY, HeaderValue::from_static("access-control-request-headers"));
        Some(answer)
    }

    /// Lets the page of this origin read the response.
    pub(crate) fn mark(&self, mut response: Response, origin: Option<HeaderValue>) -> Response {
        let fields = response.headers_mut();
        if let CorsOrigins::Listed(_) = *self.0 {
            // A cache must not show one page the response to another.
            fields.append(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(origin) = origin {
            fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            fields.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
        response
    }
}

/// Ends a connection on which the head of a request does not arrive in time. hyper's own limit also counts the time between two
/// requests, for which a client may keep its connection.
pub(crate) struct HeadLimit {
    limit: Duration,
    open: OpenConnection,
    arrived: HeadArrived,
    /// Deadline for the head's arrival; `None` while no part of one has arrived.
    late: Option<Pin<Box<Sleep>>>,
}

/// Is told when a head has arrived. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct HeadArrived(Arc<AtomicBool>);

impl HeadArrived {
    /// Records that the head of a request has arrived.
    pub(crate) fn record(&self) {
        self.0.store(true, Relaxed);
    }
}

impl HeadLimit {
    /// Limits the heads that arrive on `stream`, from their first byte. `open` counts the connection's calls.
    pub(crate) fn wrap<S>(stream: S, limit: Duration, open: OpenConnection, arrived: HeadArrived) -> Adapted<S, Self> {
        Adapted { stream, adapter: Self { limit, open, arrived, late: None } }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for HeadLimit {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(stream).poll_read(cx, into);
        // what arrives during a call is its body
        if self.arrived.0.swap(false, Relaxed) || self.open.has_calls() {
            self.late = None;
        }
        if self.open.has_calls() {
            return read;
        }
        if read.is_ready() {
            if into.filled().len() > before {
                self.late.get_or_insert_with(|| Box::pin(sleep(self.limit)));
            }
            return read;
        }
        let Some(late) = &mut self.late else { return Poll::Pending };
        ready!(late.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the head of a request did not arrive in time")))
    }
}

/// Bytes of a client's control frame before the payload: the shortest header, and a mask.
const CONTROL_HEADER: usize = 6;

/// A connection that ends with its last call, even if that call has upgraded it.
pub(crate) struct UpgradableConnection<I, S: HttpService<Incoming>> {
    /// Reads requests and writes responses. `None` once the connection has closed or left HTTP.
    http: Option<Pin<Box<http1::UpgradeableConnection<I, S>>>>,
    open: OpenConnection,
    /// Ready when no call is in progress.
    calls_ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// True once the connection has to close.
    is_closing: bool,
}

impl<I, S: HttpService<Incoming>> Unpin for UpgradableConnection<I, S> {}

impl<I, S: HttpService<Incoming>> UpgradableConnection<I, S> {
    /// Serves a connection of hyper. `open` counts its calls.
    pub(crate) fn new(http: http1::UpgradeableConnection<I, S>, open: OpenConnection) -> Self {
        let calls_ended = Box::pin(open.clone().calls_ended());
        Self { http: Some(Box::pin(http)), open, calls_ended, is_closing: false }
    }
}

impl<I, S, B> Future for UpgradableConnection<I, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    I: rt::Read + rt::Write + Unpin + Send + 'static,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = Result<(), hyper::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(http) = &mut self.http {
            ready!(http.as_mut().poll(cx))?;
            // Ends the calls of HTTP, but not one that has taken the connection over.
            self.http = None;
            if self.is_closing {
                self.open.ending().cancel();
            }
        }
        self.calls_ended.as_mut().poll(cx).map(Ok)
    }
}

impl<I, S, B> ClosingConnection for UpgradableConnection<I, S>
where
    S: HttpService<Incoming, ResBody = B> + Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: Send,
    I: rt::Read + rt::Write + Unpin + Send + 'static,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn close_gracefully(mut self: Pin<&mut Self>) {
        self.is_closing = true;
        match &mut self.http {
            Some(http) => http.as_mut().graceful_shutdown(),
            // A call that has taken the connection over may never end by itself.
            None => self.open.ending().cancel(),
        }
    }
}

impl<I, S: HttpService<Incoming>> Drop for UpgradableConnection<I, S> {
    fn drop(&mut self) {
        // The call that has taken the connection over runs in a task of its own.
        self.open.ending().cancel();
    }
}

/// The parts of its connection that a WebSocket uses, as an extension of the request.
#[derive(Clone)]
pub(crate) struct UpgradeContext {
    /// Counts the WebSocket as a call.
    pub(crate) open: OpenConnection,
    /// Counts what it receives.
    pub(crate) received: ReceivedBytes,
}

/// Counts the memory of the bytes that a connection receives after its upgrade. Clones share it.
///
/// HTTP request bodies are counted separately.
#[derive(Clone, Default)]
pub(crate) struct ReceivedBytes(Arc<OnceLock<Reservation>>);

impl ReceivedBytes {
    /// Counts what `stream` receives.
    pub(crate) fn wrap<S>(stream: S, received: Self) -> Adapted<S, Self> {
        Adapted { stream, adapter: received }
    }

    /// Counts the bytes that arrive from now on.
    pub(crate) fn begin(&self, reserved: Reservation) {
        // A connection leaves HTTP once.
        let _ = self.0.set(reserved);
    }

    /// Releases the bytes that have arrived, after a whole message, but for a buffer of the longest. What a buffer of reads holds of the
    /// next one is also released.
    pub(crate) fn release_message(&self) {
        if let Some(reserved) = self.0.get() {
            reserved.release_passed();
        }
    }

    /// Releases the bytes of a control frame. Its client may send it between the parts of a message, which still count.
    pub(crate) fn release_control(&self, payload: usize) {
        if let Some(reserved) = self.0.get() {
            reserved.release(payload.saturating_add(CONTROL_HEADER));
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for ReceivedBytes {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(stream).poll_read(cx, into))?;
        if let Some(reserved) = self.0.get() {
            reserved.add(into.filled().len() - before).map_err(io::Error::other)?;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        call::REQUEST_ID,
        config::{Access, checks::CorsOrigins},
        transport::{
            connections::{GRPC_NEEDS_TLS, HTTP_NEEDS_TLS, answer_http1, begins_without_tls},
            http1::{BrowserChecks, Cors, METHODS, NORMALIZED_CHARS},
        },
    };
    use tokio::io::{AsyncReadExt, DuplexStream};

    fn refused(headers: &[(HeaderName, &str)]) -> bool {
        let checks = BrowserChecks::of_port(&Access::default());
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        checks.refusal(None, &headers).is_some()
    }

    #[test]
    fn the_url_of_the_request_goes_before_the_host() {
        let checks = BrowserChecks::of_port(&Access::default());
        let headers = [(HOST, "localhost".parse().unwrap())].into_iter().collect();
        for (target, allowed) in [("localhost:8000", true), ("evil.com", false), ("localhost@evil.com", false)] {
            let refusal = checks.refusal(Some(&target.parse().unwrap()), &headers);
            assert_eq!(refusal.is_none(), allowed, "{target}: {refusal:?}");
        }
    }

    #[test]
    fn an_origin_must_be_that_of_the_host() {
        for (origin, host, allowed) in [
            ("http://localhost:8000", "localhost:8000", true),
            ("https://LOCALHOST", "localhost", true),
            ("https://localhost", "localhost:443", true),
            ("http://[::1]:8000", "[::1]:8000", true),
            ("http://localhost:8001", "localhost:8000", false),
            ("http://localhost", "localhost:8000", false),
            ("http://127.0.0.1:8000", "localhost:8000", false),
            ("https://evil.com", "localhost:8000", false),
            ("https://localhost.evil.com", "localhost", false),
            ("http://user@localhost", "user@localhost", false),
            ("app://localhost", "localhost", false),
            ("null", "localhost:8000", false),
            ("", "localhost:8000", false),
        ] {
            assert_eq!(refused(&[(HOST, host), (ORIGIN, origin)]), !allowed, "{origin} of {host}");
        }
        assert!(!refused(&[]));
        assert!(refused(&[(ORIGIN, "http://localhost")]));
        assert!(refused(&[(HOST, "localhost"), (HOST, "localhost")]));
        for host in ["", "localhost@evil.com", "a b", "evil.com:8000"] {
            assert!(refused(&[(HOST, host)]), "{host}");
        }
    }

    fn cors(origins: CorsOrigins) -> Cors {
        Cors::new(&Arc::new(origins))
    }

    fn listed() -> Cors {
        cors(CorsOrigins::Listed(vec!["https://app.example.com".into()]))
    }

    #[test]
    fn responses_differ_by_origin() {
        let origin = Some(HeaderValue::from_static("https://app.example.com"));
        let marked = listed().mark(().into_response(), origin);
        let exposed: Vec<_> = marked.headers()[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap().split(", ").collect();
        assert_eq!(exposed, ["retry-after", REQUEST_ID, NORMALIZED_CHARS]);
        let marked = listed().mark(().into_response(), None);
        assert_eq!(marked.headers()[VARY], "origin");
        assert!(!marked.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
        assert!(cors(CorsOrigins::None).mark(().into_response(), None).headers().is_empty());
    }

    #[test]
    fn a_preflight_is_an_options_request_of_a_listed_origin() {
        let asks = [(ORIGIN, "https://app.example.com"), (ACCESS_CONTROL_REQUEST_METHOD, "POST")]
            .map(|(name, value)| (name, HeaderValue::from_static(value)));
        let preflight =
            |asks: &[(HeaderName, HeaderValue)], method| listed().preflight(&asks.iter().cloned().collect(), &method);
        let answer = preflight(&asks, Method::OPTIONS).unwrap();
        assert_eq!(answer.headers()[ACCESS_CONTROL_ALLOW_METHODS], METHODS);
        assert_eq!(answer.headers().get_all(VARY).iter().count(), 2);
        assert!(preflight(&asks, Method::POST).is_none());
        assert!(preflight(&asks[..1], Method::OPTIONS).is_none());
        assert!(preflight(&asks[1..], Method::OPTIONS).is_none());
    }

    /// Returns what a client receives from `answer`.
    async fn received(answer: impl AsyncFnOnce(&mut DuplexStream)) -> String {
        let (mut client, mut server) = tokio::io::duplex(1024);
        let reading = tokio::spawn(async move {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        });
        answer(&mut server).await;
        drop(server);
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn only_requests_are_answered() {
        let answered = async |begun: &[u8]| received(async |server| answer_http1(server, begun).await).await;
        let answer = answered(b"GET / HTTP/1.1\r\nHost: weir").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 505 ") && head.contains(&format!("content-length: {}", body.len())),
            "{head}"
        );
        assert!(answered(b"\x16\x03\x01\x02\x00\x01\x00\x01").await.is_empty());
    }

    #[tokio::test]
    async fn ports_with_tls_name_the_scheme() {
        for (answer, port) in [(&GRPC_NEEDS_TLS, "gRPC port"), (&HTTP_NEEDS_TLS, "HTTP port")] {
            let answer = received(async |server| answer.send(server).await).await;
            assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n") && answer.contains("\r\nconnection: close\r\n"));
            assert!(answer.contains(port) && answer.contains("use https://"), "{answer}");
        }
        assert!(begins_without_tls(b'G') && begins_without_tls(b'P'));
        assert!(![0x16, 0x80, 0, b' '].into_iter().any(begins_without_tls));
    }
}
