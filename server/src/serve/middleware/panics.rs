//! A panic in a service fails its own call with INTERNAL, and nothing else.

use super::layer::{HttpRequest, MiddlewareFuture, Next};
use crate::{
    error::{Error, Result},
    serve::{call::Call, status::status},
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use tonic::{body::Body, codegen::http::Response};
use tower::ServiceExt;
use tower_http::catch_panic::{CatchPanic, ResponseForPanic};

/// Answers INTERNAL if the service panics before its response begins.
pub(super) fn catch(request: HttpRequest, next: Next) -> MiddlewareFuture {
    let call = PanickedCall(Call::of_http(&request).id);
    Box::pin(async move { Ok(CatchPanic::custom(next, call).oneshot(request).await?.map(Body::new)) })
}

/// The response to a panic, for the call with this id.
#[derive(Clone)]
struct PanickedCall(Arc<str>);

impl ResponseForPanic for PanickedCall {
    type ResponseBody = Body;

    fn response_for_panic(&mut self, _: Box<dyn Any + Send>) -> Response<Body> {
        let error = panicked();
        tracing::error!(%error, "failed");
        status(&error, &self.0).into_http()
    }
}

/// Runs `work` on a response that has begun, so that [`catch`] no longer sees its panics. Fails with
/// [`Error::Internal`] if `work` panics. The caller must then drop all data that `work` was changing.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| panicked())
}

fn panicked() -> Error {
    Error::Internal("a panic; the log shows where".into())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            layer::Answered,
            testing::{code, respond},
        },
        *,
    };

    async fn panics(_: HttpRequest) -> Answered {
        tokio::task::yield_now().await;
        panic!("no")
    }

    #[tokio::test]
    async fn a_panic_in_a_service_is_an_answer() {
        assert_eq!(code(&respond(catch, panics, &[]).await), tonic::Code::Internal);
    }

    #[test]
    fn a_panic_is_an_error() {
        assert!(matches!(caught(|| panic!("no")), Err::<(), _>(Error::Internal(_))));
        assert_eq!(caught(|| 1).unwrap(), 1);
    }
}
