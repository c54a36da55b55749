//! `ModelStreamInfer`: a stream of requests that are answered concurrently. A request that fails does not end the stream.

use crate::{
    call::{Call, ClientContext},
    calls::{Calls, Generated},
    completion_request::{Names, Surface},
    middleware::{
        limits::{CollectedSize, RequestMemory},
        observe::{undecodable, unreadable},
    },
    open_inference::{
        request::{InferRequest, shortened_id},
        response::{DecodedRequest, ResponseBuilder, failure_message, for_client},
        service::InferenceService,
    },
};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_stream::{Stream, StreamMap};
use tonic::{Status, Streaming};
use weir_kernels::error::{Error, Result};
use weir_proto::{inference::ModelStreamInferResponse, v1::GenerateResponse};

/// A call without a response yet.
type PendingCall = Pin<Box<dyn Future<Output = Result<Generated>> + Send>>;

/// One request and its response.
pub(super) struct StreamedRequest {
    id: String,
    names: Names,
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
        let InferRequest { generate, output, deadline, names } = request;
        let id = output.id.clone();
        let size = (!output.stream).then_some(size);
        let response = ResponseBuilder::new(output);
        let request_id = Arc::clone(&client.request_id);
        let client = client.until(deadline);
        let call = Box::pin(async move { calls.generate(&client, generate).await });
        let stage = CallStage::Pending(call);
        Self { id, names, stage, response, size, request_id, ready: VecDeque::new() }
    }

    /// Answers an invalid request.
    fn rejected(id: &str, error: Error, request_id: &str) -> Self {
        let response = ResponseBuilder::default();
        let ready = [failure_message(id, &for_client(error, request_id))].into();
        let id = id.to_owned();
        let names = Names::default();
        Self { id, names, stage: CallStage::Ended, response, size: None, request_id: "".into(), ready }
    }

    /// Handles the next message of the call, or its end.
    fn receive(&mut self, message: Option<Result<GenerateResponse>>) {
        match message {
            Some(Ok(message)) => {
                message.event.into_iter().for_each(|event| self.response.push(event));
                let bytes = self.response.memory_bytes();
                let counted = self.size.as_mut().map_or(Ok(()), |size| size.grow_to(bytes));
                if let Err(error) = counted {
                    self.fail(error);
                } else if self.response.has_output() {
                    self.send();
                }
            }
            Some(Err(error)) => self.fail(error),
            None if self.response.is_complete() => {}
            None => self.fail(Error::Internal("the response ended early".into())),
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

    fn fail(&mut self, error: Error) {
        self.response = ResponseBuilder::default();
        self.size = None;
        let status = for_client(self.names.name(error), &self.request_id);
        self.ready.push_back(failure_message(&self.id, &status));
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
                    Err(error) => self.fail(error),
                },
                CallStage::Running(stream) => {
                    let message = ready!(Pin::new(stream).poll_next(cx));
                    self.receive(message);
                }
            }
        }
    }
}

/// One call of `ModelStreamInfer`: its requests are answered concurrently, each by a call. The failure of one is a message, and does not
/// end the stream.
pub(super) struct InferStream {
    service: InferenceService,
    client: ClientContext,
    /// The tenant of the client.
    tenant: Arc<str>,
    /// The requests; `None` after the last one.
    incoming: Option<Streaming<DecodedRequest>>,
    /// Releases the memory of each request that has been parsed.
    memory: Option<RequestMemory>,
    /// The request that is being parsed. The stream reads no other one meanwhile.
    parsing: Option<ParsingRequest>,
    /// Number of requests read.
    count: u64,
    /// Running requests by their numbers.
    running: StreamMap<u64, StreamedRequest>,
    /// The failure that ended the requests. It is sent after the responses to earlier requests.
    failure: Option<Status>,
}

/// A request that is being parsed.
struct ParsingRequest {
    id: String,
    client: ClientContext,
    parsed: Pin<Box<dyn Future<Output = Result<InferRequest>> + Send>>,
}

impl InferStream {
    /// Handles the requests of one call of `service`.
    pub(super) fn new(service: InferenceService, mut request: tonic::Request<Streaming<DecodedRequest>>) -> Self {
        let client = ClientContext::of(&request).logging_calls();
        let tenant = Call::of(&request).tenant();
        let memory = RequestMemory::take(&mut request);
        Self {
            service,
            client,
            tenant,
            incoming: Some(request.into_inner()),
            memory,
            parsing: None,
            count: 0,
            running: StreamMap::new(),
            failure: None,
        }
    }

    /// Reads the requests that have arrived, as long as fewer than the maximum run.
    fn poll_requests(&mut self, cx: &mut Context<'_>) {
        while self.running.len() < self.service.max_concurrent {
            if let Some(parsing) = &mut self.parsing {
                let Poll::Ready(parsed) = parsing.parsed.as_mut().poll(cx) else { return };
                self.finish_parsing(parsed);
                continue;
            }
            let Some(incoming) = &mut self.incoming else {
                self.memory = None;
                return;
            };
            match Pin::new(incoming).poll_next(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(request))) => self.begin(request),
                Poll::Ready(Some(Err(failure))) => {
                    // The response has started, so the middleware cannot convert tonic's error any more.
                    let to_status = |error| for_client(error, &self.client.request_id);
                    self.failure = Some(unreadable(&failure).map_or(failure, to_status));
                    self.incoming = None;
                }
                Poll::Ready(None) => self.incoming = None,
            }
        }
    }

    fn begin(&mut self, request: DecodedRequest) {
        self.count += 1;
        let client = self.client.numbered(self.count);
        let service = self.service.clone();
        let tenant = Arc::clone(&self.tenant);
        let id = request.as_ref().map(shortened_id).unwrap_or_default();
        let parsed = Box::pin(async move {
            let request = request.map_err(|reason| undecodable(&reason))?;
            service.parse(&tenant, request, None, Surface::Inference).await
        });
        self.parsing = Some(ParsingRequest { id, client, parsed });
    }

    fn finish_parsing(&mut self, parsed: Result<InferRequest>) {
        let Some(ParsingRequest { id, client, .. }) = self.parsing.take() else { return };
        if let Some(memory) = &self.memory {
            memory.release();
        }
        let running = match parsed {
            Ok(request) => {
                let size = self.service.collected.begin(&self.tenant, "use the input stream");
                StreamedRequest::new(self.service.calls.clone(), client, request, size)
            }
            Err(error) => StreamedRequest::rejected(&id, error, &client.request_id),
        };
        self.running.insert(self.count, running);
    }
}

impl Stream for InferStream {
    type Item = Result<ModelStreamInferResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            self.poll_requests(cx);
            let was_full = self.running.len() >= self.service.max_concurrent;
            match Pin::new(&mut self.running).poll_next(cx) {
                Poll::Ready(Some((_, message))) => return Poll::Ready(Some(Ok(message))),
                // A finished request has made room for another one.
                _ if was_full && self.running.len() < self.service.max_concurrent => {}
                Poll::Ready(None) if self.incoming.is_none() && self.parsing.is_none() => {
                    return Poll::Ready(self.failure.take().map(Err));
                }
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}
