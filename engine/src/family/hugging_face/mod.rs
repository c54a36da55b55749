//! Hugging Face checkpoints, computed with candle: subword models that people already have.
//!
//! Data flow: `config.json`'s `model_type` selects an architecture, which names its tensors and builds
//! a network from them. A step runs each row by itself through the network, in blocks of at most `BLOCK` tokens, and
//! stores keys and values, or a recurrent state, as candle's tensors in the row's state.
//!
//! The networks are written with candle-core and candle-nn. The models of candle-transformers return the last token's logits only and
//! keep their caches private, so they can neither score a text in chunks nor be forked, rolled back and measured.
//!
//! Reading order: `transformer` (the interfaces of an architecture, and the network that most of them share), the files of the
//! architectures, [`memory`] (one sequence), [`model`] (the table of architectures, the three steps, loading).

mod architectures;
mod gpt_bigcode;
mod mamba;
pub mod memory;
pub mod model;
mod transformer;
