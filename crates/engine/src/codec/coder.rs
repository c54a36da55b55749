//! The entropy coder of one block: a range coder with 32-bit words, from the crate `constriction`.

use crate::options::{WindowOptions, within};
use constriction::stream::{
    Decode, Encode,
    model::{DecoderModel, EncoderModel, EntropyModel},
    queue::{DefaultRangeDecoder, DefaultRangeEncoder},
};
use std::{borrow::Borrow, num::NonZeroU32, sync::Arc};
use weir_kernels::error::{Error, Result};
use weir_models::contract::{BoundaryOptions, Card, Exactness, Noise, SymbolSlices};

/// Bytes of a word of the coder.
const WORD: usize = size_of::<u32>();

/// Codes the symbols of one block in order.
#[derive(Debug, Clone)]
pub(crate) struct BlockCoder {
    frequencies: Frequencies,
    coder: Coder,
    progress: CodingProgress,
}

/// The progress of coding a block.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CodingProgress {
    /// Symbols that are coded.
    pub symbols: usize,
    /// Their size in bits.
    pub bits: f64,
}

#[derive(Debug, Clone)]
enum Coder {
    Encoder(DefaultRangeEncoder),
    Decoder(DefaultRangeDecoder),
}

/// A coded block: the result of a [`Code`] request.
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
        Self::new(card, Coder::Encoder(DefaultRangeEncoder::new()))
    }

    /// Creates a coder that decompresses `data`. Fails with [`Error::Damaged`] if the data are not whole words.
    pub(super) fn decoder(card: &Card, data: &[u8]) -> Result<Self> {
        let (words, rest) = data.as_chunks::<WORD>();
        if !rest.is_empty() {
            return Err(damaged("a multiple of four bytes", format!("{} bytes", data.len())));
        }
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let coder = DefaultRangeDecoder::from_compressed(words).unwrap_or_else(|never| match never {});
        Ok(Self::new(card, Coder::Decoder(coder)))
    }

    fn new(card: &Card, coder: Coder) -> Self {
        let frequencies = Frequencies::new(card.vocabulary.text_ids().collect());
        Self { frequencies, coder, progress: CodingProgress::default() }
    }

    /// Returns how far the block is coded.
    pub(crate) fn progress(&self) -> CodingProgress {
        self.progress
    }

    pub(crate) fn is_decoder(&self) -> bool {
        matches!(self.coder, Coder::Decoder(_))
    }

    /// Compresses `symbol`, or decompresses one, with its prediction `logits` (V). Fails with [`Error::Internal`].
    pub(crate) fn code(&mut self, symbol: Option<u32>, logits: Option<&[f32]>) -> Result<u32> {
        if let Some(logits) = logits {
            self.frequencies.set(logits)?;
        }
        let model = &self.frequencies;
        let coded = match (&mut self.coder, symbol) {
            (Coder::Encoder(encoder), Some(symbol)) => {
                let encoded = Encode::<PRECISION>::encode_symbol(encoder, symbol, model);
                encoded.map_err(|error| Error::Internal(format!("symbol {symbol}: {error}")))?;
                symbol
            }
            (Coder::Decoder(decoder), _) => {
                let decoded = Decode::<PRECISION>::decode_symbol(decoder, model);
                decoded.map_err(|_| damaged("data of the entropy coder", "other data".into()))?
            }
            (Coder::Encoder(_), None) => return Err(Error::Internal("there is no symbol to compress".into())),
        };
        self.progress.symbols += 1;
        self.progress.bits += self.frequencies.bits(coded);
        Ok(coded)
    }

    /// Ends the block, whose symbols are `symbols`. Fails with [`Error::Damaged`] if data are left that no symbol needs.
    pub(crate) fn finish(self, symbols: SymbolSlices<'_>) -> Result<Coded> {
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

fn damaged(expected: impl Into<String>, found: String) -> Error {
    Error::Damaged { what: "a block", expected: expected.into(), found }
}

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
    /// The windows in which the model reads the block, as it does for [`Score`](crate::options::Score).
    pub windows: WindowOptions,
    /// True to report progress.
    pub progress: bool,
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
        /// The compressed data.
        data: Vec<u8>,
    },
}

