//! The streams that calls answer with: the engine's events, put into messages while they come.
//!
//! An answer reads its job's events itself, so that there is nothing between engine and connection: a client that does not
//! read stops the answer, which stops the events, which pauses the row; a client that goes away drops the answer, which
//! drops the events, which frees the row.

use crate::{
    engine::{DocumentEvent, Event, Events},
    error::{Code, Error, Result},
    serve::{
        call::Call,
        middleware::panics::caught,
        registry::{drain::Pass, engines::Lease},
        status::status,
        traces::CallSpan,
    },
};
use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};
use tokio_stream::Stream;
use tonic::Status;
use tracing::Span;

/// The events of one job, ended early if the server ends.
pub(in crate::serve) struct Source {
    events: Events,
    /// The engine that the job runs on: it stays until the answer is over.
    engine: Lease,
    /// The span of the call, if it has one.
    trace: Option<CallSpan>,
    ended: Pin<Box<dyn Future<Output = Error> + Send>>,
}

impl Source {
    /// Of a job that runs by this pass.
    pub(in crate::serve) fn new(events: Events, engine: Lease, mut pass: Pass, trace: Option<CallSpan>) -> Self {
        Self { events, engine, trace, ended: Box::pin(async move { pass.ended().await }) }
    }

    /// The next event, or why there will be no more. Not to be called after that, nor after `Finished`.
    pub(in crate::serve) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        // First, so that a job that always has something to tell ends too.
        if let Poll::Ready(error) = self.ended.as_mut().poll(cx) {
            return Poll::Ready(Err(error));
        }
        let broken = || Err(Error::Internal("the engine dropped a job without a word".into()));
        let event = std::task::ready!(self.events.poll_recv(cx)).unwrap_or_else(broken);
        let done = match &event {
            Ok(Event::Finished { usage, timing, .. }) => Some((usage, timing)),
            Ok(Event::Document(DocumentEvent::Summarized(summary))) => Some((&summary.usage, &summary.timing)),
            _ => None,
        };
        if let (Some((usage, timing)), Some(trace)) = (done, &self.trace) {
            trace.record_job(&self.engine.card().name, usage, timing);
        }
        Poll::Ready(event)
    }

    /// As [`poll`](Self::poll).
    pub(in crate::serve) async fn next(&mut self) -> Result<Event> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }
}

/// How one kind of call puts events into messages.
pub(in crate::serve) trait MessageEncoder: Unpin + Send {
    /// What is sent.
    type Message: Unpin + Send;

    /// Messages that come before the first characters.
    const HEAD: usize;

    /// Takes the next event.
    fn take(&mut self, event: Event);

    /// There will be no more events, whether the job finished or not: what was held back is to be sent.
    fn close(&mut self);

    /// The next message, if one is complete.
    fn next(&mut self) -> Option<Self::Message>;

    /// Whether a message should be sent before more events are taken.
    fn is_full(&self) -> bool;
}

/// One call's answer.
pub(in crate::serve) struct ResponseStream<W: MessageEncoder> {
    /// None once there are no more events.
    source: Option<Source>,
    encoder: W,
    /// Messages that were looked at already.
    ready: VecDeque<W::Message>,
    /// What ended the job early, until it is sent.
    failure: Option<Status>,
    call: Call,
    span: Span,
}

impl<W: MessageEncoder> ResponseStream<W> {
    /// Of a job, in the words of its call.
    pub(in crate::serve) fn new(source: Source, encoder: W, call: Call) -> Self {
        Self { source: Some(source), encoder, ready: VecDeque::new(), failure: None, call, span: Span::current() }
    }

    /// Waits until the first characters are there.
    ///
    /// # Errors
    /// What ended the job before that.
    pub(in crate::serve) async fn with_characters(mut self) -> Result<Self, Status> {
        while self.ready.len() <= W::HEAD {
            let next = std::future::poll_fn(|cx| self.go_on(cx)).await;
            let Some(message) = next.transpose()? else { break };
            self.ready.push_back(message);
        }
        Ok(self)
    }

    /// Takes all events that are there, then tells what to send.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<W::Message, Status>>> {
        while !self.encoder.is_full() {
            let Some(source) = &mut self.source else { break };
            match source.poll(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(event)) => {
                    let last = is_last(&event);
                    let encoder = &mut self.encoder;
                    self.span.in_scope(|| encoder.take(event));
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
            None if self.source.is_some() => Poll::Pending,
            None => Poll::Ready(self.failure.take().map(Err)),
        }
    }

    /// The next message, or what ended the job early, be it a panic: the layer that catches those sees only what happens
    /// before the first message.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<W::Message, Status>>> {
        caught(|| self.advance(cx)).unwrap_or_else(|error| {
            log_failure(&self.span, &error);
            self.source = None;
            Poll::Ready(Some(Err(status(&error, &self.call.id))))
        })
    }

    fn end(&mut self) {
        self.encoder.close();
        self.source = None;
    }
}

impl<W: MessageEncoder> Stream for ResponseStream<W> {
    type Item = Result<W::Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.ready.pop_front() {
            Some(message) => Poll::Ready(Some(Ok(message))),
            None => self.go_on(cx),
        }
    }
}

impl<W: MessageEncoder> Drop for ResponseStream<W> {
    fn drop(&mut self) {
        if self.source.is_some() {
            tracing::info!(parent: &self.span, "dropped before its end");
        }
    }
}

/// Whether nothing follows an event.
fn is_last(event: &Event) -> bool {
    matches!(event, Event::Finished { .. } | Event::Document(DocumentEvent::Summarized(_)))
}

/// Our own failures are for the log; callers' failures are theirs to know.
pub(in crate::serve) fn log_failure(span: &Span, error: &Error) {
    match error.code() {
        Code::Internal => tracing::error!(parent: span, %error, "failed"),
        code => tracing::info!(parent: span, ?code, "ended early"),
    }
}

/// What a call is answered that could not be taken.
pub(in crate::serve) fn refused(call: &Call) -> impl FnOnce(Error) -> Status {
    |error| {
        log_failure(&Span::current(), &error);
        status(&error, &call.id)
    }
}
