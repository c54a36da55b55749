//! What the gRPC library says by itself of calls that do not reach a service, in our words: with a reason and the request's id, and
//! by the code that says whose fault it is.

use super::{Call, Next, ResponseFuture, status::status};
use crate::error::{Error, clip};
use tonic::{Status, body::Body, codegen::http::Request};
use tower::ServiceExt;

/// Bytes of a path that are told.
const PATH_BYTES: usize = 128;
/// What the library says first of a message that is not protobuf.
const DECODING: &str = "failed to decode Protobuf message: ";
/// What it says first of one that is not compressed as it says, or grows too long.
const DECOMPRESSING: &str = "Error decompressing: ";
/// What it says first of one that is longer than the limit.
const TOO_LONG: &str = "Error, decoded message length too large: ";
/// What it adds to that.
const SENDING: &str = ", while sending request";
/// What a document is sent in, which the library knows by one name: the message's kind, and the field.
const PARTS: [(&str, &str); 2] = [("SummarizeOptions", "options"), ("DocumentChunk", "chunk")];

/// Says what the library has said in our words.
pub(in crate::serve) fn reword(request: Request<Body>, next: Next) -> ResponseFuture {
    let (call, uri) = (Call::of_http(&request), request.uri().clone());
    Box::pin(async move {
        let response = next.oneshot(request).await?;
        let Some(said) = Status::from_header_map(response.headers()) else { return Ok(response) };
        let unknown = said.code() == tonic::Code::Unimplemented && said.message().is_empty();
        let path = || Error::UnknownMethod { path: clip(uri.path(), PATH_BYTES) };
        let error = if unknown { Some(path()) } else { meant(&said) };
        Ok(error.map_or(response, |error| status(&error, &call.id).into_http()))
    })
}

/// What a status of the library's means, if it is about a message that cannot be read.
pub(in crate::serve) fn meant(said: &Status) -> Option<Error> {
    // ours have details
    if !said.details().is_empty() {
        return None;
    }
    let why = |text: &str| text.strip_suffix(SENDING).unwrap_or(text).to_owned();
    if let Some(text) = said.message().strip_prefix(DECOMPRESSING) {
        return Some(match said.code() {
            // as one that came so long
            tonic::Code::ResourceExhausted => oversized(text)?,
            _ => Error::Unreadable { field: None, why: format!("the message cannot be decompressed: {}", why(text)) },
        });
    }
    if let Some(lengths) = said.message().strip_prefix(TOO_LONG) {
        return oversized(lengths);
    }
    undecoded(said.message())
}

/// What is meant by what is said of a message that is too long: the last number is the limit.
fn oversized(said: &str) -> Option<Error> {
    let limit = said.split(|sign: char| !sign.is_ascii_digit()).rfind(|digits| !digits.is_empty())?.parse().ok()?;
    Some(Error::Oversized { what: "the message", limit })
}

/// What is meant by what is said of a message that is not protobuf.
pub(in crate::serve) fn undecoded(said: &str) -> Option<Error> {
    let (field, text) = place(said.strip_prefix(DECODING)?);
    let why = format!("{}: {text}", field.as_deref().unwrap_or("the message"));
    Some(Error::Unreadable { field, why })
}

/// The field that is wrong, if it can be told, and what is wrong with it, of `Inner.field: Outer.field: what`.
fn place(text: &str) -> (Option<String>, &str) {
    let (mut field, mut kind, mut rest) = (None::<String>, "", text);
    while let Some((step, after)) = rest.split_once(": ") {
        let Some((message, name)) = step.split_once('.').filter(|_| !step.contains(' ')) else { break };
        let part = PARTS.iter().find(|(inner, _)| name == "part" && *inner == kind);
        let name = part.map_or(name, |(_, name)| *name);
        field = Some(field.map_or_else(|| name.to_owned(), |inner| format!("{name}.{inner}")));
        (kind, rest) = (message, after);
    }
    (field, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use prost::Message;
    use weir_proto::v1;

    /// What is meant by the library's refusal of these bytes as such a message.
    fn refused<M: Message + Default + std::fmt::Debug>(bytes: &[u8]) -> Error {
        let error = M::decode(bytes).unwrap_err();
        meant(&Status::internal(error.to_string())).unwrap()
    }

    fn of(error: &Error) -> (Option<&str>, Code) {
        let Error::Unreadable { field, .. } = error else { panic!("{error:?}") };
        (field.as_deref(), error.code())
    }

    #[test]
    fn fields_are_named_as_the_schema_has_them() {
        let bad = Code::InvalidArgument;
        let error = refused::<v1::GenerateRequest>(b"\x12\x01\xff");
        assert_eq!(of(&error), (Some("prompt"), bad));
        assert!(error.to_string().starts_with("prompt: ") && error.to_string().contains("UTF-8"), "{error}");
        let error = refused::<v1::SummarizeRequest>(b"\x12\x03\x0a\x01\xff");
        assert_eq!(of(&error), (Some("chunk.text"), bad));
        let error = refused::<v1::SummarizeRequest>(b"\x0a\x03\x0a\x01\xff");
        assert_eq!(of(&error), (Some("options.model"), bad));
        let error = refused::<v1::GenerateRequest>(&[0, 0]);
        assert_eq!(of(&error), (None, bad));
        assert!(error.to_string().starts_with("the message: "), "{error}");
    }

    #[test]
    fn a_message_that_is_too_long_keeps_its_code() {
        let said = format!("{TOO_LONG}found 9 bytes, the limit is: 8 bytes");
        let error = meant(&Status::out_of_range(said)).unwrap();
        assert_eq!(error.code(), Code::OutOfRange);
        assert_eq!(error.to_string(), "the message: more than 8 bytes, which is the limit");
    }

    #[test]
    fn only_the_library_is_translated() {
        let ours = status(&Error::Internal(format!("{DECODING}x")), "r");
        assert!(meant(&ours).is_none());
        assert!(meant(&Status::internal("something else")).is_none());
    }
}
