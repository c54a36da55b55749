//! Tests of matrix products with integers that every storage type represents exactly.
//!
//! The sum is then exact for every order, type, tile and instruction set, so the comparison needs no tolerance.

use crate::linear::{Epilogue, Linear, WeightArena};
use crate::testing::{apply, computes, packed, words};
use crate::{Compute, Dtype};
use proptest::prelude::*;

/// Storage types that represent the integers of a byte.
const BYTES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::Int8];

/// Largest magnitude of an integer. An int8 row that contains it has scale one.
const MAX: i32 = 127;

/// Returns integers up to 127 in magnitude, (rows, width). Each row contains ±127, so that int8 represents it exactly.
fn integers(seed: u32, rows: usize, width: usize) -> Vec<f32> {
    let mut word = words(seed);
    let mut next = || (word() >> 9) as i32;
    let mut numbers: Vec<f32> = (0..rows * width).map(|_| (next() % (MAX + 1) * (1 - next() % 2 * 2)) as f32).collect();
    for row in numbers.chunks_exact_mut(width) {
        row[next() as usize % width] = if next() % 2 == 0 { MAX as f32 } else { -MAX as f32 };
    }
    numbers
}

/// Returns integers that int4 represents exactly, (rows, width): in each block of 32, a multiplier times levels from −8 to 7. Each row
/// contains ±120, so that its scale is one.
fn int4_integers(seed: u32, rows: usize, width: usize) -> Vec<f32> {
    let levels = integers(seed, rows, width);
    let row = |levels: &[f32]| -> Vec<f32> {
        let block = |(index, levels): (usize, &[f32])| -> Vec<f32> {
            let multiplier = if index == 0 { 15 } else { 1 + levels[0].abs() as i32 % 15 };
            let multiplier = if levels[0] < 0.0 { -multiplier } else { multiplier };
            let level = |(index, x): (usize, &f32)| if index == 0 { -8 } else { (*x as i32).rem_euclid(16) - 8 };
            levels.iter().enumerate().map(|number| (level(number) * multiplier) as f32).collect()
        };
        levels.chunks(32).enumerate().flat_map(block).collect()
    };
    levels.chunks_exact(width).flat_map(row).collect()
}

/// Naive implementation: (rows, outputs).
fn naive_products(x: &[f32], weight: &[f32], inputs: usize) -> Vec<i64> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| x as i64 * w as i64).sum();
    x.chunks_exact(inputs).flat_map(|x| weight.chunks_exact(inputs).map(move |weight| dot(x, weight))).collect()
}

/// Multiplies with each type on each instruction set and compares bits.
fn check(dtypes: &[Dtype], computes: &[Compute], x: &[f32], weight: &[f32], inputs: usize) {
    let rows = x.len() / inputs;
    let outputs = weight.len() / inputs;
    let expected: Vec<f32> = naive_products(x, weight, inputs).iter().map(|&sum| sum as f32).collect();
    for &dtype in dtypes {
        let linear = packed(dtype, weight, inputs);
        for compute in computes {
            let out = apply(&linear, compute, x, Epilogue::None);
            assert!(out == expected, "{dtype:?}, {}, {rows} rows, {inputs} -> {outputs}", compute.isa.name());
        }
    }
}

/// Widths are not multiples of a vector, a cell of four bytes, or a panel.
#[test]
fn every_number_of_rows_up_to_64_gives_the_exact_sum() {
    let computes = computes(2);
    for (outputs, inputs) in [(1, 1), (17, 3), (33, 37), (81, 130), (129, 5)] {
        let weight = integers(7, outputs, inputs);
        for rows in 1..=64 {
            check(&BYTES, &computes, &integers(rows as u32, rows, inputs), &weight, inputs);
        }
    }
}

proptest! {
    #[test]
    fn any_shape_gives_the_exact_sum_in_int4(rows in 1usize..=64, outputs in 1usize..150, inputs in 1usize..=1040, seed: u32) {
        let weight = int4_integers(seed ^ 5, outputs, inputs);
        check(&[Dtype::Int4], &computes(2), &integers(seed, rows, inputs), &weight, inputs);
    }

    // sums of up to 1040 products of bytes stay below 2^24, where floats hold whole numbers
    #[test]
    fn any_shape_gives_the_exact_sum(rows in 1usize..=64, outputs in 1usize..150, inputs in 1usize..=1040, seed: u32) {
        check(&BYTES, &computes(2), &integers(seed, rows, inputs), &integers(seed ^ 5, outputs, inputs), inputs);
    }
}

/// Enough numbers that all threads quantize rows, more rows than a block, and rows that end within a cache line.
#[test]
fn many_rows_are_quantized_on_all_threads() {
    let rows = 203;
    let inputs = 390;
    let outputs = 40;
    check(&BYTES, &computes(3), &integers(1, rows, inputs), &integers(2, outputs, inputs), inputs);
}

/// The largest bytes in several sign patterns, up to the longest row: a saturating or overflowing sum would differ.
#[test]
fn the_largest_bytes_never_saturate_up_to_the_longest_row() {
    const MAX_INPUTS: usize = i32::MAX as usize / (127 * 127);
    let extreme = |count: usize, sign: &dyn Fn(usize) -> bool| -> Vec<f32> {
        (0..count).map(|index| if sign(index) { MAX as f32 } else { -MAX as f32 }).collect()
    };
    let signs: [&dyn Fn(usize) -> bool; 5] =
        [&|_| true, &|_| false, &|index| index % 2 == 0, &|index| index / 2 % 2 == 0, &|index| index % 3 == 0];
    let computes = computes(2);
    for (inputs, outputs, rows) in [
        (1, 3, 64),
        (63, 33, 64),
        (65, 33, 7),
        (2047, 17, 13),
        (2050, 40, 3),
        (MAX_INPUTS - 1, 3, 2),
        (MAX_INPUTS, 3, 2),
    ] {
        for weights in signs {
            let weight = extreme(outputs * inputs, weights);
            for numbers in signs {
                check(&[Dtype::Int8], &computes, &extreme(rows * inputs, numbers), &weight, inputs);
                // the largest integers of int4 of both signs, if a row has both
                let int4 = |row: &[f32]| -> Vec<f32> {
                    let max = if row.iter().any(|x| *x < 0.0) { 105.0 } else { 120.0 };
                    row.iter().map(|x| if *x < 0.0 { -120.0 } else { max }).collect()
                };
                let weight: Vec<f32> = weight.chunks_exact(inputs).flat_map(int4).collect();
                check(&[Dtype::Int4], &computes, &extreme(rows * inputs, numbers), &weight, inputs);
            }
        }
    }
    let too_long = vec![1.0; MAX_INPUTS + 1];
    for dtype in [Dtype::Int8, Dtype::Int4] {
        assert!(Linear::pack(&WeightArena::new(dtype), &too_long, &[], 1, MAX_INPUTS + 1).is_err());
    }
}
