//! Many sequences on one device: queue, admission, the worker thread that owns the rows, and the handle that others hold.
//!
//! [`handle`] is what `serve` and the command line see. Behind it, in the order in which a job meets them: `worker` (the
//! loop), `desk` (where jobs are left, and by which rules they are taken), `scheduler` (who runs, who waits, what a step
//! feeds), [`cache`] (states of texts that were computed before), `batch` (the running rows and one step of them), `outlet`
//! (the way back to the reader); and what they measure and sleep with: `pace`, `stopwatch`, `heartbeat`, `signal`. Who wants
//! to measure the engine gives it an [`observer`], and reads its [`tally`].

mod batch;
pub mod cache;
mod desk;
pub mod handle;
mod heartbeat;
pub mod observer;
mod outlet;
mod pace;
mod scheduler;
mod signal;
mod stopwatch;
mod store;
pub mod tally;
mod task;
mod worker;
