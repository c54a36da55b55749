//! Detects what answers at an address that does not answer as a gRPC server, by sending an HTTP/1 request.
//!
//! An HTTP/1 server answers in HTTP/1, a TLS server with an alert, an HTTP/2 server with its settings.

use super::connection::ConnectOptions;
use crate::error::Error;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Longest time to connect, and to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const PROBE: &[u8] = b"GET / HTTP/1.1\r\nhost: weir-loadtest\r\nconnection: close\r\n\r\n";
/// Bytes of the answer that identify the protocol.
const ANSWER_BYTES: usize = 5;

/// Protocol of the listener at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DetectedProtocol {
    /// The connection fails: no listener.
    Unreachable,
    /// A listener accepts connections and does not answer.
    Silent,
    Http1,
    Tls,
    /// HTTP/2, or something unknown.
    Other,
}

impl ConnectOptions {
    /// Adds to a connection error what answers at the address and what the user can do about it.
    pub async fn diagnose(&self, error: Error) -> Error {
        use DetectedProtocol::{Http1, Other, Silent, Tls, Unreachable};
        let Error::Remote { server, reason } = error else { return error };
        let (host, encrypted) = self.host();
        let hint = match (detect_protocol(&host).await, encrypted) {
            (Unreachable, _) => {
                "no server is reachable there: is it started, and is the address right? --wait waits for a server to start"
            }
            (Silent, _) => "a listener there accepts connections but does not answer: is it the server's address?",
            (Http1, false) => {
                "the port speaks HTTP/1, as the ports for administration (--admin-listen) and HTTP (--http-listen) do: use the \
                 gRPC address (--listen of `weir serve`)"
            }
            // proxies that require TLS answer plain requests in HTTP/1
            (Http1, true) => {
                "the port answers in HTTP/1: is it a gRPC port, and does it use TLS? If it does not use TLS, leave out https://"
            }
            (Other, true) => "the port does not use TLS: leave out https://",
            (Tls, false) => "the port expects TLS: use https:// and --tls-ca",
            (Tls, true) | (Other, false) => return Error::Remote { server, reason },
        };
        Error::Remote { server, reason: format!("{hint} ({reason})") }
    }

    /// Returns host and port, and true if the connection uses TLS.
    fn host(&self) -> (String, bool) {
        let (scheme, rest) = self.address.split_once("://").unwrap_or(("http", &self.address));
        let encrypted = scheme == "https";
        let host = rest.split('/').next().unwrap_or(rest);
        let has_port = host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
        let port = if encrypted { 443 } else { 80 };
        (if has_port { host.to_owned() } else { format!("{host}:{port}") }, encrypted)
    }
}

async fn detect_protocol(host: &str) -> DetectedProtocol {
    let Ok(Ok(mut stream)) = timeout(PROBE_TIMEOUT, TcpStream::connect(host)).await else {
        return DetectedProtocol::Unreachable;
    };
    let mut answer = [0; ANSWER_BYTES];
    let read = async {
        stream.write_all(PROBE).await?;
        stream.read_exact(&mut answer).await
    };
    match timeout(PROBE_TIMEOUT, read).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => return DetectedProtocol::Silent,
    }
    match answer {
        [b'H', b'T', b'T', b'P', b'/'] => DetectedProtocol::Http1,
        // a TLS alert, of any version
        [21, 3, ..] => DetectedProtocol::Tls,
        _ => DetectedProtocol::Other,
    }
}
