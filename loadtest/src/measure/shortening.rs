//! Shortening factors of models, from the segment counts that the server reports.

use serde::{Deserialize, Serialize};

/// Totals that the server reported for generated texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextTotals {
    pub prompt: u64,
    /// Prompt characters that the server had cached.
    pub cached: u64,
    pub generated: u64,
    /// Segments closed, prompts included.
    pub segments: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShortening {
    pub model: String,
    /// Characters per closed segment of its texts, prompts included; absent if none was closed.
    pub factor: Option<f64>,
}

impl TextTotals {
    pub(super) fn add(&mut self, other: &Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.generated += other.generated;
        self.segments += other.segments;
    }

    /// Returns the characters per closed segment, if one was closed.
    pub(super) fn factor(&self) -> Option<f64> {
        (self.segments > 0).then(|| (self.prompt + self.generated) as f64 / self.segments as f64)
    }
}

/// Sums up the totals of each model, in order of first appearance, and returns the factors. Models without texts are left out.
pub(crate) fn by_model<'a>(workloads: impl Iterator<Item = (&'a str, TextTotals)>) -> Vec<ModelShortening> {
    let mut sums: Vec<(&str, TextTotals)> = Vec::new();
    for (model, totals) in workloads.filter(|(_, totals)| totals.prompt + totals.generated > 0) {
        match sums.iter_mut().find(|(known, _)| *known == model) {
            Some((_, sum)) => sum.add(&totals),
            None => sums.push((model, totals)),
        }
    }
    sums.into_iter().map(|(model, sum)| ModelShortening { model: model.to_owned(), factor: sum.factor() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_of_one_model_are_summed_and_models_are_separate() {
        let sums = |prompt, generated, segments| TextTotals { prompt, cached: 0, generated, segments };
        let parts = [("a", sums(40, 20, 10)), ("b", sums(50, 50, 0)), ("a", sums(30, 10, 10)), ("c", sums(0, 0, 0))];
        let factors = by_model(parts.into_iter());
        let expected = |model: &str, factor| ModelShortening { model: model.into(), factor };
        assert_eq!(factors, [expected("a", Some(5.0)), expected("b", None)], "a model without texts has no factor");
    }
}
