//! Compares the integer arithmetic of every instruction set with a naive implementation.

use crate::{isa::*, testing::words};

multiversion! {
    /// Returns the sums of `dot_bytes` without the offset, and of `dot_weights` for the bytes of `b`.
    fn dots(a: &[i8; 64], b: &[i8; 64], weights: [u16; 4]) -> [[i32; WIDTH]; 2] = dots_body
}

#[inline(always)]
fn dots_body<S: Simd>(simd: S, a: &[i8; 64], b: &[i8; 64], weights: [u16; 4]) -> [[i32; WIDTH]; 2] {
    let mut out = [[0; WIDTH]; 2];
    let zero = simd.splat_int(0);
    // SAFETY: `a` has 64 bytes.
    let first = unsafe { simd.load_bytes(a.as_ptr()) };
    // SAFETY: as above.
    let second = unsafe { simd.load_bytes(b.as_ptr()) };
    let sums = simd.dot_bytes(first, simd.offset(second), zero);
    // SAFETY: each row of `out` has sixteen integers.
    unsafe { simd.store_ints(sums, out[0].as_mut_ptr()) };
    for (lane, bytes) in a.chunks_exact(4).enumerate() {
        out[0][lane] -= S::OFFSET * bytes.iter().map(|&byte| i32::from(byte)).sum::<i32>();
    }
    let weights = simd.splat_weights(weights.map(|weight| (weight >> 8) as u8), weights.map(|weight| weight as u8));
    let [upper, lower] = simd.dot_weights(weights, second, [zero; 2]);
    let sums = simd.add_product(lower, upper, simd.splat_int(256));
    // SAFETY: each row of `out` has sixteen integers.
    unsafe { simd.store_ints(sums, out[1].as_mut_ptr()) };
    out
}

#[test]
fn integer_products_are_exact_on_every_instruction_set() {
    let dot = |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum::<i32>();
    let mut words = words(1);
    for round in 0..2000 {
        // frequent extremes would reveal a saturating sum
        let mut byte = |_| match words() {
            word if word >> 30 == 0 => 127,
            word if word >> 30 == 1 => -127,
            word => (((word >> 13) % 255) as u8 as i8).max(-127),
        };
        let mut bytes = || -> [i8; 64] { std::array::from_fn(&mut byte) };
        let [a, b] = if round == 0 { [[127; 64]; 2] } else { [bytes(), bytes()] };
        let weights =
            std::array::from_fn(|index| if round == 0 { 32767 } else { a[index].unsigned_abs() as u16 * 258 });
        for isa in Isa::all() {
            let [bytes, weighted] = dots(isa, &a, &b, weights);
            for lane in 0..WIDTH {
                let [a, b] = [&a, &b].map(|bytes| &bytes[4 * lane..][..4]);
                assert_eq!(bytes[lane], dot(a, b), "{}", isa.name());
                let products = b.iter().zip(weights).map(|(&b, weight)| i32::from(b) * i32::from(weight));
                assert_eq!(weighted[lane], products.sum::<i32>(), "{}", isa.name());
            }
        }
    }
}

multiversion! {
    /// Returns a + b · c, and a as floats.
    fn convert(a: &[i32; WIDTH], b: &[i32; WIDTH], c: &[i32; WIDTH]) -> ([i32; WIDTH], [f32; WIDTH]) = convert_body
}

#[inline(always)]
fn convert_body<S: Simd>(
    simd: S,
    a: &[i32; WIDTH],
    b: &[i32; WIDTH],
    c: &[i32; WIDTH],
) -> ([i32; WIDTH], [f32; WIDTH]) {
    // SAFETY: each array has sixteen integers.
    let load = |ints: &[i32; WIDTH]| unsafe { simd.load_ints(ints.as_ptr()) };
    let mut sum = [0; WIDTH];
    // SAFETY: `sum` has sixteen integers.
    unsafe { simd.store_ints(simd.add_product(load(a), load(b), load(c)), sum.as_mut_ptr()) };
    let mut floats = [0.0; WIDTH];
    simd.store(simd.to_floats(load(a)), &mut floats);
    (sum, floats)
}

#[test]
fn integers_wrap_and_become_the_nearest_floats_on_every_instruction_set() {
    let numbers = |factor: i32| -> [i32; WIDTH] {
        std::array::from_fn(|lane| match lane {
            0 => i32::MIN,
            1 => i32::MAX,
            2 => (1 << 24) + 1,
            3 => (1 << 24) + 3,
            _ => factor.wrapping_mul(lane as i32).wrapping_mul(0x0123_4567),
        })
    };
    let [a, b, c] = [numbers(3), numbers(-5), numbers(7)];
    for isa in Isa::all() {
        let (sum, floats) = convert(isa, &a, &b, &c);
        for lane in 0..WIDTH {
            assert_eq!(sum[lane], a[lane].wrapping_add(b[lane].wrapping_mul(c[lane])), "{}", isa.name());
            assert_eq!(floats[lane], a[lane] as f32, "{}", isa.name());
        }
    }
}

