//! Attention of query rows over pages of keys and values, with an optional relative-distance term or bias and window.
//!
//! For each query row and head it computes out (head_dim) = softmax(scale · (query · keys + distance terms) + bias) · values
//! over the keys from `first_key` to the row's own position. A page holds [`POSITIONS`] positions of all layers of one stack
//! ([`PageLayout`]). Keys lie as (head_dim, positions), so that one vector instruction multiplies as many keys as it has
//! lanes.
//!
//! Order of summation: the softmax runs over spans of pages with a running maximum. Spans start at fixed positions, so the
//! order of every sum depends on the position of the query alone, not on the batch, the window or the instruction set. Keys
//! outside a window never contribute.
//!
//! The rows of a call may belong to several sequences. Rows that share a page, as those of a prompt or of forks do, share one pass
//! over it, and all rows share the encodings of distances. Each row keeps its own sums, so sharing changes no bits.
//!
//! Sums are f32 for every storage type. For int8, the product of a query and a key is an exact integer before it is scaled.
//! The sum of a span's weighted values is one too, with weights rounded to 15 bits of the largest. The tests compare with a
//! naive implementation in f64.

mod bytes;
mod dense;
mod distance;
mod floats;
mod inputs;
mod layout;
mod query;
mod runs;
mod selected;
mod softmax;
mod stored;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod work;
mod write;

pub use dense::{DenseKeys, DenseLayout, RelativeKeys, attend_dense, attend_sections};
pub use distance::DistanceTable;
pub use inputs::{AttentionHead, Bias, KeyPages, QueryRow, ROW_TILE};
pub use layout::{POSITIONS, PageLayout};
pub use query::{Query, QueryBuffer, QueryVariants};
pub use selected::{HeadKeyValues, attend_selected};
pub use write::write;

use super::{
    CacheDtype, Isa,
    isa::{Simd, multiversion},
};
use runs::{MAX_COLUMNS, RowSet, Run, SPAN, Span};
use softmax::Softmax;
use std::marker::PhantomData;
use stored::{Columns, FloatStorage, Int8Storage, Job, PageHead, Stored};
use work::Work;

/// Computes `outs`: each row's softmax(scores) · values, (head_dim). NaN if a score is NaN or +∞, or if all scores are −∞.
///
/// Panics if there are more than [`ROW_TILE`] rows, lengths differ, or a page is missing.
pub fn attend(isa: Isa, head: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) {
    assert!(rows.len() == outs.len() && rows.len() <= ROW_TILE);
    assert!(outs.iter().all(|out| out.len() == head.layout.head_dim));
    rows.iter().for_each(check);
    Work::with(|work| match head.layout.dtype {
        CacheDtype::F32 => attend_stored(isa, FloatStorage::<f32>(PhantomData), head, rows, work, outs),
        CacheDtype::Bf16 => attend_stored(isa, FloatStorage::<u16>(PhantomData), head, rows, work, outs),
        CacheDtype::Int8 => {
            #[cfg(target_arch = "x86_64")]
            if let Some(tiles) = tiles::Int8Tiles::new(isa, head, rows) {
                return attend_stored(isa, tiles, head, rows, work, outs);
            }
            attend_stored(isa, Int8Storage, head, rows, work, outs);
        }
    });
}

/// Computes the scores of one row, from its first key to its own position, before the softmax. Panics if a page is missing.
pub fn scores(isa: Isa, head: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) {
    check(row);
    out.clear();
    Work::with(|work| match head.layout.dtype {
        CacheDtype::F32 => scores_stored(isa, FloatStorage::<f32>(PhantomData), head, row, work, out),
        CacheDtype::Bf16 => scores_stored(isa, FloatStorage::<u16>(PhantomData), head, row, work, out),
        CacheDtype::Int8 => scores_stored(isa, Int8Storage, head, row, work, out),
    });
}

/// Panics if a row has no keys, or needs some before its pages.
fn check(row: &QueryRow<'_>) {
    assert!(row.keys.start <= row.first_key && row.first_key <= row.position);
}

