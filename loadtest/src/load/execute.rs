//! One request, within its time limit.

use super::{
    driver::StopSignal,
    workload::{PreparedRequest, RequestTarget},
};
use crate::{
    client::connection::code,
    measure::{request_timer::RequestTimer, stats::RequestOutcome},
};
use tokio::time::{Instant, timeout};

/// What is told of requests that took too long.
const LATE: &str = "DEADLINE_EXCEEDED";

/// Makes a request and tells how it ended, at the latest when its time is up: by this client's clock, whatever the server says.
pub async fn execute(
    exchange: &dyn PreparedRequest,
    target: &RequestTarget,
    watch: &mut RequestTimer,
    stop: &mut StopSignal,
) -> RequestOutcome {
    let begun = Instant::now();
    let ended = tokio::select! {
        _ = stop.wait_for(|stop| *stop) => return RequestOutcome::Unfinished,
        ended = timeout(target.timeout, exchange.run(target, watch)) => ended,
    };
    let took = begun.elapsed();
    match ended {
        _ if watch.is_cancelled() => RequestOutcome::Cancelled,
        // a busy machine looks at an answer late: what it sees after the limit came after it, as far as anyone can tell
        Ok(Ok(())) if took <= target.timeout => RequestOutcome::Completed,
        // the client library has a timer of its own for the same limit, and a code of its own
        Ok(Err(status)) if took < target.timeout => RequestOutcome::Failed(code(&status)),
        Ok(_) | Err(_) => RequestOutcome::Failed(LATE),
    }
}
