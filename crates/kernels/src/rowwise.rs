//! Row-wise functions: norms, activations, quantization. Sums of a row run in sixteen lanes, which are added pairwise in a fixed
//! order, so results do not depend on the batch.

use crate::dtype::{MAX_INT8, ROUND, inverse_of, to_byte};
use crate::isa::{Simd, multiversion};
use crate::pool::ChunkBody;
use crate::{Compute, LANES, ThreadPool};

/// Minimum numbers for which it pays to use other threads.
const MIN_SHARED: usize = 1 << 15;

/// Calls `body(offset, row)` for each row of `x` (rows, width), on all threads if that pays.
fn for_rows(pool: &ThreadPool, x: &mut [f32], width: usize, body: &ChunkBody<'_>) {
    let share = x.len() >= MIN_SHARED;
    pool.for_chunks(x, width, share, &|row, part| body(row * width, part));
}

/// Computes x ← LayerNorm(x + y) for each row of (rows, width), with biased variance, weight and bias.
pub fn add_layer_norm(compute: &Compute, x: &mut [f32], y: &[f32], norm: &LayerNorm) {
    let width = norm.weight.len();
    assert_eq!(x.len(), y.len());
    for_rows(&compute.pool, x, width, &|offset, part| {
        add_norm_rows(compute.isa, part, &y[offset..offset + part.len()], norm);
    });
}

/// Computes x ← LayerNorm(x) for each row of (rows, width).
pub fn layer_norm(compute: &Compute, x: &mut [f32], norm: &LayerNorm) {
    for_rows(&compute.pool, x, norm.weight.len(), &|_, part| norm_rows(compute.isa, part, norm));
}

/// Parameters of LayerNorm.
pub struct LayerNorm {
    /// (width)
    pub weight: Vec<f32>,
    /// (width)
    pub bias: Vec<f32>,
    /// Added to the variance.
    pub eps: f32,
}

/// Parameters of RMSNorm, which has no mean and no bias.
pub struct RmsNorm {
    /// (width)
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Computes `out` = x / √(mean(x²) + eps) · weight for each row of (rows, width).
pub fn rms_norm(compute: &Compute, x: &[f32], norm: &RmsNorm, out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    for_rows(&compute.pool, out, norm.weight.len(), &|offset, part| {
        rms_rows(compute.isa, &x[offset..offset + part.len()], norm, part);
    });
}

multiversion! { fn rms_rows(x: &[f32], norm: &RmsNorm, out: &mut [f32]) = rms_body }

#[inline(always)]
fn rms_body<S: Simd>(_: S, x: &[f32], norm: &RmsNorm, out: &mut [f32]) {
    let width = norm.weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let scale = 1.0 / (lane_sum::<S, true>(x, 0.0) / width as f32 + norm.eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(&norm.weight) {
            *out = x * scale * weight;
        }
    }
}

multiversion! { fn add_norm_rows(x: &mut [f32], y: &[f32], norm: &LayerNorm) = add_norm_body }

multiversion! { fn norm_rows(x: &mut [f32], norm: &LayerNorm) = norm_body }

#[inline(always)]
fn add_norm_body<S: Simd>(_: S, x: &mut [f32], y: &[f32], norm: &LayerNorm) {
    let width = norm.weight.len();
    for (x, y) in x.chunks_exact_mut(width).zip(y.chunks_exact(width)) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
        norm_row::<S>(x, norm);
    }
}

#[inline(always)]
fn norm_body<S: Simd>(_: S, x: &mut [f32], norm: &LayerNorm) {
    for x in x.chunks_exact_mut(norm.weight.len()) {
        norm_row::<S>(x, norm);
    }
}

#[inline(always)]
fn norm_row<S: Simd>(x: &mut [f32], norm: &LayerNorm) {
    let width = x.len() as f32;
    let mean = lane_sum::<S, false>(x, 0.0) / width;
    let variance = lane_sum::<S, true>(x, mean) / width;
    let scale = 1.0 / (variance + norm.eps).sqrt();
    for ((x, weight), bias) in x.iter_mut().zip(&norm.weight).zip(&norm.bias) {
        *x = S::madd1((*x - mean) * scale, *weight, *bias);
    }
}

