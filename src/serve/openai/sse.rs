//! Responses as server-sent events (`text/event-stream`): each event is a line of JSON. The last one of a complete response is
//! `[DONE]`, and that of any other an error.

use super::error::ApiError;
use crate::error::Error;
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

    /// Returns true if the last message has arrived.
    fn is_complete(&self) -> bool;

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

/// Returns the error of a call that ended before its last message.
pub(super) fn ended_early() -> Error {
    Error::Internal("the response ended early".into())
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
            let goes_on = matches!(message, Some(Ok(_)));
            let is_done = message.is_none() && open.is_complete();
            let event = match message {
                Some(Ok(message)) => open.event(message),
                Some(Err(status)) => Some(ApiError::from(status).body()),
                None if is_done => open.last_event(),
                None => Some(ApiError::from(ended_early()).body()),
            };
            queue.extend(event.map(|event| Bytes::from(format!("data: {event}\n\n"))));
            if is_done {
                queue.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
            }
            if !goes_on {
                *source = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A call with these messages.
    struct Call {
        messages: VecDeque<Result<u32, Status>>,
        is_complete: bool,
    }

    impl EventSource for Call {
        type Message = u32;

        fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<u32, Status>>> {
            Poll::Ready(self.messages.pop_front())
        }

        fn event(&mut self, message: u32) -> Option<Value> {
            Some(json!(message))
        }

        fn is_complete(&self) -> bool {
            self.is_complete
        }
    }

    async fn sent(messages: impl IntoIterator<Item = Result<u32, Status>>, is_complete: bool) -> Vec<String> {
        let response = response(Call { messages: messages.into_iter().collect(), is_complete });
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let text = std::str::from_utf8(&bytes).unwrap().to_owned();
        text.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn only_a_complete_response_is_done() {
        assert_eq!(sent([Ok(1), Ok(2)], true).await, ["1", "2", "[DONE]"]);
        for messages in [vec![Ok(1)], vec![Ok(1), Err(Status::unavailable("gone"))]] {
            let sent = sent(messages, false).await;
            let [first, error] = &sent[..] else { panic!("{sent:?}") };
            assert_eq!(first, "1");
            let error: Value = serde_json::from_str(error).unwrap();
            assert_eq!(error["error"]["type"], "server_error");
        }
    }
}
