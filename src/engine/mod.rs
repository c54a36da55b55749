//! Many sequences on one device: queue, admission, the worker thread that owns the rows, and the handle that others hold.
//!
//! [`handle`] is what `serve` and the command line see. Behind it, in the order in which a job meets them: `worker` (the
//! loop), `desk` (where jobs are left, and by which rules they are taken), `scheduler` (who runs, who waits, what a step
//! feeds), [`cache`] (states of texts that were computed before), `batch` (the running rows and one step of them), `outlet`
//! (the way back to the reader). A job is about a text, or about a document: `summary` (its life), `upload` (how it arrives),
//! [`shelf`] (documents that were encoded before), `seats` (whose rows are whose, since one may have several). And what they measure and sleep with: `pace`, `stopwatch`, `heartbeat`, `signal`. [`calibration`]
//! tells what steps would have taken without pooling. Who wants
//! to measure the engine gives it an [`observer`], and reads its [`tally`].

mod batch;
pub mod cache;
pub mod calibration;
mod desk;
pub mod handle;
mod heartbeat;
pub mod observer;
mod outlet;
mod pace;
mod scheduler;
mod seats;
pub mod shelf;
mod signal;
mod stopwatch;
mod store;
mod summary;
pub mod tally;
mod task;
mod upload;
mod worker;
