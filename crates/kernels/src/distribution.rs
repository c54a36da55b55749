//! Functions of a row of logits: maximum, log-sum-exp, entropy.

use crate::error::{Error, Result};
use crate::isa::{Simd, multiversion};
use crate::rowwise::exp;
use crate::{Isa, LANES};

/// Returns the largest of `x`, and ln Σ e^(x − largest) with an error below 1e-6; not finite for invalid `x`.
pub fn max_and_log_sum_exp(x: &[f32]) -> (f32, f64) {
    let isa = Isa::detect();
    let largest = largest(isa, x);
    (largest, sum_above(isa, x, largest).ln())
}

multiversion! { fn largest(x: &[f32]) -> f32 = largest_body }

multiversion! { fn sum_above(x: &[f32], largest: f32) -> f64 = sum_body }

/// Returns the largest of `x`, or NaN if one is NaN.
#[inline(always)]
fn largest_body<S: Simd>(_: S, x: &[f32]) -> f32 {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    let mut nans = [0u32; LANES];
    let chunks = x.chunks_exact(LANES);
    update_maxima(&mut maxima, &mut nans, chunks.remainder());
    for chunk in chunks {
        update_maxima(&mut maxima, &mut nans, chunk);
    }
    let has_nan = nans.iter().any(|&nan| nan != 0);
    if has_nan { f32::NAN } else { maxima.into_iter().fold(f32::NEG_INFINITY, f32::max) }
}

#[inline(always)]
fn update_maxima(maxima: &mut [f32; LANES], nans: &mut [u32; LANES], x: &[f32]) {
    for ((max, nan), &x) in maxima.iter_mut().zip(nans).zip(x) {
        *max = if x > *max { x } else { *max };
        *nan |= u32::from(x.is_nan());
    }
}

/// Returns Σ e^(x − largest), summed in sixteen lanes of double precision.
#[inline(always)]
fn sum_body<S: Simd>(_: S, x: &[f32], largest: f32) -> f64 {
    let mut sums = [0f64; LANES];
    let chunks = x.chunks_exact(LANES);
    for (sum, x) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += f64::from(exp::<S>(x - largest));
    }
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(exp::<S>(x - largest));
        }
    }
    sums.iter().sum()
}

/// Returns ln p of one symbol, in `f64`. Fails as [`LogSoftmax::new`] does.
pub fn log_probability(logits: &[f32], symbol: u32) -> Result<f64> {
    Ok(LogSoftmax::new(logits)?.exact(logit_of(symbol, logits)?))
}

/// Returns the logit of a symbol. Fails with [`Error::Internal`] if there is none.
pub fn logit_of(symbol: u32, logits: &[f32]) -> Result<f32> {
    let missing = || Error::Internal(format!("symbol {symbol} is outside of the {} logits", logits.len()));
    logits.get(symbol as usize).copied().ok_or_else(missing)
}

/// Turns the logits of one position into log-probabilities, in `f64`.
#[derive(Debug, Clone, Copy)]
pub struct LogSoftmax {
    peak: f64,
    /// ln Σ exp(logit − peak).
    excess: f64,
}

impl LogSoftmax {
    /// Fails with [`Error::Internal`] if the logits contain NaN or infinity, or are all −∞.
    pub fn new(logits: &[f32]) -> Result<Self> {
        // the machine's own instruction set: reported numbers do not depend on the one that the model uses
        let (peak, excess) = max_and_log_sum_exp(logits);
        let peak = f64::from(peak);
        if peak.is_finite() && excess.is_finite() {
            return Ok(Self { peak, excess });
        }
        Err(Error::Internal(format!(
            "the {} logits of a position contain NaN or infinity, or are all -inf",
            logits.len()
        )))
    }

    /// Returns ln p of a symbol with this logit.
    pub fn exact(self, logit: f32) -> f64 {
        f64::from(logit) - self.peak - self.excess
    }

    /// Returns ln p of a symbol with this logit, rounded to `f32`.
    pub fn logprob(self, logit: f32) -> f32 {
        self.exact(logit) as f32
    }
}

/// Returns the logistic function of `x`, computed in double precision, because the result is compared with thresholds.
pub fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

/// Returns ln Σ e^x in double precision.
fn log_sum_exp(x: &[f32]) -> f64 {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = x.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).sum();
    f64::from(top) + sum.ln()
}

/// Returns the entropy of softmax(x) in nats, in double precision.
pub fn entropy(x: &[f32]) -> f64 {
    let total = log_sum_exp(x);
    let terms = x.iter().map(|&x| {
        let log_probability = f64::from(x) - total;
        -log_probability.exp() * log_probability
    });
    terms.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_the_naive_implementation(x in proptest::collection::vec(-40f32..40.0, 1..200), impossible in 0usize..200) {
            let mut x = x;
            if let Some(x) = x.get_mut(impossible).filter(|_| impossible > 0) {
                *x = f32::NEG_INFINITY;
            }
            let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected = x.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).sum::<f64>().ln();
            for isa in Isa::all() {
                prop_assert_eq!(largest(isa, &x), top);
                prop_assert!((sum_above(isa, &x, top).ln() - expected).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn invalid_logits_give_non_finite_results() {
        for index in [0, 15, 16, 20] {
            for wrong in [f32::NAN, f32::from_bits(0xffff_ffff), f32::INFINITY] {
                let mut x = [1f32; 21];
                x[index] = wrong;
                let (largest, excess) = max_and_log_sum_exp(&x);
                assert!(!(largest.is_finite() && excess.is_finite()), "{wrong} at {index}: {largest} {excess}");
            }
        }
        assert!(!max_and_log_sum_exp(&[f32::NEG_INFINITY; 17]).0.is_finite());
        assert!(!max_and_log_sum_exp(&[]).0.is_finite());
    }

    #[test]
    fn entropy_of_equal_logits_is_the_logarithm_of_their_number() {
        assert!((entropy(&[3.0; 27]) - 27f64.ln()).abs() < 1e-12);
        assert!(entropy(&[1000.0, 0.0]) < 1e-12);
    }
}
