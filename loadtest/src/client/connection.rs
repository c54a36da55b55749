//! Connections to the server. Each is one HTTP/2 connection over one TCP connection. Requests use them in turn.

use crate::error::{Error, Result};
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use weir_proto::failed_connection::FailedConnection;

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
    /// PEM certificates of the authorities that may have signed the server's certificate.
    pub authorities: Option<Vec<u8>>,
    /// Certificate of this client, for servers that require client certificates.
    pub identity: Option<ClientIdentity>,
}

/// Client certificate with its chain, and its private key, both PEM.
#[derive(Clone)]
pub struct ClientIdentity {
    /// Certificate and its chain.
    pub chain: Vec<u8>,
    /// Private key.
    pub key: Vec<u8>,
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
        let channel = self.endpoint()?.connect().await.map_err(|error| self.connect_error(&error))?;
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

    fn connect_error(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        let failed = FailedConnection::new(error);
        let server = self.address.clone();
        let reason = failed.to_string();
        if failed.has_hint() { Error::Explained { server, reason } } else { Error::Remote { server, reason } }
    }

    /// Adds to the error of a connection what answers at the address and what the user can do about it.
    pub async fn diagnose(&self, error: Error) -> Error {
        let Error::Remote { server, reason } = error else { return error };
        let reason = FailedConnection::of_text(reason).explain(&self.address).await;
        Error::Remote { server, reason }
    }

    /// Checks that the address names a port. For a URI without a valid port, HTTP libraries use port 80, and the tester would then
    /// measure another server. Fails if the address names no valid port.
    pub fn check(&self) -> Result<()> {
        let authority = self.address.split_once("://").map_or(self.address.as_str(), |(_, rest)| rest);
        let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
        let with_port = authority.rsplit_once(':').filter(|(host, port)| {
            // colons within an IPv6 address do not begin a port
            let is_host = !host.is_empty() && (!host.contains(':') || host.ends_with(']'));
            is_host && port.chars().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        let expected = "host:port or a URL with a port from 1 to 65535, such as 127.0.0.1:50051 or [::1]:50051";
        with_port.map(|_| ()).ok_or_else(|| Error::option("ADDRESS", &self.address, expected))
    }

    fn endpoint(&self) -> Result<Endpoint> {
        self.check()?;
        let Self { address, authorities, identity, .. } = self;
        let url = if address.contains("://") { address.clone() } else { format!("http://{address}") };
        let encrypted = url.starts_with("https://");
        if encrypted && authorities.is_none() {
            let message = "https:// needs --tls-ca, the authority that signed the server's certificate";
            return Err(Error::Setting(message.into()));
        }
        let endpoint =
            Endpoint::from_shared(url).map_err(|error| self.connect_error(&error))?.connect_timeout(CONNECT_TIMEOUT);
        let mut endpoint =
            endpoint.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        if encrypted {
            let mut tls = ClientTlsConfig::new();
            tls = authorities.iter().fold(tls, |tls, pem| tls.ca_certificate(Certificate::from_pem(pem)));
            tls = identity.iter().fold(tls, |tls, id| tls.identity(Identity::from_pem(&id.chain, &id.key)));
            endpoint = endpoint.tls_config(tls).map_err(|error| self.connect_error(&error))?;
        }
        Ok(endpoint)
    }
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
            let invalid = |_| Error::Setting("the API key contains characters invalid in a header".into());
            let mut header = MetadataValue::try_from(format!("Bearer {key}")).map_err(invalid)?;
            header.set_sensitive(true);
            Ok(header)
        };
        Ok(Self { channel, authorization: key.map(header).transpose()? })
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

/// Converts the status of a failed call to an error.
pub fn remote_error(server: &str, status: &Status) -> Error {
    Error::Remote { server: server.to_owned(), reason: format!("{}: {}", code_name(status), status.message()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_must_name_a_port() {
        let is_valid = |address: &str| ConnectOptions { address: address.into(), ..Default::default() }.check().is_ok();
        for address in ["127.0.0.1:50051", "[::1]:50051", "http://localhost:1", "https://[fe80::1]:65535/", "name:80"] {
            assert!(is_valid(address), "{address}");
        }
        let wrong_ports = ["", ":99999", ":0", ":", ":+80", ":5005l"].map(|port| format!("127.0.0.1{port}"));
        let others = [":50051", "[::1]", "::1", "::1:50051", "http://localhost", "https://localhost/a:5", ""];
        for address in wrong_ports.iter().map(String::as_str).chain(others) {
            assert!(!is_valid(address), "{address}");
        }
    }
}
