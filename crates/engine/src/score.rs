//! Evaluates a model on texts: all logits in order, for any step size, the windowed evaluation of the papers, and the logits of a
//! given text about a document.

use crate::options::WindowOptions;
use std::sync::Arc;
use weir_kernels::error::{Error, Result};
use weir_models::contract::{
    BoundaryOptions, Document, DocumentEncoder, DocumentLimits, Encoding, Model, Scratch, SequenceRow, State,
    SymbolBoundary, Want, advance,
};

/// Symbols of one step within a window; the logits of one step are held at a time.
const CHUNK: usize = 512;

/// Encoder blocks of one step.
const BLOCKS: usize = 64;

/// Called for each position in order with its index, the logits (V) after it (empty if not wanted) and its boundary.
pub type VisitPosition<'a> = &'a mut dyn FnMut(usize, &[f32], SymbolBoundary) -> Result<()>;

/// Feeds `symbols` to a fresh sequence, `step` of them at a time, and calls `visit` for each position. `want` selects the logits of each
/// step. The size of a step changes time and memory, never the logits.
pub fn run(
    model: &dyn Model,
    symbols: &[u32],
    step: usize,
    boundaries: BoundaryOptions,
    want: Want,
    visit: VisitPosition<'_>,
) -> Result<()> {
    let vocabulary = model.card().vocabulary.len();
    let mut rows = [SequenceRow::new(model.begin(boundaries)?)];
    let mut scratch = model.scratch();
    let mut position = 0;
    for chunk in symbols.chunks(step.max(1)) {
        rows[0].set(chunk, want);
        advance(model, &mut rows, &[0], &mut scratch)?;
        let SequenceRow { logits, decisions, .. } = &rows[0];
        // wanted logits belong to the last symbols
        let without = decisions.len().saturating_sub(logits.len() / vocabulary);
        let logits = std::iter::repeat_n(&[][..], without).chain(logits.chunks_exact(vocabulary));
        for (logits, decision) in logits.zip(decisions) {
            visit(position, logits, *decision)?;
            position += 1;
        }
    }
    Ok(())
}

/// A window of an evaluation: symbols `start..end - 1` are fed, symbols `scored..end` are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoringWindow {
    /// The first symbol fed.
    pub start: usize,
    /// The first symbol scored; the symbol before it is fed and predicts it.
    pub scored: usize,
    /// One past the last symbol scored, which is not fed.
    pub end: usize,
}

/// Returns the windows of Dynamic Token Pooling's evaluation, as its code (not the paper) defines them: targets in runs of
/// `stride`, each with as much context as fits into `length` symbols.
pub fn windows(symbols: usize, windows: WindowOptions) -> impl Iterator<Item = ScoringWindow> {
    (0..).map_while(move |index| window(symbols, windows, index))
}

/// Returns an upper bound of the symbols that all windows of a text of `symbols` symbols feed together, at most `usize::MAX`.
pub fn max_fed_symbols(symbols: usize, WindowOptions { length, stride }: WindowOptions) -> usize {
    let windows = symbols.saturating_sub(1).div_ceil(stride.max(1)).max(1);
    windows.saturating_mul(length.min(symbols))
}

/// Returns window number `index` of a text of `symbols` symbols, if it exists.
pub fn window(symbols: usize, WindowOptions { length, stride }: WindowOptions, index: usize) -> Option<ScoringWindow> {
    let last = symbols.saturating_sub(1);
    let first = index.checked_mul(stride.max(1)).filter(|&first| first < last)?;
    let start = first.saturating_sub(length.saturating_sub(stride));
    Some(ScoringWindow { start, scored: first + 1, end: (first + stride).min(last) + 1 })
}

