//! Detects what answers at an address that does not answer as a gRPC server, by sending an HTTP/1 request.
//!
//! An HTTP/1 server answers in HTTP/1, a TLS server with an alert, an HTTP/2 server with its settings.

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
const ANSWER_BYTES: usize = 5;

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
    let mut answer = [0; ANSWER_BYTES];
    let read = async {
        stream.write_all(PROBE).await?;
        stream.read_exact(&mut answer).await
    };
    match timeout(PROBE_TIMEOUT, read).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) => return DetectedProtocol::Closed,
        Err(_) => return DetectedProtocol::Silent,
    }
    match answer {
        [b'H', b'T', b'T', b'P', b'/'] => DetectedProtocol::Http1,
        // A TLS alert, of any version.
        [21, 3, ..] => DetectedProtocol::Tls,
        _ => DetectedProtocol::Other,
    }
}
