//! Limits on the memory of complete responses that their clients do not read.
//!
//! The response of a method that does not stream is encoded as a whole, and the connection takes it in parts, as the client reads
//! them. A large response counts against the memory of requests until its last part is taken. If the connection takes nothing of
//! it for the stall limit, its memory is released. A client that reads on then gets an error; until then, its call is in progress.
//!
//! Streams pass: their encoders wait for the client, and [`super::unread_streams`] limits that of `ModelStreamInfer`.

use super::{
    body_limits::{BodyMemory, Reservation},
    compression::is_streamed,
    layer::{HttpRequest, Middleware, Next},
};
use crate::{
    engine::clock,
    error::Error,
    serve::{call::Call, status::status},
};
use http_body::{Body as _, Frame};
use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::{task::AbortHandle, time::sleep_until};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes,
        http::{HeaderMap, Response},
    },
};
use tower::ServiceExt;
use tracing::Instrument;

/// Bytes that the connection takes at once. A response of at most this size does not count.
pub(super) const PART_BYTES: usize = 16 << 10;
/// Frames of a complete response: its message and its trailers.
const COMPLETE_FRAMES: usize = 2;

/// Counts large responses in `memory`. Drops one of which the client reads nothing for as long as `stall` returns.
pub(super) fn limit(
    memory: Arc<BodyMemory>,
    stall: impl Fn() -> Duration + Clone + Send + Sync + 'static,
) -> impl Middleware {
    move |request: HttpRequest, next: Next| {
        if is_streamed(request.uri().path()) {
            return Box::pin(next.oneshot(request));
        }
        let call = Call::of_http(&request);
        let reserved = Reservation::new(Arc::clone(&memory), call.tenant());
        let stall = stall.clone();
        Box::pin(async move {
            let (head, body) = next.oneshot(request).await?.into_parts();
            let response = match begin(body).await? {
                Begun::Complete(response) => response,
                Begun::Unfinished(body) => return Ok(Response::from_parts(head, Body::new(body))),
            };
            let CompleteResponse { data, trailers } = response;
            let length = data.len();
            if length > PART_BYTES
                && let Err(full) = reserved.add(length)
            {
                tracing::debug!(error = %full, "rejected");
                return Ok(status(&full, &call.id).into_http());
            }
            let response = UnreadResponse { rest: data, trailers, reserved: Some(reserved), taken_at: clock::now() };
            let body = UnreadResponseBody::new(response, stall(), call.id);
            Ok(Response::from_parts(head, Body::new(body)))
        })
    }
}

/// What a service has encoded when it answers.
enum Begun {
    Complete(CompleteResponse),
    Unfinished(UnfinishedBody),
}

/// A response that is encoded to its end.
struct CompleteResponse {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

/// Encodes a response now, because a connection whose client reads nothing would never ask for it.
async fn begin(mut body: Body) -> Result<Begun, Status> {
    let mut begun = VecDeque::new();
    let is_complete = poll_fn(|cx| {
        while begun.len() <= COMPLETE_FRAMES {
            match Pin::new(&mut body).poll_frame(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => return Poll::Ready(Ok(true)),
                Poll::Ready(Some(frame)) => begun.push_back(frame?),
            }
        }
        Poll::Ready(Ok::<_, Status>(false))
    });
    if !is_complete.await? {
        return Ok(Begun::Unfinished(UnfinishedBody { begun, body }));
    }
    let mut response = CompleteResponse { data: Bytes::new(), trailers: None };
    for frame in begun {
        match frame.into_data() {
            // A copy, because the encoder's buffer is larger: a compressed response has one as long as its message.
            Ok(data) => response.data = Bytes::from([&response.data[..], &data].concat()),
            Err(frame) => response.trailers = frame.into_trailers().ok(),
        }
    }
    Ok(Begun::Complete(response))
}

/// A body whose first frames have been read.
struct UnfinishedBody {
    begun: VecDeque<Frame<Bytes>>,
    body: Body,
}

impl http_body::Body for UnfinishedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.begun.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_empty() && self.body.is_end_stream()
    }
}

