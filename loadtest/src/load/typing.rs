//! A simulated typist: the typing speed, and the completions that each keystroke requests.

use crate::error::{Error, Result};
use rand::Rng;
use rand_distr::{Distribution, LogNormal};
use std::time::Duration;
use weir_proto::v1::Until;

/// Standard deviation of the logarithm of the times between keystrokes. The times of a fast typist and a slow one differ, but
/// both are skewed to the right like this.
const SIGMA: f64 = 0.5;
/// Most keystrokes a second.
const MAX_RATE: f64 = 1000.0;
/// Most completions that a server returns.
const MAX_COUNT: u32 = 16;

/// A typist, and the completions that each keystroke asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TypingSpec {
    /// Keystrokes a second, on average.
    pub rate: f64,
    /// Time from the first completions of a document to the first gap.
    pub pause: Duration,
    /// Completions.
    pub count: u32,
    /// The end of each completion.
    pub until: Until,
}

impl Default for TypingSpec {
    fn default() -> Self {
        Self { rate: 10.0, pause: Duration::ZERO, count: 3, until: Until::Word }
    }
}

/// Names of the ends of completions.
const ENDS: [(&str, Until); 4] =
    [("word", Until::Word), ("line", Until::Line), ("segment", Until::Segment), ("max_chars", Until::MaxChars)];

impl TypingSpec {
    /// Fails if a value is out of bounds.
    pub(crate) fn check(&self) -> Result<()> {
        if !(0.1..=MAX_RATE).contains(&self.rate) {
            let expected = format!("0.1 to {MAX_RATE} keystrokes/s");
            return Err(Error::option("--workload rate", self.rate, expected));
        }
        Error::check_range("--workload count", self.count, 1..=MAX_COUNT)
    }

    /// Returns the end of completions with this name. Fails if there is none.
    pub(crate) fn end(name: &str) -> Result<Until, String> {
        let known = ENDS.iter().find(|(known, _)| *known == name);
        let names = || ENDS.map(|(name, _)| name).join(", ");
        known.map(|(_, end)| *end).ok_or_else(|| format!("expected one of {}", names()))
    }

    /// Returns the name of the end of completions.
    pub(super) fn end_name(&self) -> &'static str {
        ENDS.iter().find(|(_, end)| *end == self.until).map_or("word", |(name, _)| *name)
    }

    /// Draws the log-normal times before `count` keystrokes, with the mean 1 / `rate`. Never fails after [`Self::check`].
    pub(super) fn gaps(&self, rng: &mut impl Rng, count: usize) -> Result<Vec<Duration>> {
        // the mean of a log-normal distribution is exp(mu + sigma² / 2)
        let mu = -self.rate.ln() - SIGMA * SIGMA / 2.0;
        let gaps = LogNormal::new(mu, SIGMA).map_err(|error| Error::Internal(format!("a typist: {error}")))?;
        Ok(gaps.sample_iter(rng).take(count).map(Duration::from_secs_f64).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn gaps_have_the_rate_and_the_spread_and_follow_the_seed() {
        let typing = TypingSpec { rate: 8.0, ..TypingSpec::default() };
        let gaps = |seed| typing.gaps(&mut ChaCha8Rng::seed_from_u64(seed), 20_000).unwrap();
        let drawn = gaps(1);
        let mean = drawn.iter().map(Duration::as_secs_f64).sum::<f64>() / 20_000.0;
        assert!((mean * 8.0 - 1.0).abs() < 0.02, "{mean}");
        let logs: Vec<f64> = drawn.iter().map(|gap| gap.as_secs_f64().ln()).collect();
        let middle = logs.iter().sum::<f64>() / 20_000.0;
        let variance = logs.iter().map(|log| (log - middle).powi(2)).sum::<f64>() / 20_000.0;
        assert!((variance.sqrt() - SIGMA).abs() < 0.02, "{variance}");
        assert_eq!(drawn, gaps(1));
        assert_ne!(drawn, gaps(2));
    }

    #[test]
    fn typists_are_checked() {
        let typing = TypingSpec::default();
        assert!(typing.check().is_ok());
        assert!(TypingSpec { rate: f64::NAN, ..typing }.check().is_err());
        assert!(TypingSpec { count: 17, ..typing }.check().is_err());
        assert_eq!(TypingSpec::end("max_chars"), Ok(Until::MaxChars));
        assert_eq!(TypingSpec { until: Until::Line, ..typing }.end_name(), "line");
        assert!(TypingSpec::end("page").unwrap_err().contains("word, line, segment, max_chars"));
    }
}
