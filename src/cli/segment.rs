//! `weir segment`: a text with its segments made visible.

use super::{
    model::{BoundaryArgs, ModelArgs, TextArgs},
    output,
};
use crate::{
    decode::{
        contract::{Model, SymbolBoundary, Want},
        evaluate::{StepSize, run as evaluate},
        options::{check_length, must_pool},
    },
    error::Result,
};
use serde_json::{Value, json};
use std::io::IsTerminal;

/// Symbols fed in one step: enough to keep products busy, little enough memory.
const CHUNK: usize = 512;

/// Shows where a text's segments end.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    boundaries: BoundaryArgs,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// A run of symbols.
struct Segment {
    first: usize,
    past: usize,
    /// Of the closing symbol, from a learned predictor.
    probability: Option<f32>,
    closed: bool,
}

/// Runs the command.
///
/// # Errors
/// What is wrong with the checkpoint, the text, or stdout.
pub fn run(args: Args) -> Result<()> {
    let model = args.model.load()?;
    must_pool("segment", model.card())?;
    let symbols = args.text.symbols(&*model)?;
    check_length("text", symbols.len(), model.card())?;
    let mut marks: Vec<SymbolBoundary> = Vec::with_capacity(symbols.len());
    let boundaries = args.boundaries.options();
    evaluate(&*model, &symbols, StepSize::Chunked(CHUNK), boundaries, Want::Nothing, &mut |_, _, mark| {
        marks.push(mark);
        Ok(())
    })?;
    let segments = cut(&marks);
    if args.json {
        return output::json(&as_json(&*model, &symbols, &segments));
    }
    output::write(&as_text(&*model, &symbols, &segments, std::io::stdout().is_terminal()))
}

fn cut(marks: &[SymbolBoundary]) -> Vec<Segment> {
    let (mut segments, mut first) = (Vec::new(), 0);
    for (position, mark) in marks.iter().enumerate() {
        if mark.boundary || position + 1 == marks.len() {
            let (past, probability) = (position + 1, mark.probability);
            segments.push(Segment { first, past, probability, closed: mark.boundary });
            first = past;
        }
    }
    segments
}

fn closed(segments: &[Segment]) -> usize {
    segments.iter().filter(|segment| segment.closed).count()
}

fn factor(symbols: usize, closed: usize) -> Option<f64> {
    (closed > 0).then(|| symbols as f64 / closed as f64)
}

fn as_json(model: &dyn Model, symbols: &[u32], segments: &[Segment]) -> Value {
    let vocabulary = &model.card().vocabulary;
    let list = segments.iter().map(|segment| {
        let text = vocabulary.decode(&symbols[segment.first..segment.past]);
        let Segment { first, past, probability, closed } = segment;
        json!({ "text": text, "start": first, "end": past, "closed": closed, "boundary_probability": probability })
    });
    let closed = closed(segments);
    json!({
        "symbols": symbols.len(),
        "segments": list.collect::<Vec<_>>(),
        "closed": closed,
        "shortening_factor": factor(symbols.len(), closed),
    })
}

/// Segments with a bar at each cut and, on a terminal, two colours in turn; what is still open ends with an ellipsis.
fn as_text(model: &dyn Model, symbols: &[u32], segments: &[Segment], colour: bool) -> String {
    let vocabulary = &model.card().vocabulary;
    let mut out = String::new();
    for (index, segment) in segments.iter().enumerate() {
        let text = vocabulary.decode(&symbols[segment.first..segment.past]);
        let text = text.replace('\n', "⏎\n");
        let end = if segment.closed { "│" } else { "…" };
        match (colour, index % 2) {
            (false, _) => out += &format!("{text}{end}"),
            (true, 0) => out += &format!("\x1b[36m{text}\x1b[2;39m{end}\x1b[0m"),
            (true, _) => out += &format!("\x1b[33m{text}\x1b[2;39m{end}\x1b[0m"),
        }
    }
    let closed = closed(segments);
    let factor = output::optional(factor(symbols.len(), closed));
    out += &format!("\n{} symbols, {closed} closed segments, shortening factor {factor}\n", symbols.len());
    out
}
