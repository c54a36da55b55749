//! A call as transport, middleware and handlers share it: its id, its deadline, and the client that it belongs to.

use crate::{config::UsedKeys, traces::CallSpan};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request};
use uuid::Uuid;
use weir_engine::clock;
use weir_kernels::error::{Error, Result};

/// The result of a method with one response.
pub(crate) type Reply<T> = Result<tonic::Response<T>, Status>;

/// The header that carries a request's id.
pub const REQUEST_ID: &str = "x-request-id";

/// The method whose body is a stream of separate requests.
pub(crate) const STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The method that runs while its request arrives.
pub(crate) const SUMMARIZE: &str = "/weir.v1.Summarization/Summarize";

/// The method that compresses.
pub(crate) const COMPRESS: &str = "/weir.v1.Codec/Compress";

/// The method that decompresses.
pub(crate) const DECOMPRESS: &str = "/weir.v1.Codec/Decompress";

/// The methods that compress and decompress: they run while their request arrives, and read it no faster than they answer.
pub(crate) const CODEC: [&str; 2] = [COMPRESS, DECOMPRESS];

/// The method whose body is a stream of changes to a document, and of questions about it.
pub(crate) const EDIT: &str = "/weir.v1.Editing/Edit";

/// Maximum length in bytes of an id that a client chooses.
const ID_BYTES: usize = 64;

/// The state of a call that the middleware collects. Handlers find it in the request's extensions.
#[derive(Clone)]
pub(crate) struct Call {
    /// The request's id in the log and in errors.
    pub(crate) id: Arc<str>,
    /// Time of arrival: the deadline counts from here.
    pub(crate) arrived: Instant,
    /// Time at which the client stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// The client that the call belongs to.
    pub(crate) principal: Principal,
    /// The OpenTelemetry span, if the call is traced.
    pub(crate) span: Option<CallSpan>,
}

impl Call {
    /// A call that has just arrived.
    pub(crate) fn new(id: Arc<str>, arrived: Instant) -> Self {
        Self { id, arrived, deadline: None, principal: Principal::Unknown, span: None }
    }

    /// Returns the call of a gRPC request.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::unknown)
    }

    /// Returns the call of an HTTP request on its way through the middleware.
    pub(crate) fn of_http(request: &Request<Body>) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::unknown)
    }

    /// Returns the tenant whose share of the engine the call uses.
    pub(crate) fn tenant(&self) -> Arc<str> {
        self.principal.tenant()
    }

    fn unknown() -> Self {
        Self::new("".into(), clock::now())
    }
}

/// The client of a call, and the properties of its request that calls on its behalf inherit.
#[derive(Clone)]
pub(crate) struct ClientContext {
    pub(crate) request_id: Arc<str>,
    /// The client, or why its key is refused.
    principal: Result<Principal, &'static str>,
    /// The headers of the request, which may name its trace.
    pub(crate) headers: Arc<HeaderMap>,
    /// Time at which the client stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// True if refused calls are logged. False if the client's request fails with its call, because the log then has the request.
    pub(crate) logs_calls: bool,
}

