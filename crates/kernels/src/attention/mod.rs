//! Attention of query rows over pages of keys and values, with an optional relative-distance term or bias and window.
//!
//! For each query row and head it computes out (head_dim) = softmax(scale · (query · keys + distance terms) + bias) · values
//! over the keys from `first_key` to the row's own position. A page holds [`POSITIONS`] positions of all layers of one stack
//! ([`PageLayout`]), so that one vector instruction multiplies as many keys as it has lanes.
//!
//! Order of summation: the softmax runs over spans of pages with a running maximum. Spans start at fixed positions, so the order
//! of every sum depends on the query's position alone, not on the batch, the window or the instruction set. Rows that share a
//! page share one pass over it; each keeps its own sums.
//!
//! Sums are f32 for every storage type. For int8, the product of a query and a key is an exact integer before it is scaled, and
//! so is the sum of a span's values, with weights rounded to 15 bits of the largest.

mod bytes;
mod dense;
mod floats;
pub(crate) mod layout;
mod queries;

use crate::attention::floats::{Columns, FloatStorage, Int8Storage, Job, PageHead, Softmax, Stored};
use crate::attention::queries::{MAX_COLUMNS, RowSet, Run, SPAN, Span, Work};
pub use crate::attention::{
    dense::{DenseKeys, DenseLayout, HeadKeyValues, RelativeKeys, attend_dense, attend_sections, attend_selected},
    layout::{POSITIONS, PageLayout, write},
    queries::{AttentionHead, Bias, DistanceTable, KeyPages, Query, QueryBuffer, QueryRow, QueryVariants, ROW_TILE},
};
use crate::isa::{Simd, multiversion};
use crate::{CacheDtype, Isa};
use std::marker::PhantomData;

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
            if let Some(tiles) = bytes::Int8Tiles::new(isa, head, rows) {
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

pub(super) fn check(row: &QueryRow<'_>) {
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
        let span = Span::new(head, &rows, first);
        let distances = begin_span(simd, stored, head, &span, work);
        score(simd, stored, head, &span, span.active, distances.as_ref(), work);
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
        let span = Span::new(head, rows, first);
        // windows of rows may lie far apart
        if span.active.is_empty() {
            continue;
        }
        let distances = begin_span(simd, stored, head, &span, work);
        for index in 0..work.runs.groups.len() {
            let group = work.runs.groups[index];
            score(simd, stored, head, &span, group, distances.as_ref(), work);
            for row in group.iter() {
                let pages = span.pages(row);
                let scores = &mut work.scores[row];
                scores[pages.start * POSITIONS..span.from[row]].fill(f32::NEG_INFINITY);
                scores[span.to[row]..pages.end * POSITIONS].fill(f32::NEG_INFINITY);
                softmax[row].push_span::<S>(&mut scores[pages.start * POSITIONS..pages.end * POSITIONS], outs[row]);
                stored.prepare_weights(simd, head, &span, row, work);
            }
            let runs = std::mem::take(&mut work.runs);
            for run in runs.of(group) {
                stored.add_run(simd, head, &span, run, work, outs);
            }
            work.runs = runs;
            for row in group.iter() {
                stored.finish_sums(row, work, outs[row]);
            }
        }
    }
    for (softmax, out) in softmax.iter().zip(outs) {
        softmax.finish(out);
    }
}

/// Splits a span into runs and multiplies its distances. Returns what [`multiply_distances`] does.
#[inline(always)]
fn begin_span<S: Simd, N: Stored>(
    simd: S,
    stored: N,
    head: &AttentionHead<'_>,
    span: &Span<'_>,
    work: &mut Work,
) -> Option<[usize; ROW_TILE]> {
    span.split(&mut work.runs);
    span.list_pages(head.layout, &work.runs, &mut work.ahead);
    multiply_distances(simd, stored, head, span, work)
}

