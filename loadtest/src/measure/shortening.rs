//! How much shorter pooling makes texts, by what the server tells of each: a figure of one model's texts.

use serde::{Deserialize, Serialize};

/// Sums of what the server told of texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TextTotals {
    /// Characters of the prompts.
    pub(super) prompt: u64,
    /// Of these, characters that the server had cached.
    pub(super) cached: u64,
    /// Characters generated.
    pub(super) generated: u64,
    /// Segments closed, prompts included.
    pub(super) segments: u64,
}

/// A model's shortening factor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShortening {
    /// The model.
    pub model: String,
    /// Characters per closed segment of its texts, prompts included; absent if none was closed.
    pub factor: Option<f64>,
}

impl TextTotals {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { prompt, cached, generated, segments } = other;
        self.prompt += prompt;
        self.cached += cached;
        self.generated += generated;
        self.segments += segments;
    }

    /// Characters per closed segment, if one was closed.
    pub(super) fn factor(&self) -> Option<f64> {
        (self.segments > 0).then(|| (self.prompt + self.generated) as f64 / self.segments as f64)
    }

    fn is_of_texts(&self) -> bool {
        self.prompt + self.generated > 0
    }
}

/// Each model's factor, in the order in which they come; models without texts have none.
pub(super) fn by_model<'a>(parts: impl Iterator<Item = (&'a str, TextTotals)>) -> Vec<ModelShortening> {
    let mut sums: Vec<(&str, TextTotals)> = Vec::new();
    for (model, part) in parts.filter(|(_, part)| part.is_of_texts()) {
        match sums.iter_mut().find(|(known, _)| *known == model) {
            Some((_, sum)) => sum.add(&part),
            None => sums.push((model, part)),
        }
    }
    sums.into_iter().map(|(model, sum)| ModelShortening { model: model.to_owned(), factor: sum.factor() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_of_one_model_are_one_and_models_are_apart() {
        let sums = |prompt, generated, segments| TextTotals { prompt, cached: 0, generated, segments };
        let parts = [("a", sums(40, 20, 10)), ("b", sums(50, 50, 0)), ("a", sums(30, 10, 10)), ("c", sums(0, 0, 0))];
        let told = by_model(parts.into_iter());
        let of = |model: &str, factor| ModelShortening { model: model.into(), factor };
        assert_eq!(told, [of("a", Some(5.0)), of("b", None)], "a model that reads documents has none");
    }
}
