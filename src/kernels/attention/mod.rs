//! Attention of one query over pages of keys and values, with a relative-distance term; softmax included.
//!
//! A page holds [`POSITIONS`] positions of all layers of one stack ([`Layout`]); a head's keys lie as (head_dim, positions),
//! so that one vector instruction meets as many keys as it has lanes. The softmax runs over spans of pages with a running
//! maximum. Spans start at fixed positions, so the order of every sum is a function of the query's position alone. Sums are f32
//! whatever keys and values are stored in.

mod distance;
mod layout;
mod stored;

pub use distance::{DistanceTable, distance_bytes};
pub use layout::Layout;
pub use stored::write;

use super::{
    Dtype, Isa, LANES,
    isa::{Simd, WIDTH, multiversion},
    pages::Page,
    rowwise::{add_up, exp},
};
use stored::{Bytes, Full, Half, Head, Load, Number, Stored};

/// Positions in a page.
pub const POSITIONS: usize = 2 * LANES;

/// Vectors of a page's scores.
const VECTORS: usize = POSITIONS / WIDTH;
/// Keys whose scores are held at a time: keys, then values, are read as streams of that many.
const SPAN: usize = 16 * POSITIONS;
/// Bytes of a cache line.
const LINE: usize = 64;

/// One head's query, and where its keys and values are.
pub struct Query<'a> {
    /// The sequence's pages, from position 0.
    pub pages: &'a [Page],
    /// What they hold.
    pub layout: &'a Layout,
    /// The layer.
    pub layer: usize,
    /// The head.
    pub head: usize,
    /// The query's position: it attends to positions 0…position.
    pub position: usize,
    /// The query for the keys, bias included: (head_dim).
    pub content: &'a [f32],
    /// The query for the distances, bias included: (head_dim); and the distances.
    pub distance: Option<(&'a [f32], &'a DistanceTable)>,
    /// Multiplies every score.
    pub scale: f32,
    /// Whether the pages were read a moment ago, so that nothing has to be asked for.
    pub near: bool,
}

/// `out` (head_dim) = Σ softmax(scores) · values; not numbers, if a score is none or all are infinite.
pub fn attend(isa: Isa, query: &Query<'_>, out: &mut [f32]) {
    match query.layout.dtype {
        Dtype::F32 => full(isa, query, out),
        Dtype::Bf16 => half(isa, query, out),
        Dtype::Int8 => bytes(isa, query, out),
    }
}

