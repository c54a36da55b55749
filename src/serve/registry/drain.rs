//! How the server comes to an end: first it takes no new requests, then, after a while, it ends those that still run.
//!
//! Every request holds a [`Pass`]. Passes are at once what tells requests that they must end and what is counted to see
//! whether any still runs.

use crate::error::{Error, Result};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// When clients should try again elsewhere; a client that names several servers goes on to the next one by itself.
const RETRY: Duration = Duration::from_secs(1);

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Requests are taken.
    Open,
    /// Requests that run go on; new ones are refused.
    Draining,
    /// Requests that run are ended.
    Ending,
}

/// Where requests come in. Clones are the same gate.
#[derive(Debug, Clone)]
pub(in crate::serve) struct Gate(Arc<watch::Sender<Phase>>);

/// A request's permission to run; held until its answer is complete or dropped.
#[derive(Debug)]
pub(in crate::serve) struct Pass(watch::Receiver<Phase>);

impl Gate {
    /// An open gate.
    pub(in crate::serve) fn open() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Open)))
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// [`Error::Draining`] once the server is shutting down.
    pub(in crate::serve) fn enter(&self) -> Result<Pass> {
        // Counted first and looked up then: a request that comes while the gate closes is either seen or refused.
        let pass = Pass(self.0.subscribe());
        if *pass.0.borrow() == Phase::Open { Ok(pass) } else { Err(draining()) }
    }

    /// Lets no new requests in; gives those inside so long to finish, then ends them. Returns whether all finished by
    /// themselves.
    pub(in crate::serve) async fn close(&self, limit: Duration) -> bool {
        self.0.send_replace(Phase::Draining);
        let finished = tokio::time::timeout(limit, self.0.closed()).await.is_ok();
        self.0.send_replace(Phase::Ending);
        finished
    }
}

impl Pass {
    /// Waits until the request must end; returns what to answer.
    pub(in crate::serve) async fn ended(&mut self) -> Error {
        // The gate is gone together with the server.
        let _ = self.0.wait_for(|phase| *phase == Phase::Ending).await;
        draining()
    }
}

/// What is answered to whoever comes now.
pub(in crate::serve) fn draining() -> Error {
    Error::Draining { retry: RETRY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_inside_means_no_wait() {
        let gate = Gate::open();
        drop(gate.enter().unwrap());
        assert!(gate.close(Duration::from_secs(60)).await);
        assert!(matches!(gate.enter(), Err(Error::Draining { .. })));
    }

    #[tokio::test]
    async fn those_inside_may_finish() {
        let gate = Gate::open();
        let pass = gate.enter().unwrap();
        let closing = tokio::spawn({
            let gate = gate.clone();
            async move { gate.close(Duration::from_secs(60)).await }
        });
        while gate.enter().is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!closing.is_finished());
        drop(pass);
        assert!(closing.await.unwrap());
    }

    #[tokio::test]
    async fn those_that_do_not_are_told() {
        let gate = Gate::open();
        let mut pass = gate.enter().unwrap();
        assert!(!gate.close(Duration::ZERO).await);
        assert!(matches!(pass.ended().await, Error::Draining { .. }));
    }
}
