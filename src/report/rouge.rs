//! ROUGE-1, -2 and -L of a summary against a reference (Lin 2004), as Google's `rouge_score` counts them without a stemmer: words
//! are runs of the letters a to z and digits, once lower-cased; n-grams are counted with their clipped multiplicity; L is the
//! longest common subsequence of the whole texts.

use serde::Serialize;
use std::{
    collections::HashMap,
    ops::{AddAssign, Div},
};

/// How well a summary matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Match {
    /// The part of the summary that the reference has.
    pub precision: f64,
    /// The part of the reference that the summary has.
    pub recall: f64,
    /// Their harmonic mean.
    pub f1: f64,
}

/// All three measures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rouge {
    /// Of words.
    pub rouge1: Match,
    /// Of pairs of words.
    pub rouge2: Match,
    /// Of the longest common subsequence.
    #[serde(rename = "rougeL")]
    pub rouge_l: Match,
}

impl Match {
    fn of(common: usize, summary: usize, reference: usize) -> Self {
        let part = |of: usize| if of == 0 { 0.0 } else { common as f64 / of as f64 };
        let (precision, recall) = (part(summary), part(reference));
        let sum = precision + recall;
        Self { precision, recall, f1: if sum > 0.0 { 2.0 * precision * recall / sum } else { 0.0 } }
    }
}

impl AddAssign for Match {
    fn add_assign(&mut self, other: Self) {
        self.precision += other.precision;
        self.recall += other.recall;
        self.f1 += other.f1;
    }
}

impl Div<f64> for Match {
    type Output = Self;

    fn div(self, by: f64) -> Self {
        Self { precision: self.precision / by, recall: self.recall / by, f1: self.f1 / by }
    }
}

impl AddAssign for Rouge {
    fn add_assign(&mut self, other: Self) {
        self.rouge1 += other.rouge1;
        self.rouge2 += other.rouge2;
        self.rouge_l += other.rouge_l;
    }
}

impl Div<f64> for Rouge {
    type Output = Self;

    fn div(self, by: f64) -> Self {
        Self { rouge1: self.rouge1 / by, rouge2: self.rouge2 / by, rouge_l: self.rouge_l / by }
    }
}

/// The three measures of a summary.
pub fn rouge(reference: &str, summary: &str) -> Rouge {
    let (reference, summary) = (reference.to_lowercase(), summary.to_lowercase());
    let (reference, summary) = (words(&reference), words(&summary));
    Rouge {
        rouge1: overlap(&reference, &summary, 1),
        rouge2: overlap(&reference, &summary, 2),
        rouge_l: Match::of(common_subsequence(&reference, &summary), summary.len(), reference.len()),
    }
}

fn words(text: &str) -> Vec<&str> {
    let part = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit();
    text.split(|sign| !part(sign)).filter(|word| !word.is_empty()).collect()
}

fn overlap(reference: &[&str], summary: &[&str], size: usize) -> Match {
    let mut left: HashMap<&[&str], usize> = HashMap::new();
    reference.windows(size).for_each(|run| *left.entry(run).or_default() += 1);
    let mut common = 0;
    for run in summary.windows(size) {
        if let Some(count) = left.get_mut(run).filter(|count| **count > 0) {
            (*count, common) = (*count - 1, common + 1);
        }
    }
    let runs = |words: &[&str]| (words.len() + 1).saturating_sub(size);
    Match::of(common, runs(summary), runs(reference))
}

/// The length of the longest one, in space for one row of the table.
fn common_subsequence(one: &[&str], other: &[&str]) -> usize {
    let mut row = vec![0; other.len() + 1];
    for word in one {
        let mut diagonal = 0;
        for (at, candidate) in other.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if word == candidate { diagonal + 1 } else { above.max(row[at]) };
            diagonal = above;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `rouge_score` 0.1.2 says: precision, recall and F of each measure.
    const KNOWN: &[(&str, &str, [[f64; 3]; 3])] = &[
        (
            "The quick brown fox jumps over the lazy dog",
            "the quick brown dog jumps on the log.",
            [
                [0.75, 0.6666666666666666, 0.7058823529411765],
                [0.2857142857142857, 0.25, 0.26666666666666666],
                [0.625, 0.5555555555555556, 0.5882352941176471],
            ],
        ),
        (
            "police killed the gunman",
            "the gunman kill police",
            [[0.75, 0.75, 0.75], [0.3333333333333333, 0.3333333333333333, 0.3333333333333333], [0.5, 0.5, 0.5]],
        ),
        (
            "a a a b b",
            "a b a b a b",
            [
                [0.8333333333333334, 1.0, 0.9090909090909091],
                [0.2, 0.25, 0.22222222222222224],
                [0.6666666666666666, 0.8, 0.7272727272727272],
            ],
        ),
        ("", "nothing at all", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        ("something", "", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        (
            "Weir's café pools 3.5 million tokens—and 8192 vectors, isn't it?",
            "weirs cafe pools 3 5 million tokens and it isn t 8192",
            [
                [0.8333333333333334, 0.7142857142857143, 0.7692307692307692],
                [0.5454545454545454, 0.46153846153846156, 0.4999999999999999],
                [0.6666666666666666, 0.5714285714285714, 0.6153846153846153],
            ],
        ),
        ("one", "one", [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]),
        (
            "İstanbul is not Constantinople",
            "istanbul is constantinople",
            [[0.6666666666666666, 0.4, 0.5], [0.0, 0.0, 0.0], [0.6666666666666666, 0.4, 0.5]],
        ),
        (
            "the cat sat on the mat . the dog lay on the rug",
            "the dog sat on the rug . the cat lay on the mat and the mat was on the floor",
            [
                [0.631578947368421, 1.0, 0.7741935483870968],
                [0.4444444444444444, 0.7272727272727273, 0.5517241379310345],
                [0.42105263157894735, 0.6666666666666666, 0.5161290322580646],
            ],
        ),
    ];

    #[test]
    fn counts_as_the_known_implementation_does() {
        for (reference, summary, expected) in KNOWN {
            let Rouge { rouge1, rouge2, rouge_l } = rouge(reference, summary);
            for (found, expected) in [rouge1, rouge2, rouge_l].into_iter().zip(expected) {
                let found = [found.precision, found.recall, found.f1];
                let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12);
                assert!(close, "{summary:?}: {found:?}, not {expected:?}");
            }
        }
    }
}
