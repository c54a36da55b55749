//! Chooses the next symbol from the logits of one position.
//!
//! The order is the one that [`Sampling`] documents: bias, repetition penalty, temperature, `top_k`, `top_p`, `min_p`,
//! draw. Each cut works on the symbols that the previous cut kept. The draw walks the remaining symbols by id, so an option
//! that cuts nothing changes nothing. All arithmetic is in `f64` and in one order: a choice depends on the logits, the
//! options, the symbols seen and the position only.
//!
//! Hot path: nothing here allocates after the first choice.

use crate::{
    decode::{
        options::Sampling,
        random::{Purpose, uniform},
    },
    error::{Error, Result},
};
use std::cmp::Ordering;

/// The sampler of one sequence, with the symbols that the sequence contains.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    banned: Vec<u32>,
    /// (vocab): true for symbols of the sequence; empty without a repetition penalty.
    seen: Vec<bool>,
    /// (vocab): logits, then weights: probabilities up to a common factor, 0 if cut.
    weights: Vec<f64>,
    /// (vocab): ids by falling logit, for cuts that need them sorted.
    ranking: Vec<u32>,
}

impl Sampler {
    /// Creates a sampler for sequences over `vocabulary` symbols.
    pub fn new(sampling: Sampling, vocabulary: usize) -> Self {
        let seen = vec![false; if sampling.repetition_penalty == 1.0 { 0 } else { vocabulary }];
        Self { sampling, banned: Vec::new(), seen, weights: Vec::new(), ranking: Vec::new() }
    }

    /// Replaces the set of banned symbols, whose probability is 0 from now on.
    pub fn ban(&mut self, symbols: impl IntoIterator<Item = u32>) {
        self.banned.clear();
        self.banned.extend(symbols);
    }

    /// Records a symbol of the sequence for the repetition penalty.
    pub fn see(&mut self, symbol: u32) {
        if let Some(seen) = self.seen.get_mut(symbol as usize) {
            *seen = true;
        }
    }

    /// Chooses the symbol at `position` of the sequence from the logits (vocab) before it. Fails with
    /// [`Error::Internal`] if a logit is NaN or +∞, or every symbol is impossible.
    pub fn choose(&mut self, logits: &[f32], position: usize) -> Result<u32> {
        self.adjust(logits);
        // banned logits must be valid, too
        let is_valid = logits.iter().all(|logit| *logit < f32::INFINITY);
        let best = argmax(&self.weights).filter(|_| is_valid);
        let Some(best) = best else {
            return Err(Error::Internal(format!(
                "the logits for position {position} contain NaN or infinity, or leave no possible symbol"
            )));
        };
        if self.sampling.temperature == 0.0 {
            return Ok(best as u32);
        }
        self.cut_to_top_k();
        self.weigh(best);
        self.cut_to_top_p();
        self.cut_to_min_p();
        Ok(self.draw(uniform(self.sampling.seed, Purpose::Sampling, position)).unwrap_or(best as u32))
    }

