//! Helpers of the kernels' tests.

use super::{Compute, Isa, ThreadPool};
use std::sync::Arc;

/// Returns pseudorandom numbers in [-1, 1).
pub(super) fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        (state >> 9) as f32 / (1 << 22) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Returns every instruction set that the processor supports, with one pool of `threads` threads.
pub(super) fn computes(threads: usize) -> Vec<Compute> {
    let pool = Arc::new(ThreadPool::new(threads));
    Isa::all().into_iter().map(|isa| Compute { isa, pool: pool.clone() }).collect()
}
