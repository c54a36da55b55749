//! A body that holds a value until it is sent or dropped, and one that watches its frames.

use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tonic::{Status, codegen::Bytes};

/// The next frame of a body, or its end.
pub(super) type NextFrame = Option<Result<Frame<Bytes>, Status>>;

/// The body of a response, with a value that is dropped together with it.
pub(crate) struct GuardedBody<B, G> {
    body: B,
    _guard: G,
}

impl<B, G> GuardedBody<B, G> {
    /// Keeps `guard` as long as `body`.
    pub(crate) fn new(body: B, guard: G) -> Self {
        Self { body, _guard: guard }
    }
}

impl<B: Body + Unpin, G: Unpin> Body for GuardedBody<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body whose frames, and whose end, pass a function.
pub(super) struct WatchedBody<F> {
    body: tonic::body::Body,
    watch: F,
}

impl<F: FnMut(NextFrame) -> NextFrame + Send + Unpin + 'static> WatchedBody<F> {
    /// Passes each frame of `body` through `watch`.
    pub(super) fn wrap(body: tonic::body::Body, watch: F) -> tonic::body::Body {
        tonic::body::Body::new(Self { body, watch })
    }
}

impl<F: FnMut(NextFrame) -> NextFrame + Unpin> Body for WatchedBody<F> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready((self.watch)(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