/// Returns the sum of x − shift, or of its squares, summed in sixteen lanes.
#[inline(always)]
fn lane_sum<S: Simd, const SQUARES: bool>(x: &[f32], shift: f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            let value = chunk[lane] - shift;
            lanes[lane] = if SQUARES { S::madd1(value, value, lanes[lane]) } else { lanes[lane] + value };
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        let value = value - shift;
        lanes[lane] = if SQUARES { S::madd1(value, value, lanes[lane]) } else { lanes[lane] + value };
    }
    add_up(lanes)
}

/// Adds sixteen lanes pairwise in a fixed order.
#[inline(always)]
pub(crate) fn add_up(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Computes x ← max(x, 0). NaN stays NaN.
#[inline(always)]
pub(crate) fn relu(x: &mut [f32]) {
    for x in x {
        // a mask is faster than a conditional store
        *x = f32::from_bits(x.to_bits() & if *x < 0.0 { 0 } else { u32::MAX });
    }
}

/// Computes x ← x·Φ(x), the exact GELU, with an erf of error below 1e-7.
#[inline(always)]
pub(crate) fn gelu_body<S: Simd>(_: S, x: &mut [f32]) {
    for x in x {
        *x = 0.5 * *x * (1.0 + erf::<S>(*x * std::f32::consts::FRAC_1_SQRT_2));
    }
}

/// Computes x ← x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³))), the GELU of GPT-2.
#[inline(always)]
pub(crate) fn gelu_tanh_body<S: Simd>(_: S, x: &mut [f32]) {
    const ROOT: f32 = 0.797_884_6;
    for x in x {
        let inner = ROOT * S::madd1(0.044_715 * *x * *x, *x, *x);
        // tanh by the exponential of a non-positive number; NaN stays NaN
        let exponential = exp::<S>(-2.0 * inner.abs());
        let tanh = ((1.0 - exponential) / (1.0 + exponential)).copysign(inner);
        *x = 0.5 * *x * (1.0 + tanh);
    }
}

/// Computes x ← x·σ(x).
#[inline(always)]
pub(crate) fn silu_body<S: Simd>(_: S, x: &mut [f32]) {
    for x in x {
        let exponential = exp::<S>(-x.abs());
        *x *= if *x < 0.0 { exponential } else { 1.0 } / (1.0 + exponential);
    }
}

// erf(x) = x·S(x²) up to 0.9 and 1 − exp(−x·L(x)) above. Coefficients are fitted by iterated least squares (minimax); the
// largest error over all f32 arguments is 8e-8.
#[allow(clippy::approx_constant, reason = "a fitted number that happens to lie near 2/√π")]
const ERF_SMALL: [f32; 6] =
    [1.128_379_1, -3.761_237_5e-1, 1.128_113_4e-1, -2.675_092e-2, 4.977_801_5e-3, -5.938_389e-4];

const ERF_LARGE: [f32; 7] =
    [1.128_641, 6.351_815e-1, 1.061_876_1e-1, -2.372_019e-2, 3.622_921e-3, -3.180_602_7e-4, 1.076_323_7e-5];

const ERF_SPLIT: f32 = 0.9;

#[inline(always)]
fn erf<S: Simd>(x: f32) -> f32 {
    let size = x.abs().min(4.0); // erf(4) rounds to 1
    let square = size * size;
    let small = size * polynomial::<S, 6>(&ERF_SMALL, square);
    let large = 1.0 - exp::<S>(-size * polynomial::<S, 7>(&ERF_LARGE, size));
    (if size < ERF_SPLIT { small } else { large }).copysign(x)
}

#[inline(always)]
fn polynomial<S: Simd, const N: usize>(coefficients: &[f32; N], x: f32) -> f32 {
    let mut value = coefficients[N - 1];
    for k in (0..N - 1).rev() {
        value = S::madd1(value, x, coefficients[k]);
    }
    value
}

/// Returns e^x for x ≤ 0, within two units in the last place. Below −87 the result is e^−87, which is negligible here.
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: f32) -> f32 {
    const TERMS: [f32; 5] = [4.999_999_3e-1, 1.666_652_1e-1, 4.166_838_7e-2, 8.368_712e-3, 1.381_463_4e-3];
    // ln 2 in two parts, so that n·ln 2 is exact enough for the remainder
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.max(-87.0);
    let shifted = S::madd1(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = S::madd1(n, -LN2_LOW, S::madd1(n, -LN2_HIGH, x));
    let value = 1.0 + S::madd1(r * r, polynomial::<S, 5>(&TERMS, r), r);
    // the low bits of `shifted` are n; added to the exponent, they multiply by 2^n
    f32::from_bits(value.to_bits().wrapping_add(shifted.to_bits() << 23))
}

multiversion! {
    /// Quantizes a row to int8, padded with zeros to whole cells, and returns its scale.
    pub(crate) fn quantize(x: &[f32], cells: &mut [[i8; 4]]) -> f32 = quantize_body
}

#[inline(always)]
fn quantize_body<S: Simd>(simd: S, x: &[f32], cells: &mut [[i8; 4]]) -> f32 {
    let scale = scale_of(simd, x);
    let inverse = inverse_of(scale);
    let cells = cells.as_flattened_mut();
    for (byte, &x) in cells.iter_mut().zip(x) {
        *byte = to_byte(x, inverse);
    }
    cells[x.len()..].fill(0);
    scale
}

/// Returns the scale that maps the largest magnitude of `x` to [`MAX_INT8`]: 0 if all elements are zero, NaN if any is not finite.
/// Uses explicit vectors, because the compiler turns a loop over chunks into one that gathers elements.
#[inline(always)]
pub(crate) fn scale_of<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    let mut maxima = simd.splat(0.0);
    let mut nans = simd.splat(0.0);
    for index in 0..=chunks.len() {
        let numbers = simd.load(chunks.get(index).unwrap_or(&last));
        let magnitudes = simd.max(numbers, simd.mul(numbers, simd.splat(-1.0)));
        maxima = simd.max(magnitudes, maxima);
        // NaN and infinity become NaN, other numbers zero
        nans = simd.add(nans, simd.mul(numbers, simd.splat(0.0)));
    }
    let [mut max_lanes, mut nan_lanes] = [[0.0; LANES]; 2];
    simd.store(maxima, &mut max_lanes);
    simd.store(nans, &mut nan_lanes);
    max_lanes.into_iter().fold(0.0, f32::max) / MAX_INT8 + add_up(nan_lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::isa::Portable;
    use crate::testing::{assert_fused_agree, assert_near, computes};

    multiversion! { fn gelu_all(x: &mut [f32]) = gelu_body }

    /// erf by its series, in f64.
    fn erf_series(x: f64) -> f64 {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    /// erf as the widest instruction set computes it, seen through the GELU of x·√2.
    fn by_gelu(x: f32) -> f32 {
        let argument = x * std::f32::consts::SQRT_2;
        let mut value = [argument];
        gelu_all(Isa::detect(), &mut value);
        if x == 0.0 { 0.0 } else { (f64::from(value[0]) / (0.5 * f64::from(argument)) - 1.0) as f32 }
    }

    #[test]
    fn erf_is_within_a_ten_millionth() {
        for i in -4500..=4500 {
            let x = i as f32 / 1000.0;
            let expected = erf_series(f64::from(x));
            for actual in [erf::<Portable>(x), by_gelu(x)] {
                assert!((f64::from(actual) - expected).abs() < 2.5e-7, "{x}: {actual} {expected}");
            }
        }
    }

    #[test]
    fn exp_is_within_a_few_units() {
        for i in 0..87_000 {
            let x = -(i as f32) / 1000.0;
            let expected = f64::from(x).exp();
            let actual = exp::<Portable>(x);
            assert!((f64::from(actual) / expected - 1.0).abs() < 4e-7, "{x}: {actual} {expected}");
        }
    }

    #[test]
    fn layer_norm_agrees_with_its_definition() {
        for width in [1, 2, 15, 16, 17, 48, 100] {
            let numbers = |k: f32| (0..width).map(|i| (i as f32 * k).sin() * 3.0 + 1.0).collect::<Vec<_>>();
            let [x, y, weight, bias] = [0.7, 1.3, 0.2, 2.1].map(numbers);
            let parameters = LayerNorm { weight, bias, eps: 1e-5 };
            let sums: Vec<f64> = x.iter().zip(&y).map(|(x, y)| f64::from(x + y)).collect();
            let mean = sums.iter().sum::<f64>() / width as f64;
            let variance = sums.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let unit = |i: usize| (sums[i] - mean) / (variance + 1e-5).sqrt();
            let output = |i: usize| unit(i) * f64::from(parameters.weight[i]) + f64::from(parameters.bias[i]);
            let expected: Vec<f64> = (0..width).map(output).collect();
            let mut all = Vec::new();
            for compute in computes(1) {
                let mut actual = x.clone();
                add_layer_norm(&compute, &mut actual, &y, &parameters);
                assert_near(&actual, &expected, 2e-5, &format!("width {width}"));
                all.push((compute.isa, actual));
            }
            assert_fused_agree(&all);
        }
    }

    #[test]
    fn rms_norm_agrees_with_its_definition() {
        for (width, eps) in [(1, 1e-6), (15, 1e-6), (16, 0.3), (48, 1e-6), (101, 1e-5)] {
            let numbers = |k: f32| (0..width * 3).map(|i| (i as f32 * k).sin() * 0.1 + 0.03).collect::<Vec<_>>();
            let x = numbers(0.7);
            let norm = RmsNorm { weight: numbers(0.2)[..width].to_vec(), eps };
            for compute in computes(2) {
                let mut actual = vec![f32::NAN; x.len()];
                rms_norm(&compute, &x, &norm, &mut actual);
                for (row, actual) in x.chunks(width).zip(actual.chunks(width)) {
                    let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                    let scale = (mean + f64::from(eps)).sqrt();
                    let numbers = row.iter().zip(&norm.weight);
                    let expected: Vec<f64> = numbers.map(|(x, w)| f64::from(*x) / scale * f64::from(*w)).collect();
                    assert_near(actual, &expected, 1e-6, &format!("width {width}"));
                }
            }
        }
    }

    #[test]
    fn scales_map_the_largest_magnitude_to_the_largest_byte() {
        let numbers: Vec<f32> = (0..100).map(|i| (i as f32 * 1.7).sin() * 3.0).collect();
        let largest = numbers.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        assert_eq!(scale_of(Portable, &numbers), largest / MAX_INT8);
        assert_eq!(scale_of(Portable, &[0.0]), 0.0);
        assert!(scale_of(Portable, &[1.0, f32::NAN, 2.0]).is_nan() && scale_of(Portable, &[f32::INFINITY]).is_nan());
    }

    #[test]
    fn activations_do_not_depend_on_the_index() {
        let numbers: Vec<f32> = (0..103).map(|i| (i as f32 - 50.0) / 9.0).collect();
        let mut all = Vec::new();
        for isa in Isa::all() {
            let mut batch = numbers.clone();
            gelu_all(isa, &mut batch);
            for (i, &x) in numbers.iter().enumerate() {
                let mut alone = [x];
                gelu_all(isa, &mut alone);
                assert_eq!(alone[0].to_bits(), batch[i].to_bits());
            }
            all.push((isa, batch));
        }
        assert_fused_agree(&all);
    }

    multiversion! { fn gelu_tanh_all(x: &mut [f32]) = gelu_tanh_body }

    multiversion! { fn silu_all(x: &mut [f32]) = silu_body }

    #[test]
    fn gelu_by_tanh_and_silu_have_errors_below_1e_6() {
        for i in -2000..=2000 {
            let x = f64::from(i) / 200.0;
            let gelu = 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
            for isa in Isa::all() {
                let mut by_tanh = [x as f32];
                let mut silu = [x as f32];
                gelu_tanh_all(isa, &mut by_tanh);
                silu_all(isa, &mut silu);
                for (actual, expected) in [(by_tanh[0], gelu), (silu[0], x / (1.0 + (-x).exp()))] {
                    assert!((f64::from(actual) - expected).abs() < 1e-6 * (1.0 + x.abs()), "{x}: {actual} {expected}");
                }
            }
        }
        let mut nans = [f32::NAN; 2];
        gelu_tanh_all(Isa::detect(), &mut nans[..1]);
        silu_all(Isa::detect(), &mut nans[1..]);
        assert!(nans.iter().all(|x| x.is_nan()));
    }
}
