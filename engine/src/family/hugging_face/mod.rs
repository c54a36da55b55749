//! Hugging Face checkpoints, computed with candle: subword models that people already have.
//!
//! Data flow: `config.json`'s `model_type` selects an architecture, which names its tensors and builds
//! a network from them. A step runs each row by itself through the network, in blocks of at most [`BLOCK`](memory::BLOCK) tokens, and
//! stores keys and values, or a recurrent state, as candle's tensors in the row's state.
//!
//! The networks are written with candle-core and candle-nn. The models of candle-transformers return the last token's logits only and
//! keep their caches private, so they can neither score a text in chunks nor be forked, rolled back and measured.
//!
//! Reading order: `architecture` and its `table`, `transformer` with `attention` and `rotary`, and the files of the architectures;
//! [`memory`] and [`state`] (one sequence); [`model`] (the three steps); [`blueprint`] (loading). `device` selects where candle runs.

mod architecture;
mod attention;
pub mod blueprint;
mod device;
mod gemma2;
mod gpt_bigcode;
mod keys;
mod layers;
mod llama;
mod mamba;
pub mod memory;
pub mod model;
mod qwen2;
mod qwen3;
mod rotary;
pub mod state;
mod table;
mod transformer;
