//! The response to a call of the service `Codec`: messages that a task sends while it runs.

use super::{
    codec_call::CodecCall,
    codec_messages::{Messages, Output},
    response_stream::log_failure,
};
use crate::{
    error::{Error, Result},
    serve::{call::Call, registry::drain::RequestPermit, status::status},
};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
    time::sleep_until,
};
use tokio_stream::Stream;
use tonic::Status;
use tracing::{Instrument, Span};

/// Messages that wait for the client, at most.
const MESSAGES: usize = 4;

/// The response. Dropping it ends the call, which frees the rows of its blocks within one step.
pub(crate) struct CodecResponse<M: Messages> {
    /// A message that [`buffered`](Self::buffered) has read ahead.
    first: Option<M::Response>,
    messages: Receiver<M::Response>,
    /// Ends with the error that ended the call, which follows the messages. `None` once it is known.
    task: Option<JoinHandle<Result<(), Status>>>,
    call: Call,
    /// Held until the response is complete or dropped.
    _permit: RequestPermit,
}

impl<M: Messages> CodecResponse<M> {
    /// Starts a task that runs the call until it ends, its deadline passes, or the server shuts down. `permits` are the task's and the
    /// response's.
    pub(super) fn spawn<R: Future<Output = Result<()>> + Send>(
        codec: CodecCall<M>,
        permits: [RequestPermit; 2],
        call: Call,
        run: impl FnOnce(CodecCall<M>, Output<M>) -> R + Send + 'static,
    ) -> Self {
        let (sender, messages) = mpsc::channel(MESSAGES);
        let output = Output { sender, stall: codec.engine().limits().stall };
        let [permit, response_permit] = permits;
        let id = call.id.clone();
        let deadline = call.deadline;
        let span = Span::current();
        let task = async move {
            let passed = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                biased;
                result = run(codec, output) => result,
                error = permit.ended() => Err(error),
                () = passed => Err(Error::Deadline { stage: "while decoding" }),
            };
            result.map_err(|error| {
                log_failure(&Span::current(), &error);
                status(&error, &id)
            })
        };
        let task = Some(tokio::spawn(task.instrument(span)));
        Self { first: None, messages, task, call, _permit: response_permit }
    }

    /// Waits for the first message if `wait` is true. A call that fails before its first message then fails without a response.
    pub(super) async fn buffered(mut self, wait: bool) -> Result<Self, Status> {
        if wait {
            self.first = std::future::poll_fn(|cx| self.poll_message(cx)).await.transpose()?;
        }
        Ok(self)
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<M::Response, Status>>> {
        if let Some(message) = ready!(self.messages.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        let Some(task) = &mut self.task else { return Poll::Ready(None) };
        let ended = ready!(Pin::new(task).poll(cx));
        self.task = None;
        let panicked = |_| Err(status(&Error::Internal("a panic in a call".into()), &self.call.id));
        Poll::Ready(ended.unwrap_or_else(panicked).err().map(Err))
    }
}

impl<M: Messages> Unpin for CodecResponse<M> {}

impl<M: Messages> Stream for CodecResponse<M> {
    type Item = Result<M::Response, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.poll_message(cx),
        }
    }
}

impl<M: Messages> Drop for CodecResponse<M> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
