//! Detects what answers at an address that does not answer as a gRPC server, by sending an HTTP/1 request.
//!
//! An HTTP/1 server answers in HTTP/1, a TLS server with an alert, an HTTP/2 server with its settings. weir's gRPC port answers in
//! HTTP/1 with status 505, which states that it needs HTTP/2. Some TLS servers, weir's among them, answer in HTTP/1 as well, so a
//! second connection sends a TLS record.

use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, lookup_host},
    time::timeout,
};

/// Maximum time to connect, and to answer.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const PROBE: &[u8] = b"GET / HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n";
/// A TLS record with a message that is too short, which a TLS server answers with an alert.
const TLS_PROBE: &[u8] = &[22, 3, 1, 0, 4, 1, 0, 0, 0];
/// Bytes of the answer that identify the protocol.
const ANSWER_BYTES: u64 = 12;
/// The beginning of the answer of a server that supports no HTTP/1.
const HTTP2_ONLY: &[u8] = b"HTTP/1.1 505";

/// The protocol of the listener at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetectedProtocol {
    /// The name service knows no address of the host.
    UnknownHost,
    /// The connection fails: no listener.
    Unreachable,
    /// A listener accepts connections and does not answer.
    Silent,
    /// A listener closes the connection without an answer.
    Closed,
    /// HTTP/1, without TLS.
    Http1,
    /// TLS of any version.
    Tls,
    /// HTTP/2, or an unknown protocol.
    Other,
}

/// Detects what answers at `host`, which is a host name or an address with a port.
pub(super) async fn detect_protocol(host: &str) -> DetectedProtocol {
    match answer_to(host, PROBE).await {
        Err(protocol) => protocol,
        Ok(answer) if is_tls(&answer) => DetectedProtocol::Tls,
        Ok(answer) if answer.starts_with(HTTP2_ONLY) || !answer.starts_with(b"HTTP/") => DetectedProtocol::Other,
        Ok(_) => match answer_to(host, TLS_PROBE).await {
            Ok(answer) if is_tls(&answer) => DetectedProtocol::Tls,
            _ => DetectedProtocol::Http1,
        },
    }
}

/// Returns true for a record of a handshake or an alert, in TLS of any version.
fn is_tls(answer: &[u8]) -> bool {
    matches!(answer, [21 | 22, 3, ..])
}

/// Connects to `host` and sends a probe. Returns the first bytes of the answer. Fails with what a missing answer shows.
async fn answer_to(host: &str, probe: &[u8]) -> Result<Vec<u8>, DetectedProtocol> {
    // A slow name service shows nothing.
    if let Ok(Err(_)) = timeout(PROBE_TIMEOUT, lookup_host(host)).await {
        return Err(DetectedProtocol::UnknownHost);
    }
    let Ok(Ok(mut stream)) = timeout(PROBE_TIMEOUT, TcpStream::connect(host)).await else {
        return Err(DetectedProtocol::Unreachable);
    };
    let mut answer = Vec::new();
    let read = async {
        stream.write_all(probe).await?;
        (&mut stream).take(ANSWER_BYTES).read_to_end(&mut answer).await
    };
    match timeout(PROBE_TIMEOUT, read).await {
        // A server may answer and then close the connection without reading the request.
        Ok(_) if answer.is_empty() => Err(DetectedProtocol::Closed),
        Err(_) if answer.is_empty() => Err(DetectedProtocol::Silent),
        _ => Ok(answer),
    }
}
