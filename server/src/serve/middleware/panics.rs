//! A panic in a service fails its own call with INTERNAL, and nothing else.

use super::layer::{HttpRequest, MiddlewareFuture, Next};
use crate::{
    error::{Error, Result},
    serve::{call::Call, status::status},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};
use tower::ServiceExt;

/// Answers INTERNAL if the service panics before its response begins.
pub(super) fn catch(request: HttpRequest, next: Next) -> MiddlewareFuture {
    let id = Call::of_http(&request).id;
    Box::pin(async move {
        catch_panic(next.oneshot(request)).await.unwrap_or_else(|error| Ok(status(&error, &id).into_http()))
    })
}

/// Waits for the beginning of a response. Fails with [`Error::Internal`] if a panic prevents it.
pub(in crate::serve) async fn catch_panic<T>(response: impl Future<Output = T>) -> Result<T> {
    let mut response = pin!(response);
    std::future::poll_fn(|cx| match caught(|| response.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(error) => {
            tracing::error!(%error, "failed");
            Poll::Ready(Err(error))
        }
    })
    .await
}

/// Runs `work` on a response that has begun, so that [`catch`] no longer sees its panics. Fails with
/// [`Error::Internal`] if `work` panics. The caller must then drop all data that `work` was changing.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Error::Internal("a panic; the log shows where".into()))
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
