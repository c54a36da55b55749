//! What numbers are stored in. Sums are always f32 (int8 products: exact integers).

use super::LANES;

/// The numbers that weights, keys and values are stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// The upper halves of 32-bit floats; arithmetic in f32.
    Bf16,
    /// Bytes with scales: one for each output of a matrix, each row of activations, each head of a key or a value.
    Int8,
}

impl Dtype {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// The one of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// The nearest bf16, ties to even; what is not a number stays so.
pub(super) fn to_bf16(x: f32) -> u16 {
    half::bf16::from_f32(x).to_bits()
}

/// A bf16's value.
#[inline(always)]
pub(super) fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// The largest byte that stands for a number: symmetric, so that −128 is never met and pairs of products fit 16 bits.
pub(super) const LARGEST: f32 = 127.0;

/// The scale that makes the largest of `x` a [`LARGEST`]; 0 if all are zero, not a number if one of them is none or infinite.
#[inline(always)]
pub(super) fn scale_of(x: &[f32]) -> f32 {
    // sixteen maxima side by side, so that the compiler may use vectors; zero times what is no number is none either
    let (mut tops, mut nothings) = ([0f32; LANES], [0f32; LANES]);
    let chunks = x.chunks_exact(LANES);
    for (lane, &x) in chunks.remainder().iter().enumerate() {
        (tops[lane], nothings[lane]) = (x.abs(), x * 0.0);
    }
    for chunk in chunks {
        for lane in 0..LANES {
            let size = chunk[lane].abs();
            tops[lane] = if size > tops[lane] { size } else { tops[lane] };
            nothings[lane] += chunk[lane] * 0.0;
        }
    }
    let (mut top, mut nothing) = (0f32, 0f32);
    for lane in 0..LANES {
        top = if tops[lane] > top { tops[lane] } else { top };
        nothing += nothings[lane];
    }
    top / LARGEST + nothing
}

/// The byte nearest to `x` / scale, ties to even; `inverse` is 1 / scale, or 0.
#[inline(always)]
pub(super) fn to_byte(x: f32, inverse: f32) -> i8 {
    // adding 1.5 · 2^23 leaves the nearest integer in the low bits, in every rounding mode weir runs in
    const ROUND: f32 = 12_582_912.0;
    let rounded = (x * inverse).clamp(-LARGEST, LARGEST) + ROUND;
    rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i8
}

/// 1 / scale, or 0 where the scale is 0 (or so small that its inverse is not a number).
pub(super) fn inverse_of(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::parse(dtype.name()), Some(dtype));
        }
        assert_eq!(Dtype::parse("f16"), None);
    }

    #[test]
    fn bf16_rounds_to_the_nearest() {
        for x in [0.0, 1.0, -1.5, 3.3, 1e-30, -7.7e20] {
            let back = from_bf16(to_bf16(x));
            assert!((back - x).abs() <= x.abs() / 256.0, "{x} {back}");
        }
        assert!(from_bf16(to_bf16(f32::NAN)).is_nan());
    }

    #[test]
    fn bytes_are_within_half_a_scale() {
        let numbers: Vec<f32> = (0..100).map(|i| (i as f32 * 1.7).sin() * 3.0).collect();
        let scale = scale_of(&numbers);
        for &x in &numbers {
            let byte = to_byte(x, inverse_of(scale));
            assert!((f32::from(byte) * scale - x).abs() <= scale * 0.5001);
        }
        assert!(scale_of(&[1.0, f32::NAN, 2.0]).is_nan() && scale_of(&[f32::INFINITY]).is_nan());
        assert_eq!((scale_of(&[0.0]), to_byte(0.0, inverse_of(0.0)), inverse_of(1e-45)), (0.0, 0, 0.0));
    }
}
