//! `weir score`: bits per symbol of a text, and all outputs needed to compare two implementations. The server that scores the text
//! runs in this process unless `--server` names another.

use crate::cli::{
    document::{TextArgs, TextInput},
    model::{BoundaryArgs, DescribedModel, ModelSource, ModelSourceArgs, own_limits, size, whole},
    output,
};
use serde_json::{Map, Value, json};
use std::{
    f64::consts::LN_2,
    path::{Path, PathBuf},
    sync::Arc,
};
use weir_engine::{
    Limits,
    options::{WindowOptions, check_length},
    score::{run as feed, score_window, windows},
};
use weir_kernels::error::{Error, Result};
use weir_measure::format::table;
use weir_models::{
    contract::{BoundaryMode, BoundaryOptions, Model as Loaded, SymbolBoundary, Want, levels},
    text::SpecialSymbols,
};
use weir_proto::v1::{Character, Model, ScoreRequest, ScoreSummary, Windows, score_response::Event as ScoreEvent};

/// Runs the command. Fails if the checkpoint or the text is invalid, if the server rejects the call, or if an output file cannot
/// be written.
pub fn run(args: Args) -> Result<()> {
    let text = args.text.read()?;
    let source = args.model.open()?;
    let in_process = match &source {
        ModelSource::Process(model) => Some(Arc::clone(model)),
        ModelSource::Server(_) => None,
    };
    let server = source.served(Limits { chunk: args.step(), ..own_limits() })?;
    let scorer = Scorer { args: &args, model: DescribedModel::new(&server)?, text: &text };
    let (json, shown) = if !args.lengths.is_empty() {
        let scores = LengthScores::new(&scorer)?;
        (scores.as_json(), scores.as_text())
    } else if let Some(windows) = args.windowed {
        windowed_text(&scorer.score(Some(windows))?, windows)
    } else {
        let scores = scorer.score(None)?;
        let model = scorer.model.description()?;
        let default = model.boundary_modes.first().and_then(|name| BoundaryMode::parse(name));
        scored_text(&scores, args.boundaries.boundary_mode.or(default), model.pooled)
    };
    if let Some((model, out)) = in_process.zip(args.logits.as_ref()) {
        write_logits(&*model, &text, args.windowed, args.step(), args.boundaries.options(), out)?;
    }
    if args.json { output::json(&json) } else { output::write(&shown) }
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
    /// Bits per character or byte by length: splits the text into independent pieces of each LENGTH. Every length scores the same
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

impl Args {
    /// Returns the maximum symbols of a step.
    fn step(&self) -> usize {
        match self.mode {
            ModeArg::Full => MAX_STEP,
            ModeArg::Incremental => 1,
            ModeArg::Chunked => self.chunk as usize,
        }
    }
}

/// A step length that no sequence exceeds.
const MAX_STEP: usize = 1 << 24;

/// Parses two numbers LENGTH,STRIDE.
pub(super) fn parse_windows(text: &str) -> std::result::Result<WindowOptions, String> {
    let numbers = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match numbers {
        Some((length, stride)) if 1 <= stride && stride <= length => Ok(WindowOptions { length, stride }),
        _ => Err("expected two numbers LENGTH,STRIDE with 1 ≤ STRIDE ≤ LENGTH".into()),
    }
}

/// Converts the windows that `flag` gives to a message. Fails if the length or stride exceeds `u32`.
pub(super) fn wire_windows(flag: &'static str, size: WindowOptions) -> Result<Windows> {
    let narrow = |value: usize| {
        u32::try_from(value).map_err(|_| Error::bad_option(flag, value.to_string(), format!("at most {}", u32::MAX)))
    };
    Ok(Windows { length: narrow(size.length)?, stride: narrow(size.stride)? })
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
    /// Scores the text at each length. Fails as [`check_lengths`] and the server do.
    fn new(scorer: &Scorer<'_>) -> Result<Self> {
        let Args { lengths, .. } = scorer.args;
        let limits = scorer.model.description.as_ref().and_then(|model| model.limits.as_ref());
        let max_symbols = limits.map_or(usize::MAX, |limits| size(limits.max_symbols));
        check_lengths(lengths, usize::MAX, max_symbols)?;
        let mut scores: Vec<LengthScore> = Vec::with_capacity(lengths.len());
        let mut symbols = 0;
        for &length in lengths {
            let length = length as usize;
            let piece = WindowOptions { length, stride: length };
            let scored = scorer.score(Some(piece))?;
            if scores.is_empty() {
                // The server reports the number of symbols.
                symbols = scored.symbols;
                check_lengths(lengths, symbols, max_symbols)?;
            }
            scores.push(LengthScore {
                length,
                pieces: windows(symbols, piece).count(),
                nats: scored.nats(),
                scored: scored.logprobs.len(),
                text_bits: scored.text_bits,
            });
        }
        Ok(Self { symbols, training_length: size(scorer.model.description()?.training_length), scores })
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
        let unit = self.scores.first().map_or("character", |score| score.text_bits.unit);
        let lines = [
            line("length", &|score| score.length.to_string()),
            line("inter- or extra-", &|score| beyond(score).to_owned()),
            line(&format!("bits per {unit}"), &|score| {
                score.bits_per_char().map_or("-".into(), |bits| format!("{bits:.4}"))
            }),
        ];
        let scored = self.scores.first().map_or(0, |score| score.scored);
        table(&lines) + &format!("{scored} symbols scored at each length, trained on {training}\n")
    }
}

/// Writes the file of `--logits`: the logits (symbols, vocabulary) after each symbol of a text, and the boundaries of a model that
/// pools. Windows never feed the last symbol. A model with a start-of-text symbol has logits before the first symbol. The model runs in
/// this process, because no server sends logits.
fn write_logits(
    model: &dyn Loaded,
    text: &TextInput,
    windowed: Option<WindowOptions>,
    step: usize,
    boundaries: BoundaryOptions,
    out: &Path,
) -> Result<()> {
    let card = model.card();
    let end = card.vocabulary.specials().map(|specials| specials.end);
    let symbols = match &*text.ids {
        [] => card.vocabulary.encode(text.flag, &text.text, usize::MAX)?,
        [symbols @ .., last] if Some(*last) == end => symbols.to_vec(),
        symbols => symbols.to_vec(),
    };
    let mut all = Vec::new();
    let mut ends = Vec::new();
    let mut keep = |_: usize, logits: &[f32], decision: SymbolBoundary| {
        all.extend_from_slice(logits);
        ends.push(u8::from(decision.boundary));
        Ok(())
    };
    match windowed {
        Some(size) => {
            for window in windows(symbols.len(), size) {
                score_window(model, &symbols, window, &boundaries, &mut keep)?;
            }
        }
        None => {
            check_length(text.flag, symbols.len(), card)?;
            if let Some(first) = &card.first_logits {
                keep(0, first, SymbolBoundary { boundary: card.pooled, ..SymbolBoundary::default() })?;
            }
            feed(model, &symbols, step, boundaries, Want::All, &mut keep)?;
        }
    }
    output::logits(out, &all, [ends.len(), card.vocabulary.len()], card.pooled.then_some(&*ends))
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
    if !scores.entropies.is_empty() {
        object.insert("entropies".into(), json!(scores.entropies));
    }
    if let levels @ [_, _, ..] = &*scores.levels {
        object.insert("boundary_levels".into(), json!(levels));
    }
    object.insert("logprobs".into(), json!(scores.logprobs));
    let mut text = format!(
        "{} symbols, {} bits per {}{}, shortening factor {}\n",
        scores.symbols,
        output::optional(bits_per_char),
        scores.text_bits.unit,
        scores.text_bits.describe(),
        output::optional(shortening_factor)
    );
    text += &scores.marked.as_ref().map_or_else(String::new, MarkedTextBits::text);
    (object.into(), text)
}

/// A text and the model that scores it.
struct Scorer<'a> {
    args: &'a Args,
    model: DescribedModel<'a>,
    text: &'a TextInput,
}

