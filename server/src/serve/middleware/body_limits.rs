//! Limits on request bodies while they arrive. Each connection may carry many calls, each with a long message; together they could
//! exceed the server's memory. So one limit covers all bodies, one tenant gets only a part of it, and a body that does not arrive
//! in time loses its memory.

use super::{
    auth::{KEYLESS_MESSAGE_BYTES, needs_no_key},
    compression::HEADER,
    decompression::{Decompressor, Messages, next_messages},
    layer::{HttpRequest, Middleware, Next},
    shared_limit::{Exceeded, SharedLimit},
    whole_messages::WholeMessages,
};
use crate::{
    config::TransportConfig,
    engine::clock,
    error::{Error, Result},
    serve::{
        call::{CODEC, Call, EDIT, STREAM_INFER, SUMMARIZE},
        registry::drain::draining_error,
        status::status,
        tokenization::TokenizationWorkers,
    },
};
use http_body::{Body as HttpBody, Frame};
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, codegen::Bytes};
use tower::ServiceExt;

/// Delay before a rejected client should retry. Arriving bodies are complete or rejected by then.
const RETRY: Duration = Duration::from_secs(1);

/// How long a body may still take to arrive once the server begins to shut down.
const GRACE: Duration = Duration::from_secs(1);

/// Counts the bytes of bodies until they are converted or dropped. Rejects a body that exceeds the limit of all bodies or of its
/// tenant, or that does not arrive in time.
///
/// A compressed message that has arrived counts with its largest possible decompressed size until the body is dropped: the
/// decoder keeps the memory that its largest message took. `workers` decompress it, so the services receive no compressed messages.
///
/// A body that has not arrived soon after the server begins to shut down is rejected. A document that is being read is a running
/// request, which continues like any other.
pub(super) fn limit(
    memory: Arc<BodyMemory>,
    config: &TransportConfig,
    workers: TokenizationWorkers,
    draining: CancellationToken,
) -> impl Middleware {
    let timeout = config.upload;
    let max_message = config.message_bytes;
    // A message never decompresses to more than `message_bytes`, and a single one must always fit.
    let max_expanded =
        config.message_bytes.min(memory.tenant_limit.saturating_sub(config.message_bytes.saturating_add(HEADER)));
    move |mut request: HttpRequest, next: Next| {
        let call = Call::of_http(&request);
        let id = Arc::clone(&call.id);
        let reserved = Arc::new(Reservation::new(Arc::clone(&memory), call.tenant()));
        let path = request.uri().path();
        let max_decompressed = if needs_no_key(path) { KEYLESS_MESSAGE_BYTES } else { max_message };
        let decompressor = Decompressor::new(request.headers(), max_decompressed, &workers, call.tenant());
        let is_codec = CODEC.contains(&path);
        // A stream of requests need not arrive as a whole: each request must.
        let is_stream = path == STREAM_INFER || path == EDIT || is_codec;
        let started = (path == SUMMARIZE || is_codec).then_some(false);
        request.extensions_mut().insert(RequestMemory(Arc::clone(&reserved)));
        let drained = Box::pin(drained(draining.clone()));
        let late = Box::pin(sleep(timeout));
        let limited = |body| LimitedBody {
            body,
            id,
            reserved,
            messages: WholeMessages::new(max_message),
            max_expanded,
            decompressor: decompressor.clone(),
            complete: Bytes::new(),
            decompressing: None,
            is_stream,
            started,
            timeout,
            late,
            drained,
        };
        Box::pin(next.oneshot(request.map(|body| Body::new(limited(body)))))
    }
}

/// Waits until a body that has not arrived must be rejected, because the server shuts down.
pub(crate) async fn drained(draining: CancellationToken) {
    draining.cancelled().await;
    sleep(GRACE).await;
}

/// The memory that arriving bodies and collected responses share, on all ports. A tenant may hold half of what the others leave, and
/// always the longest message.
pub(crate) struct BodyMemory {
    /// Maximum bytes of one tenant while no other holds any.
    tenant_limit: usize,
    /// Bytes of the longest message.
    longest: usize,
    bytes: SharedLimit,
}

impl BodyMemory {
    /// Creates the memory with the limits of `config`.
    pub(crate) fn new(config: &TransportConfig) -> Arc<Self> {
        // The longest message fits, with its header.
        let longest = config.message_bytes.saturating_add(HEADER);
        let limit = config.request_memory.max(longest);
        let bytes = SharedLimit::new(limit, longest);
        Arc::new(Self { tenant_limit: bytes.largest_share(), longest, bytes })
    }

