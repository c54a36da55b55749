//! Quantiles of measured values.

use serde::Serialize;

/// The 10th, 50th and 90th percentile of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// 10th percentile.
    pub p10: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
}

impl Quantiles {
    /// Computes quantiles of values in any order, with linear interpolation. Returns `None` if there are no values.
    pub fn from_values(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Self { p10: quantile(&values, 0.1)?, p50: quantile(&values, 0.5)?, p90: quantile(&values, 0.9)? })
    }
}

/// Returns the quantile `share` (0 to 1) of ascending values, with linear interpolation, or `None` if there are none.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
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
        assert_eq!(Quantiles::from_values(vec![]), None);
        assert_eq!(Quantiles::from_values(vec![7.0]), Some(Quantiles { p10: 7.0, p50: 7.0, p90: 7.0 }));
        let eleven = (0..11).rev().map(f64::from).collect();
        assert_eq!(Quantiles::from_values(eleven), Some(Quantiles { p10: 1.0, p50: 5.0, p90: 9.0 }));
        // interpolated: 1 + 0.1·(4 − 1)
        let two = Quantiles::from_values(vec![4.0, 1.0]).unwrap();
        assert!((two.p10 - 1.3).abs() < 1e-12 && two.p50 == 2.5 && (two.p90 - 3.7).abs() < 1e-12);
        assert_eq!((quantile(&[1.0, 2.0, 4.0], 0.0), quantile(&[1.0, 2.0, 4.0], 1.0)), (Some(1.0), Some(4.0)));
    }
}
