//! Detects what answers at an address that does not answer as a gRPC server, by sending an HTTP/1 request.
//!
//! An HTTP/1 server answers in HTTP/1, a TLS server with an alert, an HTTP/2 server with its settings. weir's gRPC port answers in
//! HTTP/1 with status 505, which states that it needs HTTP/2.

use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Maximum time to connect, and to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const PROBE: &[u8] = b"GET / HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n";
/// Bytes of the answer that identify the protocol.
const ANSWER_BYTES: u64 = 12;
/// The beginning of the answer of a server that supports no HTTP/1.
const HTTP2_ONLY: &[u8] = b"HTTP/1.1 505";

/// Advice for a server that serves HTTP/1.
pub(super) const SERVES_HTTP1: &str = "the port serves HTTP/1, like those of --http-listen and --admin-listen: \
                                       give the gRPC address (weir serve --listen)";

/// The protocol of the listener at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetectedProtocol {
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

/// Connects to `host`, sends an HTTP/1 request, and returns the protocol of the answer.
pub(super) async fn detect_protocol(host: &str) -> DetectedProtocol {
    let Ok(Ok(mut stream)) = timeout(PROBE_TIMEOUT, TcpStream::connect(host)).await else {
        return DetectedProtocol::Unreachable;
    };
    let mut answer = Vec::new();
    let read = async {
        stream.write_all(PROBE).await?;
        (&mut stream).take(ANSWER_BYTES).read_to_end(&mut answer).await
    };
    match timeout(PROBE_TIMEOUT, read).await {
        // A server may answer and then close the connection without reading the request.
        Ok(_) if answer.is_empty() => return DetectedProtocol::Closed,
        Err(_) if answer.is_empty() => return DetectedProtocol::Silent,
        _ => {}
    }
    match answer.as_slice() {
        answer if answer.starts_with(HTTP2_ONLY) => DetectedProtocol::Other,
        answer if answer.starts_with(b"HTTP/") => DetectedProtocol::Http1,
        // A TLS alert, of any version.
        [21, 3, ..] => DetectedProtocol::Tls,
        _ => DetectedProtocol::Other,
    }
}
