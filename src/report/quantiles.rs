//! Quantiles of what was measured.

use serde::Serialize;

/// A tenth, half and nine tenths of the numbers are at most this.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// The tenth percentile.
    pub p10: f64,
    /// The median.
    pub p50: f64,
    /// The ninetieth percentile.
    pub p90: f64,
}

impl Quantiles {
    /// Of numbers in any order; between two of them, the line that joins them. None of no numbers.
    pub fn of(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.sort_by(f64::total_cmp);
        let at = |share| quantile(&numbers, share);
        Some(Self { p10: at(0.1)?, p50: at(0.5)?, p90: at(0.9)? })
    }
}

/// The number that this share of them is at most, from 0 to 1, as for [`Quantiles::of`]; `sorted` ascends. None of no numbers.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted.get(place.floor() as usize)?, sorted.get(place.ceil() as usize)?);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_known_numbers() {
        assert_eq!(Quantiles::of(vec![]), None);
        assert_eq!(Quantiles::of(vec![7.0]), Some(Quantiles { p10: 7.0, p50: 7.0, p90: 7.0 }));
        let eleven = (0..11).rev().map(f64::from).collect();
        assert_eq!(Quantiles::of(eleven), Some(Quantiles { p10: 1.0, p50: 5.0, p90: 9.0 }));
        // between two numbers: 1 + 0.1·(4 − 1)
        let two = Quantiles::of(vec![4.0, 1.0]).unwrap();
        assert!((two.p10 - 1.3).abs() < 1e-12 && two.p50 == 2.5 && (two.p90 - 3.7).abs() < 1e-12);
        assert_eq!((quantile(&[1.0, 2.0, 4.0], 0.0), quantile(&[1.0, 2.0, 4.0], 1.0)), (Some(1.0), Some(4.0)));
    }
}
