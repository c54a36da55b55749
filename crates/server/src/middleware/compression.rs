//! Compressed messages. The server reads gzip and deflate; a message that decompresses to more than the limit is rejected like one
//! that was sent that long.
//!
//! A unary response uses the compression of its request, because most clients announce compression that they do not
//! want. Streams of texts, scores and summaries are not compressed: a character is shorter than the header and checksum
//! of a compressed message, and should not wait for either.

use crate::{
    call::{CODEC, EDIT, STREAM_INFER, SUMMARIZE},
    middleware::layer::{HttpRequest, MiddlewareFuture, Next},
    tokenization::{INLINE_BYTES, TokenizationWorkers},
};
use flate2::bufread::{DeflateDecoder, GzDecoder, ZlibDecoder};
use std::{
    io::{self, ErrorKind, Read},
    sync::Arc,
};
use tonic::codegen::{
    Bytes,
    http::{HeaderMap, HeaderValue, header::HeaderName},
};
use tower::ServiceExt;
use weir_kernels::error::{Error, Result};

/// The encoding of the request.
pub(super) const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The encodings that the client reads.
const ACCEPTED: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Methods that answer with a stream, mostly of short messages.
const STREAMED: [&str; 5] =
    ["/weir.v1.Generation/Generate", "/weir.v1.Generation/Score", SUMMARIZE, STREAM_INFER, EDIT];

/// Returns true for the path of a method that answers with a stream.
pub(super) fn is_streamed(path: &str) -> bool {
    STREAMED.iter().chain(&CODEC).any(|streamed| *streamed == path)
}

/// Maximum growth of a compressed byte: deflate encodes a repetition of 258 bytes in at least 2 bits.
const GROWTH: usize = 1032;

/// Length in bytes of a gRPC message's header: the compressed flag, and the length.
pub(super) const HEADER: usize = 5;

/// Configures a service for messages of at most `$bytes` bytes, compressed or not, in both directions.
macro_rules! compressing {
    ($service:expr, $bytes:expr) => {
        [tonic::codec::CompressionEncoding::Gzip, tonic::codec::CompressionEncoding::Deflate]
            .into_iter()
            .fold($service.max_decoding_message_size($bytes), |service, encoding| {
                service.accept_compressed(encoding).send_compressed(encoding)
            })
    };
}

/// Follows the gRPC messages in a body, however the bytes are split.
#[derive(Default)]
pub(super) struct MessageScanner {
    header: [u8; HEADER],
    /// Bytes of the current header that have arrived.
    header_len: usize,
    /// Bytes of the current message that are still to come.
    remaining: usize,
}

impl MessageScanner {
    /// Takes the next bytes of the body. Returns the maximum size that any compressed message completed by them may decompress
    /// to, or 0 if they complete none.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) -> usize {
        let mut max = 0;
        loop {
            if self.header_len < HEADER {
                let (header, rest) = bytes.split_at(bytes.len().min(HEADER - self.header_len));
                self.header[self.header_len..][..header.len()].copy_from_slice(header);
                self.header_len += header.len();
                bytes = rest;
                if self.header_len < HEADER {
                    return max;
                }
                self.remaining = self.message_len();
            }
            let taken = bytes.len().min(self.remaining);
            self.remaining -= taken;
            bytes = &bytes[taken..];
            if self.remaining > 0 {
                return max;
            }
            if self.header[0] != 0 {
                max = max.max(Encoding::max_decompressed(self.message_len()));
            }
            self.header_len = 0;
            if bytes.is_empty() {
                return max;
            }
        }
    }

    /// Returns the number of bytes of the last message that have arrived, with its header, if it is incomplete. 0 if it is not.
    pub(super) fn incomplete_bytes(&self) -> usize {
        if self.header_len < HEADER { self.header_len } else { HEADER + self.message_len() - self.remaining }
    }

    /// Returns the length of the last message, if its header has arrived and the message is incomplete.
    pub(super) fn announced_len(&self) -> Option<usize> {
        (self.header_len == HEADER).then(|| self.message_len())
    }

    fn message_len(&self) -> usize {
        let [_, a, b, c, d] = self.header;
        u32::from_be_bytes([a, b, c, d]) as usize
    }
}

