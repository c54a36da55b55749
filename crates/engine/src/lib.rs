//! The engine of [weir](https://docs.rs/weir): a queue, a scheduler, caches, and the worker thread that steps many sequences together
//! on one device.
//!
//! In the order in which a request meets them:
//!
//! - `api`: what callers and the engine exchange: limits, jobs, terms, events
//! - [`options`]: what a request may ask for, within which bounds
//! - `engine`: starts the worker, validates and queues requests, reports the engine's state
//! - `state`: the locked state: the queue, the measured rates, the phase, and the signal that wakes the worker;
//!   `tests/interleavings/` compiles this file with other locks
//! - `worker`: the loop of the worker thread: end, admit, plan, step
//! - `scheduler`: which requests run, wait and are preempted, and what each step feeds; pure, without clock or tensors
//! - `request`, `document_request`: a running text or summary: its status, timing and event channel
//! - `batch`: the running rows, and one step of them
//! - [`session`]: one sequence: feeds the prompt, samples, stops; [`sampling`], [`beam`], [`speculation`] are its policies
//! - [`constraint`]: the form that a text must have: which symbols may follow; `pattern` has regular expressions, and
//!   `json_schema` the schemas that their parser would misread
//! - [`cache`]: the segment cache (beginnings of texts) and the document cache (encoded documents)
//! - [`text_window`]: the text of a sequence, of which a beginning may be shared or dropped
//! - [`editing`]: the session of a document that a client edits; [`edited_text`] holds it, [`completion`] ranks continuations
//! - [`check`]: finds misspelt words of a text; `spelling` has the spellings that it tries
//! - [`score`], [`summary`], [`codec`]: what runs on top: scores of texts, summaries of documents, compression
//! - [`extract`]: the sentences of a document that its decoder attends to most
//! - [`calibration`], `step_times`: step times, measured at load and while serving
//! - [`observer`]: totals since start, and callbacks while the engine runs
//! - [`clock`]: the clock of engine and server, which a simulation replaces; [`accounting`]: checked arithmetic of memory

pub mod accounting;
mod api;
mod batch;
pub mod beam;
pub mod cache;
pub mod calibration;
pub mod check;
pub mod clock;
pub mod codec;
pub mod completion;
pub mod constraint;
mod document_request;
pub mod edited_text;
pub mod editing;
mod engine;
pub mod extract;
mod json_schema;
pub mod observer;
pub mod options;
mod pattern;
mod request;
pub mod sampling;
mod scheduler;
pub mod score;
pub mod session;
pub mod speculation;
mod spelling;
mod state;
mod step_times;
pub mod summary;
pub mod text_window;
mod worker;

pub use crate::{
    api::{DocumentEvent, Event, Events, Job, Limits, Load, Terms},
    document_request::{DocumentSource, DocumentUpload, IncomingDocument},
    engine::Handle,
    observer::Counters,
    scheduler::tenants::PRIORITIES,
    state::Phase,
    worker::WorkerTask,
};