/// Computes the scores of a group's keys. Scores of keys outside a row's window are unspecified.
#[inline(always)]
fn score<S: Simd, N: Stored>(
    simd: S,
    stored: N,
    head: &AttentionHead<'_>,
    span: &Span<'_>,
    group: RowSet,
    distances: Option<&[usize; ROW_TILE]>,
    work: &mut Work,
) {
    let runs = std::mem::take(&mut work.runs);
    for run in runs.of(group) {
        multiply_keys(simd, stored, head, span, run, work);
    }
    work.runs = runs;
    for row in group.iter() {
        let pages = span.pages(row);
        let keys = pages.start * POSITIONS..pages.end * POSITIONS;
        let scores = &mut work.scores[row][keys.clone()];
        match distances {
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
    let mut pages = run.pages.clone();
    while !pages.is_empty() {
        // queries have one variant for each block of positions
        let block = (span.first + pages.start * POSITIONS) / head.block;
        let end = (block + 1).saturating_mul(head.block).saturating_sub(span.first) / POSITIONS;
        let end = end.min(pages.end);
        let mut columns = [Columns::empty(); MAX_COLUMNS];
        for (columns, page) in columns.iter_mut().zip(pages.start..end) {
            *columns = PageHead::new(head.layout, span.bytes(leader, page)).keys;
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
            is_ahead: !span.rows[leader].keys.recently_read,
        };
        stored.multiply(simd, &job, &mut work.scores, &mut work.tile_sums, &mut work.ahead);
        pages.start = end;
    }
}

/// Multiplies the distance queries with the encodings of the distances to a span's keys, in decreasing order of distance.
/// Returns the index of each row's product with its first page of keys, or `None` without distances: chunks of distances are
/// aligned to the query's position, pages to the start of the sequence.
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
        let job = Job { rows, queries: &queries[..rows.len()], columns, first: &first, is_ahead: false };
        stored.multiply(simd, &job, &mut work.distances, &mut work.tile_sums, &mut work.ahead);
        below = end;
    }
    Some(starts)
}

#[cfg(test)]
mod tests {
    //! Compares attention with a naive implementation.
    use super::*;
    use crate::attention::attend;
    use crate::attention::layout::{POSITIONS, PageLayout, write};
    use crate::attention::queries::{BLOCK, RowSet, Runs, SPAN};
    use crate::memory::Arena;
    use crate::pages::{Page, PagePool};
    use crate::testing::{assert_fused_agree, assert_near, dot, naive_attention, stored};
    use crate::{Compute, ThreadPool};
    use proptest::{prelude::*, sample::select};
    use std::{collections::BTreeSet, sync::Arc};

    fn wave(seed: usize, index: usize) -> f32 {
        ((seed * 37 + index * 13 + index * index % 101) as f32 * 0.7).sin()
    }

    /// Fills pages with keys and values. The remaining bytes must not affect results.
    fn pages(layout: &PageLayout, keys: &[f32], values: &[f32]) -> Vec<Page> {
        let pool = PagePool::new(1 << 30);
        let h = layout.head_dim;
        let fill = |(keys, values): (&[f32], &[f32])| {
            let mut page = pool.allocate(layout.page_bytes()).unwrap();
            let bytes = page.bytes_mut().unwrap();
            bytes.fill(0xff); // NaN for floats
            for (slot, (key, value)) in keys.chunks_exact(h).zip(values.chunks_exact(h)).enumerate() {
                write(Isa::detect(), layout, bytes, 0, slot, key, value);
            }
            page
        };
        keys.chunks(POSITIONS * h).zip(values.chunks(POSITIONS * h)).map(fill).collect()
    }

    fn query_buffer(compute: &Compute, layout: &PageLayout, numbers: &[f32]) -> QueryBuffer {
        let mut queries = QueryBuffer::default();
        queries.values_mut(numbers.len()).copy_from_slice(numbers);
        queries.finish(compute, layout.dtype, layout.head_dim);
        queries
    }

