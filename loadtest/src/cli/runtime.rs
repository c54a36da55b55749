//! Runtime that requests run on.

use crate::error::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// Maximum threads.
const MAX_THREADS: usize = 256;

/// Builds a runtime of `threads` threads.
pub(super) fn runtime(threads: usize) -> Result<Runtime> {
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(Error::option("--threads", threads, format!("from 1 to {MAX_THREADS}")));
    }
    let built = if threads == 1 {
        Builder::new_current_thread().enable_all().build()
    } else {
        Builder::new_multi_thread().worker_threads(threads).enable_all().build()
    };
    built.map_err(|error| Error::Internal(format!("cannot start the network threads: {error}")))
}
