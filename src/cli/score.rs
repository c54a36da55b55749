//! `weir score`: a text's bits per character, and everything needed to compare two implementations.

mod figures;
mod lengths;

use super::{
    model::{BoundaryArgs, ModelArgs, TextArgs},
    output,
};
use crate::{
    decode::{
        contract::{Model, SymbolBoundary, Want},
        evaluate::{StepSize, WindowScore, run as evaluate, score_window_with, windows},
        options::{Windows, check_length},
        sampling::logprobs::log_probability,
    },
    error::{Error, Result},
};
use figures::Figures;
use indicatif::{ProgressBar, ProgressStyle};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;
use std::{f64::consts::LN_2, path::PathBuf};

/// Scores a text.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    boundaries: BoundaryArgs,
    /// How the text is cut into steps; the numbers are the same.
    #[arg(long, value_enum, default_value_t = ModeArg::Chunked)]
    mode: ModeArg,
    /// Symbols a step in chunked mode.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..), env = "WEIR_CHUNK")]
    chunk: u32,
    /// Evaluate as the papers do: windows of LENGTH symbols, each scoring its last STRIDE. What is told of a symbol is what
    /// the window says that scores the next one; of the last symbol nothing is.
    #[arg(long, value_name = "LENGTH,STRIDE", conflicts_with = "mode", value_parser = parse_windows, env = "WEIR_WINDOWED")]
    windowed: Option<Windows>,
    /// Bits per character by length: the text is cut into pieces of each LENGTH, which are scored afresh; every length scores
    /// the same symbols.
    #[arg(long, value_name = "LENGTH,…", value_delimiter = ',', conflicts_with_all = ["mode", "windowed", "logits"],
        value_parser = clap::value_parser!(u32).range(1..), env = "WEIR_LENGTHS")]
    lengths: Vec<u32>,
    /// Write logits (symbols, vocabulary) and, of pooled models, boundaries (symbols) to a safetensors file.
    #[arg(long, value_name = "OUT", env = "WEIR_LOGITS")]
    logits: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ModeArg {
    /// All symbols in one step.
    Full,
    /// One symbol a step.
    Incremental,
    /// `--chunk` symbols a step.
    Chunked,
}

fn parse_windows(text: &str) -> std::result::Result<Windows, String> {
    let numbers = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match numbers {
        Some((length, stride)) if 1 <= stride && stride <= length => Ok(Windows { length, stride }),
        _ => Err("two numbers LENGTH,STRIDE with 1 ≤ STRIDE ≤ LENGTH".into()),
    }
}

/// Runs the command.
///
/// # Errors
/// What is wrong with the checkpoint, the text, or the files to write.
pub fn run(args: Args) -> Result<()> {
    let model = args.model.load()?;
    let (symbols, ends) = args.text.symbols_and_end(&*model)?;
    if !args.lengths.is_empty() {
        return lengths::run(&args, &*model, &symbols);
    }
    match args.windowed {
        Some(_) if ends => {
            let bound = "a text without the end's mark: windows do not reach the end".into();
            Err(Error::BadOption { field: "--windowed", found: "the end's mark".into(), bound })
        }
        Some(window) => run_windowed(&args, &*model, &symbols, window),
        None => run_whole(&args, &*model, &symbols, ends),
    }
}

/// What is found symbol by symbol. In windows the last symbol is never fed. A model with marks feeds the start's before the first
/// symbol: then there is one entry more.
#[derive(Default)]
struct Found {
    /// ln p of each symbol but the first; of the first too, where there is a start's mark, and of the end's if it is given.
    logprobs: Vec<f64>,
    boundaries: Vec<u8>,
    /// (symbols, V), if wanted.
    logits: Vec<f32>,
    /// Of a model with marks.
    figures: Option<Figures>,
}

impl Found {
    fn of(model: &dyn Model) -> Self {
        let card = model.card();
        Self { figures: card.vocabulary.specials().map(|marks| Figures::new(marks, card.pooled)), ..Self::default() }
    }

    fn take(&mut self, next: Option<&u32>, logits: &[f32], mark: SymbolBoundary, keep: bool) -> Result<()> {
        self.boundaries.push(mark.boundary.into());
        if let Some(&next) = next {
            let logprob = log_probability(logits, next)?;
            self.logprobs.push(logprob);
            self.figures.as_mut().map_or(Ok(()), |figures| figures.take(logits, next, logprob))?;
        }
        if let Some(figures) = &mut self.figures {
            figures.take_mark(&mark);
        }
        if keep {
            self.logits.extend_from_slice(logits);
        }
        Ok(())
    }
}

