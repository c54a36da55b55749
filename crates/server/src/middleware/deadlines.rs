//! Limits on time: the deadline that a client sets with `grpc-timeout`, and how long a client may leave its response unread.

use crate::call::{Call, STREAM_INFER};
use crate::middleware::compression::is_streamed;
use crate::middleware::layer::{HttpRequest, Middleware, Next, NextFrame};
use crate::middleware::limits::{BodyMemory, Reservation, trailers};
use crate::status::status;
use http_body::{Body as HttpBody, Frame};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::{task::AbortHandle, time::sleep_until};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{HeaderMap, Response};
use tower::ServiceExt;
use tracing::Instrument;
use weir_engine::clock;
use weir_kernels::error::{Error, Result, quoted};

/// Waits for the beginning of a response. Fails with [`Error::Deadline`] if that takes until `deadline`. The timer fires at most
/// once a tick, so this also reads the clock.
pub(crate) async fn begin_by<T>(deadline: Option<Instant>, response: impl Future<Output = T>) -> Result<T> {
    let Some(deadline) = deadline else { return Ok(response.await) };
    let mut response = pin!(response);
    let mut timer = pin!(sleep_until(deadline.into()));
    poll_fn(|cx| match response.as_mut().poll(cx) {
        Poll::Pending if timer.as_mut().poll(cx).is_ready() || deadline <= clock::now() => {
            Poll::Ready(Err(Error::Deadline { stage: "before the answer began" }))
        }
        polled => polled.map(Ok),
    })
    .await
}

/// Returns the instant that `grpc-timeout` names, counted from `arrived`.
pub(super) fn deadline(headers: &HeaderMap, arrived: Instant) -> Result<Option<Instant>> {
    const FIELD: &str = "grpc-timeout";
    let Some(value) = headers.get(FIELD) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let bound = "at most eight digits and one of H, M, S, m, u, n";
    let invalid = || Error::bad_option(FIELD, quoted(text), bound);
    let timeout = timeout(text).ok_or_else(invalid)?;
    // A deadline beyond the clock's range is no deadline.
    Ok(arrived.checked_add(timeout))
}

/// Parses one to eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = text.strip_suffix(unit)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(count * 3600),
        'M' => Duration::from_secs(count * 60),
        'S' => Duration::from_secs(count),
        'm' => Duration::from_millis(count),
        'u' => Duration::from_micros(count),
        'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

// The response of a method that does not stream is encoded as a whole, and the connection takes it in parts, as the client reads
// them. A response of more than one part counts against the memory of requests until its last part is taken. Streams pass: their
// encoders wait for the client.

/// Frames of a complete response: its message and its trailers.
const COMPLETE_FRAMES: usize = 2;

/// Counts large responses in `memory`. Drops one of which the client reads nothing for as long as `stall` returns.
pub(super) fn limit_unread_responses(
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
            let length = response.rest.len();
            if length <= PART_BYTES {
                return Ok(Response::from_parts(head, Body::new(response)));
            }
            if let Err(full) = reserved.add(length) {
                tracing::debug!(error = %full, "rejected");
                return Ok(status(&full, &call.id).into_http());
            }
            let body = Body::new(CompleteResponse { reserved: Some(reserved), ..response });
            Ok(Response::from_parts(head, Body::new(UnreadStream::ready(body, stall(), call.id))))
        })
    }
}

/// What a service has encoded when it answers.
enum Begun {
    Complete(CompleteResponse),
    Unfinished(UnfinishedBody),
}

/// A response that is encoded to its end.
#[derive(Default)]
struct CompleteResponse {
    /// The bytes that the connection has not taken.
    rest: Bytes,
    /// The trailers that follow them.
    trailers: Option<HeaderMap>,
    /// The memory of the bytes, until the last of them is taken.
    reserved: Option<Reservation>,
}

