//! Bits per character of models with special symbols: start of text, end of text, end of segment.
//!
//! All figures divide by T, as the paper (Latent Segment Language Models) does. T counts the start-of-text symbol, which costs
//! nothing, the symbols of the text, and the end-of-text symbol if the text ends with one.

use crate::{
    decode::contract::BoundaryMode, error::Result, kernels::distribution::log_probability, text::SpecialSymbols,
};
use serde_json::{Map, Value, json};
use std::f64::consts::LN_2;

/// Sums of bits over a text.
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
    /// the distributions are unknown, as those of a server.
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

    /// Adds all figures to a JSON object.
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
