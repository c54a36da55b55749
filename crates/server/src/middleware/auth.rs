//! Authentication. Health and reflection need no key: load balancers and tools call them, and they reveal nothing about the models'
//! users.

use crate::call::{Peer, Principal};
use crate::config::{Credentials, Keys};
use crate::middleware::layer::HttpRequest;
use tonic::codegen::http::{Request, header::AUTHORIZATION};

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
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| secret.trim_ascii_start())
}

/// Returns the principal of a call without a key.
fn unauthenticated<B>(request: &Request<B>) -> Principal {
    request.extensions().get().map_or(Principal::Unknown, Peer::principal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UsedKeys;
    use tokio_util::sync::CancellationToken;
    use tonic::body::Body;

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
        assert_eq!(principal(true, path, Some(&format!("bearer   {KEY}")), peer(None)), named("key:alice"));
        assert_eq!(principal(true, path, Some(&format!("Bearer{KEY}")), peer(None)), None);
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
}
