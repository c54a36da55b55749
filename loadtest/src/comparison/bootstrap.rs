//! Confidence interval of a ratio of medians: Efron's bootstrap over pairs, percentile interval.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

pub(crate) const RESAMPLES: usize = 2000;
/// Share of the resamples beyond either end of the interval.
const TAIL: f64 = 0.025;
/// Smallest number of pairs for an interval.
const MIN_PAIRS: usize = 8;

/// Speed relative to the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gain {
    /// Median of the baseline divided by the median of the other model.
    pub ratio: f64,
    /// Lower end of the 95 % interval; absent if there are too few pairs.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval.
    pub high: Option<f64>,
    /// Pairs of which both models have the figure.
    pub pairs: usize,
}

/// Computes the gain over pairs of (baseline, other). Returns `None` without pairs, or if the other median is 0.
pub(crate) fn gain(pairs: &[(f64, f64)], seed: u64) -> Option<Gain> {
    let ratio = ratio(pairs)?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut resample = Vec::with_capacity(pairs.len());
    let mut ratios: Vec<f64> = Vec::with_capacity(RESAMPLES);
    if pairs.len() >= MIN_PAIRS {
        for _ in 0..RESAMPLES {
            resample.clear();
            resample.extend((0..pairs.len()).map(|_| pairs[rng.random_range(0..pairs.len())]));
            ratios.extend(self::ratio(&resample));
        }
    }
    ratios.sort_by(f64::total_cmp);
    let quantile = |share: f64| ratios.get((share * (ratios.len().checked_sub(1)?) as f64).round() as usize).copied();
    Some(Gain { ratio, low: quantile(TAIL), high: quantile(1.0 - TAIL), pairs: pairs.len() })
}

fn ratio(pairs: &[(f64, f64)]) -> Option<f64> {
    let baseline = median(pairs.iter().map(|pair| pair.0).collect())?;
    let other = median(pairs.iter().map(|pair| pair.1).collect())?;
    (other > 0.0).then(|| baseline / other)
}

/// Returns the middle number, or the mean of the two in the middle; `None` without numbers.
pub(crate) fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    let upper = *numbers.get(middle)?;
    let lower = if numbers.len().is_multiple_of(2) { *numbers.get(middle.checked_sub(1)?)? } else { upper };
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_distr::{Distribution, LogNormal};

    /// `count` pairs whose true ratio of medians is `truth`, with log-normal noise of `sigma`.
    fn noisy(truth: f64, sigma: f64, count: usize, seed: u64) -> Vec<(f64, f64)> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let noise = LogNormal::new(0.0, sigma).unwrap();
        (0..count).map(|_| (truth * noise.sample(&mut rng), noise.sample(&mut rng))).collect()
    }

    #[test]
    fn gains_of_known_pairs() {
        let even: Vec<_> = (1..=9).map(|n| (3.0 * f64::from(n), f64::from(n))).collect();
        let gain = gain(&even, 1).unwrap();
        assert_eq!((gain.ratio, gain.pairs), (3.0, 9));
        assert_eq!(median(vec![3.0, 1.0, 2.0, 10.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
        assert_eq!(super::gain(&[], 1), None);
        assert_eq!(super::gain(&[(1.0, 0.0)], 1), None);
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_claimed() {
        // 200 measurements of a true 1.5, each of 40 pairs
        let held = (0..200)
            .filter(|&seed| {
                let Gain { low, high, .. } = gain(&noisy(1.5, 0.3, 40, seed), seed).unwrap();
                low.unwrap() <= 1.5 && 1.5 <= high.unwrap()
            })
            .count();
        assert!((180..=199).contains(&held), "{held} of 200");
    }

    #[test]
    fn gains_are_deterministic_and_few_pairs_have_no_interval() {
        let pairs = noisy(2.0, 0.2, 30, 5);
        assert_eq!(gain(&pairs, 3), gain(&pairs, 3));
        assert_eq!(gain(&pairs[..7], 3).unwrap().low, None);
    }
}
