//! Quantiles and medians of measured values, ratios of pairs, and confidence intervals of a ratio of medians and of a mean.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Resamples of the bootstrap.
pub const RESAMPLES: usize = 2000;
/// Share of the resamples beyond either end of the interval.
const TAIL: f64 = 0.025;
/// Smallest number of pairs for an interval.
const MIN_PAIRS: usize = 8;

/// Median and spread of measured values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub struct Quantiles {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
}

impl Quantiles {
    /// Computes quantiles of values in any order, with linear interpolation; `None` without values.
    pub fn from_values(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |share| quantile(&values, share);
        Some(Self { median: at(0.5)?, p10: at(0.1)?, p90: at(0.9)? })
    }

    /// Computes quantiles of the ratios of pairs (numerator, denominator), such as two speeds; `None` without pairs.
    pub fn from_ratios(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        Self::from_values(pairs.map(|(numerator, denominator)| numerator / denominator.max(1e-9)).collect())
    }
}

/// Returns the quantile `share` (0 to 1) of ascending values, with linear interpolation; `None` without values.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let index = share * sorted.len().checked_sub(1)? as f64;
    let below = sorted.get(index.floor() as usize)?;
    let above = sorted.get(index.ceil() as usize)?;
    Some(below + (above - below) * index.fract())
}

/// Returns the median of values in any order, the mean of the middle two if their count is even; `None` without values.
pub fn median(values: Vec<f64>) -> Option<f64> {
    Quantiles::from_values(values).map(|quantiles| quantiles.median)
}

/// Returns the smallest value that a share of `share` of the values does not exceed; `None` without values.
pub fn nearest_rank<T: Ord + Copy>(values: impl Iterator<Item = T>, share: f64) -> Option<T> {
    let mut sorted: Vec<T> = values.collect();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Speed relative to a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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

impl Gain {
    /// Computes the gain over pairs of (baseline, other). Returns `None` without pairs, or if the other median is 0.
    pub fn from_pairs(pairs: &[(f64, f64)], seed: u64) -> Option<Self> {
        let ratio = ratio_of_medians(pairs)?;
        let (low, high) = interval(pairs, seed, ratio_of_medians);
        Some(Self { ratio, low, high, pairs: pairs.len() })
    }
}

/// Mean difference between a quantity of one model and of a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeanDifference {
    /// Sum of the blocks' differences divided by the sum of their weights.
    pub difference: f64,
    /// Lower end of the 95 % interval; absent if there are too few blocks.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval.
    pub high: Option<f64>,
    /// Blocks of which both models have the quantity.
    pub blocks: usize,
}

impl MeanDifference {
    /// Computes the mean over blocks of (difference, weight). Returns `None` if the weights sum to 0.
    pub fn from_blocks(blocks: &[(f64, f64)], seed: u64) -> Option<Self> {
        let difference = weighted_mean(blocks)?;
        let (low, high) = interval(blocks, seed, weighted_mean);
        Some(Self { difference, low, high, blocks: blocks.len() })
    }
}

/// Returns the ends of the 95 % interval of a statistic: Efron's bootstrap over samples, percentiles. `None` if there are too few.
fn interval(
    samples: &[(f64, f64)],
    seed: u64,
    statistic: impl Fn(&[(f64, f64)]) -> Option<f64>,
) -> (Option<f64>, Option<f64>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut resample = Vec::with_capacity(samples.len());
    let mut values = Vec::with_capacity(RESAMPLES);
    if samples.len() >= MIN_PAIRS {
        for _ in 0..RESAMPLES {
            resample.clear();
            resample.extend((0..samples.len()).map(|_| samples[rng.random_range(0..samples.len())]));
            values.extend(statistic(&resample));
        }
    }
    (nearest_index(&mut values, TAIL), nearest_index(&mut values, 1.0 - TAIL))
}

/// Returns the sum of the values divided by the sum of the weights.
fn weighted_mean(blocks: &[(f64, f64)]) -> Option<f64> {
    let (sum, weight) = blocks.iter().fold((0.0, 0.0), |(sum, total), (value, weight)| (sum + value, total + weight));
    (weight > 0.0).then(|| sum / weight)
}

/// Returns the value whose index is nearest to `share` of the last index.
fn nearest_index(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get((share * values.len().checked_sub(1)? as f64).round() as usize).copied()
}

