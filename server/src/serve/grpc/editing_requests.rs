//! The requests in progress of an editing session: completions and scores, which run concurrently until a splice cancels them.

use crate::{
    decode::edited_text::{EditedText, Splice},
    engine::editing::EditSession,
    error::{Error, Result},
    serve::{
        middleware::body_limits::{BodyMemory, Reservation},
        tokenization::{INLINE_BYTES, TokenizationWorkers},
    },
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use weir_proto::v1::edit_response::Event;

/// Maximum requests of a session in progress.
const MAX_REQUESTS: usize = 16;
/// Bytes that are copied or compared in the time that one byte takes to convert (a lower bound).
pub(super) const COPIED_BYTES: usize = 64;
/// Time after which one may have ended.
const RETRY: Duration = Duration::from_millis(50);

/// The parts of the server that a request of a session uses.
pub(super) struct RequestWork {
    pub(super) workers: TokenizationWorkers,
    pub(super) memory: Arc<BodyMemory>,
    pub(super) tenant: Arc<str>,
}

impl RequestWork {
    /// Prepares a request that reads `bytes` bytes of text: here if these are few, otherwise on a worker.
    pub(super) async fn prepare<T: Send + 'static>(
        &self,
        bytes: usize,
        prepare: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.workers.run(&self.tenant, bytes, prepare).await.flatten()
    }

    /// Reserves memory for the copy of a session's text that splices change on a worker; `None` if they are applied at once.
    pub(super) fn hold_copy(&self, session: &EditSession, splices: &[Splice]) -> Result<Option<Reservation>> {
        let is_short = splice_cost(session.text(), splices) < INLINE_BYTES;
        if is_short { Ok(None) } else { self.reserve(session.text().text().len()).map(Some) }
    }

    /// Applies splices to a session: on a worker if memory is `held` for a copy, otherwise on this task. Returns the number of
    /// characters of their texts that the model's normaliser replaces or drops. Fails and changes nothing as
    /// [`EditSession::splice`] does.
    pub(super) async fn splice(
        &self,
        session: &mut EditSession,
        revision: u64,
        splices: Vec<Splice>,
        held: Option<Reservation>,
    ) -> Result<usize> {
        let bytes = splice_cost(session.text(), &splices);
        let apply = move |session: &mut EditSession| -> Result<usize> {
            session.splice(revision, &splices)?;
            Ok(splices.iter().map(|splice| session.normalized_chars(&splice.text)).sum())
        };
        let Some(_held) = held else { return apply(session) };
        let mut changed = session.clone();
        let (changed, normalized) =
            self.prepare(bytes, move || apply(&mut changed).map(|normalized| (changed, normalized))).await?;
        *session = changed;
        Ok(normalized)
    }

    /// Reserves the memory of a request until the result is dropped.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Reservation> {
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(&self.tenant));
        reserved.add(bytes)?;
        Ok(reserved)
    }
}

/// Returns the cost of applying `splices`, in bytes that would take as long to convert.
fn splice_cost(text: &EditedText, splices: &[Splice]) -> usize {
    let added: usize = splices.iter().map(|splice| splice.text.len()).sum();
    added.saturating_add(text.moved_bytes(splices).saturating_add(added) / COPIED_BYTES)
}

/// The requests in progress. Dropping them cancels them.
#[derive(Default)]
pub(super) struct RunningRequests {
    tasks: JoinSet<Finished>,
    /// The requests in progress by their ids.
    requests: BTreeMap<u64, RunningRequest>,
    /// Requests that were started.
    started: u64,
}

/// The result of a request.
struct Finished {
    id: u64,
    serial: u64,
    result: Result<Event>,
}

/// A request in progress.
struct RunningRequest {
    /// Number among the session's requests: a client may use an id again.
    serial: u64,
    task: AbortHandle,
}

