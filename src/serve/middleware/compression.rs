//! Compressed messages. Whatever a client of gRPC may compress with is read; a message that grows over the limit for messages is
//! refused like one that came so long.
//!
//! Answers of one message are compressed the way the request was, if it was: most clients say that they could read compressed
//! answers without wanting any. Streams of texts, scores and summaries are not compressed: a character has fewer bytes than a compressed message's head and
//! checksum, and should not wait for either.

use super::{
    Next, ResponseFuture,
    body_limits::{STREAM, UPLOAD},
};
use tonic::{
    body::Body,
    codegen::http::{HeaderMap, HeaderValue, Request, header::HeaderName},
};
use tower::ServiceExt;

/// What a client compresses with.
const USED: HeaderName = HeaderName::from_static("grpc-encoding");
/// What it reads.
const READ: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Methods that answer with streams, of short messages most of them.
const STREAMED: [&str; 4] = ["/weir.v1.Generation/Generate", "/weir.v1.Generation/Score", UPLOAD, STREAM];

/// So many bytes at most come of one that is compressed: deflate's shortest word for its longest repetition, 258 bytes in 2 bits.
const GROWTH: usize = 1032;
/// Bytes of a message's head: whether it is compressed, and its length.
const HEAD: usize = 5;

/// A service, of messages of so many bytes, that reads what is compressed and may compress what it answers.
macro_rules! compressing {
    ($service:expr, $bytes:expr) => {
        [tonic::codec::CompressionEncoding::Gzip, tonic::codec::CompressionEncoding::Deflate]
            .into_iter()
            .fold($service.max_decoding_message_size($bytes), |service, way| {
                service.accept_compressed(way).send_compressed(way)
            })
    };
}
pub(in crate::serve) use compressing;

/// Where a body is among its messages.
#[derive(Default)]
pub(in crate::serve) struct Heads {
    head: [u8; HEAD],
    /// Bytes of the head that have come.
    have: usize,
    /// Bytes of the message behind it that have not.
    left: usize,
}

impl Heads {
    /// Takes the body's next bytes. What the largest compressed message that has come in whole with them may become; 0, if none has.
    pub(in crate::serve) fn follow(&mut self, mut bytes: &[u8]) -> usize {
        let mut most = 0;
        loop {
            if self.have < HEAD {
                let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.have));
                self.head[self.have..][..head.len()].copy_from_slice(head);
                (self.have, bytes) = (self.have + head.len(), rest);
                if self.have < HEAD {
                    return most;
                }
                self.left = self.length();
            }
            let now = bytes.len().min(self.left);
            (self.left, bytes) = (self.left - now, &bytes[now..]);
            if self.left > 0 {
                return most;
            }
            if self.head[0] != 0 {
                most = most.max(self.length().saturating_mul(GROWTH));
            }
            self.have = 0;
            if bytes.is_empty() {
                return most;
            }
        }
    }

    fn length(&self) -> usize {
        let [_, a, b, c, d] = self.head;
        u32::from_be_bytes([a, b, c, d]) as usize
    }
}

/// Whether answers may be compressed in this way.
fn reads(headers: &HeaderMap, way: &HeaderValue) -> bool {
    let told = headers.get(READ).and_then(|told| told.to_str().ok()).unwrap_or_default();
    told.split(',').any(|told| way.as_bytes() == told.trim().as_bytes())
}

/// Leaves of the ways in which an answer could be compressed the one that its request was.
pub(in crate::serve) fn mirror(mut request: Request<Body>, next: Next) -> ResponseFuture {
    let plain = STREAMED.contains(&request.uri().path());
    let headers = request.headers_mut();
    let used = headers.get(USED).filter(|way| !plain && reads(headers, way)).cloned();
    match used {
        Some(way) => drop(headers.insert(READ, way)),
        None => drop(headers.remove(READ)),
    }
    Box::pin(next.oneshot(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_once_it_is_whole_however_it_is_cut() {
        let message = |compressed: u8, length: u32| {
            [&[compressed][..], &length.to_be_bytes(), &vec![7; length as usize]].concat()
        };
        let body = [message(0, 9), message(1, 3), message(1, 0), message(0, 0), message(1, 2)].concat();
        assert_eq!(Heads::default().follow(&body), 3 * GROWTH);
        for cut in 1..body.len() {
            let mut heads = Heads::default();
            let told: Vec<_> = body.chunks(cut).map(|bytes| heads.follow(bytes)).collect();
            assert_eq!(told.iter().copied().max(), Some(3 * GROWTH), "{told:?}");
            // the message of three ends with the 22nd byte
            let before = told.iter().take(21 / cut).copied().max().unwrap_or(0);
            assert_eq!(before, 0, "{told:?}");
        }
    }
}