fn ratio_of_medians(pairs: &[(f64, f64)]) -> Option<f64> {
    let baseline = median(pairs.iter().map(|pair| pair.0).collect())?;
    let other = median(pairs.iter().map(|pair| pair.1).collect())?;
    (other > 0.0).then(|| baseline / other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_distr::{Distribution, LogNormal};

    #[test]
    fn quantiles_of_known_values() {
        assert_eq!(Quantiles::from_values(vec![]), None);
        let quantiles = |values| Quantiles::from_values(values).unwrap();
        assert_eq!(quantiles(vec![7.0]), Quantiles { p10: 7.0, median: 7.0, p90: 7.0 });
        assert_eq!(quantiles((0..11).rev().map(f64::from).collect()), Quantiles { p10: 1.0, median: 5.0, p90: 9.0 });
        // interpolated: 1 + 0.1·(4 − 1)
        let two = quantiles(vec![4.0, 1.0]);
        assert!((two.p10 - 1.3).abs() < 1e-12 && two.median == 2.5 && (two.p90 - 3.7).abs() < 1e-12);
        assert_eq!((quantile(&[1.0, 2.0, 4.0], 0.0), quantile(&[1.0, 2.0, 4.0], 1.0)), (Some(1.0), Some(4.0)));
        assert_eq!((median(vec![3.0, 1.0, 2.0, 10.0]), median(vec![])), (Some(2.5), None));
        let ranks = [0.0, 0.5, 0.51, 0.99].map(|share| nearest_rank([30, 10, 20, 40].into_iter(), share));
        assert_eq!(ranks, [Some(10), Some(20), Some(30), Some(40)]);
    }

    #[test]
    fn a_ratio_of_speeds_above_one_means_that_the_first_is_faster() {
        assert_eq!(Quantiles::from_ratios([].into_iter()), None);
        let ratio = Quantiles::from_ratios([(2.0, 1.0), (2.0, 2.0), (4.0, 1.0)].into_iter()).unwrap();
        assert!(ratio.median == 2.0 && (ratio.p10 - 1.2).abs() < 1e-12 && (ratio.p90 - 3.6).abs() < 1e-12);
    }

    /// `count` pairs whose true ratio of medians is `truth`, with log-normal noise of `sigma`.
    fn noisy(truth: f64, sigma: f64, count: usize, seed: u64) -> Vec<(f64, f64)> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let noise = LogNormal::new(0.0, sigma).unwrap();
        (0..count).map(|_| (truth * noise.sample(&mut rng), noise.sample(&mut rng))).collect()
    }

    #[test]
    fn gains_of_known_pairs() {
        let even: Vec<_> = (1..=9).map(|n| (3.0 * f64::from(n), f64::from(n))).collect();
        let gain = Gain::from_pairs(&even, 1).unwrap();
        assert_eq!((gain.ratio, gain.pairs), (3.0, 9));
        assert_eq!(Gain::from_pairs(&[], 1), None);
        assert_eq!(Gain::from_pairs(&[(1.0, 0.0)], 1), None);
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_claimed() {
        // 200 measurements of a true 1.5, each of 40 pairs
        let held = (0..200)
            .filter(|&seed| {
                let Gain { low, high, .. } = Gain::from_pairs(&noisy(1.5, 0.3, 40, seed), seed).unwrap();
                low.unwrap() <= 1.5 && 1.5 <= high.unwrap()
            })
            .count();
        assert!((180..=199).contains(&held), "{held} of 200");
    }

    #[test]
    fn a_mean_difference_weighs_its_blocks_and_covers_the_truth() {
        let weighted = MeanDifference::from_blocks(&[(4.0, 1.0), (2.0, 2.0)], 1).unwrap();
        assert_eq!(weighted, MeanDifference { difference: 2.0, low: None, high: None, blocks: 2 });
        assert_eq!(MeanDifference::from_blocks(&[], 1), None);
        let noise = LogNormal::new(0.0, 0.5).unwrap();
        let truth = 0.125f64.exp();
        let held = (0..200)
            .filter(|&seed| {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let blocks: Vec<_> = (0..60).map(|_| (noise.sample(&mut rng), 1.0)).collect();
                let MeanDifference { low, high, .. } = MeanDifference::from_blocks(&blocks, seed).unwrap();
                low.unwrap() <= truth && truth <= high.unwrap()
            })
            .count();
        assert!((175..=199).contains(&held), "{held} of 200");
    }

    #[test]
    fn gains_are_deterministic_and_few_pairs_have_no_interval() {
        let pairs = noisy(2.0, 0.2, 30, 5);
        assert_eq!(Gain::from_pairs(&pairs, 3), Gain::from_pairs(&pairs, 3));
        assert_eq!(Gain::from_pairs(&pairs[..7], 3).unwrap().low, None);
    }
}
