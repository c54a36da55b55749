//! ROUGE-1, -2 and -L of a summary against a reference (Lin 2004), as computed by Google's `rouge_score` without a stemmer.
//!
//! Words are runs of the letters a to z and digits after lower-casing. N-grams are counted with clipped multiplicity.
//! ROUGE-L uses the longest common subsequence of the complete texts.

use serde::Serialize;
use std::collections::HashMap;
use std::ops::{AddAssign, Div};

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct RougeScore {
    /// Share of the summary that is in the reference.
    pub precision: f64,
    /// Share of the reference that is in the summary.
    pub recall: f64,
    /// Harmonic mean of precision and recall.
    pub f1: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct RougeScores {
    /// Overlap of words.
    pub rouge1: RougeScore,
    /// Overlap of word pairs.
    pub rouge2: RougeScore,
    /// Longest common subsequence.
    #[serde(rename = "rougeL")]
    pub rouge_l: RougeScore,
}

impl RougeScore {
    fn from_counts(common: usize, summary: usize, reference: usize) -> Self {
        let share = |total: usize| if total == 0 { 0.0 } else { common as f64 / total as f64 };
        let precision = share(summary);
        let recall = share(reference);
        let sum = precision + recall;
        Self { precision, recall, f1: if sum > 0.0 { 2.0 * precision * recall / sum } else { 0.0 } }
    }
}

impl AddAssign for RougeScores {
    fn add_assign(&mut self, other: Self) {
        let add = |a: RougeScore, b: RougeScore| RougeScore {
            precision: a.precision + b.precision,
            recall: a.recall + b.recall,
            f1: a.f1 + b.f1,
        };
        self.rouge1 = add(self.rouge1, other.rouge1);
        self.rouge2 = add(self.rouge2, other.rouge2);
        self.rouge_l = add(self.rouge_l, other.rouge_l);
    }
}

impl Div<f64> for RougeScores {
    type Output = Self;

    fn div(self, n: f64) -> Self {
        let divide = |RougeScore { precision, recall, f1 }| RougeScore {
            precision: precision / n,
            recall: recall / n,
            f1: f1 / n,
        };
        Self { rouge1: divide(self.rouge1), rouge2: divide(self.rouge2), rouge_l: divide(self.rouge_l) }
    }
}

pub(crate) fn rouge(reference: &str, summary: &str) -> RougeScores {
    let reference = reference.to_lowercase();
    let summary = summary.to_lowercase();
    let reference = words(&reference);
    let summary = words(&summary);
    RougeScores {
        rouge1: overlap(&reference, &summary, 1),
        rouge2: overlap(&reference, &summary, 2),
        rouge_l: RougeScore::from_counts(common_subsequence(&reference, &summary), summary.len(), reference.len()),
    }
}

fn words(text: &str) -> Vec<&str> {
    let is_word = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    text.split(|character| !is_word(character)).filter(|word| !word.is_empty()).collect()
}

fn overlap(reference: &[&str], summary: &[&str], size: usize) -> RougeScore {
    let mut remaining: HashMap<&[&str], usize> = HashMap::new();
    reference.windows(size).for_each(|ngram| *remaining.entry(ngram).or_default() += 1);
    let mut common = 0;
    for ngram in summary.windows(size) {
        if let Some(count) = remaining.get_mut(ngram).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    let ngrams = |words: &[&str]| (words.len() + 1).saturating_sub(size);
    RougeScore::from_counts(common, ngrams(summary), ngrams(reference))
}

/// Returns the length of the longest common subsequence, with memory for one row of the table.
fn common_subsequence(first: &[&str], second: &[&str]) -> usize {
    let mut row = vec![0; second.len() + 1];
    for word in first {
        let mut diagonal = 0;
        for (index, candidate) in second.iter().enumerate() {
            let above = row[index + 1];
            row[index + 1] = if word == candidate { diagonal + 1 } else { above.max(row[index]) };
            diagonal = above;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts with their scores by `rouge_score` 0.1.2: precision, recall and F1.
    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/rouge/scores.json");

    #[test]
    fn agrees_with_the_reference_implementation() {
        let cases: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(GOLDEN).unwrap()).unwrap();
        assert!(cases.len() > 8);
        for case in cases {
            let text = |key: &str| case[key].as_str().unwrap();
            let RougeScores { rouge1, rouge2, rouge_l } = rouge(text("reference"), text("summary"));
            for (score, measure) in [(rouge1, "rouge1"), (rouge2, "rouge2"), (rouge_l, "rougeL")] {
                let actual = [score.precision, score.recall, score.f1];
                let expected: [f64; 3] = serde_json::from_value(case[measure].clone()).unwrap();
                let close = actual.iter().zip(expected).all(|(actual, expected)| (actual - expected).abs() < 1e-12);
                assert!(close, "{case}: {measure} {actual:?}");
            }
        }
    }
}
