//! Readable answers to clients that use another protocol than the port: HTTP/1 on the gRPC port, or no TLS on a port that needs it.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The beginnings of HTTP/1 requests that clients send by mistake.
const METHODS: [&[u8]; 5] = [b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS "];
/// Maximum bytes of the request that are read, so that closing the connection does not discard the answer.
const REQUEST_BYTES: u64 = 64 << 10;

/// An answer in HTTP/1, after which the connection ends.
pub(super) struct Answer {
    /// Status and reason.
    status: &'static str,
    text: &'static str,
}

/// The answer of the gRPC port to requests that are not gRPC calls.
pub(super) const NEEDS_GRPC: &str = "This is weir's gRPC port, which answers gRPC calls over HTTP/2 only. The HTTP API has its own port: \
    `weir serve` prints its address at the start, and --http-listen sets it.\n";
/// Status 505 states that the server does not support this version of HTTP.
const GRPC_NEEDS_HTTP2: Answer = Answer { status: "505 HTTP Version Not Supported", text: NEEDS_GRPC };
/// The answer of the gRPC port to a request without TLS.
pub(super) const GRPC_NEEDS_TLS: Answer = Answer {
    status: "400 Bad Request",
    text: "This is weir's gRPC port, which expects TLS: use https:// in the address, or a gRPC channel with TLS.\n",
};
/// The answer of the HTTP port to a request without TLS.
pub(super) const HTTP_NEEDS_TLS: Answer = Answer {
    status: "400 Bad Request",
    text: "This is weir's HTTP port, which expects TLS: use https:// in place of http://.\n",
};

/// Answers a connection to the gRPC port that begins like an HTTP/1 request. The caller limits the time.
pub(super) async fn answer_http1(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), begun: &[u8]) {
    if METHODS.iter().any(|method| begun.starts_with(method)) {
        GRPC_NEEDS_HTTP2.send(stream).await;
    }
}

/// Returns true if a connection that should begin with TLS begins with the method of an HTTP request, of version 1 or 2. TLS begins
/// with a byte that is not a letter.
pub(super) fn begins_without_tls(first: u8) -> bool {
    first.is_ascii_uppercase()
}

impl Answer {
    /// Sends the answer, and reads the rest of the request. The caller limits the time.
    pub(super) async fn send(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
        let Self { status, text } = self;
        let length = text.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}");
        // A client that is gone needs no answer.
        let _ = stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n{text}").as_bytes()).await;
        let _ = stream.shutdown().await;
        let _ = tokio::io::copy(&mut stream.take(REQUEST_BYTES), &mut tokio::io::sink()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;

    /// Returns what a client receives from `answer`.
    async fn received(answer: impl AsyncFnOnce(&mut DuplexStream)) -> String {
        let (mut client, mut server) = tokio::io::duplex(1024);
        let reading = tokio::spawn(async move {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        });
        answer(&mut server).await;
        drop(server);
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn only_requests_are_answered() {
        let answered = async |begun: &[u8]| received(async |server| answer_http1(server, begun).await).await;
        let answer = answered(b"GET / HTTP/1.1\r\nHost: weir").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 505 ") && head.contains(&format!("content-length: {}", body.len())),
            "{head}"
        );
        assert!(answered(b"\x16\x03\x01\x02\x00\x01\x00\x01").await.is_empty());
    }

    #[tokio::test]
    async fn ports_with_tls_name_the_scheme() {
        for (answer, port) in [(&GRPC_NEEDS_TLS, "gRPC port"), (&HTTP_NEEDS_TLS, "HTTP port")] {
            let answer = received(async |server| answer.send(server).await).await;
            assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n") && answer.contains("\r\nconnection: close\r\n"));
            assert!(answer.contains(port) && answer.contains("use https://"), "{answer}");
        }
        assert!(begins_without_tls(b'G') && begins_without_tls(b'P'));
        assert!(![0x16, 0x80, 0, b' '].into_iter().any(begins_without_tls));
    }
}