impl Scorer<'_> {
    fn score(&self, windows: Option<WindowOptions>) -> Result<Scores> {
        self.call(windows).map_err(|error| self.text.with_flag(error))
    }

    fn request(&self, windows: Option<WindowOptions>) -> Result<ScoreRequest> {
        let flag = if self.args.lengths.is_empty() { "--windowed" } else { "--lengths" };
        Ok(ScoreRequest {
            model: self.model.name(),
            text: self.text.text.clone(),
            ids: self.text.ids.clone(),
            boundary_mode: self.args.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
            boundary_threshold: self.args.boundaries.boundary_threshold,
            seed: Some(self.args.boundaries.seed),
            windows: windows.map(|size| wire_windows(flag, size)).transpose()?,
            exact_logprobs: Some(true),
            ..ScoreRequest::default()
        })
    }

    fn call(&self, windows: Option<WindowOptions>) -> Result<Scores> {
        let request = self.request(windows)?;
        let server = self.model.model;
        let messages = server.call(async |client| client.score(request).await)?;
        let mut characters = Vec::new();
        let mut exact = Vec::new();
        let mut summary = None;
        let mut progress = output::Progress::texts();
        let mut done = 0;
        server.each(messages, |message| {
            match message.event {
                Some(ScoreEvent::Chunk(chunk)) => {
                    done += chunk.characters.iter().map(|character| character.text.len()).sum::<usize>();
                    progress.update(done as u64, self.text.text.len() as u64);
                    characters.extend(chunk.characters);
                    exact.extend(chunk.exact_logprobs);
                }
                Some(ScoreEvent::Summary(end)) => summary = Some(end),
                None => {}
            }
            Ok(())
        })?;
        drop(progress);
        let summary = summary.ok_or_else(|| server.client.incomplete("a summary"))?;
        let usage = summary.usage.unwrap_or_default();
        // Once, although each length is a call.
        let lengths = &self.args.lengths;
        if lengths.first().is_none_or(|&first| windows.is_some_and(|windows| windows.length == first as usize)) {
            let changed = size(usage.normalized_chars());
            self.model.report_normalised(self.text.flag, &self.text.text, changed);
        }
        let model = self.model.description()?;
        // An older server sends only rounded ones.
        let rounded = characters.iter().filter_map(|scored: &Character| scored.logprob).map(f64::from);
        let logprobs: Vec<f64> = if exact.is_empty() { rounded.collect() } else { exact };
        let mut boundaries: Vec<u8> = characters.iter().filter_map(|scored| scored.boundary).map(u8::from).collect();
        let entropies = characters.iter().filter_map(|scored| scored.boundary_entropy).collect();
        let has_start = characters.first().is_some_and(|first| first.logprob.is_some());
        if windows.is_none() && has_start {
            // The start-of-text symbol is a segment of its own.
            boundaries.insert(0, model.pooled.into());
        }
        let depth = |scored: &Character| u8::try_from(scored.chunk_depth).unwrap_or(u8::MAX);
        Ok(Scores {
            symbols: characters.len(),
            fed: size(usage.prompt_chars),
            text_chars: size(usage.prompt_text_chars()),
            text_bits: text_bits(&summary, &logprobs, model),
            marked: marked(&characters, &logprobs, summary.renormalized_bits, model),
            levels: levels(characters.iter().map(depth)),
            logprobs,
            boundaries,
            entropies,
            shortening_factor: summary.window_shortening_factor.or(usage.shortening_factor),
        })
    }
}