    /// Fails if `bytes` exceeds what one request may hold.
    fn check(&self, bytes: usize) -> Result<()> {
        if bytes > self.tenant_limit {
            return Err(Error::Oversized { what: "the memory of one request", limit: self.tenant_limit });
        }
        Ok(())
    }

    fn reserve(&self, tenant: &Arc<str>, bytes: usize) -> Result<()> {
        self.check(bytes)?;
        let full = |what, limit| Err(Error::QueueFull { what, limit, retry: RETRY });
        match self.bytes.take(tenant, bytes) {
            Ok(()) => Ok(()),
            Err(Exceeded::Total(limit)) => full("bytes of requests and collected responses", limit),
            Err(Exceeded::Caller(limit)) => full("bytes of one caller's requests and collected responses", limit),
        }
    }

    fn release(&self, tenant: &Arc<str>, bytes: usize) {
        self.bytes.give_back(tenant, bytes);
    }
}

/// The memory that one body or collected response uses. Dropping it releases all of it.
pub(crate) struct Reservation {
    memory: Arc<BodyMemory>,
    tenant: Arc<str>,
    bytes: Mutex<ReservedBytes>,
}

#[derive(Default)]
struct ReservedBytes {
    /// Bytes that have arrived and are not read yet.
    arrived: usize,
    /// Maximum decompressed size of the largest compressed message so far.
    expanded: usize,
}

impl Reservation {
    /// Creates an empty reservation of `tenant`.
    pub(crate) fn new(memory: Arc<BodyMemory>, tenant: Arc<str>) -> Self {
        Self { memory, tenant, bytes: Mutex::default() }
    }

    /// Reserves `more` bytes that have arrived. Returns true if no others were waiting to be read. Fails if the limit of all
    /// memory or of the tenant is exceeded.
    pub(crate) fn add(&self, more: usize) -> Result<bool> {
        let mut bytes = self.bytes();
        self.memory.reserve(&self.tenant, more)?;
        let first = bytes.arrived == 0;
        bytes.arrived = bytes.arrived.saturating_add(more);
        Ok(first)
    }

    /// Fails if a request that holds `bytes` bytes could never receive the longest message.
    pub(crate) fn check_leaving_a_message(&self, bytes: usize) -> Result<()> {
        self.memory.check(bytes.saturating_add(self.memory.longest))
    }

    /// Reserves `more` bytes, unless that leaves less than the longest message takes. A call that works on what it has received can
    /// so receive the rest.
    pub(crate) fn add_leaving_a_message(&self, more: usize) -> Result<()> {
        let left = self.memory.longest;
        self.memory.reserve(&self.tenant, more.saturating_add(left))?;
        self.memory.release(&self.tenant, left);
        let mut bytes = self.bytes();
        bytes.arrived = bytes.arrived.saturating_add(more);
        Ok(())
    }

    /// Raises the memory for decompressed messages to `size`.
    fn expand_to(&self, size: usize) -> Result<()> {
        let mut bytes = self.bytes();
        if size > bytes.expanded {
            self.memory.reserve(&self.tenant, size - bytes.expanded)?;
            bytes.expanded = size;
        }
        Ok(())
    }

    /// Releases `less` of the bytes that were reserved.
    pub(crate) fn release(&self, less: usize) {
        let mut bytes = self.bytes();
        let less = less.min(bytes.arrived);
        bytes.arrived -= less;
        drop(bytes);
        self.memory.release(&self.tenant, less);
    }

    /// Releases the bytes that had arrived: they are read.
    fn release_arrived(&self) {
        let arrived = std::mem::take(&mut self.bytes().arrived);
        self.memory.release(&self.tenant, arrived);
    }

    fn release_all(&self) {
        let ReservedBytes { arrived, expanded } = std::mem::take(&mut *self.bytes());
        self.memory.release(&self.tenant, arrived.saturating_add(expanded));
    }

    fn is_empty(&self) -> bool {
        self.bytes().arrived == 0
    }

    fn bytes(&self) -> MutexGuard<'_, ReservedBytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release_all();
    }
}

/// The memory of a call's requests. It counts until this value and the body are dropped, so that a request that waits to be
/// converted counts, too. A stream's reader releases it after each request.
#[derive(Clone)]
pub(crate) struct RequestMemory(Arc<Reservation>);

