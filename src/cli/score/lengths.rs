//! Bits per character by length, in the form of LeX's Table 2: the same text cut into pieces of each length.

use super::{Args, bar};
use crate::{
    cli::output,
    decode::{
        contract::Model,
        evaluate::{WindowScore, score_window, windows},
        options::Windows,
    },
    error::{Error, Result},
};
use serde_json::json;
use std::f64::consts::LN_2;

/// What one length gave.
struct Found {
    length: usize,
    pieces: usize,
    sum: WindowScore,
}

impl Found {
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
            format!("at most {limit}, the most symbols of one sequence")
        } else {
            format!("at most {targets}: the text has {} symbols, all but the first of which are scored", symbols.len())
        };
        return Err(Error::BadOption { field: "--lengths", found: length.to_string(), bound });
    }
    let found = lengths.into_iter().map(|length| score(args, model, symbols, length)).collect::<Result<Vec<_>>>()?;
    if args.json { output::json(&as_json(&found, model, symbols.len())) } else { output::write(&table(&found, model)) }
}

fn score(args: &Args, model: &dyn Model, symbols: &[u32], length: usize) -> Result<Found> {
    let all: Vec<_> = windows(symbols.len(), Windows { length, stride: length }).collect();
    let (mut sum, bar, pieces) = (WindowScore::default(), bar(all.len()), all.len());
    for window in all {
        sum += score_window(model, symbols, window, &args.boundaries.options())?;
        bar.set_message(format!("length {length}: {:.3} bits per character", sum.nats / sum.scored as f64 / LN_2));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Found { length, pieces, sum })
}

fn as_json(found: &[Found], model: &dyn Model, symbols: usize) -> serde_json::Value {
    let entry = |found: &Found| {
        json!({
            "length": found.length,
            "pieces": found.pieces,
            "scored": found.sum.scored,
            "bits_per_char": found.bits(),
            "extrapolates": found.length > model.card().training_length,
        })
    };
    json!({
        "symbols": symbols,
        "training_length": model.card().training_length,
        "lengths": found.iter().map(entry).collect::<Vec<_>>(),
    })
}

/// A column for each length; those beyond the training length are marked.
fn table(found: &[Found], model: &dyn Model) -> String {
    let training = model.card().training_length;
    let line = |title: &str, cell: &dyn Fn(&Found) -> String| {
        let cells: String = found.iter().map(|found| format!("{:>10}", cell(found))).collect();
        format!("{title:<20}{cells}\n")
    };
    let beyond = |found: &Found| if found.length > training { "extra" } else { "inter" };
    [
        line("length", &|found| found.length.to_string()),
        line("inter- or extra-", &|found| beyond(found).to_owned()),
        line("bits per character", &|found| format!("{:.4}", found.bits())),
        format!("{} symbols scored at each length; trained on {training}\n", found.first().map_or(0, |f| f.sum.scored)),
    ]
    .concat()
}
