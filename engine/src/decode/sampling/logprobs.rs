//! Reported log-probabilities: computed from the distribution before the sampler changes it.

use crate::{
    error::{Error, Result},
    kernels::distribution::max_and_log_sum_exp,
};
use std::cmp::Ordering;

/// Log-probabilities reported for each symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogprobOptions {
    /// True: the symbol's own log-probability.
    pub logprobs: bool,
    /// Number of most probable symbols reported for its position.
    pub top: usize,
}

/// Log-probabilities of one symbol.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SymbolLogprobs {
    /// Its own.
    pub logprob: Option<f32>,
    /// The most probable symbols at its position, best first; equals by lower id.
    pub top: Vec<(u32, f32)>,
}

impl LogprobOptions {
    /// True if logits are needed.
    pub fn any(self) -> bool {
        self.logprobs || self.top > 0
    }

    /// Computes the log-probabilities of the symbol at a position from the position's logits (vocab). Fails with
    /// [`Error::Internal`] if the logits contain NaN or infinity, are all −∞, or have no entry for the symbol.
    pub fn compute(self, symbol: u32, logits: &[f32]) -> Result<SymbolLogprobs> {
        if !self.any() {
            return Ok(SymbolLogprobs::default());
        }
        let softmax = LogSoftmax::new(logits)?;
        let logit = logit_of(symbol, logits)?;
        let alternative = |symbol: u32| (symbol, softmax.logprob(logits[symbol as usize]));
        let top = best(logits, self.top).into_iter().map(alternative).collect();
        Ok(SymbolLogprobs { logprob: self.logprobs.then(|| softmax.logprob(logit)), top })
    }
}

/// Returns ln p of one symbol, in `f64`. Fails as [`LogprobOptions::compute`] does.
pub fn log_probability(logits: &[f32], symbol: u32) -> Result<f64> {
    Ok(LogSoftmax::new(logits)?.exact(logit_of(symbol, logits)?))
}

fn logit_of(symbol: u32, logits: &[f32]) -> Result<f32> {
    let missing = || Error::Internal(format!("symbol {symbol} is outside of the {} logits", logits.len()));
    logits.get(symbol as usize).copied().ok_or_else(missing)
}

/// Turns the logits of one position into log-probabilities, in `f64`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogSoftmax {
    peak: f64,
    /// ln Σ exp(logit − peak).
    excess: f64,
}

impl LogSoftmax {
    pub(crate) fn new(logits: &[f32]) -> Result<Self> {
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
    pub(crate) fn exact(self, logit: f32) -> f64 {
        f64::from(logit) - self.peak - self.excess
    }

    pub(crate) fn logprob(self, logit: f32) -> f32 {
        self.exact(logit) as f32
    }
}

/// Returns the `count` symbols of largest logits, best first. Insertion into a short list: `count` is small.
fn best(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(count + 1);
    if count == 0 {
        return best;
    }
    for (symbol, logit) in logits.iter().enumerate() {
        // equals go behind lower ids
        let index = best.partition_point(|&other| logits[other as usize].total_cmp(logit) != Ordering::Less);
        if index < count {
            best.insert(index, symbol as u32);
            best.truncate(count);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    proptest! {
        #[test]
        fn agrees_with_the_naive_implementation(
            logits in vec(prop_oneof![(-3i32..3).prop_map(|value| value as f32), -30.0f32..30.0], 1..20),
            top in 0usize..25, symbol in 0usize..20,
        ) {
            let symbol = symbol % logits.len();
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let logprob = |logit: f32| (f64::from(logit).exp() / total).ln() as f32;
            let mut ranking: Vec<usize> = (0..logits.len()).collect();
            ranking.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap());
            ranking.truncate(top);
            let logprobs = LogprobOptions { logprobs: true, top }.compute(symbol as u32, &logits).unwrap();
            prop_assert!((logprobs.logprob.unwrap() - logprob(logits[symbol])).abs() < 1e-5);
            prop_assert_eq!(logprobs.top.iter().map(|t| t.0 as usize).collect::<Vec<_>>(), ranking);
            for (symbol, reported) in logprobs.top {
                prop_assert!((reported - logprob(logits[symbol as usize])).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn reports_only_what_is_requested() {
        let logits = [0.0, 1.0];
        assert_eq!(LogprobOptions { logprobs: false, top: 0 }.compute(0, &logits).unwrap(), SymbolLogprobs::default());
        let reported = LogprobOptions { logprobs: false, top: 1 }.compute(0, &logits).unwrap();
        assert_eq!((reported.logprob, reported.top.len()), (None, 1));
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let reported = LogprobOptions { logprobs: true, top: 0 }.compute(1, &[3e38, 3e38, -3e38]).unwrap();
        assert_eq!(reported.logprob, Some(-std::f32::consts::LN_2));
    }

    #[test]
    fn rejects_logits_that_are_no_distribution() {
        for logits in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            let reported = LogprobOptions { logprobs: true, top: 0 }.compute(0, &logits);
            assert!(matches!(reported, Err(Error::Internal(_))), "{logits:?}");
        }
    }
}
