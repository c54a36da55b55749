//! How fast steps run now, beside what the table says of them.
//!
//! A table is of the moment it was made in, by steps in a tight loop. Later the machine is faster or slower, and between a server's
//! steps its caches get colder. Of each kind of round the ratio of what it took to what the table says it should have is
//! therefore kept for a while; the median, which one round that the system interrupted does not move, corrects the table.

use super::{Round, Table};

/// Rounds of a kind that are remembered.
const REMEMBERED: usize = 31;
/// So many there must be for their median to say anything.
const ENOUGH: usize = 5;

/// Late rounds of a worker, by kind.
#[derive(Debug, Clone, Default)]
pub struct DriftCorrection {
    /// Without a segment step.
    plain: Late,
    /// With one.
    closing: Late,
    /// With a chunk.
    chunk: Late,
}

impl DriftCorrection {
    /// How many nanoseconds more a round that took so many should have taken without pooling.
    pub fn more(&mut self, table: &Table, round: &Round, took: f64) -> f64 {
        let (unpooled, pooled) = table.reckon(round);
        let ratio = (pooled > 0.0).then(|| (took / pooled) as f32);
        // how much slower than the table it would have been without pooling, and how much slower it was
        let (all, own) = if round.chunk {
            let chunk = self.chunk.with(ratio).median().unwrap_or_else(|| self.closing());
            (chunk, chunk)
        } else if round.closed > 0 {
            self.closing.with(ratio);
            let closing = self.closing();
            (closing, closing)
        } else {
            let plain = self.plain.with(ratio).median();
            // without pooling it would have been one with a segment step
            let closing = self.closing.median().or(plain).unwrap_or(1.0);
            (closing, plain.unwrap_or(closing))
        };
        all * unpooled - own * pooled
    }

    /// Of rounds with a segment step; what is not known yet is as what is.
    fn closing(&self) -> f64 {
        self.closing.median().or_else(|| self.plain.median()).unwrap_or(1.0)
    }
}

/// The latest ratios of one kind of round, in a ring.
#[derive(Debug, Clone)]
struct Late {
    ratios: [f32; REMEMBERED],
    seen: usize,
}

impl Default for Late {
    fn default() -> Self {
        Self { ratios: [0.0; REMEMBERED], seen: 0 }
    }
}

impl Late {
    /// The same and another one, if there is one.
    fn with(&mut self, ratio: Option<f32>) -> &Self {
        if let Some(ratio) = ratio {
            self.ratios[self.seen % REMEMBERED] = ratio;
            self.seen += 1;
        }
        self
    }

    fn median(&self) -> Option<f64> {
        let count = self.seen.min(REMEMBERED);
        if count < ENOUGH {
            return None;
        }
        let mut sorted = self.ratios;
        let (_, median, _) = sorted[..count].select_nth_unstable_by(count / 2, f32::total_cmp);
        Some(f64::from(*median))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::table, *};

    fn plain() -> Round {
        Round { fed: 2, finished: 2, context: 100.0, segments: 20.0, ..Round::default() }
    }

    /// Both kinds of rounds in turns, each so much slower than the table has it.
    fn after(rounds: usize, slower: f64, disturbed: impl Fn(usize) -> f64) -> (f64, f64) {
        let (table, mut pace) = (table(), DriftCorrection::default());
        let closing = Round { closed: 1, ..plain() };
        let mut last = (0.0, 0.0);
        for at in 0..rounds {
            let took = |round: &Round| table.reckon(round).1 * slower + disturbed(at);
            last = (pace.more(&table, &plain(), took(&plain())), pace.more(&table, &closing, took(&closing)));
        }
        last
    }

    fn by_the_table() -> (f64, f64) {
        let more = |round: &Round| table().more(round);
        (more(&plain()), more(&Round { closed: 1, ..plain() }))
    }

    #[test]
    fn the_table_is_believed_until_enough_was_seen() {
        assert_eq!(after(ENOUGH - 1, 3.0, |_| 0.0), by_the_table());
    }

    #[test]
    fn a_slower_machine_would_have_been_slower_without_pooling_too() {
        let (slow, fast) = (after(40, 1.5, |_| 0.0), by_the_table());
        assert!((slow.0 / fast.0 - 1.5).abs() < 1e-3 && (slow.1 / fast.1 - 1.5).abs() < 1e-3, "{slow:?}, {fast:?}");
    }

    #[test]
    fn rounds_that_the_system_interrupts_do_not_count() {
        let undisturbed = after(40, 1.1, |_| 0.0);
        let disturbed = after(40, 1.1, |at| if at % 3 == 0 { 5e6 } else { 0.0 });
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3;
        assert!(near(disturbed.0, undisturbed.0) && near(disturbed.1, undisturbed.1));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let (table, mut pace) = (table(), DriftCorrection::default());
        let closing = Round { closed: 1, ..plain() };
        let took = table.reckon(&closing).1;
        for slower in [9.0; REMEMBERED].into_iter().chain([1.0; REMEMBERED]) {
            pace.more(&table, &closing, took * slower);
        }
        let last = pace.more(&table, &closing, took);
        assert!((last / table.more(&closing) - 1.0).abs() < 1e-3);
    }
}
