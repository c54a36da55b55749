//! `ModelStreamInfer`: a stream of requests, answered concurrently. Each request is a call of its own. Its failure is a message of
//! the stream, and does not end the stream.

use super::{
    codec::DecodedRequest,
    for_client,
    request::{InferRequest, shortened_id},
    service::InferenceService,
    streamed_request::StreamedRequest,
};
use crate::{
    error::Result,
    serve::{
        call::Call,
        calls::ClientContext,
        middleware::{
            body_limits::RequestMemory,
            tonic_errors::{undecodable, unreadable},
        },
        status::status,
    },
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio_stream::{Stream, StreamMap};
use tonic::{Status, Streaming};
use weir_proto::inference::ModelStreamInferResponse;

/// One call of `ModelStreamInfer`.
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
        let client = ClientContext::of(&request).of_stream();
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
                    let to_status = |error| for_client(&status(&error, &self.client.request_id));
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
            service.parse(&tenant, request, None).await
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
            Err(error) => {
                let status = status(&error, &client.request_id);
                StreamedRequest::rejected(&id, &for_client(&status))
            }
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