impl HttpBody for CompleteResponse {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<NextFrame> {
        if self.rest.is_empty() {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let part = split_part(&mut self.rest);
        if self.rest.is_empty() {
            self.reserved = None;
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.trailers.is_none()
    }
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
    let mut response = CompleteResponse::default();
    for frame in begun {
        match frame.into_data() {
            // A copy, because the encoder's buffer is larger: a compressed response has one as long as its message.
            Ok(data) => response.rest = Bytes::from([&response.rest[..], &data].concat()),
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

impl HttpBody for UnfinishedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        match self.begun.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_empty() && self.body.is_end_stream()
    }
}

// `ModelStreamInfer` and large complete responses hold memory. The connection asks for the next part once the client has read the
// previous ones. If it asks for nothing for the stall limit, the response is dropped with all its requests and their memory. A client
// that reads on then gets an error; until then, its call is in progress.

/// Drops a stream of `ModelStreamInfer` whose client reads nothing for as long as `stall` returns.
pub(super) fn limit_unread_streams(stall: impl Fn() -> Duration + Clone + Send + Sync + 'static) -> impl Middleware {
    move |request: HttpRequest, next: Next| {
        if request.uri().path() != STREAM_INFER {
            return Box::pin(next.oneshot(request));
        }
        let id = Call::of_http(&request).id;
        let stall = stall.clone();
        Box::pin(async move {
            let response = next.oneshot(request).await?;
            // A refusal has its status in the headers, and no body.
            if response.body().is_end_stream() {
                return Ok(response);
            }
            Ok(response.map(|body| Body::new(UnreadStream::new(body, stall(), id))))
        })
    }
}

/// Bytes that the connection takes at once.
pub(super) const PART_BYTES: usize = 16 << 10;

/// A response that is dropped if its client stalls.
pub(super) struct UnreadStream {
    watched: Arc<Watched>,
    watch: AbortHandle,
    stall: Duration,
    request_id: Arc<str>,
    /// True after the trailers of a stream that was dropped.
    ended: bool,
}

/// State shared by the connection and the watch.
struct Watched {
    /// `None` once the stream is dropped.
    stream: Mutex<Option<Stream>>,
    progress: Mutex<Progress>,
}

struct Stream {
    body: Body,
    /// The rest of a frame, which the connection takes in parts.
    rest: Bytes,
}

#[derive(Default)]
struct Progress {
    /// Since when there has been something for the connection to take. `None` while the stream waits for its requests.
    waiting_since: Option<Instant>,
    /// Wakes the connection.
    connection: Option<Waker>,
}

impl UnreadStream {
    /// Drops `body`, which waits for its service, if its client reads nothing for as long as `stall`.
    fn new(body: Body, stall: Duration, request_id: Arc<str>) -> Self {
        Self::watch(body, Progress::default(), stall, request_id)
    }

    /// Drops `body`, all of which is there, if its client reads nothing for as long as `stall`.
    pub(super) fn ready(body: Body, stall: Duration, request_id: Arc<str>) -> Self {
        let progress = Progress { waiting_since: Some(clock::now()), connection: None };
        Self::watch(body, progress, stall, request_id)
    }

    fn watch(body: Body, progress: Progress, stall: Duration, request_id: Arc<str>) -> Self {
        let stream = Stream { body, rest: Bytes::new() };
        let watched = Arc::new(Watched { stream: Mutex::new(Some(stream)), progress: Mutex::new(progress) });
        let watch = drop_when_stalled(Arc::downgrade(&watched), stall);
        let watch = tokio::spawn(watch.in_current_span()).abort_handle();
        Self { watched, watch, stall, request_id, ended: false }
    }
}

impl HttpBody for UnreadStream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(stream) = lock(&self.watched.stream).as_mut() {
            return self.watched.poll_stream(stream, cx);
        }
        self.ended = true;
        Poll::Ready(Some(trailers(&status(&Error::Stalled { limit: self.stall }, &self.request_id))))
    }

    fn is_end_stream(&self) -> bool {
        let stream = lock(&self.watched.stream);
        let is_over = |stream: &Stream| stream.rest.is_empty() && stream.body.is_end_stream();
        self.ended || stream.as_ref().is_some_and(is_over)
    }
}

impl Drop for UnreadStream {
    fn drop(&mut self) {
        self.watch.abort();
        // The stream holds wakers, which hold what is watched, which holds the stream.
        let stream = lock(&self.watched.stream).take();
        drop(stream);
    }
}

impl Watched {
    fn poll_stream(self: &Arc<Self>, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let connection = Some(cx.waker().clone());
        *lock(&self.progress) = Progress { waiting_since: None, connection };
        if stream.rest.is_empty() {
            let waker = Waker::from(Arc::clone(self));
            let polled = Pin::new(&mut stream.body).poll_frame(&mut Context::from_waker(&waker));
            match polled {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => stream.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                polled => return polled,
            }
        }
        lock(&self.progress).waiting_since = Some(clock::now());
        let part = if stream.rest.len() > PART_BYTES {
            split_part(&mut stream.rest)
        } else {
            std::mem::take(&mut stream.rest)
        };
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    /// Returns when the stream counts as unread, unless the connection asks for more before.
    fn stalls_at(&self, stall: Duration) -> Instant {
        lock(&self.progress).waiting_since.unwrap_or_else(clock::now) + stall
    }
}

/// A request of the stream has made progress.
impl Wake for Watched {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut progress = lock(&self.progress);
        progress.waiting_since.get_or_insert_with(clock::now);
        let connection = progress.connection.take();
        drop(progress);
        if let Some(connection) = connection {
            connection.wake();
        }
    }
}

/// Drops a stream of which the connection takes nothing for as long as `stall`. Returns when it is dropped.
async fn drop_when_stalled(watched: Weak<Watched>, stall: Duration) {
    let mut wake_at = clock::now() + stall;
    loop {
        sleep_until(wake_at.into()).await;
        let Some(watched) = watched.upgrade() else { return };
        // The connection cannot take a part while this is locked.
        let mut stream = lock(&watched.stream);
        wake_at = watched.stalls_at(stall);
        if wake_at <= clock::now() {
            let dropped = stream.take();
            drop(stream);
            tracing::info!(?stall, "the client read nothing: its response was dropped");
            drop(dropped);
            return;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::layer::Around;
    use tonic::codegen::http::{Request, Response};
    use tower::{Layer, service_fn};

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        assert_eq!(timeout("100m"), Some(Duration::from_millis(100)));
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(timeout("0n"), Some(Duration::ZERO));
        assert_eq!(timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in ["", "m", "10", "10x", "123456789n", "-1S", "+1S", "1.5S", "1 S", "１S"] {
            assert_eq!(timeout(wrong), None, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_far_deadline_ends_no_response() {
        let arrived = clock::now();
        let read = |value: &str| {
            deadline(&HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), value.parse().unwrap())]), arrived)
                .unwrap()
        };
        assert_eq!(read("1H"), Some(arrived + Duration::from_secs(3600)));
        for deadline in [None, read("1H"), read("99999999H")] {
            assert_eq!(begin_by(deadline, async { 7 }).await.unwrap(), 7);
        }
    }

    #[tokio::test]
    async fn a_refusal_stays_in_the_headers() {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = STREAM_INFER.parse().unwrap();
        let service = service_fn(|_: HttpRequest| std::future::ready(Ok::<_, Status>(Response::new(Body::empty()))));
        let limit = limit_unread_streams(|| Duration::from_secs(10));
        assert!(Around(limit).layer(service).oneshot(request).await.unwrap().body().is_end_stream());
    }
}
