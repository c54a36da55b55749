//! Responses as server-sent events (`text/event-stream`): each event is a line of JSON, the last one is `[DONE]`.

use super::error::ApiError;
use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio_stream::Stream;
use tonic::Status;

/// The messages of a call, and their form as events.
pub(super) trait EventSource: Unpin + Send + 'static {
    /// A message of the call.
    type Message;

    /// Returns the next message, or `None` at the end of the call.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Self::Message, Status>>>;

    /// Converts a message to an event, if clients get one.
    fn event(&mut self, message: Self::Message) -> Option<Value>;

    /// Returns the event after the last message, if there is one.
    fn last_event(&self) -> Option<Value> {
        None
    }
}

/// Streams the events of a call.
pub(super) fn response(source: impl EventSource) -> Response {
    let events = Body::from_stream(EventStream { source: Some(source), queue: VecDeque::new() });
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], events).into_response()
}

struct EventStream<S> {
    /// Dropped at the end or after a failure, which cancels running calls.
    source: Option<S>,
    queue: VecDeque<Bytes>,
}

impl<S: EventSource> Stream for EventStream<S> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { source, queue } = self.get_mut();
        loop {
            if let Some(line) = queue.pop_front() {
                return Poll::Ready(Some(Ok(line)));
            }
            let Some(open) = source else { return Poll::Ready(None) };
            let message = ready!(open.poll_message(cx));
            let ended = !matches!(message, Some(Ok(_)));
            let event = match message {
                Some(Ok(message)) => open.event(message),
                Some(Err(status)) => Some(ApiError::from(status).body()),
                None => open.last_event(),
            };
            queue.extend(event.map(|event| Bytes::from(format!("data: {event}\n\n"))));
            if ended {
                queue.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                *source = None;
            }
        }
    }
}
