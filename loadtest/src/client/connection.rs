//! Connections to the server. Each is one HTTP/2 connection over one TCP connection. Requests use them in turn.

use crate::error::{Error, Result};
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use weir_proto::{
    client_tls::ClientTls,
    failed_connection::{FailedConnection, with_key_flags},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum connections.
pub const MAX_CONNECTIONS: usize = 1024;
/// Code that reports show for a request that the server did not end: this program's own HTTP/2 library closed the connection.
pub const TESTER_CODE: &str = "TESTER";
/// Flow-control window of a stream, in bytes: room for about 2,000 unread messages of about 30 bytes.
const STREAM_WINDOW: u32 = 1 << 16;
/// Flow-control window of a connection, in bytes. The h2 library treats many small unread frames as an attack. The larger this
/// window, the more of them it allows: with this one about two million, which take half a gigabyte of its memory.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// How to connect to a server.
#[derive(Clone, Default)]
pub struct ConnectOptions {
    /// `host:port`, or a URL; `https://` for TLS.
    pub address: String,
    /// API key, if the server requires one.
    pub key: Option<String>,
    /// The authorities that may have signed the server's certificate, and the client's own certificate.
    pub tls: ClientTls,
}

impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // keys must not appear in logs
        out.debug_struct("ConnectOptions").field("address", &self.address).finish_non_exhaustive()
    }
}

impl ConnectOptions {
    /// Opens one connection. Fails if the server is unreachable, or the key is not a valid header value.
    pub async fn connect(&self) -> Result<ServerConnection> {
        let endpoint = self.tls.endpoint(&self.address).map_err(Error::Setting)?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let channel = endpoint.connect().await.map_err(|error| connection_error(&self.address, &error))?;
        ServerConnection::new(channel, self.key.as_deref())
    }

    /// Opens `count` connections, at least one. Fails as [`ConnectOptions::connect`] does.
    pub async fn pool(&self, count: usize) -> Result<ConnectionPool> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count.max(1) {
            connections.push(self.connect().await?);
        }
        Ok(ConnectionPool::new(connections))
    }

    /// Adds to the error of a connection what answers at the address and what the user can do about it.
    pub async fn diagnose(&self, error: Error) -> Error {
        let Error::Connection { server, failed } = error else { return error };
        let reason = failed.explain(&self.address, &self.tls).await;
        Error::Remote { server, reason }
    }
}

fn connection_error(server: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Connection { server: server.to_owned(), failed: FailedConnection::new(error) }
}

/// One connection and the key that its requests carry.
#[derive(Debug, Clone)]
pub struct ServerConnection {
    channel: Channel,
    authorization: Option<MetadataValue<Ascii>>,
}

impl ServerConnection {
    /// Wraps an open channel. Fails if the key is not a valid header value.
    pub fn new(channel: Channel, key: Option<&str>) -> Result<Self> {
        let header = |key: &str| {
            let invalid = |_| Error::option("the API key", "others", "characters that an HTTP header allows");
            let mut header = MetadataValue::try_from(format!("Bearer {key}")).map_err(invalid)?;
            header.set_sensitive(true);
            Ok(header)
        };
        Ok(Self { channel, authorization: key.map(header).transpose()? })
    }

    /// Returns true if the requests carry an API key.
    pub fn has_key(&self) -> bool {
        self.authorization.is_some()
    }

    /// Returns the channel for gRPC clients.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Builds a request with the key and a deadline of `timeout`.
    pub fn request<T>(&self, message: T, timeout: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }
}

/// Connections used in turn.
#[derive(Debug)]
pub struct ConnectionPool {
    pub(crate) connections: Vec<ServerConnection>,
    next: AtomicUsize,
}

impl ConnectionPool {
    /// Builds a pool. [`next`](Self::next) fails if `connections` is empty.
    pub fn new(connections: Vec<ServerConnection>) -> Self {
        Self { connections, next: AtomicUsize::new(0) }
    }

    /// Returns the next connection. Fails if the pool is empty.
    pub fn next(&self) -> Result<&ServerConnection, Status> {
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

/// Converts the status of a failed call to an error. `has_key` is true if the call carried an API key.
pub fn remote_error(server: &str, status: &Status, has_key: bool) -> Error {
    if let Some(cause) = std::error::Error::source(status) {
        return connection_error(server, cause);
    }
    let mut message = status.message().to_owned();
    if status.code() == Code::Unauthenticated {
        message = with_key_flags(&message, has_key);
    }
    // weir's own messages may begin with the code.
    let code = code_name(status);
    let has_code = message.split_once(':').is_some_and(|(begin, _)| begin.eq_ignore_ascii_case(code));
    let reason = if has_code { message } else { format!("{code}: {message}") };
    Error::Remote { server: server.to_owned(), reason }
}
