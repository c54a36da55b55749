//! Limits on the calls in progress over all connections. Each call takes some memory, also one whose message never arrives.
//!
//! A caller may hold at most half of the calls that the others leave free, so that there is always something left for the next
//! one. Health and reflection have a pool of their own: they are answered while all other calls are taken.

use super::{
    auth::is_open,
    guarded_body::GuardedBody,
    layer::{HttpRequest, Middleware, Next},
};
use crate::{
    error::Error,
    serve::{call::Call, status::status},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::body::Body;
use tower::ServiceExt;

/// Maximum calls of health and reflection, which include the streams that watch health.
const MAX_OPEN_CALLS: usize = 1024;
/// Delay before a rejected client should retry.
const RETRY: Duration = Duration::from_secs(1);

/// Rejects calls beyond `max_calls`, and those of a caller beyond its share.
pub(super) fn limit(max_calls: usize) -> impl Middleware {
    let calls = CallTable::new("calls", max_calls);
    let open_calls = CallTable::new("calls of health and reflection", MAX_OPEN_CALLS);
    move |request: HttpRequest, next: Next| {
        let call = Call::of_http(&request);
        let table = if is_open(request.uri().path()) { &open_calls } else { &calls };
        let place = match table.begin(call.tenant()) {
            Ok(place) => place,
            Err(full) => {
                tracing::info!(error = %full, "rejected");
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
struct CallTable {
    what: &'static str,
    max: usize,
    usage: Mutex<CallUsage>,
}

#[derive(Default)]
struct CallUsage {
    total: usize,
    /// Calls of each caller that has any.
    by_caller: HashMap<Arc<str>, usize>,
}

/// A call in progress. Dropping it makes room for another.
struct CallPlace {
    table: Arc<CallTable>,
    caller: Arc<str>,
}

impl CallTable {
    fn new(what: &'static str, max: usize) -> Arc<Self> {
        Arc::new(Self { what, max, usage: Mutex::default() })
    }

    /// Counts a call. Fails if its caller has as many as are left free, or if all are taken.
    fn begin(self: &Arc<Self>, caller: Arc<str>) -> Result<CallPlace, Error> {
        let mut usage = self.usage();
        let own = usage.by_caller.get(&caller).copied().unwrap_or(0);
        // What others leave, half of which the caller may hold.
        let left = self.max - (usage.total - own);
        let limit = left.div_ceil(2);
        if own >= limit {
            return Err(Error::TooMany { what: self.what, limit, retry: RETRY });
        }
        usage.total += 1;
        usage.by_caller.insert(Arc::clone(&caller), own + 1);
        Ok(CallPlace { table: Arc::clone(self), caller })
    }

    fn usage(&self) -> MutexGuard<'_, CallUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let mut usage = self.table.usage();
        usage.total -= 1;
        if let Some(own) = usage.by_caller.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                usage.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_leaves_half_to_the_next() {
        let table = CallTable::new("calls", 16);
        let mut held = Vec::new();
        for (caller, share) in [("a", 8), ("b", 4), ("c", 2), ("d", 1), ("e", 1)] {
            for _ in 0..share {
                held.push(table.begin(caller.into()).unwrap_or_else(|error| panic!("{caller}: {error}")));
            }
            let error = table.begin(caller.into()).map(drop).unwrap_err();
            assert!(matches!(error, Error::TooMany { .. }), "{error:?}");
        }
        assert!(table.begin("f".into()).is_err(), "16 calls are in progress");
        held.clear();
        let usage = table.usage();
        assert_eq!((usage.total, usage.by_caller.len()), (0, 0));
    }
}
