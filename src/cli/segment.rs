//! `weir segment`: shows the segments of a text.

use super::{
    model::{BoundaryArgs, ModelArgs, TextArgs},
    output,
};
use crate::{
    decode::{
        boundary::levels,
        contract::{Model, SymbolBoundary, Want},
        evaluate::{StepSize, run as evaluate},
        options::{check_length, must_pool},
    },
    error::Result,
};
use serde_json::{Value, json};
use std::io::IsTerminal;

/// Symbols per step: enough for efficient matrix products, few enough to need little memory.
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

/// Symbols `start..end` of the text.
struct Segment {
    start: usize,
    end: usize,
    /// Probability of the boundary that ends or begins it, from a learned predictor.
    probability: Option<f32>,
    closed: bool,
    /// Levels at which a chunk begins with its first symbol; 0 in a model without levels.
    depth: u8,
}

/// Runs the command. Fails if the checkpoint or the text is invalid, or if stdout cannot be written.
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
    let segments = split(&marks);
    if args.json {
        let mut object = as_json(&*model, &symbols, &segments);
        if let levels @ [_, _, ..] = &*levels(&marks) {
            object["boundary_levels"] = json!(levels);
        }
        return output::json(&object);
    }
    output::write(&as_text(&*model, &symbols, &segments, std::io::stdout().is_terminal()))
}

fn split(marks: &[SymbolBoundary]) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut start = 0;
    for (position, mark) in marks.iter().enumerate() {
        let next = marks.get(position + 1);
        let is_cut = mark.ends_segment() || next.is_none_or(|next| next.begins_segment());
        if is_cut {
            let end = position + 1;
            let begins = Some(marks[start]).filter(|first| first.begins_segment());
            segments.push(Segment {
                start,
                end,
                probability: begins.unwrap_or(*mark).probability,
                closed: mark.ends_segment() || next.is_some(),
                depth: begins.map_or(0, |first| first.depth),
            });
            start = end;
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
        let Segment { start, end, probability, closed, depth: _ } = segment;
        let text = vocabulary.decode(&symbols[*start..*end]);
        json!({ "text": text, "start": start, "end": end, "closed": closed, "boundary_probability": probability })
    });
    let closed = closed(segments);
    json!({
        "symbols": symbols.len(),
        "segments": list.collect::<Vec<_>>(),
        "closed": closed,
        "shortening_factor": factor(symbols.len(), closed),
    })
}

/// Text with a bar after each closed segment and an ellipsis after an open one. A segment whose first symbol also begins a chunk
/// of deeper levels has a bar more before it for each. `colour` alternates two terminal colours.
fn as_text(model: &dyn Model, symbols: &[u32], segments: &[Segment], colour: bool) -> String {
    let vocabulary = &model.card().vocabulary;
    let mut out = String::new();
    for (index, segment) in segments.iter().enumerate() {
        let text = vocabulary.decode(&symbols[segment.start..segment.end]);
        let text = text.replace('\n', "⏎\n");
        let deeper = segments.get(index + 1).map_or(0, |next| next.depth.saturating_sub(1));
        let end = if segment.closed { "│".repeat(1 + usize::from(deeper)) } else { "…".into() };
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
