//! Connections from the listener to the server: limited in number, encrypted, and checked for HTTP/2's preface.
//!
//! An HTTP/2 server waits for the preface without a limit. Here a new connection has [`TransportConfig::handshake`] for TLS and
//! the preface together, and is closed otherwise, so that a silent client occupies a place for seconds only.

use crate::call::Peer;
use crate::config::{LiveCredentials, TransportConfig, UsedKeys};
use crate::middleware::observe::LogLine;
use crate::transport::filters::{Adapted, DuplicateAckFilter, FrameLimits, StreamAdapter};
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use http_body::{Frame, SizeHint};
use hyper_util::{rt::TokioIo, server::graceful::GracefulConnection};
use sha2::{Digest, Sha256};
use socket2::SockRef;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, hash_map};
use std::future::{Future, poll_fn};
use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, copy, duplex, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::{
    LazyConfigAcceptor,
    rustls::{ServerConfig, pki_types::CertificateDer, server::Acceptor},
    server::TlsStream,
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::codegen::Bytes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;
use webpki::EndEntityCert;
use weir_engine::clock;
use weir_kernels::memory::return_free_memory;

/// The first bytes of every HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum connections that wait for the server to take them.
const MAX_READY: usize = 16;

/// Delay before the next attempt when the operating system has no file descriptor left.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Interval between two lines about connections that are not accepted.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The protocol of gRPC.
    Http2,
    /// Has no preface: a connection is ready when a request begins.
    Http1,
}

/// Returns the connections of a listener, each after its handshake. Dropping the stream closes the listener.
///
/// A server behind a proxy ([`TransportConfig::late_headers`]) closes the listener as soon as `draining` is cancelled, so that the
/// proxy sends new requests elsewhere.
pub(crate) fn incoming(
    listener: Listener,
    config: &TransportConfig,
    draining: CancellationToken,
    protocol: Protocol,
) -> ReceiverStream<Connection> {
    let accepted = listener.connections(config.tcp_keepalive);
    let behind_proxy = config.late_headers;
    let credentials = config.access.credentials.clone();
    let turns = Arc::new(Semaphore::new(1));
    let handshaker = Handshaker { credentials, turns, limit: config.handshake, behind_proxy, protocol };
    let (ready, incoming) = mpsc::channel(MAX_READY);
    let close = async move {
        if behind_proxy {
            draining.cancelled().await;
        } else {
            std::future::pending().await
        }
    };
    let limits = ConnectionLimits {
        total: config.connections,
        per_network: config.connections_per_address.min(config.connections),
    };
    let table = ConnectionTable::new(limits);
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = accept(accepted, handshaker, table, ready.clone()) => {}
            () = close => ready.closed().await,
        }
    });
    ReceiverStream::new(incoming)
}

async fn accept(
    mut listener: impl Stream<Item = io::Result<Accepted>> + Unpin,
    handshaker: Handshaker,
    table: Arc<ConnectionTable>,
    ready: mpsc::Sender<Connection>,
) {
    let mut failures = AcceptFailures::default();
    // Aborts unfinished handshakes when this function ends.
    let mut handshakes = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = ready.closed() => return,
            Some(_) = handshakes.join_next() => continue,
            accepted = listener.next() => accepted,
        };
        match accepted {
            Some(Ok(accepted)) => {
                let place = table.begin_handshake(accepted.address.ip());
                let handshake = handshaker.clone().run(accepted, place);
                let ready = ready.clone();
                handshakes.spawn(async move {
                    if let Some(connection) = handshake.await {
                        // An error means that the server is gone.
                        let _ = ready.send(connection).await;
                    }
                });
            }
            Some(Err(error)) => failures.wait(&error).await,
            None => return,
        }
    }
}

/// Connections that a listener could not accept: while the process is out of file descriptors, every attempt fails.
#[derive(Default)]
pub(super) struct AcceptFailures(LogLine);

impl AcceptFailures {
    /// Waits before the next attempt. Logs the error and the number of earlier ones without a line, at most once in [`LOG_INTERVAL`].
    pub(super) async fn wait(&mut self, error: &io::Error) {
        if let Some(unlogged) = self.0.count(LOG_INTERVAL, clock::now()) {
            tracing::warn!(%error, unlogged, "connections are not accepted");
        }
        sleep(RETRY_DELAY).await;
    }
}

/// Prepares new connections for the server.
#[derive(Clone)]
struct Handshaker {
    credentials: LiveCredentials,
    /// Lets one handshake at a time compute its signature, which is slow with an RSA key. More would occupy all threads that serve
    /// connections.
    turns: Arc<Semaphore>,
    /// Maximum time for TLS and the preface together.
    limit: Duration,
    behind_proxy: bool,
    protocol: Protocol,
}

