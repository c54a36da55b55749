//! The serving engine: queue, scheduler, caches, and the worker thread that steps many sequences together on one device.
//!
//! # Map, in the order in which a request meets it
//!
//! | module | contents |
//! |---|---|
//! | `api` | value types that callers and the engine exchange: limits, requests, terms, events; opens the session of a request |
//! | `handle` | [`Handle`]: starts the worker, validates and queues requests, reports the engine's state |
//! | [`editing`] | the session of a document that a client edits: its completions and scores run as requests |
//! | `state` | the locked state: the queue, the step times and the phase; the signal that wakes the worker, and its heartbeat |
//! | `worker` | the loop of the worker thread: end, admit, plan, step |
//! | `scheduler` | which requests run, wait and are preempted, and what each step feeds; pure, without clock or tensors |
//! | `request`, `document_request` | one request from its arrival to its end: status, event channel, timing; encoding and upload of a document |
//! | `batch` | the running rows and one step of them; what handles and worker share |
//! | [`cache`] | the segment cache (prefixes of texts) and the document cache (encoded documents) |
//! | [`step_times`] | how long steps take: for step sizes, deadlines, drafts, and the estimate of the time without pooling |
//! | [`calibration`] | step times measured at load, from which the time without pooling is estimated |
//! | `clock` | the clock of engine and server, which a simulation replaces |
//! | `accounting` | checked arithmetic for what requests and cache entries hold |
//! | [`observer`] | the events that an engine measures, and their totals |

pub mod accounting;
mod api;
mod batch;
pub mod cache;
pub mod calibration;
pub mod clock;
mod document_request;
pub mod editing;
mod handle;
pub mod observer;
mod request;
mod scheduler;
mod state;
pub mod step_times;
mod worker;

pub use api::{DocumentEvent, Event, Events, Job, Limits, Load, Terms};
pub use document_request::{DocumentSource, DocumentUpload, IncomingDocument};
pub use handle::Handle;
pub use observer::Counters;
pub use scheduler::PRIORITIES;
pub use state::Phase;
pub use worker::WorkerTask;
