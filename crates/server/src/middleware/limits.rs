//! Limits on what callers share: the memory of request bodies and collected responses, and the calls in progress.
//!
//! Each connection may carry many calls, each with a long message; together they could exceed the server's memory. So one limit
//! covers all bodies, one tenant gets only a part of it, and a body that does not arrive in time loses its memory.

use crate::call::{CODEC, Call, EDIT, STREAM_INFER, SUMMARIZE};
use crate::config::TransportConfig;
use crate::middleware::auth::{KEYLESS_MESSAGE_BYTES, needs_no_key};
use crate::middleware::compression::{Decompressor, HEADER, MessageScanner, Messages, next_messages};
use crate::middleware::layer::{HttpRequest, Middleware, MiddlewareFuture, Next, NextFrame};
use crate::registry::draining_error;
use crate::status::status;
use crate::tokenization::TokenizationWorkers;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::HeaderMap;
use tower::ServiceExt;
use weir_engine::{accounting, clock};
use weir_kernels::error::{Error, Result};

/// Delay before a rejected client should retry. Arriving bodies are complete or rejected by then, and most calls have ended.
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
pub(super) fn limit_bodies(
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
    /// Maximum decompressed size of the largest compressed message so far, and of a stream's largest message.
    expanded: usize,
}

/// The number of equal shares of a tenant's memory; [`Reservation::for_work`] reserves at most one of them.
const WORK_SHARES: usize = 8;

/// Bytes of the buffer with which tonic begins to decode; tungstenite's is smaller.
const DECODER_BYTES: usize = 8 << 10;

impl Reservation {
    /// Creates an empty reservation of `tenant`.
    pub(crate) fn new(memory: Arc<BodyMemory>, tenant: Arc<str>) -> Self {
        Self { memory, tenant, bytes: Mutex::default() }
    }

