//! `weir score`: bits per character of a text, and all outputs needed to compare two implementations. A model in this process is
//! evaluated directly, because a server has neither its logits nor its exact log-probabilities.

use crate::cli::{
    direct::Evaluation,
    flag_names::with_flag,
    model::{BoundaryArgs, DescribedModel, ModelSource, ModelSourceArgs, TextArgs, size, whole},
    output,
    scores::{MarkedTextBits, Scores, TextBits},
};
use serde_json::{Map, Value, json};
use std::{f64::consts::LN_2, path::PathBuf};
use weir_engine::{
    options::WindowOptions,
    score::{StepSize, windows},
};
use weir_kernels::error::{Error, Result};
use weir_measure::format::table;
use weir_models::{
    contract::{BoundaryMode, Model, levels},
    text::SpecialSymbols,
};
use weir_proto::v1::{Character, ScoreRequest, ScoreSummary, Windows, score_response::Event as ScoreEvent};

/// Runs the command. Fails if the checkpoint or the text is invalid, if the server rejects the call, or if an output file cannot
/// be written.
pub fn run(args: Args) -> Result<()> {
    match args.model.open()? {
        ModelSource::Process(model) => {
            let model: &dyn Model = &*model;
            let (symbols, has_end) = args.text.symbols_and_end(model)?;
            if has_end && args.windowed.is_some() {
                let bound = "no end-of-text symbol with --windowed (no window scores it)";
                return Err(Error::bad_option("--ids", "one at the end", bound));
            }
            let step = match args.mode {
                ModeArg::Full => StepSize::Full,
                ModeArg::Incremental => StepSize::Incremental,
                ModeArg::Chunked => StepSize::Chunked(args.chunk as usize),
            };
            print(
                &args,
                &Scorer::Direct(Evaluation {
                    model,
                    symbols: &symbols,
                    has_end,
                    flag: args.text.flag(),
                    step,
                    boundaries: args.boundaries.options(),
                    logits: args.logits.as_deref(),
                }),
            )
        }
        ModelSource::Server(model) => {
            let text = args.text.text()?;
            print(&args, &Scorer::Served(DescribedModel::new(&model)?, text))
        }
    }
}

fn print(args: &Args, scorer: &Scorer<'_>) -> Result<()> {
    let (json, text) = if !args.lengths.is_empty() {
        let scores = LengthScores::new(args, scorer)?;
        (scores.as_json(), scores.as_text())
    } else if let Some(windows) = args.windowed {
        windowed_text(&scorer.score(args, Some(windows))?, windows)
    } else {
        let scores = scorer.score(args, None)?;
        let (default, is_pooled) = scorer.boundaries()?;
        scored_text(&scores, args.boundaries.boundary_mode.or(default), is_pooled)
    };
    if args.json { output::json(&json) } else { output::write(&text) }
}

/// Scores a text.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    boundaries: BoundaryArgs,
    /// How the text is split into steps. The results are identical.
    #[arg(long, value_enum, default_value_t = ModeArg::Chunked)]
    mode: ModeArg,
    /// Symbols per step in chunked mode.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = whole::<u32>(1..=u32::MAX), env = "WEIR_CHUNK")]
    chunk: u32,
    /// Evaluate as the papers do: windows of LENGTH symbols, each of which scores its last STRIDE symbols. Outputs at a symbol
    /// come from the window that scores the next symbol; the last symbol has none.
    #[arg(long, value_name = "LENGTH,STRIDE", conflicts_with = "mode", value_parser = parse_windows, env = "WEIR_WINDOWED")]
    windowed: Option<WindowOptions>,
    /// Bits per character by length: splits the text into independent pieces of each LENGTH. Every length scores the same
    /// symbols.
    #[arg(long, value_name = "LENGTH,…", value_delimiter = ',', conflicts_with_all = ["mode", "windowed", "logits"],
        value_parser = whole::<u32>(1..=u32::MAX), env = "WEIR_LENGTHS")]
    lengths: Vec<u32>,
    /// Write logits (symbols, vocabulary) and, for pooled models, boundaries (symbols) to this safetensors file.
    #[arg(long, value_name = "OUT", env = "WEIR_LOGITS")]
    logits: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
    #[command(flatten)]
    model: ModelSourceArgs,
}

/// Values of `--mode`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ModeArg {
    /// All symbols in one step.
    Full,
    /// One symbol per step.
    Incremental,
    /// `--chunk` symbols per step.
    Chunked,
}

/// Parses two numbers LENGTH,STRIDE.
pub(super) fn parse_windows(text: &str) -> std::result::Result<WindowOptions, String> {
    let numbers = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match numbers {
        Some((length, stride)) if 1 <= stride && stride <= length => Ok(WindowOptions { length, stride }),
        _ => Err("expected two numbers LENGTH,STRIDE with 1 ≤ STRIDE ≤ LENGTH".into()),
    }
}

