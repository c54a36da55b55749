//! Files of weir's source, compiled with the locks, atomics and threads of `shuttle`. Its scheduler decides at each operation which
//! thread goes on, so that the tests try thousands of interleavings and can repeat one that fails.
//!
//! weir itself takes the same names from the standard library (`src/sync.rs`). This crate is separate, so that it builds in seconds.

#![allow(dead_code, reason = "the tests use a part of each file")]
#![allow(missing_docs, reason = "the files are documented in weir")]

pub mod error;
pub mod sync;

pub mod kernels {
    #[path = "../../../src/kernels/disjoint.rs"]
    mod disjoint;
    pub mod memory;
    #[path = "../../../src/kernels/pages.rs"]
    pub mod pages;
    #[path = "../../../src/kernels/pool.rs"]
    mod pool;

    pub use pool::ThreadPool;
}

pub mod engine {
    mod clock;
    #[path = "../../../src/engine/wake.rs"]
    mod wake;

    use std::{
        sync::Arc,
        task::{Context, Poll, Waker},
        time::Duration,
    };

    /// The engine's wake signal, for tests outside of the engine.
    #[derive(Clone, Default)]
    pub struct WakeSignal(Arc<wake::WakeSignal>);

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
}
