//! Many sequences on one device: queue, admission, the worker thread that owns the rows, and the handle that others hold.
//!
//! [`handle`] is what `serve` and the command line see. Behind it, in the order in which a job meets them: `worker` (the
//! desk and the loop), `queue` (who runs, who waits), [`cache`] (states of texts that were computed before), `batch` (the
//! running rows and one step of them), `outlet` (the way back to the reader); and what they measure and sleep with: `pace`,
//! `stopwatch`, `signal`.

mod batch;
pub mod cache;
pub mod handle;
mod outlet;
mod pace;
mod queue;
mod signal;
mod stopwatch;
mod worker;