/// Returns true if the client reads this encoding.
fn accepts(headers: &HeaderMap, encoding: &HeaderValue) -> bool {
    let accepted = headers.get(ACCEPTED).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|accepted| encoding.as_bytes() == accepted.trim().as_bytes())
}

/// Reduces the accepted encodings to the one that the request uses, or to none.
pub(super) fn mirror(mut request: HttpRequest, next: Next) -> MiddlewareFuture {
    let streamed = is_streamed(request.uri().path());
    let headers = request.headers_mut();
    let used = headers.get(ENCODING).filter(|encoding| !streamed && accepts(headers, encoding)).cloned();
    match used {
        Some(encoding) => drop(headers.insert(ACCEPTED, encoding)),
        None => drop(headers.remove(ACCEPTED)),
    }
    Box::pin(next.oneshot(request))
}

// The tokenization workers decompress requests before tonic sees them. A few kilobytes can decompress to the largest message: on the
// threads that serve connections, many such messages would delay all other calls.

/// The encodings that the server reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Gzip,
    Deflate,
}

/// Bytes that [`Encoding::decompress_body`] decompresses at a time.
const PART_BYTES: usize = 16 << 10;

impl Encoding {
    /// Returns the encoding of this name in lower case.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    fn reader(self, compressed: &[u8]) -> Reader<'_> {
        match self {
            Self::Gzip => Reader::Gzip(GzDecoder::new(compressed)),
            Self::Deflate if has_zlib_header(compressed) => Reader::Zlib(ZlibDecoder::new(compressed)),
            // Some clients of HTTP leave out the header.
            Self::Deflate => Reader::Deflate(DeflateDecoder::new(compressed)),
        }
    }

    /// Decompresses the body of an HTTP request, and reserves its memory as it grows. Fails with [`Error::Oversized`] above `limit`
    /// bytes.
    pub(crate) fn decompress_body(
        self,
        compressed: &[u8],
        limit: usize,
        reserve: impl Fn(usize) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let mut reader = self.reader(compressed);
        let mut body = Vec::new();
        let mut part = vec![0; PART_BYTES];
        loop {
            let length = reader.read(&mut part).map_err(|error| unreadable("body", error))?;
            if length == 0 {
                return Ok(body);
            }
            if length > limit - body.len() {
                return Err(Error::Oversized { what: "the decompressed body", limit });
            }
            reserve(length)?;
            body.extend_from_slice(&part[..length]);
        }
    }

    /// Returns the most bytes that `length` compressed ones may decompress to.
    pub(crate) fn max_decompressed(length: usize) -> usize {
        length.saturating_mul(GROWTH)
    }
}

/// Decompresses data, which nothing may follow.
enum Reader<'a> {
    /// One member of the file. Others may follow it.
    Gzip(GzDecoder<&'a [u8]>),
    Zlib(ZlibDecoder<&'a [u8]>),
    Deflate(DeflateDecoder<&'a [u8]>),
}

/// The beginning of each member of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let (length, rest) = match self {
                Self::Gzip(member) => (member.read(into)?, *member.get_ref()),
                Self::Zlib(data) => (data.read(into)?, *data.get_ref()),
                Self::Deflate(data) => (data.read(into)?, *data.get_ref()),
            };
            if length > 0 || into.is_empty() || rest.is_empty() {
                return Ok(length);
            }
            match self {
                Self::Gzip(member) if rest.starts_with(&GZIP_MAGIC) => *member = GzDecoder::new(rest),
                _ => {
                    let message = format!("expected nothing after the data, found {} bytes", rest.len());
                    return Err(io::Error::new(ErrorKind::InvalidData, message));
                }
            }
        }
    }
}

