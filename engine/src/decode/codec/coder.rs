//! The entropy coder of one block: a range coder with 32-bit words, from the crate `constriction`.

use super::frequencies::{Frequencies, PRECISION};
use crate::{
    decode::{contract::Card, symbol_slices::SymbolSlices},
    error::{Error, Result},
};
use constriction::stream::{
    Decode, Encode,
    queue::{DefaultRangeDecoder, DefaultRangeEncoder},
};

/// Bytes of a word of the coder.
const WORD: usize = size_of::<u32>();

/// Codes the symbols of one block in order.
#[derive(Debug, Clone)]
pub(in crate::decode) struct BlockCoder {
    frequencies: Frequencies,
    coder: Coder,
}

#[derive(Debug, Clone)]
enum Coder {
    Encoder(DefaultRangeEncoder),
    Decoder(DefaultRangeDecoder),
}

/// A coded block: the result of a [`Code`](super::Code) request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coded {
    /// The data of a compressed block.
    Data(Vec<u8>),
    /// The symbols of a decompressed block.
    Symbols(Vec<u32>),
}

impl BlockCoder {
    /// Creates a coder that compresses symbols of the model's texts.
    pub(super) fn encoder(card: &Card) -> Self {
        Self { frequencies: frequencies(card), coder: Coder::Encoder(DefaultRangeEncoder::new()) }
    }

    /// Creates a coder that decompresses `data`. Fails with [`Error::Damaged`] if the data are not whole words.
    pub(super) fn decoder(card: &Card, data: &[u8]) -> Result<Self> {
        let (words, rest) = data.as_chunks::<WORD>();
        if !rest.is_empty() {
            return Err(damaged("a multiple of four bytes", format!("{} bytes", data.len())));
        }
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let coder = DefaultRangeDecoder::from_compressed(words).unwrap_or_else(|never| match never {});
        Ok(Self { frequencies: frequencies(card), coder: Coder::Decoder(coder) })
    }

    pub(in crate::decode) fn is_decoder(&self) -> bool {
        matches!(self.coder, Coder::Decoder(_))
    }

    /// Compresses `symbol`, or decompresses one; returns the symbol. `logits` (V) predict it; without them, all text symbols are
    /// equally probable. Fails with [`Error::Internal`] for invalid logits, and if there is no symbol to compress.
    pub(in crate::decode) fn code(&mut self, symbol: Option<u32>, logits: Option<&[f32]>) -> Result<u32> {
        if let Some(logits) = logits {
            self.frequencies.set(logits)?;
        }
        let model = &self.frequencies;
        match (&mut self.coder, symbol) {
            (Coder::Encoder(encoder), Some(symbol)) => {
                let encoded = Encode::<PRECISION>::encode_symbol(encoder, symbol, model);
                encoded.map_err(|error| Error::Internal(format!("symbol {symbol}: {error}")))?;
                Ok(symbol)
            }
            (Coder::Decoder(decoder), _) => {
                let decoded = Decode::<PRECISION>::decode_symbol(decoder, model);
                decoded.map_err(|_| damaged("data of the entropy coder", "other data".into()))
            }
            (Coder::Encoder(_), None) => Err(Error::Internal("there is no symbol to compress".into())),
        }
    }

    /// Ends the block, whose symbols are `symbols`. Fails with [`Error::Damaged`] if data are left that no symbol needs.
    pub(in crate::decode) fn finish(self, symbols: SymbolSlices<'_>) -> Result<Coded> {
        match self.coder {
            Coder::Encoder(encoder) => {
                let words = encoder.into_compressed().unwrap_or_else(|never| match never {});
                Ok(Coded::Data(words.into_iter().flat_map(u32::to_le_bytes).collect()))
            }
            Coder::Decoder(decoder) if decoder.maybe_exhausted() => Ok(Coded::Symbols(symbols.to_vec())),
            Coder::Decoder(_) => {
                let expected = format!("the data of {} symbols", symbols.len());
                Err(damaged(expected, "more data".into()))
            }
        }
    }
}

fn frequencies(card: &Card) -> Frequencies {
    Frequencies::new(card.vocabulary.text_ids().collect())
}

fn damaged(expected: impl Into<String>, found: String) -> Error {
    Error::Damaged { what: "a block", expected: expected.into(), found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextNormaliser, Vocabulary};

    fn card() -> Card {
        Card::for_tests(Vocabulary::byte_level(TextNormaliser::None))
    }

    /// Returns logits that depend on the position.
    fn logits(position: usize) -> Vec<f32> {
        (0..256).map(|symbol| ((symbol * 37 + position * 101) % 97) as f32 / 9.0).collect()
    }

    fn decompress(data: &[u8], count: usize) -> Result<Coded> {
        let mut decoder = BlockCoder::decoder(&card(), data)?;
        let mut decoded = vec![decoder.code(None, None)?];
        for position in 1..count {
            decoded.push(decoder.code(None, Some(&logits(position)))?);
        }
        decoder.finish((&decoded).into())
    }

    #[test]
    fn a_block_comes_back_as_it_was() {
        for count in [1, 2, 3, 700] {
            let symbols: Vec<u32> = (0..count).map(|index| (index * index % 251) as u32).collect();
            let mut encoder = BlockCoder::encoder(&card());
            for (position, &symbol) in symbols.iter().enumerate() {
                let logits = (position > 0).then(|| logits(position));
                assert_eq!(encoder.code(Some(symbol), logits.as_deref()).unwrap(), symbol);
            }
            let Coded::Data(data) = encoder.finish((&symbols).into()).unwrap() else { panic!() };
            assert_eq!(decompress(&data, count).unwrap(), Coded::Symbols(symbols));
            assert!(decompress(&data[1..], count).is_err());
            assert!(decompress(&[&data[..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat(), count).is_err());
        }
    }

    #[test]
    fn a_symbol_that_is_not_text_is_not_compressed() {
        assert!(BlockCoder::encoder(&card()).code(Some(256), None).is_err());
        assert!(BlockCoder::encoder(&card()).code(None, None).is_err());
    }
}
