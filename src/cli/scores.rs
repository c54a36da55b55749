//! Scores of a text: log-probabilities, boundaries, and bits by characters, bytes and tokens.

use serde_json::{Map, Value, json};
use std::f64::consts::LN_2;
use weir_kernels::{distribution::log_probability, error::Result};
use weir_models::{
    contract::{BoundaryMode, Model},
    text::{SpecialSymbols, TextCounter},
};

/// The scores of a text, as one sequence or in windows.
pub(super) struct Scores {
    /// Number of symbols, with the end-of-text symbol if it was scored.
    pub(super) symbols: usize,
    /// Symbols that a segment can contain: all but the end-of-text symbol.
    pub(super) fed: usize,
    /// Unicode characters.
    pub(super) text_chars: usize,
    /// ln p of each scored symbol.
    pub(super) logprobs: Vec<f64>,
    /// 1 for each symbol that ends a segment, otherwise 0. Windows have none for the last symbol. As one sequence, a model with a
    /// start-of-text symbol has one entry more, at the front.
    pub(super) boundaries: Vec<u8>,
    /// Boundaries of each level, if several are known.
    pub(super) levels: Vec<Vec<u8>>,
    /// Symbols per segment in windows.
    pub(super) shortening_factor: Option<f64>,
    /// Bits by characters, bytes and tokens, special symbols excluded.
    pub(super) text_bits: TextBits,
    /// Bits of a model with special symbols.
    pub(super) marked: Option<MarkedTextBits>,
}

impl Scores {
    /// Sum of −ln p over the scored symbols.
    pub(super) fn nats(&self) -> f64 {
        -self.logprobs.iter().sum::<f64>()
    }

    pub(super) fn bits_per_char(&self) -> Option<f64> {
        let scored = self.logprobs.len();
        let bits = (scored > 0).then(|| self.nats() / scored as f64 / LN_2);
        self.text_bits.per_char(bits)
    }
}

/// Bits of a text by its size, without the symbols at its beginning that are not scored.
#[derive(Debug, Clone)]
pub(super) struct TextBits {
    /// True in a model of tokens.
    pub(super) is_subword: bool,
    /// Bits per Unicode character, in a model of tokens.
    pub(super) per_char: Option<f64>,
    pub(super) per_byte: Option<f64>,
    /// Bits per scored token, in a model of tokens.
    pub(super) per_token: Option<f64>,
}

impl TextBits {
    /// Measures the text of `symbols`, whose scores sum to `nats`. Its first `unscored` symbols have no score.
    pub(super) fn new(model: &dyn Model, symbols: &[u32], unscored: usize, nats: f64) -> Self {
        let card = model.card();
        let mut text = TextCounter::new(card.vocabulary.clone());
        for (index, &symbol) in symbols.iter().enumerate() {
            text.push(symbol, index >= unscored);
        }
        text.finish();
        let per = |count: usize| (count > 0).then(|| nats / LN_2 / count as f64);
        let tokens = symbols.len().saturating_sub(unscored);
        Self {
            is_subword: card.vocabulary.is_subword(),
            per_char: per(text.chars),
            per_byte: per(text.bytes),
            per_token: per(tokens),
        }
    }

    /// Returns the bits per character: `per_symbol`, unless symbols are tokens.
    pub(super) fn per_char(&self, per_symbol: Option<f64>) -> Option<f64> {
        if self.is_subword { self.per_char } else { per_symbol }
    }

    pub(super) fn add_json(&self, object: &mut Map<String, Value>) {
        object.insert("bits_per_byte".into(), json!(self.per_byte));
        if self.is_subword {
            object.insert("bits_per_token".into(), json!(self.per_token));
        }
    }

    /// Formats the figures of a model of tokens as a part of a sentence.
    pub(super) fn describe(&self) -> String {
        if !self.is_subword {
            return String::new();
        }
        let per =
            |unit: &str, bits: Option<f64>| bits.map_or_else(String::new, |bits| format!(", {bits:.4} per {unit}"));
        per("byte", self.per_byte) + &per("token", self.per_token)
    }
}

/// Sums of bits over a text of a model with special symbols: start of text, end of text, end of segment.
///
/// All figures divide by T, as the paper (Latent Segment Language Models) does. T counts the start-of-text symbol, which costs
/// nothing, the symbols of the text, and the end-of-text symbol if the text ends with one.
#[derive(Debug, Clone, Copy)]
pub(super) struct MarkedTextBits {
    specials: SpecialSymbols,
    /// True if the model generates end-of-segment symbols.
    segments: bool,
    /// Number of symbols of the text.
    symbols: usize,
    /// True if the text ends with the end-of-text symbol.
    has_end: bool,
    /// Bits of the text's symbols.
    text: f64,
    /// Bits of the end-of-text symbol.
    end: f64,
    /// Bits of the end-of-segment symbols.
    nxt: f64,
    /// Bits of the text's symbols and its end, with probabilities renormalised over the symbols that a text can contain. `None` if
    /// the distributions are unknown, as a server's are.
    renormalised: Option<f64>,
}

