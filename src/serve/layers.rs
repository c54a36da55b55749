//! What happens to every call, whatever its service. [`run`](super::run) stacks these and says why in that order.

use super::{status::status, tenant::Principal, traces::Trace};
use crate::error::{Error, Result, clip};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tonic::{
    Code,
    body::Body,
    codegen::{
        StdError,
        http::{HeaderMap, HeaderValue, Request, Response, StatusCode},
    },
};
use tower::{
    Layer, Service, ServiceExt,
    util::{BoxCloneSyncService, MapErr},
};
use tracing::Instrument;

/// The header that names a request.
pub const REQUEST_ID: &str = "x-request-id";
/// Bytes of a request's name that a client may choose.
const ID_BYTES: usize = 64;
/// Bytes of a path that are logged.
const PATH_BYTES: usize = 128;

/// What the layers found out about a call.
#[derive(Clone)]
pub(super) struct Call {
    /// Its name in the log and in errors.
    pub(super) id: Arc<str>,
    /// When it came: what its deadline counts from.
    arrived: Instant,
    /// When its answer is worth nothing any more.
    pub(super) deadline: Option<Instant>,
    /// On whose behalf it runs.
    pub(super) principal: Principal,
    /// Its span, if it has one.
    pub(super) trace: Option<Trace>,
}

impl Call {
    /// The call of a request.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::unknown)
    }

    /// The call of a request on its way through the layers.
    pub(super) fn in_http(request: &Request<Body>) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::unknown)
    }

    fn begun(id: Arc<str>, arrived: Instant) -> Self {
        Self { id, arrived, deadline: None, principal: Principal::Unknown, trace: None }
    }

    fn unknown() -> Self {
        Self::begun("".into(), Instant::now())
    }
}

/// The rest of the stack, as a layer sees it.
pub(super) type Next = BoxCloneSyncService<Request<Body>, Response<Body>, StdError>;
type Answered = Result<Response<Body>, StdError>;
/// What the layers answer, in time.
pub(super) type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// A layer that is a function of the request and the rest of the stack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around<F>(pub(super) F);

/// What a layer makes of the service below it.
#[derive(Clone)]
pub(super) struct Surrounded<F> {
    around: F,
    next: Next,
}

impl<S, F: Clone> Layer<S> for Around<F>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<StdError>,
    S::Future: Send + 'static,
{
    type Service = Surrounded<F>;

    fn layer(&self, inner: S) -> Surrounded<F> {
        let next = BoxCloneSyncService::new(MapErr::new(inner, Into::into));
        Surrounded { around: self.0.clone(), next }
    }
}

impl<F: Fn(Request<Body>, Next) -> Answering> Service<Request<Body>> for Surrounded<F> {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        // Each call waits for its own clone of what is below.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answering {
        (self.around)(request, self.next.clone())
    }
}

/// Names the call, by the client's `x-request-id` if it has a decent one, and the answer with it.
///
/// The outermost layer also reads the clock, here and not in the future that it returns: tonic starts its own timer for
/// `grpc-timeout` when this function has returned, and ours must not be later than that.
pub(super) fn named(mut request: Request<Body>, next: Next) -> Answering {
    let arrived = Instant::now();
    let id = request_id(request.headers());
    request.extensions_mut().insert(Call::begun(Arc::clone(&id), arrived));
    Box::pin(async move {
        let mut response = next.oneshot(request).await?;
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        Ok(response)
    })
}

/// Gives the log a span for the call. No part of a request's text is ever logged.
pub(super) fn traced(request: Request<Body>, next: Next) -> Answering {
    let call = Call::in_http(&request);
    let path = clip(request.uri().path(), PATH_BYTES);
    let span = tracing::info_span!("call", path, id = &*call.id, principal = tracing::field::Empty);
    let started = Instant::now();
    let answer = async move {
        let response = next.oneshot(request).await?;
        let code = tonic::Status::from_header_map(response.headers()).map_or(tonic::Code::Ok, |status| status.code());
        tracing::debug!(?code, elapsed = ?started.elapsed(), "answer begins");
        Ok(response)
    };
    Box::pin(answer.instrument(span))
}

/// Says by HTTP's own status, too, that the server is unavailable, if that is wanted: proxies understand no other.
pub(super) fn said_in_http(wanted: bool) -> impl Fn(Request<Body>, Next) -> Answering + Clone + Send + Sync + 'static {
    move |request, next| {
        Box::pin(async move {
            let mut response = next.oneshot(request).await?;
            let code = response.headers().get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()));
            if wanted && code == Some(Code::Unavailable) {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            Ok(response)
        })
    }
}

/// Reads `grpc-timeout` into the call's deadline, and ends a call that has not begun to answer by then.
///
/// tonic's own timer for the same header answers CANCELLED. It is looked at after this one, and never earlier: but timers
/// that are due in the same tick may fire in any order, so that this one also asks the clock.
pub(super) fn timed(mut request: Request<Body>, next: Next) -> Answering {
    Box::pin(async move {
        let mut call = Call::in_http(&request);
        let refuse = |error, id: &str| Ok(status(&error, id).into_http());
        call.deadline = match deadline(request.headers(), call.arrived) {
            Ok(deadline) => deadline,
            Err(error) => return refuse(error, &call.id),
        };
        let Call { id, deadline, .. } = call.clone();
        request.extensions_mut().insert(call);
        let Some(deadline) = deadline else { return next.oneshot(request).await };
        let mut answer = pin!(next.oneshot(request));
        let mut timer = pin!(tokio::time::sleep_until(deadline.into()));
        std::future::poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Pending if timer.as_mut().poll(cx).is_ready() || deadline <= Instant::now() => {
                Poll::Ready(refuse(Error::Deadline { stage: "before the answer began" }, &id))
            }
            other => other,
        })
        .await
    })
}