impl ClientContext {
    pub(crate) fn new(request_id: Arc<str>, headers: &HeaderMap, principal: Result<Principal, &'static str>) -> Self {
        Self { request_id, principal, headers: Arc::new(headers.clone()), deadline: None, logs_calls: false }
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

    /// Returns the context of calls that are logged if they are refused.
    pub(crate) fn logging_calls(self) -> Self {
        Self { logs_calls: true, ..self }
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

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// The client's address.
    pub(crate) address: Option<SocketAddr>,
    /// The name in the client's certificate, if the server asks for one.
    pub(crate) certificate: Option<Arc<str>>,
    /// The API keys that calls of the connection have used.
    pub(crate) used_keys: UsedKeys,
    /// Closes the connection once it is cancelled.
    pub(crate) close: CancellationToken,
}

impl Peer {
    /// Returns the principal of a call without a key: the owner of the client certificate, else the client's address.
    pub(crate) fn principal(&self) -> Principal {
        match (&self.certificate, self.address) {
            (Some(name), _) => Principal::Certificate(Arc::clone(name)),
            (None, Some(address)) => Principal::Address(address.ip().to_canonical()),
            (None, None) => Principal::Unknown,
        }
    }
}

/// The client of a call. Kinds never collide: an API key may be named like an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Principal {
    /// The name of an API key.
    Key(Arc<str>),
    /// The name in a client certificate.
    Certificate(Arc<str>),
    /// The address that the connection comes from.
    Address(IpAddr),
    /// No key, certificate or address is known.
    Unknown,
}

impl Principal {
    /// Returns the tenant whose shares the client uses.
    pub(crate) fn tenant(&self) -> Arc<str> {
        self.to_string().into()
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(name) => write!(f, "key:{name}"),
            // Its issuer chose the name, which may contain line breaks.
            Self::Certificate(name) => write!(f, "certificate:{}", name.escape_debug()),
            Self::Address(IpAddr::V4(address)) => write!(f, "address:{address}"),
            // A site has a whole /64 network, in which its hosts choose their addresses freely.
            Self::Address(IpAddr::V6(address)) => {
                let [a, b, c, d, ..] = address.segments();
                write!(f, "address:{a:x}:{b:x}:{c:x}:{d:x}::/64")
            }
            Self::Unknown => Ok(()),
        }
    }
}

/// Returns the client's `x-request-id` if it is acceptable, otherwise a random id.
pub(crate) fn request_id(headers: &HeaderMap) -> Arc<str> {
    client_id(headers).unwrap_or_else(draw_id).into()
}

/// Returns the client's own id if it is 1 to [`ID_BYTES`] letters, digits, or any of `-_.:/`.
fn client_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    ((1..=ID_BYTES).contains(&id.len()) && id.bytes().all(allowed)).then(|| id.to_owned())
}

/// Draws an id: 16 hexadecimal digits, the low half of a version 4 UUID.
fn draw_id() -> String {
    format!("{:016x}", Uuid::new_v4().as_u64_pair().1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::codegen::http::HeaderValue;

    #[test]
    fn names_in_certificates_are_escaped() {
        let principal = |name: &str| Principal::Certificate(name.into()).to_string();
        assert_eq!(principal("spiffe://example.org/app"), "certificate:spiffe://example.org/app");
        assert_eq!(principal("a\nERROR\u{1b}[2J"), "certificate:a\\nERROR\\u{1b}[2J");
    }

    #[test]
    fn only_acceptable_ids_are_taken_from_clients() {
        let chosen = |id: &str| {
            let value = HeaderValue::from_str(id).unwrap();
            client_id(&HeaderMap::from_iter([(REQUEST_ID.parse().unwrap(), value)]))
        };
        assert_eq!(chosen("job-7/a"), Some("job-7/a".into()));
        assert_eq!(chosen("a b"), None);
        assert_eq!(chosen(&"a".repeat(65)), None);
        assert_ne!(draw_id(), draw_id());
        assert_eq!(draw_id().len(), 16);
    }

    #[test]
    fn principals_of_different_kinds_are_different_tenants() {
        let name = || Arc::<str>::from("127.0.0.1");
        let all = [
            Principal::Key(name()),
            Principal::Certificate(name()),
            Principal::Address("127.0.0.1".parse().unwrap()),
            Principal::Unknown,
        ];
        assert_eq!(all.map(|who| who.to_string()), ["key:127.0.0.1", "certificate:127.0.0.1", "address:127.0.0.1", ""]);
        let tenant = |address: &str| Principal::Address(address.parse().unwrap()).to_string();
        assert_eq!(tenant("2001:db8:1:2:3::4"), "address:2001:db8:1:2::/64");
        assert_eq!(tenant("2001:db8:1:2:ffff::1"), tenant("2001:db8:1:2:3::4"));
    }
}
