//! A connection that is closed gently: a client that is refused before it has sent its request in whole goes on to send it, and what
//! it sends to a closed connection would be answered by a reset, which takes the refusal away before it is read. So the end of the
//! answer is told first, and what still comes is thrown away for a while, as other servers do it.

use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
    extract::Request,
};
use http_body::{Frame, SizeHint};
use std::{
    future::Future,
    io::{self, IoSlice},
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

/// How long what still comes is thrown away at most.
const TIME: Duration = Duration::from_secs(5);
/// How many bytes of it.
const BYTES: usize = 64 << 20;
/// How many at a time.
const PART: usize = 8 << 10;

/// Whether the last request of a connection has not been read to its end.
#[derive(Debug, Clone, Default)]
pub(in crate::serve) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// The same request, whose end is seen.
    pub(in crate::serve) fn watch(&self, request: Request) -> Request {
        self.0.store(!request.body().is_end_stream(), Relaxed);
        let unread = self.clone();
        request.map(|body| Body::new(Watched { body, unread }))
    }
}

/// A request's body.
struct Watched {
    body: Body,
    unread: Unread,
}

impl HttpBody for Watched {
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

/// A connection that reads on for a while after its last word, if its last request was not read to its end.
pub(in crate::serve) struct Lingering<T> {
    inner: T,
    unread: Unread,
    /// How long it reads on at most.
    time: Duration,
    /// When it has read on for so long, once it does.
    late: Option<Pin<Box<Sleep>>>,
    /// Bytes that may still be thrown away.
    left: usize,
}

impl<T> Lingering<T> {
    /// Of a connection, by what is known of its last request.
    pub(in crate::serve) fn new(inner: T, unread: Unread) -> Self {
        Self { inner, unread, time: TIME, late: None, left: BYTES }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Lingering<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.late.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
            if !this.unread.0.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let time = this.time;
        let late = this.late.get_or_insert_with(|| Box::pin(sleep(time)));
        while late.as_mut().poll(cx).is_pending() {
            let mut part = [0; PART];
            let mut part = ReadBuf::new(&mut part);
            let read = ready!(Pin::new(&mut this.inner).poll_read(cx, &mut part));
            let bytes = part.filled().len();
            this.left = this.left.saturating_sub(bytes);
            // a client that has closed or reset its side waits for nothing
            if read.is_err() || bytes == 0 || this.left == 0 {
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

    fn unread(unread: bool) -> Unread {
        Unread(Arc::new(AtomicBool::new(unread)))
    }

    #[tokio::test]
    async fn what_still_comes_is_read_after_the_answer() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut ours = Lingering::new(ours, unread(true));
        let closes = tokio::spawn(async move {
            ours.write_all(b"no").await.unwrap();
            ours.shutdown().await.unwrap();
        });
        let mut told = Vec::new();
        theirs.read_to_end(&mut told).await.unwrap();
        assert_eq!(told, b"no");
        // far more than fits between them: somebody reads it
        timeout(SOON, theirs.write_all(&[7; 4096])).await.expect("nobody reads").unwrap();
        assert!(!closes.is_finished());
        drop(theirs);
        timeout(SOON, closes).await.expect("it ends with its client").unwrap();
    }

    #[tokio::test]
    async fn a_request_that_was_read_is_not_waited_for() {
        let (ours, _theirs) = tokio::io::duplex(8);
        let mut ours = Lingering::new(ours, unread(false));
        timeout(SOON, ours.shutdown()).await.expect("at once").unwrap();
    }

    #[tokio::test]
    async fn it_has_an_end() {
        let (ours, _theirs) = tokio::io::duplex(8);
        let time = Duration::from_millis(50);
        let mut silent = Lingering { time, ..Lingering::new(ours, unread(true)) };
        timeout(SOON, silent.shutdown()).await.expect("by time").unwrap();
        let mut endless = Lingering::new(tokio::io::join(tokio::io::repeat(7), tokio::io::sink()), unread(true));
        timeout(TIME, endless.shutdown()).await.expect("by bytes").unwrap();
        assert_eq!(endless.left, 0);
    }

    #[tokio::test]
    async fn a_body_is_read_once_its_end_is_seen() {
        use tokio_stream::StreamExt;
        let unread = Unread::default();
        let request = unread.watch(Request::new(Body::from("some")));
        assert!(unread.0.load(Relaxed));
        let mut parts = request.into_body().into_data_stream();
        while parts.next().await.is_some() {}
        assert!(!unread.0.load(Relaxed));
        drop(unread.watch(Request::new(Body::empty())));
        assert!(!unread.0.load(Relaxed));
    }
}
