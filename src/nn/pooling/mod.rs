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
    /// `out` (D) = the segment's vector; `hidden` gives its symbols' hidden vectors, (D) each, at least one, in order.
    pub fn pool<'a>(self, hidden: impl Iterator<Item = &'a [f32]> + Clone, out: &mut [f32]) {
        match self {
            Self::Mean => mean::pool(hidden, out),
            Self::Last => last::pool(hidden, out),
            Self::Hops(hops) => hops::pool(hidden, hops, out),
        }
    }
}
