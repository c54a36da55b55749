//! What hyper answers by itself to a request whose head it cannot read: a status without a word. A client is told what was wrong,
//! in the same form as of everything else.
//!
//! Nothing of ours is refused without a body, so that an answer which is refused and empty is hyper's; it is written in one piece,
//! as the last one of its connection.

use super::Refusal;
use axum::http::StatusCode;
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How an answer of hyper's ends.
const EMPTY: &str = "content-length: 0\r\n";
/// What every answer's first line begins with, before its status.
const FIRST: &str = "HTTP/1.1 ";

/// A connection whose empty refusals get a body.
pub(super) struct Worded<T> {
    inner: T,
    /// The most bytes of a head.
    header_bytes: usize,
    /// What is written instead of what hyper wrote, and not yet taken.
    left: Vec<u8>,
}

impl<T> Worded<T> {
    /// Of a connection whose requests' heads have at most so many bytes.
    pub(super) fn new(inner: T, header_bytes: usize) -> Self {
        Self { inner, header_bytes, left: Vec::new() }
    }

    /// What is to be said instead, if that is a refusal of hyper's.
    fn instead(&self, written: &[u8]) -> Option<Vec<u8>> {
        let status = written.strip_prefix(FIRST.as_bytes())?.first_chunk::<3>()?;
        let (rule, why) = match status {
            b"400" => ("malformed_head", "the head of the request: it is not as HTTP/1.1 has it".to_owned()),
            b"414" => (
                "oversized_head",
                format!("the path of the request: more than {} bytes, which is the limit", u16::MAX - 1),
            ),
            b"431" => {
                let bytes = self.header_bytes;
                let why =
                    format!("the head of the request: more than {bytes} bytes or 100 fields, which are the limits");
                ("oversized_head", why)
            }
            _ => return None,
        };
        let head = std::str::from_utf8(written).ok()?.strip_suffix("\r\n")?;
        let (before, after) = head.split_once(EMPTY)?;
        let body = Refusal::plain(StatusCode::from_bytes(status).ok()?, rule, why).body().to_string();
        let length = body.len();
        let head = format!("{before}content-type: application/json\r\ncontent-length: {length}\r\n{after}\r\n");
        Some([head, body].concat().into_bytes())
    }
}

impl<T: AsyncWrite + Unpin> Worded<T> {
    /// Writes what is left.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.left.is_empty() {
            let taken = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.left))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.left.drain(..taken);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Worded<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Worded<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_left(cx))?;
        if let Some(instead) = self.instead(bytes) {
            self.left = instead;
            // what is not taken at once is when it is flushed
            return match self.poll_left(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Ready(Ok(bytes.len())),
            };
        }
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // a head that is followed by nothing is one slice
        if let [head] = bytes {
            return self.poll_write(cx, head);
        }
        ready!(self.poll_left(cx))?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_left(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_left(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn passed(written: &[u8]) -> String {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = Worded::new(ours, 100);
        let written = written.to_vec();
        let writes = tokio::spawn(async move {
            ours.write_all(&written).await.unwrap();
            ours.shutdown().await.unwrap();
        });
        let mut seen = String::new();
        theirs.read_to_string(&mut seen).await.unwrap();
        writes.await.unwrap();
        seen
    }

    #[tokio::test]
    async fn an_empty_refusal_says_why() {
        let head =
            "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let seen = passed(head.as_bytes()).await;
        let (head, body) = seen.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431 ") && head.ends_with("date: x"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let why = body["error"]["message"].as_str().unwrap();
        assert!(why.contains("more than 100 bytes"), "{why}");
    }

    #[tokio::test]
    async fn everything_else_passes() {
        for written in [
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "data: HTTP/1.1 400 content-length: 0\r\n\r\n",
            "",
        ] {
            assert_eq!(passed(written.as_bytes()).await, written);
        }
    }
}
