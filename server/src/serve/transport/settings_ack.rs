//! Removes duplicate acknowledgements of HTTP/2 settings from a client's bytes.
//!
//! nginx (1.22, as Debian ships it) may hold an acknowledgement that a failed replica left behind, and sends it to the next
//! replica. HTTP/2 treats it as a connection error, so the request would be lost although this server works. The server therefore
//! drops every acknowledgement but the first. It does so only behind a proxy, which is the case if it sends headers late.

use super::{
    adapted::{Adapted, StreamAdapter},
    frames::{FrameHeader, FramePart, FrameReader},
};
use std::{
    io::Result,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// An acknowledgement of settings: no payload, type 4, flag 1, stream 0.
const ACK: FrameHeader = FrameHeader([0, 0, 0, 4, 1, 0, 0, 0, 0]);
/// Maximum bytes read at a time.
const CHUNK: usize = 8 << 10;

/// Drops all acknowledgements of settings but the first. The stream starts after HTTP/2's preface.
pub(super) struct DuplicateAckFilter {
    frames: FrameFilter,
    chunk: Box<[u8; CHUNK]>,
}

/// Collects the frames that the server may read.
#[derive(Default)]
struct FrameFilter {
    frames: FrameReader,
    /// True once settings were acknowledged.
    acknowledged: bool,
    /// Bytes that the server may read, from `consumed` on.
    ready: Vec<u8>,
    consumed: usize,
}

impl FrameFilter {
    fn push(&mut self, bytes: &[u8]) {
        let Self { frames, acknowledged, ready, .. } = self;
        frames.read(bytes, |part| match part {
            // It has no payload.
            FramePart::Header(header) if header == ACK && *acknowledged => {}
            FramePart::Header(header) => {
                *acknowledged |= header == ACK;
                ready.extend_from_slice(&header.0);
            }
            FramePart::Payload(bytes) => ready.extend_from_slice(bytes),
        });
    }

    /// Copies ready bytes to `into`. Returns true if there were any.
    fn pop(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let left = self.ready.get(self.consumed..).unwrap_or_default();
        let count = left.len().min(into.remaining());
        into.put_slice(&left[..count]);
        self.consumed += count;
        if self.consumed == self.ready.len() {
            self.ready.clear();
            self.consumed = 0;
        }
        count > 0
    }
}

impl DuplicateAckFilter {
    /// Filters the bytes that the server reads from `stream`.
    pub(super) fn wrap<S>(stream: S) -> Adapted<S, Self> {
        Adapted { stream, adapter: Self { frames: FrameFilter::default(), chunk: Box::new([0; CHUNK]) } }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for DuplicateAckFilter {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        loop {
            if into.remaining() == 0 || self.frames.pop(into) {
                return Poll::Ready(Ok(()));
            }
            let mut part = ReadBuf::new(&mut self.chunk[..]);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut part))?;
            if part.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.frames.push(part.filled());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn only_the_first_ack_passes_however_the_bytes_are_split() {
        let frame =
            |length: u8, kind: u8| [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], &vec![kind; length.into()]].concat();
        // A payload that looks like an acknowledgement stays.
        let data = [&[0, 0, 9, 0, 0, 0, 0, 0, 1][..], &ACK.0].concat();
        let all = [frame(6, 4), ACK.0.to_vec(), frame(3, 1), ACK.0.to_vec(), data.clone(), ACK.0.to_vec(), frame(0, 6)]
            .concat();
        let expected = [frame(6, 4), ACK.0.to_vec(), frame(3, 1), data, frame(0, 6)].concat();
        for size in 1..all.len() {
            let (mut client, server) = tokio::io::duplex(1 << 16);
            let mut server = DuplicateAckFilter::wrap(server);
            let sends = async {
                for part in all.chunks(size) {
                    client.write_all(part).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(client);
            };
            let mut read = Vec::new();
            let (_, result) = tokio::join!(sends, server.read_to_end(&mut read));
            result.unwrap();
            assert_eq!(read, expected, "{size}");
        }
    }
}
