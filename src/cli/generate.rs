//! `weir generate`: streams text generated from a prompt, with the engine that the server uses.

use super::{
    model::{BoundaryArgs, ModelArgs},
    notes, output,
};
use crate::{
    decode::{
        contract::{BoundaryMode, Model},
        options::{Details, EmittedSymbol, FinishReason, Generate, Sampling, Stopping},
        usage::{Timing, Usage},
    },
    engine::{Event, Handle, Job, Limits},
    error::{Error, Result},
    text::{StreamDetokenizer, TextCounter, text_chars},
};
use serde_json::{Value, json};

/// Generates text.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to continue.
    #[arg(long, required_unless_present = "ids", conflicts_with = "ids")]
    prompt: Option<String>,
    /// Symbol ids of the prompt, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// Maximum symbols to generate. Default: 256, or fewer if the prompt leaves less room.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CHARS")]
    max_chars: Option<usize>,
    /// Minimum symbols before a stop string takes effect.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_MIN_CHARS")]
    min_chars: usize,
    /// Maximum segments to close.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SEGMENTS")]
    max_segments: Option<usize>,
    /// Stop before this string. The flag can be repeated.
    #[arg(long, value_name = "TEXT", env = "WEIR_STOP")]
    stop: Vec<String>,
    /// Do not let the model end the text, if it has an end-of-text symbol.
    #[arg(long, env = "WEIR_IGNORE_EOS", value_parser = clap::builder::BoolishValueParser::new())]
    ignore_eos: bool,
    /// Sampling temperature; 0 selects the most probable symbol each time. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "T", env = "WEIR_TEMPERATURE")]
    temperature: Option<f32>,
    /// Sample from the K most probable symbols; 0 keeps all. Default: the checkpoint's, else 0.
    #[arg(long, value_name = "K", env = "WEIR_TOP_K")]
    top_k: Option<usize>,
    /// Sample from the most probable symbols whose probabilities add up to P. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "P", env = "WEIR_TOP_P")]
    top_p: Option<f32>,
    /// Sample from symbols at least P times as probable as the most probable one. Default: the checkpoint's, else 0.
    #[arg(long, value_name = "P", env = "WEIR_MIN_P")]
    min_p: Option<f32>,
    /// Penalize symbols that occurred before by this factor; 1 has no effect. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "X", env = "WEIR_REPETITION_PENALTY")]
    repetition_penalty: Option<f32>,
    #[command(flatten)]
    boundaries: BoundaryArgs,
    /// Print JSON when generation has finished.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Runs the command. Fails if the checkpoint, the prompt or an option is invalid, or if stdout cannot be written.
pub fn run(args: Args) -> Result<()> {
    let model = args.model.load()?;
    let request = args.request(&*model)?;
    let vocabulary = &model.card().vocabulary;
    let prompt_text_chars = match &args.prompt {
        Some(text) => text_chars(text, &request.prompt, vocabulary),
        None => TextCounter::chars_of(&request.prompt, vocabulary.clone()),
    };
    let normalized_chars = args.prompt.as_deref().map_or(0, |text| vocabulary.normaliser().changed_chars(text));
    let limits = Limits { rows: 1, queue: 1, ..Limits::default() };
    let engine = Handle::start(model.clone(), limits)?;
    let mut events = engine.submit(Job::Generate(request), None)?;
    let mode = args.boundaries.boundary_mode.or(model.card().boundary_modes.first().copied());
    let stream = StreamDetokenizer::new(vocabulary.clone());
    let mut printer = Printer {
        model: &*model,
        mode,
        json: args.json,
        prompt_text_chars,
        normalized_chars,
        characters: Vec::new(),
        stream,
    };
    while let Some(event) = events.blocking_recv() {
        match event? {
            Event::Started { .. } | Event::Coded(_) | Event::Document(_) => {}
            Event::Characters(characters) => printer.print(characters)?,
            Event::Finished { reason, usage, timing } => return printer.finish(&reason, &usage, &timing),
        }
    }
    Err(Error::Internal("the engine ended without an answer".into()))
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
        let stop = self.stop.iter().filter_map(|text| {
            let encoded = vocabulary.encode_stop(text);
            if encoded.is_none() {
                notes::never_matches(text);
            }
            encoded
        });
        let stop = stop.collect();
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
                stop,
                include_stop: false,
                ignore_end: self.ignore_eos,
            },
            // Boundaries are known one step later than their symbols, so plain text does not wait for them.
            details: Details { boundaries: self.json, ..Details::default() },
            boundaries: self.boundaries.options(),
        })
    }
}

