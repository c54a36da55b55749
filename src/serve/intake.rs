//! What requests may take while they come in. Each connection may have many calls, and each call a message of some length:
//! together that is far more than a server has, so that there is a limit for all of them together.

use super::{
    layers::{Answering, Call, Next},
    status::status,
};
use crate::error::Error;
use http_body::{Body as HttpBody, Frame};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{
    Status,
    body::Body,
    codegen::{Bytes, http::Request},
};
use tower::ServiceExt;

/// When to try again: what is on its way is there soon, or is given up.
const RETRY: Duration = Duration::from_secs(1);

/// Counts the bytes of requests until their bodies have been read or dropped, and refuses what is too much for all.
pub(super) fn metered(most: usize) -> impl Fn(Request<Body>, Next) -> Answering + Clone + Send + Sync + 'static {
    let room = Arc::new(Semaphore::new(most));
    move |request, next| {
        let id = Call::in_http(&request).id;
        let meter = |body| Metered { body, id, most, room: Arc::clone(&room), held: None };
        Box::pin(next.oneshot(request.map(|body| Body::new(meter(body)))))
    }
}

/// A request's body, and the room that its bytes take.
struct Metered {
    body: Body,
    id: Arc<str>,
    most: usize,
    room: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Metered {
    fn hold(&mut self, bytes: usize) -> Result<(), Status> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(more) = Arc::clone(&self.room).try_acquire_many_owned(bytes) else {
            let what = "bytes of requests that are coming in";
            return Err(status(&Error::QueueFull { what, limit: self.most, retry: RETRY }, &self.id));
        };
        match &mut self.held {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map(Bytes::len);
        let held = bytes.map_or(Ok(()), |bytes| self.hold(bytes));
        Poll::Ready(held.map_or_else(|full| Some(Err(full)), |()| frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
