//! Response streams: an encoder turns the engine's events into messages while the job runs.
//!
//! A response reads its job's events itself, without a task between engine and connection. While a client does not read, its
//! response is not polled and takes no events, so the row pauses. When a client disconnects, its response and the events are
//! dropped, which frees the row.

use crate::{
    engine::{DocumentEvent, Event, Events},
    error::{Code, Error, Result},
    serve::{
        call::Call,
        middleware::{body_limits::Reservation, panics::caught},
        registry::{drain::RequestPermit, engines::Lease},
        status::status,
        traces::CallSpan,
    },
};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio_stream::{Iter, Stream, StreamExt, adapters::Chain};
use tonic::Status;
use tracing::Span;

/// The events of one job, ended early if the server shuts down.
pub(super) struct JobEvents {
    events: Events,
    /// The engine that runs the job. The lease keeps it loaded until the response is over.
    engine: Lease,
    /// The memory of the job's symbols, until the response is over.
    _reserved: Option<Reservation>,
    /// The span of the call, if it is traced.
    span: Option<CallSpan>,
    /// Completes with the error that ends the job if the server shuts down.
    ended: Pin<Box<dyn Future<Output = Error> + Send>>,
}

impl JobEvents {
    /// The events of a job that holds this permit.
    pub(super) fn new(events: Events, engine: Lease, permit: RequestPermit, span: Option<CallSpan>) -> Self {
        Self { events, engine, _reserved: None, span, ended: Box::pin(async move { permit.ended().await }) }
    }

    /// Holds the memory of the job's symbols.
    pub(super) fn holding(self, reserved: Reservation) -> Self {
        Self { _reserved: Some(reserved), ..self }
    }

    /// Polls for the next event, or the error that ends the job. Must not be called after an error or the last event.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        // Polled first, so that the shutdown also ends a job that always has an event ready.
        if let Poll::Ready(error) = self.ended.as_mut().poll(cx) {
            return Poll::Ready(Err(error));
        }
        let broken = || Err(Error::Internal("the engine dropped a job without a final event".into()));
        let event = std::task::ready!(self.events.poll_recv(cx)).unwrap_or_else(broken);
        let done = match &event {
            Ok(Event::Finished { usage, timing, .. }) => Some((usage, timing)),
            Ok(Event::Document(DocumentEvent::Summarized(summary))) => Some((&summary.usage, &summary.timing)),
            _ => None,
        };
        if let (Some((usage, timing)), Some(span)) = (done, &self.span) {
            span.record_job(&self.engine.card().name, usage, timing);
        }
        Poll::Ready(event)
    }

    /// Waits for the next event, as [`poll`](Self::poll) does.
    pub(super) async fn next(&mut self) -> Result<Event> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }
}

/// Turns the events of one kind of call into response messages.
pub(crate) trait MessageEncoder: Unpin + Send {
    /// The message type of the response.
    type Message: Unpin + Send;

    /// Number of messages before the first text.
    const LEADING: usize;

    /// Takes the next event.
    fn push(&mut self, event: Event);

    /// Signals the encoder that no event follows, because the job finished or failed. It then releases the text that it held back.
    fn close(&mut self);

    /// Returns the next message, if one is complete.
    fn next(&mut self) -> Option<Self::Message>;

    /// Returns true if a message should be sent before the encoder takes more events.
    fn is_full(&self) -> bool;
}

/// The response to one call.
pub(crate) struct ResponseStream<E: MessageEncoder> {
    /// `None` after the last event.
    events: Option<JobEvents>,
    encoder: E,
    /// The error that ended the job, until it is sent.
    failure: Option<Status>,
    call: Call,
    span: Span,
}

impl<E: MessageEncoder> ResponseStream<E> {
    /// The response for a job's events.
    pub(super) fn new(events: JobEvents, encoder: E, call: Call) -> Self {
        Self { events: Some(events), encoder, failure: None, call, span: Span::current() }
    }

    /// Returns the encoder of the messages.
    #[cfg(feature = "http")]
    pub(in crate::serve) fn encoder(&self) -> &E {
        &self.encoder
    }

    /// Takes events while they are ready and the encoder is not full, then returns the next message.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<E::Message, Status>>> {
        while !self.encoder.is_full() {
            let Some(events) = &mut self.events else { break };
            match events.poll(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(event)) => {
                    let last = is_last(&event);
                    let encoder = &mut self.encoder;
                    self.span.in_scope(|| encoder.push(event));
                    if last {
                        self.end();
                    }
                }
                Poll::Ready(Err(error)) => {
                    log_failure(&self.span, &error);
                    self.failure = Some(status(&error, &self.call.id));
                    self.end();
                }
            }
        }
        match self.encoder.next() {
            Some(message) => Poll::Ready(Some(Ok(message))),
            None if self.events.is_some() => Poll::Pending,
            None => Poll::Ready(self.failure.take().map(Err)),
        }
    }

    fn end(&mut self) {
        self.encoder.close();
        self.events = None;
    }
}

impl<E: MessageEncoder> Stream for ResponseStream<E> {
    type Item = Result<E::Message, Status>;

    /// Catches panics, which the middleware does not see once the response has begun.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        caught(|| self.advance(cx)).unwrap_or_else(|error| {
            log_failure(&self.span, &error);
            self.events = None;
            Poll::Ready(Some(Err(status(&error, &self.call.id))))
        })
    }
}

/// A stream whose first messages have been read.
pub(crate) type Buffered<S> = Chain<Iter<std::vec::IntoIter<<S as Stream>::Item>>, S>;

/// Waits for the first `count` messages of a response. A call that fails before them then fails, instead of a response that has
/// begun.
pub(super) async fn buffered<T, S: Stream<Item = Result<T, Status>> + Unpin>(
    mut stream: S,
    count: usize,
) -> Result<Buffered<S>, Status> {
    let mut first = Vec::new();
    while first.len() < count
        && let Some(message) = stream.next().await.transpose()?
    {
        first.push(Ok(message));
    }
    Ok(tokio_stream::iter(first).chain(stream))
}

impl<E: MessageEncoder> Drop for ResponseStream<E> {
    fn drop(&mut self) {
        if self.events.is_some() {
            tracing::debug!(parent: &self.span, "the response was dropped before its end");
        }
    }
}

/// Returns true if no event follows this one.
pub(super) fn is_last(event: &Event) -> bool {
    matches!(event, Event::Finished { .. } | Event::Document(DocumentEvent::Summarized(_)))
}

/// Logs a failure: an internal one as an error with its text, any other with only its code, like every end of a request at level
/// `debug`.
pub(super) fn log_failure(span: &Span, error: &Error) {
    match error.code() {
        Code::Internal => tracing::error!(parent: span, %error, "failed"),
        code => tracing::debug!(parent: span, ?code, "ended early"),
    }
}

/// Returns a function that logs the error that rejects a call, and converts it to a status.
pub(in crate::serve) fn reject(call: &Call) -> impl FnOnce(Error) -> Status {
    |error| {
        log_failure(&Span::current(), &error);
        status(&error, &call.id)
    }
}
