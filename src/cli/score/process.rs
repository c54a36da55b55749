//! Scores of a model in this process.

use super::{
    args::{Args, ModeArg, progress_bar},
    lengths::{LengthScore, LengthScores, check_lengths},
    marked_text::MarkedTextBits,
    scored_text::ScoredText,
    text_bits::TextBits,
    windowed_text::WindowedText,
};
use crate::{
    cli::output,
    decode::{
        boundary::levels,
        contract::{Model, SymbolBoundary, Want},
        evaluate::{StepSize, WindowScore, run as evaluate, score_window, windows},
        options::{WindowOptions, check_length},
    },
    error::{Error, Result},
    kernels::distribution::log_probability,
    text::TextCounter,
};
use std::f64::consts::LN_2;

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
            self.marked.as_mut().map_or(Ok(()), |marked| marked.add_symbol_with(logits, next, logprob))?;
        }
        if let Some(marked) = &mut self.marked {
            marked.add_end(mark.end_logprob);
        }
        if self.keep_logits {
            self.logits.extend_from_slice(logits);
        }
        Ok(())
    }

    fn nats(&self) -> f64 {
        -self.logprobs.iter().sum::<f64>()
    }

    /// Writes the file of `--logits`, if requested.
    fn write_logits(&self, args: &Args, model: &dyn Model) -> Result<()> {
        let Some(path) = &args.logits else { return Ok(()) };
        let boundaries = model.card().pooled.then_some(&*self.boundaries);
        let shape = [self.boundaries.len(), model.card().vocabulary.len()];
        output::logits(path, &self.logits, shape, boundaries)
    }
}

/// Scores the text as one sequence.
pub(super) fn whole(args: &Args, model: &dyn Model, symbols: &[u32], has_end: bool) -> Result<ScoredText> {
    let card = model.card();
    // The end-of-text symbol is scored, not fed, so it does not count.
    check_length(args.text.flag(), symbols.len(), card)?;
    let outputs = evaluate_text(args, model, symbols, has_end)?;
    outputs.write_logits(args, model)?;
    let unscored = usize::from(card.first_logits.is_none());
    let nats = outputs.marked.as_ref().map_or_else(|| outputs.nats(), MarkedTextBits::text_nats);
    Ok(ScoredText {
        symbols: symbols.len() + usize::from(has_end),
        text_chars: TextCounter::chars_of(symbols, card.vocabulary.clone()),
        fed: symbols.len(),
        levels: levels(outputs.decisions.iter().map(|decision| decision.depth)),
        text_bits: TextBits::new(model, symbols, unscored, nats),
        marked: outputs.marked,
        mode: args.boundaries.boundary_mode.or(card.boundary_modes.first().copied()),
        is_pooled: card.pooled,
        logprobs: outputs.logprobs,
        boundaries: outputs.boundaries,
    })
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

/// Scores the text in windows.
pub(super) fn windowed(args: &Args, model: &dyn Model, symbols: &[u32], size: WindowOptions) -> Result<WindowedText> {
    let limit = model.card().max_symbols;
    if size.length > limit {
        return Err(Error::TooLong { field: "--windowed", length: size.length, limit, unit: "characters", why: None });
    }
    let all: Vec<_> = windows(symbols.len(), size).collect();
    let mut sum = WindowScore::default();
    let mut window_losses = Vec::with_capacity(all.len());
    let mut outputs = Outputs { keep_logits: args.logits.is_some(), ..Outputs::default() };
    let bar = progress_bar(all.len());
    for window in all {
        let options = args.boundaries.options();
        let scored = score_window(model, symbols, window, &options, &mut |position, logits, mark| {
            outputs.push(symbols.get(position + 1), logits, mark)
        })?;
        sum += scored;
        window_losses.push(scored.nats / scored.scored as f64);
        bar.set_message(format!("{:.3} bits per symbol", sum.nats / sum.scored as f64 / LN_2));
        bar.inc(1);
    }
    bar.finish_and_clear();
    outputs.write_logits(args, model)?;
    Ok(WindowedText {
        symbols: symbols.len(),
        text_chars: TextCounter::chars_of(symbols, model.card().vocabulary.clone()),
        window_losses,
        shortening_factor: (sum.segments > 0).then(|| sum.fed as f64 / sum.segments as f64),
        boundaries: outputs.boundaries,
        logprobs: outputs.logprobs,
        // No window predicts the first symbol.
        text_bits: TextBits::new(model, symbols, 1, sum.nats),
    })
}

/// Scores the text at each length.
pub(super) fn lengths(args: &Args, model: &dyn Model, symbols: &[u32]) -> Result<LengthScores> {
    let card = model.card();
    let lengths = check_lengths(&args.lengths, symbols.len(), card.max_symbols)?;
    let scores = lengths.into_iter().map(|length| length_score(args, model, symbols, length)).collect::<Result<_>>()?;
    Ok(LengthScores { symbols: symbols.len(), training_length: card.training_length, scores })
}

fn length_score(args: &Args, model: &dyn Model, symbols: &[u32], length: usize) -> Result<LengthScore> {
    let all: Vec<_> = windows(symbols.len(), WindowOptions { length, stride: length }).collect();
    let pieces = all.len();
    let mut sum = WindowScore::default();
    let mut outputs = Outputs::default();
    let bar = progress_bar(pieces);
    for window in all {
        sum += score_window(model, symbols, window, &args.boundaries.options(), &mut |position, logits, mark| {
            outputs.push(symbols.get(position + 1), logits, mark)
        })?;
        bar.set_message(format!("length {length}: {:.3} bits per symbol", sum.nats / sum.scored as f64 / LN_2));
        bar.inc(1);
    }
    bar.finish_and_clear();
    // In the order of the text, as for `--windowed` and on a server.
    let nats = -outputs.logprobs.iter().sum::<f64>();
    let text_bits = TextBits::new(model, symbols, 1, nats);
    Ok(LengthScore { length, pieces, nats, scored: outputs.logprobs.len(), text_bits })
}
