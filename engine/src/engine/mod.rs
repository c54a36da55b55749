//! The serving engine: queue, scheduler, caches, and the worker thread that steps many sequences together on one device.
//!
//! # Map, in the order in which a request meets it
//!
//! | module | contents |
//! |---|---|
//! | `api` | value types that callers and the engine exchange: limits, requests, terms, events |
//! | `handle` | [`Handle`]: starts the worker, validates and queues requests, reports the engine's state |
//! | `jobs` | turns a request about a text into the session that runs it, within the limits |
//! | [`editing`] | the session of a document that a client edits: its completions and scores run as requests |
//! | `session_symbols` | the symbols of an edited document, which its searches share |
//! | `distribution_cache` | the distributions that the last searches of an edited document computed |
//! | `shared` | what the handles and the worker share: model, caches, totals, and the locked state |
//! | `state` | the locked state: the queue, the measured rates and the phase |
//! | `worker` | the loop of the worker thread: end, admit, plan, step |
//! | `scheduler` | which requests run, wait and are preempted, and what each step feeds; pure, without clock or tensors |
//! | `request` | one request from its arrival to its end: text or summary, document upload, event channel, timing |
//! | `batch` | the running rows and one step of them |
//! | `recovery` | what a panic of the worker ends, and how often the worker may start over |
//! | [`cache`] | the segment cache (prefixes of texts) and the document cache (encoded documents) |
//! | [`calibration`] | step times measured at load, from which the time without pooling is estimated |
//! | `clock` | the clock of engine and server, which a simulation replaces |
//! | `wake` | the signal that wakes the worker, and its heartbeat |
//! | `accounting` | checked arithmetic for what requests and cache entries hold |
//! | `counters`, [`observer`] | totals since start, and callbacks while the engine runs |

pub mod accounting;
mod api;
mod batch;
pub mod cache;
pub mod calibration;
pub mod clock;
mod counters;
mod distribution_cache;
pub mod editing;
mod handle;
mod jobs;
pub mod observer;
mod recovery;
mod request;
mod scheduler;
mod session_symbols;
mod shared;
mod state;
mod wake;
mod worker;

pub use api::{DocumentEvent, Event, Events, Job, Limits, Load, Terms};
pub use counters::Counters;
pub use handle::Handle;
pub use request::upload::{DocumentSource, DocumentUpload, IncomingDocument};
pub use scheduler::PRIORITIES;
pub use state::Phase;
pub use worker::WorkerTask;