impl Handshaker {
    /// Prepares a connection. Returns `None` if it fails, takes too long, or has no place among the open ones.
    async fn run(self, accepted: Accepted, place: ConnectionPlace) -> Option<Connection> {
        let Accepted { stream, address } = accepted;
        let prepared = tokio::select! {
            biased;
            prepared = timeout(self.limit, self.prepare(stream)) => prepared,
            () = place.evicted() => {
                tracing::debug!(%address, "handshake ended in favour of a new one");
                return None;
            }
        };
        match prepared {
            Ok(Ok((stream, certificate, begun))) => {
                let open = OpenConnection::open(place)?;
                let close = open.close().clone();
                let peer = Peer { address: Some(address), certificate, used_keys: UsedKeys::default(), close };
                Some(Connection { stream: Adapted { stream, adapter: BeginningReplay { unread: begun } }, peer, open })
            }
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!(%address, limit = ?self.limit, "handshake timed out");
                None
            }
        }
    }

    /// Returns the TLS of a connection that begins now, if connections are encrypted.
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        let credentials = self.credentials.current();
        let tls = credentials.tls.as_ref()?;
        Some(if self.protocol == Protocol::Http2 { tls.http2() } else { tls.http1() })
    }

    /// Encrypts a connection. A client that sends a request without TLS gets an answer that it can read.
    async fn encrypt(
        &self,
        mut stream: Box<dyn Duplex>,
        tls: Arc<ServerConfig>,
    ) -> io::Result<TlsStream<Box<dyn Duplex>>> {
        let first = stream.read_u8().await?;
        if begins_without_tls(first) {
            let answer = if self.protocol == Protocol::Http2 { &GRPC_NEEDS_TLS } else { &HTTP_NEEDS_TLS };
            answer.send(&mut stream).await;
            return Err(Error::new(ErrorKind::InvalidData, "the client sent a request without TLS"));
        }
        let replay = BeginningReplay { unread: Bytes::copy_from_slice(&[first]) };
        let stream: Box<dyn Duplex> = Box::new(Adapted { stream, adapter: replay });
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let turn = self.turns.acquire().await.map_err(Error::other)?;
        let mut handshake = pin!(hello.into_stream(tls));
        // The signature is computed now. The client's answer may take long.
        let answered = poll_fn(|cx| Poll::Ready(handshake.as_mut().poll(cx))).await;
        drop(turn);
        match answered {
            Poll::Ready(stream) => stream,
            Poll::Pending => handshake.await,
        }
    }

    /// Encrypts the connection and reads its beginning: the preface of HTTP/2, or else the first bytes of a request. Returns it with
    /// the name in the client's certificate and what was read.
    async fn prepare(&self, stream: Box<dyn Duplex>) -> io::Result<(Box<dyn Duplex>, Option<Arc<str>>, Bytes)> {
        let mut certificate = None;
        let mut stream: Box<dyn Duplex> = match self.tls() {
            None => stream,
            Some(tls) => {
                let stream = self.encrypt(stream, tls).await?;
                let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                certificate = presented.map(certificate_name);
                Box::new(stream)
            }
        };
        if self.protocol == Protocol::Http1 {
            let mut begun = vec![stream.read_u8().await?];
            while PREFACE.starts_with(&begun) && begun.len() < PREFACE.len() {
                begun.push(stream.read_u8().await?);
            }
            if begun != PREFACE {
                return Ok((stream, certificate, begun.into()));
            }
        } else {
            let mut received = PREFACE;
            stream.read_exact(&mut received).await?;
            if received != PREFACE {
                answer_http1(&mut stream, &received).await;
                return Err(Error::new(ErrorKind::InvalidData, "the client does not use HTTP/2"));
            }
        }
        let stream: Box<dyn Duplex> = Box::new(FrameLimits::wrap(stream));
        let stream = if self.behind_proxy { Box::new(DuplicateAckFilter::wrap(stream)) } else { stream };
        Ok((stream, certificate, Bytes::from_static(&PREFACE)))
    }
}

/// A connection after its handshake.
pub(crate) struct Connection {
    pub(crate) stream: Adapted<Box<dyn Duplex>, BeginningReplay>,
    /// The other end.
    pub(crate) peer: Peer,
    /// Its place among the open connections.
    pub(crate) open: OpenConnection,
}

impl Connection {
    /// Returns true if the connection begins with the preface of HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.stream.adapter.unread == PREFACE[..]
    }
}

/// Passes what the handshake has read to the server.
pub(crate) struct BeginningReplay {
    /// Bytes that the server has not read yet.
    unread: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for BeginningReplay {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(stream).poll_read(cx, into);
        }
        let length = self.unread.len().min(into.remaining());
        into.put_slice(&self.unread.split_to(length));
        Poll::Ready(Ok(()))
    }
}

// A listener limits its connections, in all and from one network: an IPv4 address or an IPv6 /64. Incomplete handshakes have places of
// their own, where a new one replaces the oldest of the network with the most. An open connection without a call that needs a key is
// evicted when its network or the listener needs the place. If other calls hold all places, a few more connections are accepted for
// health checks only.

/// Connections that are accepted for health checks when all other places are taken.
const HEALTH_PLACES: usize = 16;

/// There is one place for an incomplete handshake per this many open connections, and at least [`MIN_HANDSHAKES`].
const CONNECTIONS_PER_HANDSHAKE: usize = 8;

const MIN_HANDSHAKES: usize = 16;

/// Connections whose end leaves enough free memory to return it to the system: each has taken up to half a MiB.
const MANY_CONNECTIONS: usize = 32;

/// Delay after which it is returned.
const RETURN_DELAY: Duration = Duration::from_secs(1);

/// Maximum numbers of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Open connections.
    pub(crate) total: usize,
    /// Open connections of one network.
    pub(crate) per_network: usize,
}

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    limits: ConnectionLimits,
    max_handshakes: usize,
    places: Mutex<Places>,
    /// True while new connections are rejected, so that the log has one warning and not thousands.
    rejecting: AtomicBool,
}

#[derive(Debug, Default)]
struct Places {
    /// Number of the next connection, or of the next change from busy to idle. Orders both by age.
    next: u64,
    /// Connections in their handshake, oldest first.
    handshakes: BTreeMap<u64, Entry>,
    /// Connections after their handshake.
    open: HashMap<u64, Entry>,
    /// Connections that may only check health.
    health: HashMap<u64, Entry>,
    /// Open connections of each network that has any.
    by_network: HashMap<IpAddr, usize>,
    /// Maximum open connections since memory was last returned.
    peak: usize,
}

