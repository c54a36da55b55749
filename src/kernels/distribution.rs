//! A row of logits as a distribution.

use super::{
    Isa, LANES,
    isa::{Simd, multiversion},
    rowwise::exp,
};

/// The largest of `x`, and ln Σ e^(x − largest): within a millionth of what it is. One of the two is not finite, if there is no
/// number above minus infinity, or one that is infinite or none.
pub fn max_and_log_sum_exp(x: &[f32]) -> (f32, f64) {
    let isa = Isa::detect();
    let largest = largest(isa, x);
    (largest, sum_above(isa, x, largest).ln())
}

multiversion! { fn largest(x: &[f32]) -> f32 = largest_body }
multiversion! { fn sum_above(x: &[f32], largest: f32) -> f64 = sum_body }

/// None if one of them is none.
#[inline(always)]
fn largest_body<S: Simd>(_: S, x: &[f32]) -> f32 {
    let (mut tops, mut unsound) = ([f32::NEG_INFINITY; LANES], [0u32; LANES]);
    let chunks = x.chunks_exact(LANES);
    meet(&mut tops, &mut unsound, chunks.remainder());
    for chunk in chunks {
        meet(&mut tops, &mut unsound, chunk);
    }
    let sound = unsound.iter().all(|&unsound| unsound == 0);
    if sound { tops.into_iter().fold(f32::NEG_INFINITY, f32::max) } else { f32::NAN }
}

#[inline(always)]
fn meet(tops: &mut [f32; LANES], unsound: &mut [u32; LANES], x: &[f32]) {
    for ((top, unsound), &x) in tops.iter_mut().zip(unsound).zip(x) {
        *top = if x > *top { x } else { *top };
        *unsound |= u32::from(x.is_nan());
    }
}

/// Σ e^(x − largest), in sixteen lanes of double precision.
#[inline(always)]
fn sum_body<S: Simd>(_: S, x: &[f32], largest: f32) -> f64 {
    let mut sums = [0f64; LANES];
    let chunks = x.chunks_exact(LANES);
    for (sum, x) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += f64::from(exp::<S>(x - largest));
    }
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(exp::<S>(x - largest));
        }
    }
    sums.iter().sum()
}

/// The logistic function, in double precision: compared with a threshold or with noise, so not a hot path.
pub fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

/// The logarithm of the sum of e^x, in double precision.
fn log_sum_exp(x: &[f32]) -> f64 {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = x.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).sum();
    f64::from(top) + sum.ln()
}

/// The entropy of softmax(x), in nats, in double precision.
pub fn entropy(x: &[f32]) -> f64 {
    let total = log_sum_exp(x);
    let terms = x.iter().map(|&x| {
        let log_probability = f64::from(x) - total;
        -log_probability.exp() * log_probability
    });
    terms.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_its_definition(x in proptest::collection::vec(-40f32..40.0, 1..200), impossible in 0usize..200) {
            let mut x = x;
            if let Some(x) = x.get_mut(impossible).filter(|_| impossible > 0) {
                *x = f32::NEG_INFINITY;
            }
            let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let want = x.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).sum::<f64>().ln();
            for isa in Isa::all() {
                prop_assert_eq!(largest(isa, &x), top);
                prop_assert!((sum_above(isa, &x, top).ln() - want).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn what_is_no_distribution_shows() {
        for place in [0, 15, 16, 20] {
            for wrong in [f32::NAN, f32::from_bits(0xffff_ffff), f32::INFINITY] {
                let mut x = [1f32; 21];
                x[place] = wrong;
                let (largest, excess) = max_and_log_sum_exp(&x);
                assert!(!(largest.is_finite() && excess.is_finite()), "{wrong} at {place}: {largest} {excess}");
            }
        }
        assert!(!max_and_log_sum_exp(&[f32::NEG_INFINITY; 17]).0.is_finite());
        assert!(!max_and_log_sum_exp(&[]).0.is_finite());
    }

    #[test]
    fn entropy_of_equals_is_the_logarithm_of_their_number() {
        assert!((entropy(&[3.0; 27]) - 27f64.ln()).abs() < 1e-12);
        assert!(entropy(&[1000.0, 0.0]) < 1e-12);
    }
}
