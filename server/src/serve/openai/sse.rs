//! Responses as server-sent events (`text/event-stream`): each event is a line of JSON. The last one of a complete response is
//! `[DONE]`, and that of any other an error.

use super::error::ApiError;
use crate::error::Error;
use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

/// The content type of streams of events.
const EVENT_STREAM: &str = "text/event-stream";

/// The messages of a call, and their form as events.
pub(super) trait EventSource: Unpin + Send + 'static {
    /// A message of the call.
    type Message;

    /// Returns the next message, or `None` at the end of the call.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Self::Message, Status>>>;

    /// Converts a message to an event, if clients get one.
    fn event(&mut self, message: Self::Message) -> Option<Value>;

    /// Returns true if a message has output of the model.
    fn is_output(&self, _: &Self::Message) -> bool {
        true
    }

    /// Returns true if the last message has arrived.
    fn is_complete(&self) -> bool;

    /// Converts the error of a call.
    fn error(&self, status: Status) -> ApiError {
        status.into()
    }

    /// Returns the event after the last message, if there is one.
    fn last_event(&self) -> Option<Value> {
        None
    }
}

/// Streams the events of a call. With `late_headers`, waits for the first output. Fails if the call fails before that.
pub(super) async fn response(mut source: impl EventSource, late_headers: bool) -> Result<Response, ApiError> {
    let mut queue = VecDeque::new();
    let mut waits = late_headers;
    while waits {
        match poll_fn(|cx| source.poll_message(cx)).await {
            Some(Ok(message)) => {
                waits = !source.is_output(&message);
                queue.extend(source.event(message).map(|event| event_line(&event)));
            }
            Some(Err(status)) => return Err(source.error(status)),
            None => waits = false,
        }
    }
    let events = Body::from_stream(EventStream { source: Some(source), queue });
    Ok(([(header::CONTENT_TYPE, EVENT_STREAM), (header::CACHE_CONTROL, "no-cache")], events).into_response())
}

/// Returns the error of a call that ended before its last message.
pub(super) fn ended_early() -> Error {
    Error::Internal("the response ended early".into())
}

/// Ends a stream of events with an error when its connection closes. Leaves other responses as they are.
pub(super) fn end_with_connection(response: Response, ending: CancellationToken) -> Response {
    let is_stream = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == EVENT_STREAM);
    if !is_stream {
        return response;
    }
    let ending = Box::pin(ending.cancelled_owned());
    response.map(|body| Body::from_stream(UntilEnd { body: Some(body.into_data_stream()), ending }))
}

/// A stream of events that ends with an error when its connection closes.
struct UntilEnd {
    /// Dropped when the connection closes, which cancels the call.
    body: Option<BodyDataStream>,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Stream for UntilEnd {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if let Poll::Ready(event) = Pin::new(body).poll_next(cx) {
            return Poll::Ready(event);
        }
        ready!(self.ending.as_mut().poll(cx));
        self.body = None;
        let message = "the connection has reached its maximum age; send the request again";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "connection_age", message);
        Poll::Ready(Some(Ok(event_line(&error.body()))))
    }
}

/// Returns the line of an event.
fn event_line(event: &Value) -> Bytes {
    Bytes::from(format!("data: {event}\n\n"))
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
                Some(Err(status)) => Some(open.error(status).body()),
                None if is_done => open.last_event(),
                None => Some(ApiError::from(ended_early()).body()),
            };
            queue.extend(event.as_ref().map(event_line));
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
        let call = Call { messages: messages.into_iter().collect(), is_complete };
        let response = response(call, false).await.unwrap();
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
