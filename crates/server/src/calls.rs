//! Calls of `weir.v1` by the HTTP API and by the Open Inference Protocol: they run the handlers of the gRPC services directly.
//!
//! Such a call has a message and no bytes. [`Calls::begin`] applies the parts of the [`middleware`](super::middleware) to it that
//! do not concern bytes, in the same order: counts and traces, the log, keys, the calls in progress, the memory of the message,
//! the deadline, panics.

use crate::{
    call::{Call, Principal},
    grpc::{
        generation::{GenerateEncoder, Incoming, JobService},
        response::{ResponseStream, reject},
    },
    middleware::{
        auth::needs_no_key,
        deadlines::begin_by,
        limits::{CallPlace, CallTable, RequestMemory, Reservation},
        observe::{OpenCall, RefusalLog, catch_panic, log_span},
    },
    status::status,
    traces::Traces,
};
use prost::Message;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio_stream::Stream;
use tonic::{Code, Status, codegen::http::HeaderMap};
use tracing::{Instrument, Span};
use weir_engine::clock;
use weir_kernels::error::{Error, Result};
use weir_proto::v1;

/// The properties of a client's request that calls on its behalf inherit.
#[derive(Clone)]
pub(crate) struct ClientContext {
    pub(crate) request_id: Arc<str>,
    /// The client, or why its key is refused.
    principal: Result<Principal, &'static str>,
    /// The headers of the request, which may name its trace.
    headers: Arc<HeaderMap>,
    /// When the client stops waiting.
    deadline: Option<Instant>,
    /// True if a refused call makes the server refuse the client's request. The log then has the request in place of the call.
    logs_refusals: bool,
}

impl ClientContext {
    pub(crate) fn new(request_id: Arc<str>, headers: &HeaderMap, principal: Result<Principal, &'static str>) -> Self {
        Self { request_id, principal, headers: Arc::new(headers.clone()), deadline: None, logs_refusals: true }
    }

    /// Returns the context of a gRPC call.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Self {
        let Call { id, principal, deadline, .. } = Call::of(request);
        Self { deadline, ..Self::new(id, request.metadata().as_ref(), Ok(principal)) }
    }

    /// Returns the context of request number `number` of a stream of requests.
    pub(crate) fn numbered(&self, number: u64) -> Self {
        Self { request_id: format!("{}/{number}", self.request_id).into(), ..self.clone() }
    }

    /// Returns the context of calls whose refusals are parts of a response that begins without an error.
    pub(crate) fn of_stream(self) -> Self {
        Self { logs_refusals: false, ..self }
    }

    /// Shortens the deadline to `deadline` if that is sooner.
    pub(crate) fn until(self, deadline: Option<Instant>) -> Self {
        let deadline = [self.deadline, deadline].into_iter().flatten().min();
        Self { deadline, ..self }
    }

    /// Returns the client. Fails if the request needs a key and has none that is valid.
    pub(crate) fn principal(&self) -> Result<&Principal> {
        self.principal.as_ref().map_err(|why| Error::Unauthenticated { why })
    }
}

/// Makes calls on behalf of clients.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(crate) jobs: JobService,
    pub(crate) traces: Option<Traces>,
    pub(crate) refusals: RefusalLog,
    /// The calls in progress.
    pub(crate) in_progress: Arc<CallTable>,
}

/// The response to a `Generate`.
pub(crate) type Generated = CallResponse<ResponseStream<GenerateEncoder>>;

impl Calls {
    pub(crate) async fn generate(
        &self,
        client: &ClientContext,
        message: v1::GenerateRequest,
    ) -> Result<Generated, Status> {
        let bytes = message.encoded_len();
        self.begin("/weir.v1.Generation/Generate", client, bytes, async |call: Call, memory| {
            let request = Incoming { message, call: call.clone(), memory: Some(memory) };
            self.jobs.start_generate(request).await.map_err(reject(&call))
        })
        .await
    }

    /// Runs `handler` as a call of the method at `path`, whose request has `bytes` bytes. The call is in progress until its response
    /// is dropped.
    pub(crate) async fn begin<R, H>(
        &self,
        path: &'static str,
        client: &ClientContext,
        bytes: usize,
        handler: H,
    ) -> Result<CallResponse<R>, Status>
    where
        H: AsyncFnOnce(Call, RequestMemory) -> Result<R, Status>,
    {
        let id = Arc::clone(&client.request_id);
        let arrived = clock::now();
        let mut call = Call { deadline: client.deadline, ..Call::new(Arc::clone(&id), arrived) };
        let metrics = self.jobs.engines.metrics();
        let mut open = OpenCall::begin(metrics, self.traces.as_ref(), path, &client.headers, &mut call);
        let span = log_span(path, &id);
        let begun = async {
            let (place, memory) = self.admit(path, client, bytes, &mut call)?;
            let response = begin_by(call.deadline, catch_panic(handler(call, memory))).await.flatten()?;
            Ok((place, response))
        };
        let begun = async {
            let begun = begun.await.map_err(|error: Error| status(&error, &id));
            let begun = begun.and_then(|(place, response)| Ok((place, response?)));
            let code = begun.as_ref().map_or_else(Status::code, |_| Code::Ok);
            tracing::debug!(?code, elapsed = ?clock::since(arrived), "response begins");
            if let Err(refused) = &begun
                && !client.logs_refusals
            {
                self.refusals.record_status(refused);
            }
            begun
        };
        match begun.instrument(span).await {
            Ok((place, response)) => Ok(CallResponse { response, open, _place: place }),
            Err(refused) => {
                open.code = refused.code();
                Err(refused)
            }
        }
    }

    /// Checks the key of a call, and takes its place among the calls in progress and the memory of its request.
    fn admit(
        &self,
        path: &str,
        client: &ClientContext,
        bytes: usize,
        call: &mut Call,
    ) -> Result<(Option<CallPlace>, RequestMemory)> {
        let mut place = None;
        if !needs_no_key(path) {
            call.principal = client.principal()?.clone();
            Span::current().record("principal", tracing::field::display(&call.principal));
            place = Some(self.in_progress.begin(call.tenant())?);
        }
        let memory = RequestMemory::new(Reservation::new(Arc::clone(&self.jobs.memory), call.tenant()));
        // A caller may hold more than its share, which others shorten. Its calls without a request are not refused.
        if bytes > 0 {
            memory.add(bytes)?;
        }
        Ok((place, memory))
    }
}

/// The response to a call, which is in progress until this is dropped.
pub(crate) struct CallResponse<R> {
    pub(crate) response: R,
    open: OpenCall,
    _place: Option<CallPlace>,
}

impl<R> CallResponse<R> {
    /// Ends the call, whose response is complete.
    pub(crate) fn into_complete(mut self) -> R {
        self.open.code = Code::Ok;
        self.response
    }
}

impl<T, R: Stream<Item = Result<T, Status>> + Unpin> Stream for CallResponse<R> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = ready!(Pin::new(&mut self.response).poll_next(cx));
        match &message {
            Some(Ok(_)) => {}
            Some(Err(failure)) => self.open.code = failure.code(),
            None if self.open.code == Code::Cancelled => self.open.code = Code::Ok,
            None => {}
        }
        Poll::Ready(message)
    }
}
