//! Generation by an engine in this process.

use super::{
    args::Args,
    printer::{GeneratedSymbol, GenerationEnd, Printer, SegmentEnds},
};
use crate::{
    cli::{flag_names::with_flag, model::EncodedText, notes},
    decode::{
        contract::{BoundaryMode, Card, Model},
        options::{Details, EmittedSymbol, Generate, Sampling, Stopping},
        stop_strings::StopStrings,
    },
    engine::{Event, Handle, Job, Limits},
    error::{Error, Result},
    text::{StreamDetokenizer, TextCounter, text_chars},
};
use std::sync::Arc;

/// Generates with an engine in this process and prints the text.
pub(super) fn run(args: &Args, model: &Arc<dyn Model>) -> Result<()> {
    let EncodedText { symbols, normalized_chars } = args.encode_prompt(&**model)?;
    let request = args.request(symbols, model.card())?;
    let vocabulary = &model.card().vocabulary;
    let prompt_text_chars = match &args.prompt {
        Some(text) => text_chars(text, &request.prompt, vocabulary),
        None => TextCounter::chars_of(&request.prompt, vocabulary.clone()),
    };
    let limits = Limits { rows: 1, queue: 1, ..Limits::default() };
    let engine = Handle::start(Arc::clone(model), limits)?;
    let flag = if args.ids.is_some() { "--ids" } else { "--prompt" };
    let events = engine.submit(Job::Generate(request), None);
    let mut events = events.map_err(|error| with_flag(error, "prompt", flag))?;
    let mode = args.boundaries.boundary_mode.or(model.card().boundary_modes.first().copied());
    let is_generated = mode == Some(BoundaryMode::Nxt);
    let segment_ends = vocabulary.specials().map(|specials| SegmentEnds { symbol: specials.segment_end, is_generated });
    let mut printer = Printer::new(args.json, segment_ends);
    let mut stream = StreamDetokenizer::new(vocabulary.clone());
    while let Some(event) = events.blocking_recv() {
        match event? {
            Event::Started { .. } | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(characters) => {
                let mut text = String::new();
                for character in &characters {
                    text += stream.push_symbol(character.symbol, character.cut);
                }
                printer.push(&text, characters.iter().map(generated))?;
            }
            Event::Finished { reason, usage, timing } => {
                printer.push(stream.finish(), std::iter::empty())?;
                let reason = reason.name();
                return printer.finish(&GenerationEnd { reason, usage, timing, prompt_text_chars, normalized_chars });
            }
        }
    }
    Err(Error::Internal("the engine ended without an answer".into()))
}

fn generated(character: &EmittedSymbol) -> GeneratedSymbol {
    GeneratedSymbol { id: character.symbol, boundary: character.decision.map(|mark| mark.boundary) }
}

impl Args {
    /// Encodes the prompt, and reports what normalising changes.
    fn encode_prompt(&self, model: &dyn Model) -> Result<EncodedText> {
        if let Some(ids) = &self.ids {
            return Ok(EncodedText { symbols: ids.clone(), normalized_chars: 0 });
        }
        let text = self.prompt_text();
        let symbols = model.card().encode("--prompt", text)?;
        Ok(EncodedText { symbols, normalized_chars: notes::normalised("--prompt", text, &model.card().vocabulary) })
    }

    fn request(&self, prompt: Vec<u32>, card: &Card) -> Result<Generate> {
        let stop = StopStrings::new(self.stop.clone(), card)?;
        self.stop.iter().filter(|text| !stop.texts.contains(text)).for_each(|text| notes::never_matches(text));
        let stated = card.sampling;
        let max_chars = self.max_chars.unwrap_or_else(|| Stopping::default_max_chars(prompt.len(), card));
        Ok(Generate {
            prompt,
            sampling: Sampling {
                temperature: self.temperature.unwrap_or(stated.temperature),
                top_k: self.top_k.unwrap_or(stated.top_k),
                top_p: self.top_p.unwrap_or(stated.top_p),
                min_p: self.min_p.unwrap_or(stated.min_p),
                repetition_penalty: self.repetition_penalty.unwrap_or(stated.repetition_penalty),
                seed: self.boundaries.seed,
                logit_bias: Vec::new(),
            },
            stopping: Stopping {
                max_chars,
                min_chars: self.min_chars,
                max_segments: self.max_segments,
                stop: stop.encoded,
                include_stop: false,
                ignore_end: self.ignore_eos,
            },
            // Boundaries are known one step later than their symbols, so plain text does not wait for them.
            details: Details { boundaries: self.json, ..Details::default() },
            boundaries: self.boundaries.options(),
            resumed: Vec::new(),
            speculation: self.speculate,
        })
    }
}