multiversion! { fn full(query: &Query<'_>, out: &mut [f32]) = full_body }
multiversion! { fn half(query: &Query<'_>, out: &mut [f32]) = half_body }
multiversion! { fn bytes(query: &Query<'_>, out: &mut [f32]) = bytes_body }

#[inline(always)]
fn full_body<S: Simd>(simd: S, query: &Query<'_>, out: &mut [f32]) {
    attend_body::<S, Full>(simd, query, out);
}

#[inline(always)]
fn half_body<S: Simd>(simd: S, query: &Query<'_>, out: &mut [f32]) {
    attend_body::<S, Half>(simd, query, out);
}

#[inline(always)]
fn bytes_body<S: Simd>(simd: S, query: &Query<'_>, out: &mut [f32]) {
    attend_body::<S, Bytes>(simd, query, out);
}

#[inline(always)]
fn attend_body<S: Simd, N: Stored>(simd: S, query: &Query<'_>, out: &mut [f32]) {
    let mut scores = [0f32; SPAN];
    let (mut top, mut total, mut broken) = (f32::NEG_INFINITY, 0f32, false);
    out.fill(0.0);
    for first in (0..=query.position).step_by(SPAN) {
        let keys = (query.position + 1 - first).min(SPAN);
        let pages = &query.pages[first / POSITIONS..][..keys.div_ceil(POSITIONS)];
        let scores = &mut scores[..pages.len() * POSITIONS];
        score::<S, N>(simd, query, (pages, first), scores);
        scores[keys..].fill(f32::NEG_INFINITY);
        let span_top = largest(scores);
        if span_top > top {
            let shrink = exp::<S>(top - span_top);
            top = span_top;
            total *= shrink;
            for out in out.iter_mut() {
                *out *= shrink;
            }
        }
        let mut sums = [0f32; LANES];
        for scores in scores.chunks_exact_mut(LANES) {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                // `exp` would make a number of what is none
                broken |= score.is_nan() | (*score == f32::INFINITY);
                // keys behind the query weigh nothing at all
                *score = if *score > f32::NEG_INFINITY { exp::<S>(*score - top) } else { 0.0 };
                *sum += *score;
            }
        }
        total += add_up(sums);
        weigh::<S, N>(simd, query, (pages, keys), scores, out);
    }
    let share = if broken { f32::NAN } else { 1.0 / total };
    for out in out {
        *out *= share;
    }
}

#[inline(always)]
fn largest(scores: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for scores in scores.chunks_exact(LANES) {
        for (lane, &score) in lanes.iter_mut().zip(scores) {
            *lane = larger(*lane, score);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = larger(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The scores of a span's keys; those of keys behind the query are unspecified.
#[inline(always)]
fn score<S: Simd, N: Stored>(simd: S, query: &Query<'_>, (pages, first): (&[Page], usize), scores: &mut [f32]) {
    let mut far = [0f32; SPAN + POSITIONS];
    let place = far_products::<S, N>(simd, query, first, &mut far[..scores.len() + POSITIONS]);
    let (at, half) = (query.layout.head_at(query.layer, query.head), query.layout.half());
    for (index, (page, scores)) in pages.iter().zip(scores.chunks_exact_mut(POSITIONS)).enumerate() {
        match pages.get(index + 1) {
            _ if query.near => {}
            Some(next) => ask_for(simd, &next.bytes()[at..at + half]),
            None => ask_for(simd, &pages[0].bytes()[at + half..at + 2 * half]),
        }
        let head = Head::<N>::of(query.layout, page.bytes(), at);
        let mut near = products::<S, N::Keys>(simd, query.content, head.keys);
        if N::SCALED {
            for (score, scale) in near.iter_mut().zip(head.scales) {
                *score *= scale;
            }
        }
        let far = &far[index * POSITIONS + place..][..POSITIONS];
        for (lane, score) in scores.iter_mut().enumerate() {
            *score = (near[lane] + far[lane]) * query.scale;
        }
    }
}

/// The query's products with the distances to a span's keys, by falling distance, from the returned place on: chunks of
/// distances are aligned to the query's own position, keys to the sequence's start. Zeros, where a scheme has none.
#[inline(always)]
fn far_products<S: Simd, N: Stored>(simd: S, query: &Query<'_>, first: usize, far: &mut [f32]) -> usize {
    let Some((distance, table)) = query.distance else { return 0 };
    let offset = query.position - first;
    let nearest = offset / POSITIONS + 1;
    for (index, far) in far.chunks_exact_mut(POSITIONS).enumerate().take(nearest) {
        let chunk = table.chunk(query.head, nearest - 1 - index);
        far.copy_from_slice(&products::<S, N::Distances>(simd, distance, chunk));
    }
    POSITIONS - 1 - offset % POSITIONS
}

/// `out` += Σ weights · values of a span.
#[inline(always)]
fn weigh<S: Simd, N: Stored>(
    simd: S,
    query: &Query<'_>,
    (pages, keys): (&[Page], usize),
    weights: &mut [f32],
    out: &mut [f32],
) {
    let (at, half) = (query.layout.head_at(query.layer, query.head), query.layout.half());
    for (index, (page, weights)) in pages.iter().zip(weights.chunks_exact_mut(POSITIONS)).enumerate() {
        if let Some(next) = pages.get(index + 1).filter(|_| !query.near) {
            ask_for(simd, &next.bytes()[at + half..at + 2 * half]);
        }
        let head = Head::<N>::of(query.layout, page.bytes(), at);
        let weights = &mut weights[..POSITIONS.min(keys - index * POSITIONS)];
        if N::SCALED {
            for (weight, scale) in weights.iter_mut().zip(&head.scales[POSITIONS..]) {
                *weight *= scale;
            }
        }
        add_values::<S, N>(simd, weights, head.values, out);
    }
}

/// Asks for the keys, or values, that come next: blocks of a few KiB, far apart, are too short for the processor to foresee.
#[inline(always)]
fn ask_for<S: Simd>(simd: S, bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        simd.prefetch(line.as_ptr());
    }
}

/// Σ query · column for the columns of (head_dim, POSITIONS) numbers, each its own chain over the rows in order.
#[inline(always)]
fn products<S: Simd, L: Load>(simd: S, query: &[f32], rows: &[L::Number]) -> [f32; POSITIONS] {
    assert!(query.len() * POSITIONS <= rows.len());
    let mut sums = [simd.splat(0.0); VECTORS];
    let mut at = rows.as_ptr();
    for &factor in query {
        let factor = simd.splat(factor);
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: within the rows, as checked above.
            let column = unsafe { L::load(simd, at.wrapping_add(v * WIDTH)) };
            *sum = simd.madd(factor, column, *sum);
        }
        at = at.wrapping_add(POSITIONS);
    }
    let mut scores = [0f32; POSITIONS];
    for (v, &sum) in sums.iter().enumerate() {
        simd.store(sum, &mut scores[v * WIDTH..]);
    }
    scores
}

/// `out` += Σ weights · values, each number of `out` its own chain over the positions in order.
#[inline(always)]
fn add_values<S: Simd, N: Stored>(simd: S, weights: &[f32], values: &[Number<N>], out: &mut [f32]) {
    let head_dim = out.len();
    assert!(weights.len() * head_dim <= values.len());
    let mut done = 0;
    while done + 8 * WIDTH <= head_dim {
        add_columns::<S, N, 8>(simd, weights, &values[done..], (out, done));
        done += 8 * WIDTH;
    }
    while done + WIDTH <= head_dim {
        add_columns::<S, N, 1>(simd, weights, &values[done..], (out, done));
        done += WIDTH;
    }
    for at in done..head_dim {
        for (position, &weight) in weights.iter().enumerate() {
            out[at] = S::madd1(weight, N::Keys::one(values[position * head_dim + at]), out[at]);
        }
    }
}

/// `W` vectors of numbers side by side, from `done` on, where `values` start too.
#[inline(always)]
fn add_columns<S: Simd, N: Stored, const W: usize>(
    simd: S,
    weights: &[f32],
    values: &[Number<N>],
    (out, done): (&mut [f32], usize),
) {
    let head_dim = out.len();
    let out = &mut out[done..done + W * WIDTH];
    assert!(weights.is_empty() || (weights.len() - 1) * head_dim + W * WIDTH <= values.len());
    let mut sums: [S::V; W] = std::array::from_fn(|v| simd.load(&out[v * WIDTH..]));
    let mut at = values.as_ptr();
    for &weight in weights {
        let weight = simd.splat(weight);
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: within the rows, as checked above.
            let values = unsafe { N::Keys::load(simd, at.wrapping_add(v * WIDTH)) };
            *sum = simd.madd(weight, values, *sum);
        }
        at = at.wrapping_add(head_dim);
    }
    for v in 0..W {
        simd.store(sums[v], &mut out[v * WIDTH..]);
    }
}

#[cfg(test)]
mod tests;
