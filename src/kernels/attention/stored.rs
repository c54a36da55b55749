//! How keys, values and distances are stored, and how they are written.

use super::{Layout, POSITIONS};
use crate::kernels::{
    Dtype,
    dtype::{from_bf16, inverse_of, scale_of, to_bf16, to_byte},
    isa::Simd,
    memory::{self, cast, cast_mut},
};

/// How eight numbers become floats.
pub(super) trait Load: Copy {
    /// What is stored.
    type Number: memory::Number;

    /// Eight numbers.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load<S: Simd>(simd: S, from: *const Self::Number) -> S::V;
    /// One number.
    fn one(number: Self::Number) -> f32;
}

impl Load for f32 {
    type Number = f32;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_at(from) }
    }

    #[inline(always)]
    fn one(number: f32) -> f32 {
        number
    }
}

/// bf16.
impl Load for u16 {
    type Number = u16;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u16) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_bf16(from) }
    }

    #[inline(always)]
    fn one(number: u16) -> f32 {
        from_bf16(number)
    }
}

impl Load for i8 {
    type Number = i8;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const i8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_i8(from) }
    }

    #[inline(always)]
    fn one(number: i8) -> f32 {
        f32::from(number)
    }
}

/// What keys, values and the distances beside them are stored in.
pub(super) trait Stored: Copy {
    /// Keys and values.
    type Keys: Load;
    /// Distances.
    type Distances: Load;
    /// Whether each position of a head has its scales.
    const SCALED: bool;
}

/// A number of a key or a value.
pub(super) type Number<N> = <<N as Stored>::Keys as Load>::Number;

/// 32-bit floats.
#[derive(Clone, Copy)]
pub(super) struct Full;

impl Stored for Full {
    type Keys = f32;
    type Distances = f32;
    const SCALED: bool = false;
}

/// bf16.
#[derive(Clone, Copy)]
pub(super) struct Half;

impl Stored for Half {
    type Keys = u16;
    type Distances = u16;
    const SCALED: bool = false;
}

/// Bytes with a scale for each position's key and value; distances, which all sequences share, stay bf16.
#[derive(Clone, Copy)]
pub(super) struct Bytes;

impl Stored for Bytes {
    type Keys = i8;
    type Distances = u16;
    const SCALED: bool = true;
}

/// One head of a page.
pub(super) struct Head<'a, N: Stored> {
    /// (head_dim, POSITIONS)
    pub(super) keys: &'a [Number<N>],
    /// (POSITIONS, head_dim)
    pub(super) values: &'a [Number<N>],
    /// Of keys, then of values: (2 · POSITIONS), or none.
    pub(super) scales: &'a [f32],
}

impl<'a, N: Stored> Head<'a, N> {
    /// The head whose bytes start at `at` of a page.
    #[inline(always)]
    pub(super) fn of(layout: &Layout, page: &'a [u8], at: usize) -> Self {
        let half = layout.half();
        let bytes = &page[at..at + layout.head_bytes()];
        let scales = if N::SCALED { cast(&bytes[2 * half..][..2 * POSITIONS * size_of::<f32>()]) } else { &[] };
        Self { keys: cast(&bytes[..half]), values: cast(&bytes[half..2 * half]), scales }
    }
}

/// Writes keys and values of a layer, each (heads, head_dim), at a slot of a page.
pub fn write(layout: &Layout, page: &mut [u8], (layer, slot): (usize, usize), keys: &[f32], values: &[f32]) {
    let (dim, half) = (layout.head_dim, layout.half());
    for (head, (keys, values)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
        let bytes = &mut page[layout.head_at(layer, head)..][..layout.head_bytes()];
        match layout.dtype {
            Dtype::F32 => place(cast_mut(bytes), slot, (keys, values), |x| x),
            Dtype::Bf16 => place(cast_mut(bytes), slot, (keys, values), to_bf16),
            Dtype::Int8 => {
                let scales = [scale_of(keys), scale_of(values)];
                let [key_inverse, value_inverse] = scales.map(inverse_of);
                let (numbers, rest) = bytes.split_at_mut(2 * half);
                let (all_keys, all_values) = cast_mut(numbers).split_at_mut(half);
                place_key(all_keys, slot, keys, |x| to_byte(x, key_inverse));
                place_value(all_values, slot, values, |x| to_byte(x, value_inverse));
                let rest: &mut [f32] = cast_mut(rest);
                (rest[slot], rest[POSITIONS + slot]) = (scales[0], scales[1]);
            }
        }
    }
}

/// A key and a value into a head whose keys and values lie one behind the other.
#[inline(always)]
fn place<T: memory::Number>(head: &mut [T], slot: usize, (keys, values): (&[f32], &[f32]), number: impl Fn(f32) -> T) {
    let (all_keys, all_values) = head.split_at_mut(keys.len() * POSITIONS);
    place_key(all_keys, slot, keys, &number);
    place_value(all_values, slot, values, &number);
}

#[inline(always)]
fn place_key<T>(all: &mut [T], slot: usize, key: &[f32], number: impl Fn(f32) -> T) {
    for (column, &x) in all.chunks_exact_mut(POSITIONS).zip(key) {
        column[slot] = number(x);
    }
}

#[inline(always)]
fn place_value<T>(all: &mut [T], slot: usize, value: &[f32], number: impl Fn(f32) -> T) {
    for (to, &x) in all[slot * value.len()..].iter_mut().zip(value) {
        *to = number(x);
    }
}
