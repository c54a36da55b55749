//! A panic in a service fails its own call with INTERNAL, and nothing else.

use super::{Call, Next, ResponseFuture, status::status};
use crate::error::{Error, Result};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};
use tonic::{body::Body, codegen::http::Request};
use tower::ServiceExt;

/// Answers INTERNAL if the service panics before its response begins.
pub(super) fn catch(request: Request<Body>, next: Next) -> ResponseFuture {
    Box::pin(async move {
        let id = Call::of_http(&request).id;
        let mut response = pin!(next.oneshot(request));
        std::future::poll_fn(|cx| match caught(|| response.as_mut().poll(cx)) {
            Ok(poll) => poll,
            Err(error) => {
                tracing::error!(%error, "failed");
                Poll::Ready(Ok(status(&error, &id).into_http()))
            }
        })
        .await
    })
}

/// Runs `work`, which may panic.
///
/// # Errors
/// [`Error::Internal`] if it panics. The caller must drop whatever `work` was changing.
pub(in crate::serve) fn caught<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Error::Internal("a panic; the log tells where".into()))
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{Answered, code, respond},
        *,
    };

    async fn panics(_: Request<Body>) -> Answered {
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
