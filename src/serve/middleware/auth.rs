//! Who may call. Health and reflection are open to everyone that may connect: balancers ask for the one and tools for the
//! other, and neither tells anything about the models' users.

use super::{Call, Next, ResponseFuture, status::status};
use crate::{
    config::Keys,
    error::{Error, Result},
    serve::call::{Peer, Principal},
};
use std::sync::Arc;
use tonic::{
    body::Body,
    codegen::http::{HeaderMap, Request, header::AUTHORIZATION},
};
use tower::ServiceExt;

/// Services that need no key.
const OPEN: [&str; 3] =
    ["/grpc.health.v1.Health/", "/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/"];

/// The same questions in another protocol.
const OPEN_METHODS: [&str; 2] =
    ["/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady"];

/// The service that calls others within the process on behalf of whoever calls it, and by their key.
const ON_BEHALF: &str = "/inference.GRPCInferenceService/";

/// The service that has a guard of its own.
const GUARDED: &str = "/weir.v1.Admin/";

/// Finds out who calls, and refuses those who do not bring a key where one is needed. The key goes no further than
/// this, but for calls that are made on the caller's behalf.
pub(in crate::serve) fn authenticate(
    keys: Option<Arc<Keys>>,
) -> impl Fn(Request<Body>, Next) -> ResponseFuture + Clone + Send + Sync + 'static {
    move |mut request, next| {
        let mut call = Call::of_http(&request);
        let path = request.uri().path();
        let open = OPEN.iter().any(|service| path.starts_with(service)) || OPEN_METHODS.contains(&path);
        let passed_on = path.starts_with(ON_BEHALF);
        // Its calls bring a token instead, which its own guard looks at.
        let guarded = path.starts_with(GUARDED);
        let keys = keys.as_deref().filter(|_| !open && !guarded);
        let principal = keys.map_or_else(|| Ok(unauthenticated(&request)), |keys| holder(keys, request.headers()));
        if !guarded && !passed_on {
            request.headers_mut().remove(AUTHORIZATION);
        }
        match principal {
            Ok(principal) => call.principal = principal,
            Err(error) => {
                tracing::info!(%error, "refused");
                return Box::pin(std::future::ready(Ok(status(&error, &call.id).into_http())));
            }
        }
        tracing::Span::current().record("principal", tracing::field::display(&call.principal));
        request.extensions_mut().insert(call);
        Box::pin(next.oneshot(request))
    }
}

/// Who brings this key.
fn holder(keys: &Keys, headers: &HeaderMap) -> Result<Principal> {
    let refuse = |why| Error::Unauthenticated { why };
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return Err(refuse("send one header `authorization: Bearer KEY`"));
    };
    let Some(key) = bearer(value.as_bytes()) else {
        return Err(refuse("the header `authorization` must be `Bearer KEY`"));
    };
    keys.find(key).map(Principal::Key).ok_or_else(|| refuse("this API key is not known here"))
}

/// The secret in an `authorization` header.
pub(in crate::serve) fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(secret)
}

/// Who calls where no key is asked for: the owner of the connection's certificate, else whoever is at its address.
fn unauthenticated(request: &Request<Body>) -> Principal {
    let Some(Peer { address, certificate }) = request.extensions().get() else { return Principal::Unknown };
    match (certificate, address) {
        (Some(name), _) => Principal::Certificate(Arc::clone(name)),
        (None, Some(address)) => Principal::Address(address.ip().to_canonical()),
        (None, None) => Principal::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Around, *};
    use tonic::codegen::http::Response;
    use tower::{Layer, service_fn};

    const KEY: &str = "a-key-that-alice-has";

    /// Who a call is from, as the services see it; none if it is refused.
    async fn caller(keys: bool, path: &str, header: Option<&str>, peer: Peer) -> Option<String> {
        let keys = keys.then(|| Arc::new(Keys::parse(&format!("alice:{KEY}")).unwrap()));
        let service = service_fn(|request: Request<Body>| async move {
            assert!(request.headers().get(AUTHORIZATION).is_none(), "the key goes on");
            let mut response = Response::new(Body::empty());
            response.extensions_mut().insert(Call::of_http(&request).principal.to_string());
            Ok::<_, std::convert::Infallible>(response)
        });
        let mut request = Request::builder().uri(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(peer);
        if let Some(header) = header {
            request.headers_mut().insert(AUTHORIZATION, header.parse().unwrap());
        }
        let response = Around(authenticate(keys)).layer(service).oneshot(request).await.unwrap();
        response.extensions().get().cloned()
    }

    fn peer(certificate: Option<&str>) -> Peer {
        Peer { address: Some("[::ffff:10.1.2.3]:99".parse().unwrap()), certificate: certificate.map(Into::into) }
    }

    #[tokio::test]
    async fn the_best_that_is_known_is_who_calls() {
        let (bearer, path) = (format!("Bearer {KEY}"), "/weir.v1.Generation/Generate");
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(caller(true, path, Some(&bearer), peer(Some("app"))).await, named("key:alice"));
        assert_eq!(caller(false, path, Some(&bearer), peer(Some("app"))).await, named("certificate:app"));
        assert_eq!(caller(false, path, None, peer(None)).await, named("address:10.1.2.3"));
        let nobody = Peer { address: None, certificate: None };
        assert_eq!(caller(false, path, None, nobody).await, named(""));
    }

    #[tokio::test]
    async fn a_certificate_is_no_key() {
        assert_eq!(caller(true, "/weir.v1.Models/ListModels", None, peer(Some("app"))).await, None);
    }

    #[tokio::test]
    async fn all_but_health_and_reflection_need_a_key() {
        for open in OPEN {
            assert!(caller(true, &format!("{open}Any"), None, peer(None)).await.is_some(), "{open}");
            // Not even what only looks like one of them.
            let other = format!("{}s/Any", open.trim_end_matches('/'));
            assert_eq!(caller(true, &other, None, peer(None)).await, None, "{other}");
        }
        for open in OPEN_METHODS {
            assert!(caller(true, open, None, peer(None)).await.is_some(), "{open}");
            assert_eq!(caller(true, &format!("{open}s"), None, peer(None)).await, None);
        }
        for path in [
            "/inference.GRPCInferenceService/ModelReady",
            "/weir.v1.Models/ListModels",
            "/weir.v1.Nothing/Never",
            "/",
            "//grpc.health.v1.Health/Check",
        ] {
            assert_eq!(caller(true, path, None, peer(None)).await, None, "{path}");
        }
    }
}
