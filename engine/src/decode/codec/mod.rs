//! Lossless compression: a range coder, whose symbols' frequencies come from the model's logits.
//!
//! 1. `frequencies`: the rule that turns logits into integers, and [`coder`]: the entropy coder of a block.
//! 2. [`request`]: a block to compress or decompress. A [session](super::session) feeds it to a row.
//! 3. [`text`]: the bytes of a text to symbols and back, in bounded memory.
//! 4. [`container`]: the format of compressed data, and [`stream`]: a text or its data as a stream of blocks.
//!
//! The decompressor computes the logits of each symbol again, one symbol at a time. It gets the same text only if these logits
//! are the same bits, so the model must be [`Exactness::Bitwise`](super::contract::Exactness).

mod buffer;
pub mod coder;
pub mod container;
mod frequencies;
pub mod request;
pub mod stream;
pub mod text;

pub use coder::Coded;
pub use request::{Code, CodeInput, DEFAULT_BLOCK, MAX_BLOCK, default_windows};
pub use stream::{BlockStream, CompressOptions, Compressor, Decompressor, Totals};
