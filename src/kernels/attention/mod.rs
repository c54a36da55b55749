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
                let below = *score - top;
                // `exp` would make a number of what is none
                broken |= below.is_nan();
                // keys behind the query weigh nothing at all
                *score = if below > f32::NEG_INFINITY { exp::<S>(below) } else { 0.0 };
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
        if let Some(next) = pages.get(index + 1) {
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
mod tests {
    use super::{
        super::{
            dtype::{from_bf16, inverse_of, scale_of, to_bf16, to_byte},
            memory::Arena,
            pages::PagePool,
        },
        distance::BLOCK,
        *,
    };
    use std::sync::Arc;

    fn wave(seed: usize, index: usize) -> f32 {
        ((seed * 37 + index * 13 + index * index % 101) as f32 * 0.7).sin()
    }

    /// Rows of numbers as they come back from storage.
    fn stored(dtype: Dtype, rows: &[f32], width: usize) -> Vec<f32> {
        let row = |row: &[f32]| -> Vec<f32> {
            let scale = scale_of(row);
            let number = |&x: &f32| match dtype {
                Dtype::F32 => x,
                Dtype::Bf16 => from_bf16(to_bf16(x)),
                Dtype::Int8 => f32::from(to_byte(x, inverse_of(scale))) * scale,
            };
            row.iter().map(number).collect()
        };
        rows.chunks_exact(width).flat_map(row).collect()
    }

    /// Attention by its definition, in f64, over keys and values as (positions, head_dim).
    fn naive(query: &Query<'_>, keys: &[f32], values: &[f32], distances: &[f32]) -> Vec<f64> {
        let h = query.content.len();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let scores: Vec<f64> = (0..=query.position)
            .map(|j| {
                let d = query.position - j;
                let far = query.distance.map_or(0.0, |(q, _)| dot(q, &distances[d * h..][..h]));
                ((dot(query.content, &keys[j * h..][..h]) + far) * f64::from(query.scale)).exp()
            })
            .collect();
        let total: f64 = scores.iter().sum();
        let weigh = |d: usize| scores.iter().enumerate().map(|(j, s)| s / total * f64::from(values[j * h + d])).sum();
        (0..h).map(weigh).collect()
    }

    /// Pages with these keys and values; what lies beyond them must not matter.
    fn pages(layout: &Layout, keys: &[f32], values: &[f32]) -> Vec<Page> {
        let (pool, h) = (PagePool::new(1 << 30), layout.head_dim);
        let fill = |(keys, values): (&[f32], &[f32])| {
            let mut page = pool.take(layout.page_bytes()).unwrap();
            let bytes = page.bytes_mut().unwrap();
            bytes.fill(0xff); // not a number, where floats are stored
            for (slot, (key, value)) in keys.chunks_exact(h).zip(values.chunks_exact(h)).enumerate() {
                write(layout, bytes, (0, slot), key, value);
            }
            page
        };
        keys.chunks(POSITIONS * h).zip(values.chunks(POSITIONS * h)).map(fill).collect()
    }

    #[test]
    fn overflow_is_not_taken_for_a_number() {
        let layout = Layout { dtype: Dtype::F32, layers: 1, heads: 1, head_dim: 2, output: 0 };
        for (key, query) in [(f32::MAX, 4.0), (f32::MAX, -4.0), (f32::NAN, 1.0)] {
            let pages = pages(&layout, &[0.5, 0.5, key, key], &[1.0; 4]);
            let content = &[query, query][..];
            let query = Query {
                pages: &pages,
                layout: &layout,
                layer: 0,
                head: 0,
                position: 1,
                content,
                distance: None,
                scale: 1.0,
            };
            for isa in [Isa::detect(), Isa::portable()] {
                let mut out = [0.0; 2];
                attend(isa, &query, &mut out);
                // a key at −∞ weighs nothing; anything else leaves no distribution
                assert!(if key > 0.0 && content[0] < 0.0 { out == [1.0; 2] } else { out[0].is_nan() }, "{out:?}");
            }
        }
    }

    #[test]
    fn agrees_with_the_naive_twin() {
        let shapes = [(8, 1), (8, 31), (8, 32), (8, 33), (5, 100), (64, 600), (72, 1100), (3, 1030)];
        for (dtype, (head_dim, positions)) in Dtype::ALL.into_iter().flat_map(|d| shapes.map(|shape| (d, shape))) {
            let floats = |seed, count: usize| (0..count).map(|i| wave(seed, i)).collect::<Vec<_>>();
            let (keys, values) = (floats(1, positions * head_dim), floats(2, positions * head_dim));
            let layout = Layout { dtype, layers: 1, heads: 1, head_dim, output: 0 };
            let pages = pages(&layout, &keys, &values);
            let distances = floats(3, (positions + BLOCK) * head_dim);
            let table = DistanceTable::new(dtype, (1, head_dim), positions, Arc::new(Arena::new(1)));
            let fill = |range: std::ops::Range<usize>| distances[range.start * head_dim..range.end * head_dim].to_vec();
            table.cover(positions - 1, fill).unwrap();
            let (keys, values) = (stored(dtype, &keys, head_dim), stored(dtype, &values, head_dim));
            let far_type = if dtype == Dtype::F32 { Dtype::F32 } else { Dtype::Bf16 };
            let distances = stored(far_type, &distances, head_dim);
            let (content, far) = (floats(4, head_dim), floats(5, head_dim));
            for position in [0, positions / 2, positions - 1] {
                for distance in [None, Some((&far[..], &table))] {
                    let (pages, layout, content) = (&pages[..], &layout, &content[..]);
                    let query = Query { pages, layout, layer: 0, head: 0, position, content, distance, scale: 0.4 };
                    let want = naive(&query, &keys, &values, &distances);
                    for isa in [Isa::detect(), Isa::portable()] {
                        let mut out = vec![0.0; head_dim];
                        attend(isa, &query, &mut out);
                        for (got, want) in out.iter().zip(&want) {
                            assert!((f64::from(*got) - want).abs() < 2e-6, "{dtype:?} {head_dim}: {got} {want}");
                        }
                    }
                }
            }
        }
    }
}
