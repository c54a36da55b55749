//! Filters of byte streams: the frames of HTTP/2 that hyper must not see.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use weir_engine::clock;

/// The operations that an adapter may change. The defaults pass through.
pub(crate) trait StreamAdapter<S: AsyncRead + AsyncWrite + Unpin> {
    /// Reads from the connection.
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(stream).poll_read(cx, into)
    }

    /// Closes the connection for writing.
    fn poll_shutdown(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(stream).poll_shutdown(cx)
    }
}

/// A connection behind an adapter.
pub(crate) struct Adapted<S, A> {
    pub(super) stream: S,
    pub(super) adapter: A,
}

impl<S: AsyncRead + AsyncWrite + Unpin, A: StreamAdapter<S> + Unpin> AsyncRead for Adapted<S, A> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, adapter } = self.get_mut();
        adapter.poll_read(stream, cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, A: StreamAdapter<S> + Unpin> AsyncWrite for Adapted<S, A> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, adapter } = self.get_mut();
        adapter.poll_shutdown(stream, cx)
    }
}

/// Length in bytes of a frame's header (RFC 9113, section 4.1).
const HEADER_BYTES: usize = 9;

/// The type of a frame that begins a call, or ends one.
const HEADERS: u8 = 1;

/// The type of a frame with settings.
const SETTINGS: u8 = 4;

/// The flag of an acknowledgement.
const ACK: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader(pub(super) [u8; HEADER_BYTES]);

impl FrameHeader {
    /// Returns the length of the frame's payload in bytes.
    pub(crate) fn payload(self) -> usize {
        let [a, b, c, ..] = self.0;
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    /// Returns true for a frame that begins a call, or ends one.
    fn has_headers(self) -> bool {
        let [_, _, _, kind, ..] = self.0;
        kind == HEADERS
    }

    /// Returns true for a frame with settings, false for an acknowledgement of them.
    pub(super) fn changes_settings(self) -> bool {
        let [_, _, _, kind, flags, ..] = self.0;
        kind == SETTINGS && flags & ACK == 0
    }
}

pub(super) enum FramePart<'a> {
    Header(FrameHeader),
    /// Bytes of the payload, which may come in several parts.
    Payload(&'a [u8]),
}

/// Finds frames, however the bytes are split. The bytes start after HTTP/2's preface.
#[derive(Default)]
pub(super) struct FrameReader {
    /// The start of a header that has not arrived completely.
    header: [u8; HEADER_BYTES],
    /// Its length.
    length: usize,
    /// Bytes of the current frame's payload that have not arrived.
    payload_left: usize,
}

impl FrameReader {
    /// Reads the next bytes, and passes each header that they complete, and the bytes of payloads, to `each`.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut each: impl FnMut(FramePart<'_>)) {
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let (part, rest) = bytes.split_at(self.payload_left.min(bytes.len()));
                self.payload_left -= part.len();
                bytes = rest;
                each(FramePart::Payload(part));
                continue;
            }
            let count = (HEADER_BYTES - self.length).min(bytes.len());
            let (part, rest) = bytes.split_at(count);
            self.header[self.length..self.length + count].copy_from_slice(part);
            self.length += count;
            bytes = rest;
            if self.length == HEADER_BYTES {
                let header = FrameHeader(self.header);
                self.length = 0;
                self.payload_left = header.payload();
                each(FramePart::Header(header));
            }
        }
    }
}

// nginx (1.22, as Debian ships it) may hold an acknowledgement of settings that a failed replica left behind, and sends it to the next
// replica. HTTP/2 treats it as a connection error, so the request would be lost although this server works. Behind a proxy, the
// server therefore drops every acknowledgement but the first.

/// An acknowledgement of settings: no payload, type 4, flag 1, stream 0.
pub(super) const SETTINGS_ACK: FrameHeader = FrameHeader([0, 0, 0, 4, 1, 0, 0, 0, 0]);

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
            FramePart::Header(header) if header == SETTINGS_ACK && *acknowledged => {}
            FramePart::Header(header) => {
                *acknowledged |= header == SETTINGS_ACK;
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
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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

// For each change of settings, h2 visits all calls of the connection, so a frame of 15 bytes costs time for each of them. gRPC clients
// send one frame of settings when they connect, and a few more when they adapt their windows.
//
// h2 also reads all that has arrived before the server sees the first call. A client could therefore occupy a thread with hundreds of calls
// at once.

/// Changes that a client may make at once.
pub(super) const BURST: f64 = 100.0;

/// Events a second that an [`Allowance`] grants after its first ones.
pub(super) const RATE: f64 = 10.0;

/// A limit on the events of a connection: so many at once, and [`RATE`] a second after that.
#[derive(Debug)]
pub(super) struct Allowance {
    burst: f64,
    left: f64,
    counted_at: Instant,
}

impl Allowance {
    pub(super) fn new(burst: f64) -> Self {
        Self { burst, left: burst, counted_at: clock::now() }
    }

    /// Counts events that happen now. Returns false if they are too many.
    pub(super) fn take(&mut self, count: usize) -> bool {
        let earned = clock::since(self.counted_at).as_secs_f64() * RATE;
        self.counted_at = clock::now();
        self.left = (self.left + earned).min(self.burst) - count as f64;
        self.left >= 0.0
    }
}

/// Reads nothing more of a connection once the flag is set, so that what its client still sends costs no time.
pub(super) struct ReadStop(pub(super) Arc<AtomicBool>);

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for ReadStop {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Whoever sets the flag closes the connection.
        if self.0.load(Relaxed) { Poll::Pending } else { Pin::new(stream).poll_read(cx, into) }
    }
}

/// Frames with headers after which the server handles the calls that have arrived before it reads more.
const MANY_CALLS: usize = 16;

/// Time for which it does so.
const TURN: Duration = Duration::from_millis(1);

/// Ends a connection whose client changes its settings too often, and reads many calls in turns. The stream starts after HTTP/2's
/// preface.
pub(super) struct FrameLimits {
    frames: FrameReader,
    changes: Allowance,
    /// Ends the turn of the calls that were read.
    turn: Option<Pin<Box<Sleep>>>,
}

impl FrameLimits {
    /// Limits what arrives on `stream`.
    pub(super) fn wrap<S>(stream: S) -> Adapted<S, Self> {
        let adapter = Self { frames: FrameReader::default(), changes: Allowance::new(BURST), turn: None };
        Adapted { stream, adapter }
    }

    /// Counts changes that arrive now. Fails if they are too many.
    fn count(&mut self, changes: usize) -> io::Result<()> {
        match changes == 0 || self.changes.take(changes) {
            true => Ok(()),
            false => Err(io::Error::new(ErrorKind::InvalidData, "the client changes its settings too often")),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for FrameLimits {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(turn) = &mut self.turn {
            ready!(turn.as_mut().poll(cx));
            self.turn = None;
        }
        let before = into.filled().len();
        ready!(Pin::new(stream).poll_read(cx, into))?;
        let mut changes = 0;
        let mut calls = 0;
        self.frames.read(&into.filled()[before..], |part| {
            if let FramePart::Header(header) = part {
                changes += usize::from(header.changes_settings());
                calls += usize::from(header.has_headers());
            }
        });
        if calls >= MANY_CALLS {
            self.turn = Some(Box::pin(sleep(TURN)));
        }
        Poll::Ready(self.count(changes))
    }
}
