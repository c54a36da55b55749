//! Attention of query rows over pages of keys and values, with an optional relative-distance term or bias and window.
//!
//! For each query row and head it computes out (head_dim) = softmax(scale · (query · keys + distance terms) + bias) · values
//! over the keys from `first_key` to the row's own position. A page holds [`POSITIONS`] positions of all layers of one stack
//! ([`PageLayout`]). Keys lie as (head_dim, positions), so that one vector instruction multiplies as many keys as it has
//! lanes.
//!
//! Order of summation: the softmax runs over spans of pages with a running maximum. Spans start at fixed positions, so the
//! order of every sum depends on the position of the query alone, not on the batch, the window or the instruction set. Keys
//! outside a window never contribute. Rows at consecutive positions, as in prefill, share one pass over the pages, but each
//! row keeps its own sums.
//!
//! Sums are f32 for every storage type. For int8, the product of a query and a key is an exact integer before it is scaled.
//! The sum of a span's weighted values is one too, with weights rounded to 15 bits of the largest. The tests compare with a
//! naive implementation in f64.

mod bytes;
mod dense;
mod distance;
mod floats;
mod layout;
mod query;
mod selected;
mod softmax;
mod span;
mod stored;
mod write;

pub use dense::{DenseKeys, DenseLayout, RelativeKeys, attend_dense, attend_sections};
pub use distance::DistanceTable;
pub use layout::{POSITIONS, PageLayout};
pub use query::{Query, QueryBuffer, QueryVariants};
pub use selected::{HeadKeyValues, attend_selected};
pub use span::{AttentionHead, Bias, QueryRow, ROW_TILE};
pub use write::write;

use super::{
    Dtype, Isa,
    isa::{Simd, multiversion},
};
use softmax::Softmax;
use span::{Outs, SPAN, Span};
use stored::{Columns, FloatStorage, Int8Storage, PageHead, Stored};

/// Computes `outs`: each row's softmax(scores) · values, (head_dim). NaN if a score is NaN or +∞, or if all scores are −∞.
///
/// The position increases by one from row to row, and `first_key` never decreases. Without distances and bias, rows may also
/// share one position, as in cross-attention. Panics if rows are not in that order, lengths differ, or a page is missing.
pub fn attend(isa: Isa, head: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) {
    let may_share_position = head.distances.is_none() && matches!(head.bias, Bias::None);
    let in_order = |pair: &[QueryRow<'_>]| {
        let [before, after] = [pair[0].position, pair[1].position];
        let follows = before + 1 == after || (may_share_position && before == after);
        follows && pair[0].first_key <= pair[1].first_key
    };
    assert!(rows.windows(2).all(in_order) && rows.len() == outs.len());
    assert!(rows.iter().all(|row| head.start <= row.first_key && row.first_key <= row.position));
    match head.layout.dtype {
        Dtype::F32 => attend_stored::<FloatStorage<f32>>(isa, head, rows, outs),
        Dtype::Bf16 => attend_stored::<FloatStorage<u16>>(isa, head, rows, outs),
        Dtype::Int8 => attend_stored::<Int8Storage>(isa, head, rows, outs),
    }
}

/// Computes the scores of one row, from its first key to its own position, before the softmax. Panics if a page is missing.
pub fn scores(isa: Isa, head: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) {
    assert!(head.start <= row.first_key && row.first_key <= row.position);
    out.clear();
    match head.layout.dtype {
        Dtype::F32 => scores_stored::<FloatStorage<f32>>(isa, head, row, out),
        Dtype::Bf16 => scores_stored::<FloatStorage<u16>>(isa, head, row, out),
        Dtype::Int8 => scores_stored::<Int8Storage>(isa, head, row, out),
    }
}

multiversion! {
    fn scores_stored<N: Stored>(head: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) = scores_body::<_, N>
}

#[inline(always)]
fn scores_body<S: Simd, N: Stored>(simd: S, head: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) {
    let rows = [*row];
    let mut scores = [[0f32; SPAN]; 1];
    let mut next = Some(row.first_key / POSITIONS * POSITIONS);
    while let Some(first) = next {
        let (span, after) = Span::new(head, &rows, first);
        score::<S, N, 1>(simd, &span, &rows, &mut scores);
        out.extend_from_slice(&scores[0][span.from[0]..span.to[0]]);
        next = after;
    }
}

multiversion! {
    fn attend_stored<N: Stored>(head: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) = attend_rows::<_, N>
}

#[inline(always)]
fn attend_rows<S: Simd, N: Stored>(simd: S, head: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) {
    let (tiles, rest) = rows.as_chunks::<ROW_TILE>();
    let (tile_outs, rest_outs) = outs.as_chunks_mut::<ROW_TILE>();
    for (rows, outs) in tiles.iter().zip(tile_outs) {
        attend_tile::<S, N, ROW_TILE>(simd, head, rows, outs);
    }
    for (row, out) in rest.iter().zip(rest_outs) {
        attend_tile::<S, N, 1>(simd, head, &[*row], std::array::from_mut(out));
    }
}

