//! Pooling: a segment's hidden vectors become one.
//!
//! To add one: a file with its function, a variant here, and its arm below.

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
    /// Whether it reads nothing of a segment but the sum of its vectors: see [`mean_of_sum`].
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
            Self::Mean => mean(hidden, out),
            Self::Last => last(hidden, out),
            Self::Hops(hops) => last_hops(hidden, hops, out),
        }
    }
}

/// `out` = Σ hidden / n.
fn mean<'a>(hidden: impl Iterator<Item = &'a [f32]>, out: &mut [f32]) {
    out.fill(0.0);
    let mut count = 0f32;
    for hidden in hidden {
        count += 1.0;
        for (out, hidden) in out.iter_mut().zip(hidden) {
            *out += hidden;
        }
    }
    for out in out {
        *out /= count;
    }
}

/// `out` = sum / n, of a sum that was added up in the order of the symbols: the same bits.
pub fn mean_of_sum(sum: &[f32], count: usize, out: &mut [f32]) {
    let count = count as f32;
    for (out, sum) in out.iter_mut().zip(sum) {
        *out = sum / count;
    }
}

/// `out` = the last of `hidden`.
fn last<'a>(hidden: impl Iterator<Item = &'a [f32]>, out: &mut [f32]) {
    if let Some(last) = hidden.last() {
        out.copy_from_slice(last);
    }
}

/// `out` = Σ of the last min(hops + 1, n) of `hidden`, divided by as many.
fn last_hops<'a>(hidden: impl Iterator<Item = &'a [f32]> + Clone, hops: usize, out: &mut [f32]) {
    let skipped = hidden.clone().count().saturating_sub(hops.saturating_add(1));
    mean(hidden.skip(skipped), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's eq. 3: H_t^n = z_t · H_t^(n−1) + (1 − z_(t−1)) · H_(t−1)^(n−1), with z before the first one 1.
    fn recursion(hidden: &[f32], ends: &[bool], hops: usize) -> Vec<f32> {
        let mut sums = hidden.to_vec();
        for _ in 0..hops {
            let own = |t: usize| if ends[t] { sums[t] } else { 0.0 };
            let before = |t: usize| if t == 0 || ends[t - 1] { 0.0 } else { sums[t - 1] };
            sums = (0..sums.len()).map(|t| own(t) + before(t)).collect();
        }
        sums
    }

    #[test]
    fn sums_at_ends_are_those_of_the_recursion() {
        const SYMBOLS: usize = 8;
        let hidden: Vec<[f32; 1]> = (0..SYMBOLS as i32).map(|t| [10f32.powi(t % 6) + t as f32]).collect();
        let flat = hidden.as_flattened();
        for cuts in 0..1 << SYMBOLS {
            let ends: Vec<bool> = (0..SYMBOLS).map(|t| cuts >> t & 1 == 1).collect();
            for hops in [0, 1, 2, 3, 7] {
                let sums = recursion(flat, &ends, hops);
                let mut start = 0;
                for end in (0..SYMBOLS).filter(|&t| ends[t]) {
                    let segment = &hidden[start..=end];
                    let mut out = [0.0];
                    last_hops(segment.iter().map(|h| &h[..]), hops, &mut out);
                    let count = (hops + 1).min(segment.len()) as f32;
                    assert!((out[0] * count / sums[end] - 1.0).abs() < 1e-5, "{ends:?} {hops} at {end}");
                    start = end + 1;
                }
            }
        }
    }
}
