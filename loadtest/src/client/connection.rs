//! Connections to the server. Each is one HTTP/2 connection over one TCP connection. Requests use them in turn.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tonic::Status;
use weir_client::connection::{Client, ConnectError, ServerEndpoint};

/// Maximum connections.
pub const MAX_CONNECTIONS: usize = 1024;
/// Code that reports show for a request that the server did not end: this program's own HTTP/2 library closed the connection.
pub const TESTER_CODE: &str = "TESTER";
/// Flow-control window of a stream, in bytes: room for about 2,000 unread messages of about 30 bytes.
const STREAM_WINDOW: u32 = 1 << 16;
/// Flow-control window of a connection, in bytes. The h2 library treats many small unread frames as an attack. The larger this
/// window, the more of them it allows: with this one about two million, which take half a gigabyte of its memory.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Opens one connection. Fails if the server is unreachable, or the key is not a valid header value.
pub async fn connect(server: &ServerEndpoint) -> Result<Client, ConnectError> {
    let opened = server.connect_with(|endpoint| {
        endpoint.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW)
    });
    opened.await
}

/// Opens `count` connections, at least one. Fails as [`connect`] does, with what answers at the address.
pub async fn pool(server: &ServerEndpoint, count: usize) -> Result<ConnectionPool> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        match connect(server).await {
            Ok(connection) => connections.push(connection),
            Err(error) => return Err(Error::Server(server.explain(error).await.to_string())),
        }
    }
    Ok(ConnectionPool::new(connections))
}

/// Connections used in turn.
#[derive(Debug)]
pub struct ConnectionPool {
    pub(crate) connections: Vec<Client>,
    next: AtomicUsize,
}

impl ConnectionPool {
    /// Builds a pool. [`next`](Self::next) fails if `connections` is empty.
    pub fn new(connections: Vec<Client>) -> Self {
        Self { connections, next: AtomicUsize::new(0) }
    }

    /// Returns the next connection. Fails if the pool is empty.
    pub fn next(&self) -> Result<&Client, Status> {
        let index = self.next.fetch_add(1, Relaxed).checked_rem(self.connections.len());
        index.and_then(|index| self.connections.get(index)).ok_or_else(|| Status::internal("no connection"))
    }
}

/// Returns the name of the gRPC code as the specification spells it, or [`TESTER_CODE`] if this program's HTTP/2 library ended the
/// request.
pub fn code_name(status: &Status) -> &'static str {
    if ended_by_tester(status) { TESTER_CODE } else { weir_proto::CODE_NAMES[status.code() as usize] }
}

/// True if this program's HTTP/2 library closed the connection because of too many unread frames. The server then sent no code. A
/// connection that was closed because the server broke the protocol does not count.
fn ended_by_tester(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let too_many_frames = error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
            return too_many_frames && error.is_go_away() && error.is_library();
        }
        source = error.source();
    }
    false
}