impl RunningRequests {
    /// Returns true if no request is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Fails if a request with this id may not begin.
    pub(super) fn check(&self, field: &'static str, id: u64) -> Result<()> {
        if self.requests.contains_key(&id) {
            return Err(Error::bad_option(field, id.to_string(), "an id that no request in progress has"));
        }
        if self.requests.len() >= MAX_REQUESTS {
            let what = "requests of an editing session";
            return Err(Error::TooMany { what, limit: MAX_REQUESTS, retry: RETRY });
        }
        Ok(())
    }

    /// Starts a request.
    pub(super) fn spawn(&mut self, id: u64, work: impl Future<Output = Result<Event>> + Send + 'static) {
        self.started += 1;
        let serial = self.started;
        let task = self.tasks.spawn(async move { Finished { id, serial, result: work.await } });
        self.requests.insert(id, RunningRequest { serial, task });
    }

    /// Cancels all requests. Returns their ids.
    pub(super) fn cancel_all(&mut self) -> Vec<u64> {
        let cancelled = std::mem::take(&mut self.requests);
        let cancel = |(id, request): (u64, RunningRequest)| {
            request.task.abort();
            id
        };
        cancelled.into_iter().map(cancel).collect()
    }

    /// Waits for the end of a request. Returns its id and result, or `None` for one that was cancelled. Does not return while no
    /// task is left. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<(u64, Result<Event>)> {
        match self.tasks.join_next().await {
            Some(ended) => self.take(ended),
            None => std::future::pending().await,
        }
    }

    fn take(&mut self, ended: Result<Finished, JoinError>) -> Option<(u64, Result<Event>)> {
        let Finished { id, serial, result } = match ended {
            Ok(finished) => finished,
            Err(error) if error.is_cancelled() => return None,
            Err(error) => {
                let panicked = self.requests.iter().find(|(_, request)| request.task.id() == error.id());
                let (&id, &RunningRequest { serial, .. }) = panicked?;
                let result = Err(Error::Internal("a request of an editing session panicked".into()));
                Finished { id, serial, result }
            }
        };
        if self.requests.get(&id).is_none_or(|request| request.serial != serial) {
            return None;
        }
        self.requests.remove(&id);
        Some((id, result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::v1::StaleRequest;

    fn event(id: u64) -> Event {
        Event::Stale(StaleRequest { id })
    }

    #[test]
    fn only_keystrokes_are_applied_at_once() {
        let cost = |bytes: usize, count: usize, added: usize| {
            let text = EditedText::new("a".repeat(bytes), 0, 1 << 22).unwrap();
            let splice = Splice { range: 0..0, text: "b".repeat(added) };
            splice_cost(&text, &vec![splice; count])
        };
        assert!(cost(500_000, 1, 1) < INLINE_BYTES && cost(1000, 256, 1) < INLINE_BYTES);
        for (bytes, count, added) in [(1 << 20, 1, 0), (10_000, 256, 64), (0, 1, INLINE_BYTES)] {
            assert!(cost(bytes, count, added) >= INLINE_BYTES, "{bytes} bytes, {count} splices of {added}");
        }
    }

    #[tokio::test]
    async fn a_request_that_was_overtaken_has_no_result() {
        let mut running = RunningRequests::default();
        running.spawn(1, async { Ok(event(1)) });
        // the task ends before it is cancelled, or not at all
        tokio::task::yield_now().await;
        running.spawn(2, std::future::pending());
        assert!(running.check("id", 2).is_err() && running.check("id", 3).is_ok());
        assert_eq!(running.cancel_all(), [1, 2]);
        assert!(running.is_empty());
        running.spawn(1, async { Ok(event(7)) });
        let mut results = Vec::new();
        for _ in 0..3 {
            results.extend(running.next().await);
        }
        assert!(matches!(&results[..], [(1, Ok(found))] if *found == event(7)), "{}", results.len());
        for id in 10..26 {
            running.spawn(id, std::future::pending());
        }
        assert!(running.check("id", 3).unwrap_err().to_string().contains("16"));
    }
}
