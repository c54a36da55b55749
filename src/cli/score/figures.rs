//! The figures of a model that writes marks: each bits per character of the augmented text, and named for what it is. Where
//! no segments are written there is none that would count their marks.
//!
//! T counts the start's mark, which costs nothing, the text's symbols, and the end's mark where it is given. The paper divides by
//! T, so all three do; `n` is there for whoever wants bits per character of the text.

use crate::{
    decode::{
        contract::{BoundaryMode, SymbolBoundary},
        sampling::logprobs::log_probability,
    },
    error::Result,
    text::SpecialSymbols,
};
use serde_json::{Map, Value, json};
use std::f64::consts::LN_2;

/// Sums of bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    specials: SpecialSymbols,
    /// Whether segments are written.
    segments: bool,
    /// Symbols of the text.
    symbols: usize,
    /// Whether the end was given.
    ends: bool,
    /// Of the text's symbols, of the end's mark, of the marks that end segments.
    text: f64,
    end: f64,
    nxt: f64,
    /// Of symbols and end, among those that text can have at all.
    renormalised: f64,
}

impl Figures {
    pub(super) fn new(specials: SpecialSymbols, segments: bool) -> Self {
        Self { specials, segments, symbols: 0, ends: false, text: 0.0, end: 0.0, nxt: 0.0, renormalised: 0.0 }
    }

    /// The mark that ends a text.
    pub(super) fn end(&self) -> u32 {
        self.specials.end
    }

    /// Takes the logits before a symbol, or before the end's mark, and ln p of it.
    pub(super) fn take(&mut self, logits: &[f32], symbol: u32, logprob: f64) -> Result<()> {
        let bits = -logprob / LN_2;
        if symbol == self.specials.end {
            (self.ends, self.end) = (true, self.end + bits);
        } else {
            (self.symbols, self.text) = (self.symbols + 1, self.text + bits);
        }
        let mut possible = logits.to_vec();
        for mark in [self.specials.start, self.specials.segment_start, self.specials.segment_end] {
            if let Some(logit) = possible.get_mut(mark as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        self.renormalised -= log_probability(&possible, symbol)? / LN_2;
        Ok(())
    }

    /// Takes what a symbol's mark says of the end of its segment.
    pub(super) fn take_mark(&mut self, mark: &SymbolBoundary) {
        self.nxt -= mark.end_logprob.map_or(0.0, f64::from) / LN_2;
    }

    /// T.
    fn augmented(&self) -> usize {
        1 + self.symbols + usize::from(self.ends)
    }

    fn paper(&self) -> f64 {
        (self.text + self.end) / self.augmented() as f64
    }

    fn joint(&self) -> f64 {
        (self.text + self.end + self.nxt) / self.augmented() as f64
    }

    fn renormalised(&self) -> f64 {
        self.renormalised / self.augmented() as f64
    }

    /// The exact cost of a text as the model would generate it in that mode: by the predictor, of the text; by marks, of the text
    /// and its segments together.
    pub(super) fn bits_per_char(&self, mode: Option<BoundaryMode>) -> f64 {
        if mode == Some(BoundaryMode::Nxt) { self.joint() } else { self.renormalised() }
    }

    /// Adds them under their names.
    pub(super) fn add_to(&self, object: &mut Map<String, Value>) {
        let per_symbol = (self.symbols > 0).then(|| self.text / self.symbols as f64);
        let segments = self.segments.then(|| [("bpc_joint", json!(self.joint())), ("bits_nxt", json!(self.nxt))]);
        let figures = [
            ("bpc_paper", json!(self.paper())),
            ("bpc_renormalised", json!(self.renormalised())),
            ("bits_per_char_no_eos", json!(per_symbol)),
            ("bits_text", json!(self.text)),
            ("bits_eos", json!(self.end)),
            ("augmented_symbols", json!(self.augmented())),
        ];
        let all = figures.into_iter().chain(segments.into_iter().flatten());
        object.extend(all.map(|(name, value)| (name.to_owned(), value)));
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let (paper, joint, renormalised, length) = (self.paper(), self.joint(), self.renormalised(), self.augmented());
        let joint = if self.segments { format!("{joint:.4} with them (text and segments), ") } else { String::new() };
        format!(
            "bits per character, of {length} with marks: {paper:.4} as the paper counts (no marks of segments), {joint}\
             {renormalised:.4} of the text alone (among characters and the end)\n"
        )
    }
}