#[derive(Debug)]
struct Entry {
    network: IpAddr,
    /// Number of calls in progress that need a key, if the server has keys.
    calls: usize,
    /// When the last of these ended, or the connection opened, in the order of [`Places::next`].
    idle_since: u64,
    /// True once the connection has to close.
    evicted: watch::Sender<bool>,
}

/// What a connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Any call.
    AllCalls,
    /// Health checks: the listener has no place for more.
    HealthOnly,
}

/// A connection's place in the table. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    table: Arc<ConnectionTable>,
    id: u64,
    evicted: watch::Receiver<bool>,
}

/// A call in progress. Its connection is idle when the last of these is dropped.
#[derive(Debug)]
pub(crate) struct CallInProgress {
    table: Arc<ConnectionTable>,
    id: u64,
    /// False if the connection may be evicted during the call.
    keeps_place: bool,
    /// The connection's number of calls, for those who wait until it is idle.
    calls: watch::Sender<usize>,
}

impl ConnectionTable {
    /// Creates an empty table.
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        let max_handshakes = (limits.total / CONNECTIONS_PER_HANDSHAKE).max(MIN_HANDSHAKES);
        Arc::new(Self { limits, max_handshakes, places: Mutex::default(), rejecting: AtomicBool::new(false) })
    }

    /// Returns a place for a connection that begins its handshake. If there is none left, the oldest handshake of the network
    /// with the most is evicted.
    pub(crate) fn begin_handshake(self: &Arc<Self>, address: IpAddr) -> ConnectionPlace {
        let mut places = self.places();
        if places.handshakes.len() >= self.max_handshakes {
            let all = places.handshakes.iter().map(|(id, entry)| Candidate::new(*id, entry));
            if let Some(id) = oldest_of_largest(all) {
                evict(places.handshakes.remove(&id));
            }
        }
        let id = places.number();
        let (sender, evicted) = watch::channel(false);
        let entry = Entry { network: network(address), calls: 0, idle_since: id, evicted: sender };
        places.handshakes.insert(id, entry);
        ConnectionPlace { table: Arc::clone(self), id, evicted }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Moves a connection to the open ones, if it has a place there or an idle connection can be evicted.
    fn open(&mut self, id: u64, entry: Entry, limits: ConnectionLimits) -> Result<(), Entry> {
        let own = self.by_network.get(&entry.network).copied().unwrap_or(0);
        let victim = if own >= limits.per_network {
            oldest_of_largest(idle(&self.open).filter(|candidate| candidate.network == entry.network))
        } else if self.open.len() >= limits.total {
            // A network whose connections are all busy is not considered, although it may have the most.
            oldest_of_largest(idle(&self.open))
        } else {
            None
        };
        let has_place = own < limits.per_network && self.open.len() < limits.total;
        if let Some(victim) = victim {
            self.remove_open(victim);
        } else if !has_place {
            return Err(entry);
        }
        *self.by_network.entry(entry.network).or_default() += 1;
        self.open.insert(id, entry);
        self.peak = self.peak.max(self.open.len());
        Ok(())
    }

    /// Returns true, once, if most of many connections have closed.
    fn have_left(&mut self) -> bool {
        let have_left = self.peak >= MANY_CONNECTIONS && self.open.len() <= self.peak / 4;
        if have_left {
            self.peak = self.open.len();
        }
        have_left
    }

    /// Accepts a connection for health checks only. If no place is left, the oldest of the network with the most is evicted.
    fn open_for_health(&mut self, id: u64, entry: Entry) {
        if self.health.len() >= HEALTH_PLACES {
            // Also one with a call: a check is short, so a long one has held its place longest.
            let all = self.health.iter().map(|(id, entry)| Candidate::new(*id, entry));
            if let Some(victim) = oldest_of_largest(all) {
                evict(self.health.remove(&victim));
            }
        }
        self.health.insert(id, entry);
    }

    fn remove_open(&mut self, id: u64) {
        let Some(entry) = self.open.remove(&id) else { return };
        if let Some(count) = self.by_network.get_mut(&entry.network) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_network.remove(&entry.network);
            }
        }
        evict(Some(entry));
    }

    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        self.open.get_mut(&id).or_else(|| self.health.get_mut(&id))
    }
}

impl ConnectionPlace {
    /// Opens the connection after its handshake. Returns `None` if it was evicted meanwhile.
    pub(crate) fn open(&self) -> Option<Admission> {
        let mut places = self.table.places();
        // A connection that was evicted meanwhile has no entry.
        let mut entry = places.handshakes.remove(&self.id)?;
        entry.idle_since = places.number();
        let limits = self.table.limits;
        let admission = match places.open(self.id, entry, limits) {
            Ok(()) => Admission::AllCalls,
            Err(entry) => {
                places.open_for_health(self.id, entry);
                Admission::HealthOnly
            }
        };
        drop(places);
        let is_full = admission == Admission::HealthOnly;
        if is_full && !self.table.rejecting.swap(is_full, Relaxed) {
            let ConnectionLimits { total, per_network } = limits;
            tracing::warn!(total, per_network, "rejecting connections: all that a limit allows have calls in progress");
        } else if !is_full {
            self.table.rejecting.store(false, Relaxed);
        }
        Some(admission)
    }

    /// Returns the connection's number, which is unique and grows with each connection.
    pub(crate) fn number(&self) -> u64 {
        self.id
    }

