//! The messages of a request that is a stream.

use crate::middleware::{limits::RequestMemory, observe};
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};
use weir_kernels::error::{Code, Error, Result};

/// The messages of a request, and the memory that they use until they are converted.
pub(crate) struct RequestParts<M> {
    messages: Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>,
    memory: Option<RequestMemory>,
}

impl<M> RequestParts<M> {
    pub(crate) fn new(
        messages: impl Stream<Item = Result<M, Status>> + Send + 'static,
        memory: Option<RequestMemory>,
    ) -> Self {
        Self { messages: Box::pin(messages), memory }
    }

    /// Waits for the next message. Returns `None` at the end of the request. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<M>> {
        self.messages.next().await.transpose().map_err(incomplete)
    }

    /// Releases the memory of the messages so far, which are converted.
    pub(super) fn release(&self) {
        if let Some(memory) = &self.memory {
            memory.release();
        }
    }
}

impl<M: Send + 'static> RequestParts<M> {
    /// Returns the messages of a gRPC request.
    pub(super) fn of(mut request: tonic::Request<Streaming<M>>) -> Self {
        let memory = RequestMemory::take(&mut request);
        Self::new(request.into_inner(), memory)
    }
}

/// Returns the error for a request that broke off or cannot be read, by the status that ended it.
fn incomplete(status: Status) -> Error {
    if let Some(error) = observe::unreadable(&status) {
        return error;
    }
    let code = match status.code() {
        tonic::Code::OutOfRange => Code::OutOfRange,
        tonic::Code::ResourceExhausted => Code::ResourceExhausted,
        tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
        tonic::Code::Unavailable => Code::Unavailable,
        tonic::Code::InvalidArgument => Code::InvalidArgument,
        tonic::Code::Internal => Code::Internal,
        _ => Code::Cancelled,
    };
    Error::Incomplete { code, why: status.message().to_owned() }
}