/// Returns true for data in zlib's format, and false for deflate's, which has no header and checksum.
fn has_zlib_header(compressed: &[u8]) -> bool {
    const METHOD: u8 = 8;
    compressed
        .first_chunk()
        .is_some_and(|&header: &[u8; 2]| header[0] & 0xf == METHOD && u16::from_be_bytes(header).is_multiple_of(31))
}

/// Decompresses the messages of one call.
#[derive(Clone)]
pub(super) struct Decompressor {
    encoding: Encoding,
    /// Maximum bytes of a decompressed message.
    max_message: usize,
    workers: TokenizationWorkers,
    caller: Arc<str>,
}

impl Decompressor {
    /// Returns the decompressor of a call with these headers. `None` if its messages are not compressed, or in a way that the
    /// services refuse.
    pub(super) fn new(
        headers: &HeaderMap,
        max_message: usize,
        workers: &TokenizationWorkers,
        caller: Arc<str>,
    ) -> Option<Self> {
        let encoding = Encoding::named(headers.get(ENCODING)?.as_bytes())?;
        Some(Self { encoding, max_message, workers: workers.clone(), caller })
    }

    /// Decompresses a message, and puts a header before it as before one that was never compressed. A large one is decompressed on a
    /// worker. Fails with [`Error::Oversized`] if it exceeds the limit, and with [`Error::Unreadable`] if it is not in the
    /// encoding.
    pub(super) async fn decompress(self, message: Bytes) -> Result<Bytes> {
        let oversized = Error::Oversized { what: "the message", limit: self.max_message };
        if message.len() > self.max_message {
            return Err(oversized);
        }
        if let Some(short) = self.read(&message, self.max_message.min(INLINE_BYTES))? {
            return Ok(short);
        }
        if self.max_message <= INLINE_BYTES {
            return Err(oversized);
        }
        let Self { workers, caller, .. } = self.clone();
        let long = workers.run(&caller, self.max_message, move || self.read(&message, self.max_message));
        long.await.flatten()?.ok_or(oversized)
    }

    /// Decompresses a message. Returns `None` if that gives more than `limit` bytes.
    fn read(&self, compressed: &[u8], limit: usize) -> Result<Option<Bytes>> {
        let mut message = vec![0; HEADER];
        let read = self.encoding.reader(compressed).take(limit as u64 + 1).read_to_end(&mut message);
        let length = read.map_err(|error| unreadable("message", error))?;
        if length > limit {
            return Ok(None);
        }
        // The limit is below 2^32: the transport's settings say so.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        message[1..HEADER].copy_from_slice(&length.to_be_bytes());
        message.shrink_to_fit();
        Ok(Some(message.into()))
    }
}

/// Returns the error for a compressed message or body.
fn unreadable(what: &str, error: io::Error) -> Error {
    let why = match error.kind() {
        ErrorKind::UnexpectedEof => format!("the compressed {what} is incomplete"),
        _ => format!("the {what} cannot be decompressed: {error}"),
    };
    Error::Unreadable { field: None, why }
}

/// Messages that are passed on together.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Messages {
    /// One compressed message, without its header.
    Compressed(Bytes),
    /// Any number of others.
    Plain(Bytes),
}

/// Takes the next messages out of complete ones.
pub(super) fn next_messages(messages: &mut Bytes) -> Option<Messages> {
    let mut plain = 0;
    while let Some(&[flag, a, b, c, d]) = messages.get(plain..).and_then(|rest| rest.first_chunk()) {
        let end = plain.saturating_add(HEADER).saturating_add(u32::from_be_bytes([a, b, c, d]) as usize);
        if flag == 1 && plain == 0 && end <= messages.len() {
            let message = messages.split_to(end).split_off(HEADER);
            return Some(Messages::Compressed(message));
        }
        if flag == 1 {
            break;
        }
        plain = end;
    }
    // The start of a message that is too long is passed on as it is.
    let end = if plain == 0 { messages.len() } else { plain.min(messages.len()) };
    (end > 0).then(|| Messages::Plain(messages.split_to(end)))
}