/// Scores of one text at each length.
struct LengthScores {
    symbols: usize,
    /// Symbols of the model's training windows.
    training_length: usize,
    scores: Vec<LengthScore>,
}

struct LengthScore {
    length: usize,
    pieces: usize,
    /// Sum of −ln p over the scored symbols.
    nats: f64,
    scored: usize,
    text_bits: TextBits,
}

impl LengthScore {
    fn bits_per_char(&self) -> Option<f64> {
        self.text_bits.per_char(Some(self.nats / self.scored as f64 / LN_2))
    }
}

/// Fails if a value of `--lengths` is longer than the text of `symbols` symbols allows, or than the model's longest sequence.
fn check_lengths(lengths: &[u32], symbols: usize, max_symbols: usize) -> Result<()> {
    let targets = symbols.saturating_sub(1);
    let limit = targets.min(max_symbols);
    if let Some(length) = lengths.iter().find(|&&length| length as usize > limit) {
        let bound = if limit < targets {
            format!("at most {limit}, the maximum symbols of one sequence")
        } else {
            format!("at most {targets}, since the text has {symbols} symbols and the first is not scored")
        };
        return Err(Error::bad_option("--lengths", length.to_string(), bound));
    }
    Ok(())
}

impl LengthScores {
    /// Scores the text at each length. Fails as [`check_lengths`] and the model's scores do.
    fn new(args: &Args, scorer: &Scorer<'_>) -> Result<Self> {
        let mut scores = Vec::with_capacity(args.lengths.len());
        // A server tells the number of symbols with the first scores.
        let mut symbols = scorer.symbols();
        let check = |symbols: usize| check_lengths(&args.lengths, symbols, scorer.max_symbols());
        check(symbols.unwrap_or(usize::MAX))?;
        for &length in &args.lengths {
            let length = length as usize;
            let piece = WindowOptions { length, stride: length };
            let scored = scorer.score(args, Some(piece))?;
            if symbols.is_none() {
                check(scored.symbols)?;
            }
            symbols = Some(scored.symbols);
            scores.push(LengthScore {
                length,
                pieces: windows(scored.symbols, piece).count(),
                nats: scored.nats(),
                scored: scored.logprobs.len(),
                text_bits: scored.text_bits,
            });
        }
        Ok(Self { symbols: symbols.unwrap_or_default(), training_length: scorer.training_length()?, scores })
    }

    fn as_json(&self) -> Value {
        let entry = |score: &LengthScore| {
            let mut entry = json!({
                "length": score.length,
                "pieces": score.pieces,
                "scored": score.scored,
                "bits_per_char": score.bits_per_char(),
                "extrapolates": score.length > self.training_length,
            });
            if let Some(object) = entry.as_object_mut() {
                score.text_bits.add_json(object);
            }
            entry
        };
        json!({
            "symbols": self.symbols,
            "training_length": self.training_length,
            "lengths": self.scores.iter().map(entry).collect::<Vec<_>>(),
        })
    }

    /// Table with one column per length. Lengths beyond the training length are marked.
    fn as_text(&self) -> String {
        let training = self.training_length;
        let line = |title: &str, cell: &dyn Fn(&LengthScore) -> String| -> Vec<String> {
            std::iter::once(title.to_owned()).chain(self.scores.iter().map(cell)).collect()
        };
        let beyond = |score: &LengthScore| if score.length > training { "extra" } else { "inter" };
        let lines = [
            line("length", &|score| score.length.to_string()),
            line("inter- or extra-", &|score| beyond(score).to_owned()),
            line("bits per character", &|score| score.bits_per_char().map_or("-".into(), |bits| format!("{bits:.4}"))),
        ];
        let scored = self.scores.first().map_or(0, |score| score.scored);
        table(&lines) + &format!("{scored} symbols scored at each length, trained on {training}\n")
    }
}

