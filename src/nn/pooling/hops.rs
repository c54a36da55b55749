//! N-hops pooling (Latent Segment Language Models, §2.3): the mean of a segment's last N + 1 hidden vectors, or of all if they
//! are fewer. The divisor is how many were added up, not the segment's length.

use super::mean;

/// `out` = Σ of the last min(hops + 1, n) of `hidden`, divided by as many.
pub fn pool<'a>(hidden: impl Iterator<Item = &'a [f32]> + Clone, hops: usize, out: &mut [f32]) {
    let skipped = hidden.clone().count().saturating_sub(hops.saturating_add(1));
    mean::pool(hidden.skip(skipped), out);
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
                    pool(segment.iter().map(|h| &h[..]), hops, &mut out);
                    let count = (hops + 1).min(segment.len()) as f32;
                    assert!((out[0] * count / sums[end] - 1.0).abs() < 1e-5, "{ends:?} {hops} at {end}");
                    start = end + 1;
                }
            }
        }
    }
}