fn run_whole(args: &Args, model: &dyn Model, symbols: &[u32], ends: bool) -> Result<()> {
    let card = model.card();
    // the end is scored, not fed
    check_length("text", symbols.len(), card)?;
    let found = find(args, model, symbols, ends)?;
    if let Some(path) = &args.logits {
        write_logits(model, &found, path)?;
    }
    let given = symbols.len() + usize::from(ends);
    let scored = found.logprobs.len();
    let bits = (scored > 0).then(|| -found.logprobs.iter().sum::<f64>() / scored as f64 / LN_2);
    let decided = args.boundaries.boundary_mode.or(card.boundary_modes.first().copied());
    let bits = found.figures.map(|figures| figures.bits_per_char(decided)).or(bits);
    let closed = found.boundaries.iter().filter(|&&boundary| boundary == 1).count();
    // the start's mark is a segment of its own
    let closed = closed - usize::from(card.pooled && found.figures.is_some());
    let factor = (closed > 0).then(|| symbols.len() as f64 / closed as f64);
    if args.json {
        let mut object = serde_json::Map::new();
        object.insert("symbols".into(), given.into());
        object.insert("bits_per_char".into(), json!(bits));
        if let Some(figures) = &found.figures {
            object.insert("boundary_mode".into(), decided.map(|mode| mode.name()).into());
            figures.add_to(&mut object);
        }
        object.insert("shortening_factor".into(), json!(factor));
        object.insert("boundaries".into(), json!(found.boundaries));
        object.insert("logprobs".into(), json!(found.logprobs));
        return output::json(&object.into());
    }
    let (bits, factor) = (output::optional(bits), output::optional(factor));
    output::write(&format!("{given} symbols, {bits} bits per character, shortening factor {factor}\n"))?;
    found.figures.map_or(Ok(()), |figures| output::write(&figures.text()))
}

/// Feeds the text as asked.
fn find(args: &Args, model: &dyn Model, symbols: &[u32], ends: bool) -> Result<Found> {
    let (mut found, keep) = (Found::of(model), args.logits.is_some());
    let end = found.figures.filter(|_| ends).map(|figures| figures.end());
    let next = |place: usize| symbols.get(place).or(end.as_ref().filter(|_| place == symbols.len()));
    if let Some(logits) = &model.card().first_logits {
        let start = SymbolBoundary { boundary: model.card().pooled, probability: None, end_logprob: None };
        found.take(next(0), logits, start, keep)?;
    }
    let mode = match args.mode {
        ModeArg::Full => StepSize::Full,
        ModeArg::Incremental => StepSize::Incremental,
        ModeArg::Chunked => StepSize::Chunked(args.chunk as usize),
    };
    evaluate(model, symbols, mode, args.boundaries.options(), Want::All, &mut |position, logits, mark| {
        found.take(next(position + 1), logits, mark, keep)
    })?;
    Ok(found)
}

fn run_windowed(args: &Args, model: &dyn Model, symbols: &[u32], of: Windows) -> Result<()> {
    let limit = model.card().max_symbols;
    if of.length > limit {
        return Err(Error::TooLong { field: "--windowed", length: of.length, limit, unit: "characters", why: None });
    }
    let all: Vec<_> = windows(symbols.len(), of).collect();
    let (mut sum, mut losses, mut found) = (WindowScore::default(), Vec::with_capacity(all.len()), Found::default());
    let bar = bar(all.len());
    for window in all {
        let options = args.boundaries.options();
        let one = score_window_with(model, symbols, window, &options, &mut |position, logits, mark| {
            found.take(symbols.get(position + 1), logits, mark, args.logits.is_some())
        })?;
        sum += one;
        losses.push(one.nats / one.scored as f64);
        bar.set_message(format!("{:.3} bits per character", sum.nats / sum.scored as f64 / LN_2));
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(path) = &args.logits {
        write_logits(model, &found, path)?;
    }
    let bits = (sum.scored > 0).then(|| sum.nats / sum.scored as f64 / LN_2);
    let factor = (sum.segments > 0).then(|| sum.fed as f64 / sum.segments as f64);
    if args.json {
        return output::json(&json!({
            "symbols": symbols.len(),
            "scored": sum.scored,
            "bits_per_char": bits,
            "shortening_factor": factor,
            "windows": losses.len(),
            "window_nats_per_char": losses,
            "boundaries": found.boundaries,
            "logprobs": found.logprobs,
        }));
    }
    let (bits, factor) = (output::optional(bits), output::optional(factor));
    let (count, scored) = (losses.len(), sum.scored);
    output::write(&format!(
        "{scored} symbols scored in {count} windows, {bits} bits per character, shortening factor {factor}\n"
    ))
}

/// Progress on stderr, where indicatif draws if it is a terminal.
fn bar(windows: usize) -> ProgressBar {
    let bar = ProgressBar::new(windows as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} windows, {eta} left, {msg}") {
        bar.set_style(style);
    }
    bar
}

fn write_logits(model: &dyn Model, found: &Found, path: &PathBuf) -> Result<()> {
    let rows = found.boundaries.len();
    let bytes: Vec<u8> = found.logits.iter().flat_map(|value| value.to_le_bytes()).collect();
    let invalid = |error: safetensors::SafeTensorError| Error::Internal(format!("safetensors: {error}"));
    let shape = vec![rows, model.card().vocabulary.len()];
    let mut tensors = vec![("logits", TensorView::new(Dtype::F32, shape, &bytes).map_err(invalid)?)];
    if model.card().pooled {
        let view = TensorView::new(Dtype::U8, vec![rows], &found.boundaries).map_err(invalid)?;
        tensors.push(("boundaries", view));
    }
    let file = safetensors::serialize(tensors, None).map_err(invalid)?;
    std::fs::write(path, file).map_err(Error::io(path))
}
