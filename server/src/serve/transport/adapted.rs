//! A connection with changed reads or a changed shutdown; everything else passes through.

use std::{
    io::{IoSlice, Result},
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The operations that an adapter may change. The defaults pass through.
pub(crate) trait StreamAdapter<S: AsyncRead + AsyncWrite + Unpin> {
    /// Reads from the connection.
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(stream).poll_read(cx, into)
    }

    /// Closes the connection for writing.
    fn poll_shutdown(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(stream).poll_shutdown(cx)
    }
}

/// A connection behind an adapter.
pub(crate) struct Adapted<S, A> {
    pub(super) stream: S,
    pub(super) adapter: A,
}

impl<S: AsyncRead + AsyncWrite + Unpin, A: StreamAdapter<S> + Unpin> AsyncRead for Adapted<S, A> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let Self { stream, adapter } = self.get_mut();
        adapter.poll_read(stream, cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, A: StreamAdapter<S> + Unpin> AsyncWrite for Adapted<S, A> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { stream, adapter } = self.get_mut();
        adapter.poll_shutdown(stream, cx)
    }
}
