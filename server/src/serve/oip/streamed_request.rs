//! One request of a stream, from the call to its last message.

use super::{
    for_client,
    request::{InferRequest, OutputOptions},
    response::{ResponseBuilder, failure_message},
};
use crate::serve::{
    calls::{Calls, ClientContext, Generated},
    collected::CollectedSize,
    status::status,
};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_stream::Stream;
use tonic::Status;
use weir_proto::{inference::ModelStreamInferResponse, v1::GenerateResponse};

/// A call without a response yet.
type PendingCall = Pin<Box<dyn Future<Output = Result<Generated, Status>> + Send>>;

/// One request and its response.
pub(super) struct StreamedRequest {
    id: String,
    stage: CallStage,
    response: ResponseBuilder,
    /// The memory of a response that is not streamed. Held until the connection asks for more, which is after it has sent the message.
    size: Option<CollectedSize>,
    request_id: Arc<str>,
    ready: VecDeque<ModelStreamInferResponse>,
}

enum CallStage {
    Pending(PendingCall),
    Running(Generated),
    Ended,
}

impl StreamedRequest {
    /// Starts a valid request. Its response counts in `size`, unless it is streamed.
    pub(super) fn new(calls: Calls, client: ClientContext, request: InferRequest, size: CollectedSize) -> Self {
        let InferRequest { generate, output, deadline } = request;
        let id = output.id.clone();
        let size = (!output.stream).then_some(size);
        let response = ResponseBuilder::new(output);
        let request_id = Arc::clone(&client.request_id);
        let client = client.until(deadline);
        let call = Box::pin(async move { calls.generate(&client, generate).await });
        let stage = CallStage::Pending(call);
        Self { id, stage, response, size, request_id, ready: VecDeque::new() }
    }

    /// Answers an invalid request.
    pub(super) fn rejected(id: &str, status: &Status) -> Self {
        let response = ResponseBuilder::new(OutputOptions::default());
        let ready = [failure_message(id, status)].into();
        Self { id: id.to_owned(), stage: CallStage::Ended, response, size: None, request_id: "".into(), ready }
    }

    /// Handles the next message of the call, or its end.
    fn receive(&mut self, message: Option<Result<GenerateResponse, Status>>) {
        match message {
            Some(Ok(message)) => {
                message.event.into_iter().for_each(|event| self.response.push(event));
                let bytes = self.response.memory_bytes();
                let counted = self.size.as_mut().map_or(Ok(()), |size| size.grow_to(bytes));
                if let Err(error) = counted {
                    self.fail(&status(&error, &self.request_id));
                } else if self.response.has_output() {
                    self.send();
                }
            }
            Some(Err(status)) => self.fail(&status),
            None if self.response.is_complete() => {}
            None => self.fail(&Status::internal("the response ended early")),
        }
    }

    fn send(&mut self) {
        let message = self.response.take_message();
        let end = self.response.is_complete().then(|| self.response.end_message()).flatten();
        let messages = [Some(message), end].into_iter().flatten();
        let messages =
            messages.map(|message| ModelStreamInferResponse { infer_response: Some(message), ..Default::default() });
        self.ready.extend(messages);
        if self.response.is_complete() {
            self.stage = CallStage::Ended;
        }
    }

    fn fail(&mut self, status: &Status) {
        self.response = ResponseBuilder::new(OutputOptions::default());
        self.size = None;
        self.ready.push_back(failure_message(&self.id, &for_client(status)));
        self.stage = CallStage::Ended;
    }
}

impl Stream for StreamedRequest {
    type Item = ModelStreamInferResponse;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Poll::Ready(Some(message));
            }
            match &mut self.stage {
                CallStage::Ended => return Poll::Ready(None),
                CallStage::Pending(call) => match ready!(call.as_mut().poll(cx)) {
                    Ok(stream) => self.stage = CallStage::Running(stream),
                    Err(status) => self.fail(&status),
                },
                CallStage::Running(stream) => {
                    let message = ready!(Pin::new(stream).poll_next(cx));
                    self.receive(message);
                }
            }
        }
    }
}
