//! Where connections come from: a TCP port, or the same process.

use socket2::SockRef;
use std::{io::Result, net::SocketAddr, pin::Pin, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::transport::server::TcpIncoming;

/// Size of a connection's send buffer in the operating system. Its default grows to megabytes, which hide a client that reads
/// nothing.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// A source of connections.
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// Connections from the same process, for simulations. The listener closes when all senders are dropped.
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
