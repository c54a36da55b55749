//! Segments from a server.

use super::{
    args::Args,
    show::{SegmentedText, TextSegment},
};
use crate::cli::wire::size;
use crate::{
    cli::model_source::{DescribedModel, ServedModel},
    error::Result,
};
use weir_proto::v1::{Segment, SegmentRequest, SegmentResponse};

/// Lets the server split the text.
pub(super) fn run(args: &Args, model: &ServedModel) -> Result<SegmentedText> {
    let text = args.text.text()?;
    let described = DescribedModel::new(model)?;
    let request = SegmentRequest {
        model: described.name(),
        text: text.clone(),
        boundary_mode: args.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
        seed: Some(args.boundaries.seed),
        ..SegmentRequest::default()
    };
    let SegmentResponse { segments, usage, boundary_levels, .. } =
        model.call(async |client| client.segment(request).await)?;
    let usage = usage.unwrap_or_default();
    let normalized_chars = size(usage.normalized_chars());
    described.report_normalised(args.text.flag(), &text, normalized_chars);
    let levels = boundary_levels.iter().map(|level| level.boundaries.iter().map(|&bit| u8::from(bit != 0)).collect());
    Ok(SegmentedText {
        symbols: size(usage.prompt_chars),
        boundaries: size(usage.prompt_segments),
        segments: segments.into_iter().map(segment).collect(),
        levels: levels.collect(),
        normalized_chars,
    })
}

fn segment(segment: Segment) -> TextSegment {
    let Segment { text, char_start, char_end, boundary_probability, open, chunk_depth, .. } = segment;
    let start = size(char_start);
    let end = size(char_end);
    TextSegment {
        text,
        start,
        end,
        probability: boundary_probability,
        closed: !open,
        depth: u8::try_from(chunk_depth).unwrap_or(u8::MAX),
    }
}