/// Attention of `B` rows that share one pass over the pages.
#[inline(always)]
fn attend_tile<S: Simd, N: Stored, const B: usize>(
    simd: S,
    head: &AttentionHead<'_>,
    rows: &[QueryRow<'_>; B],
    outs: &mut Outs<'_, B>,
) {
    let mut scores = [[0f32; SPAN]; B];
    let mut softmax: [Softmax; B] = std::array::from_fn(|_| Softmax::new(head.sink));
    outs.iter_mut().for_each(|out| out.fill(0.0));
    let mut next = Some(rows[0].first_key / POSITIONS * POSITIONS);
    while let Some(first) = next {
        let (span, after) = Span::new(head, rows, first);
        score::<S, N, B>(simd, &span, rows, &mut scores);
        for row in 0..B {
            let scores = &mut scores[row][..span.pages.len() * POSITIONS];
            let to = span.to[row];
            scores[..span.from[row].min(to)].fill(f32::NEG_INFINITY);
            scores[to..].fill(f32::NEG_INFINITY);
            softmax[row].push_span::<S>(scores, outs[row]);
        }
        N::add_weighted_values::<S, B>(simd, &span, &mut scores, outs);
        next = after;
    }
    for (softmax, out) in softmax.iter().zip(outs) {
        softmax.finish(out);
    }
}

/// Computes the scores of a span's keys. Scores of keys outside a row's window are unspecified.
#[inline(always)]
fn score<S: Simd, N: Stored, const B: usize>(
    simd: S,
    span: &Span<'_, B>,
    rows: &[QueryRow<'_>; B],
    scores: &mut [[f32; SPAN]; B],
) {
    let head = span.head;
    let mut distance_products = [[0f32; SPAN + POSITIONS]; B];
    let starts = multiply_distances::<S, N, B>(simd, span, rows, &mut distance_products);
    let offset = head.layout.head_offset(head.layer, head.head);
    (1..N::PREFETCH_PAGES).for_each(|block| span.prefetch(simd, block));
    let mut block = span.first / head.block;
    let variants = |block| rows.map(|row| row.content.get((row.position / head.block).saturating_sub(block)));
    let mut contents = variants(block);
    for (index, page) in span.pages.iter().enumerate() {
        span.prefetch(simd, index + N::PREFETCH_PAGES);
        let position = span.first + index * POSITIONS;
        if position / head.block != block {
            block = position / head.block;
            contents = variants(block);
        }
        let keys = PageHead::<N>::new(head.layout, page.bytes(), offset).keys;
        let key_products = N::products::<S, B>(simd, &contents, keys);
        for row in 0..B {
            let distance_products = &distance_products[row][index * POSITIONS + starts[row]..][..POSITIONS];
            let scores = &mut scores[row][index * POSITIONS..][..POSITIONS];
            for (lane, score) in scores.iter_mut().enumerate() {
                *score = (key_products[row][lane] + distance_products[lane]) * head.scale;
            }
            head.bias.add(scores, rows[row].position, position);
        }
    }
}

/// Multiplies the distance queries with the encodings of the distances to a span's keys, in decreasing order of distance.
/// Returns the index of each row's product with the first key of the span. The index differs from zero because chunks of
/// distances are aligned to the position of the query, but keys to the start of the sequence. Zero without distances.
#[inline(always)]
fn multiply_distances<S: Simd, N: Stored, const B: usize>(
    simd: S,
    span: &Span<'_, B>,
    rows: &[QueryRow<'_>; B],
    out: &mut [[f32; SPAN + POSITIONS]; B],
) -> [usize; B] {
    let mut starts = [0; B];
    let Some(table) = span.head.distances else { return starts };
    let mut chunks = [0; B];
    let queries = rows.map(|row| row.distance);
    for (row, (start, chunks)) in rows.iter().zip(starts.iter_mut().zip(&mut chunks)) {
        if let Some(offset) = row.position.checked_sub(span.first) {
            *start = POSITIONS - 1 - offset % POSITIONS;
            *chunks = offset / POSITIONS + 1;
        }
    }
    // the products of a row with chunk c have index chunks − 1 − c; a row needs one chunk more than the span has pages
    let needed = span.pages.len() + 1;
    let index = |row: usize, chunk: usize| (chunks[row] - 1).wrapping_sub(chunk);
    let lowest = chunks.map(|chunks| chunks.saturating_sub(needed));
    for chunk in (lowest[0]..chunks[B - 1]).rev() {
        let (numbers, scales) = table.chunk(span.head.head, chunk);
        let columns = Columns::<N>::new(numbers, scales);
        let is_needed = |row: usize| (lowest[row]..chunks[row]).contains(&chunk);
        if (0..B).all(is_needed) {
            let products = N::products::<S, B>(simd, &queries, columns);
            for row in 0..B {
                out[row][index(row, chunk) * POSITIONS..][..POSITIONS].copy_from_slice(&products[row]);
            }
        } else {
            for row in (0..B).filter(|&row| is_needed(row)) {
                let [products] = N::products::<S, 1>(simd, &[queries[row]], columns);
                out[row][index(row, chunk) * POSITIONS..][..POSITIONS].copy_from_slice(&products);
            }
        }
    }
    starts
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod window_tests;
