//! Quantiles of measured values.

use crate::error::{Error, Result};
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
}

impl Quantiles {
    /// Computes quantiles of values in any order, with linear interpolation. Fails if there are no values.
    pub fn from_values(mut values: Vec<f64>) -> Result<Self> {
        values.sort_by(f64::total_cmp);
        let at = |share| quantile(&values, share).ok_or_else(|| Error::Internal("nothing was timed".into()));
        Ok(Self { median: at(0.5)?, p10: at(0.1)?, p90: at(0.9)? })
    }

    /// Computes quantiles of the ratios of pairs (numerator, denominator), such as two speeds. Fails if there are no pairs.
    pub fn from_ratios(pairs: impl Iterator<Item = (f64, f64)>) -> Result<Self> {
        Self::from_values(pairs.map(|(numerator, denominator)| numerator / denominator.max(1e-9)).collect())
    }
}

/// Returns the quantile `share` (0 to 1) of ascending values, with linear interpolation, or `None` if there are none.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let index = share * sorted.len().checked_sub(1)? as f64;
    let below = sorted.get(index.floor() as usize)?;
    let above = sorted.get(index.ceil() as usize)?;
    Some(below + (above - below) * index.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_values() {
        assert!(Quantiles::from_values(vec![]).is_err());
        let quantiles = |values| Quantiles::from_values(values).unwrap();
        assert_eq!(quantiles(vec![7.0]), Quantiles { p10: 7.0, median: 7.0, p90: 7.0 });
        assert_eq!(quantiles((0..11).rev().map(f64::from).collect()), Quantiles { p10: 1.0, median: 5.0, p90: 9.0 });
        // interpolated: 1 + 0.1·(4 − 1)
        let two = quantiles(vec![4.0, 1.0]);
        assert!((two.p10 - 1.3).abs() < 1e-12 && two.median == 2.5 && (two.p90 - 3.7).abs() < 1e-12);
        assert_eq!((quantile(&[1.0, 2.0, 4.0], 0.0), quantile(&[1.0, 2.0, 4.0], 1.0)), (Some(1.0), Some(4.0)));
    }

    #[test]
    fn a_ratio_of_speeds_above_one_means_that_the_first_is_faster() {
        assert!(Quantiles::from_ratios([].into_iter()).is_err());
        let ratio = Quantiles::from_ratios([(2.0, 1.0), (2.0, 2.0), (4.0, 1.0)].into_iter()).unwrap();
        assert!(ratio.median == 2.0 && (ratio.p10 - 1.2).abs() < 1e-12 && (ratio.p90 - 3.6).abs() < 1e-12);
    }
}