multiversion! {
    fn scores_stored<N: Stored>(
        stored: N, head: &AttentionHead<'_>, row: &QueryRow<'_>, work: &mut Work, out: &mut Vec<f32>,
    ) = scores_body
}

#[inline(always)]
fn scores_body<S: Simd, N: Stored>(
    simd: S,
    stored: N,
    head: &AttentionHead<'_>,
    row: &QueryRow<'_>,
    work: &mut Work,
    out: &mut Vec<f32>,
) {
    let rows = [*row];
    for first in (row.first_key / SPAN * SPAN..=row.position).step_by(SPAN) {
        let span = Span::new(&rows, first);
        score(simd, stored, head, &span, work);
        out.extend_from_slice(&work.scores[0][span.from[0]..span.to[0]]);
    }
}

multiversion! {
    fn attend_stored<N: Stored>(
        stored: N, head: &AttentionHead<'_>, rows: &[QueryRow<'_>], work: &mut Work, outs: &mut [&mut [f32]],
    ) = attend_body
}

#[inline(always)]
fn attend_body<S: Simd, N: Stored>(
    simd: S,
    stored: N,
    head: &AttentionHead<'_>,
    rows: &[QueryRow<'_>],
    work: &mut Work,
    outs: &mut [&mut [f32]],
) {
    let mut softmax: [Softmax; ROW_TILE] = std::array::from_fn(|_| Softmax::new(head.sink));
    outs.iter_mut().for_each(|out| out.fill(0.0));
    let start = rows.iter().map(|row| row.first_key).min().unwrap_or(0) / SPAN * SPAN;
    let end = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
    for first in (start..end).step_by(SPAN) {
        let span = Span::new(rows, first);
        // windows of rows may lie far apart
        if span.active.is_empty() {
            continue;
        }
        score(simd, stored, head, &span, work);
        for row in span.active.iter() {
            let pages = span.pages(row);
            let scores = &mut work.scores[row];
            scores[pages.start * POSITIONS..span.from[row]].fill(f32::NEG_INFINITY);
            scores[span.to[row]..pages.end * POSITIONS].fill(f32::NEG_INFINITY);
            softmax[row].push_span::<S>(&mut scores[pages.start * POSITIONS..pages.end * POSITIONS], outs[row]);
            stored.prepare_weights(simd, head, &span, row, work);
        }
        let runs = std::mem::take(&mut work.runs);
        for run in &runs.found {
            stored.add_run(simd, head, &span, run, work, outs);
        }
        work.runs = runs;
        for row in span.active.iter() {
            stored.finish_sums(row, work, outs[row]);
        }
    }
    for (softmax, out) in softmax.iter().zip(outs) {
        softmax.finish(out);
    }
}

/// Splits a span into runs and computes the scores of its keys. Scores of keys outside a row's window are unspecified.
#[inline(always)]
fn score<S: Simd, N: Stored>(simd: S, stored: N, head: &AttentionHead<'_>, span: &Span<'_>, work: &mut Work) {
    let distances = multiply_distances(simd, stored, head, span, work);
    span.split(&mut work.runs);
    let runs = std::mem::take(&mut work.runs);
    for run in &runs.found {
        multiply_keys(simd, stored, head, span, run, work);
    }
    work.runs = runs;
    for row in span.active.iter() {
        let pages = span.pages(row);
        let keys = pages.start * POSITIONS..pages.end * POSITIONS;
        let scores = &mut work.scores[row][keys.clone()];
        match &distances {
            Some(first) => {
                let distances = &work.distances[row][first[row]..][..scores.len()];
                scores
                    .iter_mut()
                    .zip(distances)
                    .for_each(|(score, distance)| *score = (*score + distance) * head.scale);
            }
            None => scores.iter_mut().for_each(|score| *score *= head.scale),
        }
        head.bias.add(scores, span.rows[row].position, span.first + keys.start);
    }
}

/// Multiplies the queries of a run with its keys.
#[inline(always)]
fn multiply_keys<S: Simd, N: Stored>(
    simd: S,
    stored: N,
    head: &AttentionHead<'_>,
    span: &Span<'_>,
    run: &Run,
    work: &mut Work,
) {
    let list = run.rows.list();
    let rows = list.rows();
    let leader = rows[0];
    let prefetch = !span.rows[leader].keys.recently_read;
    let block_of = |page: usize| (span.first + page * POSITIONS) / head.block;
    let mut pages = run.pages.clone();
    while !pages.is_empty() {
        // queries have one variant for each block of positions
        let block = block_of(pages.start);
        let end = pages.start + pages.clone().take_while(|&page| block_of(page) == block).count();
        let mut columns = [Columns::empty(); MAX_COLUMNS];
        for (columns, page) in columns.iter_mut().zip(pages.start..end) {
            let page = PageHead::new(head, span.bytes(leader, page));
            *columns = page.keys;
            if prefetch {
                page.values.prefetch_scales(simd);
            }
        }
        let mut queries = [Query::default(); ROW_TILE];
        for (query, &row) in queries.iter_mut().zip(rows) {
            let row = &span.rows[row];
            *query = row.content.get((row.position / head.block).saturating_sub(block));
        }
        let job = Job {
            rows,
            queries: &queries[..rows.len()],
            columns: &columns[..end - pages.start],
            first: &[pages.start * POSITIONS; ROW_TILE],
            prefetch,
        };
        stored.multiply(simd, &job, &mut work.scores, &mut work.tile_sums);
        pages.start = end;
    }
}

/// Multiplies the distance queries with the encodings of the distances to a span's keys, in decreasing order of distance. Returns
/// the index of each row's product with its first page of keys, or `None` without distances. The index may differ from zero: chunks
/// of distances are aligned to the query's position, pages to the start of the sequence.
#[inline(always)]
fn multiply_distances<S: Simd, N: Stored>(
    simd: S,
    stored: N,
    head: &AttentionHead<'_>,
    span: &Span<'_>,
    work: &mut Work,
) -> Option<[usize; ROW_TILE]> {
    let table = head.distances?;
    let mut starts = [0; ROW_TILE];
    // each row needs the chunks from `lowest` to `highest`
    let mut lowest = [0; ROW_TILE];
    let mut highest = [0; ROW_TILE];
    for row in span.active.iter() {
        let pages = span.pages(row);
        let position = span.rows[row].position;
        let furthest = position - (span.first + pages.start * POSITIONS);
        starts[row] = POSITIONS - 1 - furthest % POSITIONS;
        highest[row] = furthest / POSITIONS;
        lowest[row] = (position + 1 - (span.first + span.to[row])) / POSITIONS;
    }
    // neighbouring chunks that the same rows need are one job; chunks from `below` on are done
    let mut below = usize::MAX;
    let left = |below: usize| {
        span.active.iter().filter(|&row| lowest[row] < below).map(|row| highest[row].min(below - 1)).max()
    };
    while let Some(last) = left(below) {
        let mut set = RowSet::default();
        let mut end = 0;
        for row in span.active.iter() {
            if highest[row] < last {
                end = end.max(highest[row] + 1);
            } else if lowest[row] <= last {
                set.insert(row);
                end = end.max(lowest[row]);
            }
        }
        let mut columns = [Columns::empty(); MAX_COLUMNS];
        let columns = &mut columns[..last + 1 - end];
        for (columns, chunk) in columns.iter_mut().zip((end..=last).rev()) {
            let (numbers, scales) = table.chunk(head.head, chunk);
            *columns = Columns::new(numbers, scales);
        }
        let mut queries = [Query::default(); ROW_TILE];
        let mut first = [0; ROW_TILE];
        let list = set.list();
        let rows = list.rows();
        for (query, &row) in queries.iter_mut().zip(rows) {
            *query = span.rows[row].distance;
            first[row] = (highest[row] - last) * POSITIONS;
        }
        let job = Job { rows, queries: &queries[..rows.len()], columns, first: &first, prefetch: false };
        stored.multiply(simd, &job, &mut work.distances, &mut work.tile_sums);
        below = end;
    }
    Some(starts)
}

#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod window_tests;
