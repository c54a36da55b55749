//! A softmax that takes its scores span by span.

use super::LANES;
use crate::kernels::{
    isa::Simd,
    rowwise::{add_up, exp},
};

/// What it remembers of the spans behind.
pub(super) struct Softmax {
    /// The largest score.
    top: f32,
    /// The sum of the weights, as shares of the largest one.
    total: f32,
    /// Whether a score was no number, or infinite.
    broken: bool,
}

impl Softmax {
    pub(super) const NEW: Self = Self { top: f32::NEG_INFINITY, total: 0.0, broken: false };

    /// Turns scores into weights; `out`, the weighted values so far, shrinks as the largest score grows.
    #[inline(always)]
    pub(super) fn take<S: Simd>(&mut self, scores: &mut [f32], out: &mut [f32]) {
        let top = largest(scores);
        if top > self.top {
            let shrink = exp::<S>(self.top - top);
            self.top = top;
            self.total *= shrink;
            for out in out {
                *out *= shrink;
            }
        }
        let mut sums = [0f32; LANES];
        for scores in scores.chunks_exact_mut(LANES) {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                // `exp` would make a number of what is none
                self.broken |= score.is_nan() | (*score == f32::INFINITY);
                // keys behind the query weigh nothing at all
                *score = if *score > f32::NEG_INFINITY { exp::<S>(*score - self.top) } else { 0.0 };
                *sum += *score;
            }
        }
        self.total += add_up(sums);
    }

    /// The weighted values become their mean.
    #[inline(always)]
    pub(super) fn end(&self, out: &mut [f32]) {
        let share = if self.broken { f32::NAN } else { 1.0 / self.total };
        for out in out {
            *out *= share;
        }
    }
}

/// The largest of whole lanes of numbers.
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
