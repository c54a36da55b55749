//! T5's buckets (Raffel et al. 2020, §2.1): a learned number for each bucket of distances and head, added to the score.

/// The bucket of a distance: one each for the first half of them, then ever wider ones up to `furthest`, beyond which all
/// are in the last. Rounded as the official code does, in f32.
pub fn bucket(distance: usize, count: usize, furthest: usize) -> usize {
    let exact = count / 2;
    if distance < exact {
        return distance;
    }
    let far = (distance as f32 / exact as f32).ln() / (furthest as f64 / exact as f64).ln() as f32;
    (exact + (far * (count - exact) as f32) as usize).min(count - 1)
}

/// Each head's number for each distance up to the one from which on all are alike: from `bias`, (count, heads).
pub fn tables(bias: &[f32], count: usize, furthest: usize) -> Vec<Vec<f32>> {
    let heads = bias.len() / count;
    let number = |head: usize, distance: usize| bias[bucket(distance, count, furthest) * heads + head];
    (0..heads).map(|head| (0..=furthest).map(|distance| number(head, distance)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn buckets_widen() {
        // eight buckets up to 64: 0, 1, 2, 3, then [4, 8), [8, 16), [16, 32), [32, …)
        let all: Vec<_> = [0, 1, 2, 3, 4, 7, 9, 15, 17, 31, 33, 64, 1000].map(|d| bucket(d, 8, 64)).into();
        assert_eq!(all, [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7]);
    }
}
