//! The deadline that a client sets with `grpc-timeout`.

use super::layer::{HttpRequest, MiddlewareFuture, Next};
use crate::{
    engine::clock,
    error::{Error, Result, quoted},
    serve::{call::Call, status::status},
};
use std::{
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};
use tonic::codegen::http::HeaderMap;
use tower::ServiceExt;

/// Reads `grpc-timeout` into the call's deadline, and answers DEADLINE_EXCEEDED if the response has not begun by then.
///
/// tonic's own timer for the same header answers CANCELLED. tonic polls it after this one, and never starts it earlier.
pub(super) fn enforce(mut request: HttpRequest, next: Next) -> MiddlewareFuture {
    Box::pin(async move {
        let mut call = Call::of_http(&request);
        let Call { id, arrived, .. } = call.clone();
        let refuse = |error| Ok(status(&error, &id).into_http());
        let deadline = match deadline(request.headers(), arrived) {
            Ok(deadline) => deadline,
            Err(error) => return refuse(error),
        };
        call.deadline = deadline;
        request.extensions_mut().insert(call);
        begin_by(deadline, next.oneshot(request)).await.unwrap_or_else(refuse)
    })
}

/// Waits for the beginning of a response. Fails with [`Error::Deadline`] if that takes until `deadline`. Timers that are due in the
/// same tick may fire in any order, so this also reads the clock.
pub(in crate::serve) async fn begin_by<T>(deadline: Option<Instant>, response: impl Future<Output = T>) -> Result<T> {
    let Some(deadline) = deadline else { return Ok(response.await) };
    let mut response = pin!(response);
    let mut timer = pin!(tokio::time::sleep_until(deadline.into()));
    std::future::poll_fn(|cx| match response.as_mut().poll(cx) {
        Poll::Pending if timer.as_mut().poll(cx).is_ready() || deadline <= clock::now() => {
            Poll::Ready(Err(Error::Deadline { stage: "before the answer began" }))
        }
        polled => polled.map(Ok),
    })
    .await
}

/// Returns the instant that `grpc-timeout` names, counted from `arrived`.
fn deadline(headers: &HeaderMap, arrived: Instant) -> Result<Option<Instant>> {
    const FIELD: &str = "grpc-timeout";
    let Some(value) = headers.get(FIELD) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let bound = "at most eight digits and one of H, M, S, m, u, n";
    let invalid = || Error::bad_option(FIELD, quoted(text), bound);
    let timeout = timeout(text).ok_or_else(invalid)?;
    // A deadline beyond the clock's range is no deadline.
    Ok(arrived.checked_add(timeout))
}

/// Parses one to eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = text.strip_suffix(unit)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(count * 3600),
        'M' => Duration::from_secs(count * 60),
        'S' => Duration::from_secs(count),
        'm' => Duration::from_millis(count),
        'u' => Duration::from_micros(count),
        'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{Answered, code, respond, seconds_left},
        *,
    };
    use tonic::Code;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        assert_eq!(timeout("100m"), Some(Duration::from_millis(100)));
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(timeout("0n"), Some(Duration::ZERO));
        assert_eq!(timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in ["", "m", "10", "10x", "123456789n", "-1S", "+1S", "1.5S", "1 S", "１S"] {
            assert_eq!(timeout(wrong), None, "{wrong:?}");
        }
    }

    async fn never(_: HttpRequest) -> Answered {
        std::future::pending().await
    }

    #[tokio::test]
    async fn a_response_that_does_not_begin_in_time_is_abandoned() {
        for timeout in ["0n", "20m"] {
            let response = respond(enforce, never, &[("grpc-timeout", timeout)]).await;
            assert_eq!(code(&response), Code::DeadlineExceeded);
        }
        let response = respond(enforce, seconds_left, &[("grpc-timeout", "1H")]).await;
        assert_eq!(response.headers()["left"], "Some(3599)");
        for headers in [&[][..], &[("grpc-timeout", "99999999H")]] {
            let response = respond(enforce, seconds_left, headers).await;
            assert_eq!(code(&response), Code::Ok);
        }
        let response = respond(enforce, seconds_left, &[("grpc-timeout", "soon")]).await;
        assert_eq!(code(&response), Code::InvalidArgument);
    }
}
