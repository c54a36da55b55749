//! A middleware is a function around the next service.

use http_body::Frame;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Bytes, StdError};
use tower::util::{BoxCloneSyncService, MapErr};
use tower::{Layer, Service};

/// The rest of the stack, as one middleware sees it.
pub(crate) type Next = BoxCloneSyncService<HttpRequest, Response<Body>, StdError>;

pub(super) type HttpRequest = Request<Body>;

pub(super) type Answered = Result<Response<Body>, StdError>;

/// The next frame of a body, or its end.
pub(super) type NextFrame = Option<Result<Frame<Bytes>, Status>>;

/// The response future of a middleware.
pub(super) type MiddlewareFuture = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// A function of the request and the rest of the stack.
pub(super) trait Middleware: Fn(HttpRequest, Next) -> MiddlewareFuture + Clone + Send + Sync + 'static {}

/// A [`Layer`] made from a [`Middleware`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Around<F>(pub(super) F);

/// The service that [`Around`] makes from the one inside it.
#[derive(Clone)]
pub(super) struct Surrounded<F> {
    around: F,
    next: Next,
}

impl<S, F: Clone> Layer<S> for Around<F>
where
    S: Service<HttpRequest, Response = Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<StdError>,
    S::Future: Send + 'static,
{
    type Service = Surrounded<F>;

    fn layer(&self, inner: S) -> Surrounded<F> {
        let next = BoxCloneSyncService::new(MapErr::new(inner, Into::into));
        Surrounded { around: self.0.clone(), next }
    }
}

impl<F: Fn(HttpRequest, Next) -> MiddlewareFuture> Service<HttpRequest> for Surrounded<F> {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = MiddlewareFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        // Each call waits for its own clone of the service inside.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> MiddlewareFuture {
        (self.around)(request, self.next.clone())
    }
}
