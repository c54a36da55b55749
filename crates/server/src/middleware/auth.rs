//! Authentication. Health and reflection need no key: load balancers and tools call them, and they reveal nothing about the models'
//! users.

use crate::{
    call::{Call, Peer, Principal},
    config::{Credentials, Keys},
    middleware::layer::{HttpRequest, MiddlewareFuture, Next, NextFrame},
    status::status,
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
    codegen::{
        Bytes,
        http::{HeaderMap, Request, header::AUTHORIZATION},
    },
};
use tower::ServiceExt;
use weir_kernels::error::Error;

/// Services that need no key.
const WITHOUT_KEY: [&str; 3] =
    ["/grpc.health.v1.Health/", "/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/"];

/// The health methods of the Open Inference Protocol, which need no key either.
const METHODS_WITHOUT_KEY: [&str; 2] =
    ["/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady"];

/// Maximum bytes of a message to health and reflection: it has the name of a service or a symbol.
pub(crate) const KEYLESS_MESSAGE_BYTES: usize = 4 << 10;

/// The service with the server's health.
const HEALTH: &str = WITHOUT_KEY[0];

/// The service that checks a token by itself.
const GUARDED: &str = "/weir.v1.Admin/";

/// Returns the client of a gRPC call: the owner of its key where one is needed. The error says why the key is refused. Removes the key
/// from the request. Each call is compared with the keys of that moment, and with those that its connection has used.
pub(super) fn take_principal(credentials: &Credentials, request: &mut HttpRequest) -> Result<Principal, &'static str> {
    let path = request.uri().path();
    // Its calls carry a token instead, which its own interceptor checks.
    let guarded = path.starts_with(GUARDED);
    let keys = credentials.keys.as_ref().filter(|_| !guarded && !needs_no_key(path));
    let principal = principal(keys, request);
    if !guarded {
        request.headers_mut().remove(AUTHORIZATION);
    }
    principal
}

/// True for the paths of health and reflection, which need no key.
pub(crate) fn needs_no_key(path: &str) -> bool {
    WITHOUT_KEY.iter().any(|service| path.starts_with(service)) || METHODS_WITHOUT_KEY.contains(&path)
}

/// True for the path of a health check with one answer.
pub(crate) fn is_health_check(path: &str) -> bool {
    path.strip_prefix(HEALTH) == Some("Check") || METHODS_WITHOUT_KEY.contains(&path)
}

/// Returns the client of a request: the owner of its API key, if keys are required. The error says why the key is refused.
pub(crate) fn principal<B>(keys: Option<&Keys>, request: &Request<B>) -> Result<Principal, &'static str> {
    keys.map_or_else(|| Ok(unauthenticated(request)), |keys| key_owner(keys, request))
}

/// Returns the owner of the API key of a request.
fn key_owner<B>(keys: &Keys, request: &Request<B>) -> Result<Principal, &'static str> {
    let mut values = request.headers().get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err("send one header `authorization: Bearer KEY`");
    };
    let key = bearer(value.as_bytes()).ok_or("the header `authorization` must be `Bearer KEY`")?;
    let peer = request.extensions().get::<Peer>();
    let owner = peer.map_or_else(|| keys.find(key), |peer| peer.used_keys.find(key, keys));
    owner.map(Principal::Key).ok_or("unknown API key")
}

/// Returns the secret in the value of an `authorization` header.
pub(crate) fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(secret)
}

/// Returns the principal of a call without a key: the owner of the client certificate, else the client's address.
fn unauthenticated<B>(request: &Request<B>) -> Principal {
    let Some(Peer { address, certificate, .. }) = request.extensions().get() else { return Principal::Unknown };
    match (certificate, address) {
        (Some(name), _) => Principal::Certificate(Arc::clone(name)),
        (None, Some(address)) => Principal::Address(address.ip().to_canonical()),
        (None, None) => Principal::Unknown,
    }
}

/// Time after which a client whose call was ended may call again.
const RETRY: Duration = Duration::from_secs(1);

/// How long a client may take to receive the end of a call that was ended.
const END_TIME: Duration = Duration::from_secs(1);

/// The calls of health and reflection in progress, which need no key. A new call is always accepted: if all places are taken, it ends
/// the oldest call of the caller that holds the most. So streams that watch health never keep others from checking it. The server
/// closes the connection of a client that does not read the end of its call.
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

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
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
    use crate::config::UsedKeys;
    use std::future::poll_fn;
    use tokio_util::sync::CancellationToken;

    const KEY: &str = "a-key-that-alice-has";

    /// Returns the principal of a call, or `None` if the call is rejected.
    fn principal(keys: bool, path: &str, header: Option<&str>, peer: Peer) -> Option<String> {
        let keys = keys.then(|| Keys::parse(&format!("alice:{KEY}")).unwrap());
        let credentials = Credentials { keys, ..Credentials::default() };
        let mut request = Request::builder().uri(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(peer);
        if let Some(header) = header {
            request.headers_mut().insert(AUTHORIZATION, header.parse().unwrap());
        }
        let principal = take_principal(&credentials, &mut request);
        assert!(request.headers().get(AUTHORIZATION).is_none(), "the key goes on");
        principal.ok().map(|principal| principal.to_string())
    }

    fn peer(certificate: Option<&str>) -> Peer {
        let address = Some("[::ffff:10.1.2.3]:99".parse().unwrap());
        Peer {
            address,
            certificate: certificate.map(Into::into),
            used_keys: UsedKeys::default(),
            close: CancellationToken::new(),
        }
    }

    #[test]
    fn a_key_wins_over_a_certificate_and_that_over_an_address() {
        let bearer = format!("Bearer {KEY}");
        let path = "/weir.v1.Generation/Generate";
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(principal(true, path, Some(&bearer), peer(Some("app"))), named("key:alice"));
        assert_eq!(principal(true, path, None, peer(Some("app"))), None, "a certificate is no key");
        assert_eq!(principal(false, path, Some(&bearer), peer(Some("app"))), named("certificate:app"));
        assert_eq!(principal(false, path, None, peer(None)), named("address:10.1.2.3"));
        assert_eq!(principal(false, path, None, Peer { address: None, ..peer(None) }), named(""));
    }

    #[test]
    fn all_but_health_and_reflection_need_a_key() {
        for open in WITHOUT_KEY {
            assert!(principal(true, &format!("{open}Any"), None, peer(None)).is_some(), "{open}");
            // A service with a longer name that starts the same way is not open.
            let other = format!("{}s/Any", open.trim_end_matches('/'));
            assert_eq!(principal(true, &other, None, peer(None)), None, "{other}");
        }
        for open in METHODS_WITHOUT_KEY {
            assert!(principal(true, open, None, peer(None)).is_some(), "{open}");
            assert_eq!(principal(true, &format!("{open}s"), None, peer(None)), None);
        }
        for path in [
            "/inference.GRPCInferenceService/ModelReady",
            "/weir.v1.Models/ListModels",
            "/weir.v1.Nothing/Never",
            "/",
            "//grpc.health.v1.Health/Check",
        ] {
            assert_eq!(principal(true, path, None, peer(None)), None, "{path}");
        }
    }

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
