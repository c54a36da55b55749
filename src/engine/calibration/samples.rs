//! Samples of one kind of step, and what they come to.

use super::Cell;
use std::time::Duration;

/// Nanoseconds that a round's symbol, segment and finish step took.
pub(super) type Took = [u64; 3];

/// What one kind of step took each time.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Rounds with a segment step: its three parts.
    closing: [Vec<u64>; 3],
    /// Rounds without: the symbol and the finish step.
    plain: [Vec<u64>; 2],
}

impl Samples {
    pub(super) fn push(&mut self, [symbol, middle, finish]: Took, closing: bool) {
        if closing {
            self.closing.iter_mut().zip([symbol, middle, finish]).for_each(|(all, one)| all.push(one));
        } else {
            self.plain.iter_mut().zip([symbol, finish]).for_each(|(all, one)| all.push(one));
        }
    }
}

/// Where in the table a kind of step belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Rows, and symbols that each was fed.
    pub(super) size: (usize, usize),
    /// Symbols and segments that each had before.
    pub(super) context: (usize, usize),
    /// Segments that they closed together.
    pub(super) closed: usize,
}

impl Place {
    /// The cell of these samples; none if no round closed a segment.
    pub(super) fn cell(self, mut samples: Samples) -> Option<Cell> {
        let count = samples.closing[0].len();
        let [symbol, middle, finish] = samples.closing.each_mut().map(|samples| median(samples));
        let [plain_symbol, plain_finish] = samples.plain.each_mut().map(|samples| median(samples));
        Some(Cell {
            rows: self.size.0,
            symbols: self.size.1,
            context: self.context.0,
            context_segments: self.context.1,
            closed: self.closed,
            samples: count,
            symbol: symbol?,
            middle: middle?,
            finish: finish?,
            plain: plain_symbol.zip(plain_finish),
        })
    }
}

fn median(samples: &mut [u64]) -> Option<Duration> {
    samples.sort_unstable();
    samples.get(samples.len() / 2).map(|&nanoseconds| Duration::from_nanos(nanoseconds))
}
