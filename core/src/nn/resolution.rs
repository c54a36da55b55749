//! Attention resolution (LeX, Sun et al. 2023, §3.1 and §4.3): how well a stack's scores distinguish near from far.
//!
//! Every attention score contributes to the mean `s[n]` of its layer and distance, over heads, queries and texts (eq. 13). From
//! these means `R(s) = Σ e^s[n]·(e^s[n] − e^s[n+1]) / (Σ e^s[n])²` (eq. 4), over the distances that have a next one.
//! Distances that a window hides have no score and do not count.

/// Mean scores of a stack's layers by distance.
#[derive(Debug, Clone, Default)]
pub struct ScoresByDistance {
    layers: Vec<Vec<Mean>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl ScoresByDistance {
    /// Adds the scores of one query of a layer, from its furthest key to its own.
    pub fn add(&mut self, layer: usize, scores: &[f32]) {
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, Vec::new);
        }
        let means = &mut self.layers[layer];
        if means.len() < scores.len() {
            means.resize(scores.len(), Mean::default());
        }
        for (mean, &score) in means.iter_mut().zip(scores.iter().rev()) {
            mean.sum += f64::from(score);
            mean.count += 1;
        }
    }

    /// Returns `s[n]` of each layer.
    pub fn by_layer(&self) -> Vec<Vec<f64>> {
        let mean = |mean: &Mean| mean.sum / mean.count as f64;
        self.layers.iter().map(|means| means.iter().map(mean).collect()).collect()
    }

    /// Returns `s[n]`, averaged over layers.
    pub fn mean(&self) -> Vec<f64> {
        let layers = self.by_layer();
        let mut means = Vec::new();
        for scores in &layers {
            means.resize(scores.len().max(means.len()), 0.0);
            for (mean, score) in means.iter_mut().zip(scores) {
                *mean += score / layers.len() as f64;
            }
        }
        means
    }
}

/// Returns R(s), or 0 without scores.
pub fn resolution(scores: &[f64]) -> f64 {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // A common factor of all exponentials cancels.
    let shares: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = shares.iter().sum();
    let gaps: f64 = shares.windows(2).map(|pair| pair[0] * (pair[0] - pair[1])).sum();
    if total > 0.0 { gaps / (total * total) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolution_agrees_with_the_definition() {
        // One distance, or equal scores, give no resolution.
        assert_eq!((resolution(&[3.0]), resolution(&[5.0; 10])), (0.0, 0.0));
        let scores = [1.0, 0.5, 0.7];
        let e = scores.map(f64::exp);
        let expected = (e[0] * (e[0] - e[1]) + e[1] * (e[1] - e[2])) / e.iter().sum::<f64>().powi(2);
        assert!((resolution(&scores) - expected).abs() < 1e-12);
        // near scores must weigh more
        assert!(resolution(&[0.0, 1.0, 2.0]) < 0.0 && resolution(&[2.0, 1.0, 0.0]) > 0.0);
        assert_eq!(resolution(&[]), 0.0);
    }

    #[test]
    fn scores_are_averaged_by_distance() {
        let mut scores = ScoresByDistance::default();
        scores.add(0, &[2.0]);
        scores.add(0, &[1.0, 4.0]);
        scores.add(1, &[5.0, 7.0]);
        assert_eq!(scores.by_layer(), [[3.0, 1.0], [7.0, 5.0]]);
        assert_eq!(scores.mean(), [5.0, 3.0]);
    }
}