    /// Attends to all keys for rows at consecutive positions from `first` on, with queries (rows, head_dim).
    fn attend_to(isa: Isa, layout: &PageLayout, pages: &[Page], first: usize, queries: &[f32]) -> Vec<f32> {
        let compute = Compute { isa, pool: Arc::new(ThreadPool::new(1)) };
        let contents = query_buffer(&compute, layout, queries);
        let row = |row| QueryRow {
            keys: KeyPages { pages, start: 0, recently_read: false },
            position: first + row,
            content: QueryVariants::single(&contents, row),
            ..QueryRow::default()
        };
        let rows: Vec<_> = (0..queries.len() / layout.head_dim).map(row).collect();
        let head = AttentionHead { scale: 1.0, ..AttentionHead::new(layout, 0, 0) };
        let mut out = vec![f32::NAN; queries.len()];
        attend(isa, &head, &rows, &mut out.chunks_exact_mut(layout.head_dim).collect::<Vec<_>>());
        out
    }

    #[test]
    fn overflow_gives_nan() {
        let layout = PageLayout { dtype: CacheDtype::F32, layers: 1, heads: 1, head_dim: 2, output: 0 };
        for (key, query) in [(f32::MAX, 4.0), (f32::MAX, -4.0), (f32::NAN, 1.0)] {
            let pages = pages(&layout, &[0.5, 0.5, key, key], &[1.0; 4]);
            for isa in Isa::all() {
                let out = attend_to(isa, &layout, &pages, 1, &[query; 2]);
                // a score of −∞ has weight zero; +∞ and NaN give NaN
                assert!(if key > 0.0 && query < 0.0 { out == [1.0; 2] } else { out[0].is_nan() }, "{out:?}");
            }
        }
    }

    /// Earlier rows are not affected.
    #[test]
    fn a_nan_key_value_or_query_gives_nan() {
        for dtype in CacheDtype::ALL {
            let layout = PageLayout { dtype, layers: 1, heads: 1, head_dim: 4, output: 0 };
            for (key, value, query) in
                [(f32::NAN, 1.0, 1.0), (1.0, f32::NAN, 1.0), (1.0, f32::INFINITY, 1.0), (1.0, 1.0, f32::NAN)]
            {
                let mut keys = [0.5; 20];
                let mut values = [2.0; 20];
                let mut queries = [1.0; 12];
                keys[16] = key;
                values[17] = value;
                queries[9] = query;
                let pages = pages(&layout, &keys, &values);
                for isa in Isa::all() {
                    let out = attend_to(isa, &layout, &pages, 2, &queries);
                    assert!(out[..8].iter().all(|x| (x - 2.0).abs() < 1e-6), "{dtype:?} {out:?}");
                    assert!(!out[9].is_finite(), "{dtype:?} {out:?}");
                }
            }
        }
    }

    /// If all scores are −∞, the output is NaN.
    #[test]
    fn a_span_of_scores_of_minus_infinity_has_no_weight() {
        let layout = PageLayout { dtype: CacheDtype::F32, layers: 1, heads: 1, head_dim: 1, output: 0 };
        for (low, positions) in [(SPAN, SPAN + 1), (SPAN - 1, SPAN + 1), (SPAN, SPAN), (3, 3)] {
            let keys: Vec<f32> = (0..positions).map(|j| if j < low { -f32::MAX } else { 1.0 }).collect();
            let pages = pages(&layout, &keys, &vec![2.0; positions]);
            for isa in Isa::all() {
                let out = attend_to(isa, &layout, &pages, positions - 1, &[4.0]);
                assert!(if low < positions { out[0] == 2.0 } else { out[0].is_nan() }, "{low} of {positions}: {out:?}");
            }
        }
    }

    /// A sequence that shares its first pages with the first sequence, and the rows at its end.
    #[derive(Debug, Clone)]
    struct Fork {
        shared: usize,
        positions: usize,
        rows: usize,
        window: usize,
    }