fn text_bits(summary: &ScoreSummary, logprobs: &[f64], model: &Model) -> TextBits {
    let scored = summary.scored_chars;
    TextBits {
        is_subword: model.vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.pieces),
        unit: if model.vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.bytes) { "byte" } else { "character" },
        per_char: summary.bits_per_char,
        per_byte: summary.bits_per_byte,
        per_token: (scored > 0).then(|| -logprobs.iter().sum::<f64>() / LN_2 / scored as f64),
    }
}

/// Returns the sums of a model with special symbols.
fn marked(
    characters: &[Character],
    logprobs: &[f64],
    renormalized: Option<f64>,
    model: &Model,
) -> Option<MarkedTextBits> {
    let mut marked = MarkedTextBits::new(specials(model)?, model.pooled, renormalized);
    let scored = characters.iter().filter(|character| character.logprob.is_some());
    scored.zip(logprobs).for_each(|(character, &logprob)| marked.add_symbol(character.id, logprob));
    characters.iter().for_each(|character| marked.add_end(character.nxt_logprob));
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

/// Formats a text that was scored in windows, as JSON and as text.
fn windowed_text(scores: &Scores, size: WindowOptions) -> (Value, String) {
    let Scores { symbols, text_chars, logprobs, boundaries, shortening_factor, text_bits, .. } = scores;
    // −ln p per symbol of each window; the first symbol has no score
    let scored = windows(*symbols, size).filter_map(|window| logprobs.get(window.scored - 1..window.end - 1));
    let losses: Vec<_> = scored.map(|logprobs| -logprobs.iter().sum::<f64>() / logprobs.len() as f64).collect();
    let window_nats = if text_bits.is_subword { "window_nats_per_token" } else { "window_nats_per_char" };
    let text = format!(
        "{} symbols scored in {} windows, {} bits per {}{}, shortening factor {}\n",
        logprobs.len(),
        losses.len(),
        output::optional(scores.bits_per_char()),
        text_bits.unit,
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

/// The scores of a text, as one sequence or in windows.
struct Scores {
    /// Number of symbols, with the end-of-text symbol if it was scored.
    symbols: usize,
    /// Symbols that a segment can contain: all but the end-of-text symbol.
    fed: usize,
    /// Unicode characters.
    text_chars: usize,
    /// ln p of each scored symbol.
    logprobs: Vec<f64>,
    /// 1 for each symbol that ends a segment, otherwise 0. Windows have none for the last symbol. As one sequence, a model with a
    /// start-of-text symbol has one entry more, at the front.
    boundaries: Vec<u8>,
    /// Entropy after each symbol, if entropies decide boundaries.
    entropies: Vec<f32>,
    /// Boundaries of each level, if several are known.
    levels: Vec<Vec<u8>>,
    /// Symbols per segment in windows.
    shortening_factor: Option<f64>,
    /// Bits by characters, bytes and tokens, special symbols excluded.
    text_bits: TextBits,
    /// Bits of a model with special symbols.
    marked: Option<MarkedTextBits>,
}

impl Scores {
    /// Sum of −ln p over the scored symbols.
    fn nats(&self) -> f64 {
        -self.logprobs.iter().sum::<f64>()
    }

    fn bits_per_char(&self) -> Option<f64> {
        let scored = self.logprobs.len();
        let bits = (scored > 0).then(|| self.nats() / scored as f64 / LN_2);
        self.text_bits.per_char(bits)
    }
}

/// Bits of a text by its size, without the symbols at its beginning that are not scored.
#[derive(Debug, Clone)]
struct TextBits {
    /// True in a model of tokens.
    is_subword: bool,
    /// What `bits_per_char` counts.
    unit: &'static str,
    /// Bits per Unicode character, in a model of tokens.
    per_char: Option<f64>,
    per_byte: Option<f64>,
    /// Bits per scored token, in a model of tokens.
    per_token: Option<f64>,
}

impl TextBits {
    /// Returns the bits per character: `per_symbol`, unless symbols are tokens.
    fn per_char(&self, per_symbol: Option<f64>) -> Option<f64> {
        if self.is_subword { self.per_char } else { per_symbol }
    }

    fn add_json(&self, object: &mut Map<String, Value>) {
        object.insert("bits_per_byte".into(), json!(self.per_byte));
        if self.is_subword {
            object.insert("bits_per_token".into(), json!(self.per_token));
        }
    }

    /// Formats the figures of a model of tokens as a part of a sentence.
    fn describe(&self) -> String {
        if !self.is_subword {
            return String::new();
        }
        let per =
            |unit: &str, bits: Option<f64>| bits.map_or_else(String::new, |bits| format!(", {bits:.4} per {unit}"));
        per("byte", self.per_byte) + &per("token", self.per_token)
    }
}

/// Sums of bits over a text of a model with special symbols: start of text, end of text, end of segment.
///
/// All figures divide by T, as the paper (Latent Segment Language Models) does. T counts the start-of-text symbol, which costs
/// nothing, the symbols of the text, and the end-of-text symbol if the text ends with one.
#[derive(Debug, Clone, Copy)]
struct MarkedTextBits {
    specials: SpecialSymbols,
    /// True if the model generates end-of-segment symbols.
    segments: bool,
    /// Number of symbols of the text.
    symbols: usize,
    /// True if the text ends with the end-of-text symbol.
    has_end: bool,
    /// Bits of the text's symbols.
    text: f64,
    /// Bits of the end-of-text symbol.
    end: f64,
    /// Bits of the end-of-segment symbols.
    nxt: f64,
    /// Bits of the text's symbols and its end, with probabilities renormalised over the symbols that a text can contain. `None` if
    /// the server is older and does not report them.
    renormalised: Option<f64>,
}

impl MarkedTextBits {
    fn new(specials: SpecialSymbols, segments: bool, renormalised: Option<f64>) -> Self {
        Self { specials, segments, symbols: 0, has_end: false, text: 0.0, end: 0.0, nxt: 0.0, renormalised }
    }

    /// Adds a symbol of the text or its end.
    fn add_symbol(&mut self, symbol: u32, logprob: f64) {
        let bits = -logprob / LN_2;
        if symbol == self.specials.end {
            self.has_end = true;
            self.end += bits;
        } else {
            self.symbols += 1;
            self.text += bits;
        }
    }

    /// Adds the cost of ending, or not ending, a segment after a symbol.
    fn add_end(&mut self, end_logprob: Option<f32>) {
        self.nxt -= end_logprob.map_or(0.0, f64::from) / LN_2;
    }

    /// Returns T, the number of symbols that all figures divide by.
    fn augmented(&self) -> usize {
        1 + self.symbols + usize::from(self.has_end)
    }

    fn paper(&self) -> f64 {
        (self.text + self.end) / self.augmented() as f64
    }

    fn joint(&self) -> f64 {
        (self.text + self.end + self.nxt) / self.augmented() as f64
    }

    fn renormalised(&self) -> Option<f64> {
        self.renormalised.map(|bits| bits / self.augmented() as f64)
    }

    /// Exact cost of the text as generated in `mode`: the text alone if the predictor decides boundaries, the text and its segments
    /// if end-of-segment symbols do. `None` if that needs unknown distributions.
    fn bits_per_char(&self, mode: Option<BoundaryMode>) -> Option<f64> {
        if mode == Some(BoundaryMode::Nxt) { Some(self.joint()) } else { self.renormalised() }
    }

    fn add_json(&self, object: &mut Map<String, Value>) {
        let per_symbol = (self.symbols > 0).then(|| self.text / self.symbols as f64);
        let segments = self.segments.then(|| [("bpc_joint", json!(self.joint())), ("bits_nxt", json!(self.nxt))]);
        let renormalised = self.renormalised().map(|bits| ("bpc_renormalised", json!(bits)));
        let figures = [
            ("bits_per_char_no_eos", json!(per_symbol)),
            ("bits_text", json!(self.text)),
            ("bits_eos", json!(self.end)),
            ("augmented_symbols", json!(self.augmented())),
        ];
        let first = [("bpc_paper", json!(self.paper()))].into_iter().chain(renormalised);
        let all = first.chain(figures).chain(segments.into_iter().flatten());
        object.extend(all.map(|(name, value)| (name.to_owned(), value)));
    }

    /// Formats the figures in one line.
    fn text(&self) -> String {
        let joint = if self.segments { format!("{:.4} text and segments, ", self.joint()) } else { String::new() };
        let alone = match self.renormalised() {
            Some(bits) => format!("{bits:.4} text alone (renormalised over text symbols and the end)"),
            None => "text alone unknown".into(),
        };
        format!(
            "bits per symbol over {} symbols with marks: {:.4} as the paper counts (without segment ends), {joint}{alone}\n",
            self.augmented(),
            self.paper()
        )
    }
}