/// A response that the client has not read to its end.
struct UnreadResponse {
    /// The bytes that the connection has not taken.
    rest: Bytes,
    /// The trailers that follow them.
    trailers: Option<HeaderMap>,
    /// The memory of the bytes, until the last of them is taken.
    reserved: Option<Reservation>,
    /// When the connection last took a part.
    taken_at: Instant,
}

type Shared = Mutex<Option<UnreadResponse>>;

/// The body of a large response. Its memory is released early if the client reads nothing for too long.
struct UnreadResponseBody {
    /// `None` once the response has been dropped.
    response: Arc<Shared>,
    /// Drops the response if the client stalls. `None` for a small one.
    watch: Option<AbortHandle>,
    stall: Duration,
    request_id: Arc<str>,
    /// True after the trailers of a response that was dropped.
    ended: bool,
}

impl UnreadResponseBody {
    fn new(response: UnreadResponse, stall: Duration, request_id: Arc<str>) -> Self {
        let is_large = response.rest.len() > PART_BYTES;
        let response = Arc::new(Mutex::new(Some(response)));
        let watch = is_large.then(|| {
            let watch = drop_when_stalled(Arc::downgrade(&response), stall);
            tokio::spawn(watch.in_current_span()).abort_handle()
        });
        Self { response, watch, stall, request_id, ended: false }
    }
}

impl UnreadResponse {
    /// Takes the next part.
    fn take_part(&mut self) -> Bytes {
        let part = split_part(&mut self.rest);
        self.taken_at = clock::now();
        if self.rest.is_empty() {
            self.rest = Bytes::new();
            self.reserved = None;
        }
        part
    }
}

impl http_body::Body for UnreadResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(response) = lock(&self.response).as_mut() {
            if response.rest.is_empty() {
                return Poll::Ready(response.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            }
            return Poll::Ready(Some(Ok(Frame::data(response.take_part()))));
        }
        self.ended = true;
        Poll::Ready(Some(stalled_trailers(self.stall, &self.request_id).map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        let response = lock(&self.response);
        self.ended || response.as_ref().is_some_and(|response| response.rest.is_empty() && response.trailers.is_none())
    }
}

impl Drop for UnreadResponseBody {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

/// Takes at most [`PART_BYTES`] from the front of `rest`. A copy, because the whole response would stay in memory with any part of it.
pub(super) fn split_part(rest: &mut Bytes) -> Bytes {
    let length = rest.len().min(PART_BYTES);
    let part = Bytes::copy_from_slice(&rest[..length]);
    *rest = rest.split_off(length);
    part
}

/// Returns the trailers of a response that was dropped because its client read nothing for `stall`.
pub(super) fn stalled_trailers(stall: Duration, request_id: &str) -> Result<HeaderMap, Status> {
    let mut trailers = HeaderMap::new();
    status(&Error::Stalled { limit: stall }, request_id).add_header(&mut trailers)?;
    Ok(trailers)
}

/// Drops a response of which the connection takes nothing for as long as `stall`. Returns when the response is taken.
async fn drop_when_stalled(response: Weak<Shared>, stall: Duration) {
    let mut wake_at = clock::now() + stall;
    loop {
        sleep_until(wake_at.into()).await;
        let Some(response) = response.upgrade() else { return };
        let mut response = lock(&response);
        let Some(unread) = response.as_ref().filter(|unread| !unread.rest.is_empty()) else { return };
        wake_at = unread.taken_at + stall;
        if wake_at <= clock::now() {
            tracing::info!(?stall, unread = unread.rest.len(), "the client read nothing: its response was dropped");
            *response = None;
            return;
        }
    }
}

fn lock(response: &Shared) -> MutexGuard<'_, Option<UnreadResponse>> {
    response.lock().unwrap_or_else(PoisonError::into_inner)
}
