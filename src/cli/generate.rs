//! `weir generate`: streams text generated from a prompt by a server, which runs in this process unless `--server` names another.

use crate::cli::document::{TextInput, read_text_arguments};
use crate::cli::flag_names;
use crate::cli::model::{
    BoundaryArgs, DescribedModel, ModelSource, ModelSourceArgs, own_limits, read_text, size, speculation,
};
use crate::cli::output;
use clap::ArgGroup;
use serde_json::{Value, json};
use std::{
    io::{IsTerminal, stderr},
    path::PathBuf,
};
use weir_engine::{sampling::StopStrings, speculation::Speculation};
use weir_kernels::error::{Error, Result};
use weir_models::contract::BoundaryMode;
use weir_proto::v1::generate_response::Event as GenerateEvent;
use weir_proto::v1::{
    Choice, Constraint, Details, FinishReason, Finished, GenerateRequest, Model, Piece, Sampling, Stopping, Usage,
    constraint::Form,
};

/// Runs the command. Fails if the checkpoint, the prompt or an option is invalid, if the server rejects the call, or if stdout
/// cannot be written.
pub fn run(args: Args) -> Result<()> {
    let prompt = args.read_prompt()?;
    let source = args.model.open()?;
    if let ModelSource::Process(model) = &source
        && let Ok(stop) = StopStrings::new(args.stop.clone(), model.card())
    {
        for text in args.stop.iter().filter(|text| !stop.texts.contains(text)) {
            output::note(&format!("--stop: {text:?} never matches, because the model cannot generate it"));
        }
    }
    let model = &source.served(own_limits())?;
    // Before the call: a note names the normaliser, and JSON lists end-of-segment symbols.
    let described = DescribedModel::new(model)?;
    let request = args.request(described.name(), &prompt)?;
    let with_flag = |error| prompt.with_flag(error);
    let waiting = output::Waiting::for_text("reading", prompt.text.len());
    let messages = model.call(async |client| client.generate(request).await).map_err(with_flag)?;
    let segment_ends = if args.json { args.segment_ends(described.description()?) } else { None };
    let mut printer = Printer::new(args.json, segment_ends);
    let mut finished = None;
    let mut waiting = Some(waiting);
    let ended = model.each(messages, |message| match message.event {
        Some(GenerateEvent::Piece(piece)) => {
            waiting = None;
            printer.push(&piece)
        }
        Some(GenerateEvent::Finished(end)) => {
            finished = Some(end);
            Ok(())
        }
        // Now, because a note after the first piece would stand within the text.
        Some(GenerateEvent::Started(started)) => {
            described.report_normalised(prompt.flag, &prompt.text, size(started.normalized_chars()));
            Ok(())
        }
        None => Ok(()),
    });
    drop(waiting);
    let finished = ended.and_then(|()| finished.ok_or_else(|| model.client.incomplete("an end")));
    let finished: Finished = finished.map_err(|error| printer.broken(with_flag(error)))?;
    printer.finish(&finished)
}

impl Args {
    /// Reads the prompt. The line break at the end of a file or of standard input does not belong to it.
    fn read_prompt(&self) -> Result<TextInput> {
        let arguments = [("PROMPT", self.positional.as_deref()), ("--prompt", self.prompt.as_deref())];
        let mut prompt = read_text_arguments(arguments, self.file.as_deref(), self.ids.as_deref())?;
        if prompt.is_file
            && let Some(text) = prompt.text.strip_suffix('\n')
        {
            prompt.text = text.strip_suffix('\r').unwrap_or(text).to_owned();
        }
        Ok(prompt)
    }

