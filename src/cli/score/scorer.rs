//! Scores of one text, from a model in this process or from a server.

use super::args::Args;
use crate::{
    cli::{
        direct::Evaluation,
        flag_names::with_flag,
        model_source::{DescribedModel, narrow},
        scores::{MarkedTextBits, Scores, TextBits},
        wire::size,
    },
    decode::{boundary::levels, contract::BoundaryMode, options::WindowOptions},
    error::{Error, Result},
    text::SpecialSymbols,
};
use std::f64::consts::LN_2;
use weir_proto::v1::{Character, Model, ScoreRequest, ScoreSummary, Windows, score_response::Event as ScoreEvent};

/// A text and the model that scores it.
pub(super) enum Scorer<'a> {
    Direct(Evaluation<'a>),
    Served(DescribedModel<'a>, String),
}

impl Scorer<'_> {
    pub(super) fn score(&self, args: &Args, windows: Option<WindowOptions>) -> Result<Scores> {
        match self {
            Self::Direct(evaluation) => match windows {
                None => evaluation.whole(),
                Some(windows) => evaluation.windowed(windows, !args.lengths.is_empty()),
            },
            Self::Served(model, text) => {
                served(args, model, text, windows).map_err(|error| with_flag(error, "text", args.text.flag()))
            }
        }
    }

    /// Returns the number of symbols if it is known before the text is scored.
    pub(super) fn symbols(&self) -> Option<usize> {
        match self {
            Self::Direct(evaluation) => Some(evaluation.symbols.len()),
            Self::Served(..) => None,
        }
    }

    pub(super) fn max_symbols(&self) -> usize {
        match self {
            Self::Direct(evaluation) => evaluation.model.card().max_symbols,
            Self::Served(model, _) => {
                let limits = model.description.as_ref().and_then(|description| description.limits.as_ref());
                limits.map_or(usize::MAX, |limits| size(limits.max_symbols))
            }
        }
    }

    /// Returns the length of the model's training windows, after a successful call.
    pub(super) fn training_length(&self) -> Result<usize> {
        match self {
            Self::Direct(evaluation) => Ok(evaluation.model.card().training_length),
            Self::Served(model, _) => Ok(size(model.description()?.training_length)),
        }
    }

    /// Returns the model's default boundary mode, and true if it pools its input; after a successful call.
    pub(super) fn boundaries(&self) -> Result<(Option<BoundaryMode>, bool)> {
        match self {
            Self::Direct(evaluation) => {
                let card = evaluation.model.card();
                Ok((card.boundary_modes.first().copied(), card.pooled))
            }
            Self::Served(model, _) => {
                let model = model.description()?;
                Ok((model.boundary_modes.first().and_then(|name| BoundaryMode::parse(name)), model.pooled))
            }
        }
    }
}

/// Lets the server score the text.
fn served(args: &Args, described: &DescribedModel<'_>, text: &str, windows: Option<WindowOptions>) -> Result<Scores> {
    let flag = if args.lengths.is_empty() { "--windowed" } else { "--lengths" };
    let wire = |size: WindowOptions| {
        Ok::<_, Error>(Windows { length: narrow(flag, size.length)?, stride: narrow(flag, size.stride)? })
    };
    let request = ScoreRequest {
        model: described.name(),
        text: text.to_owned(),
        boundary_mode: args.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
        seed: Some(args.boundaries.seed),
        windows: windows.map(wire).transpose()?,
        ..ScoreRequest::default()
    };
    let model = described.model;
    let messages = model.call(async |client| client.score(request).await)?;
    let mut characters = Vec::new();
    let mut summary = None;
    model.each(messages, |message| {
        match message.event {
            Some(ScoreEvent::Chunk(chunk)) => characters.extend(chunk.characters),
            Some(ScoreEvent::Summary(end)) => summary = Some(end),
            None => {}
        }
        Ok(())
    })?;
    let summary = summary.ok_or_else(|| model.incomplete("a summary"))?;
    let usage = summary.usage.unwrap_or_default();
    // Once, although each length is a call.
    if args.lengths.first().is_none_or(|&first| windows.is_some_and(|windows| windows.length == first as usize)) {
        described.report_normalised(args.text.flag(), text, size(usage.normalized_chars()));
    }
    let model = described.description()?;
    let logprobs: Vec<f64> = characters.iter().filter_map(|scored| scored.logprob).map(f64::from).collect();
    let mut boundaries: Vec<u8> = characters.iter().filter_map(|scored| scored.boundary).map(u8::from).collect();
    let has_start = characters.first().is_some_and(|first| first.logprob.is_some());
    if windows.is_none() && has_start {
        // The start-of-text symbol is a segment of its own.
        boundaries.insert(0, model.pooled.into());
    }
    let depth = |scored: &Character| u8::try_from(scored.chunk_depth).unwrap_or(u8::MAX);
    Ok(Scores {
        symbols: characters.len(),
        fed: characters.len(),
        text_chars: size(usage.prompt_text_chars()),
        text_bits: text_bits(&summary, &logprobs, model),
        logprobs,
        boundaries,
        levels: levels(characters.iter().map(depth)),
        shortening_factor: usage.shortening_factor,
        marked: marked(&characters, model),
    })
}

fn text_bits(summary: &ScoreSummary, logprobs: &[f64], model: &Model) -> TextBits {
    let scored = summary.scored_chars;
    TextBits {
        is_subword: model.vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.pieces),
        per_char: summary.bits_per_char,
        per_byte: summary.bits_per_byte,
        per_token: (scored > 0).then(|| -logprobs.iter().sum::<f64>() / LN_2 / scored as f64),
    }
}

/// Returns the sums of a model with special symbols.
fn marked(characters: &[Character], model: &Model) -> Option<MarkedTextBits> {
    let mut marked = MarkedTextBits::new(specials(model)?, model.pooled);
    for character in characters {
        if let Some(logprob) = character.logprob {
            marked.add_symbol(character.id, logprob.into());
        }
        marked.add_end(character.nxt_logprob);
    }
    Some(marked)
}

/// Returns the special symbols of a model that has them.
fn specials(model: &Model) -> Option<SpecialSymbols> {
    let marks = &model.vocabulary.as_ref()?.marks;
    let id = |name: &str| marks.get(name).copied();
    Some(SpecialSymbols {
        start: id("start")?,
        end: id("end")?,
        segment_start: id("segment_start")?,
        segment_end: id("segment_end")?,
        unknown: id("unknown")?,
    })
}
