//! Generation by an engine in this process.

use super::{
    args::Args,
    printer::{GeneratedSymbol, GenerationEnd, Printer, SegmentEnds},
};
use crate::{
    cli::{flag_names::with_flag, notes},
    decode::{
        contract::{BoundaryMode, Model},
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
    let request = args.request(&**model)?;
    let vocabulary = &model.card().vocabulary;
    let prompt_text_chars = match &args.prompt {
        Some(text) => text_chars(text, &request.prompt, vocabulary),
        None => TextCounter::chars_of(&request.prompt, vocabulary.clone()),
    };
    let normalized_chars = args.prompt.as_deref().map_or(0, |text| vocabulary.normaliser().changed_chars(text));
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
    fn request(&self, model: &dyn Model) -> Result<Generate> {
        let vocabulary = &model.card().vocabulary;
        let prompt = match &self.ids {
            Some(ids) => ids.clone(),
            None => {
                let text = self.prompt.as_deref().unwrap_or_default();
                let symbols = model.card().encode("--prompt", text)?;
                notes::normalised("--prompt", text, vocabulary);
                symbols
            }
        };
        let stop = StopStrings::new(self.stop.clone(), model.card())?;
        self.stop.iter().filter(|text| !stop.texts.contains(text)).for_each(|text| notes::never_matches(text));
        let stated = model.card().sampling;
        let max_chars = self.max_chars.unwrap_or_else(|| Stopping::default_max_chars(prompt.len(), model.card()));
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
