//! Where connections come from: a TCP port, or the same process.

use hyper_util::rt::TokioIo;
use socket2::SockRef;
use std::{
    io::{Error, ErrorKind, Result},
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, duplex},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::transport::{Channel, Endpoint, Uri, server::TcpIncoming};
use tower::service_fn;

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
    ) -> Pin<Box<dyn Stream<Item = Result<Accepted>> + Send>> {
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