    /// Applies bans, bias, then penalty.
    fn adjust(&mut self, logits: &[f32]) {
        self.weights.clear();
        self.weights.extend(logits.iter().map(|&logit| f64::from(logit)));
        for &symbol in &self.banned {
            if let Some(logit) = self.weights.get_mut(symbol as usize) {
                *logit = f64::NEG_INFINITY;
            }
        }
        for &(symbol, bias) in &self.sampling.logit_bias {
            if let Some(logit) = self.weights.get_mut(symbol as usize) {
                *logit += f64::from(bias);
            }
        }
        let penalty = f64::from(self.sampling.repetition_penalty);
        for (logit, _) in self.weights.iter_mut().zip(&self.seen).filter(|(_, seen)| **seen) {
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }

    /// Keeps the k largest logits; equals by lowest id.
    fn cut_to_top_k(&mut self) {
        let kept = self.sampling.top_k;
        if kept == 0 || kept >= self.weights.len() {
            return;
        }
        let Self { weights, ranking, .. } = self;
        ranking.clear();
        ranking.extend(0..weights.len() as u32);
        ranking.select_nth_unstable_by(kept, |&a, &b| better(weights, a, b));
        for &symbol in &ranking[kept..] {
            weights[symbol as usize] = f64::NEG_INFINITY;
        }
    }

    /// Turns logits into weights at the temperature; the best symbol's weight is 1.
    fn weigh(&mut self, best: usize) {
        let peak = self.weights[best];
        let temperature = f64::from(self.sampling.temperature);
        for weight in &mut self.weights {
            *weight = ((*weight - peak) / temperature).exp();
        }
    }

    /// Keeps the smallest set of most probable symbols that reaches `top_p`; equals by lowest id.
    fn cut_to_top_p(&mut self) {
        if self.sampling.top_p >= 1.0 {
            return;
        }
        let Self { weights, ranking, .. } = self;
        ranking.clear();
        ranking.extend((0..weights.len() as u32).filter(|&symbol| weights[symbol as usize] > 0.0));
        ranking.sort_unstable_by(|&a, &b| better(weights, a, b));
        let total: f64 = ranking.iter().map(|&symbol| weights[symbol as usize]).sum();
        let wanted = f64::from(self.sampling.top_p) * total;
        let mut reached = 0.0;
        for &symbol in ranking.iter() {
            let weight = &mut weights[symbol as usize];
            if reached >= wanted {
                *weight = 0.0;
            } else {
                reached += *weight;
            }
        }
    }

    fn cut_to_min_p(&mut self) {
        let min = f64::from(self.sampling.min_p);
        // the most probable symbol weighs 1
        for weight in self.weights.iter_mut().filter(|weight| **weight < min) {
            *weight = 0.0;
        }
    }

    /// Returns the first symbol at which the weights, summed by id, exceed `share` of the total.
    fn draw(&self, share: f32) -> Option<u32> {
        let wanted = f64::from(share) * self.weights.iter().sum::<f64>();
        let mut reached = 0.0;
        let drawn = self.weights.iter().position(|weight| {
            reached += weight;
            reached > wanted
        });
        drawn.map(|symbol| symbol as u32)
    }
}

/// Orders the most probable symbol first; equals by lower id.
fn better(weights: &[f64], a: u32, b: u32) -> Ordering {
    weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b))
}

