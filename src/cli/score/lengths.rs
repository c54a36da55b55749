//! Bits per character by length, as in LeX's Table 2: the same text split into pieces of each length.

use super::{args::Args, scorer::Scorer};
use crate::{
    cli::scores::TextBits,
    decode::{evaluate::windows, options::WindowOptions},
    error::{Error, Result},
};
use serde_json::{Value, json};
use std::f64::consts::LN_2;

/// Scores of one text at each length.
pub(super) struct LengthScores {
    /// Symbols of the text.
    symbols: usize,
    /// Symbols of the model's training windows.
    training_length: usize,
    scores: Vec<LengthScore>,
}

/// Result for one length.
struct LengthScore {
    length: usize,
    pieces: usize,
    /// Sum of −ln p over the scored symbols.
    nats: f64,
    /// Scored symbols.
    scored: usize,
    text_bits: TextBits,
}

impl LengthScore {
    fn bits_per_char(&self) -> Option<f64> {
        self.text_bits.per_char(Some(self.nats / self.scored as f64 / LN_2))
    }
}

/// Fails if a value of `--lengths` is longer than the text of `symbols` symbols allows, or than the model's longest sequence.
fn check_lengths(lengths: &[u32], symbols: usize, max_symbols: usize) -> Result<()> {
    let targets = symbols.saturating_sub(1);
    let limit = targets.min(max_symbols);
    if let Some(length) = lengths.iter().find(|&&length| length as usize > limit) {
        let bound = if limit < targets {
            format!("at most {limit}, the maximum symbols of one sequence")
        } else {
            format!("at most {targets}, since the text has {symbols} symbols and the first is not scored")
        };
        return Err(Error::bad_option("--lengths", length.to_string(), bound));
    }
    Ok(())
}

impl LengthScores {
    /// Scores the text at each length. Fails as [`check_lengths`] and the model's scores do.
    pub(super) fn new(args: &Args, scorer: &Scorer<'_>) -> Result<Self> {
        let mut scores = Vec::with_capacity(args.lengths.len());
        // A server tells the number of symbols with the first scores.
        let mut symbols = scorer.symbols();
        let check = |symbols: usize| check_lengths(&args.lengths, symbols, scorer.max_symbols());
        check(symbols.unwrap_or(usize::MAX))?;
        for &length in &args.lengths {
            let length = length as usize;
            let piece = WindowOptions { length, stride: length };
            let scored = scorer.score(args, Some(piece))?;
            if symbols.is_none() {
                check(scored.symbols)?;
            }
            symbols = Some(scored.symbols);
            scores.push(LengthScore {
                length,
                pieces: windows(scored.symbols, piece).count(),
                nats: scored.nats(),
                scored: scored.logprobs.len(),
                text_bits: scored.text_bits,
            });
        }
        Ok(Self { symbols: symbols.unwrap_or_default(), training_length: scorer.training_length()?, scores })
    }

    pub(super) fn as_json(&self) -> Value {
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
    pub(super) fn as_text(&self) -> String {
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
