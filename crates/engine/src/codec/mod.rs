//! Lossless compression: a range coder, whose symbols' frequencies come from the model's logits.
//!
//! 1. [`coder`]: a block to compress or decompress, the rule that turns logits into integers, and the entropy coder of a block. A
//!    [session](super::session) feeds the block to a row.
//! 2. [`mod@format`]: the bytes of a text to symbols and back, in bounded memory; the format of compressed data; and a text or its data as
//!    a stream of blocks.
//!
//! The decompressor computes the logits of each symbol again, one symbol at a time. It gets the same text only if these logits
//! are the same bits, so the model must be [`Exactness::Bitwise`](weir_models::contract::Exactness).

pub mod coder;
pub mod format;

pub use crate::codec::{
    coder::{Code, CodeInput, Coded, DEFAULT_BLOCK, MAX_BLOCK, default_windows},
    format::{BlockStream, CompressOptions, Compressor, Decompressor, Totals},
};
