//! Files of weir's source, compiled with the locks, atomics and threads of `shuttle`. Its scheduler decides at each operation which
//! thread goes on, so that the tests try thousands of interleavings and can repeat one that fails.
//!
//! weir itself takes the same names from the standard library (`crates/kernels/src/sync.rs`). This package is separate, so that it
//! builds in seconds.

#![allow(dead_code, unused_imports, reason = "the tests use a part of each file")]
#![allow(missing_docs, reason = "the files are documented in weir")]

// The files of weir-engine name weir-kernels, whose modules are also in this package.
extern crate self as weir_kernels;

#[path = "../../../crates/engine/src/accounting.rs"]
mod accounting;
mod clock;
pub mod error;
mod memory;
#[path = "../../../crates/kernels/src/pages.rs"]
pub mod pages;
#[path = "../../../crates/kernels/src/pool.rs"]
pub mod pool;
#[path = "../../../crates/engine/src/scheduler/mod.rs"]
mod scheduler;
#[path = "../../../crates/engine/src/state.rs"]
mod state;
#[path = "../../../crates/engine/src/step_times.rs"]
mod step_times;
pub mod sync;

use scheduler::{
    Rules, WorkDone,
    tenants::{Beginning, Demand},
};
use state::Phase;
use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// The engine's wake signal, for tests outside of the engine.
#[derive(Clone, Default)]
pub struct WakeSignal(Arc<state::WakeSignal>);

impl WakeSignal {
    pub fn raise(&self) {
        self.0.raise();
    }

    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    pub fn wait(&self, limit: Option<Duration>) {
        self.0.wait(limit);
    }

    pub fn poll_wait(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_wait(cx)
    }
}

/// The state that the handles and the worker of an engine share. A request is a number.
#[derive(Clone)]
pub struct SharedState(Arc<state::SharedState<usize>>);

/// Requests that the worker took out of the queue.
pub struct Taken {
    /// Requests that ran.
    pub ran: Vec<usize>,
    /// Requests that the closed engine ended.
    pub ended: Vec<usize>,
    pub is_closed: bool,
}

impl SharedState {
    /// Creates the state of an engine with `rows` rows and at most `queue` waiting requests.
    pub fn new(rows: usize, queue: usize) -> Self {
        Self(Arc::new(state::SharedState::new(Rules::new(rows, queue, 100, 100, 1))))
    }

    /// Queues a request. Returns false if it is rejected.
    pub fn submit(&self, request: usize, tenant: &str) -> bool {
        self.submit_all([request], tenant) == 1
    }

    /// Queues requests at once, up to the first that is rejected. Returns how many are queued.
    pub fn submit_all(&self, requests: impl IntoIterator<Item = usize>, tenant: &str) -> usize {
        let demand = Demand {
            tenant: tenant.into(),
            symbols: 1,
            uncached: 1,
            beginning: Beginning::default(),
            bytes: 1,
            rows: 1,
        };
        let requests = requests.into_iter().map(|request| (request, demand.clone()));
        self.0.enqueue_all(requests, 0, false, None).0
    }

    /// Rejects new requests.
    pub fn drain(&self) {
        self.0.lock().advance_to(Phase::Draining);
    }

    pub fn close(&self) {
        self.0.close();
    }

    /// Runs everything that is admitted, or ends everything once the engine is closed. Requests admitted meanwhile run the next
    /// time.
    pub fn work(&self) -> Taken {
        let mut state = self.0.lock();
        if state.phase >= Phase::Closed {
            return Taken { ran: Vec::new(), ended: state.scheduler.clear().collect(), is_closed: true };
        }
        let admitted: Vec<_> = state.scheduler.admitted.drain(..).collect();
        drop(state);
        let mut ran = Vec::new();
        for (request, permit) in admitted {
            ran.push(request);
            self.0.lock().scheduler.finish(permit, WorkDone::default());
        }
        Taken { ran, ended: Vec::new(), is_closed: false }
    }

    /// Waits until there may be more work.
    pub fn wait(&self) {
        self.0.wake_signal.wait(None);
    }
}
