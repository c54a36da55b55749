//! Pooling of a segment: its symbols' hidden vectors become one vector.
//!
//! To add a pooling: a variant of [`Pooling`], its arms, and its function.

use serde::Deserialize;

/// How a segment becomes one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// Mean of all hidden vectors (Dynamic Token Pooling).
    Mean,
    /// The last hidden vector.
    Last,
    /// N-hops pooling: mean of the last N + 1 hidden vectors (Latent Segment Language Models, §2.3).
    Hops(usize),
}

impl Pooling {
    /// Returns true if it needs only the sum of a segment's vectors: see [`mean_of_sum`].
    pub fn sums(self) -> bool {
        matches!(self, Self::Mean)
    }

    /// Returns how many of a segment's last vectors it reads at most.
    pub fn lookback(self) -> usize {
        match self {
            Self::Mean => usize::MAX,
            Self::Last => 1,
            Self::Hops(hops) => hops.saturating_add(1),
        }
    }

    /// Writes the segment's vector, (D), to `out`. `hidden` yields the symbols' hidden vectors, (D) each, at least one, in order.
    pub fn pool<'a>(self, hidden: impl Iterator<Item = &'a [f32]> + Clone, out: &mut [f32]) {
        match self {
            Self::Mean => mean(hidden, out),
            Self::Last => hidden.last().into_iter().for_each(|last| out.copy_from_slice(last)),
            // the divisor is min(hops + 1, n), the number of summands
            Self::Hops(hops) => {
                let skipped = hidden.clone().count().saturating_sub(hops.saturating_add(1));
                mean(hidden.skip(skipped), out);
            }
        }
    }
}

/// Writes the mean of `hidden` to `out`, summed in the order of the symbols.
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

/// Writes sum / count to `out`. For a sum in the order of the symbols the result has the same bits as [`Pooling::Mean`].
pub fn mean_of_sum(sum: &[f32], count: usize, out: &mut [f32]) {
    let count = count as f32;
    for (out, sum) in out.iter_mut().zip(sum) {
        *out = sum / count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's eq. 3: H_t^n = z_t · H_t^(n−1) + (1 − z_(t−1)) · H_(t−1)^(n−1), with z before the first symbol 1.
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
    fn hops_agree_with_the_recursion_at_segment_ends() {
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
                    Pooling::Hops(hops).pool(segment.iter().map(|h| &h[..]), &mut out);
                    let count = (hops + 1).min(segment.len()) as f32;
                    assert!((out[0] * count / sums[end] - 1.0).abs() < 1e-5, "{ends:?} {hops} at {end}");
                    start = end + 1;
                }
            }
        }
    }
}
