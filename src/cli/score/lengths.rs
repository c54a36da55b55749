//! Bits per character by length, as in LeX's Table 2: the same text split into pieces of each length.

use super::{scores::Scores, text_bits::TextBits};
use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::f64::consts::LN_2;

/// Scores of one text at each length.
pub(super) struct LengthScores {
    /// Symbols of the text.
    pub(super) symbols: usize,
    /// Symbols of the model's training windows.
    pub(super) training_length: usize,
    pub(super) scores: Vec<LengthScore>,
}

/// Result for one length.
pub(super) struct LengthScore {
    pub(super) length: usize,
    pub(super) pieces: usize,
    /// Sum of −ln p over the scored symbols.
    pub(super) nats: f64,
    /// Scored symbols.
    pub(super) scored: usize,
    pub(super) text_bits: TextBits,
}

impl LengthScore {
    fn bits_per_char(&self) -> Option<f64> {
        self.text_bits.per_char(Some(self.nats / self.scored as f64 / LN_2))
    }
}

/// Returns the values of `--lengths`. Fails if one is longer than the text of `symbols` symbols allows, or than the model's
/// longest sequence.
pub(super) fn check_lengths(lengths: &[u32], symbols: usize, max_symbols: usize) -> Result<Vec<usize>> {
    let targets = symbols.saturating_sub(1);
    let limit = targets.min(max_symbols);
    let lengths: Vec<usize> = lengths.iter().map(|&length| length as usize).collect();
    if let Some(length) = lengths.iter().find(|&&length| length > limit) {
        let bound = if limit < targets {
            format!("at most {limit}, the maximum symbols of one sequence")
        } else {
            format!("at most {targets}, since the text has {symbols} symbols and the first is not scored")
        };
        return Err(Error::bad_option("--lengths", length.to_string(), bound));
    }
    Ok(lengths)
}

impl Scores for LengthScores {
    fn as_json(&self) -> Value {
        let entry = |score: &LengthScore| {
            let mut entry = json!({
                "length": score.length,
                "pieces": score.pieces,
                "scored": score.scored,
                "bits_per_char": score.bits_per_char(),
                "extrapolates": score.length > self.training_length,
            });
            if let Some(object) = entry.as_object_mut() {
                score.text_bits.add_json(object);
            }
            entry
        };
        json!({
            "symbols": self.symbols,
            "training_length": self.training_length,
            "lengths": self.scores.iter().map(entry).collect::<Vec<_>>(),
        })
    }

    /// Table with one column per length. Lengths beyond the training length are marked.
    fn as_text(&self) -> String {
        let training = self.training_length;
        let line = |title: &str, cell: &dyn Fn(&LengthScore) -> String| {
            let cells: String = self.scores.iter().map(|score| format!("{:>10}", cell(score))).collect();
            format!("{title:<20}{cells}\n")
        };
        let beyond = |score: &LengthScore| if score.length > training { "extra" } else { "inter" };
        [
            line("length", &|score| score.length.to_string()),
            line("inter- or extra-", &|score| beyond(score).to_owned()),
            line("bits per character", &|score| score.bits_per_char().map_or("-".into(), |bits| format!("{bits:.4}"))),
            format!(
                "{} symbols scored at each length, trained on {training}\n",
                self.scores.first().map_or(0, |score| score.scored)
            ),
        ]
        .concat()
    }
}
