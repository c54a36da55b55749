//! Connections, from the listener to the server: counted, encrypted, and let through once they have said the first words
//! of HTTP/2, where that is what is spoken.
//!
//! A server of HTTP/2 itself waits for those words without a limit. Here a connection has so long for them, TLS included, and is
//! closed otherwise: one that says nothing, or something else, costs a place for seconds only.

use super::{settings_ack::OneAck, tls_identity::certificate_name};
use crate::{config::Wire, serve::call::Peer};
use std::{
    io::{Error, ErrorKind, IoSlice, Result},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::server::{Connected, TcpIncoming};

/// What every HTTP/2 connection begins with (RFC 9113, section 3.4).
const FIRST_WORDS: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Connections that may wait for the server to take them.
const READY: usize = 16;
/// How long to wait when the operating system has no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum Speech {
    /// gRPC's.
    Http2,
    /// Whose server has a limit of its own for the first words.
    Http1,
}

/// The connections of a listener, as soon as each is through. Ends when it is dropped, and closes the listener. Where headers
/// are late, for a proxy's sake, the listener is closed as soon as the server begins to end: the proxy then goes elsewhere with
/// what is new, before a word is said.
pub(in crate::serve) fn incoming(
    listener: TcpListener,
    wire: &Wire,
    ending: watch::Receiver<bool>,
    speech: Speech,
) -> ReceiverStream<Result<Connection>> {
    // Characters are small and wanted at once: none waits for company in the kernel.
    let listener = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(wire.tcp_keepalive);
    let protocol: &[u8] = if speech == Speech::Http2 { b"h2" } else { b"http/1.1" };
    let tls = wire.access.tls.as_ref().map(|tls| TlsAcceptor::from(tls.config(protocol)));
    let door = Door { tls, handshake: wire.handshake, proxy: wire.late_headers, speech };
    let (ready, through) = mpsc::channel(READY);
    let late = wire.late_headers;
    let closes = async move {
        let mut ending = ending;
        if !late || ending.wait_for(|ending| *ending).await.is_err() {
            std::future::pending().await
        }
    };
    let most = wire.connections;
    tokio::spawn(async move {
        tokio::select! {
            () = accept(listener, door, most, ready.clone()) => {}
            () = closes => ready.closed().await,
        }
    });
    ReceiverStream::new(through)
}

/// What a new connection goes through.
#[derive(Clone)]
struct Door {
    tls: Option<TlsAcceptor>,
    handshake: Duration,
    /// Whether a proxy comes through it.
    proxy: bool,
    speech: Speech,
}

async fn accept(mut listener: TcpIncoming, door: Door, most: usize, ready: mpsc::Sender<Result<Connection>>) {
    let places = Arc::new(Semaphore::new(most));
    let mut full = false;
    // Those that are still at the door end with this function.
    let mut greeted = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            Some(_) = greeted.join_next() => continue,
            () = ready.closed() => return,
        };
        match accepted {
            Some(Ok(stream)) => {
                let place = Arc::clone(&places).try_acquire_owned();
                if place.is_err() && !full {
                    tracing::warn!(most, "refusing connections: as many as there may be are open");
                }
                full = place.is_err();
                let Ok(place) = place else { continue };
                let (door, ready) = (door.clone(), ready.clone());
                greeted.spawn(async move {
                    if let Some(connection) = door.through(stream, place).await {
                        // An error means that the server is gone.
                        let _ = ready.send(Ok(connection)).await;
                    }
                });
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
            None => return,
        }
    }
}

impl Door {
    async fn through(self, stream: TcpStream, place: OwnedSemaphorePermit) -> Option<Connection> {
        let address = stream.peer_addr().ok();
        match tokio::time::timeout(self.handshake, self.greeted(stream)).await {
            Ok(Ok((stream, certificate))) => {
                let peer = Peer { address, certificate };
                // first words that nobody read are none to tell
                let told = if self.speech == Speech::Http2 { 0 } else { FIRST_WORDS.len() };
                Some(Connection { stream, told, peer, _place: place })
            }
            Ok(Err(error)) => {
                tracing::debug!(?address, %error, "closed at the door");
                None
            }
            Err(_) => {
                tracing::debug!(?address, limit = ?self.handshake, "closed at the door: too slow");
                None
            }
        }
    }

    /// Encrypts, and waits for the first words.
    async fn greeted(&self, stream: TcpStream) -> Result<(Box<dyn Duplex>, Option<Arc<str>>)> {
        let mut certificate = None;
        let mut stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let stream = tls.accept(stream).await?;
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                certificate = shown.map(certificate_name);
                Box::new(stream)
            }
        };
        if self.speech == Speech::Http1 {
            return Ok((stream, certificate));
        }
        let mut words = FIRST_WORDS;
        stream.read_exact(&mut words).await?;
        if words != FIRST_WORDS {
            return Err(Error::new(ErrorKind::InvalidData, "it does not speak HTTP/2"));
        }
        Ok((if self.proxy { Box::new(OneAck::new(stream)) } else { stream }, certificate))
    }
}

/// Both directions of a connection.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection whose first words may have been read, and are told again to the server. It holds its place until it is dropped.
pub(in crate::serve) struct Connection {
    stream: Box<dyn Duplex>,
    /// How many of the first words' bytes the server has got.
    told: usize,
    peer: Peer,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let (_, left) = FIRST_WORDS.split_at(self.told);
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        }
        let (now, _) = left.split_at(left.len().min(into.remaining()));
        into.put_slice(now);
        self.told += now.len();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