/// Feeds one window and calls `visit` with the index of every position whose logits score the next symbol.
pub fn score_window(
    model: &dyn Model,
    symbols: &[u32],
    window: ScoringWindow,
    boundaries: &BoundaryOptions,
    visit: VisitPosition<'_>,
) -> Result<()> {
    let fed = &symbols[window.start..window.end - 1];
    let boundaries = BoundaryOptions { offset: window.start, ..boundaries.clone() };
    run(model, fed, CHUNK, boundaries, Want::All, &mut |position, logits, decision| {
        let target = window.start + position + 1;
        if target >= window.scored { visit(target - 1, logits, decision) } else { Ok(()) }
    })
}

/// Encodes a complete document, its end mark included. Fails if the tokens are too many or invalid, or a step fails.
pub fn read_document(
    encoder: &dyn DocumentEncoder,
    mut encoding: Box<dyn Encoding>,
    tokens: &[u32],
    scratch: &mut Scratch,
) -> Result<Arc<Document>> {
    encoding.push(tokens)?;
    encoding.close()?;
    loop {
        if let Some(document) = encoding.document() {
            return Ok(document);
        }
        if encoder.advance(&mut *encoding, BLOCKS, scratch)? == 0 && encoding.document().is_none() {
            return Err(Error::Internal("encoding of a complete document made no progress".into()));
        }
    }
}

/// Returns the symbols that a decoder is fed to write `target`, with the start mark. Fails if an id or the length is invalid.
pub fn forced_target(model: &dyn Model, limits: &DocumentLimits, target: &[u32]) -> Result<Vec<u32>> {
    model.card().vocabulary.check_ids("--target-ids", target)?;
    let start = (target.first() != Some(&limits.marks.start)).then_some(limits.marks.start);
    let fed: Vec<u32> = start.into_iter().chain(target.iter().copied()).collect();
    match fed.len() {
        length if length > limits.targets => {
            let limit = limits.targets;
            Err(Error::TooLong { field: "--target-ids", length, limit, unit: "tokens", why: None })
        }
        _ => Ok(fed),
    }
}

/// Returns the logits (symbols, V) after each symbol that is fed to an empty row. Fails if a step fails.
pub fn target_logits(model: &dyn Model, row: Box<dyn State>, fed: &[u32], scratch: &mut Scratch) -> Result<Vec<f32>> {
    let mut row = SequenceRow::new(row);
    row.set(fed, Want::All);
    advance(model, std::slice::from_mut(&mut row), &[0], scratch)?;
    Ok(row.logits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_every_target_once_with_the_official_context() {
        let official = WindowOptions { length: 56, stride: 16 };
        let all: Vec<_> = windows(151, official).collect();
        assert_eq!(all[0], ScoringWindow { start: 0, scored: 1, end: 17 });
        assert_eq!(all[3], ScoringWindow { start: 8, scored: 49, end: 65 });
        assert_eq!(all[9], ScoringWindow { start: 104, scored: 145, end: 151 });
        assert_eq!(all.len(), 10);
        assert_eq!(windows(1, official).count(), 0);
    }

    #[test]
    fn the_bound_of_fed_symbols_holds_and_is_close() {
        for (length, stride) in [(56, 16), (64, 64), (33, 5), (7, 1)] {
            let of = WindowOptions { length, stride };
            for symbols in [1, 2, 7, 8, 64, 65, 151, 1000] {
                let fed: usize = windows(symbols, of).map(|window| window.end - 1 - window.start).sum();
                let bound = max_fed_symbols(symbols, of);
                let overlap = length.div_ceil(stride);
                assert!(fed <= bound && bound <= fed + length * (overlap + 1), "{of:?}, {symbols}: {fed}, {bound}");
            }
        }
        let of = WindowOptions { length: 8192, stride: 1 };
        assert_eq!(max_fed_symbols(1 << 22, of), ((1 << 22) - 1) << 13);
        let of = WindowOptions { length: usize::MAX, stride: 1 };
        assert_eq!(max_fed_symbols(usize::MAX, of), usize::MAX);
    }
}