    fn fork(most: usize) -> impl Strategy<Value = Fork> {
        (0..=most / POSITIONS, 1..=most, 1usize..=6, select(vec![1, 40, 200, usize::MAX]))
            .prop_map(|(shared, positions, rows, window)| Fork { shared, positions, rows: rows.min(positions), window })
    }

    /// Sequences of one layout, and queries for their last positions.
    struct Forks {
        layout: PageLayout,
        pages: Vec<Vec<Page>>,
        forks: Vec<Fork>,
        /// Sequence and position of each row.
        rows: Vec<(usize, usize)>,
        block: usize,
        table: Option<DistanceTable>,
    }

    /// Maximum variants of a query.
    const VARIANTS: usize = 48;

    impl Forks {
        fn new(dtype: CacheDtype, head_dim: usize, forks: &[Fork]) -> Self {
            let layout = PageLayout { dtype, layers: 1, heads: 1, head_dim, output: 0 };
            let most = forks.iter().map(|fork| fork.positions).max().unwrap_or(1);
            let floats = |seed, count: usize| (0..count * head_dim).map(|i| wave(seed, i)).collect::<Vec<_>>();
            let mut all: Vec<Vec<Page>> = Vec::new();
            for (sequence, fork) in forks.iter().enumerate() {
                let mut own = pages(
                    &layout,
                    &floats(2 * sequence + 1, fork.positions),
                    &floats(2 * sequence + 2, fork.positions),
                );
                if let Some(first) = all.first() {
                    // the shared pages are complete
                    let shared = fork.shared.min(first.len() - 1).min(own.len() - 1);
                    own[..shared].clone_from_slice(&first[..shared]);
                }
                all.push(own);
            }
            let table = DistanceTable::new(dtype, 1, head_dim, most, Arc::new(Arena::new(1)));
            table
                .cover(most, |range| range.flat_map(|d| (0..head_dim).map(move |i| wave(d % 97, d + i))).collect())
                .unwrap();
            let rows = forks
                .iter()
                .enumerate()
                .flat_map(|(sequence, fork)| (fork.positions - fork.rows..fork.positions).map(move |p| (sequence, p)))
                .take(ROW_TILE)
                .collect();
            Self { layout, pages: all, forks: forks.to_vec(), rows, block: usize::MAX, table: Some(table) }
        }

        /// Attends for all rows in one call, or for each row in a call of its own.
        fn attend(&self, isa: Isa, together: bool) -> Vec<f32> {
            let dim = self.layout.head_dim;
            let compute = Compute { isa, pool: Arc::new(ThreadPool::new(1)) };
            let numbers = |seed, count: usize| (0..count * dim).map(|i| wave(seed, i)).collect::<Vec<_>>();
            let contents = query_buffer(&compute, &self.layout, &numbers(50, self.rows.len() * VARIANTS));
            let distances = query_buffer(&compute, &self.layout, &numbers(51, self.rows.len()));
            let head = AttentionHead {
                block: self.block,
                distances: self.table.as_ref(),
                bias: Bias::Slope(0.01),
                ..AttentionHead::new(&self.layout, 0, 0)
            };
            let row = |(index, &(sequence, position)): (usize, &(usize, usize))| {
                let first_key = (position + 1).saturating_sub(self.forks[sequence].window);
                let count = position / self.block - first_key / self.block + 1;
                QueryRow {
                    keys: KeyPages { pages: &self.pages[sequence], start: 0, recently_read: index % 2 == 0 },
                    first_key,
                    position,
                    content: QueryVariants::new(&contents, index * VARIANTS, 1, count),
                    distance: distances.get(index),
                }
            };
            let rows: Vec<_> = self.rows.iter().enumerate().map(row).collect();
            let mut out = vec![f32::NAN; rows.len() * dim];
            let mut outs: Vec<_> = out.chunks_exact_mut(dim).collect();
            if together {
                attend(isa, &head, &rows, &mut outs);
            } else {
                rows.iter()
                    .zip(&mut outs)
                    .for_each(|(row, out)| attend(isa, &head, &[*row], std::array::from_mut(out)));
            }
            out
        }