pub(crate) use compressing;

#[cfg(test)]
mod tests {
    use super::{Messages::*, *};

    #[test]
    fn a_message_counts_once_it_is_complete_however_it_is_split() {
        let message = |compressed: u8, length: usize| message(compressed, &[7; 9][..length]);
        let body = [message(0, 9), message(1, 3), message(1, 0), message(0, 0), message(1, 2)].concat();
        assert_eq!(MessageScanner::default().scan(&body), 3 * GROWTH);
        for size in 1..body.len() {
            let mut scanner = MessageScanner::default();
            let sizes: Vec<_> = body.chunks(size).map(|bytes| scanner.scan(bytes)).collect();
            assert_eq!(sizes.iter().copied().max(), Some(3 * GROWTH), "{sizes:?}");
            // The message of three bytes ends with the 22nd byte.
            let before = sizes.iter().take(21 / size).copied().max().unwrap_or(0);
            assert_eq!(before, 0, "{sizes:?}");
            assert_eq!((scanner.incomplete_bytes(), scanner.announced_len()), (0, None));
            scanner.scan(&message(0, 9)[..3]);
            assert_eq!((scanner.incomplete_bytes(), scanner.announced_len()), (3, None));
            scanner.scan(&message(0, 9)[3..7]);
            assert_eq!((scanner.incomplete_bytes(), scanner.announced_len()), (7, Some(9)));
        }
    }

    fn message(compressed: u8, bytes: &'static [u8]) -> Vec<u8> {
        [&[compressed][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    fn split(mut messages: Bytes) -> Vec<Messages> {
        std::iter::from_fn(|| next_messages(&mut messages)).collect()
    }

    #[test]
    fn compressed_messages_are_taken_one_by_one() {
        let plain = [message(0, b"a"), message(0, b"")].concat();
        let all = [&plain[..], &message(1, b"b"), &message(1, b""), &message(0, b"c")].concat();
        let parts = [
            Plain(plain.into()),
            Compressed(Bytes::from_static(b"b")),
            Compressed(Bytes::new()),
            Plain(message(0, b"c").into()),
        ];
        assert_eq!(split(all.into()), parts);
        assert_eq!(split(Bytes::new()), []);
    }

    #[test]
    fn only_another_member_may_follow_compressed_data() {
        let gzip = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 0x4b, 4, 0][..], &[0x43, 0xbe, 0xb7, 0xe8, 1, 0, 0, 0]];
        let zlib = [&[0x78, 0x9c, 0x4b, 4, 0][..], &[0, 0x62, 0, 0x62]];
        let raw = [&[0x4b, 4, 0][..], &[]];
        for (encoding, data) in [(Encoding::Gzip, gzip), (Encoding::Deflate, zlib), (Encoding::Deflate, raw)] {
            let read = |more: &[u8]| encoding.decompress_body(&[&data.concat(), more].concat(), 9, |_| Ok(()));
            assert_eq!(read(b"").unwrap(), b"a");
            let error = read(b"junk").unwrap_err().to_string();
            assert!(error.ends_with("expected nothing after the data, found 4 bytes"), "{error}");
        }
        let members = Encoding::Gzip.decompress_body(&[gzip.concat(), gzip.concat()].concat(), 9, |_| Ok(()));
        assert_eq!(members.unwrap(), b"aa");
    }

    #[test]
    fn an_incomplete_message_is_passed_on_as_it_is() {
        for compressed in [0, 1] {
            let begun = message(compressed, b"too long")[..7].to_vec();
            assert_eq!(split(begun.clone().into()), [Plain(begun.into())]);
        }
    }
}
