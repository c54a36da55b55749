//! Log-probabilities that are told: those of the unmodified distribution, whatever the sampler did to it.

use crate::{
    error::{Error, Result},
    kernels::distribution::max_and_log_sum_exp,
};
use std::cmp::Ordering;

/// Which log-probabilities are told of each symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogprobOptions {
    /// The symbol's own.
    pub logprobs: bool,
    /// Those of this many most probable symbols at its position.
    pub top: usize,
}

/// What is told of one symbol.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SymbolLogprobs {
    /// Its log-probability.
    pub logprob: Option<f32>,
    /// The most probable symbols at its position, best first, the lower id of equals.
    pub top: Vec<(u32, f32)>,
}

impl LogprobOptions {
    /// Whether logits are needed at all.
    pub fn any(self) -> bool {
        self.logprobs || self.top > 0
    }

    /// What the logits (vocab) of a position say of the symbol that stands there.
    ///
    /// # Errors
    /// [`Error::Internal`] if the logits are no distribution, or do not know the symbol.
    pub fn of(self, symbol: u32, logits: &[f32]) -> Result<SymbolLogprobs> {
        if !self.any() {
            return Ok(SymbolLogprobs::default());
        }
        let normaliser = LogSoftmax::of(logits)?;
        let Some(&logit) = logits.get(symbol as usize) else {
            return Err(Error::Internal(format!("symbol {symbol} has no logit among {}", logits.len())));
        };
        let alternative = |symbol: u32| (symbol, normaliser.logprob(logits[symbol as usize]));
        let top = best(logits, self.top).into_iter().map(alternative).collect();
        Ok(SymbolLogprobs { logprob: self.logprobs.then(|| normaliser.logprob(logit)), top })
    }
}

/// ln p of one symbol, in `f64`.
///
/// # Errors
/// As for [`LogprobOptions::of`].
pub fn log_probability(logits: &[f32], symbol: u32) -> Result<f64> {
    let normaliser = LogSoftmax::of(logits)?;
    let missing = || Error::Internal(format!("symbol {symbol} has no logit among {}", logits.len()));
    logits.get(symbol as usize).map(|&logit| normaliser.exact(logit)).ok_or_else(missing)
}

/// What turns a row of logits into log-probabilities, in `f64`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogSoftmax {
    peak: f64,
    /// The logarithm of the sum of the exponentials, above the peak.
    excess: f64,
}

impl LogSoftmax {
    pub(crate) fn of(logits: &[f32]) -> Result<Self> {
        // by the machine's own instruction set: what is told of a model does not depend on the one that it computes with
        let (peak, excess) = max_and_log_sum_exp(logits);
        let peak = f64::from(peak);
        if peak.is_finite() && excess.is_finite() {
            return Ok(Self { peak, excess });
        }
        Err(Error::Internal(format!("the {} logits of a position are no distribution", logits.len())))
    }

    fn exact(self, logit: f32) -> f64 {
        f64::from(logit) - self.peak - self.excess
    }

    pub(crate) fn logprob(self, logit: f32) -> f32 {
        self.exact(logit) as f32
    }
}

/// The `count` symbols of largest logits: a short list that each symbol may enter, for few are asked for.
fn best(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(count + 1);
    if count == 0 {
        return best;
    }
    for (symbol, logit) in logits.iter().enumerate() {
        // Equals stay behind those that were there before them: lower ids.
        let place = best.partition_point(|&other| logits[other as usize].total_cmp(logit) != Ordering::Less);
        if place < count {
            best.insert(place, symbol as u32);
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
        fn tells_as_the_naive_twin(
            logits in vec(prop_oneof![(-3i32..3).prop_map(|value| value as f32), -30.0f32..30.0], 1..20),
            top in 0usize..25, symbol in 0usize..20,
        ) {
            let symbol = symbol % logits.len();
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let logprob = |logit: f32| (f64::from(logit).exp() / total).ln() as f32;
            let mut ranking: Vec<usize> = (0..logits.len()).collect();
            ranking.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap());
            ranking.truncate(top);
            let told = LogprobOptions { logprobs: true, top }.of(symbol as u32, &logits).unwrap();
            prop_assert!((told.logprob.unwrap() - logprob(logits[symbol])).abs() < 1e-5);
            prop_assert_eq!(told.top.iter().map(|t| t.0 as usize).collect::<Vec<_>>(), ranking);
            for (symbol, told) in told.top {
                prop_assert!((told - logprob(logits[symbol as usize])).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn tells_only_what_is_asked_for() {
        let logits = [0.0, 1.0];
        assert_eq!(LogprobOptions { logprobs: false, top: 0 }.of(0, &logits).unwrap(), SymbolLogprobs::default());
        let told = LogprobOptions { logprobs: false, top: 1 }.of(0, &logits).unwrap();
        assert_eq!((told.logprob, told.top.len()), (None, 1));
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let told = LogprobOptions { logprobs: true, top: 0 }.of(1, &[3e38, 3e38, -3e38]).unwrap();
        assert_eq!(told.logprob, Some(-std::f32::consts::LN_2));
    }

    #[test]
    fn refuses_what_is_no_distribution() {
        for logits in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            let told = LogprobOptions { logprobs: true, top: 0 }.of(0, &logits);
            assert!(matches!(told, Err(Error::Internal(_))), "{logits:?}");
        }
    }
}
