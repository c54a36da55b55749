//! Connections from the listener to the server: limited in number, encrypted, and checked for HTTP/2's preface.
//!
//! An HTTP/2 server waits for the preface without a limit. Here a new connection has [`TransportConfig::handshake`] for TLS and
//! the preface together, and is closed otherwise, so that a silent client occupies a place for seconds only.

use super::{
    adapted::{Adapted, StreamAdapter},
    connection_table::{ConnectionLimits, ConnectionPlace, ConnectionTable},
    lifetime::OpenConnection,
    listener::{Accepted, Duplex, Listener},
    plain_answers::{GRPC_NEEDS_TLS, HTTP_NEEDS_TLS, answer_http1, begins_without_tls},
    settings_ack::DuplicateAckFilter,
    settings_limit::SettingsLimit,
    tls_identity::certificate_name,
};
use crate::{
    config::{LiveCredentials, TransportConfig, UsedKeys},
    serve::call::Peer,
};
use std::{
    future::poll_fn,
    io::{Error, ErrorKind, Result},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use tokio_rustls::{
    LazyConfigAcceptor,
    rustls::{ServerConfig, server::Acceptor},
    server::TlsStream,
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::codegen::Bytes;

/// The first bytes of every HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum connections that wait for the server to take them.
const MAX_READY: usize = 16;
/// Delay before the next attempt when the operating system has no file descriptor left.
const RETRY_DELAY: Duration = Duration::from_millis(100);

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
    mut listener: impl Stream<Item = Result<Accepted>> + Unpin,
    handshaker: Handshaker,
    table: Arc<ConnectionTable>,
    ready: mpsc::Sender<Connection>,
) {
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
            Some(Err(error)) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(RETRY_DELAY).await;
            }
            None => return,
        }
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
            prepared = tokio::time::timeout(self.limit, self.prepare(stream)) => prepared,
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
    async fn encrypt(&self, mut stream: Box<dyn Duplex>, tls: Arc<ServerConfig>) -> Result<TlsStream<Box<dyn Duplex>>> {
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

    /// Encrypts the connection and reads its beginning: the preface of HTTP/2, or the first byte of a request. Returns it with the
    /// name in the client's certificate and what was read.
    async fn prepare(&self, stream: Box<dyn Duplex>) -> Result<(Box<dyn Duplex>, Option<Arc<str>>, Bytes)> {
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
            let first = stream.read_u8().await?;
            return Ok((stream, certificate, Bytes::copy_from_slice(&[first])));
        }
        let mut received = PREFACE;
        stream.read_exact(&mut received).await?;
        if received != PREFACE {
            answer_http1(&mut stream, &received).await;
            return Err(Error::new(ErrorKind::InvalidData, "the client does not use HTTP/2"));
        }
        let stream: Box<dyn Duplex> = Box::new(SettingsLimit::wrap(stream));
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

/// Passes what the handshake has read to the server.
pub(crate) struct BeginningReplay {
    /// Bytes that the server has not read yet.
    unread: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for BeginningReplay {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(stream).poll_read(cx, into);
        }
        let length = self.unread.len().min(into.remaining());
        into.put_slice(&self.unread.split_to(length));
        Poll::Ready(Ok(()))
    }
}
