//! A connection whose other end has to read: HTTP/1.1 has no way to end an answer but to close it, and one that nobody reads would
//! keep its place for ever.

use std::{
    io::{Error, ErrorKind, IoSlice, Result},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A connection that breaks when nothing that is written to it is taken for so long.
pub(in crate::serve) struct Patient<T> {
    inner: T,
    limit: Duration,
    /// There while something waits to be taken.
    late: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    /// Of a connection.
    pub(in crate::serve) fn new(inner: T, limit: Duration) -> Self {
        Self { inner, limit, late: None }
    }

    /// What came of an attempt to write.
    fn waited<V>(&mut self, cx: &mut Context<'_>, done: Poll<Result<V>>) -> Poll<Result<V>> {
        if done.is_ready() {
            self.late = None;
            return done;
        }
        let limit = self.limit;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(limit)));
        late.as_mut().poll(cx).map(|()| Err(Error::new(ErrorKind::TimedOut, "the client did not read its response")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.waited(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.waited(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let done = Pin::new(&mut self.inner).poll_flush(cx);
        self.waited(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let done = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.waited(cx, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn only_one_that_takes_nothing_is_broken() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut ours = Patient::new(ours, Duration::from_millis(300));
        let reads = tokio::spawn(async move {
            let mut all = Vec::new();
            for _ in 0..4 {
                // slowly, but for ever
                tokio::time::sleep(Duration::from_millis(100)).await;
                let mut some = [0; 8];
                let count = theirs.read(&mut some).await.unwrap();
                all.extend_from_slice(&some[..count]);
            }
            (all, theirs)
        });
        ours.write_all(&[7; 32]).await.unwrap();
        let (all, _theirs) = reads.await.unwrap();
        assert_eq!(all, [7; 32]);
        let error = ours.write_all(&[7; 32]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
