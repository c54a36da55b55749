//! Helpers of the kernels' tests.

use crate::dtype::{inverse_of, to_bf16, to_byte};
use crate::isa::{Portable, from_bf16};
use crate::linear::{Epilogue, Linear, QuantizedRows, WeightArena};
use crate::rowwise::scale_of;
use crate::{CacheDtype, Compute, Dtype, Isa, ThreadPool};
use std::sync::Arc;

/// Returns pseudorandom numbers in [-1, 1).
pub(crate) fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut word = words(seed);
    std::iter::repeat_with(|| (word() >> 9) as f32 / (1 << 22) as f32 - 1.0).take(count).collect()
}

/// Returns a generator of pseudorandom words, whose high bits are the better ones.
pub(crate) fn words(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed | 1;
    move || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        state
    }
}

/// Returns every instruction set that the processor supports, with one pool of `threads` threads.
pub(crate) fn computes(threads: usize) -> Vec<Compute> {
    let pool = Arc::new(ThreadPool::new(threads));
    Isa::all().into_iter().map(|isa| Compute { isa, pool: pool.clone() }).collect()
}

/// Returns rows of numbers after a round trip through the storage type.
pub(crate) fn stored(dtype: CacheDtype, rows: &[f32], width: usize) -> Vec<f32> {
    let row = |row: &[f32]| -> Vec<f32> {
        let scale = scale_of(Portable, row);
        let number = |&x: &f32| match dtype {
            CacheDtype::F32 => x,
            CacheDtype::Bf16 => from_bf16(to_bf16(x)),
            CacheDtype::Int8 => f32::from(to_byte(x, inverse_of(scale))) * scale,
        };
        row.iter().map(number).collect()
    };
    rows.chunks_exact(width).flat_map(row).collect()
}

/// Checks that all numbers differ from the expected ones by less than `tolerance`.
#[track_caller]
pub(crate) fn assert_near(actual: &[f32], expected: &[f64], tolerance: f64, context: &str) {
    assert_eq!(actual.len(), expected.len(), "{context}");
    for (actual, expected) in actual.iter().zip(expected) {
        assert!((f64::from(*actual) - expected).abs() < tolerance, "{context}: {actual}, not {expected}");
    }
}

/// Checks that all instruction sets with fused multiply-adds give the same bits.
#[track_caller]
pub(crate) fn assert_fused_agree(all: &[(Isa, Vec<f32>)]) {
    let fused: Vec<_> = all.iter().filter(|(isa, _)| *isa != Isa::portable()).collect();
    assert_eq!(fused.len(), Isa::all().len() - 1);
    assert!(fused.windows(2).all(|pair| pair[0].1 == pair[1].1), "instruction sets differ");
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Naive attention in f64: the mean of the values, weighted by the softmax of their scores.
pub(crate) fn naive_attention<'a>(scored_values: impl Iterator<Item = (f64, &'a [f32])>) -> Vec<f64> {
    let all: Vec<_> = scored_values.collect();
    let top = all.iter().map(|(score, _)| *score).fold(f64::MIN, f64::max);
    let total: f64 = all.iter().map(|(score, _)| (score - top).exp()).sum();
    let mut out = vec![0.0; all[0].1.len()];
    for (score, value) in all {
        let weight = (score - top).exp() / total;
        out.iter_mut().zip(value).for_each(|(out, x)| *out += weight * f64::from(*x));
    }
    out
}

/// Packs `weight`, (outputs, inputs), without a bias.
pub(crate) fn packed(dtype: Dtype, weight: &[f32], inputs: usize) -> Linear {
    Linear::pack(&WeightArena::new(dtype), weight, &[], weight.len() / inputs, inputs).unwrap()
}

/// Returns epilogue(`x` · Wᵀ + bias): (rows, outputs).
pub(crate) fn apply(linear: &Linear, compute: &Compute, x: &[f32], epilogue: Epilogue) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / linear.inputs() * linear.outputs()];
    linear.apply(compute, x, epilogue, &mut QuantizedRows::default(), &mut out);
    out
}
