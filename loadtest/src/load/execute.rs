//! Sends one request within its time limit.

use super::{
    driver::StopSignal,
    workload::{PreparedRequest, RequestTarget},
};
use crate::{
    client::connection::code,
    measure::{request_timer::ClientTimer, stats::RequestOutcome},
};
use tokio::time::{Instant, timeout};

/// Code of requests that exceeded their time limit.
const TIMED_OUT: &str = "DEADLINE_EXCEEDED";

/// Sends a request and returns its outcome. The time limit is enforced by this client's clock, whatever the server does.
pub async fn execute(
    exchange: &dyn PreparedRequest,
    target: &RequestTarget,
    timer: &mut ClientTimer,
    stop: &mut StopSignal,
) -> RequestOutcome {
    let begun = Instant::now();
    let result = tokio::select! {
        _ = stop.wait_for(|stop| *stop) => return RequestOutcome::Unfinished,
        result = timeout(target.timeout, exchange.send(target, timer)) => result,
    };
    let took = begun.elapsed();
    match result {
        _ if timer.is_cancelled() => RequestOutcome::Cancelled,
        // a busy machine reads an answer late: one read after the limit counts as late
        Ok(Ok(())) if took <= target.timeout => RequestOutcome::Completed,
        // tonic has a timer of its own for the same limit, with a code of its own
        Ok(Err(status)) if took < target.timeout => RequestOutcome::Failed(code(&status)),
        Ok(Err(status)) if took < target.timeout => RequestOutcome::Failed(code(&status)),
        Ok(_) | Err(_) => RequestOutcome::Failed(TIMED_OUT),
    }
}