impl Code {
    /// Checks the model, the block and the windows. Fails with [`Error::WrongKind`], [`Error::BadOption`] or
    /// [`Error::UnknownSymbol`].
    pub fn validate(&self, card: &Card) -> Result<()> {
        check_model(card)?;
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
    pub(crate) fn begin(self, card: &Card) -> Result<(usize, Vec<u32>, BlockCoder)> {
        match self.input {
            CodeInput::Compress(symbols) => Ok((symbols.len(), symbols, BlockCoder::encoder(card))),
            CodeInput::Decompress { symbols, data } => {
                Ok((symbols, Vec::with_capacity(symbols), BlockCoder::decoder(card, &data)?))
            }
        }
    }
}

/// Returns the boundary options of a block: the model's first boundary mode, and a fixed seed if boundaries are sampled.
pub(crate) fn boundaries() -> BoundaryOptions {
    BoundaryOptions { mode: None, noise: Noise::Seeded(0), offset: 0, threshold: None }
}

/// Returns the windows in which a model reads a block by default: twice its training length, of which it predicts three quarters.
pub fn default_windows(card: &Card) -> WindowOptions {
    let length = card.training_length.saturating_mul(2).clamp(1, card.max_symbols);
    WindowOptions { length, stride: (length / 4 * 3).max(1) }
}

/// Rejects a model whose bits may differ between two computations of one text, and one with too many symbols.
pub fn check_model(card: &Card) -> Result<()> {
    let wrong = |wanted, found: String| Err(Error::wrong_kind("model", &card.name, wanted, found));
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

// The rule that turns logits into integer frequencies. Compressor and decompressor compute the same integers on every machine,
// because the rule uses only comparisons, one exact subtraction, one product and integer arithmetic.
//
// A text symbol k has logit lₖ; K is the number of text symbols and m the largest of their logits.
//
// 1. dₖ = m − lₖ, rounded to f32.
// 2. tₖ = ⌊dₖ · c⌋ with c = 2¹⁶ · log₂ e, the product rounded to f64. So e^(−dₖ) is about 2^(−tₖ / 2¹⁶).
// 3. wₖ = 2³¹ · 2^(−tₖ / 2¹⁶) in integers: for each set bit of the fraction, from the highest, the product with rⱼ is shifted right
// by 31 bits; the whole part then shifts right. r₁ = ⌊√2⁶¹⌋ and rⱼ₊₁ = ⌊√(2³¹ · rⱼ)⌋. The high and the low byte of the fraction
// are computed apart and then multiplied.
// 4. fₖ = 1 + ⌊wₖ · (2²⁴ − K) / Σ w⌋. The rest up to 2²⁴ goes to the first symbol of the largest logit.
//
// Every symbol has a frequency of at least 1, so every text can be coded. Without logits, all wₖ are equal.

/// Bits of the sum of all frequencies.
pub(super) const PRECISION: usize = 24;

/// Maximum text symbols of a model, so that the floor of 1 takes at most 1/256 of the sum.
pub(super) const MAX_ALPHABET: usize = 1 << 16;

const SUM: u64 = 1 << PRECISION;
const WEIGHT_BITS: u32 = 31;

/// Bits of the fraction of t.
const FRACTION_BITS: u32 = 16;

/// 2¹⁶ · log₂ e. The product with a power of two is exact.
const SCALE: f64 = std::f64::consts::LOG2_E * (1 << FRACTION_BITS) as f64;

/// 2^(−byte / 2⁸) and 2^(−byte / 2¹⁶), times 2³¹.
const POWERS: [[u64; 256]; 2] = powers();

const fn powers() -> [[u64; 256]; 2] {
    let mut tables = [[0; 256]; 2];
    let mut root = 1 << WEIGHT_BITS;
    let mut roots = [0; FRACTION_BITS as usize];
    let mut bit = 0;
    while bit < roots.len() {
        root = if bit == 0 { (1u64 << (2 * WEIGHT_BITS - 1)).isqrt() } else { (root << WEIGHT_BITS).isqrt() };
        roots[bit] = root;
        bit += 1;
    }
    let mut index = 0;
    while index < 2 * 256 {
        let mut power = 1 << WEIGHT_BITS;
        let mut bit = 0;
        while bit < 8 {
            if ((index % 256) >> (7 - bit)) & 1 == 1 {
                power = (power * roots[index / 256 * 8 + bit]) >> WEIGHT_BITS;
            }
            bit += 1;
        }
        tables[index / 256][index % 256] = power;
        index += 1;
    }
    tables
}

/// Returns the weight of a logit that is `below` the largest one.
fn weight(below: f32) -> u64 {
    // a float that exceeds the integer type becomes its maximum
    let exponent = (f64::from(below) * SCALE) as u64;
    let whole = exponent >> FRACTION_BITS;
    if whole > u64::from(WEIGHT_BITS) {
        return 0;
    }
    let high = POWERS[0][((exponent >> 8) & 0xff) as usize];
    let low = POWERS[1][(exponent & 0xff) as usize];
    ((high * low) >> WEIGHT_BITS) >> whole
}

/// The frequencies of all text symbols at one position. They add up to 2^[`PRECISION`].
#[derive(Debug, Clone)]
pub(super) struct Frequencies {
    /// The text symbols in ascending order.
    alphabet: Arc<[u32]>,
    /// One for each text symbol.
    frequencies: Vec<u32>,
    weights: Vec<u64>,
}

impl Frequencies {
    /// Creates equal frequencies for the symbols of `alphabet`, which ascend and are at most [`MAX_ALPHABET`].
    pub(super) fn new(alphabet: Arc<[u32]>) -> Self {
        let count = alphabet.len();
        let mut frequencies = Self { alphabet, frequencies: vec![0; count], weights: vec![1; count] };
        frequencies.distribute(0);
        frequencies
    }

    /// Sets all frequencies from the logits (V). Fails if a logit of a text symbol is NaN or +∞, or if all are −∞.
    pub(super) fn set(&mut self, logits: &[f32]) -> Result<()> {
        let invalid = || Error::Internal("the logits contain NaN or infinity".into());
        let mut largest = f32::NEG_INFINITY;
        let mut first = 0;
        for (index, &symbol) in self.alphabet.iter().enumerate() {
            let logit = *logits.get(symbol as usize).ok_or_else(invalid)?;
            if logit.is_nan() {
                return Err(invalid());
            }
            if logit > largest {
                largest = logit;
                first = index;
            }
        }
        if !largest.is_finite() {
            return Err(invalid());
        }
        for (slot, &symbol) in self.weights.iter_mut().zip(self.alphabet.iter()) {
            *slot = weight(largest - logits[symbol as usize]);
        }
        self.distribute(first);
        Ok(())
    }

    /// Returns the size of a symbol in bits; 0 if it is no text symbol.
    fn bits(&self, symbol: u32) -> f64 {
        let index = self.alphabet.binary_search(&symbol);
        index.map_or(0.0, |index| PRECISION as f64 - f64::from(self.frequencies[index]).log2())
    }

    /// Computes the frequencies from the weights; `first` gets what is left.
    fn distribute(&mut self, first: usize) {
        let total: u64 = self.weights.iter().sum();
        let shared = SUM - self.weights.len() as u64;
        let mut left = SUM;
        for (frequency, &weight) in self.frequencies.iter_mut().zip(&self.weights) {
            // below 2^31 · 2^24, and at most `shared`
            let share = 1 + weight * shared / total;
            *frequency = share as u32;
            left -= share;
        }
        if let Some(frequency) = self.frequencies.get_mut(first) {
            *frequency += left as u32;
        }
    }
}

impl EntropyModel<PRECISION> for &Frequencies {
    type Symbol = u32;
    type Probability = u32;
}

impl EncoderModel<PRECISION> for &Frequencies {
    fn left_cumulative_and_probability(&self, symbol: impl Borrow<u32>) -> Option<(u32, NonZeroU32)> {
        let index = self.alphabet.binary_search(symbol.borrow()).ok()?;
        let left = self.frequencies[..index].iter().sum();
        Some((left, NonZeroU32::new(self.frequencies[index])?))
    }
}

impl DecoderModel<PRECISION> for &Frequencies {
    fn quantile_function(&self, quantile: u32) -> (u32, u32, NonZeroU32) {
        let mut left = 0;
        for (&symbol, &frequency) in self.alphabet.iter().zip(&self.frequencies) {
            if quantile - left < frequency {
                // frequencies are at least 1
                return (symbol, left, NonZeroU32::new(frequency).unwrap_or(NonZeroU32::MIN));
            }
            left += frequency;
        }
        // never reached: the quantile is below the sum of all frequencies
        (self.alphabet.last().copied().unwrap_or_default(), left, NonZeroU32::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_models::text::{TextNormaliser, Vocabulary};

    fn frequencies_of(logits: &[f32]) -> Frequencies {
        let mut frequencies = Frequencies::new((0..logits.len() as u32).collect());
        frequencies.set(logits).unwrap();
        frequencies
    }

    #[test]
    fn weights_are_powers_of_e() {
        for step in 0..2000 {
            let below = step as f32 * 0.01;
            let expected = (-f64::from(below)).exp();
            let actual = weight(below) as f64 / f64::from(1u32 << 31);
            assert!((actual - expected).abs() < 2e-5 * expected + 1e-9, "{below}: {actual}, not {expected}");
        }
        assert_eq!([weight(0.0), weight(f32::INFINITY), weight(f32::MAX)], [1 << 31, 0, 0]);
    }

    /// A change of these figures is a change of the format.
    #[test]
    fn the_rule_is_fixed() {
        assert_eq!(
            [POWERS[0][128], POWERS[0][1], POWERS[1][128], POWERS[1][255]],
            [1_518_500_249, 2_141_676_972, 2_144_578_344, 2_141_699_612]
        );
        assert_eq!(
            frequencies_of(&[0.5, -1.25, 3.0, f32::NEG_INFINITY]).frequencies,
            [1_256_132, 218_285, 15_302_798, 1]
        );
    }

    #[test]
    fn symbols_outside_of_the_alphabet_have_no_frequency() {
        let mut some = Frequencies::new(Arc::from([1, 3]));
        some.set(&[9.0, 0.0, f32::NAN, 0.0]).unwrap();
        assert_eq!(some.frequencies, [1 << 23; 2]);
        assert!((&some).left_cumulative_and_probability(2).is_none());
    }

    #[test]
    fn invalid_logits_are_refused() {
        for logits in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert!(Frequencies::new(Arc::from([0, 1])).set(&logits).is_err(), "{logits:?}");
        }
        assert!(Frequencies::new(Arc::from([0, 2])).set(&[0.0, 1.0]).is_err());
    }

    proptest! {
        #[test]
        fn every_symbol_can_be_coded_at_the_cost_of_its_probability(
            logits in proptest::collection::vec(-30f32..30.0, 1..300), flat: bool,
        ) {
            let logits: Vec<f32> = logits.iter().map(|&logit| if flat { logit / 30.0 } else { logit }).collect();
            let all = frequencies_of(&logits);
            prop_assert!(all.frequencies.iter().all(|&frequency| frequency >= 1));
            prop_assert_eq!(all.frequencies.iter().map(|&frequency| u64::from(frequency)).sum::<u64>(), SUM);
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let mut excess = 0.0;
            let mut left = 0;
            for (symbol, &logit) in logits.iter().enumerate() {
                let probability = f64::from(logit).exp() / total;
                let (cumulative, frequency) = (&all).left_cumulative_and_probability(symbol as u32).unwrap();
                let bits = PRECISION as f64 - f64::from(frequency.get()).log2();
                excess += probability * (bits + probability.log2());
                prop_assert_eq!(cumulative, left);
                left += frequency.get();
                for quantile in [cumulative, left - 1] {
                    prop_assert_eq!((&all).quantile_function(quantile), (symbol as u32, cumulative, frequency));
                }
            }
            // bits per symbol above the entropy
            prop_assert!(excess < 1e-4, "{}", excess);
        }
    }

    #[test]
    fn only_models_with_the_same_bits_are_accepted() {
        let card = card();
        check_model(&card).unwrap();
        let within = Card { exactness: Exactness::Within(1e-4), ..card };
        let message = check_model(&within).unwrap_err().to_string();
        assert!(message.starts_with("model: expected a model that computes the same bits in every batch"), "{message}");
        assert!(message.ends_with("found \"m\", one whose exactness is within 0.0001"), "{message}");
    }

    #[test]
    fn windows_fit_the_model() {
        let card = card();
        for (training_length, max_symbols) in [(8, 100), (1, 1), (8, 9), (1 << 20, 300)] {
            let card = Card { training_length, max_symbols, ..card.clone() };
            default_windows(&card).validate(&card).unwrap();
        }
    }

    fn card() -> Card {
        Card::for_tests(Vocabulary::byte_level(TextNormaliser::None))
    }

    /// Returns logits that depend on the position.
    fn logits_at(position: usize) -> Vec<f32> {
        (0..256).map(|symbol| ((symbol * 37 + position * 101) % 97) as f32 / 9.0).collect()
    }

    fn decompress(data: &[u8], count: usize) -> Result<Coded> {
        let mut decoder = BlockCoder::decoder(&card(), data)?;
        let mut decoded = vec![decoder.code(None, None)?];
        for position in 1..count {
            decoded.push(decoder.code(None, Some(&logits_at(position)))?);
        }
        decoder.finish((&decoded).into())
    }

    #[test]
    fn a_block_comes_back_as_it_was() {
        for count in [1, 2, 3, 700] {
            let symbols: Vec<u32> = (0..count).map(|index| (index * index % 251) as u32).collect();
            let mut encoder = BlockCoder::encoder(&card());
            for (position, &symbol) in symbols.iter().enumerate() {
                let logits = (position > 0).then(|| logits_at(position));
                assert_eq!(encoder.code(Some(symbol), logits.as_deref()).unwrap(), symbol);
            }
            let progress = encoder.progress();
            let Coded::Data(data) = encoder.finish((&symbols).into()).unwrap() else { panic!() };
            assert_eq!(progress.symbols, count);
            assert!((8.0 * data.len() as f64 - progress.bits).abs() <= 64.0, "{progress:?}, {} bytes", data.len());
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
