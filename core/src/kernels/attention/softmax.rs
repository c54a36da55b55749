//! Softmax over scores that arrive span by span, with a running maximum.

use crate::kernels::{
    LANES,
    isa::Simd,
    rowwise::{add_up, exp},
};

pub(super) struct Softmax {
    /// Largest score so far.
    max: f32,
    /// Sum of the weights so far, relative to the weight of the largest score.
    total: f32,
    /// True if a score was NaN or +∞.
    invalid: bool,
}

impl Softmax {
    /// Returns the softmax over no scores. With a `sink`, it begins with a key of score zero whose value is zero: weights then sum
    /// to less than one ("softmax1").
    pub(super) const fn new(sink: bool) -> Self {
        let empty = Self { max: f32::NEG_INFINITY, total: 0.0, invalid: false };
        if sink { Self { max: 0.0, total: 1.0, invalid: false } } else { empty }
    }

    /// Replaces scores with weights. Scales down `out`, the weighted values so far, if the largest score grows.
    #[inline(always)]
    pub(super) fn push_span<S: Simd>(&mut self, scores: &mut [f32], out: &mut [f32]) {
        let max = largest(scores);
        if max > self.max {
            let factor = exp::<S>(self.max - max);
            self.max = max;
            self.total *= factor;
            for out in out {
                *out *= factor;
            }
        }
        let mut sums = [0f32; LANES];
        for scores in scores.chunks_exact_mut(LANES) {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                // `exp` would return a finite number for these
                self.invalid |= score.is_nan() | (*score == f32::INFINITY);
                // a masked key has weight zero
                *score = if *score > f32::NEG_INFINITY { exp::<S>(*score - self.max) } else { 0.0 };
                *sum += *score;
            }
        }
        self.total += add_up(sums);
    }

    /// Divides the weighted values by the sum of the weights.
    #[inline(always)]
    pub(super) fn finish(&self, out: &mut [f32]) {
        let factor = if self.invalid { f32::NAN } else { 1.0 / self.total };
        for out in out {
            *out *= factor;
        }
    }
}

/// Returns the largest score; the number of scores is a multiple of [`LANES`].
#[inline(always)]
pub(super) fn largest(scores: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for scores in scores.chunks_exact(LANES) {
        for (lane, &score) in lanes.iter_mut().zip(scores) {
            *lane = larger(*lane, score);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = larger(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
