//! `weir generate`: streams text generated from a prompt by a server, which runs in this process unless `--server` names another.

mod args;
mod printer;

pub use args::Args;

use super::{
    model_source::{DescribedModel, ModelSource, narrow, own_limits},
    notes,
    wire::size,
};
use crate::{
    decode::{contract::BoundaryMode, stop_strings::StopStrings},
    error::Result,
};
use printer::{Printer, SegmentEnds};
use weir_proto::v1::{
    Details, Finished, GenerateRequest, Model, Sampling, Stopping, generate_response::Event as GenerateEvent,
};

/// Runs the command. Fails if the checkpoint, the prompt or an option is invalid, if the server rejects the call, or if stdout
/// cannot be written.
pub fn run(args: Args) -> Result<()> {
    let source = args.model.open()?;
    if let ModelSource::Process(model) = &source
        && let Ok(stop) = StopStrings::new(args.stop.clone(), model.card())
    {
        args.stop.iter().filter(|text| !stop.texts.contains(text)).for_each(|text| notes::never_matches(text));
    }
    let model = &source.served(own_limits())?;
    // Before the call: a note names the normaliser, and JSON lists end-of-segment symbols.
    let described = DescribedModel::new(model)?;
    let request = args.request(described.name())?;
    let messages = model.call(async |client| client.generate(request).await)?;
    let segment_ends = if args.json { args.segment_ends(described.description()?) } else { None };
    let mut printer = Printer::new(args.json, segment_ends);
    let mut finished = None;
    model.each(messages, |message| match message.event {
        Some(GenerateEvent::Piece(piece)) => printer.push(&piece),
        Some(GenerateEvent::Finished(end)) => {
            finished = Some(end);
            Ok(())
        }
        // Now, because a note after the first piece would stand within the text.
        Some(GenerateEvent::Started(started)) => {
            described.report_normalised("--prompt", args.prompt_text(), size(started.normalized_chars()));
            Ok(())
        }
        None => Ok(()),
    })?;
    let finished: Finished = finished.ok_or_else(|| model.incomplete("an end"))?;
    printer.finish(&finished)
}

impl Args {
    fn request(&self, model: Option<String>) -> Result<GenerateRequest> {
        let Self { temperature, top_p, min_p, repetition_penalty, .. } = self;
        let top_k = self.top_k.map(|value| narrow("--top-k", value)).transpose()?;
        let max_segments = self.max_segments.map(|value| narrow("--max-segments", value)).transpose()?;
        Ok(GenerateRequest {
            model,
            prompt: self.prompt_text().to_owned(),
            prompt_ids: self.ids.clone().unwrap_or_default(),
            sampling: Some(Sampling {
                temperature: *temperature,
                top_k,
                top_p: *top_p,
                min_p: *min_p,
                repetition_penalty: *repetition_penalty,
                seed: Some(self.boundaries.seed),
                logit_bias: Vec::new(),
            }),
            stopping: Some(Stopping {
                max_chars: self.max_chars.map(|value| narrow("--max-chars", value)).transpose()?,
                min_chars: Some(narrow("--min-chars", self.min_chars)?),
                max_segments,
                stop: self.stop.clone(),
                include_stop: None,
                ignore_eos: Some(self.ignore_eos),
            }),
            // Boundaries are known one step later than their symbols, so plain text does not wait for them.
            details: self.json.then(|| Details { boundaries: Some(true), ..Details::default() }),
            boundary_mode: self.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
            speculate: self.speculate.map(|setting| setting.to_string()),
            ..GenerateRequest::default()
        })
    }

    /// Returns how the model ends segments, if it has symbols for that.
    fn segment_ends(&self, model: &Model) -> Option<SegmentEnds> {
        let symbol = *model.vocabulary.as_ref()?.marks.get("segment_end")?;
        let default = model.boundary_modes.first().map(String::as_str);
        let mode = self.boundaries.boundary_mode.map(BoundaryMode::name).or(default);
        Some(SegmentEnds { symbol, is_generated: mode == Some(BoundaryMode::Nxt.name()) })
    }
}
