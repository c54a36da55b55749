//! Segments from a server.

use super::{
    args::Args,
    show::{SegmentedText, TextSegment},
};
use crate::{
    cli::model_source::ServedModel,
    error::Result,
    serve::client::inference::{Segment, SegmentRequest, SegmentResponse, size},
};

/// Lets the server split the text.
pub(super) fn run(args: &Args, model: &ServedModel) -> Result<SegmentedText> {
    let request = SegmentRequest {
        model: model.name.clone(),
        text: args.text.text()?,
        boundary_mode: args.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
        seed: Some(args.boundaries.seed),
        ..SegmentRequest::default()
    };
    let SegmentResponse { segments, usage, .. } = model.call(async |client| client.segment(request).await)?;
    let symbols = size(usage.unwrap_or_default().prompt_chars);
    // The API has the segments of the first level only.
    Ok(SegmentedText { symbols, segments: segments.into_iter().map(segment).collect(), levels: Vec::new() })
}

fn segment(segment: Segment) -> TextSegment {
    let Segment { text, char_start, char_end, boundary_probability, open, .. } = segment;
    let start = size(char_start);
    let end = size(char_end);
    TextSegment { text, start, end, probability: boundary_probability, closed: !open, depth: 0 }
}
