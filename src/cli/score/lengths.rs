//! Bits per character by length, as in LeX's Table 2: the same text split into pieces of each length.

use super::args::{Args, progress_bar};
use crate::{
    cli::output,
    decode::{
        contract::Model,
        evaluate::{WindowScore, score_window, windows},
        options::WindowOptions,
    },
    error::{Error, Result},
};
use serde_json::json;
use std::f64::consts::LN_2;

/// Result for one length.
struct LengthScore {
    length: usize,
    pieces: usize,
    sum: WindowScore,
}

impl LengthScore {
    fn bits(&self) -> f64 {
        self.sum.nats / self.sum.scored as f64 / LN_2
    }
}

/// Scores the text at each length and prints the table.
pub(super) fn run(args: &Args, model: &dyn Model, symbols: &[u32]) -> Result<()> {
    let targets = symbols.len() - 1;
    let limit = targets.min(model.card().max_symbols);
    let lengths: Vec<usize> = args.lengths.iter().map(|&length| length as usize).collect();
    if let Some(length) = lengths.iter().find(|&&length| length > limit) {
        let bound = if limit < targets {
            format!("at most {limit}, the maximum symbols of one sequence")
        } else {
            format!("at most {targets}, since the text has {} symbols and the first is not scored", symbols.len())
        };
        return Err(Error::bad_option("--lengths", length.to_string(), bound));
    }
    let scores = lengths.into_iter().map(|length| score(args, model, symbols, length)).collect::<Result<Vec<_>>>()?;
    if args.json {
        output::json(&as_json(&scores, model, symbols.len()))
    } else {
        output::write(&table(&scores, model))
    }
}

fn score(args: &Args, model: &dyn Model, symbols: &[u32], length: usize) -> Result<LengthScore> {
    let all: Vec<_> = windows(symbols.len(), WindowOptions { length, stride: length }).collect();
    let pieces = all.len();
    let mut sum = WindowScore::default();
    let bar = progress_bar(pieces);
    for window in all {
        sum += score_window(model, symbols, window, &args.boundaries.options(), &mut |_, _, _| Ok(()))?;
        bar.set_message(format!("length {length}: {:.3} bits per character", sum.nats / sum.scored as f64 / LN_2));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(LengthScore { length, pieces, sum })
}

fn as_json(scores: &[LengthScore], model: &dyn Model, symbols: usize) -> serde_json::Value {
    let entry = |score: &LengthScore| {
        json!({
            "length": score.length,
            "pieces": score.pieces,
            "scored": score.sum.scored,
            "bits_per_char": score.bits(),
            "extrapolates": score.length > model.card().training_length,
        })
    };
    json!({
        "symbols": symbols,
        "training_length": model.card().training_length,
        "lengths": scores.iter().map(entry).collect::<Vec<_>>(),
    })
}

/// Table with one column per length. Lengths beyond the training length are marked.
fn table(scores: &[LengthScore], model: &dyn Model) -> String {
    let training = model.card().training_length;
    let line = |title: &str, cell: &dyn Fn(&LengthScore) -> String| {
        let cells: String = scores.iter().map(|score| format!("{:>10}", cell(score))).collect();
        format!("{title:<20}{cells}\n")
    };
    let beyond = |score: &LengthScore| if score.length > training { "extra" } else { "inter" };
    [
        line("length", &|score| score.length.to_string()),
        line("inter- or extra-", &|score| beyond(score).to_owned()),
        line("bits per character", &|score| format!("{:.4}", score.bits())),
        format!(
            "{} symbols scored at each length, trained on {training}\n",
            scores.first().map_or(0, |score| score.sum.scored)
        ),
    ]
    .concat()
}
