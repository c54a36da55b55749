//! Connections, each of HTTP/2 and TCP of its own, among which requests go round.

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

/// How long a connection may take to come about.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most connections.
pub const MAX_CONNECTIONS: usize = 1024;
/// What a request's end is told as that the server had no part in: the tester's own HTTP/2 library gave its connection up.
pub const OWN: &str = "TESTER";
/// Bytes of a stream that may wait to be read. A message is some thirty bytes: thousands of characters.
const STREAM_WINDOW: u32 = 1 << 16;
/// The same of a connection: all streams' together. The library takes a server for an attacker that sends many small frames before
/// they are read, and bears the more of them the larger this window is: with this one about two million, which are half a gigabyte
/// of its own. Streams' windows hold some two thousand messages each.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// How a server is reached.
#[derive(Clone, Default)]
pub struct ConnectOptions {
    /// `host:port`, or a URL; `https://` for TLS.
    pub address: String,
    /// The API key, if the server asks for one.
    pub key: Option<String>,
    /// PEM: those who may have signed the server's certificate.
    pub authorities: Option<Vec<u8>>,
    /// PEM: the certificate, its chain, and the key that the client shows to a server that asks for them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // the keys are nobody's business
        out.debug_struct("Reach").field("address", &self.address).finish_non_exhaustive()
    }
}

impl ConnectOptions {
    /// Connects.
    ///
    /// # Errors
    /// The server is not there, or the key cannot be sent.
    pub async fn connect(&self) -> Result<ServerConnection> {
        let channel = self.endpoint()?.connect().await.map_err(|error| self.failed(&error))?;
        ServerConnection::over(channel, self.key.as_deref())
    }

    /// Opens so many connections.
    ///
    /// # Errors
    /// As for [`ConnectOptions::connect`].
    pub async fn pool(&self, count: usize) -> Result<ConnectionPool> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count.max(1) {
            connections.push(self.connect().await?);
        }
        Ok(ConnectionPool::of(connections))
    }

    fn failed(&self, error: &dyn std::error::Error) -> Error {
        let mut why = error;
        while let Some(source) = why.source() {
            why = source;
        }
        Error::Remote { server: self.address.clone(), answer: why.to_string() }
    }

    /// Checks that the address names a port. A URI without one is one of port 80, and so, to those who parse it, is one whose port is
    /// none: another server would be measured.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self) -> Result<()> {
        let authority = self.address.split_once("://").map_or(self.address.as_str(), |(_, rest)| rest);
        let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
        let named = authority.rsplit_once(':').filter(|(host, port)| {
            // colons of an IPv6 address are no beginning of a port
            let is_host = !host.is_empty() && (!host.contains(':') || host.ends_with(']'));
            is_host && port.chars().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        let bound = "host:port or a URL with a port, which is from 1 to 65535, such as 127.0.0.1:50051 or [::1]:50051";
        named.map(|_| ()).ok_or_else(|| Error::option("ADDRESS", &self.address, bound))
    }

    fn endpoint(&self) -> Result<Endpoint> {
        self.check()?;
        let Self { address, authorities, identity, .. } = self;
        let url = if address.contains("://") { address.clone() } else { format!("http://{address}") };
        let encrypted = url.starts_with("https://");
        if encrypted && authorities.is_none() {
            return Err(Error::Setting("https:// needs --tls-ca, who signed the server's certificate".into()));
        }
        let endpoint = Endpoint::from_shared(url).map_err(|error| self.failed(&error))?.connect_timeout(PATIENCE);
        let mut endpoint =
            endpoint.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        if encrypted {
            let mut tls = ClientTlsConfig::new();
            tls = authorities.iter().fold(tls, |tls, pem| tls.ca_certificate(Certificate::from_pem(pem)));
            tls = identity.iter().fold(tls, |tls, (chain, key)| tls.identity(Identity::from_pem(chain, key)));
            endpoint = endpoint.tls_config(tls).map_err(|error| self.failed(&error))?;
        }
        Ok(endpoint)
    }
}

/// One connection.
#[derive(Debug, Clone)]
pub struct ServerConnection {
    channel: Channel,
    authorization: Option<MetadataValue<Ascii>>,
}

impl ServerConnection {
    /// Over a channel that is there.
    ///
    /// # Errors
    /// A key that no header can hold.
    pub fn over(channel: Channel, key: Option<&str>) -> Result<Self> {
        let header = |key: &str| {
            let header = MetadataValue::try_from(format!("Bearer {key}"));
            let mut header =
                header.map_err(|_| Error::Setting("the API key has characters that no header can hold".into()))?;
            header.set_sensitive(true);
            Ok(header)
        };
        Ok(Self { channel, authorization: key.map(header).transpose()? })
    }

    /// What calls go over.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A message with the key, and the time after which the server is to end the call.
    pub fn request<T>(&self, message: T, timeout: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }
}

/// Connections, taken in turns.
#[derive(Debug)]
pub struct ConnectionPool {
    connections: Vec<ServerConnection>,
    next: AtomicUsize,
}

impl ConnectionPool {
    /// Of these, at least one.
    pub fn of(connections: Vec<ServerConnection>) -> Self {
        Self { connections, next: AtomicUsize::new(0) }
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.connections.len()
    }

    /// Whose turn it is.
    ///
    /// # Errors
    /// There are none.
    pub fn next(&self) -> Result<&ServerConnection, Status> {
        let at = self.next.fetch_add(1, Relaxed).checked_rem(self.connections.len());
        at.and_then(|at| self.connections.get(at)).ok_or_else(|| Status::internal("no connection"))
    }
}

/// The name of a gRPC code, as the specification spells it; [`OWN`] for what the tester's own library ended.
pub fn code(status: &Status) -> &'static str {
    use tonic::Code;
    if is_own(status) {
        return OWN;
    }
    match status.code() {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Whether the HTTP/2 library of this process gave the connection up for too much that came: then the code is its own invention, not
/// the server's word. What it ends because the other side broke the protocol is not the tester's.
fn is_own(status: &Status) -> bool {
    let mut why = std::error::Error::source(status);
    while let Some(error) = why {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let calm = error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
            return calm && error.is_go_away() && error.is_library();
        }
        why = error.source();
    }
    false
}

/// A refusal, as an error.
pub fn refused(server: &str, status: &Status) -> Error {
    Error::Remote { server: server.to_owned(), answer: format!("{}: {}", code(status), status.message()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_port() {
        let is_one =
            |address: &str| ConnectOptions { address: address.into(), ..ConnectOptions::default() }.check().is_ok();
        for address in ["127.0.0.1:50051", "[::1]:50051", "http://localhost:1", "https://[fe80::1]:65535/", "name:80"] {
            assert!(is_one(address), "{address}");
        }
        for address in [
            "127.0.0.1",
            "127.0.0.1:99999",
            "127.0.0.1:0",
            "127.0.0.1:",
            "127.0.0.1:+80",
            "127.0.0.1:5005l",
            ":50051",
            "[::1]",
            "::1",
            "::1:50051",
            "http://localhost",
            "https://localhost/a:5",
            "",
        ] {
            assert!(!is_one(address), "{address}");
        }
    }
}
