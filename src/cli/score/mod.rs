//! `weir score`: bits per character of a text, and all outputs needed to compare two implementations.

mod args;
mod lengths;
mod marked_text;
mod text_bits;

pub use args::Args;
pub(super) use args::parse_windows;

use super::output;
use crate::{
    decode::{
        boundary::levels,
        contract::{Model, SymbolBoundary, Want},
        evaluate::{StepSize, WindowScore, run as evaluate, score_window, windows},
        options::{WindowOptions, check_length},
        sampling::logprobs::log_probability,
    },
    error::{Error, Result},
    text::TextCounter,
};
use args::{ModeArg, progress_bar};
use marked_text::MarkedTextBits;
use serde_json::json;
use std::f64::consts::LN_2;
use text_bits::TextBits;

/// Runs the command. Fails if the checkpoint or the text is invalid, or if an output file cannot be written.
pub fn run(args: Args) -> Result<()> {
    let model = args.model.load()?;
    let (symbols, has_end) = args.text.symbols_and_end(&*model)?;
    if !args.lengths.is_empty() {
        return lengths::run(&args, &*model, &symbols);
    }
    match args.windowed {
        Some(_) if has_end => {
            let bound = "a text without the end-of-text symbol, which no window reaches";
            Err(Error::bad_option("--windowed", "a text that ends with it", bound))
        }
        Some(size) => run_windowed(&args, &*model, &symbols, size),
        None => run_unwindowed(&args, &*model, &symbols, has_end),
    }
}

/// Outputs per symbol. Windows never feed the last symbol. A model with a start-of-text symbol has one entry more, for the logits
/// before the first symbol.
#[derive(Default)]
struct Outputs {
    /// ln p of each symbol except the first. With a start-of-text symbol the first is included, and the end-of-text symbol if the
    /// text ends with one.
    logprobs: Vec<f64>,
    boundaries: Vec<u8>,
    decisions: Vec<SymbolBoundary>,
    /// Logits (symbols, vocabulary), if requested.
    logits: Vec<f32>,
    keep_logits: bool,
    /// Sums for models with special symbols.
    marked: Option<MarkedTextBits>,
}

impl Outputs {
    fn new(model: &dyn Model, keep_logits: bool) -> Self {
        let card = model.card();
        let marked = card.vocabulary.specials().map(|specials| MarkedTextBits::new(specials, card.pooled));
        Self { keep_logits, marked, ..Self::default() }
    }

    fn push(&mut self, next: Option<&u32>, logits: &[f32], mark: SymbolBoundary) -> Result<()> {
        self.boundaries.push(mark.boundary.into());
        self.decisions.push(mark);
        if let Some(&next) = next {
            let logprob = log_probability(logits, next)?;
            self.logprobs.push(logprob);
            self.marked.as_mut().map_or(Ok(()), |marked| marked.add_symbol(logits, next, logprob))?;
        }
        if let Some(marked) = &mut self.marked {
            marked.add_mark(&mark);
        }
        if self.keep_logits {
            self.logits.extend_from_slice(logits);
        }
        Ok(())
    }

    /// Writes the file of `--logits`, if requested.
    fn write_logits(&self, args: &Args, model: &dyn Model) -> Result<()> {
        let Some(path) = &args.logits else { return Ok(()) };
        let boundaries = model.card().pooled.then_some(&*self.boundaries);
        let shape = [self.boundaries.len(), model.card().vocabulary.len()];
        output::logits(path, &self.logits, shape, boundaries)
    }
}