impl MarkedTextBits {
    pub(super) fn new(specials: SpecialSymbols, segments: bool) -> Self {
        Self { specials, segments, symbols: 0, has_end: false, text: 0.0, end: 0.0, nxt: 0.0, renormalised: Some(0.0) }
    }

    /// The end-of-text symbol.
    pub(super) fn end(&self) -> u32 {
        self.specials.end
    }

    /// Adds a symbol of the text or its end, with the logits before it and its ln p.
    pub(super) fn add_symbol_with(&mut self, logits: &[f32], symbol: u32, logprob: f64) -> Result<()> {
        let mut possible = logits.to_vec();
        for mark in [self.specials.start, self.specials.segment_start, self.specials.segment_end] {
            if let Some(logit) = possible.get_mut(mark as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let renormalised = log_probability(&possible, symbol)?;
        let sum = self.renormalised.map(|sum| sum - renormalised / LN_2);
        self.add_symbol(symbol, logprob);
        self.renormalised = sum;
        Ok(())
    }

    /// Adds a symbol of the text or its end, of which only ln p is known.
    pub(super) fn add_symbol(&mut self, symbol: u32, logprob: f64) {
        let bits = -logprob / LN_2;
        if symbol == self.specials.end {
            self.has_end = true;
            self.end += bits;
        } else {
            self.symbols += 1;
            self.text += bits;
        }
        self.renormalised = None;
    }

    /// Adds the cost of ending, or not ending, a segment after a symbol.
    pub(super) fn add_end(&mut self, end_logprob: Option<f32>) {
        self.nxt -= end_logprob.map_or(0.0, f64::from) / LN_2;
    }

    /// Returns the sum of −ln p of the text's symbols, without its end and its segment ends.
    pub(super) fn text_nats(&self) -> f64 {
        self.text * LN_2
    }

    /// Returns T, the number of symbols that all figures divide by.
    fn augmented(&self) -> usize {
        1 + self.symbols + usize::from(self.has_end)
    }

    fn paper(&self) -> f64 {
        (self.text + self.end) / self.augmented() as f64
    }

    fn joint(&self) -> f64 {
        (self.text + self.end + self.nxt) / self.augmented() as f64
    }

    fn renormalised(&self) -> Option<f64> {
        self.renormalised.map(|bits| bits / self.augmented() as f64)
    }

    /// Exact cost of the text as generated in `mode`: the text alone if the predictor decides boundaries, the text and its segments
    /// if end-of-segment symbols do. `None` if that needs unknown distributions.
    pub(super) fn bits_per_char(&self, mode: Option<BoundaryMode>) -> Option<f64> {
        if mode == Some(BoundaryMode::Nxt) { Some(self.joint()) } else { self.renormalised() }
    }

    pub(super) fn add_json(&self, object: &mut Map<String, Value>) {
        let per_symbol = (self.symbols > 0).then(|| self.text / self.symbols as f64);
        let segments = self.segments.then(|| [("bpc_joint", json!(self.joint())), ("bits_nxt", json!(self.nxt))]);
        let renormalised = self.renormalised().map(|bits| ("bpc_renormalised", json!(bits)));
        let figures = [
            ("bits_per_char_no_eos", json!(per_symbol)),
            ("bits_text", json!(self.text)),
            ("bits_eos", json!(self.end)),
            ("augmented_symbols", json!(self.augmented())),
        ];
        let first = [("bpc_paper", json!(self.paper()))].into_iter().chain(renormalised);
        let all = first.chain(figures).chain(segments.into_iter().flatten());
        object.extend(all.map(|(name, value)| (name.to_owned(), value)));
    }

    /// Formats the figures in one line.
    pub(super) fn text(&self) -> String {
        let joint = if self.segments { format!("{:.4} text and segments, ", self.joint()) } else { String::new() };
        let alone = match self.renormalised() {
            Some(bits) => format!("{bits:.4} text alone (renormalised over characters and the end)"),
            None => "text alone unknown".into(),
        };
        format!(
            "bits per character over {} symbols with marks: {:.4} as the paper counts (without segment ends), {joint}{alone}\n",
            self.augmented(),
            self.paper()
        )
    }
}
