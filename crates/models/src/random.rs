//! Stateless random numbers: every draw is a function of a seed, a purpose and a position, so it is the same after a fork, a
//! rollback, a cache hit or a second run. The generator is ChaCha with eight rounds: the seed is the key, the purpose the
//! stream, the position the word of that stream.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The purpose of a draw. Each purpose reads its own stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Choosing the symbol at a position.
    Sampling = 0,
    /// Deciding if a segment ends with the symbol at a position.
    Boundary = 1,
    /// Random scores of vectors, in a model that pools at random.
    Scores = 2,
}

/// Bits of a draw. With one more bit, the numbers next to 1 would round to 1.
const BITS: u32 = 23;

/// Returns a number strictly between 0 and 1: the middle of one of 2²³ equal steps, exact in `f32`.
pub fn uniform(seed: u64, purpose: Purpose, position: usize) -> f32 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut stream = ChaCha8Rng::from_seed(key);
    stream.set_stream(purpose as u64);
    stream.set_word_pos(position as u128);
    from_bits(stream.next_u32())
}

fn from_bits(bits: u32) -> f32 {
    ((bits >> (u32::BITS - BITS)) as f32 + 0.5) / (1u32 << BITS) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Naive implementation: reads the stream from its start.
    fn naive(seed: u64, purpose: Purpose, position: usize) -> f32 {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut stream = ChaCha8Rng::from_seed(key);
        stream.set_stream(purpose as u64);
        (0..=position).map(|_| stream.next_u32()).last().map(from_bits).unwrap()
    }

    #[test]
    fn is_strictly_between_0_and_1() {
        assert!(from_bits(0) > 0.0);
        assert!(from_bits(u32::MAX) < 1.0);
        assert_eq!(from_bits(0) + from_bits(u32::MAX), 1.0);
    }

    #[test]
    fn is_spread_evenly() {
        let draws: Vec<f32> = (0..20_000).map(|position| uniform(7, Purpose::Sampling, position)).collect();
        let mean = draws.iter().map(|&draw| f64::from(draw)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        for tenth in 0..10 {
            let count = draws.iter().filter(|&&draw| (draw * 10.0) as usize == tenth).count();
            assert!((1_800..2_200).contains(&count), "{tenth}: {count}");
        }
    }

    #[test]
    fn never_changes() {
        // recorded values: a change would give every client other texts for the same seeds
        let drawn = [0, 1, 1_000_000].map(|position| uniform(42, Purpose::Sampling, position).to_bits());
        assert_eq!(drawn, [1036811592, 1051872874, 1022850336]);
    }

    proptest! {
        #[test]
        fn a_position_is_a_word_of_the_stream(seed: u64, position in 0usize..300) {
            for purpose in [Purpose::Sampling, Purpose::Boundary] {
                prop_assert_eq!(uniform(seed, purpose, position), naive(seed, purpose, position));
            }
        }
    }
}