impl RequestMemory {
    /// Counts the bytes of the requests of a call without a body.
    pub(crate) fn new(reserved: Reservation) -> Self {
        Self(Arc::new(reserved))
    }

    /// Counts `bytes` bytes that have arrived. Fails if the limit of all memory or of the tenant is exceeded.
    pub(crate) fn add(&self, bytes: usize) -> Result<()> {
        self.0.add(bytes).map(drop)
    }

    /// Takes the memory out of a call, to hold it longer than the call's body.
    pub(crate) fn take<T>(request: &mut tonic::Request<T>) -> Option<Self> {
        request.extensions_mut().remove()
    }

    /// Releases the bytes of a request that has been converted, and gives the next one its full time.
    pub(crate) fn release(&self) {
        self.0.release_arrived();
    }
}

/// The body of a request, with the memory that it uses.
struct LimitedBody {
    body: Body,
    id: Arc<str>,
    reserved: Arc<Reservation>,
    messages: WholeMessages,
    /// Maximum bytes that count for a compressed message.
    max_expanded: usize,
    /// `None` if messages are passed on as they are.
    decompressor: Option<Decompressor>,
    /// Complete messages that have not been passed on.
    complete: Bytes,
    /// The message that is being decompressed.
    decompressing: Option<Pin<Box<dyn Future<Output = Result<Bytes>> + Send>>>,
    /// True for a stream of separate requests.
    is_stream: bool,
    /// For a call that runs while its request arrives: whether it has begun.
    started: Option<bool>,
    /// How long a request may take to arrive.
    timeout: Duration,
    /// When the current request must have arrived.
    late: Pin<Box<Sleep>>,
    /// Ready soon after the server begins to shut down.
    drained: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl LimitedBody {
    /// Reserves memory for arrived bytes and for their decompressed size, and keeps the bytes until their message is complete.
    fn take_in(&mut self, bytes: Bytes) -> Result<()> {
        let first = self.reserved.add(bytes.len())?;
        if first && self.is_stream {
            let deadline = clock::now() + self.timeout;
            self.late.as_mut().reset(deadline.into());
        }
        let expanded = self.messages.push(bytes);
        self.reserved.expand_to(expanded.min(self.max_expanded))
    }

    /// Polls for the next messages to pass on, decompressed if that is necessary. `None` if no complete one is left.
    fn poll_messages(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        loop {
            if let Some(decompressing) = &mut self.decompressing {
                let decompressed = ready!(decompressing.as_mut().poll(cx));
                self.decompressing = None;
                return Poll::Ready(Some(decompressed));
            }
            if self.complete.is_empty() {
                self.complete = self.messages.pop().unwrap_or_default();
            }
            let Some(decompressor) = &self.decompressor else {
                let complete = std::mem::take(&mut self.complete);
                return Poll::Ready(Some(complete).filter(|complete| !complete.is_empty()).map(Ok));
            };
            match next_messages(&mut self.complete) {
                None => return Poll::Ready(None),
                Some(Messages::Compressed(message)) => {
                    self.decompressing = Some(Box::pin(decompressor.clone().decompress(message)));
                }
                Some(Messages::Plain(messages)) => return Poll::Ready(Some(Ok(messages))),
            }
        }
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(messages) = ready!(self.poll_messages(cx)) {
                let messages = messages.map(Frame::data).map_err(|error| status(&error, &self.id));
                return Poll::Ready(Some(messages));
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                let error = if self.started != Some(true) && self.drained.as_mut().poll(cx).is_ready() {
                    draining_error()
                } else if self.is_stream && self.reserved.is_empty() && self.started != Some(false) {
                    // Any time may pass between two requests of a stream. The options of a text must come in time.
                    return Poll::Pending;
                } else {
                    ready!(self.late.as_mut().poll(cx));
                    Error::Deadline { stage: "while the request came in" }
                };
                return Poll::Ready(Some(Err(status(&error, &self.id))));
            };
            if let Some(started) = &mut self.started {
                *started = true;
            }
            let Some(frame) = frame.transpose()? else {
                // The reader reports an incomplete message.
                return Poll::Ready(self.messages.take_rest().map(|rest| Ok(Frame::data(rest))));
            };
            match frame.into_data() {
                Ok(bytes) => {
                    if let Err(full) = self.take_in(bytes) {
                        return Poll::Ready(Some(Err(status(&full, &self.id))));
                    }
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let all_passed_on = self.messages.is_empty() && self.complete.is_empty() && self.decompressing.is_none();
        all_passed_on && self.body.is_end_stream()
    }
}
