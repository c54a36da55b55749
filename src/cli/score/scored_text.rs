//! A text that was scored as one sequence.

use crate::{
    cli::{
        output,
        scores::{MarkedTextBits, Scores},
    },
    decode::contract::BoundaryMode,
};
use serde_json::{Map, Value, json};

/// A text that was scored as one sequence.
pub(super) struct ScoredText {
    pub(super) scores: Scores,
    /// Boundary mode of the score.
    pub(super) mode: Option<BoundaryMode>,
    /// True if the model pools its input.
    pub(super) is_pooled: bool,
}

impl ScoredText {
    fn bits_per_char(&self) -> Option<f64> {
        if let Some(marked) = &self.scores.marked {
            return marked.bits_per_char(self.mode);
        }
        self.scores.bits_per_char()
    }

    fn shortening_factor(&self) -> Option<f64> {
        let closed = self.scores.boundaries.iter().filter(|&&boundary| boundary == 1).count();
        // The start-of-text symbol is a segment of its own and does not count.
        let closed = closed.saturating_sub(usize::from(self.is_pooled && self.scores.marked.is_some()));
        (closed > 0).then(|| self.scores.fed as f64 / closed as f64)
    }

    pub(super) fn as_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("symbols".into(), self.scores.symbols.into());
        object.insert("text_chars".into(), self.scores.text_chars.into());
        object.insert("bits_per_char".into(), json!(self.bits_per_char()));
        self.scores.text_bits.add_json(&mut object);
        if let Some(marked) = &self.scores.marked {
            object.insert("boundary_mode".into(), self.mode.map(BoundaryMode::name).into());
            marked.add_json(&mut object);
        }
        object.insert("shortening_factor".into(), json!(self.shortening_factor()));
        object.insert("boundaries".into(), json!(self.scores.boundaries));
        if let levels @ [_, _, ..] = &*self.scores.levels {
            object.insert("boundary_levels".into(), json!(levels));
        }
        object.insert("logprobs".into(), json!(self.scores.logprobs));
        object.into()
    }

    pub(super) fn as_text(&self) -> String {
        let mut out = format!(
            "{} symbols, {} bits per character{}, shortening factor {}\n",
            self.scores.symbols,
            output::optional(self.bits_per_char()),
            self.scores.text_bits.describe(),
            output::optional(self.shortening_factor())
        );
        out += &self.scores.marked.as_ref().map_or_else(String::new, MarkedTextBits::text);
        out
    }
}
