//! ALiBi (Press et al. 2022): a head's scores decrease linearly with the distance, with a slope for each head.

/// Returns the published slopes: 2^(−8k/H) for k = 1 … H if H is a power of two. Otherwise the slopes of the power of two below
/// H, then every other slope of the power of two above it.
pub fn slopes(heads: usize) -> Vec<f32> {
    let powers = |heads: usize| (1..=heads).map(move |k| (-8.0 * k as f64 / heads as f64).exp2() as f32);
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    powers(below).chain(powers(2 * below).step_by(2)).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::slopes;

    #[test]
    fn slopes_are_the_published_ones() {
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        assert_eq!(slopes(8)[..2], [0.5, 0.25]);
        // Six heads: the four slopes of 4 heads, then the first and third of 8.
        assert_eq!(slopes(6), [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
        assert_eq!(slopes(1), [1.0 / 256.0]);
    }
}