/// Turns a panic into INTERNAL, for this call alone.
pub(super) fn guarded(request: Request<Body>, next: Next) -> Answering {
    Box::pin(async move {
        let id = Call::in_http(&request).id;
        let mut answer = pin!(next.oneshot(request));
        std::future::poll_fn(|cx| match caught(|| answer.as_mut().poll(cx)) {
            Ok(poll) => poll,
            Err(error) => {
                tracing::error!(%error, "failed");
                Poll::Ready(Ok(status(&error, &id).into_http()))
            }
        })
        .await
    })
}

/// Does something that may panic.
///
/// # Errors
/// [`Error::Internal`] if it does. Whatever it was working on is to be dropped.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Error::Internal("a panic; the log tells where".into()))
}

/// What the client calls its request, if that is decent; else a name that is drawn.
pub(super) fn request_id(headers: &HeaderMap) -> Arc<str> {
    given_id(headers).unwrap_or_else(draw_id).into()
}

fn given_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let decent = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    ((1..=ID_BYTES).contains(&id.len()) && id.bytes().all(decent)).then(|| id.to_owned())
}

fn draw_id() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// The instant that `grpc-timeout` names: at most eight digits and a unit.
fn deadline(headers: &HeaderMap, now: Instant) -> Result<Option<Instant>> {
    const FIELD: &str = "grpc-timeout";
    let Some(value) = headers.get(FIELD) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let timeout = timeout(text).ok_or_else(|| {
        let bound = "at most eight digits and one of H, M, S, m, u, n".into();
        Error::BadOption { field: FIELD, found: format!("{:?}", clip(text, 64)), bound }
    })?;
    // One that the clock cannot count to is none.
    Ok(now.checked_add(timeout))
}

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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn only_decent_ids_are_taken_over() {
        let given = |id: &str| {
            let value = HeaderValue::from_str(id).unwrap();
            given_id(&HeaderMap::from_iter([(REQUEST_ID.parse().unwrap(), value)]))
        };
        assert_eq!(given("job-7/a"), Some("job-7/a".into()));
        assert_eq!(given("a b"), None);
        assert_eq!(given(&"a".repeat(65)), None);
        assert_ne!(draw_id(), draw_id());
    }

    #[test]
    fn a_panic_is_an_error() {
        assert!(matches!(caught(|| panic!("no")), Err::<(), _>(Error::Internal(_))));
        assert_eq!(caught(|| 1).unwrap(), 1);
    }

    /// What a layer makes of a service, asked once.
    async fn asked<F>(
        around: Around<fn(Request<Body>, Next) -> Answering>,
        service: fn(Request<Body>) -> F,
        headers: &[(&'static str, &str)],
    ) -> Response<Body>
    where
        F: Future<Output = Answered> + Send + 'static,
    {
        let mut request = Request::new(Body::empty());
        for &(name, value) in headers {
            request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
        }
        around.layer(tower::service_fn(service)).oneshot(request).await.unwrap()
    }

    fn code(response: &Response<Body>) -> tonic::Code {
        tonic::Status::from_header_map(response.headers()).map_or(tonic::Code::Ok, |status| status.code())
    }

    async fn never(_: Request<Body>) -> Answered {
        std::future::pending().await
    }

    async fn panics(_: Request<Body>) -> Answered {
        tokio::task::yield_now().await;
        panic!("no")
    }

    /// Answers with the deadline's distance in seconds.
    async fn tells(request: Request<Body>) -> Answered {
        let left = Call::in_http(&request).deadline.map(|deadline| deadline.duration_since(Instant::now()).as_secs());
        let mut response = Response::new(Body::empty());
        response.headers_mut().insert("left", HeaderValue::from_str(&format!("{left:?}")).unwrap());
        Ok(response)
    }

    #[tokio::test]
    async fn an_answer_that_does_not_begin_in_time_is_given_up() {
        for timeout in ["0n", "20m"] {
            let response = asked(Around(timed), never, &[("grpc-timeout", timeout)]).await;
            assert_eq!(code(&response), tonic::Code::DeadlineExceeded);
        }
        let response = asked(Around(timed), tells, &[("grpc-timeout", "1H")]).await;
        assert_eq!(response.headers()["left"], "Some(3599)");
        for headers in [&[][..], &[("grpc-timeout", "99999999H")]] {
            let response = asked(Around(timed), tells, headers).await;
            assert_eq!(code(&response), tonic::Code::Ok);
        }
        let response = asked(Around(timed), tells, &[("grpc-timeout", "soon")]).await;
        assert_eq!(code(&response), tonic::Code::InvalidArgument);
    }

    #[tokio::test]
    async fn a_panic_in_a_service_is_an_answer() {
        assert_eq!(code(&asked(Around(guarded), panics, &[]).await), tonic::Code::Internal);
    }

    #[tokio::test]
    async fn answers_have_the_requests_name() {
        let response = asked(Around(named), tells, &[(REQUEST_ID, "mine")]).await;
        assert_eq!(response.headers()[REQUEST_ID], "mine");
        let response = asked(Around(named), tells, &[(REQUEST_ID, "not mine")]).await;
        assert_eq!(response.headers()[REQUEST_ID].len(), 16);
    }
}
