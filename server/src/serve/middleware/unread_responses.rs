//! Limits on the memory of complete responses that their clients do not read.
//!
//! The response of a method that does not stream is encoded as a whole, and the connection takes it in parts, as the client reads
//! them. A response of more than one part counts against the memory of requests until its last part is taken, and
//! [`super::unread_streams`] limits the time that its client may read nothing. Streams pass: their encoders wait for the client.

use super::{
    body_limits::{BodyMemory, Reservation},
    compression::is_streamed,
    layer::{HttpRequest, Middleware, Next},
    unread_streams::{PART_BYTES, UnreadStream, split_part},
};
use crate::serve::{call::Call, status::status};
use http_body::{Body as _, Frame};
use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes,
        http::{HeaderMap, Response},
    },
};
use tower::ServiceExt;

/// Frames of a complete response: its message and its trailers.
const COMPLETE_FRAMES: usize = 2;

/// Counts large responses in `memory`. Drops one of which the client reads nothing for as long as `stall` returns.
pub(super) fn limit(
    memory: Arc<BodyMemory>,
    stall: impl Fn() -> Duration + Clone + Send + Sync + 'static,
) -> impl Middleware {
    move |request: HttpRequest, next: Next| {
        if is_streamed(request.uri().path()) {
            return Box::pin(next.oneshot(request));
        }
        let call = Call::of_http(&request);
        let reserved = Reservation::new(Arc::clone(&memory), call.tenant());
        let stall = stall.clone();
        Box::pin(async move {
            let (head, body) = next.oneshot(request).await?.into_parts();
            let response = match begin(body).await? {
                Begun::Complete(response) => response,
                Begun::Unfinished(body) => return Ok(Response::from_parts(head, Body::new(body))),
            };
            let length = response.rest.len();
            if length <= PART_BYTES {
                return Ok(Response::from_parts(head, Body::new(response)));
            }
            if let Err(full) = reserved.add(length) {
                tracing::debug!(error = %full, "rejected");
                return Ok(status(&full, &call.id).into_http());
            }
            let body = Body::new(CompleteResponse { reserved: Some(reserved), ..response });
            Ok(Response::from_parts(head, Body::new(UnreadStream::ready(body, stall(), call.id))))
        })
    }
}

/// What a service has encoded when it answers.
enum Begun {
    Complete(CompleteResponse),
    Unfinished(UnfinishedBody),
}

/// A response that is encoded to its end.
#[derive(Default)]
struct CompleteResponse {
    /// The bytes that the connection has not taken.
    rest: Bytes,
    /// The trailers that follow them.
    trailers: Option<HeaderMap>,
    /// The memory of the bytes, until the last of them is taken.
    reserved: Option<Reservation>,
}

impl http_body::Body for CompleteResponse {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.rest.is_empty() {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let part = split_part(&mut self.rest);
        if self.rest.is_empty() {
            self.reserved = None;
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.trailers.is_none()
    }
}

/// Encodes a response now, because a connection whose client reads nothing would never ask for it.
async fn begin(mut body: Body) -> Result<Begun, Status> {
    let mut begun = VecDeque::new();
    let is_complete = poll_fn(|cx| {
        while begun.len() <= COMPLETE_FRAMES {
            match Pin::new(&mut body).poll_frame(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => return Poll::Ready(Ok(true)),
                Poll::Ready(Some(frame)) => begun.push_back(frame?),
            }
        }
        Poll::Ready(Ok::<_, Status>(false))
    });
    if !is_complete.await? {
        return Ok(Begun::Unfinished(UnfinishedBody { begun, body }));
    }
    let mut response = CompleteResponse::default();
    for frame in begun {
        match frame.into_data() {
            // A copy, because the encoder's buffer is larger: a compressed response has one as long as its message.
            Ok(data) => response.rest = Bytes::from([&response.rest[..], &data].concat()),
            Err(frame) => response.trailers = frame.into_trailers().ok(),
        }
    }
    Ok(Begun::Complete(response))
}

/// A body whose first frames have been read.
struct UnfinishedBody {
    begun: VecDeque<Frame<Bytes>>,
    body: Body,
}

impl http_body::Body for UnfinishedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.begun.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_empty() && self.body.is_end_stream()
    }
}