        fn check(&self) {
            let all = Isa::all().into_iter().map(|isa| {
                let together = self.attend(isa, true);
                assert!(together.iter().all(|x| x.is_finite()));
                assert!(together == self.attend(isa, false), "sharing changes bits: {}", isa.name());
                (isa, together)
            });
            assert_fused_agree(&all.collect::<Vec<_>>());
        }
    }

    /// A NaN of one row stays in that row, also on tiles, and nothing of a call affects the next one on the same thread.
    #[test]
    fn a_nan_stays_in_its_row_and_in_its_call() {
        for dtype in CacheDtype::ALL {
            let forks = [Fork { shared: 0, positions: 70, rows: 6, window: usize::MAX }];
            let good = Forks::new(dtype, 64, &forks);
            let mut bad = Forks::new(dtype, 64, &forks);
            let infinite = vec![f32::INFINITY; 64];
            write(
                Isa::detect(),
                &bad.layout,
                bad.pages[0][67 / POSITIONS].bytes_mut().unwrap(),
                0,
                67 % POSITIONS,
                &infinite,
                &infinite,
            );
            bad.rows.iter().for_each(|&(_, position)| assert!(position >= 64));
            for isa in Isa::all() {
                let expected = std::thread::scope(|scope| scope.spawn(|| good.attend(isa, true)).join().unwrap());
                let out = bad.attend(isa, true);
                for ((&(_, position), row), good) in bad.rows.iter().zip(out.chunks(64)).zip(expected.chunks(64)) {
                    let name = isa.name();
                    assert!(
                        if position < 67 { row == good } else { row.iter().all(|x| x.is_nan()) },
                        "{name} {position}"
                    );
                }
                let narrow = Forks::new(CacheDtype::F32, 12, &forks);
                narrow.attend(isa, true);
                assert!(good.attend(isa, true) == expected, "{dtype:?} {}", isa.name());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn rows_that_share_pages_have_the_bits_of_rows_alone(
            dtype in select(&CacheDtype::ALL[..]), head_dim in select(vec![12, 16, 32, 48, 64, 80, 128, 192, 256]),
            forks in prop::collection::vec(fork(1200), 1..8), block in select(vec![32, 64, usize::MAX]), distances: bool,
        ) {
            let mut case = Forks::new(dtype, head_dim, &forks);
            case.block = block;
            if !distances {
                case.table = None;
            }
            case.check();
        }

        /// Every page of every row is in one run, and all rows of a run share its pages. Without windows, no two runs have the same
        /// page.
        #[test]
        fn runs_partition_the_pages_of_all_rows(mut forks in prop::collection::vec(fork(1500), 1..8), windows: bool) {
            if !windows {
                forks.iter_mut().for_each(|fork| fork.window = usize::MAX);
            }
            let case = Forks::new(CacheDtype::F32, 1, &forks);
            let rows: Vec<_> = case.rows.iter().map(|&(sequence, position)| QueryRow {
                keys: KeyPages { pages: &case.pages[sequence], start: 0, recently_read: false },
                first_key: (position + 1).saturating_sub(forks[sequence].window),
                position,
                ..QueryRow::default()
            }).collect();
            for first in (0..1500).step_by(SPAN) {
                let span = Span::new(&AttentionHead::new(&case.layout, 0, 0), &rows, first);
                let mut runs = Runs::default();
                span.split(&mut runs);
                let mut expected = BTreeSet::new();
                for row in span.active.iter() {
                    expected.extend(span.pages(row).map(|page| (row, page)));
                }
                let mut found = BTreeSet::new();
                let mut pages = BTreeSet::new();
                for Run { rows, pages: run } in &runs.found {
                    prop_assert!(*rows != RowSet::default());
                    for page in run.clone() {
                        let ids: BTreeSet<_> = rows.iter().map(|row| span.bytes(row, page).as_ptr()).collect();
                        prop_assert_eq!(ids.len(), 1);
                        prop_assert!(pages.insert((page, ids.first().copied())) || windows, "two runs have the same page");
                        prop_assert!(rows.iter().all(|row| found.insert((row, page))), "two runs have the same page of a row");
                    }
                }
                prop_assert_eq!(found, expected);
                // each row is in one group, and so is each run
                let rows: BTreeSet<_> = runs.groups.iter().flat_map(|group| group.iter()).collect();
                prop_assert_eq!(rows.len(), runs.groups.iter().map(|group| group.iter().count()).sum());
                prop_assert_eq!(rows, span.active.iter().collect());
                prop_assert_eq!(runs.groups.iter().map(|&group| runs.of(group).count()).sum::<usize>(), runs.found.len());
            }
        }
    }

    /// Returns the first key of the window at a position.
    type FirstKey = fn(usize) -> usize;

    /// Blocks of 16 and of 64 with the previous block; the last 1, 33 and 600 keys; all keys.
    const WINDOWS: [(&str, FirstKey); 6] = [
        ("blocks of 16", |i| (i / 16).saturating_sub(1) * 16),
        ("blocks of 64", |i| (i / 64).saturating_sub(1) * 64),
        ("the last key", |i| i),
        ("the last 33", |i| (i + 1).saturating_sub(33)),
        ("the last 600", |i| (i + 1).saturating_sub(600)),
        ("all", |_| 0),
    ];

    /// Keys and values, and how queries attend to them.
    struct WindowCase {
        layout: PageLayout,
        keys: Vec<f32>,
        values: Vec<f32>,
        distances: Option<(Vec<f32>, DistanceTable)>,
        table: Vec<f32>,
        slope: Option<f32>,
        block: usize,
        first_key: FirstKey,
        /// Largest difference of an output, except in int8.
        tolerance: f64,
    }

    const SCALE: f32 = 0.4;

    impl WindowCase {
        fn bias(&self) -> Bias<'_> {
            match self.slope {
                Some(slope) => Bias::Slope(slope),
                None if self.table.is_empty() => Bias::None,
                None => Bias::Table(&self.table),
            }
        }

        /// Returns a variant of the query at a position, or its query for distances (variant 99).
        fn query(&self, position: usize, variant: usize) -> Vec<f32> {
            (0..self.layout.head_dim).map(|i| wave(7 + variant, position * 31 + i)).collect()
        }

        fn stored_query(&self, position: usize, variant: usize) -> Vec<f32> {
            let dtype = if self.layout.dtype == CacheDtype::Int8 { CacheDtype::Int8 } else { CacheDtype::F32 };
            stored(dtype, &self.query(position, variant), self.layout.head_dim)
        }

        /// Naive implementation in f64, over the keys of the window.
        fn naive(&self, position: usize) -> Vec<f64> {
            let h = self.layout.head_dim;
            let [keys, values] = [&self.keys, &self.values].map(|rows| stored(self.layout.dtype, rows, h));
            let distances = self.distances.as_ref().map(|(rows, _)| stored(self.layout.dtype, rows, h));
            let variants: Vec<_> = (0..VARIANTS).map(|variant| self.stored_query(position, variant)).collect();
            let distance_query = self.stored_query(position, 99);
            let score = |j: usize| {
                let distance = position - j;
                let query = &variants[position / self.block - j / self.block];
                let distance_product =
                    distances.as_ref().map_or(0.0, |rows| dot(&distance_query, &rows[distance * h..][..h]));
                let bias = match self.bias() {
                    Bias::None => 0.0,
                    Bias::Slope(slope) => -f64::from(slope) * distance as f64,
                    Bias::Table(table) => f64::from(table[distance.min(table.len() - 1)]),
                };
                (dot(query, &keys[j * h..][..h]) + distance_product) * f64::from(SCALE) + bias
            };
            naive_attention(((self.first_key)(position)..=position).map(|j| (score(j), &values[j * h..][..h])))
        }

        /// Runs the kernel for rows at consecutive positions, with only the pages that the first row needs.
        fn attend(&self, isa: Isa, all: &[Page], positions: std::ops::Range<usize>) -> Vec<f32> {
            let h = self.layout.head_dim;
            let compute = Compute { isa, pool: Arc::new(ThreadPool::new(1)) };
            let rows = positions.len();
            let numbers: Vec<f32> = (positions.clone())
                .flat_map(|position| (0..VARIANTS).flat_map(move |variant| self.query(position, variant)))
                .collect();
            let variants = query_buffer(&compute, &self.layout, &numbers);
            let numbers: Vec<f32> = positions.clone().flat_map(|position| self.query(position, 99)).collect();
            let distances = query_buffer(&compute, &self.layout, &numbers);
            let first_page = (self.first_key)(positions.start) / POSITIONS;
            let head = AttentionHead {
                block: self.block,
                bias: self.bias(),
                distances: self.distances.as_ref().map(|(_, table)| table),
                scale: SCALE,
                ..AttentionHead::new(&self.layout, 0, 0)
            };
            let recently_read = positions.start.is_multiple_of(2);
            let keys = KeyPages { pages: &all[first_page..], start: first_page * POSITIONS, recently_read };
            let row = |(index, position): (usize, usize)| {
                let first_key = (self.first_key)(position);
                let count = position / self.block - first_key / self.block + 1;
                let content = QueryVariants::new(&variants, index * VARIANTS, 1, count);
                QueryRow { keys, first_key, position, content, distance: distances.get(index) }
            };
            let query_rows: Vec<_> = positions.enumerate().map(row).collect();
            let mut out = vec![f32::NAN; rows * h];
            attend(isa, &head, &query_rows, &mut out.chunks_exact_mut(h).collect::<Vec<_>>());
            out
        }

        /// Checks `rows` rows from each of `firsts` on. Keys and values before their windows are NaN, and must not affect results.
        fn check(&self, name: &str, firsts: &[usize], rows: usize) {
            let h = self.layout.head_dim;
            // int8: each weight is rounded by at most half a step of the largest one's 15 bits, and values are at most 1
            let keys = self.keys.len() / h;
            let int8 = 0.5 / 32767.0 * keys.min(64) as f64;
            let tolerance = if self.layout.dtype == CacheDtype::Int8 { int8 } else { self.tolerance };
            for &first in firsts {
                let unseen = (self.first_key)(first) * h;
                let with_nan = |numbers: &[f32]| [&vec![f32::NAN; unseen], &numbers[unseen..]].concat();
                let all = pages(&self.layout, &with_nan(&self.keys), &with_nan(&self.values));
                let plain = pages(&self.layout, &self.keys, &self.values);
                let on_each = Isa::all().into_iter().map(|isa| {
                    let batch = self.attend(isa, &all, first..first + rows);
                    assert_eq!(self.attend(isa, &plain, first..first + rows), batch, "{name}: unseen keys change bits");
                    for (row, out) in batch.chunks(h).enumerate() {
                        let position = first + row;
                        let alone = self.attend(isa, &all, position..position + 1);
                        assert_eq!(alone, out, "{name} at {position}: the batch changes bits");
                        let context = format!("{name}, {:?} {h} at {position}", self.layout.dtype);
                        assert_near(out, &self.naive(position), tolerance, &context);
                    }
                    (isa, batch)
                });
                assert_fused_agree(&on_each.collect::<Vec<_>>());
            }
        }
    }

    fn case(dtype: CacheDtype, head_dim: usize, positions: usize, first_key: FirstKey) -> WindowCase {
        let floats = |seed, count: usize| (0..count).map(|i| wave(seed, i)).collect::<Vec<_>>();
        WindowCase {
            layout: PageLayout { dtype, layers: 1, heads: 1, head_dim, output: 0 },
            keys: floats(1, positions * head_dim),
            values: floats(2, positions * head_dim),
            distances: None,
            table: Vec::new(),
            slope: None,
            block: usize::MAX,
            first_key,
            tolerance: 5e-6,
        }
    }

    /// Returns distances, and the table of them that queries at these positions read.
    fn distances(dtype: CacheDtype, head_dim: usize, positions: usize) -> (Vec<f32>, DistanceTable) {
        let rows: Vec<f32> = (0..(positions + BLOCK) * head_dim).map(|i| wave(3, i)).collect();
        let table = DistanceTable::new(dtype, 1, head_dim, positions, Arc::new(Arena::new(1)));
        table.cover(positions - 1, |range| rows[range.start * head_dim..range.end * head_dim].to_vec()).unwrap();
        (rows, table)
    }

    #[test]
    fn agrees_with_the_naive_implementation_alone_and_in_a_batch() {
        let small = [(8, 4), (8, 31), (8, 32), (8, 33), (5, 100), (16, 100), (48, 130)];
        let large = [(64, 600), (72, 1100), (3, 1030), (32, 600), (120, 70), (67, 70), (130, 33)];
        let shapes = small.into_iter().chain(large);
        for (dtype, (head_dim, positions)) in
            CacheDtype::ALL.into_iter().flat_map(|dtype| shapes.clone().map(move |shape| (dtype, shape)))
        {
            let rows = 4.min(positions);
            let firsts = [0, positions / 2, SPAN - 2, positions].map(|first| first.min(positions - rows));
            // scores reach 16, whose last bit changes a weight by 2e-6
            let plain = WindowCase { tolerance: 4e-6, ..case(dtype, head_dim, positions, |_| 0) };
            plain.check("content", &firsts, rows);
            let distances = Some(distances(dtype, head_dim, positions));
            WindowCase { distances, ..plain }.check("content and distances", &firsts, rows);
        }
    }

    /// Tests of each type run at the same time.
    #[test]
    fn windows_of_floats_agree_with_the_naive_implementation_alone_and_in_a_batch() {
        windows_agree(CacheDtype::F32);
    }

    #[test]
    fn windows_of_halves_agree_with_the_naive_implementation_alone_and_in_a_batch() {
        windows_agree(CacheDtype::Bf16);
    }

    #[test]
    fn windows_of_bytes_agree_with_the_naive_implementation_alone_and_in_a_batch() {
        windows_agree(CacheDtype::Int8);
    }

    fn windows_agree(dtype: CacheDtype) {
        for (name, first_key) in WINDOWS {
            // around the ends of blocks, pages and a span
            let around = [0, 13, 30, 60, 126, SPAN - 3, SPAN + 90, 1092];
            case(dtype, 28, 1100, first_key).check(name, &around, 7);
            for block in [32, 64] {
                let name = format!("{name}, variants for blocks of {block}");
                WindowCase { block, ..case(dtype, 24, 700, first_key) }.check(&name, &[0, 29, 62, 127, 509, 640], 5);
            }
            let positions = 640;
            let plain = || case(dtype, 40, positions, first_key);
            let firsts = [0, 61, 510, 600];
            WindowCase { slope: Some(0.05), ..plain() }.check(&format!("{name}, a slope"), &firsts, 5);
            let table = (0..70).map(|distance| wave(11, distance)).collect();
            WindowCase { table, ..plain() }.check(&format!("{name}, a table"), &firsts, 5);
            let distances = Some(distances(dtype, 40, positions));
            WindowCase { distances, ..plain() }.check(&format!("{name}, distances"), &firsts, 5);
        }
    }
}
