//! Products of whole numbers, which every type holds exactly: a row's sum is then one number, whatever the order, the type,
//! the tile or the instruction set, and nothing is a matter of tolerance.

use super::{
    Compute, Dtype, Isa, ThreadPool,
    linear::{Epilogue, Linear, QuantizedRows, WeightArena},
};
use proptest::prelude::*;
use std::sync::Arc;

/// What the widest byte is, and the widest whole number here: in int8 a row that has it is scaled by one.
const WIDEST: i32 = 127;

/// Whole numbers up to 127, (rows, width): each row has one that is as large as can be, so that bytes hold all exactly.
fn whole(seed: u32, rows: usize, width: usize) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = move || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        (state >> 9) as i32
    };
    let mut numbers: Vec<f32> =
        (0..rows * width).map(|_| (next() % (WIDEST + 1) * (1 - next() % 2 * 2)) as f32).collect();
    for row in numbers.chunks_exact_mut(width) {
        row[next() as usize % width] = if next() % 2 == 0 { WIDEST as f32 } else { -WIDEST as f32 };
    }
    numbers
}

/// The naive twin: (rows, outputs).
fn products(x: &[f32], weight: &[f32], inputs: usize) -> Vec<i64> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| x as i64 * w as i64).sum();
    x.chunks_exact(inputs).flat_map(|x| weight.chunks_exact(inputs).map(move |weight| dot(x, weight))).collect()
}

fn computes(threads: usize) -> Vec<Compute> {
    let pool = Arc::new(ThreadPool::new(threads));
    Isa::all().into_iter().map(|isa| Compute { isa, pool: pool.clone() }).collect()
}

/// Multiplies in each of the types on each instruction set, and compares to the bit.
fn check(dtypes: &[Dtype], computes: &[Compute], x: &[f32], weight: &[f32], inputs: usize) {
    let (rows, outputs) = (x.len() / inputs, weight.len() / inputs);
    let expected: Vec<f32> = products(x, weight, inputs).iter().map(|&sum| sum as f32).collect();
    for &dtype in dtypes {
        let linear = Linear::pack(&WeightArena::new(dtype), weight, &[], outputs, inputs).unwrap();
        for compute in computes {
            let mut out = vec![f32::NAN; rows * outputs];
            linear.apply(compute, x, Epilogue::None, &mut QuantizedRows::default(), &mut out);
            assert!(out == expected, "{dtype:?}, {}, {rows} rows, {inputs} -> {outputs}", compute.isa.name());
        }
    }
}

/// Every number of rows up to the most of a batch, over widths that divide no vector, no cell of four bytes, no panel.
#[test]
fn every_number_of_rows_up_to_64_gives_the_exact_sum() {
    let computes = computes(2);
    for (outputs, inputs) in [(1, 1), (17, 3), (33, 37), (81, 130), (129, 5)] {
        let weight = whole(7, outputs, inputs);
        for rows in 1..=64 {
            check(&Dtype::ALL, &computes, &whole(rows as u32, rows, inputs), &weight, inputs);
        }
    }
}

proptest! {
    // sums of up to 1040 products of bytes stay below 2^24, where floats hold whole numbers
    #[test]
    fn any_shape_gives_the_exact_sum(rows in 1usize..=64, outputs in 1usize..150, inputs in 1usize..=1040, seed: u32) {
        check(&Dtype::ALL, &computes(2), &whole(seed, rows, inputs), &whole(seed ^ 5, outputs, inputs), inputs);
    }
}

/// Bytes as large as they can be, of one sign and of both, up to the longest row that is taken: a sum of pairs that saturated,
/// or of 32 bits that wrapped, would show.
#[test]
fn the_largest_bytes_never_saturate_up_to_the_longest_row() {
    const LONGEST: usize = i32::MAX as usize / (127 * 127);
    let extreme = |count: usize, sign: &dyn Fn(usize) -> bool| -> Vec<f32> {
        (0..count).map(|index| if sign(index) { WIDEST as f32 } else { -WIDEST as f32 }).collect()
    };
    let signs: [&dyn Fn(usize) -> bool; 5] =
        [&|_| true, &|_| false, &|index| index % 2 == 0, &|index| index / 2 % 2 == 0, &|index| index % 3 == 0];
    let computes = computes(2);
    for (inputs, outputs, rows) in
        [(1, 3, 64), (63, 33, 64), (65, 33, 7), (2047, 17, 13), (2050, 40, 3), (LONGEST - 1, 3, 2), (LONGEST, 3, 2)]
    {
        for weights in signs {
            let weight = extreme(outputs * inputs, weights);
            for numbers in signs {
                check(&[Dtype::Int8], &computes, &extreme(rows * inputs, numbers), &weight, inputs);
            }
        }
    }
    let too_long = vec![1.0; LONGEST + 1];
    assert!(Linear::pack(&WeightArena::new(Dtype::Int8), &too_long, &[], 1, LONGEST + 1).is_err());
}