    /// Returns the tenant.
    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Reserves `bytes` for work that takes as many at most, apart from the others. They count for the tenant, but only up to a share of
    /// its memory: a tenant runs few of these at a time, and its other requests need the rest.
    pub(crate) fn for_work(&self, bytes: usize) -> Result<Self> {
        let held = Self::new(Arc::clone(&self.memory), Arc::clone(&self.tenant));
        held.add(bytes.min(self.memory.tenant_limit / WORK_SHARES))?;
        Ok(held)
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

    /// Keeps the bytes of a stream's messages that are passed on until the call ends, if they are more than any before: the buffers of
    /// tonic and tungstenite, which read them, stay as large.
    fn pass_on(&self, passed: usize) {
        if passed > DECODER_BYTES {
            let mut bytes = self.bytes();
            let kept = passed.saturating_sub(bytes.expanded).min(bytes.arrived);
            bytes.arrived -= kept;
            bytes.expanded = bytes.expanded.saturating_add(kept);
        }
    }

    /// Releases the bytes that have arrived, except those that [`pass_on`](Self::pass_on) keeps for a buffer of their reader.
    pub(crate) fn release_passed(&self) {
        let passed = self.bytes().arrived;
        self.pass_on(passed);
        self.release(passed);
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
/// converted also counts. A stream's reader releases it after each request.
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
    /// True once a call that runs while its request arrives has begun; `None` for other calls.
    started: Option<bool>,
    /// How long a request may take to arrive.
    timeout: Duration,
    /// Deadline for the current request's arrival.
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

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        loop {
            if let Some(messages) = ready!(self.poll_messages(cx)) {
                if let (true, Ok(passed)) = (self.is_stream, &messages) {
                    self.reserved.pass_on(passed.len());
                }
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

// Calls in progress are limited too, because each takes some memory, also one whose message never arrives. Health and reflection have
// a separate limit (`KeylessCalls`), so the server answers them even if all other calls are taken.

/// Limits on the calls of health and reflection, which include the streams that watch health.
const KEYLESS_CALLS: RangeInclusive<usize> = 16..=1024;

/// Runs a call of health or reflection, whose connection has given it a place, until it ends or another call needs the place.
pub(super) fn end_keyless_calls(mut request: HttpRequest, next: Next) -> MiddlewareFuture {
    let Some(place) = request.extensions_mut().remove::<Arc<KeylessCall>>() else {
        return Box::pin(next.oneshot(request));
    };
    let id = Call::of_http(&request).id;
    Box::pin(async move {
        let response = tokio::select! {
            biased;
            () = place.ended.cancelled() => return Ok(place.status(&id).into_http()),
            response = next.oneshot(request) => response?,
        };
        let ended = Box::pin(place.ended.clone().cancelled_owned());
        Ok(response.map(|body| Body::new(EndableBody { body, place, id, ended, is_over: false })))
    })
}

/// The calls in progress of one kind.
pub(crate) struct CallTable {
    what: &'static str,
    calls: SharedLimit,
}

/// A call in progress. Dropping it makes room for another.
pub(crate) struct CallPlace {
    table: Arc<CallTable>,
    caller: Arc<str>,
}

impl CallTable {
    /// Creates a table of at most `max` calls, which errors call `what`.
    pub(crate) fn new(what: &'static str, max: usize) -> Arc<Self> {
        Arc::new(Self { what, calls: SharedLimit::new(max, 0) })
    }

    /// Counts a call. Fails if its caller has as many as are left free, or if all are taken.
    pub(crate) fn begin(self: &Arc<Self>, caller: Arc<str>) -> Result<CallPlace, Error> {
        match self.calls.take(&caller, 1) {
            Ok(()) => Ok(CallPlace { table: Arc::clone(self), caller }),
            Err(Exceeded::Total(limit) | Exceeded::Caller(limit)) => {
                Err(Error::TooMany { what: self.what, limit, retry: RETRY })
            }
        }
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.table.calls.give_back(&self.caller, 1);
    }
}

/// The body of a response, with a value that is dropped together with it.
pub(crate) struct GuardedBody<B, G> {
    body: B,
    _guard: G,
}

impl<B, G> GuardedBody<B, G> {
    /// Keeps `guard` as long as `body`.
    pub(crate) fn new(body: B, guard: G) -> Self {
        Self { body, _guard: guard }
    }
}

impl<B: HttpBody + Unpin, G: Unpin> HttpBody for GuardedBody<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body whose frames, and whose end, pass a function.
pub(super) struct WatchedBody<F> {
    body: Body,
    watch: F,
}

impl<F: FnMut(NextFrame) -> NextFrame + Send + Unpin + 'static> WatchedBody<F> {
    /// Passes each frame of `body` through `watch`.
    pub(super) fn wrap(body: Body, watch: F) -> Body {
        Body::new(Self { body, watch })
    }
}

impl<F: FnMut(NextFrame) -> NextFrame + Unpin> HttpBody for WatchedBody<F> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready((self.watch)(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A limited amount (calls in progress, or bytes of requests) and who holds it. A caller may hold half of what the others leave, so
/// that there is always something left for the next one, and at least the smallest share while it lasts.
#[derive(Debug)]
pub(super) struct SharedLimit {
    limit: usize,
    /// Minimum share of a caller, while that much is left.
    smallest_share: usize,
    usage: Mutex<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    total: usize,
    /// The amount of each caller that holds any.
    by_caller: HashMap<Arc<str>, usize>,
}

/// The limit that a caller has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exceeded {
    /// The limit of all callers together.
    Total(usize),
    /// The limit of this caller at this moment.
    Caller(usize),
}

impl SharedLimit {
    /// Creates a limit of which nothing is taken.
    pub(super) fn new(limit: usize, smallest_share: usize) -> Self {
        Self { limit, smallest_share, usage: Mutex::default() }
    }

    /// Returns the amount that a caller may hold while the others hold `others`.
    fn share(&self, others: usize) -> usize {
        accounting::share(self.limit, others, self.smallest_share)
    }

    /// Returns the amount that a caller may hold if no other holds any.
    pub(super) fn largest_share(&self) -> usize {
        self.share(0)
    }

    /// Takes `amount` for a caller. Changes nothing if that exceeds a limit.
    pub(super) fn take(&self, caller: &Arc<str>, amount: usize) -> Result<(), Exceeded> {
        let mut usage = self.usage();
        let own = usage.by_caller.get(caller).copied().unwrap_or(0);
        let caller_limit = self.share(usage.total.saturating_sub(own));
        let within = |held: usize, limit: usize| held.checked_add(amount).filter(|sum| *sum <= limit);
        let total = within(usage.total, self.limit).ok_or(Exceeded::Total(self.limit))?;
        let own = within(own, caller_limit).ok_or(Exceeded::Caller(caller_limit))?;
        usage.total = total;
        usage.by_caller.insert(Arc::clone(caller), own);
        Ok(())
    }

    /// Gives back `amount` that [`Self::take`] took for this caller.
    pub(super) fn give_back(&self, caller: &Arc<str>, amount: usize) {
        let mut usage = self.usage();
        let own = usage.by_caller.get(caller).copied().unwrap_or(0);
        if amount > own {
            // Only a bug leads here. The account stays, so its limit still holds.
            tracing::error!(amount, own, "more was given back than a caller holds");
            return;
        }
        // The total is the sum over all callers.
        usage.total = usage.total.saturating_sub(amount);
        if own == amount {
            usage.by_caller.remove(caller);
        } else {
            usage.by_caller.insert(Arc::clone(caller), own.saturating_sub(amount));
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl SharedLimit {
    /// Returns the total amount and the number of callers that hold any.
    pub(super) fn held(&self) -> (usize, usize) {
        let usage = self.usage();
        (usage.total, usage.by_caller.len())
    }
}

/// How long a client may take to receive the end of a call that was ended.
const END_TIME: Duration = Duration::from_secs(1);

/// Maximum calls of a caller that were ended for its health checks and that its client has not read.
const MAX_UNREAD: usize = 64;

/// The calls of health and reflection in progress, which need no key. They are counted before any task of theirs is made. A caller may
/// hold half of what the others leave. Beyond that, a stream is refused, and a health check ends the caller's oldest call, or that
/// of the largest caller if it has none. So streams that watch health never keep others from checking it. The server closes the
/// connection of a client that does not read the end of its call.
pub(crate) struct KeylessCalls {
    max: usize,
    calls: Mutex<CallsInProgress>,
}

#[derive(Default)]
struct CallsInProgress {
    /// Number of calls that have begun.
    begun: u64,
    /// Calls that were not ended.
    total: usize,
    by_caller: HashMap<Arc<str>, CallerCalls>,
}

#[derive(Default)]
struct CallerCalls {
    /// Calls that were not dropped, also those that were ended.
    held: usize,
    /// Calls that were not ended by their numbers, oldest first.
    running: BTreeMap<u64, CallEnd>,
}

struct CallEnd {
    /// Cancelled when another call takes the place.
    ended: CancellationToken,
    /// Closes the connection of the call.
    close: CancellationToken,
    /// Gone once the call is dropped.
    call: Weak<()>,
}

/// A call in progress. Dropping it gives its place back.
pub(crate) struct KeylessCall {
    table: Arc<KeylessCalls>,
    caller: Arc<str>,
    number: u64,
    /// Cancelled when another call takes the place.
    ended: CancellationToken,
    /// Tells [`CallEnd`] that the call exists.
    _exists: Arc<()>,
}

impl KeylessCalls {
    /// Creates an empty table for a server's connections.
    pub(crate) fn new(config: &TransportConfig) -> Arc<Self> {
        // A connection with a call is busy, so these calls must leave connections that a new one may replace.
        let max = config.connections.saturating_mul(3) / 4;
        Self::with_places(max.clamp(*KEYLESS_CALLS.start(), *KEYLESS_CALLS.end()))
    }

    fn with_places(max: usize) -> Arc<Self> {
        Arc::new(Self { max, calls: Mutex::default() })
    }

    /// Counts a call on the connection that `close` closes, until the returned value is dropped.
    pub(crate) fn begin(
        self: &Arc<Self>,
        caller: Arc<str>,
        is_check: bool,
        close: CancellationToken,
    ) -> Result<Arc<KeylessCall>> {
        let ended = CancellationToken::new();
        let exists = Arc::default();
        let end = CallEnd { ended: ended.clone(), close, call: Arc::downgrade(&exists) };
        let mut calls = self.calls();
        let (held, running) = calls.by_caller.get(&caller).map_or((0, 0), |own| (own.held, own.running.len()));
        let share = accounting::share(self.max, calls.total.saturating_sub(running), 0);
        let may_end_one = is_check && held.saturating_sub(running) < MAX_UNREAD;
        if held >= share && !may_end_one {
            return Err(Error::TooMany { what: KEYLESS, limit: share, retry: RETRY });
        }
        if running >= share {
            calls.end_one(&caller);
        }
        calls.begun = calls.begun.wrapping_add(1);
        calls.total = calls.total.saturating_add(1);
        let number = calls.begun;
        let own = calls.by_caller.entry(Arc::clone(&caller)).or_default();
        own.held = own.held.saturating_add(1);
        own.running.insert(number, end);
        drop(calls);
        Ok(Arc::new(KeylessCall { table: Arc::clone(self), caller, number, ended, _exists: exists }))
    }

    fn calls(&self) -> MutexGuard<'_, CallsInProgress> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallsInProgress {
    /// Ends the oldest call of a caller, or of the caller that holds the most if it has none.
    fn end_one(&mut self, caller: &Arc<str>) {
        let has_calls = self.by_caller.get(caller).is_some_and(|own| !own.running.is_empty());
        let largest = if has_calls {
            self.by_caller.get_mut(caller)
        } else {
            self.by_caller.values_mut().max_by_key(|own| own.running.len())
        };
        if let Some((_, end)) = largest.and_then(|own| own.running.pop_first()) {
            self.total = self.total.saturating_sub(1);
            tokio::spawn(end.run());
        }
    }

    /// Removes a call that was dropped.
    fn remove(&mut self, caller: &Arc<str>, number: u64) {
        let Some(own) = self.by_caller.get_mut(caller) else { return };
        own.held = own.held.saturating_sub(1);
        if own.running.remove(&number).is_some() {
            self.total = self.total.saturating_sub(1);
        }
        if own.held == 0 {
            self.by_caller.remove(caller);
        }
    }
}

impl CallEnd {
    /// Ends the call, and closes its connection if the client does not receive the end.
    async fn run(self) {
        self.ended.cancel();
        sleep(END_TIME).await;
        if self.call.strong_count() > 0 {
            tracing::debug!("closing a connection: its client reads nothing of a call of health or reflection");
            self.close.cancel();
        }
    }
}

/// The name of these calls in errors.
const KEYLESS: &str = "calls of health and reflection";

impl KeylessCall {
    /// Returns the status of a call that another one has ended.
    fn status(&self, request_id: &str) -> Status {
        tracing::debug!(caller = %self.caller, "a call of health or reflection made room for another");
        status(&Error::TooMany { what: KEYLESS, limit: self.table.max, retry: RETRY }, request_id)
    }
}

/// Returns the trailers that end a response with a status.
pub(super) fn trailers(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(Frame::trailers(trailers))
}

impl Drop for KeylessCall {
    fn drop(&mut self) {
        self.table.calls().remove(&self.caller, self.number);
    }
}

/// The body of a response, which ends early if another call needs the place.
struct EndableBody {
    body: Body,
    place: Arc<KeylessCall>,
    id: Arc<str>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    /// True after the trailers of a call that was ended.
    is_over: bool,
}

impl HttpBody for EndableBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(self.ended.as_mut().poll(cx));
        self.is_over = true;
        Poll::Ready(Some(trailers(&self.place.status(&self.id))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }
}

/// Collects the bytes of gRPC messages until each message is complete. tonic reserves memory for a message as soon as its header
/// announces a length, so a client could announce many long messages and send none of them.
pub(crate) struct WholeMessages {
    scanner: MessageScanner,
    /// Maximum bytes of a message. A longer one is passed on at once, and tonic rejects it.
    max_message: usize,
    /// Complete messages, if there are any.
    whole: Bytes,
    /// The start of an incomplete message. It grows with the bytes that arrive.
    incomplete: Vec<u8>,
}

impl WholeMessages {
    pub(crate) fn new(max_message: usize) -> Self {
        Self { scanner: MessageScanner::default(), max_message, whole: Bytes::new(), incomplete: Vec::new() }
    }

    /// Takes the next bytes of the body, after [`pop`](Self::pop) returned `None`. Returns the maximum size that any compressed
    /// message completed by them may decompress to, or 0 if they complete none.
    pub(crate) fn push(&mut self, mut bytes: Bytes) -> usize {
        let expanded = self.scanner.scan(&bytes);
        let is_too_long = self.scanner.announced_len().is_some_and(|length| length > self.max_message);
        let incomplete = if is_too_long { 0 } else { self.scanner.incomplete_bytes() };
        // The incomplete message may have begun in earlier bytes.
        let complete = (self.incomplete.len() + bytes.len()).saturating_sub(incomplete);
        if complete == 0 {
            self.incomplete.extend_from_slice(&bytes);
        } else if self.incomplete.is_empty() {
            let rest = bytes.split_off(complete);
            self.whole = bytes;
            self.incomplete.extend_from_slice(&rest);
        } else {
            let rest = bytes.split_off(complete - self.incomplete.len());
            self.incomplete.extend_from_slice(&bytes);
            self.whole = std::mem::replace(&mut self.incomplete, rest.to_vec()).into();
        }
        expanded
    }

    /// Returns the complete messages.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        Some(std::mem::take(&mut self.whole)).filter(|whole| !whole.is_empty())
    }

    /// Returns the start of a message that will not be completed.
    pub(crate) fn take_rest(&mut self) -> Option<Bytes> {
        Some(std::mem::take(&mut self.incomplete)).filter(|rest| !rest.is_empty()).map(Bytes::from)
    }

    /// True if all bytes have been passed on.
    pub(crate) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.incomplete.is_empty()
    }
}

/// Maximum bytes of a gRPC response of one message: clients read no longer one unless they raise their limit.
pub(crate) const UNARY_BYTES: usize = 4 << 20;

/// Bytes that a response of one message needs besides what grows with the request: usage, timing, names.
const UNARY_REST: usize = 4 << 10;

/// Checks that a response of one message, with at most `fixed` bytes and `each` bytes for each of `length` `unit`s of `field`, is not
/// too long. The error says `why`.
pub(crate) fn check_unary(
    field: &'static str,
    length: usize,
    unit: &'static str,
    fixed: usize,
    each: usize,
    why: &'static str,
) -> Result<()> {
    let limit = UNARY_BYTES.saturating_sub(UNARY_REST).saturating_sub(fixed) / each.max(1);
    if length > limit {
        return Err(Error::TooLong { field, length, limit, unit, why: Some(why) });
    }
    Ok(())
}

/// Limits the memory of collected responses: of each, and of all together with arriving requests.
#[derive(Clone)]
pub(crate) struct CollectedLimits {
    /// Maximum bytes of one response.
    max_bytes: usize,
    memory: Arc<BodyMemory>,
}

/// The memory of one collected response. Dropping it releases the memory.
pub(crate) struct CollectedSize {
    max_bytes: usize,
    bytes: usize,
    reserved: Reservation,
    /// The way in which a client gets a response of any size, for the error.
    instead: &'static str,
}

impl CollectedLimits {
    /// Creates the limits of `config`. `memory` is shared with the bodies on all ports.
    pub(crate) fn new(memory: Arc<BodyMemory>, config: &TransportConfig) -> Self {
        Self { max_bytes: config.response_bytes, memory }
    }

    /// Begins a response to this tenant. The error of a response that is too large says what to do `instead`.
    pub(crate) fn begin(&self, tenant: &Arc<str>, instead: &'static str) -> CollectedSize {
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(tenant));
        CollectedSize { max_bytes: self.max_bytes, bytes: 0, reserved, instead }
    }
}

impl CollectedSize {
    /// Reserves memory for a response that has grown to `bytes` bytes. Fails with [`Error::LongerThan`] if that is more than one
    /// response may have, and with [`Error::QueueFull`] if no memory is left.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.max_bytes {
            let unit = "bytes of a response that is not streamed";
            let why = Some(self.instead);
            return Err(Error::LongerThan { field: "stream", limit: self.max_bytes, unit, why });
        }
        if bytes > self.bytes {
            self.reserved.add(bytes - self.bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn each_caller_leaves_half_to_the_next() {
        let limit = SharedLimit::new(16, 0);
        let callers = [("a", 8), ("b", 4), ("c", 2), ("d", 1), ("e", 1)];
        for (caller, share) in callers {
            let caller = Arc::from(caller);
            for _ in 0..share {
                assert_eq!(limit.take(&caller, 1), Ok(()), "{caller}");
            }
            assert!(limit.take(&caller, 1).is_err(), "{caller}");
        }
        assert_eq!(limit.take(&"f".into(), 1), Err(Exceeded::Total(16)));
        callers.iter().for_each(|(caller, share)| limit.give_back(&Arc::from(*caller), *share));
        assert_eq!(limit.held(), (0, 0));
    }

    #[test]
    fn a_caller_may_hold_the_smallest_share() {
        let limit = SharedLimit::new(80, 30);
        assert_eq!(limit.take(&"a".into(), 41), Err(Exceeded::Caller(40)));
        assert_eq!(limit.take(&"a".into(), 40), Ok(()));
        assert_eq!(limit.take(&"b".into(), 31), Err(Exceeded::Caller(30)));
        assert_eq!(limit.take(&"b".into(), 30), Ok(()));
        assert_eq!(limit.take(&"c".into(), 11), Err(Exceeded::Total(80)));
        assert_eq!(limit.take(&"c".into(), 10), Ok(()));
    }

    #[test]
    fn amounts_that_overflow_are_refused() {
        let limit = SharedLimit::new(usize::MAX, usize::MAX);
        assert_eq!(limit.take(&"a".into(), usize::MAX), Ok(()));
        assert_eq!(limit.take(&"a".into(), 1), Err(Exceeded::Total(usize::MAX)));
        limit.give_back(&"b".into(), 1);
        assert_eq!(limit.held(), (usize::MAX, 1), "a caller gives back only what it holds");
    }

    #[test]
    fn work_counts_for_its_tenant_while_it_runs() {
        let config = TransportConfig { request_memory: 1600, message_bytes: 0, ..TransportConfig::default() };
        let memory = BodyMemory::new(&config);
        let reservation = |tenant: &str| Reservation::new(Arc::clone(&memory), tenant.into());
        let share = memory.tenant_limit / WORK_SHARES;
        let work = reservation("a").for_work(usize::MAX).unwrap();
        assert_eq!(memory.bytes.held(), (share, 1));
        let other = reservation("b").for_work(7).unwrap();
        assert_eq!(memory.bytes.held(), (share + 7, 2));
        drop(other);
        // another request of the tenant takes the rest
        let body = reservation("a");
        body.add(memory.tenant_limit - share).unwrap();
        assert!(matches!(reservation("a").for_work(share), Err(Error::QueueFull { .. })));
        reservation("b").for_work(share).unwrap();
        drop((work, body));
        assert_eq!(memory.bytes.held(), (0, 0));
    }

    #[test]
    fn a_streams_largest_message_counts_until_the_call_ends() {
        let memory = BodyMemory::new(&TransportConfig::default());
        let reserved = Reservation::new(Arc::clone(&memory), "a".into());
        for (passed, held) in [(DECODER_BYTES, 0), (100_000, 100_000), (30_000, 100_000), (120_000, 120_000)] {
            reserved.add(passed).unwrap();
            reserved.release_passed();
            assert_eq!(memory.bytes.held().0, held);
        }
        drop(reserved);
        assert_eq!(memory.bytes.held(), (0, 0));
    }

    fn message(length: u32) -> Vec<u8> {
        [&[0][..], &length.to_be_bytes(), &vec![7; length as usize]].concat()
    }

    #[test]
    fn messages_pass_as_a_whole_however_they_are_split() {
        let sent = [message(9), message(0), message(300), message(1), message(40)].concat();
        let ends = [14, 19, 324, 330, 375];
        for size in 1..sent.len() {
            let mut messages = WholeMessages::new(1000);
            let mut received = Vec::new();
            for bytes in sent.chunks(size) {
                messages.push(Bytes::copy_from_slice(bytes));
                received.extend(messages.pop().unwrap_or_default());
                assert!(
                    received.is_empty() || ends.contains(&received.len()),
                    "{} in pieces of {size}",
                    received.len()
                );
            }
            assert_eq!(received, sent);
            assert!(messages.is_empty());
        }
    }

    #[test]
    fn an_announced_length_takes_no_memory() {
        let mut messages = WholeMessages::new(4 << 20);
        messages.push(Bytes::copy_from_slice(&message(4 << 20)[..9]));
        assert!(messages.pop().is_none() && !messages.is_empty());
        assert!(messages.incomplete.capacity() < 64);
        assert_eq!(messages.take_rest().unwrap().len(), 9);
    }

    #[test]
    fn a_message_that_is_too_long_passes_at_once() {
        let mut messages = WholeMessages::new(8);
        let sent = message(9);
        messages.push(Bytes::copy_from_slice(&sent[..3]));
        assert!(messages.pop().is_none());
        messages.push(Bytes::copy_from_slice(&sent[3..7]));
        assert_eq!(messages.pop().unwrap(), sent[..7]);
    }

    /// Returns the number of calls and of callers.
    fn held_by_keyless(table: &KeylessCalls) -> (usize, usize) {
        let calls = table.calls();
        (calls.total, calls.by_caller.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_has_half_of_the_places_that_others_leave() {
        let table = KeylessCalls::with_places(7);
        let close = CancellationToken::new();
        let begin = |caller: &str, is_check| table.begin(caller.into(), is_check, close.clone());
        let streams = |caller, count| (0..count).map(|_| begin(caller, false).unwrap()).collect::<Vec<_>>();
        let calls = [streams("a", 4), streams("b", 2), streams("c", 1)].concat();
        assert!(["a", "b", "c", "d"].iter().all(|caller| begin(caller, false).is_err()));
        let ended = || calls.iter().map(|call| usize::from(call.ended.is_cancelled())).collect::<Vec<_>>();
        // a check ends the oldest call of its caller, or else of the largest one
        let second = begin("b", true).unwrap();
        tokio::task::yield_now().await;
        assert_eq!(ended(), [0, 0, 0, 0, 1, 0, 0]);
        let fourth = begin("d", true).unwrap();
        tokio::task::yield_now().await;
        assert_eq!(ended(), [1, 0, 0, 0, 1, 0, 0]);
        assert!(!close.is_cancelled());
        sleep(2 * END_TIME).await;
        assert!(close.is_cancelled(), "the client keeps the call");
        assert_eq!(held_by_keyless(&table), (7, 4));
        drop((calls, second, fourth));
        assert_eq!(held_by_keyless(&table), (0, 0));
        // checks that are not read are refused at last
        let unread: Vec<_> = (0..1000).map_while(|_| begin("a", true).ok()).collect();
        assert_eq!((unread.len(), held_by_keyless(&table).0), (4 + MAX_UNREAD, 4));
        assert!(begin("b", true).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_ended_has_a_status() {
        let table = KeylessCalls::with_places(1);
        let close = CancellationToken::new();
        let place = table.begin("a".into(), false, close.clone()).unwrap();
        let ended = Box::pin(place.ended.clone().cancelled_owned());
        let body = Body::new(axum::body::Body::from_stream(tokio_stream::pending::<Result<Bytes, Status>>()));
        let mut body = EndableBody { body, place, id: "id".into(), ended, is_over: false };
        let _other = table.begin("b".into(), true, CancellationToken::new()).unwrap();
        let mut next = async || poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let trailers = next().await.unwrap().unwrap().into_trailers().unwrap();
        let status = Status::from_header_map(&trailers).unwrap();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert!(next().await.is_none());
        drop(body);
        sleep(2 * END_TIME).await;
        assert!(!close.is_cancelled(), "the client has received the end");
    }
}
