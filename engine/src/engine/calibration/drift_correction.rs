//! Corrects the table of step times by how long recent steps took.
//!
//! A table describes the moment of its measurement, in a tight loop. Later the machine may be faster or slower, and between a
//! server's steps its CPU caches get colder. For each kind of step the latest ratios of actual to estimated time are kept. Their
//! median, which single interrupted steps do not move, corrects the table.

use super::{EngineStep, TimingTable};

/// Ratios kept for each kind of step.
const KEPT_RATIOS: usize = 31;
/// Ratios needed for a median.
const MIN_RATIOS: usize = 5;

/// Recent ratios of actual to estimated time, by kind of step.
#[derive(Debug, Clone, Default)]
pub struct DriftCorrection {
    /// Steps without a segment step.
    plain: RatioWindow,
    /// Steps with a segment step.
    closing: RatioWindow,
    /// Steps with a chunk.
    chunk: RatioWindow,
}

impl DriftCorrection {
    /// Returns how many nanoseconds more a step that took `took` nanoseconds would have taken without pooling.
    pub fn extra_nanoseconds(&mut self, table: &TimingTable, step: &EngineStep, took: f64) -> f64 {
        let estimate = table.estimate(step);
        let ratio = (estimate.pooled > 0.0).then(|| (took / estimate.pooled) as f32);
        if step.chunk {
            let drift = self.chunk.push(ratio).median().unwrap_or_else(|| self.closing_drift());
            drift * (estimate.unpooled - estimate.pooled)
        } else if step.closed > 0 {
            self.closing.push(ratio);
            self.closing_drift() * (estimate.unpooled - estimate.pooled)
        } else {
            let plain = self.plain.push(ratio).median();
            // without pooling it would have had a segment step
            let closing = self.closing.median().or(plain).unwrap_or(1.0);
            closing * estimate.unpooled - plain.unwrap_or(closing) * estimate.pooled
        }
    }

    /// Returns the drift of steps with a segment step, or of other steps while too few are known.
    fn closing_drift(&self) -> f64 {
        self.closing.median().or_else(|| self.plain.median()).unwrap_or(1.0)
    }
}

/// The latest ratios of one kind of step, in a ring buffer.
#[derive(Debug, Clone, Default)]
struct RatioWindow {
    ratios: [f32; KEPT_RATIOS],
    count: usize,
}

impl RatioWindow {
    fn push(&mut self, ratio: Option<f32>) -> &Self {
        if let Some(ratio) = ratio {
            self.ratios[self.count % KEPT_RATIOS] = ratio;
            self.count += 1;
        }
        self
    }

    fn median(&self) -> Option<f64> {
        let count = self.count.min(KEPT_RATIOS);
        if count < MIN_RATIOS {
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

    /// Extra nanoseconds of a step of each kind.
    #[derive(Debug, PartialEq)]
    struct Extra {
        plain: f64,
        closing: f64,
    }

    impl Extra {
        fn is_near(&self, other: &Self, factor: f64) -> bool {
            let near = |a: f64, b: f64| (a / b - factor).abs() < 1e-3;
            near(self.plain, other.plain) && near(self.closing, other.closing)
        }
    }

    fn plain() -> EngineStep {
        EngineStep { fed: 2, finished: 2, context: 100.0, segments: 20.0, ..EngineStep::default() }
    }

    fn closing() -> EngineStep {
        EngineStep { closed: 1, ..plain() }
    }

    /// Runs both kinds of steps in turn, each `slowdown` times slower than the table; returns the last result.
    fn after(steps: usize, slowdown: f64, interruption: impl Fn(usize) -> f64) -> Extra {
        let table = table();
        let mut drift = DriftCorrection::default();
        let mut last = Extra { plain: 0.0, closing: 0.0 };
        for index in 0..steps {
            let mut extra = |step: EngineStep| {
                let took = table.estimate(&step).pooled * slowdown + interruption(index);
                drift.extra_nanoseconds(&table, &step, took)
            };
            last = Extra { plain: extra(plain()), closing: extra(closing()) };
        }
        last
    }

    fn by_the_table() -> Extra {
        Extra { plain: table().extra(&plain()), closing: table().extra(&closing()) }
    }

    #[test]
    fn the_table_is_not_corrected_until_enough_steps_ran() {
        assert_eq!(after(MIN_RATIOS - 1, 3.0, |_| 0.0), by_the_table());
    }

    #[test]
    fn a_slower_machine_would_be_slower_without_pooling_too() {
        let slow = after(40, 1.5, |_| 0.0);
        assert!(slow.is_near(&by_the_table(), 1.5), "{slow:?}");
    }

    #[test]
    fn interrupted_steps_do_not_count() {
        let interrupted = after(40, 1.1, |index| if index % 3 == 0 { 5e6 } else { 0.0 });
        assert!(interrupted.is_near(&after(40, 1.1, |_| 0.0), 1.0));
    }

    #[test]
    fn old_steps_are_forgotten() {
        let table = table();
        let mut drift = DriftCorrection::default();
        let took = table.estimate(&closing()).pooled;
        for slowdown in [9.0; KEPT_RATIOS].into_iter().chain([1.0; KEPT_RATIOS]) {
            drift.extra_nanoseconds(&table, &closing(), took * slowdown);
        }
        let last = drift.extra_nanoseconds(&table, &closing(), took);
        assert!((last / table.extra(&closing()) - 1.0).abs() < 1e-3);
    }
}