    /// Counts a call until the returned value is dropped. `calls` gets the connection's number of calls at every change. Unless the call
    /// `keeps_place`, the connection may be evicted meanwhile.
    pub(crate) fn begin_call(&self, calls: &watch::Sender<usize>, keeps_place: bool) -> CallInProgress {
        if keeps_place && let Some(entry) = self.table.places().entry(self.id) {
            entry.calls = entry.calls.saturating_add(1);
        }
        calls.send_modify(|calls| *calls = calls.saturating_add(1));
        CallInProgress { table: Arc::clone(&self.table), id: self.id, keeps_place, calls: calls.clone() }
    }

    /// Waits until the connection has to close in favour of another.
    pub(crate) async fn evicted(&self) {
        // An error means that the entry is gone, which happens only with an eviction.
        let _ = self.evicted.clone().wait_for(|evicted| *evicted).await;
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut places = self.table.places();
        places.handshakes.remove(&self.id);
        places.health.remove(&self.id);
        places.remove_open(self.id);
        if places.have_left()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async {
                // the last ones are being dropped
                sleep(RETURN_DELAY).await;
                spawn_blocking(return_free_memory).await
            });
        }
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        if self.keeps_place {
            let mut places = self.table.places();
            let now = places.number();
            if let Some(entry) = places.entry(self.id) {
                entry.calls = entry.calls.saturating_sub(1);
                entry.idle_since = now;
            }
        }
        self.calls.send_modify(|calls| *calls = calls.saturating_sub(1));
    }
}

/// A connection that may be evicted.
struct Candidate {
    id: u64,
    network: IpAddr,
    idle_since: u64,
}

impl Candidate {
    fn new(id: u64, entry: &Entry) -> Self {
        Self { id, network: entry.network, idle_since: entry.idle_since }
    }
}

fn idle(entries: &HashMap<u64, Entry>) -> impl Iterator<Item = Candidate> {
    let idle = entries.iter().filter(|(_, entry)| entry.calls == 0);
    idle.map(|(id, entry)| Candidate::new(*id, entry))
}

/// Returns the number of the oldest connection of the network that has the most.
fn oldest_of_largest(candidates: impl Iterator<Item = Candidate>) -> Option<u64> {
    let mut networks: HashMap<IpAddr, (usize, Candidate)> = HashMap::new();
    for candidate in candidates {
        match networks.entry(candidate.network) {
            hash_map::Entry::Vacant(network) => drop(network.insert((1, candidate))),
            hash_map::Entry::Occupied(mut network) => {
                let (count, oldest) = network.get_mut();
                *count += 1;
                if candidate.idle_since < oldest.idle_since {
                    *oldest = candidate;
                }
            }
        }
    }
    let largest = networks.into_values().max_by_key(|(count, oldest)| (*count, Reverse(oldest.idle_since)));
    largest.map(|(_, oldest)| oldest.id)
}

fn evict(entry: Option<Entry>) {
    if let Some(entry) = entry {
        entry.evicted.send_replace(true);
    }
}

/// Returns the network of an address: the address itself, or the first 64 bits of an IPv6 address, whose site chooses the rest
/// freely.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

// A connection lives until it is evicted, idle for too long, or too old, or until the server closes all. It gets a graceful shutdown
// first: HTTP/2 clients receive GOAWAY and connect again, and HTTP/1.1 clients see the connection close between two requests.

/// How long an evicted connection may take to close: its place has been given away.
const EVICTION_TIME: Duration = Duration::from_millis(100);

/// How long an idle connection may take to close.
const IDLE_CLOSE_TIME: Duration = Duration::from_secs(5);

/// How long a response that did not end in time may take to send an error.
const FAREWELL_TIME: Duration = Duration::from_millis(500);

/// A connection's age limit varies by up to 1/`JITTER` in both directions, so that clients do not all connect again at once.
const JITTER: u32 = 10;

/// Limits on the lifetime of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LifetimeLimits {
    /// Maximum time without a call; none disables the limit.
    pub(crate) idle: Option<Duration>,
    /// Maximum age; none disables the limit.
    pub(crate) age: Option<Duration>,
    /// Time for calls in progress to finish after the maximum age.
    pub(crate) grace: Duration,
}

impl From<&TransportConfig> for LifetimeLimits {
    fn from(config: &TransportConfig) -> Self {
        Self { idle: config.connection_idle, age: config.connection_age, grace: config.connection_age_grace }
    }
}

/// An open connection: its place in the table and its calls in progress. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct OpenConnection {
    place: Arc<ConnectionPlace>,
    admission: Admission,
    /// Number of calls in progress.
    calls: watch::Sender<usize>,
    /// Cancelled when responses must end, because the connection closes soon.
    ending: CancellationToken,
    /// Cancelled to close the connection.
    close: CancellationToken,
}

/// A connection that can finish its calls and then close.
pub(crate) trait ClosingConnection: Future<Output = Result<(), hyper::Error>> + Send {
    /// Takes no more requests, and closes when the calls in progress have ended.
    fn close_gracefully(self: Pin<&mut Self>);
}

