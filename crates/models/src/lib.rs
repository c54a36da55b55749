//! The models of [weir](https://docs.rs/weir): texts, checkpoints, layers, and one file for each model family.
//!
//! Reading order:
//!
//! - [`contract`]: what a model implements: its card, the state of a sequence, the three steps, the encoder of documents
//! - [`text`]: vocabularies, normalizers and tokenizers
//! - [`nn`]: layers of models: attention, position schemes, boundary predictors, pooling
//! - [`family`]: the families, each read top to bottom: `config.json`, weights, state, steps, loading
//! - [`checkpoint`]: reads and writes the files of a checkpoint; [`load`] builds a model from them
//! - [`convert`]: turns checkpoints of other projects into weir's
//! - [`ngrams`]: the table of n-grams from which speculation guesses; [`random`]: draws as a function of seed and position
//! - [`usage`]: what a request cost, counted by models and engine

pub mod checkpoint;
pub mod contract;
pub mod convert;
pub mod family;
pub mod load;
pub mod ngrams;
pub mod nn;
pub mod random;
pub mod text;
pub mod usage;