/// Returns the lowest index of the largest value; none if a value is NaN or all are −∞.
fn argmax(values: &[f64]) -> Option<usize> {
    let mut best = None;
    let mut peak = f64::NEG_INFINITY;
    for (index, &value) in values.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if value > peak {
            best = Some(index);
            peak = value;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    /// Naive implementation: copies, sorts and filters lists, and normalises probabilities each time.
    fn naive(sampling: &Sampling, seen: &[u32], logits: &[f32], position: usize) -> u32 {
        let mut logits: Vec<f64> = logits.iter().map(|&logit| logit.into()).collect();
        for (symbol, bias) in &sampling.logit_bias {
            logits[*symbol as usize] += f64::from(*bias);
        }
        for (symbol, logit) in logits.iter_mut().enumerate() {
            if seen.contains(&(symbol as u32)) {
                let penalty = f64::from(sampling.repetition_penalty);
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        let mut ranking: Vec<(usize, f64)> = logits.into_iter().enumerate().collect();
        ranking.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        if sampling.temperature == 0.0 {
            return ranking[0].0 as u32;
        }
        if sampling.top_k > 0 {
            ranking.truncate(sampling.top_k);
        }
        let peak = ranking[0].1;
        for (_, logit) in &mut ranking {
            *logit = ((*logit - peak) / f64::from(sampling.temperature)).exp();
        }
        if sampling.top_p < 1.0 {
            let total: f64 = ranking.iter().map(|(_, weight)| weight).sum();
            let wanted = f64::from(sampling.top_p) * total;
            let kept = (1..=ranking.len()).find(|&kept| ranking[..kept].iter().map(|r| r.1).sum::<f64>() >= wanted);
            ranking.truncate(kept.unwrap_or(ranking.len()));
        }
        let max = ranking[0].1;
        ranking.retain(|(_, weight)| *weight >= f64::from(sampling.min_p) * max);
        ranking.sort_by_key(|(symbol, _)| *symbol);
        let total: f64 = ranking.iter().map(|(_, weight)| weight).sum();
        let wanted = f64::from(uniform(sampling.seed, Purpose::Sampling, position)) * total;
        let mut reached = 0.0;
        for (symbol, weight) in ranking {
            reached += weight;
            if reached > wanted {
                return symbol as u32;
            }
        }
        unreachable!("the weights reach their sum")
    }

    fn sampling() -> impl Strategy<Value = Sampling> {
        let numbers = (
            prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..3.0],
            0usize..12,
            prop_oneof![Just(1.0f32), 0.01f32..1.0],
            prop_oneof![Just(0.0f32), 0.0f32..1.0],
            prop_oneof![Just(1.0f32), 0.5f32..2.0],
        );
        (numbers, any::<u64>(), vec((0u32..8, -3.0f32..3.0), 0..3)).prop_map(|(numbers, seed, logit_bias)| {
            let (temperature, top_k, top_p, min_p, repetition_penalty) = numbers;
            Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed, logit_bias }
        })
    }

    /// Few values, so that some are equal.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![(-4i32..4).prop_map(|value| value as f32), -6.0f32..6.0, Just(f32::NEG_INFINITY)];
        vec(logit, 7).prop_map(|logits| [logits, vec![0.5]].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn chooses_as_the_naive_implementation(
            sampling in sampling(), seen in vec(0u32..8, 0..5), rows in vec((logits(), 0usize..10_000), 1..4),
        ) {
            let mut sampler = Sampler::new(sampling.clone(), 8);
            seen.iter().for_each(|&symbol| sampler.see(symbol));
            for (logits, position) in rows {
                let expected = naive(&sampling, &seen, &logits, position);
                prop_assert_eq!(sampler.choose(&logits, position).unwrap(), expected);
            }
        }

        #[test]
        fn options_that_cut_nothing_change_nothing(logits in vec(-5.0f32..5.0, 8), seed: u64, position in 0usize..1000) {
            let plain = Sampling { seed, ..Sampling::default() };
            let loose = Sampling { top_k: 8, min_p: 1e-9, ..plain.clone() };
            let chosen = |sampling| Sampler::new(sampling, 8).choose(&logits, position).unwrap();
            prop_assert_eq!(chosen(plain), chosen(loose));
        }

        #[test]
        fn a_single_candidate_is_the_most_probable_symbol(logits in logits(), seed: u64) {
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            let expected = Sampler::new(greedy, 8).choose(&logits, 3).unwrap();
            for narrow in [
                Sampling { top_k: 1, seed, ..Sampling::default() },
                Sampling { top_p: f32::MIN_POSITIVE, seed, ..Sampling::default() },
                Sampling { top_k: 1, temperature: 1e-40, seed, ..Sampling::default() },
            ] {
                prop_assert_eq!(Sampler::new(narrow, 8).choose(&logits, 3).unwrap(), expected);
            }
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let mut sampler = Sampler::new(Sampling { seed: 11, ..Sampling::default() }, 3);
        let mut counts = [0; 3];
        for position in 0..20_000 {
            counts[sampler.choose(&logits, position).unwrap() as usize] += 1;
        }
        for (count, expected) in counts.into_iter().zip([10_000, 6_000, 4_000]) {
            assert!(i32::abs(count - expected) < 300, "{counts:?}");
        }
    }

    #[test]
    fn rejects_logits_that_are_no_distribution() {
        let mut sampler = Sampler::new(Sampling::default(), 2);
        for logits in [[f32::NAN, 0.0], [0.0, f32::NAN], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert!(matches!(sampler.choose(&logits, 0), Err(Error::Internal(_))), "{logits:?}");
        }
    }

    #[test]
    fn a_bias_can_forbid_and_force() {
        let bias = |bias| Sampling { logit_bias: vec![(1, bias)], ..Sampling::default() };
        let mut forbidden = Sampler::new(bias(-1000.0), 3);
        let mut forced = Sampler::new(bias(1000.0), 3);
        for position in 0..200 {
            assert_ne!(forbidden.choose(&[0.0, 9.0, 0.0], position).unwrap(), 1);
            assert_eq!(forced.choose(&[9.0, 0.0, 9.0], position).unwrap(), 1);
        }
    }
}
