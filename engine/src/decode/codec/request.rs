//! A request to compress or decompress one block.

use super::{coder::BlockCoder, frequencies::MAX_ALPHABET};
use crate::{
    decode::{
        contract::{BoundaryOptions, Card, Exactness, Noise},
        options::{WindowOptions, within},
    },
    error::{Error, Result},
};

/// Maximum symbols of a block.
pub const MAX_BLOCK: usize = 1 << 20;
/// Default maximum of a block.
pub const DEFAULT_BLOCK: usize = 1 << 16;
/// Maximum bytes that a block of `symbols` symbols compresses to: 24 bits a symbol, and
/// the words that the coder ends with.
pub fn max_block_bytes(symbols: usize) -> usize {
    3 * symbols + 16
}

/// A block to compress or decompress.
#[derive(Debug, Clone, PartialEq)]
pub struct Code {
    /// The block.
    pub input: CodeInput,
    /// The windows in which the model reads the block, as it does for [`Score`](crate::decode::options::Score).
    pub windows: WindowOptions,
}

/// One side of a block.
#[derive(Debug, Clone, PartialEq)]
pub enum CodeInput {
    /// Symbols to compress.
    Compress(Vec<u32>),
    /// Data to decompress.
    Decompress {
        /// The number of symbols that the data stand for.
        symbols: usize,
        /// The data.
        data: Vec<u8>,
    },
}

impl Code {
    /// Checks the model, the block and the windows. Fails with [`Error::WrongKind`], [`Error::BadOption`] or
    /// [`Error::UnknownSymbol`].
    pub fn validate(&self, card: &Card) -> Result<()> {
        check_model("the codec", card)?;
        self.windows.validate(card)?;
        match &self.input {
            CodeInput::Compress(symbols) => {
                within("block", symbols.len(), 1..=MAX_BLOCK)?;
                card.vocabulary.check_text("text", symbols)
            }
            CodeInput::Decompress { symbols, data } => {
                within("block", *symbols, 1..=MAX_BLOCK)?;
                within("data", data.len(), 0..=max_block_bytes(*symbols))
            }
        }
    }

    /// Returns the number of symbols of the block.
    pub fn symbols(&self) -> usize {
        match &self.input {
            CodeInput::Compress(symbols) => symbols.len(),
            CodeInput::Decompress { symbols, .. } => *symbols,
        }
    }

    /// Returns the block's length in symbols, its known symbols, and its coder. Fails as [`BlockCoder::decoder`] does.
    pub(in crate::decode) fn begin(self, card: &Card) -> Result<(usize, Vec<u32>, BlockCoder)> {
        match self.input {
            CodeInput::Compress(symbols) => Ok((symbols.len(), symbols, BlockCoder::encoder(card))),
            CodeInput::Decompress { symbols, data } => {
                Ok((symbols, Vec::with_capacity(symbols), BlockCoder::decoder(card, &data)?))
            }
        }
    }
}

/// Returns the boundary options of a block: the model's first boundary mode, and a fixed seed if boundaries are sampled.
pub(in crate::decode) fn boundaries() -> BoundaryOptions {
    BoundaryOptions { mode: None, noise: Noise::Seeded(0), offset: 0 }
}

/// Returns the windows in which a model reads a block by default: twice its training length, of which it predicts three quarters.
pub fn default_windows(card: &Card) -> WindowOptions {
    let length = card.training_length.saturating_mul(2).clamp(1, card.max_symbols);
    WindowOptions { length, stride: (length / 4 * 3).max(1) }
}

/// Rejects a model whose bits may differ between two computations of one text, and one with too many symbols. `call` names the
/// call in errors.
pub fn check_model(call: &'static str, card: &Card) -> Result<()> {
    let wrong = |wanted, found| Err(Error::WrongKind { call, model: card.name.clone(), wanted, found });
    if card.exactness != Exactness::Bitwise {
        return wrong(
            "computes the same bits in every batch (exactness `bitwise`)",
            format!("one whose exactness is {}", card.exactness),
        );
    }
    if card.vocabulary.is_subword() {
        return wrong("reads characters or bytes", format!("one that reads subwords: {}", card.shape));
    }
    let count = card.vocabulary.text_ids().count();
    if count > MAX_ALPHABET {
        return wrong("has at most 65536 symbols", format!("one with {count}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextNormaliser, Vocabulary};

    #[test]
    fn only_models_with_the_same_bits_are_accepted() {
        let card = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
        check_model("Compress", &card).unwrap();
        let within = Card { exactness: Exactness::Within(1e-4), ..card };
        let message = check_model("Compress", &within).unwrap_err().to_string();
        assert!(message.starts_with("model: expected one that computes the same bits in every batch"), "{message}");
        assert!(message.ends_with("found \"m\", one whose exactness is within 0.0001"), "{message}");
    }

    #[test]
    fn windows_fit_the_model() {
        let card = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
        for (training_length, max_symbols) in [(8, 100), (1, 1), (8, 9), (1 << 20, 300)] {
            let card = Card { training_length, max_symbols, ..card.clone() };
            default_windows(&card).validate(&card).unwrap();
        }
    }
}
