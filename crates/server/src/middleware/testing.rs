//! One call through one middleware, for its tests.

pub(super) use crate::middleware::layer::Answered;
use crate::{
    call::Call,
    middleware::layer::{Around, HttpRequest, MiddlewareFuture, Next},
};
use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{HeaderValue, Request, Response},
};
use tower::{Layer, ServiceExt};
use weir_engine::clock;

/// Sends one request with these headers through a middleware to a service.
pub(super) async fn respond<F>(
    middleware: fn(HttpRequest, Next) -> MiddlewareFuture,
    service: fn(HttpRequest) -> F,
    headers: &[(&'static str, &str)],
) -> Response<Body>
where
    F: Future<Output = Answered> + Send + 'static,
{
    let mut request = Request::new(Body::empty());
    for &(name, value) in headers {
        request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
    }
    Around(middleware).layer(tower::service_fn(service)).oneshot(request).await.unwrap()
}

/// Returns the gRPC status code of a response.
pub(super) fn code(response: &Response<Body>) -> Code {
    Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code())
}

/// A service that answers with the seconds until the call's deadline.
pub(super) async fn seconds_left(request: HttpRequest) -> Answered {
    let left = Call::of_http(&request).deadline.map(|deadline| deadline.duration_since(clock::now()).as_secs());
    let mut response = Response::new(Body::empty());
    response.headers_mut().insert("left", HeaderValue::from_str(&format!("{left:?}")).unwrap());
    Ok(response)
}
