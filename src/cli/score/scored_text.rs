//! A text that was scored as one sequence.

use super::{marked_text::MarkedTextBits, scores::Scores, text_bits::TextBits};
use crate::{cli::output, decode::contract::BoundaryMode};
use serde_json::{Map, Value, json};
use std::f64::consts::LN_2;

/// A text that was scored as one sequence, by a model in this process or by a server.
pub(super) struct ScoredText {
    /// Number of symbols, with the end-of-text symbol if it was scored.
    pub(super) symbols: usize,
    /// Unicode characters.
    pub(super) text_chars: usize,
    /// Symbols that a segment can contain: all but the end-of-text symbol.
    pub(super) fed: usize,
    /// ln p of each scored symbol.
    pub(super) logprobs: Vec<f64>,
    /// 1 for each symbol that ends a segment, otherwise 0. A model with a start-of-text symbol has one entry more, at the front.
    pub(super) boundaries: Vec<u8>,
    /// Boundaries of each level, if several are known.
    pub(super) levels: Vec<Vec<u8>>,
    /// Bits by characters, bytes and tokens, without those of special symbols.
    pub(super) text_bits: TextBits,
    /// Bits of a model with special symbols.
    pub(super) marked: Option<MarkedTextBits>,
    /// Boundary mode of the score.
    pub(super) mode: Option<BoundaryMode>,
    /// True if the model pools its input.
    pub(super) is_pooled: bool,
}

impl ScoredText {
    fn bits_per_char(&self) -> Option<f64> {
        if let Some(marked) = &self.marked {
            return marked.bits_per_char(self.mode);
        }
        let scored = self.logprobs.len();
        let bits = (scored > 0).then(|| -self.logprobs.iter().sum::<f64>() / scored as f64 / LN_2);
        self.text_bits.per_char(bits)
    }

    fn shortening_factor(&self) -> Option<f64> {
        let closed = self.boundaries.iter().filter(|&&boundary| boundary == 1).count();
        // The start-of-text symbol is a segment of its own and does not count.
        let closed = closed.saturating_sub(usize::from(self.is_pooled && self.marked.is_some()));
        (closed > 0).then(|| self.fed as f64 / closed as f64)
    }
}

impl Scores for ScoredText {
    fn as_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("symbols".into(), self.symbols.into());
        object.insert("text_chars".into(), self.text_chars.into());
        object.insert("bits_per_char".into(), json!(self.bits_per_char()));
        self.text_bits.add_json(&mut object);
        if let Some(marked) = &self.marked {
            object.insert("boundary_mode".into(), self.mode.map(BoundaryMode::name).into());
            marked.add_json(&mut object);
        }
        object.insert("shortening_factor".into(), json!(self.shortening_factor()));
        object.insert("boundaries".into(), json!(self.boundaries));
        if let levels @ [_, _, ..] = &*self.levels {
            object.insert("boundary_levels".into(), json!(levels));
        }
        object.insert("logprobs".into(), json!(self.logprobs));
        object.into()
    }

    fn as_text(&self) -> String {
        let mut out = format!(
            "{} symbols, {} bits per character{}, shortening factor {}\n",
            self.symbols,
            output::optional(self.bits_per_char()),
            self.text_bits.describe(),
            output::optional(self.shortening_factor())
        );
        out += &self.marked.as_ref().map_or_else(String::new, MarkedTextBits::text);
        out
    }
}