multiversion! {
    /// Returns for each lane 5 + the sum of the products of the nibbles of `packed` with the bytes of `cells`, and `small` as integers.
    fn nibble_dots(packed: &[[i8; 64]; 4], cells: &[[i8; 4]; 8], small: &[i8; WIDTH]) -> [[i32; WIDTH]; 2] = nibble_dots_body
}

#[inline(always)]
fn nibble_dots_body<S: Simd>(
    simd: S,
    packed: &[[i8; 64]; 4],
    cells: &[[i8; 4]; 8],
    small: &[i8; WIDTH],
) -> [[i32; WIDTH]; 2] {
    let mut nibbles = [simd.splat_int(0); 8];
    for (pair, bytes) in nibbles.chunks_exact_mut(2).zip(packed) {
        // SAFETY: there are 64 bytes.
        pair.copy_from_slice(&simd.nibbles(unsafe { simd.load_bytes(bytes.as_ptr()) }));
    }
    let mut out = [[0; WIDTH]; 2];
    // SAFETY: `small` has sixteen bytes.
    let small = unsafe { simd.load_small_ints(small.as_ptr()) };
    for (ints, out) in [simd.dot_nibbles(&nibbles, cells, simd.splat_int(5)), small].into_iter().zip(&mut out) {
        // SAFETY: each row of `out` has sixteen integers.
        unsafe { simd.store_ints(ints, out.as_mut_ptr()) };
    }
    out
}

multiversion! {
    /// Returns the results of `scale_nibbles`.
    fn scaled_nibbles(
        bytes: &[i8; 64], flips: i32, factors: i32, offsets: i32,
    ) -> [i8; 64] = scaled_nibbles_body
}

#[inline(always)]
fn scaled_nibbles_body<S: Simd>(simd: S, bytes: &[i8; 64], flips: i32, factors: i32, offsets: i32) -> [i8; 64] {
    // SAFETY: there are 64 bytes.
    let bytes = unsafe { simd.load_bytes(bytes.as_ptr()) };
    let [flips, factors, offsets] = [flips, factors, offsets].map(|ints| simd.splat_int(ints));
    let mut out = [0; 64];
    // SAFETY: `out` has 64 bytes.
    unsafe { simd.store_bytes(simd.scale_nibbles(bytes, flips, factors, offsets), out.as_mut_ptr()) };
    out
}

#[test]
fn nibbles_are_scaled_exactly_on_every_instruction_set() {
    for factor in 0..=15_i8 {
        for first in 0..16_i8 {
            // two neighbours share a 16-bit product: all pairs
            let bytes = std::array::from_fn(|index| if index % 2 == 0 { first } else { index as i8 / 2 % 16 });
            for flip in [0, 15_i8] {
                let expected = bytes.map(|byte| (byte ^ flip).wrapping_mul(factor).wrapping_sub(factor * 7));
                let word = i32::from(factor) << 16 | i32::from(factor);
                let bytes_of = |byte: i8| pack_bytes([byte; 4]);
                for isa in Isa::all() {
                    let scaled = scaled_nibbles(isa, &bytes, bytes_of(flip), word, bytes_of(factor * 7));
                    assert_eq!(scaled, expected, "{}, {factor}, {flip}", isa.name());
                }
            }
        }
    }
}

#[test]
fn products_of_nibbles_are_exact_on_every_instruction_set() {
    let mut words = words(1);
    let mut byte = || (words() >> 24) as u8 as i8;
    for round in 0..2000 {
        let mut packed = [[0i8; 64]; 4];
        packed.as_flattened_mut().fill_with(&mut byte);
        let mut cells = [[0i8; 4]; 8];
        cells.as_flattened_mut().fill_with(|| byte().max(-127));
        if round < 2 {
            // the largest sums of both signs
            packed = [[-1; 64]; 4];
            cells = [[if round == 0 { 127 } else { -127 }; 4]; 8];
        }
        let small: [i8; WIDTH] = std::array::from_fn(|_| byte());
        for isa in Isa::all() {
            let [sums, ints] = nibble_dots(isa, &packed, &cells, &small);
            for lane in 0..WIDTH {
                let product = |(index, &x): (usize, &i8)| {
                    let byte = packed[index / 8][4 * lane + index % 4] as u8;
                    i32::from(if index / 4 % 2 == 0 { byte & 15 } else { byte >> 4 }) * i32::from(x)
                };
                let expected = 5 + cells.as_flattened().iter().enumerate().map(product).sum::<i32>();
                assert_eq!((sums[lane], ints[lane]), (expected, i32::from(small[lane])), "{}", isa.name());
            }
        }
    }
}
