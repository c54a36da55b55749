//! Limits on the calls in progress over all connections. Each call takes some memory, also one whose message never arrives.
//!
//! A caller may hold at most half of the calls that the others leave free, so that there is always something left for the next
//! one. Health and reflection have [a limit of their own](super::keyless_calls), so the server answers them even if all other calls
//! are taken.

use super::{
    auth::needs_no_key,
    guarded_body::GuardedBody,
    keyless_calls::KeylessCalls,
    layer::{HttpRequest, Middleware, Next},
    shared_limit::{Exceeded, SharedLimit},
};
use crate::{
    config::TransportConfig,
    error::Error,
    serve::{call::Call, status::status},
};
use std::{ops::RangeInclusive, sync::Arc, time::Duration};
use tonic::body::Body;
use tower::ServiceExt;

/// Limits on the calls of health and reflection, which include the streams that watch health.
const KEYLESS_CALLS: RangeInclusive<usize> = 16..=1024;
/// Delay before a rejected client should retry.
const RETRY: Duration = Duration::from_secs(1);

/// Rejects calls beyond the limit of `calls`, and those of a caller beyond its share.
pub(super) fn limit(calls: Arc<CallTable>, config: &TransportConfig) -> impl Middleware {
    // A connection with a call is busy, so these calls must leave connections that a new one may replace.
    let max_keyless = config.connections.saturating_mul(3) / 4;
    let max_keyless = max_keyless.clamp(*KEYLESS_CALLS.start(), *KEYLESS_CALLS.end());
    let keyless_calls = KeylessCalls::new(max_keyless);
    move |request: HttpRequest, next: Next| {
        let call = Call::of_http(&request);
        if needs_no_key(request.uri().path()) {
            return keyless_calls.run(call, request, next);
        }
        let place = match calls.begin(call.tenant()) {
            Ok(place) => place,
            Err(full) => {
                tracing::debug!(error = %full, "rejected");
                return Box::pin(std::future::ready(Ok(status(&full, &call.id).into_http())));
            }
        };
        Box::pin(async move {
            let response = next.oneshot(request).await?;
            Ok(response.map(|body| Body::new(GuardedBody::new(body, place))))
        })
    }
}

/// The calls in progress of one kind.
pub(crate) struct CallTable {
    what: &'static str,
    calls: SharedLimit,
}

/// A call in progress. Dropping it makes room for another.
pub(crate) struct CallPlace {
    table: Arc<CallTable>,
    caller: Arc<str>,
}

impl CallTable {
    /// Creates a table of at most `max` calls, which errors call `what`.
    pub(crate) fn new(what: &'static str, max: usize) -> Arc<Self> {
        Arc::new(Self { what, calls: SharedLimit::new(max, 0) })
    }

    /// Counts a call. Fails if its caller has as many as are left free, or if all are taken.
    pub(crate) fn begin(self: &Arc<Self>, caller: Arc<str>) -> Result<CallPlace, Error> {
        match self.calls.take(&caller, 1) {
            Ok(()) => Ok(CallPlace { table: Arc::clone(self), caller }),
            Err(Exceeded::Total(limit) | Exceeded::Caller(limit)) => {
                Err(Error::TooMany { what: self.what, limit, retry: RETRY })
            }
        }
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.table.calls.give_back(&self.caller, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_until_it_is_dropped() {
        let table = CallTable::new("calls", 2);
        let call = table.begin("a".into()).unwrap();
        let error = table.begin("a".into()).map(drop).unwrap_err();
        assert!(matches!(error, Error::TooMany { what: "calls", limit: 1, .. }), "{error:?}");
        drop(call);
        assert_eq!(table.calls.held(), (0, 0));
    }
}
