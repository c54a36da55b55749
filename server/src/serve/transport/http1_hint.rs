//! The answer to a client that sends HTTP/1 to the gRPC port: a browser, or curl with the wrong port.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The beginnings of requests that clients send by mistake.
const METHODS: [&[u8]; 5] = [b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS "];
/// Status 505 states that the server does not support this version of HTTP. The `content-length` is the length of the last line.
const ANSWER: &[u8] = b"HTTP/1.1 505 HTTP Version Not Supported\r\n\
    content-type: text/plain\r\n\
    content-length: 112\r\n\
    connection: close\r\n\
    \r\n\
    This is weir's gRPC port, which accepts HTTP/2 only. `weir serve --http-listen ADDRESS` opens an HTTP/1.1 port.\n";
/// Maximum bytes of the request that are read, so that closing the connection does not discard the answer.
const REQUEST_BYTES: u64 = 64 << 10;

/// Answers a connection that begins like an HTTP/1 request. The caller limits the time.
pub(super) async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), begun: &[u8]) {
    if !METHODS.iter().any(|method| begun.starts_with(method)) {
        return;
    }
    // A client that is gone needs no answer.
    let _ = stream.write_all(ANSWER).await;
    let _ = stream.shutdown().await;
    let _ = tokio::io::copy(&mut stream.take(REQUEST_BYTES), &mut tokio::io::sink()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answered(begun: &[u8]) -> String {
        let (mut client, mut server) = tokio::io::duplex(1024);
        let reading = tokio::spawn(async move {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        });
        answer(&mut server, begun).await;
        drop(server);
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn only_requests_are_answered() {
        let answer = answered(b"GET / HTTP/1.1\r\nHost: weir").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head} {}", body.len());
        assert!(answered(b"\x16\x03\x01\x02\x00\x01\x00\x01").await.is_empty());
    }
}
