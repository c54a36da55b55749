//! The contract between models and engine, and the life of one sequence.
//!
//! Reading order:
//!
//! 1. [`contract`]: what a model implements, the state of a sequence, its segment boundaries, when waiting rows run their segment step,
//!    its cost; the encoder of documents for encoder-decoder models. [`random`]: the draws of a request.
//! 2. What a request contains and reports: [`options`], [`usage`]; [`summary`] for summaries, also of documents that are too long to
//!    be read at once, and for the parts of a text that a pooling kept.
//! 3. One request: [`session`] feeds the prompt, then generates with a [`sampling`] policy; it may resume a broken stream, or run
//!    without an engine. [`text_window`] holds the text, whose beginning several requests may share. [`speculation`] drafts symbols
//!    that a session feeds before they are sampled.
//! 4. [`beam`] search, for several rows.
//! 5. Tools on top: [`evaluate`] scores texts, [`completion`] ranks continuations (with a [`next_symbol`] request each) of an
//!    [`edited_text`], [`codec`] compresses texts.

pub mod beam;
pub mod codec;
pub mod completion;
pub mod contract;
pub mod edited_text;
pub mod evaluate;
pub mod next_symbol;
pub mod ngrams;
pub mod options;
pub mod random;
pub mod sampling;
pub mod session;
pub mod speculation;
pub mod summary;
pub mod text_window;
mod token_text;
pub mod usage;

// Names of modules that other rooms still use.
pub use contract as boundary;
pub use contract as boundary_wait;
pub use contract as cost;
pub use contract as defaults;
pub use contract as document;
pub use contract as replay;
pub use contract as search_rules;
pub use contract as state;
pub use contract as trace;
pub use edited_text as encoded_text;
pub use options as finish_reason;
pub use sampling as stop_strings;
pub use summary as long_documents;
pub use summary as spans;
pub use text_window as shared_prefix;
pub use text_window as symbol_slices;