/// Prints generated text at once, or collects it for JSON.
struct Printer<'a> {
    model: &'a dyn Model,
    mode: Option<BoundaryMode>,
    json: bool,
    /// Unicode characters of the prompt.
    prompt_text_chars: usize,
    /// Unicode characters of the prompt that normalising replaced or dropped.
    normalized_chars: usize,
    characters: Vec<EmittedSymbol>,
    stream: StreamDetokenizer,
}

impl Printer<'_> {
    fn print(&mut self, characters: Vec<EmittedSymbol>) -> Result<()> {
        if self.json {
            self.characters.extend(characters);
            return Ok(());
        }
        let mut text = String::new();
        for character in &characters {
            text += self.stream.push_symbol(character.symbol, character.cut);
        }
        output::write(&text)
    }

    fn finish(mut self, reason: &FinishReason, usage: &Usage, timing: &Timing) -> Result<()> {
        if !self.json {
            return output::write(&format!("{}\n", self.stream.finish()));
        }
        let ids: Vec<u32> = self.characters.iter().map(|character| character.symbol).collect();
        let mut text = String::new();
        for character in &self.characters {
            text += self.stream.push_symbol(character.symbol, character.cut);
        }
        text += self.stream.finish();
        let boundary = |character: &EmittedSymbol| character.decision.map(|mark| u8::from(mark.boundary));
        let mut object = json!({
            "ids": ids,
            "text": text,
            "boundaries": self.characters.iter().map(boundary).collect::<Vec<_>>(),
            "reason": reason.name(),
            "usage": usage_json(usage, self.prompt_text_chars, text.chars().count(), self.normalized_chars),
            "timing": timing_json(timing),
        });
        if let Some(specials) = self.model.card().vocabulary.specials() {
            object["events"] = json!(self.events(specials.segment_end, usage));
        }
        output::json(&object)
    }

    /// Returns the symbols and, if the model generates them, the end-of-segment symbols, in the order of generation.
    fn events(&self, nxt: u32, usage: &Usage) -> Vec<u32> {
        let marked = self.mode == Some(BoundaryMode::Nxt);
        let ends = |character: &EmittedSymbol| marked && character.decision.is_some_and(|mark| mark.boundary);
        let after_symbols = self.characters.iter().filter(|character| ends(character)).count();
        // One more means that the first draw closed the prompt's open segment.
        let mut events = vec![nxt; usize::from(usage.nxt_steps > after_symbols)];
        for character in &self.characters {
            events.push(character.symbol);
            events.extend(ends(character).then_some(nxt));
        }
        events
    }
}

fn usage_json(usage: &Usage, prompt_text_chars: usize, generated_text_chars: usize, normalized_chars: usize) -> Value {
    json!({
        "prompt_chars": usage.prompt_chars,
        "cached_chars": usage.cached_chars,
        "generated_chars": usage.generated_chars,
        "prompt_text_chars": prompt_text_chars,
        "generated_text_chars": generated_text_chars,
        "normalized_chars": normalized_chars,
        "prompt_segments": usage.prompt_segments,
        "generated_segments": usage.generated_segments,
        "shortening_factor": usage.shortening_factor(),
        "nxt_steps": usage.nxt_steps,
    })
}

fn timing_json(timing: &Timing) -> Value {
    json!({
        "queue_ns": timing.queue_ns,
        "prefill_ns": timing.prefill_ns,
        "time_to_first_char_ns": timing.time_to_first_char_ns,
        "decode_ns": timing.decode_ns,
        "total_ns": timing.total_ns,
        "steps": timing.steps,
        "middle_steps": timing.middle_steps,
        "middle_ns": timing.middle_ns,
    })
}
