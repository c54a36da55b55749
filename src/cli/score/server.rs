//! Scores from a server.

use super::{
    args::Args,
    lengths::{LengthScore, LengthScores, check_lengths},
    marked_text::MarkedTextBits,
    scored_text::ScoredText,
    text_bits::TextBits,
    windowed_text::WindowedText,
};
use crate::cli::wire::size;
use crate::{
    cli::model_source::{DescribedModel, ServedModel, narrow},
    decode::{boundary::levels, contract::BoundaryMode, evaluate::windows, options::WindowOptions},
    error::{Error, Result},
    text::SpecialSymbols,
};
use std::f64::consts::LN_2;
use weir_proto::v1::{Character, Model, ScoreRequest, ScoreSummary, Windows, score_response::Event as ScoreEvent};

/// The response to one call.
struct Response {
    characters: Vec<Character>,
    summary: ScoreSummary,
}

impl Response {
    /// ln p of each scored character.
    fn logprobs(&self) -> Vec<f64> {
        self.characters.iter().filter_map(|character| character.logprob).map(f64::from).collect()
    }

    /// Boundaries of the characters that have one.
    fn boundaries(&self) -> Vec<u8> {
        self.characters.iter().filter_map(|character| character.boundary).map(u8::from).collect()
    }

    /// True if the first character has a score, because a start-of-text symbol precedes it.
    fn has_start(&self) -> bool {
        self.characters.first().is_some_and(|first| first.logprob.is_some())
    }

    fn normalized_chars(&self) -> usize {
        self.summary.usage.as_ref().map_or(0, |usage| size(usage.normalized_chars()))
    }

    fn text_chars(&self) -> usize {
        self.summary.usage.as_ref().map_or(0, |usage| size(usage.prompt_text_chars()))
    }

    fn text_bits(&self, model: &Model) -> TextBits {
        let nats: f64 = self.logprobs().iter().sum();
        let scored = self.summary.scored_chars;
        TextBits {
            is_subword: model.vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.pieces),
            per_char: self.summary.bits_per_char,
            per_byte: self.summary.bits_per_byte,
            per_token: (scored > 0).then(|| -nats / LN_2 / scored as f64),
        }
    }

    fn marked(&self, model: &Model) -> Option<MarkedTextBits> {
        let mut marked = MarkedTextBits::new(specials(model)?, model.pooled);
        for character in &self.characters {
            if let Some(logprob) = character.logprob {
                marked.add_symbol(character.id, logprob.into());
            }
            marked.add_end(character.nxt_logprob);
        }
        Some(marked)
    }
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

fn call(args: &Args, described: &DescribedModel<'_>, text: String, size: Option<WindowOptions>) -> Result<Response> {
    let model = described.model;
    let windows = |flag, size: WindowOptions| {
        Ok::<_, Error>(Windows { length: narrow(flag, size.length)?, stride: narrow(flag, size.stride)? })
    };
    let flag = if args.lengths.is_empty() { "--windowed" } else { "--lengths" };
    let request = ScoreRequest {
        model: described.name(),
        text,
        boundary_mode: args.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
        seed: Some(args.boundaries.seed),
        windows: size.map(|size| windows(flag, size)).transpose()?,
        ..ScoreRequest::default()
    };
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
    Ok(Response { characters, summary })
}

/// Lets the server score the text as one sequence.
pub(super) fn whole(args: &Args, model: &ServedModel, text: String) -> Result<ScoredText> {
    let described = DescribedModel::new(model)?;
    let response = call(args, &described, text.clone(), None)?;
    described.report_normalised(args.text.flag(), &text, response.normalized_chars());
    let described = described.description()?;
    let mut boundaries = response.boundaries();
    if response.has_start() {
        // The start-of-text symbol is a segment of its own.
        boundaries.insert(0, described.pooled.into());
    }
    let marked = response.marked(described);
    let default = described.boundary_modes.first().and_then(|name| BoundaryMode::parse(name));
    Ok(ScoredText {
        symbols: response.characters.len(),
        text_chars: response.text_chars(),
        fed: response.characters.len(),
        logprobs: response.logprobs(),
        boundaries,
        levels: levels(
            response.characters.iter().map(|character| u8::try_from(character.chunk_depth).unwrap_or(u8::MAX)),
        ),
        text_bits: response.text_bits(described),
        marked,
        mode: args.boundaries.boundary_mode.or(default),
        is_pooled: described.pooled,
    })
}

/// Lets the server score the text in windows.
pub(super) fn windowed(args: &Args, model: &ServedModel, text: String, size: WindowOptions) -> Result<WindowedText> {
    let described = DescribedModel::new(model)?;
    let response = call(args, &described, text.clone(), Some(size))?;
    described.report_normalised(args.text.flag(), &text, response.normalized_chars());
    let described = described.description()?;
    let symbols = response.characters.len();
    let loss = |scored: &[Character]| {
        let nats: f64 = scored.iter().filter_map(|character| character.logprob).map(f64::from).sum();
        -nats / scored.len() as f64
    };
    let scored = windows(symbols, size).filter_map(|window| response.characters.get(window.scored..window.end));
    Ok(WindowedText {
        symbols,
        text_chars: response.text_chars(),
        window_losses: scored.map(loss).collect(),
        shortening_factor: response.summary.usage.as_ref().and_then(|usage| usage.shortening_factor),
        boundaries: response.boundaries(),
        text_bits: response.text_bits(described),
        logprobs: response.logprobs(),
    })
}

/// Lets the server score the text at each length, in a call each.
pub(super) fn lengths(args: &Args, model: &ServedModel, text: &str) -> Result<LengthScores> {
    let described = DescribedModel::new(model)?;
    let limits = described.description.as_ref().and_then(|description| description.limits.as_ref());
    let max_symbols = limits.map_or(usize::MAX, |limits| size(limits.max_symbols));
    let mut scores = Vec::with_capacity(args.lengths.len());
    let mut symbols = 0;
    for &length in &args.lengths {
        // The number of symbols is known after the first call.
        check_lengths(&[length], if symbols > 0 { symbols } else { usize::MAX }, max_symbols)?;
        let length = length as usize;
        let windowed = WindowOptions { length, stride: length };
        let response = call(args, &described, text.to_owned(), Some(windowed))?;
        let text_bits = response.text_bits(described.description()?);
        if symbols == 0 {
            described.report_normalised(args.text.flag(), text, response.normalized_chars());
        }
        symbols = response.characters.len();
        check_lengths(&args.lengths, symbols, max_symbols)?;
        let logprobs = response.logprobs();
        let pieces = windows(symbols, windowed).count();
        let nats = -logprobs.iter().sum::<f64>();
        scores.push(LengthScore { length, pieces, nats, scored: logprobs.len(), text_bits });
    }
    Ok(LengthScores { symbols, training_length: size(described.description()?.training_length), scores })
}
