//! The contract between models and engine, and the life of one sequence.
//!
//! Reading order:
//!
//! 1. What a model implements: [`contract`], the [`state`] of a sequence, its segment [`boundary`] options, its [`cost`];
//!    [`document`] for encoder-decoder models.
//! 2. What a request contains and reports: [`options`], a [`finish_reason`], their [`defaults`] (`from_text` applies them), [`stop_strings`], [`usage`];
//!    [`summary`] for summaries, [`long_documents`] for those of documents that are too long to be read at once.
//! 3. One request: [`session`] feeds the `prompt`, then runs the `generation` with a [`sampling`] policy. [`trace`] encodes
//!    symbols with their boundaries, [`text_window`] holds the text, whose beginning may be a [`shared_prefix`] of several
//!    requests ([`symbol_slices`]), [`replay`] computes where a lost row starts again, `resumed` holds the text after which a
//!    broken stream goes on, `run_alone` runs a session without an engine. [`speculation`] drafts symbols that a session feeds
//!    before they are sampled.
//! 4. Policies for many rows: [`boundary_wait`] (when waiting rows run their segment step), [`beam`] search.
//! 5. Tools on top: [`evaluate`] scores texts, [`completion`] ranks continuations (with a [`next_symbol`] request each) of an
//!    [`edited_text`], whose symbols an [`encoded_text`] keeps, [`codec`] compresses them, [`spans`] maps kept vectors to the
//!    document's text.

pub mod beam;
pub mod boundary;
pub mod boundary_wait;
pub mod codec;
pub mod completion;
pub mod contract;
pub mod cost;
pub mod defaults;
pub mod document;
pub mod edited_text;
pub mod encoded_text;
pub mod evaluate;
pub mod finish_reason;
mod from_text;
mod generation;
pub mod long_documents;
pub mod next_symbol;
pub mod options;
mod prompt;
pub mod random;
pub mod replay;
mod resumed;
mod run_alone;
pub mod sampling;
pub mod search_rules;
pub mod session;
pub mod shared_prefix;
pub mod spans;
pub mod speculation;
pub mod state;
pub mod stop_strings;
pub mod summary;
pub mod symbol_slices;
pub mod text_window;
mod token_text;
pub mod trace;
pub mod usage;
