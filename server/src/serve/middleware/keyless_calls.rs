//! A limit on the calls of health and reflection in progress, which need no key.
//!
//! A new call is always accepted: if all places are taken, it ends the oldest call of the caller that holds the most. So streams that
//! watch health never keep others from checking it, however many callers hold them. A client that reads nothing keeps a call that was
//! ended; its connection is closed.

use super::layer::{HttpRequest, MiddlewareFuture, Next};
use crate::{
    error::Error,
    serve::{
        call::{Call, Peer},
        status::status,
    },
};
use http_body::{Body as HttpBody, Frame};
use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{
    Status,
    body::Body,
    codegen::{Bytes, http::HeaderMap},
};
use tower::ServiceExt;

/// Time after which a client whose call was ended may call again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a client may take to receive the end of a call that was ended.
const END_TIME: Duration = Duration::from_secs(1);

/// The calls in progress.
pub(super) struct KeylessCalls {
    max: usize,
    calls: Mutex<CallsInProgress>,
}

#[derive(Default)]
struct CallsInProgress {
    /// Number of calls that have begun.
    begun: u64,
    /// Calls that were not ended.
    total: usize,
    /// These calls of each caller by their numbers, oldest first.
    by_caller: HashMap<Arc<str>, BTreeMap<u64, CallEnd>>,
}

/// Ends a call.
struct CallEnd {
    /// Cancelled when another call takes the place.
    ended: CancellationToken,
    /// Closes the connection of the call.
    close: CancellationToken,
    /// Gone once the call is dropped.
    call: Weak<()>,
}

/// A call in progress. Dropping it gives its place back.
struct KeylessCall {
    table: Arc<KeylessCalls>,
    caller: Arc<str>,
    number: u64,
    /// Cancelled when another call takes the place.
    ended: CancellationToken,
    request_id: Arc<str>,
    /// Tells [`CallEnd`] that the call exists.
    _exists: Arc<()>,
}

impl KeylessCalls {
    /// Creates a limit of `max` calls.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, calls: Mutex::default() })
    }

    /// Runs a call until it ends, or until another call needs its place.
    pub(super) fn run(self: &Arc<Self>, call: Call, request: HttpRequest, next: Next) -> MiddlewareFuture {
        let close = request.extensions().get().map(|peer: &Peer| peer.close.clone()).unwrap_or_default();
        let place = self.begin(call.tenant(), call.id, close);
        Box::pin(async move {
            let response = tokio::select! {
                biased;
                () = place.ended.cancelled() => return Ok(place.status().into_http()),
                response = next.oneshot(request) => response?,
            };
            let ended = Box::pin(place.ended.clone().cancelled_owned());
            Ok(response.map(|body| Body::new(EndableBody { body, place, ended, is_over: false })))
        })
    }

    fn begin(self: &Arc<Self>, caller: Arc<str>, request_id: Arc<str>, close: CancellationToken) -> KeylessCall {
        let ended = CancellationToken::new();
        let exists = Arc::default();
        let end = CallEnd { ended: ended.clone(), close, call: Arc::downgrade(&exists) };
        let mut calls = self.calls();
        if calls.total >= self.max {
            calls.end_one();
        }
        calls.begun = calls.begun.wrapping_add(1);
        calls.total = calls.total.saturating_add(1);
        let number = calls.begun;
        calls.by_caller.entry(Arc::clone(&caller)).or_default().insert(number, end);
        drop(calls);
        KeylessCall { table: Arc::clone(self), caller, number, ended, request_id, _exists: exists }
    }

    fn calls(&self) -> MutexGuard<'_, CallsInProgress> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallsInProgress {
    /// Ends the oldest call of the caller that holds the most.
    fn end_one(&mut self) {
        let largest = self.by_caller.iter().max_by_key(|(_, calls)| calls.len());
        let Some((caller, number)) =
            largest.and_then(|(caller, calls)| Some((Arc::clone(caller), *calls.keys().next()?)))
        else {
            return;
        };
        if let Some(end) = self.remove(&caller, number) {
            tokio::spawn(end.run());
        }
    }

    fn remove(&mut self, caller: &Arc<str>, number: u64) -> Option<CallEnd> {
        let calls = self.by_caller.get_mut(caller)?;
        let removed = calls.remove(&number)?;
        if calls.is_empty() {
            self.by_caller.remove(caller);
        }
        self.total = self.total.saturating_sub(1);
        Some(removed)
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

impl KeylessCall {
    /// Returns the status of a call that another one has ended.
    fn status(&self) -> Status {
        let what = "calls of health and reflection";
        tracing::debug!(caller = %self.caller, "a call of health or reflection made room for another");
        status(&Error::TooMany { what, limit: self.table.max, retry: RETRY }, &self.request_id)
    }

    fn trailers(&self) -> Result<HeaderMap, Status> {
        let mut trailers = HeaderMap::new();
        self.status().add_header(&mut trailers)?;
        Ok(trailers)
    }
}

impl Drop for KeylessCall {
    fn drop(&mut self) {
        self.table.calls().remove(&self.caller, self.number);
    }
}

/// The body of a response, which ends early if another call needs the place.
struct EndableBody {
    body: Body,
    place: KeylessCall,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    /// True after the trailers of a call that was ended.
    is_over: bool,
}

impl HttpBody for EndableBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(self.ended.as_mut().poll(cx));
        self.is_over = true;
        Poll::Ready(Some(self.place.trailers().map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    /// Returns the number of calls and of callers.
    fn held(table: &KeylessCalls) -> (usize, usize) {
        let calls = table.calls();
        (calls.total, calls.by_caller.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_call_ends_the_oldest_of_the_largest_caller() {
        let table = KeylessCalls::new(3);
        let close = CancellationToken::new();
        let begin = |caller: &str| table.begin(caller.into(), "id".into(), close.clone());
        let calls = [begin("a"), begin("b"), begin("b")];
        let ended = || calls.each_ref().map(|call| call.ended.is_cancelled());
        assert_eq!(ended(), [false; 3]);
        let fourth = begin("c");
        tokio::task::yield_now().await;
        assert_eq!(ended(), [false, true, false]);
        assert!(!close.is_cancelled());
        sleep(2 * END_TIME).await;
        assert!(close.is_cancelled(), "the client keeps the call");
        assert_eq!(held(&table), (3, 3));
        drop((calls, fourth));
        assert_eq!(held(&table), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_ended_has_a_status() {
        let table = KeylessCalls::new(1);
        let close = CancellationToken::new();
        let place = table.begin("a".into(), "id".into(), close.clone());
        let ended = Box::pin(place.ended.clone().cancelled_owned());
        let body = Body::new(axum::body::Body::from_stream(tokio_stream::pending::<Result<Bytes, Status>>()));
        let mut body = EndableBody { body, place, ended, is_over: false };
        let _other = table.begin("b".into(), "id".into(), CancellationToken::new());
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
