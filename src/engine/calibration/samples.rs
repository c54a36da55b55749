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
        let spread = spread(&samples.closing).max(spread(&samples.plain));
        let [symbol, middle, finish] = samples.closing.each_mut().map(|samples| median(samples));
        let [plain_symbol, plain_finish] = samples.plain.each_mut().map(|samples| median(samples));
        Some(Cell {
            rows: self.size.0,
            symbols: self.size.1,
            context: self.context.0,
            context_segments: self.context.1,
            closed: self.closed,
            samples: count,
            spread,
            symbol: symbol?,
            middle: middle?,
            finish: finish?,
            plain: plain_symbol.zip(plain_finish),
        })
    }
}

/// The interquartile range of whole rounds, by their median, of what their parts took; 0 of none.
fn spread(parts: &[Vec<u64>]) -> f64 {
    let Some(count) = parts.iter().map(Vec::len).min().filter(|&count| count > 0) else { return 0.0 };
    let mut rounds: Vec<u64> = (0..count).map(|round| parts.iter().map(|part| part[round]).sum()).collect();
    rounds.sort_unstable();
    let at = |quarter: usize| rounds[(count * quarter / 4).min(count - 1)];
    (at(3) - at(1)) as f64 / at(2).max(1) as f64
}

fn median(samples: &mut [u64]) -> Option<Duration> {
    samples.sort_unstable();
    samples.get(samples.len() / 2).map(|&nanoseconds| Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { size: (1, 1), context: (16, 4), closed: 1 };

    /// The cell of rounds that took so long together, of those with a segment step and those without.
    fn cell(closing: &[u64], plain: &[u64]) -> Cell {
        let mut samples = Samples::default();
        closing.iter().for_each(|&took| samples.push([took / 4, took / 2, took - took / 4 - took / 2], true));
        plain.iter().for_each(|&took| samples.push([took / 2, 0, took - took / 2], false));
        PLACE.cell(samples).unwrap()
    }

    #[test]
    fn a_spread_is_that_of_whole_rounds_by_their_median() {
        let even: Vec<u64> = (0..8).map(|step| 1000 + step * 10).collect();
        // from the second quarter's first to the last quarter's first, by the third's
        assert_eq!(cell(&even, &[]).spread, 40.0 / 1040.0);
        // the wider of both kinds, and no matter in which order they came
        assert_eq!(cell(&even, &[300, 100, 400, 200]).spread, 200.0 / 300.0);
        // one round in ten that the system interrupted is not seen
        let disturbed: Vec<u64> = (0..30).map(|round| if round % 10 == 0 { 9000 } else { 1000 }).collect();
        assert_eq!(cell(&disturbed, &[]).spread, 0.0);
        let half: Vec<u64> = (0..30).map(|round| if round % 2 == 0 { 3000 } else { 1000 }).collect();
        assert!(cell(&half, &[]).spread > 0.6);
        assert_eq!(cell(&[7], &[]).spread, 0.0);
    }
}