impl<C: GracefulConnection<Error = hyper::Error> + Send> ClosingConnection for C {
    fn close_gracefully(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// A connection of hyper's servers, for HTTP/1.1 or HTTP/2.
pub(crate) type HyperConnection = Pin<Box<dyn ClosingConnection>>;

/// Why a connection ends before its client closes it.
enum End {
    Evicted,
    Idle,
    Aged,
    ServerCloses,
}

impl OpenConnection {
    /// Opens a connection after its handshake. Returns `None` if it was evicted meanwhile.
    pub(crate) fn open(place: ConnectionPlace) -> Option<Self> {
        let admission = place.open()?;
        Some(Self {
            place: Arc::new(place),
            admission,
            calls: watch::Sender::new(0),
            ending: CancellationToken::new(),
            close: CancellationToken::new(),
        })
    }

    /// True if the connection may only check health.
    pub(crate) fn is_health_only(&self) -> bool {
        self.admission == Admission::HealthOnly
    }

    /// Is cancelled when responses must end, because the connection closes soon.
    pub(crate) fn ending(&self) -> &CancellationToken {
        &self.ending
    }

    /// Closes the connection once it is cancelled.
    pub(crate) fn close(&self) -> &CancellationToken {
        &self.close
    }

    /// Counts a call until the returned value is dropped.
    pub(crate) fn begin_call(&self) -> CallInProgress {
        self.place.begin_call(&self.calls, true)
    }

    /// Counts a call that needs no key until the returned value is dropped. Meanwhile the connection may be evicted.
    pub(crate) fn begin_keyless_call(&self) -> CallInProgress {
        self.place.begin_call(&self.calls, false)
    }

    /// Returns true if a call is in progress.
    pub(crate) fn has_calls(&self) -> bool {
        *self.calls.borrow() > 0
    }

    /// Waits until no call is in progress.
    pub(crate) async fn calls_ended(self) {
        // The sender is a field of `self`, so there is no error.
        let _ = self.calls.subscribe().wait_for(|calls| *calls == 0).await;
    }

    /// Waits until the connection has to close in favour of another.
    pub(crate) async fn evicted(&self) {
        self.place.evicted().await;
    }

    /// Runs hyper's connection until the client closes it or a limit ends it. An error means that the connection broke.
    pub(crate) async fn run(
        self,
        mut connection: HyperConnection,
        limits: LifetimeLimits,
        closing: CancellationToken,
    ) -> Result<(), hyper::Error> {
        let end = tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = self.evicted() => End::Evicted,
            () = self.close.cancelled() => End::Evicted,
            () = idle_for(self.calls.subscribe(), limits.idle) => End::Idle,
            () = aged(limits.age, self.place.number()) => End::Aged,
            () = closing.cancelled() => End::ServerCloses,
        };
        connection.as_mut().close_gracefully();
        let limit = match end {
            End::Evicted => EVICTION_TIME,
            End::Idle => IDLE_CLOSE_TIME,
            End::Aged => limits.grace,
            // The drain has its own limit.
            End::ServerCloses => return connection.await,
        };
        if let Ok(result) = timeout(limit, connection.as_mut()).await {
            return result;
        }
        self.ending.cancel();
        // A connection that does not close in time is dropped.
        timeout(FAREWELL_TIME, connection).await.unwrap_or(Ok(()))
    }
}

/// Waits until a connection with this number of calls has had none for as long as `limit`.
async fn idle_for(mut calls: watch::Receiver<usize>, limit: Option<Duration>) {
    let Some(limit) = limit else { return std::future::pending().await };
    loop {
        let is_idle = *calls.borrow_and_update() == 0;
        if !is_idle {
            // An error means that the connection is gone.
            let _ = calls.changed().await;
        } else if timeout(limit, calls.changed()).await.is_err() {
            return;
        }
    }
}

/// Waits until a connection that opens now has reached its maximum age. `number` is its number in the order of connections.
async fn aged(limit: Option<Duration>, number: u64) {
    match limit {
        Some(limit) => sleep(with_jitter(limit, scattered(number))).await,
        None => std::future::pending().await,
    }
}

/// Returns a number far from earlier connections' numbers. Consecutive multiples of the golden ratio spread evenly over
/// all values (a Weyl sequence), and repeat in a simulation.
fn scattered(number: u64) -> u32 {
    (number as u32).wrapping_mul(0x9e37_79b9)
}

/// Returns `limit` changed by up to 1/[`JITTER`] in either direction. Any value of `random` is equally likely.
fn with_jitter(limit: Duration, random: u32) -> Duration {
    let spread = limit / JITTER;
    limit - spread + (2 * spread).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

// A client that is rejected in the middle of its request continues to send. A closed connection would answer with a reset, which
// removes the response before the client reads it. So the server ends the response first, and then discards bytes for a while.

/// Maximum time during which the server discards bytes.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// Maximum bytes that it discards.
const LINGER_BYTES: usize = 64 << 20;

/// Maximum bytes discarded at a time.
const CHUNK: usize = 8 << 10;

/// True while the body of a connection's last request has not been read to its end. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadBody(Arc<AtomicBool>);

impl UnreadBody {
    /// Returns the request with a body that records when its end is read.
    pub(crate) fn watch(&self, request: Request) -> Request {
        self.0.store(!request.body().is_end_stream(), Relaxed);
        let unread = self.clone();
        request.map(|body| Body::new(WatchedBody { body, unread }))
    }
}

/// A request's body that records when its end is read.
struct WatchedBody {
    body: Body,
    unread: UnreadBody,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.unread.0.store(false, Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Discards what arrives after the shutdown, if the last request was not read to its end.
pub(crate) struct LingeringClose {
    unread: UnreadBody,
    /// Maximum time to linger.
    limit: Duration,
    /// Expires after `limit`; set once the connection lingers.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes that may still be discarded.
    bytes_left: usize,
}

impl LingeringClose {
    /// Closes `stream` gently; `unread` belongs to its last request.
    pub(crate) fn wrap<S>(stream: S, unread: UnreadBody) -> Adapted<S, Self> {
        Adapted { stream, adapter: Self { unread, limit: LINGER_TIME, timer: None, bytes_left: LINGER_BYTES } }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for LingeringClose {
    fn poll_shutdown(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.timer.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            if !self.unread.0.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        while timer.as_mut().poll(cx).is_pending() {
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            let read = ready!(Pin::new(&mut *stream).poll_read(cx, &mut chunk));
            let bytes = chunk.filled().len();
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
            // A client that has closed or reset its side does not wait for the server.
            if read.is_err() || bytes == 0 || self.bytes_left == 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Size of a connection's send buffer in the operating system. Its default grows to megabytes, which hide a client that reads
/// nothing.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// Bytes of each direction's buffer of a connection within the process.
const IN_PROCESS_BYTES: usize = 64 << 10;

/// Maximum queued connections of a process to itself.
const QUEUED_CONNECTIONS: usize = 4;

/// A source of connections.
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// Connections from the same process. The listener closes when all senders are dropped.
    InProcess(mpsc::Receiver<Accepted>),
}

/// A new connection.
pub struct Accepted {
    /// Its bytes in both directions.
    pub stream: Box<dyn Duplex>,
    /// Address of the client.
    pub address: SocketAddr,
}

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Listener {
    /// Returns a listener and the channel that connects to it, both within this process. The channel connects at the first call, and
    /// reconnects at the first call after the connection has ended. Must run within a runtime.
    pub fn in_process() -> (Self, Channel) {
        let (connections, accepted) = mpsc::channel(QUEUED_CONNECTIONS);
        let connector = service_fn(move |_: Uri| {
            let connections = connections.clone();
            async move {
                let (near, far) = duplex(IN_PROCESS_BYTES);
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let accepted = connections.send(Accepted { stream: Box::new(far), address }).await;
                accepted.map_err(|_| Error::from(ErrorKind::ConnectionRefused))?;
                Ok::<_, Error>(TokioIo::new(near))
            }
        });
        let channel = Endpoint::from_static("http://in-process").connect_with_connector_lazy(connector);
        (Self::InProcess(accepted), channel)
    }

    /// Returns the new connections. TCP probes an idle client every `keepalive`. Dropping the stream closes the listener.
    pub(super) fn connections(
        self,
        keepalive: Option<Duration>,
    ) -> Pin<Box<dyn Stream<Item = io::Result<Accepted>> + Send>> {
        match self {
            // Clients wait for each character, so the kernel must not collect small packets.
            Self::Tcp(listener) => {
                let tcp = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(keepalive);
                Box::pin(tcp.filter_map(|accepted| accepted.map(prepared).transpose()))
            }
            Self::InProcess(accepted) => Box::pin(ReceiverStream::new(accepted).map(Ok)),
        }
    }
}

/// Bounds the send buffer of a connection. Returns `None` if the client has reset it already.
fn prepared(stream: TcpStream) -> Option<Accepted> {
    let address = stream.peer_addr().ok()?;
    if let Err(error) = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES) {
        tracing::debug!(%error, "the send buffer keeps its size");
    }
    Some(Accepted { stream: Box::new(stream), address })
}

/// Serves connections until `closing` is cancelled, and then until the last one has its responses. `start` starts hyper's
/// connection.
pub(crate) async fn serve_connections(
    mut incoming: impl Stream<Item = Connection> + Unpin,
    config: &TransportConfig,
    closing: CancellationToken,
    start: impl Fn(Connection) -> HyperConnection,
) {
    let limits = LifetimeLimits::from(config);
    let mut connections = JoinSet::new();
    loop {
        let connection = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            connection = incoming.next() => connection,
        };
        let Some(connection) = connection else { break };
        let open = connection.open.clone();
        let running = open.run(start(connection), limits, closing.clone());
        connections.spawn(async move {
            if let Err(error) = running.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
    // Closes the listener.
    drop(incoming);
    while connections.join_next().await.is_some() {}
}

/// Maximum length in bytes of a name taken from a certificate.
const NAME_BYTES: usize = 128;

/// Returns the first URI among the certificate's names (as SPIFFE uses it), else the first host name, else the certificate's
/// SHA-256.
pub(super) fn certificate_name(certificate: &CertificateDer<'_>) -> Arc<str> {
    let parsed = EndEntityCert::try_from(certificate).ok();
    let named = parsed.as_ref().and_then(|parsed| parsed.valid_uri_names().chain(parsed.valid_dns_names()).next());
    match named.filter(|name| name.len() <= NAME_BYTES) {
        Some(name) => name.into(),
        None => {
            let digest = Sha256::digest(certificate);
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("sha256:{digits}").into()
        }
    }
}

/// The beginnings of HTTP/1 requests that clients send by mistake.
const MISTAKEN_METHODS: [&[u8]; 5] = [b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS "];

/// Maximum bytes of the request that are read, so that closing the connection does not discard the answer.
const REQUEST_BYTES: u64 = 64 << 10;

/// An answer in HTTP/1, after which the connection ends.
pub(super) struct Answer {
    /// Status and reason.
    status: &'static str,
    text: &'static str,
}

/// The answer of the gRPC port to requests that are not gRPC calls.
pub(super) const NEEDS_GRPC: &str = "This is weir's gRPC port, which answers gRPC calls over HTTP/2 only. The HTTP API has its own port: \
    `weir serve` prints its address at the start, and --http-listen sets it.\n";

/// Status 505 states that the server does not support this version of HTTP.
const GRPC_NEEDS_HTTP2: Answer = Answer { status: "505 HTTP Version Not Supported", text: NEEDS_GRPC };

/// The answer of the gRPC port to a request without TLS.
pub(super) const GRPC_NEEDS_TLS: Answer = Answer {
    status: "400 Bad Request",
    text: "This is weir's gRPC port, which expects TLS: use https:// in the address, or a gRPC channel with TLS.\n",
};

/// The answer of the HTTP port to a request without TLS.
pub(super) const HTTP_NEEDS_TLS: Answer = Answer {
    status: "400 Bad Request",
    text: "This is weir's HTTP port, which expects TLS: use https:// in place of http://.\n",
};

/// Answers a connection to the gRPC port that begins like an HTTP/1 request. The caller limits the time.
pub(super) async fn answer_http1(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), begun: &[u8]) {
    if MISTAKEN_METHODS.iter().any(|method| begun.starts_with(method)) {
        GRPC_NEEDS_HTTP2.send(stream).await;
    }
}

/// Returns true if a connection that should begin with TLS begins with the method of an HTTP request, of version 1 or 2. TLS begins
/// with a byte that is not a letter.
pub(super) fn begins_without_tls(first: u8) -> bool {
    first.is_ascii_uppercase()
}

impl Answer {
    /// Sends the answer, and reads the rest of the request. The caller limits the time.
    pub(super) async fn send(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
        let Self { status, text } = self;
        let length = text.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}");
        // A client that is gone needs no answer.
        let _ = stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n{text}").as_bytes()).await;
        let _ = stream.shutdown().await;
        let _ = copy(&mut stream.take(REQUEST_BYTES), &mut sink()).await;
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the table without connections.
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SanType};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    const ALICE: &str = "10.0.0.1";

    const BOB: &str = "10.0.0.2";

    fn table(total: usize, per_network: usize) -> Arc<ConnectionTable> {
        ConnectionTable::new(ConnectionLimits { total, per_network })
    }

    fn connect(table: &Arc<ConnectionTable>, address: &str) -> (ConnectionPlace, Option<Admission>) {
        let place = table.begin_handshake(address.parse().unwrap());
        let admission = place.open();
        (place, admission)
    }

    fn is_evicted(place: &ConnectionPlace) -> bool {
        *place.evicted.borrow()
    }

    #[test]
    fn failures_to_accept_have_one_line_a_minute() {
        let began = clock::now();
        let mut failures = AcceptFailures::default();
        let mut after = |seconds| failures.0.count(LOG_INTERVAL, began + Duration::from_secs(seconds));
        assert_eq!([after(0), after(1), after(59), after(61), after(62)], [Some(0), None, None, Some(2), None]);
    }

    #[test]
    fn a_handshake_replaces_the_oldest_of_the_largest_network() {
        let table = table(1024, 256);
        let bob = table.begin_handshake(BOB.parse().unwrap());
        let places: Vec<_> = (0..200).map(|_| table.begin_handshake(ALICE.parse().unwrap())).collect();
        let evicted = places.iter().take_while(|place| is_evicted(place)).count();
        assert_eq!(evicted, 201 - 128);
        assert!(!places[evicted..].iter().any(is_evicted));
        assert!(!is_evicted(&bob));
        assert_eq!(bob.open(), Some(Admission::AllCalls));
        assert_eq!(places[0].open(), None);
    }

    #[test]
    fn an_idle_connection_gives_way_to_a_new_one_of_its_network() {
        let table = table(8, 2);
        let (busy, _) = connect(&table, ALICE);
        let calls = watch::Sender::new(0);
        let call = busy.begin_call(&calls, true);
        let (idle, _) = connect(&table, ALICE);
        let (bob, _) = connect(&table, BOB);
        let (_new, admission) = connect(&table, ALICE);
        assert_eq!(admission, Some(Admission::AllCalls));
        assert!(is_evicted(&idle) && !is_evicted(&busy) && !is_evicted(&bob));
        assert_eq!(*calls.borrow(), 1);
        drop(call);
        assert_eq!(*calls.borrow(), 0);
    }

    #[test]
    fn the_least_recently_used_connection_goes_first() {
        let table = table(2, 2);
        let calls = watch::Sender::new(0);
        let (first, _) = connect(&table, ALICE);
        let (second, _) = connect(&table, ALICE);
        drop(first.begin_call(&calls, true));
        let (_third, _) = connect(&table, BOB);
        assert!(is_evicted(&second) && !is_evicted(&first));
    }

    #[test]
    fn calls_that_need_no_key_keep_no_place() {
        let table = table(8, 4);
        let calls = watch::Sender::new(0);
        let (bob, _) = connect(&table, BOB);
        let _watch = bob.begin_call(&calls, false);
        let alices: Vec<_> =
            (0..7).map(|number| connect(&table, if number < 4 { ALICE } else { "10.0.0.3" }).0).collect();
        let watches: Vec<_> = alices.iter().map(|place| place.begin_call(&calls, false)).collect();
        let call = alices[0].begin_call(&calls, true);
        assert_eq!(*calls.borrow(), 9);
        let (_dave, admission) = connect(&table, "10.0.0.4");
        assert_eq!(admission, Some(Admission::AllCalls));
        let evicted: Vec<_> = alices.iter().map(is_evicted).collect();
        assert_eq!(evicted.iter().position(|evicted| *evicted), Some(1), "the oldest of Alice's without another call");
        assert_eq!(evicted.iter().filter(|evicted| **evicted).count(), 1);
        assert!(!is_evicted(&bob));
        drop((watches, call));
        assert_eq!(*calls.borrow(), 1);
    }

    #[test]
    fn health_has_places_when_all_others_are_busy() {
        let table = table(4, 4);
        let calls = watch::Sender::new(0);
        let busy: Vec<_> = (0..4).map(|_| connect(&table, ALICE).0).collect();
        let in_progress: Vec<_> = busy.iter().map(|place| place.begin_call(&calls, true)).collect();
        let (bob, admission) = connect(&table, BOB);
        assert_eq!(admission, Some(Admission::HealthOnly));
        let more: Vec<_> = (0..40).map(|_| connect(&table, ALICE)).collect();
        assert!(more.iter().all(|(_, admission)| *admission == Some(Admission::HealthOnly)));
        assert!(!is_evicted(&bob), "a network with more connections goes first");
        // Also one with a check that never ends.
        let checks: Vec<_> = more.iter().map(|(place, _)| place.begin_call(&calls, true)).collect();
        let (carol, admission) = connect(&table, "10.0.0.3");
        assert_eq!(admission, Some(Admission::HealthOnly));
        assert!(!is_evicted(&bob) && !is_evicted(&carol));
        assert_eq!(table.places().health.len(), HEALTH_PLACES);
        drop(checks);
        drop(in_progress);
        assert_eq!(connect(&table, BOB).1, Some(Admission::AllCalls));
    }

    #[test]
    fn places_are_freed() {
        let table = table(4, 4);
        for _ in 0..100 {
            let (place, admission) = connect(&table, ALICE);
            assert_eq!(admission, Some(Admission::AllCalls));
            drop(place.begin_call(&watch::Sender::new(0), true));
            drop(table.begin_handshake(BOB.parse().unwrap()));
        }
        let places = table.places();
        assert!(places.handshakes.is_empty() && places.open.is_empty() && places.health.is_empty());
        assert!(places.by_network.is_empty());
    }

    #[test]
    fn an_ipv6_site_is_one_network() {
        let of = |address: &str| network(address.parse().unwrap());
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn ages_vary_by_a_tenth() {
        let limit = Duration::from_secs(100);
        let ages = [0, u32::MAX / 2, u32::MAX].map(|random| with_jitter(limit, random).as_secs_f64().round());
        assert_eq!(ages, [90.0, 100.0, 110.0]);
        let mut opened_together: Vec<_> = (100..200).map(|number| with_jitter(limit, scattered(number))).collect();
        opened_together.sort_unstable();
        let mut gaps = opened_together.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
        // even spacing would be 0.2 seconds
        assert!(gaps.all(|gap| gap > 0.05), "{opened_together:?}");
    }

    const SOON: Duration = Duration::from_secs(2);

    fn unread(unread: bool) -> UnreadBody {
        UnreadBody(Arc::new(AtomicBool::new(unread)))
    }

    #[tokio::test]
    async fn late_bytes_are_read_after_the_response() {
        let (server, mut client) = tokio::io::duplex(8);
        let mut server = LingeringClose::wrap(server, unread(true));
        let closes = tokio::spawn(async move {
            server.write_all(b"no").await.unwrap();
            server.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"no");
        // Far more than the pipe holds, so the server must read.
        timeout(SOON, client.write_all(&[7; 4096])).await.expect("the server does not read").unwrap();
        assert!(!closes.is_finished());
        drop(client);
        timeout(SOON, closes).await.expect("did not end when the client left").unwrap();
    }

    #[tokio::test]
    async fn a_request_read_to_its_end_closes_at_once() {
        let (server, _client) = tokio::io::duplex(8);
        let mut server = LingeringClose::wrap(server, unread(false));
        timeout(SOON, server.shutdown()).await.expect("lingered").unwrap();
    }

    #[tokio::test]
    async fn lingering_is_limited_in_time_and_bytes() {
        let (server, _client) = tokio::io::duplex(8);
        let mut silent = LingeringClose::wrap(server, unread(true));
        silent.adapter.limit = Duration::from_millis(50);
        timeout(SOON, silent.shutdown()).await.expect("no time limit").unwrap();
        let mut endless = LingeringClose::wrap(tokio::io::join(tokio::io::repeat(7), tokio::io::sink()), unread(true));
        timeout(LINGER_TIME, endless.shutdown()).await.expect("no byte limit").unwrap();
        assert_eq!(endless.adapter.bytes_left, 0);
    }

    #[tokio::test]
    async fn a_body_counts_as_read_at_its_end() {
        use tokio_stream::StreamExt;
        let unread = UnreadBody::default();
        let request = unread.watch(Request::new(Body::from("some")));
        assert!(unread.0.load(Relaxed));
        let mut parts = request.into_body().into_data_stream();
        while parts.next().await.is_some() {}
        assert!(!unread.0.load(Relaxed));
        drop(unread.watch(Request::new(Body::empty())));
        assert!(!unread.0.load(Relaxed));
    }

    fn certificate(names: &[SanType]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn certificates_are_identified_by_their_names() {
        let uri = SanType::URI("spiffe://example.org/app".try_into().unwrap());
        let dns = SanType::DnsName("app.example.org".try_into().unwrap());
        assert_eq!(&*certificate_name(&certificate(&[dns.clone(), uri])), "spiffe://example.org/app");
        assert_eq!(&*certificate_name(&certificate(&[dns])), "app.example.org");
        let nameless = certificate(&[]);
        let name = certificate_name(&nameless);
        assert!(name.starts_with("sha256:") && name.len() == 7 + 64, "{name}");
        assert_eq!(name, certificate_name(&nameless));
        assert_ne!(name, certificate_name(&certificate(&[])));
    }
}
