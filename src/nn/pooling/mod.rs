//! Pooling: a segment's hidden vectors become one.
//!
//! To add one: a file with its function, a variant here, and its arm below.

pub mod hops;
pub mod last;
pub mod mean;

use serde::Deserialize;

/// How a segment becomes one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// Their mean (Dynamic Token Pooling).
    Mean,
    /// The last one.
    Last,
    /// The mean of the last N + 1 (Latent Segment Language Models).
    Hops(usize),
}

impl Pooling {
    /// Whether it reads nothing of a segment but the sum of its vectors: see [`mean::of_sum`].
    pub fn sums(self) -> bool {
        matches!(self, Self::Mean)
    }

    /// How many of a segment's last vectors it reads at most.
    pub fn looks_back(self) -> usize {
        match self {
            Self::Mean => usize::MAX,
            Self::Last => 1,
            Self::Hops(hops) => hops.saturating_add(1),
        }
    }

    /// `out` (D) = the segment's vector; `hidden` gives its symbols' hidden vectors, (D) each, at least one, in order.
    pub fn pool<'a>(self, hidden: impl Iterator<Item = &'a [f32]> + Clone, out: &mut [f32]) {
        match self {
            Self::Mean => mean::pool(hidden, out),
            Self::Last => last::pool(hidden, out),
            Self::Hops(hops) => hops::pool(hidden, hops, out),
        }
    }
}
