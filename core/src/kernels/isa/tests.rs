//! Compares the integer arithmetic of every instruction set with a naive implementation.

use super::*;

multiversion! {
    /// Returns the sums of `dot_bytes` without the offset, and those of `dot_words` for the first half.
    fn dots(a: &[i8; 64], b: &[i8; 64]) -> [[i32; WIDTH]; 2] = dots_body
}

#[inline(always)]
fn dots_body<S: Simd>(simd: S, a: &[i8; 64], b: &[i8; 64]) -> [[i32; WIDTH]; 2] {
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
    // SAFETY: `a` has at least 32 bytes.
    let first = unsafe { simd.load_words(a.as_ptr()) };
    // SAFETY: as above.
    let second = unsafe { simd.load_words(b.as_ptr()) };
    // SAFETY: each row of `out` has sixteen integers.
    unsafe { simd.store_ints(simd.dot_words(first, second, zero), out[1].as_mut_ptr()) };
    out
}

#[test]
fn integer_products_are_exact_on_every_instruction_set() {
    let dot = |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum::<i32>();
    let mut state = 1u32;
    for round in 0..2000 {
        let mut bytes = || -> [i8; 64] {
            std::array::from_fn(|_| {
                state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                // frequent extremes would reveal a saturating sum
                match state >> 30 {
                    0 => 127,
                    1 => -127,
                    _ => ((state >> 13) % 255) as u8 as i8,
                }
                .max(-127)
            })
        };
        let [a, b] = if round == 0 { [[127; 64]; 2] } else { [bytes(), bytes()] };
        for isa in Isa::all() {
            let [bytes, words] = dots(isa, &a, &b);
            for lane in 0..WIDTH {
                let four = dot(&a[4 * lane..][..4], &b[4 * lane..][..4]);
                assert_eq!(bytes[lane], four, "{}", isa.name());
                assert_eq!(words[lane], dot(&a[2 * lane..][..2], &b[2 * lane..][..2]), "{}", isa.name());
            }
        }
    }
}
