//! Texts under a model: all logits in order, however the text is cut into steps; and the windowed evaluation of the papers.

use super::{
    contract::{BoundaryOptions, Model, SequenceRow, SymbolBoundary, Want, advance},
    options::Windows,
    sampling::logprobs::log_probability,
};
use crate::error::Result;
use std::ops::AddAssign;

/// Symbols a step of a window, whose logits are held at a time.
const CHUNK: usize = 512;

/// How a text is cut into steps. The numbers are the same; only time and memory differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepSize {
    /// All symbols in one step.
    Full,
    /// One symbol a step, as text is generated.
    Incremental,
    /// So many symbols a step.
    Chunked(usize),
}

/// Is shown each position in order: its index, the logits after it, (V), or none where they were not wanted, and its mark.
pub type VisitPosition<'a> = &'a mut dyn FnMut(usize, &[f32], SymbolBoundary) -> Result<()>;

/// Feeds `symbols` to a fresh sequence and shows each position's logits, those that each step is to compute, with its mark.
///
/// # Errors
/// What the model's steps say, and what `each` says.
pub fn run(
    model: &dyn Model,
    symbols: &[u32],
    mode: StepSize,
    boundaries: BoundaryOptions,
    want: Want,
    each: VisitPosition<'_>,
) -> Result<()> {
    let size = match mode {
        StepSize::Full => symbols.len(),
        StepSize::Incremental => 1,
        StepSize::Chunked(size) => size,
    };
    let vocabulary = model.card().vocabulary.len();
    let mut rows = [SequenceRow::new(model.begin(boundaries)?)];
    let mut scratch = model.scratch();
    let mut position = 0;
    for chunk in symbols.chunks(size.max(1)) {
        rows[0].set(chunk, want);
        advance(model, &mut rows, &[0], &mut scratch)?;
        let SequenceRow { logits, decisions, .. } = &rows[0];
        // Wanted logits are those of the last symbols.
        let without = decisions.len().saturating_sub(logits.len() / vocabulary);
        let shown = std::iter::repeat_n(&[][..], without).chain(logits.chunks_exact(vocabulary));
        for (logits, mark) in shown.zip(decisions) {
            each(position, logits, *mark)?;
            position += 1;
        }
    }
    Ok(())
}

/// A window: symbols `start..end` are fed, and those from `scored` on are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoringWindow {
    /// The first symbol fed.
    pub start: usize,
    /// The first symbol scored; the one before it is fed and predicts it.
    pub scored: usize,
    /// One past the last symbol scored, which is not fed.
    pub end: usize,
}

/// The windows of Dynamic Token Pooling's evaluation (its code, not the paper, defines them): targets in runs of `stride`, each
/// with as much context as fits into `length` symbols; every window starts afresh.
pub fn windows(symbols: usize, windows: Windows) -> impl Iterator<Item = ScoringWindow> {
    (0..).map_while(move |index| window(symbols, windows, index))
}

/// The window of that number, if there are so many.
pub fn window(symbols: usize, Windows { length, stride }: Windows, index: usize) -> Option<ScoringWindow> {
    let last = symbols.saturating_sub(1);
    let first = index.checked_mul(stride.max(1)).filter(|&first| first < last)?;
    let start = first.saturating_sub(length.saturating_sub(stride));
    Some(ScoringWindow { start, scored: first + 1, end: (first + stride).min(last) + 1 })
}

/// What a windowed evaluation finds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WindowScore {
    /// Sum of −ln p over the scored symbols.
    pub nats: f64,
    /// Symbols scored.
    pub scored: usize,
    /// Symbols fed, context included.
    pub fed: usize,
    /// Segments closed by them.
    pub segments: usize,
}

impl AddAssign for WindowScore {
    fn add_assign(&mut self, other: Self) {
        self.nats += other.nats;
        self.scored += other.scored;
        self.fed += other.fed;
        self.segments += other.segments;
    }
}

/// Scores one window.
///
/// # Errors
/// What the model's steps say.
pub fn score_window(
    model: &dyn Model,
    symbols: &[u32],
    window: ScoringWindow,
    boundaries: &BoundaryOptions,
) -> Result<WindowScore> {
    score_window_showing(model, symbols, window, boundaries, &mut |_, _, _| Ok(()))
}

/// As [`score_window`]; `each` is shown every position whose logits score the next symbol: its index in `symbols`, those
/// logits, and its mark in this window.
///
/// # Errors
/// What the model's steps say, and what `each` says.
pub fn score_window_showing(
    model: &dyn Model,
    symbols: &[u32],
    window: ScoringWindow,
    boundaries: &BoundaryOptions,
    each: VisitPosition<'_>,
) -> Result<WindowScore> {
    let mut sum = WindowScore::default();
    let fed = &symbols[window.start..window.end - 1];
    let boundaries = BoundaryOptions { offset: window.start, ..boundaries.clone() };
    run(model, fed, StepSize::Chunked(CHUNK), boundaries, Want::All, &mut |position, logits, mark| {
        sum.fed += 1;
        sum.segments += usize::from(mark.boundary);
        let target = window.start + position + 1;
        if target >= window.scored {
            sum.nats -= log_probability(logits, symbols[target])?;
            sum.scored += 1;
            each(target - 1, logits, mark)?;
        }
        Ok(())
    })?;
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_every_target_once_with_the_official_context() {
        let official = Windows { length: 56, stride: 16 };
        let all: Vec<_> = windows(151, official).collect();
        assert_eq!(all[0], ScoringWindow { start: 0, scored: 1, end: 17 });
        assert_eq!(all[3], ScoringWindow { start: 8, scored: 49, end: 65 });
        assert_eq!(all[9], ScoringWindow { start: 104, scored: 145, end: 151 });
        assert_eq!(all.len(), 10);
        assert_eq!(windows(1, official).count(), 0);
    }
}