    fn request(&self, model: Option<String>, prompt: &TextInput) -> Result<GenerateRequest> {
        let Self { temperature, top_k, top_p, min_p, max_chars, max_segments, .. } = *self;
        Ok(GenerateRequest {
            model,
            prompt: prompt.text.clone(),
            prompt_ids: prompt.ids.clone(),
            sampling: Some(Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                seed: Some(self.boundaries.seed),
                logit_bias: Vec::new(),
            }),
            stopping: Some(Stopping {
                max_chars,
                min_chars: Some(self.min_chars),
                max_segments,
                stop: self.stop.clone(),
                include_stop: None,
                ignore_eos: Some(self.ignore_eos),
            }),
            // Boundaries are known one step later than their symbols, so plain text does not wait for them.
            details: self.json.then(|| Details { boundaries: Some(true), ..Details::default() }),
            boundary_mode: self.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
            boundary_threshold: self.boundaries.boundary_threshold,
            speculate: self.speculate.map(|setting| setting.to_string()),
            constraint: self
                .constraint
                .message()?
                .map(|constraint| Constraint { end_when_complete: self.end_when_complete, ..constraint }),
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

/// Generates text.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true, group = ArgGroup::new("input").args(["positional", "prompt", "file", "ids"]))]
pub struct Args {
    /// Text to continue; - for standard input. Without a prompt, a file and ids, the prompt comes from standard input, unless that is
    /// a terminal.
    #[arg(value_name = "PROMPT")]
    positional: Option<String>,
    /// Text to continue; - for standard input.
    #[arg(long)]
    prompt: Option<String>,
    /// File with the text to continue in UTF-8; - for standard input. A line break at its end is left out.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Symbol ids of the prompt, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// Maximum symbols to generate. Default: 256, or fewer if the prompt leaves less room.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CHARS", visible_alias = "max-tokens")]
    max_chars: Option<u32>,
    /// Minimum symbols before a stop string takes effect.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_MIN_CHARS")]
    min_chars: u32,
    /// Maximum segments to close.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SEGMENTS")]
    max_segments: Option<u32>,
    /// Stop before this string. The flag can be repeated.
    #[arg(long, value_name = "TEXT", env = "WEIR_STOP")]
    stop: Vec<String>,
    /// Do not let the model end the text, if it has an end-of-text symbol or an end byte.
    #[arg(long, env = "WEIR_IGNORE_EOS", value_parser = clap::builder::BoolishValueParser::new())]
    ignore_eos: bool,
    /// Sampling temperature; 0 selects the most probable symbol each time. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "T", env = "WEIR_TEMPERATURE")]
    temperature: Option<f32>,
    /// Sample from the K most probable symbols; 0 keeps all. Default: the checkpoint's, else 0.
    #[arg(long, value_name = "K", env = "WEIR_TOP_K")]
    top_k: Option<u32>,
    /// Sample from the most probable symbols whose probabilities add up to P. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "P", env = "WEIR_TOP_P")]
    top_p: Option<f32>,
    /// Sample from symbols at least P times as probable as the most probable one. Default: the checkpoint's, else 0.
    #[arg(long, value_name = "P", env = "WEIR_MIN_P")]
    min_p: Option<f32>,
    /// Penalize symbols that occurred before by this factor; 1 has no effect. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "X", env = "WEIR_REPETITION_PENALTY")]
    repetition_penalty: Option<f32>,
    /// Penalize symbols that were generated before by this number, -2 to 2. Default: 0.
    #[arg(long, value_name = "X", env = "WEIR_PRESENCE_PENALTY")]
    presence_penalty: Option<f32>,
    /// Penalize a symbol by this number, -2 to 2, for each time that it was generated before. Default: 0.
    #[arg(long, value_name = "X", env = "WEIR_FREQUENCY_PENALTY")]
    frequency_penalty: Option<f32>,
    /// Guess symbols that are checked in one step: `auto`, `off`, or the most symbols to guess at a time, 1 to 16. The text does
    /// not depend on it. Default: the server's setting; without a server `off`.
    #[arg(long, value_name = "auto|off|N", env = "WEIR_SPECULATE", value_parser = speculation)]
    speculate: Option<Speculation>,
    #[command(flatten)]
    constraint: ConstraintArgs,
    /// With a model without an end mark: end a complete text once it prefers symbols that are not allowed. Default: with `--choice` and
    /// JSON.
    #[arg(long, value_name = "true|false", env = "WEIR_END_WHEN_COMPLETE", requires = "constraint")]
    end_when_complete: Option<bool>,
    #[command(flatten)]
    boundaries: BoundaryArgs,
    /// Print JSON when generation has finished.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
    #[command(flatten)]
    model: ModelSourceArgs,
}

/// The form that the text must have.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("constraint").args(["regex", "choice", "json_schema", "json_object", "grammar"]))]
pub(super) struct ConstraintArgs {
    /// Only write a text that matches this regular expression.
    #[arg(long, value_name = "REGEX", env = "WEIR_REGEX")]
    regex: Option<String>,
    /// Only write this text, or one of several if the flag is repeated.
    #[arg(long, value_name = "TEXT", env = "WEIR_CHOICE")]
    choice: Vec<String>,
    /// Only write JSON of the schema in this file.
    #[arg(long, value_name = "FILE", env = "WEIR_JSON_SCHEMA")]
    json_schema: Option<PathBuf>,
    /// Only write a JSON object.
    #[arg(long, env = "WEIR_JSON_OBJECT", value_parser = clap::builder::BoolishValueParser::new())]
    json_object: bool,
    /// Only write a text of the Lark grammar in this file.
    #[arg(long, value_name = "FILE", env = "WEIR_GRAMMAR")]
    grammar: Option<PathBuf>,
}

impl ConstraintArgs {
    /// Returns the message of the constraint, if there is one. Fails if a file cannot be read.
    pub(super) fn message(&self) -> Result<Option<Constraint>> {
        let form = match self {
            Self { regex: Some(regex), .. } => Form::Regex(regex.clone()),
            Self { json_schema: Some(file), .. } => Form::JsonSchema(read_text("--json-schema", file)?),
            Self { grammar: Some(file), .. } => Form::Grammar(read_text("--grammar", file)?),
            Self { json_object: true, .. } => Form::JsonObject(true),
            Self { choice, .. } if !choice.is_empty() => Form::Choice(Choice { texts: choice.clone() }),
            _ => return Ok(None),
        };
        Ok(Some(Constraint { form: Some(form), end_when_complete: None }))
    }
}

/// How a model with special symbols ends segments.
struct SegmentEnds {
    /// The end-of-segment symbol.
    symbol: u32,
    /// True if the model generates it.
    is_generated: bool,
}

/// Prints text at once, or collects it for JSON.
struct Printer {
    json: bool,
    /// Segment ends of a model with special symbols.
    segment_ends: Option<SegmentEnds>,
    /// Characters that were written.
    written: usize,
    text: String,
    ids: Vec<u32>,
    /// True if a segment ends with the symbol of this index; `None` if unknown.
    boundaries: Vec<Option<bool>>,
}

impl Printer {
    fn new(json: bool, segment_ends: Option<SegmentEnds>) -> Self {
        Self { json, segment_ends, written: 0, text: String::new(), ids: Vec::new(), boundaries: Vec::new() }
    }

    /// Takes the next part of the text, and its symbols, which only JSON needs.
    fn push(&mut self, piece: &Piece) -> Result<()> {
        if !self.json {
            output::write(&piece.text)?;
            self.written += piece.text.chars().count();
            return Ok(());
        }
        self.text += &piece.text;
        self.ids.extend(piece.characters.iter().map(|character| character.id));
        self.boundaries.extend(piece.characters.iter().map(|character| character.boundary));
        Ok(())
    }

    /// Returns the error of a stream that broke, with what was written before. An error of the output is no such.
    fn broken(&self, error: Error) -> Error {
        if self.written == 0 || matches!(error, Error::Io { .. }) {
            return error;
        }
        // The message would stand behind the text.
        if stderr().is_terminal() {
            output::to_stderr("");
        }
        let why = flag_names::message(error);
        Error::Setting(format!("{why}; the text is incomplete: {} characters were written", self.written))
    }

    fn finish(self, end: &Finished) -> Result<()> {
        if !self.json {
            return output::write("\n");
        }
        output::json(&self.as_json(end))
    }

    fn as_json(&self, end: &Finished) -> Value {
        let usage = end.usage.unwrap_or_default();
        let boundaries: Vec<_> = self.boundaries.iter().map(|boundary| boundary.map(u8::from)).collect();
        let mut object = json!({
            "ids": self.ids,
            "text": self.text,
            "boundaries": boundaries,
            "reason": reason_name(end),
            "usage": Usage {
                prompt_text_chars: Some(usage.prompt_text_chars()),
                generated_text_chars: Some(self.text.chars().count() as u64),
                normalized_chars: Some(usage.normalized_chars()),
                ..usage
            },
            "timing": end.timing.unwrap_or_default(),
        });
        if !end.levels.is_empty() {
            object["levels"] = json!(end.levels);
        }
        if let Some(ends) = &self.segment_ends {
            object["events"] = json!(self.events(ends, &usage));
        }
        object
    }

    /// Returns the symbols and, if the model generates them, the end-of-segment symbols, in the order of generation.
    fn events(&self, ends: &SegmentEnds, usage: &Usage) -> Vec<u32> {
        let is_end = |boundary: Option<bool>| ends.is_generated && boundary == Some(true);
        let after_symbols = self.boundaries.iter().filter(|&&boundary| is_end(boundary)).count();
        // One more means that the first draw closed the prompt's open segment.
        let mut events = vec![ends.symbol; usize::from(size(usage.nxt_steps) > after_symbols)];
        for (&id, &boundary) in self.ids.iter().zip(&self.boundaries) {
            events.push(id);
            events.extend(is_end(boundary).then_some(ends.symbol));
        }
        events
    }
}

/// Returns why a generation ended, by the name that commands print.
fn reason_name(finished: &Finished) -> String {
    match finished.reason() {
        FinishReason::Unspecified => "end".into(),
        reason => reason.as_str_name().trim_start_matches("FINISH_REASON_").to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::options;

    #[test]
    fn reasons_have_the_names_of_the_engine() {
        let pairs = [
            (FinishReason::MaxChars, options::FinishReason::MaxChars),
            (FinishReason::MaxSegments, options::FinishReason::MaxSegments),
            (FinishReason::Stop, options::FinishReason::Stop(0)),
            (FinishReason::MaxContext, options::FinishReason::MaxContext),
            (FinishReason::EndOfText, options::FinishReason::EndOfText),
            (FinishReason::Constraint, options::FinishReason::Constraint),
            (FinishReason::Unspecified, options::FinishReason::End),
        ];
        for (wire, engine) in pairs {
            let finished = Finished { reason: wire.into(), ..Finished::default() };
            assert_eq!(reason_name(&finished), engine.name());
        }
    }
}
