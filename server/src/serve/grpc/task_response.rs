//! The response to a call that runs in a task of its own: the messages that the task sends.

use super::response_stream::log_failure;
use crate::{
    error::{Error, Result},
    serve::{call::Call, registry::drain::RequestPermit, status::status},
};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
    time::{sleep_until, timeout},
};
use tokio_stream::Stream;
use tonic::Status;
use tracing::{Instrument, Span};

/// Messages that wait for the client, at most.
const MESSAGES: usize = 4;

/// Where a call sends its messages.
pub(super) struct Output<T> {
    sender: Sender<T>,
    /// How long a client may read nothing.
    stall: Duration,
}

impl<T> Output<T> {
    /// Sends a message. Waits while the client is behind; fails with [`Error::Stalled`] if it reads nothing for too long.
    pub(super) async fn send(&self, message: T) -> Result<()> {
        match timeout(self.stall, self.sender.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Error::Cancelled),
            Err(_) => Err(Error::Stalled { limit: self.stall }),
        }
    }
}

/// The response. Dropping it ends the call, which frees the rows of its jobs within one step.
pub(crate) struct TaskResponse<T> {
    messages: Receiver<T>,
    /// Ends with the error that ended the call, which follows the messages. `None` once it is known.
    task: Option<JoinHandle<Result<(), Status>>>,
    call: Call,
    /// Held until the response is complete or dropped.
    _permit: RequestPermit,
}

impl<T: Send + 'static> TaskResponse<T> {
    /// Starts a task that runs the call until it ends, its deadline passes, or the server shuts down. `permits` are the task's and the
    /// response's. `stall` is how long the client may read nothing.
    pub(super) fn spawn<R: Future<Output = Result<()>> + Send>(
        permits: [RequestPermit; 2],
        call: Call,
        stall: Duration,
        run: impl FnOnce(Output<T>) -> R + Send + 'static,
    ) -> Self {
        let (sender, messages) = mpsc::channel(MESSAGES);
        let output = Output { sender, stall };
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
                result = run(output) => result,
                error = permit.ended() => Err(error),
                () = passed => Err(Error::Deadline { stage: "while decoding" }),
            };
            result.map_err(|error| {
                log_failure(&Span::current(), &error);
                status(&error, &id)
            })
        };
        let task = Some(tokio::spawn(task.instrument(span)));
        Self { messages, task, call, _permit: response_permit }
    }
}

impl<T> Unpin for TaskResponse<T> {}

impl<T> Stream for TaskResponse<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
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

impl<T> Drop for TaskResponse<T> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
