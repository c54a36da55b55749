//! The server's shutdown: it first rejects new requests, and after a time limit ends those that still run.
//!
//! Every request holds a [`RequestPermit`], which notifies the request of the end. The shutdown waits until no permit exists.

use crate::error::{Error, Result};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Delay after which clients should retry elsewhere. A client with several servers tries the next one by itself.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Admits requests until the shutdown. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// True once new requests are rejected. Each permit has a receiver, so this also counts the running requests.
    closed: Arc<watch::Sender<bool>>,
    /// Cancelled when running requests must end.
    ended: CancellationToken,
}

/// A request's permission to run, held until its response is complete or dropped.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    _running: watch::Receiver<bool>,
    ended: CancellationToken,
}

impl Gate {
    /// Returns an open gate.
    pub(crate) fn open() -> Self {
        Self { closed: Arc::new(watch::Sender::new(false)), ended: CancellationToken::new() }
    }

    /// Admits a request. Fails with [`Error::Draining`] once the server is shutting down.
    pub(crate) fn enter(&self) -> Result<RequestPermit> {
        // The permit is counted before the check: a request that arrives during `close` is either waited for or rejected.
        let running = self.closed.subscribe();
        let is_closed = *running.borrow();
        if is_closed {
            Err(draining_error())
        } else {
            Ok(RequestPermit { _running: running, ended: self.ended.clone() })
        }
    }

    /// Waits until the server begins to shut down. The future counts as a running request.
    pub(crate) fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.closed.subscribe();
        async move {
            // An error means that the server is gone.
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    /// Rejects new requests, and waits up to `limit` for running ones. Returns true if all have finished.
    pub(crate) async fn close(&self, limit: Duration) -> bool {
        self.closed.send_replace(true);
        tokio::time::timeout(limit, self.closed.closed()).await.is_ok()
    }

    /// Ends the requests that still run.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}

impl RequestPermit {
    /// Waits until the request must end. Returns the error to send.
    pub(crate) async fn ended(&self) -> Error {
        self.ended.cancelled().await;
        draining_error()
    }
}

/// Returns the error for requests that arrive during the shutdown.
pub(crate) fn draining_error() -> Error {
    Error::Draining { retry: RETRY_DELAY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_idle_gate_closes_at_once() {
        let gate = Gate::open();
        drop(gate.enter().unwrap());
        assert!(gate.close(Duration::from_secs(60)).await);
        assert!(matches!(gate.enter(), Err(Error::Draining { .. })));
    }

    #[tokio::test]
    async fn running_requests_may_finish() {
        let gate = Gate::open();
        let permit = gate.enter().unwrap();
        let closing = tokio::spawn({
            let gate = gate.clone();
            async move { gate.close(Duration::from_secs(60)).await }
        });
        while gate.enter().is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!closing.is_finished());
        drop(permit);
        assert!(closing.await.unwrap());
    }

    #[tokio::test]
    async fn requests_that_do_not_finish_are_ended() {
        let gate = Gate::open();
        let permit = gate.enter().unwrap();
        assert!(!gate.close(Duration::ZERO).await);
        gate.end();
        assert!(matches!(permit.ended().await, Error::Draining { .. }));
    }
}
