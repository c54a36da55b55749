//! A connection that reads on after its last response.
//!
//! A client that is rejected in the middle of its request continues to send. A closed connection would answer with a
//! reset, which removes the response before the client reads it. The server therefore ends the response first, and
//! discards the remaining bytes for a while, as other servers do.

use super::adapted::{Adapted, StreamAdapter};
use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
    extract::Request,
};
use http_body::{Frame, SizeHint};
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Maximum time during which the server discards bytes.
const LINGER_TIME: Duration = Duration::from_secs(5);
/// Maximum bytes that it discards.
const LINGER_BYTES: usize = 64 << 20;
/// Maximum bytes discarded at a time.
const CHUNK: usize = 8 << 10;

/// True while the body of a connection's last request has not been read to its end. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadBody(Arc<AtomicBool>);

impl UnreadBody {
    /// Returns the request with a body that records when its end is read.
    pub(crate) fn watch(&self, request: Request) -> Request {
        self.0.store(!request.body().is_end_stream(), Relaxed);
        let unread = self.clone();
        request.map(|body| Body::new(WatchedBody { body, unread }))
    }
}

/// A request's body that records when its end is read.
struct WatchedBody {
    body: Body,
    unread: UnreadBody,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.unread.0.store(false, Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Discards what arrives after the shutdown, if the last request was not read to its end.
pub(crate) struct LingeringClose {
    unread: UnreadBody,
    /// Maximum time to linger.
    limit: Duration,
    /// Expires after `limit`; set once the connection lingers.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes that may still be discarded.
    bytes_left: usize,
}

impl LingeringClose {
    /// Closes `stream` gently; `unread` belongs to its last request.
    pub(crate) fn wrap<S>(stream: S, unread: UnreadBody) -> Adapted<S, Self> {
        Adapted { stream, adapter: Self { unread, limit: LINGER_TIME, timer: None, bytes_left: LINGER_BYTES } }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for LingeringClose {
    fn poll_shutdown(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.timer.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            if !self.unread.0.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        while timer.as_mut().poll(cx).is_pending() {
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            let read = ready!(Pin::new(&mut *stream).poll_read(cx, &mut chunk));
            let bytes = chunk.filled().len();
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
            // A client that has closed or reset its side does not wait for the server.
            if read.is_err() || bytes == 0 || self.bytes_left == 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };

    const SOON: Duration = Duration::from_secs(2);

    fn unread(unread: bool) -> UnreadBody {
        UnreadBody(Arc::new(AtomicBool::new(unread)))
    }

    #[tokio::test]
    async fn late_bytes_are_read_after_the_response() {
        let (server, mut client) = tokio::io::duplex(8);
        let mut server = LingeringClose::wrap(server, unread(true));
        let closes = tokio::spawn(async move {
            server.write_all(b"no").await.unwrap();
            server.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"no");
        // Far more than the pipe holds, so the server must read.
        timeout(SOON, client.write_all(&[7; 4096])).await.expect("the server does not read").unwrap();
        assert!(!closes.is_finished());
        drop(client);
        timeout(SOON, closes).await.expect("did not end when the client left").unwrap();
    }

    #[tokio::test]
    async fn a_request_read_to_its_end_closes_at_once() {
        let (server, _client) = tokio::io::duplex(8);
        let mut server = LingeringClose::wrap(server, unread(false));
        timeout(SOON, server.shutdown()).await.expect("lingered").unwrap();
    }

    #[tokio::test]
    async fn lingering_is_limited_in_time_and_bytes() {
        let (server, _client) = tokio::io::duplex(8);
        let mut silent = LingeringClose::wrap(server, unread(true));
        silent.adapter.limit = Duration::from_millis(50);
        timeout(SOON, silent.shutdown()).await.expect("no time limit").unwrap();
        let mut endless = LingeringClose::wrap(tokio::io::join(tokio::io::repeat(7), tokio::io::sink()), unread(true));
        timeout(LINGER_TIME, endless.shutdown()).await.expect("no byte limit").unwrap();
        assert_eq!(endless.adapter.bytes_left, 0);
    }

    #[tokio::test]
    async fn a_body_counts_as_read_at_its_end() {
        use tokio_stream::StreamExt;
        let unread = UnreadBody::default();
        let request = unread.watch(Request::new(Body::from("some")));
        assert!(unread.0.load(Relaxed));
        let mut parts = request.into_body().into_data_stream();
        while parts.next().await.is_some() {}
        assert!(!unread.0.load(Relaxed));
        drop(unread.watch(Request::new(Body::empty())));
        assert!(!unread.0.load(Relaxed));
    }
}