fn run_unwindowed(args: &Args, model: &dyn Model, symbols: &[u32], has_end: bool) -> Result<()> {
    let card = model.card();
    // The end-of-text symbol is scored, not fed, so it does not count.
    check_length("text", symbols.len(), card)?;
    let outputs = evaluate_text(args, model, symbols, has_end)?;
    outputs.write_logits(args, model)?;
    let length = symbols.len() + usize::from(has_end);
    let scored = outputs.logprobs.len();
    let bits = (scored > 0).then(|| -outputs.logprobs.iter().sum::<f64>() / scored as f64 / LN_2);
    let mode = args.boundaries.boundary_mode.or(card.boundary_modes.first().copied());
    let bits = outputs.marked.map(|marked| marked.bits_per_char(mode)).or(bits);
    let nats = -outputs.logprobs.iter().sum::<f64>();
    let text_bits = outputs.marked.is_none().then(|| TextBits::new(model, symbols, nats));
    let bits = text_bits.as_ref().map_or(bits, |text| text.per_char(bits));
    let closed = outputs.boundaries.iter().filter(|&&boundary| boundary == 1).count();
    // The start-of-text symbol is a segment of its own and does not count.
    let closed = closed - usize::from(card.pooled && outputs.marked.is_some());
    let factor = (closed > 0).then(|| symbols.len() as f64 / closed as f64);
    if args.json {
        let text_chars = TextCounter::chars_of(symbols, card.vocabulary.clone());
        let mut object = serde_json::Map::new();
        object.insert("symbols".into(), length.into());
        object.insert("text_chars".into(), text_chars.into());
        object.insert("bits_per_char".into(), json!(bits));
        if let Some(text) = &text_bits {
            text.add_json(&mut object);
        }
        if let Some(marked) = &outputs.marked {
            object.insert("boundary_mode".into(), mode.map(|mode| mode.name()).into());
            marked.add_json(&mut object);
        }
        object.insert("shortening_factor".into(), json!(factor));
        object.insert("boundaries".into(), json!(outputs.boundaries));
        if let levels @ [_, _, ..] = &*levels(&outputs.decisions) {
            object.insert("boundary_levels".into(), json!(levels));
        }
        object.insert("logprobs".into(), json!(outputs.logprobs));
        return output::json(&object.into());
    }
    output::write(&format!(
        "{length} symbols, {} bits per character{}, shortening factor {}\n",
        output::optional(bits),
        text_bits.map_or_else(String::new, |text| text.describe()),
        output::optional(factor)
    ))?;
    outputs.marked.map_or(Ok(()), |marked| output::write(&marked.text()))
}

/// Evaluates the text without windows, in the requested mode.
fn evaluate_text(args: &Args, model: &dyn Model, symbols: &[u32], has_end: bool) -> Result<Outputs> {
    let mut outputs = Outputs::new(model, args.logits.is_some());
    let end = outputs.marked.filter(|_| has_end).map(|marked| marked.end());
    let next = |position: usize| symbols.get(position).or(end.as_ref().filter(|_| position == symbols.len()));
    if let Some(logits) = &model.card().first_logits {
        let start = SymbolBoundary { boundary: model.card().pooled, depth: 0, probability: None, end_logprob: None };
        outputs.push(next(0), logits, start)?;
    }
    let step_size = match args.mode {
        ModeArg::Full => StepSize::Full,
        ModeArg::Incremental => StepSize::Incremental,
        ModeArg::Chunked => StepSize::Chunked(args.chunk as usize),
    };
    evaluate(model, symbols, step_size, args.boundaries.options(), Want::All, &mut |position, logits, mark| {
        outputs.push(next(position + 1), logits, mark)
    })?;
    Ok(outputs)
}

fn run_windowed(args: &Args, model: &dyn Model, symbols: &[u32], size: WindowOptions) -> Result<()> {
    let limit = model.card().max_symbols;
    if size.length > limit {
        return Err(Error::TooLong { field: "--windowed", length: size.length, limit, unit: "characters", why: None });
    }
    let all: Vec<_> = windows(symbols.len(), size).collect();
    let mut sum = WindowScore::default();
    let mut losses = Vec::with_capacity(all.len());
    let mut outputs = Outputs { keep_logits: args.logits.is_some(), ..Outputs::default() };
    let bar = progress_bar(all.len());
    for window in all {
        let options = args.boundaries.options();
        let scored = score_window(model, symbols, window, &options, &mut |position, logits, mark| {
            outputs.push(symbols.get(position + 1), logits, mark)
        })?;
        sum += scored;
        losses.push(scored.nats / scored.scored as f64);
        bar.set_message(format!("{:.3} bits per character", sum.nats / sum.scored as f64 / LN_2));
        bar.inc(1);
    }
    bar.finish_and_clear();
    outputs.write_logits(args, model)?;
    let bits = (sum.scored > 0).then(|| sum.nats / sum.scored as f64 / LN_2);
    let text_bits = TextBits::new(model, symbols, sum.nats);
    let bits = text_bits.per_char(bits);
    let factor = (sum.segments > 0).then(|| sum.fed as f64 / sum.segments as f64);
    if args.json {
        let mut object = json!({
            "symbols": symbols.len(),
            "text_chars": TextCounter::chars_of(symbols, model.card().vocabulary.clone()),
            "scored": sum.scored,
            "bits_per_char": bits,
            "shortening_factor": factor,
            "windows": losses.len(),
            "window_nats_per_char": losses,
            "boundaries": outputs.boundaries,
            "logprobs": outputs.logprobs,
        });
        if let Some(object) = object.as_object_mut() {
            text_bits.add_json(object);
        }
        return output::json(&object);
    }
    output::write(&format!(
        "{} symbols scored in {} windows, {} bits per character{}, shortening factor {}\n",
        sum.scored,
        losses.len(),
        output::optional(bits),
        text_bits.describe(),
        output::optional(factor)
    ))
}
