//! Lossless compression: a range coder, whose symbols' frequencies come from the model's logits. [`coder`] codes a block in a
//! [session](super::session); [`mod@format`] turns a text or its data into a stream of blocks.
//!
//! The decompressor computes the logits of each symbol again, one symbol at a time, and needs the same bits: the model must be
//! [`Exactness::Bitwise`](weir_models::contract::Exactness).

pub mod coder;
pub mod format;

pub use crate::codec::coder::{Code, CodeInput, Coded, CodingProgress, DEFAULT_BLOCK, MAX_BLOCK, default_windows};
pub use crate::codec::format::{BlockStream, CompressOptions, Compressor, Decompressor, Totals};
