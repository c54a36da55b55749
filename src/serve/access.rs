//! Who may call. Health and reflection are open to everyone that may connect: balancers ask for the one and tools for the
//! other, and neither tells anything about the models' users.

use super::{
    connections::Peer,
    layers::{Answering, Call, Next},
    status::status,
    tenant::Principal,
};
use crate::{
    config::Keys,
    error::{Error, Result},
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

/// The service that has a guard of its own.
const GUARDED: &str = "/weir.v1.Admin/";

/// Finds out who calls, and refuses those who do not bring a key where one is needed. The key goes no further than this.
pub(super) fn admitted(
    keys: Option<Arc<Keys>>,
) -> impl Fn(Request<Body>, Next) -> Answering + Clone + Send + Sync + 'static {
    move |mut request, next| {
        let mut call = Call::in_http(&request);
        let open = OPEN.iter().any(|service| request.uri().path().starts_with(service));
        // Its calls bring a token instead, which its own guard looks at.
        let guarded = request.uri().path().starts_with(GUARDED);
        let keys = keys.as_deref().filter(|_| !open && !guarded);
        let principal = keys.map_or_else(|| Ok(unauthenticated(&request)), |keys| holder(keys, request.headers()));
        if !guarded {
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
pub(super) fn bearer(value: &[u8]) -> Option<&[u8]> {
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
