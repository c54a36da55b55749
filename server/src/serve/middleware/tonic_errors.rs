//! Adds our codes and details to the failures that tonic reports when it cannot read a request or does not know its method.
//!
//! tonic's code is not enough: it is INTERNAL for a request message that is not protobuf, and for one that ends early. The first is
//! known by how tonic's error text begins; the second keeps its code. A test pins these texts to the version of tonic. Clients get
//! tonic's text unchanged.

use super::layer::{HttpRequest, MiddlewareFuture, Next};
use crate::{
    error::{Error, clip},
    serve::{call::Call, status::status},
};
use tonic::{Code, Status};
use tower::ServiceExt;
use weir_proto::codec::{TOO_LARGE_DECODED, TOO_MANY_FIELDS};

/// Maximum bytes of a path that an error repeats.
const PATH_BYTES: usize = 128;
/// How prost's error text begins for bytes that are not protobuf.
pub(super) const DECODING: &str = "failed to decode Protobuf message: ";
/// How tonic's error text begins for a message that is longer than the limit as sent.
const TOO_LONG: &str = "Error, decoded message length too large: ";
/// Type of the message in the oneof `part`, and the name of its field. prost calls each of these fields `part`.
const PARTS: [(&str, &str); 2] = [("SummarizeOptions", "options"), ("DocumentChunk", "chunk")];

/// Adds our code and details to a response that tonic itself created.
pub(super) fn add_details(request: HttpRequest, next: Next) -> MiddlewareFuture {
    let call = Call::of_http(&request);
    let uri = request.uri().clone();
    Box::pin(async move {
        let response = next.oneshot(request).await?;
        let Some(answer) = Status::from_header_map(response.headers()) else { return Ok(response) };
        let error = if answer.code() == Code::Unimplemented && answer.message().is_empty() {
            Some(Error::UnknownMethod { path: clip(uri.path(), PATH_BYTES) })
        } else {
            unreadable(&answer)
        };
        Ok(error.map_or(response, |error| status(&error, &call.id).into_http()))
    })
}

/// Returns the error that tonic's status stands for, if it is about a message that tonic cannot read.
pub(crate) fn unreadable(answer: &Status) -> Option<Error> {
    let message = answer.message();
    // Our own statuses have details.
    if !answer.details().is_empty() {
        None
    } else if message.starts_with(TOO_LARGE_DECODED) {
        Some(Error::Oversized { what: "the decoded message", limit: last_number(message)? })
    } else if message.starts_with(TOO_MANY_FIELDS) {
        Some(Error::LongerThan { field: "message", limit: last_number(message)?, unit: "fields", why: None })
    } else if message.starts_with(TOO_LONG) {
        Some(Error::Oversized { what: "the message", limit: last_number(message)? })
    } else {
        message.starts_with(DECODING).then(|| undecodable(message))
    }
}

/// Returns the error for a message that prost cannot decode, with the field that prost names.
pub(crate) fn undecodable(message: &str) -> Error {
    let path = message.strip_prefix(DECODING).unwrap_or_default();
    Error::Unreadable { field: field(path), why: message.to_owned() }
}

/// Returns the last number in `message`: the limit.
fn last_number(message: &str) -> Option<usize> {
    message.split(|c: char| !c.is_ascii_digit()).rfind(|digits| !digits.is_empty())?.parse().ok()
}

/// Returns the path of the field in `Inner.field: Outer.field: reason`, outermost first.
fn field(mut path: &str) -> Option<String> {
    let mut field = None::<String>;
    let mut inner = "";
    while let Some((step, rest)) = path.split_once(": ") {
        let Some((message, name)) = step.split_once('.').filter(|_| !step.contains(' ')) else { break };
        let part = PARTS.iter().find(|(kind, _)| name == "part" && *kind == inner);
        let name = part.map_or(name, |(_, name)| *name);
        field = Some(field.map_or_else(|| name.to_owned(), |inner| format!("{name}.{inner}")));
        inner = message;
        path = rest;
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error;
    use prost::Message;
    use tonic::{body::Body, codegen::http::Request};
    use weir_proto::v1;

    /// Returns the field and code of the error for bytes that are not an `M`.
    fn decode<M: Message + Default + std::fmt::Debug>(bytes: &[u8]) -> (Option<String>, error::Code) {
        let message = M::decode(bytes).unwrap_err().to_string();
        let error = unreadable(&Status::internal(&message)).unwrap();
        assert_eq!(error.to_string(), message);
        let code = error.code();
        let Error::Unreadable { field, .. } = error else { panic!("{error:?}") };
        (field, code)
    }

    #[test]
    fn fields_are_named_as_in_the_schema() {
        let bad = error::Code::InvalidArgument;
        assert_eq!(decode::<v1::GenerateRequest>(b"\x12\x01\xff"), (Some("prompt".into()), bad));
        assert_eq!(decode::<v1::SummarizeRequest>(b"\x12\x03\x0a\x01\xff"), (Some("chunk.text".into()), bad));
        assert_eq!(decode::<v1::SummarizeRequest>(b"\x0a\x03\x0a\x01\xff"), (Some("options.model".into()), bad));
        assert_eq!(decode::<v1::GenerateRequest>(&[0, 0]), (None, bad));
    }

    /// Sends one message to a service from tonic that accepts up to 8 bytes, and returns the status.
    async fn answer(message: &[u8]) -> (Code, String) {
        let (_, service) = tonic_health::server::health_reporter();
        let body = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        let body = Body::new(axum::body::Body::from(body));
        let request = Request::post("/grpc.health.v1.Health/Check").body(body).unwrap();
        let response = service.max_decoding_message_size(8).oneshot(request).await.unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        (status.code(), status.message().to_owned())
    }

    /// If this test fails with a new version, check [`unreadable`] and adapt the constants and this test.
    #[tokio::test]
    async fn tonic_0_14_9_and_prost_0_14_4_word_their_messages_like_this() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
        for pinned in ["\"tonic\"\nversion = \"0.14.9\"\n", "\"prost\"\nversion = \"0.14.4\"\n"] {
            assert!(lock.contains(pinned), "{pinned}");
        }
        let long = "Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes";
        assert_eq!(answer(&[0; 9]).await, (Code::OutOfRange, long.into()));
        let text = "failed to decode Protobuf message: HealthCheckRequest.service: invalid string value: data is not UTF-8 encoded";
        assert_eq!(answer(b"\x0a\x01\xff").await, (Code::Internal, text.into()));
        let oversized = unreadable(&Status::out_of_range(long)).unwrap();
        assert_eq!(oversized.to_string(), "the message: expected at most 8 bytes, found more");
    }

    #[test]
    fn only_statuses_of_tonic_are_changed() {
        let ours = status(&Error::Internal(format!("{DECODING}x")), "r");
        assert!(unreadable(&ours).is_none());
        assert!(unreadable(&Status::internal("something else")).is_none());
    }
}
