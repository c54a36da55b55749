//! Compressed messages. Whatever a client of gRPC may compress with is read; a message that grows over the limit for messages is
//! refused like one that came so long.
//!
//! Answers of one message are compressed the way the request was, if it was: most clients say that they could read compressed
//! answers without wanting any. Streams are not compressed: a character has fewer bytes than a compressed message's head and
//! checksum, and should not wait for either.

use super::{
    intake::{STREAM, UPLOAD},
    layers::{Answering, Next},
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
pub(super) const GROWTH: usize = 1032;

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
pub(super) use compressing;

/// Whether a request's messages may be compressed.
pub(super) fn is_used(headers: &HeaderMap) -> bool {
    headers.get(USED).is_some_and(|way| way != "identity")
}

/// Whether answers may be compressed in this way.
fn reads(headers: &HeaderMap, way: &HeaderValue) -> bool {
    let told = headers.get(READ).and_then(|told| told.to_str().ok()).unwrap_or_default();
    told.split(',').any(|told| way.as_bytes() == told.trim().as_bytes())
}

/// Leaves of the ways in which an answer could be compressed the one that its request was.
pub(super) fn mirrored(mut request: Request<Body>, next: Next) -> Answering {
    let plain = STREAMED.contains(&request.uri().path());
    let headers = request.headers_mut();
    let used = headers.get(USED).filter(|way| !plain && reads(headers, way)).cloned();
    match used {
        Some(way) => drop(headers.insert(READ, way)),
        None => drop(headers.remove(READ)),
    }
    Box::pin(next.oneshot(request))
}
