//! Reports requests to reflection that cannot be read.
//!
//! tonic-reflection ends its response with the status OK when it cannot read a request. So the requests are checked before it reads
//! them, and the status in the trailers of the response is replaced after a failure.

use super::{
    auth::KEYLESS_MESSAGE_BYTES,
    compression::HEADER,
    guarded_body::{NextFrame, WatchedBody},
    layer::{HttpRequest, MiddlewareFuture, Next},
    tonic_errors::undecodable,
};
use crate::{
    error::{Error, Result},
    serve::{call::Call, status::status},
};
use prost::Message;
use std::sync::{Arc, OnceLock};
use tonic::Status;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tower::ServiceExt;

/// How the paths of reflection begin, in both versions.
const REFLECTION: &str = "/grpc.reflection.";

/// Gives the response of reflection the status of a request that could not be read.
pub(super) fn report(request: HttpRequest, next: Next) -> MiddlewareFuture {
    if !request.uri().path().starts_with(REFLECTION) {
        return Box::pin(next.oneshot(request));
    }
    let request_id = Call::of_http(&request).id;
    // Why a request could not be read, once that is known.
    let failure = Arc::<OnceLock<Status>>::default();
    let found = Arc::clone(&failure);
    // The body passes on whole messages that are not compressed.
    let check_requests = move |frame: NextFrame| {
        let frame = frame?.and_then(|frame| {
            let checked = frame.data_ref().map_or(Ok(()), |messages| check(messages));
            checked.map(|()| frame).map_err(|error| status(&error, &request_id))
        });
        if let Err(failure) = &frame {
            // An earlier failure is the cause of this one.
            let _ = found.set(failure.clone());
        }
        Some(frame)
    };
    let replace_status = move |mut frame: NextFrame| {
        let trailers = frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut());
        if let (Some(trailers), Some(failure)) = (trailers, failure.get())
            && let Err(error) = failure.add_header(trailers)
        {
            return Some(Err(error));
        }
        frame
    };
    let request = request.map(|body| WatchedBody::wrap(body, check_requests));
    Box::pin(async move {
        let response = next.oneshot(request).await?;
        Ok(response.map(|body| WatchedBody::wrap(body, replace_status)))
    })
}

/// Checks that each of these messages is a request of at most [`KEYLESS_MESSAGE_BYTES`].
fn check(mut messages: &[u8]) -> Result<()> {
    while !messages.is_empty() {
        let early = || Error::Unreadable { field: None, why: "the message ends early".into() };
        let (header, rest) = messages.split_at_checked(HEADER).ok_or_else(early)?;
        let length = header[1..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length > KEYLESS_MESSAGE_BYTES {
            return Err(Error::Oversized { what: "the message", limit: KEYLESS_MESSAGE_BYTES });
        }
        let (message, later) = rest.split_at_checked(length).ok_or_else(early)?;
        // Both versions have the same fields.
        ServerReflectionRequest::decode(message).map_err(|error| undecodable(&error.to_string()))?;
        messages = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the frame of a message.
    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    #[test]
    fn all_messages_of_a_frame_are_checked() {
        let request = framed(&ServerReflectionRequest::default().encode_to_vec());
        assert!(check(&[]).is_ok());
        assert!(check(&request).is_ok());
        for bad in [framed(&[0, 0]), framed(&[0; KEYLESS_MESSAGE_BYTES + 1]), vec![0; 3], vec![0, 0, 0, 0, 9, 1]] {
            assert!(check(&bad).is_err(), "{bad:?}");
            assert!(check(&[&request[..], &bad].concat()).is_err(), "{bad:?}");
        }
    }
}
