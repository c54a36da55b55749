//! Segments from a model in this process.

use super::{
    args::Args,
    show::{SegmentedText, TextSegment},
};
use crate::{
    cli::model::EncodedText,
    decode::{
        boundary::levels,
        contract::{Model, SymbolBoundary, Want},
        evaluate::{StepSize, run as evaluate},
        options::{check_length, must_pool},
    },
    error::Result,
};

/// Symbols per step: enough for efficient matrix products, few enough to need little memory.
const CHUNK: usize = 512;

/// Symbols `start..end`, a start mark included.
struct Segment {
    start: usize,
    end: usize,
    /// Probability of the boundary that ends or begins it, from a learned predictor.
    probability: Option<f32>,
    closed: bool,
    /// Levels at which a chunk begins with its first symbol; 0 in a model without levels.
    depth: u8,
}

/// Splits the text with a model in this process.
pub(super) fn run(args: &Args, model: &dyn Model) -> Result<SegmentedText> {
    must_pool("Segment", model.card())?;
    let EncodedText { symbols, normalized_chars } = args.text.encode(model)?;
    check_length(args.text.flag(), symbols.len(), model.card())?;
    let mut marks: Vec<SymbolBoundary> = Vec::with_capacity(symbols.len());
    let boundaries = args.boundaries.options();
    evaluate(model, &symbols, StepSize::Chunked(CHUNK), boundaries, Want::Nothing, &mut |_, _, mark| {
        marks.push(mark);
        Ok(())
    })?;
    let vocabulary = &model.card().vocabulary;
    let mut offset = 0;
    let segments = split(&marks).into_iter().map(|segment| {
        let Segment { start, end, probability, closed, depth } = segment;
        let ids = &symbols[start..end];
        let start = offset;
        offset += vocabulary.count_without_marks(ids);
        TextSegment { text: vocabulary.decode(ids), start, end: offset, probability, closed, depth }
    });
    Ok(SegmentedText {
        symbols: symbols.len(),
        boundaries: marks.iter().filter(|mark| mark.boundary).count(),
        segments: segments.collect(),
        levels: levels(marks.iter().map(|mark| mark.depth)),
        normalized_chars,
    })
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
