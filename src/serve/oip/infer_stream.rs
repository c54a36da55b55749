//! `ModelStreamInfer`: a stream of requests, answered concurrently. Each request is a call of its own. Its failure is a message of
//! the stream, and does not end the stream.

use super::{
    codec::DecodedRequest,
    field_names,
    request::{InferRequest, shortened_id},
    streamed_request::StreamedRequest,
};
use crate::{
    error::Error,
    serve::{
        in_process::{ClientContext, Services},
        middleware::{
            body_limits::StreamMemory,
            tonic_errors::{undecodable, unreadable},
        },
        status::status,
    },
};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio_stream::{Stream, StreamMap};
use tonic::{Status, Streaming};
use weir_proto::inference::ModelStreamInferResponse;

/// One call of `ModelStreamInfer`.
pub(super) struct InferStream {
    services: Services,
    client: ClientContext,
    /// The requests; `None` after the last one.
    incoming: Option<Streaming<DecodedRequest>>,
    /// Releases the memory of each request that has been read.
    memory: Option<StreamMemory>,
    /// Number of requests read.
    count: u64,
    /// Running requests by their numbers.
    running: StreamMap<u64, StreamedRequest>,
    /// Maximum running requests. The stream reads no more while they run.
    max_concurrent: usize,
    /// The failure that ended the requests. It is sent after the responses to earlier requests.
    failure: Option<Status>,
}

impl InferStream {
    /// Handles the requests of this client, at most `max_concurrent` at a time.
    pub(super) fn new(
        services: Services,
        client: ClientContext,
        request: tonic::Request<Streaming<DecodedRequest>>,
        max_concurrent: usize,
    ) -> Self {
        let memory = request.extensions().get().cloned();
        let incoming = Some(request.into_inner());
        Self { services, client, incoming, memory, count: 0, running: StreamMap::new(), max_concurrent, failure: None }
    }

    /// Reads the requests that have arrived, while the limit allows.
    fn poll_requests(&mut self, cx: &mut Context<'_>) {
        while self.running.len() < self.max_concurrent {
            let Some(incoming) = &mut self.incoming else { return };
            match Pin::new(incoming).poll_next(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(request))) => self.start(request),
                Poll::Ready(Some(Err(failure))) => {
                    // The response has started, so the middleware cannot convert tonic's error any more.
                    let to_status = |error| field_names::for_client(&status(&error, &self.client.request_id));
                    self.failure = Some(unreadable(&failure).map_or(failure, to_status));
                    self.incoming = None;
                }
                Poll::Ready(None) => self.incoming = None,
            }
        }
    }

    fn start(&mut self, request: DecodedRequest) {
        if let Some(memory) = &self.memory {
            memory.release();
        }
        self.count += 1;
        let client = self.client.numbered(self.count);
        let reject = |id: &str, error: &Error| {
            StreamedRequest::rejected(id, &field_names::for_client(&status(error, &client.request_id)))
        };
        let running = match request {
            Err(reason) => reject("", &undecodable(&reason)),
            Ok(request) => {
                let id = shortened_id(&request);
                match InferRequest::parse(request) {
                    Ok(request) => StreamedRequest::new(self.services.clone(), client.clone(), request),
                    Err(error) => reject(&id, &error),
                }
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
            let was_full = self.running.len() >= self.max_concurrent;
            match Pin::new(&mut self.running).poll_next(cx) {
                Poll::Ready(Some((_, message))) => return Poll::Ready(Some(Ok(message))),
                // A finished request has made room for another one.
                _ if was_full && self.running.len() < self.max_concurrent => {}
                Poll::Ready(None) if self.incoming.is_none() => return Poll::Ready(self.failure.take().map(Err)),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}