/// Formats a text that was scored as one sequence in a boundary mode, as JSON and as text.
fn scored_text(scores: &Scores, mode: Option<BoundaryMode>, is_pooled: bool) -> (Value, String) {
    let bits_per_char = match &scores.marked {
        Some(marked) => marked.bits_per_char(mode),
        None => scores.bits_per_char(),
    };
    let closed = scores.boundaries.iter().filter(|&&boundary| boundary == 1).count();
    // The start-of-text symbol is a segment of its own and does not count.
    let closed = closed.saturating_sub(usize::from(is_pooled && scores.marked.is_some()));
    let shortening_factor = (closed > 0).then(|| scores.fed as f64 / closed as f64);
    let mut object = Map::new();
    object.insert("symbols".into(), scores.symbols.into());
    object.insert("text_chars".into(), scores.text_chars.into());
    object.insert("bits_per_char".into(), json!(bits_per_char));
    scores.text_bits.add_json(&mut object);
    if let Some(marked) = &scores.marked {
        object.insert("boundary_mode".into(), mode.map(BoundaryMode::name).into());
        marked.add_json(&mut object);
    }
    object.insert("shortening_factor".into(), json!(shortening_factor));
    object.insert("boundaries".into(), json!(scores.boundaries));
    if let levels @ [_, _, ..] = &*scores.levels {
        object.insert("boundary_levels".into(), json!(levels));
    }
    object.insert("logprobs".into(), json!(scores.logprobs));
    let mut text = format!(
        "{} symbols, {} bits per character{}, shortening factor {}\n",
        scores.symbols,
        output::optional(bits_per_char),
        scores.text_bits.describe(),
        output::optional(shortening_factor)
    );
    text += &scores.marked.as_ref().map_or_else(String::new, MarkedTextBits::text);
    (object.into(), text)
}

/// A text and the model that scores it.
enum Scorer<'a> {
    Direct(Evaluation<'a>),
    Served(DescribedModel<'a>, String),
}

impl Scorer<'_> {
    fn score(&self, args: &Args, windows: Option<WindowOptions>) -> Result<Scores> {
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
    fn symbols(&self) -> Option<usize> {
        match self {
            Self::Direct(evaluation) => Some(evaluation.symbols.len()),
            Self::Served(..) => None,
        }
    }

    fn max_symbols(&self) -> usize {
        match self {
            Self::Direct(evaluation) => evaluation.model.card().max_symbols,
            Self::Served(model, _) => {
                let limits = model.description.as_ref().and_then(|description| description.limits.as_ref());
                limits.map_or(usize::MAX, |limits| size(limits.max_symbols))
            }
        }
    }

    /// Returns the length of the model's training windows, after a successful call.
    fn training_length(&self) -> Result<usize> {
        match self {
            Self::Direct(evaluation) => Ok(evaluation.model.card().training_length),
            Self::Served(model, _) => Ok(size(model.description()?.training_length)),
        }
    }

    /// Returns the model's default boundary mode, and true if it pools its input; after a successful call.
    fn boundaries(&self) -> Result<(Option<BoundaryMode>, bool)> {
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
    let narrow = |value: usize| {
        u32::try_from(value).map_err(|_| Error::bad_option(flag, value.to_string(), format!("at most {}", u32::MAX)))
    };
    let wire =
        |size: WindowOptions| Ok::<_, Error>(Windows { length: narrow(size.length)?, stride: narrow(size.stride)? });
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
    let summary = summary.ok_or_else(|| model.client.incomplete("a summary"))?;
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

fn text_bits(summary: &ScoreSummary, logprobs: &[f64], model: &weir_proto::v1::Model) -> TextBits {
    let scored = summary.scored_chars;
    TextBits {
        is_subword: model.vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.pieces),
        per_char: summary.bits_per_char,
        per_byte: summary.bits_per_byte,
        per_token: (scored > 0).then(|| -logprobs.iter().sum::<f64>() / LN_2 / scored as f64),
    }
}

/// Returns the sums of a model with special symbols.
fn marked(characters: &[Character], model: &weir_proto::v1::Model) -> Option<MarkedTextBits> {
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
fn specials(model: &weir_proto::v1::Model) -> Option<SpecialSymbols> {
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

/// Formats a text that was scored in windows, as JSON and as text.
fn windowed_text(scores: &Scores, size: WindowOptions) -> (Value, String) {
    let Scores { symbols, text_chars, logprobs, boundaries, shortening_factor, text_bits, .. } = scores;
    // −ln p per symbol of each window; the first symbol has no score
    let scored = windows(*symbols, size).filter_map(|window| logprobs.get(window.scored - 1..window.end - 1));
    let losses: Vec<_> = scored.map(|logprobs| -logprobs.iter().sum::<f64>() / logprobs.len() as f64).collect();
    let window_nats = if text_bits.is_subword { "window_nats_per_token" } else { "window_nats_per_char" };
    let text = format!(
        "{} symbols scored in {} windows, {} bits per character{}, shortening factor {}\n",
        logprobs.len(),
        losses.len(),
        output::optional(scores.bits_per_char()),
        text_bits.describe(),
        output::optional(*shortening_factor)
    );
    let mut object = json!({
        "symbols": symbols,
        "text_chars": text_chars,
        "scored": logprobs.len(),
        "bits_per_char": scores.bits_per_char(),
        "shortening_factor": shortening_factor,
        "windows": losses.len(),
        window_nats: losses,
        "boundaries": boundaries,
        "logprobs": logprobs,
    });
    if let Some(object) = object.as_object_mut() {
        text_bits.add_json(object);
    }
    (object, text)
}
