//! Acknowledgements of settings that nobody asked for.
//!
//! nginx (1.22, Debian's) may have one left of a replica that failed it, and sends it to the next one that it asks. To HTTP/2 that
//! is an error of the connection, and the request would be lost though this server is well: so what is acknowledged twice is
//! taken out of what is read. Only behind a proxy, that is with late headers.

use std::{
    io::Result,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a frame's head (RFC 9113, section 4.1).
const HEAD: usize = 9;
/// An acknowledgement of settings: no payload, kind 4, flag 1, stream 0.
const ACK: [u8; HEAD] = [0, 0, 0, 4, 1, 0, 0, 0, 0];
/// Bytes that are read at a time.
const CHUNK: usize = 8 << 10;

/// A connection after HTTP/2's preface, without all acknowledgements but the first.
pub(in crate::serve) struct OneAck<S> {
    stream: S,
    frames: Frames,
    chunk: Box<[u8; CHUNK]>,
}

/// What was read, frame by frame.
#[derive(Default)]
struct Frames {
    /// The beginning of a head that has not come whole.
    head: Vec<u8>,
    /// Bytes of the current frame's payload that are still to come.
    payload: usize,
    /// Whether settings were acknowledged.
    acknowledged: bool,
    /// What may be read, from `read` on.
    ready: Vec<u8>,
    read: usize,
}

impl Frames {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let most = if self.payload > 0 { self.payload } else { HEAD - self.head.len() };
            let (part, rest) = bytes.split_at(most.min(bytes.len()));
            bytes = rest;
            if self.payload > 0 {
                self.ready.extend_from_slice(part);
                self.payload -= part.len();
                continue;
            }
            self.head.extend_from_slice(part);
            let &[a, b, c, ..] = self.head.as_slice() else { continue };
            if self.head.len() < HEAD {
                continue;
            }
            let is_ack = self.head == ACK;
            let again = is_ack && self.acknowledged;
            self.acknowledged |= is_ack;
            if !again {
                self.ready.extend_from_slice(&self.head);
                self.payload = u32::from_be_bytes([0, a, b, c]) as usize;
            }
            self.head.clear();
        }
    }

    /// Hands over what is ready; tells whether there was anything.
    fn give(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let left = self.ready.get(self.read..).unwrap_or_default();
        let now = left.len().min(into.remaining());
        into.put_slice(&left[..now]);
        self.read += now;
        if self.read == self.ready.len() {
            self.ready.clear();
            self.read = 0;
        }
        now > 0
    }
}

impl<S> OneAck<S> {
    pub(in crate::serve) fn new(stream: S) -> Self {
        Self { stream, frames: Frames::default(), chunk: Box::new([0; CHUNK]) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for OneAck<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let Self { stream, frames, chunk } = self.get_mut();
        loop {
            if into.remaining() == 0 || frames.give(into) {
                return Poll::Ready(Ok(()));
            }
            let mut part = ReadBuf::new(&mut chunk[..]);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut part))?;
            if part.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            frames.take(part.filled());
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OneAck<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn only_the_first_passes_however_the_bytes_are_cut() {
        let frame =
            |length: u8, kind: u8| [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], &vec![kind; length.into()]].concat();
        // a payload that looks like an acknowledgement is none
        let data = [&[0, 0, 9, 0, 0, 0, 0, 0, 1][..], &ACK].concat();
        let all =
            [frame(6, 4), ACK.to_vec(), frame(3, 1), ACK.to_vec(), data.clone(), ACK.to_vec(), frame(0, 6)].concat();
        let expected = [frame(6, 4), ACK.to_vec(), frame(3, 1), data, frame(0, 6)].concat();
        for cut in 1..all.len() {
            let (mut client, server) = tokio::io::duplex(1 << 16);
            let mut server = OneAck::new(server);
            let sends = async {
                for part in all.chunks(cut) {
                    client.write_all(part).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(client);
            };
            let mut read = Vec::new();
            let (_, got) = tokio::join!(sends, server.read_to_end(&mut read));
            got.unwrap();
            assert_eq!(read, expected, "{cut}");
        }
    }
}
