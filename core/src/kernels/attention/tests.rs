//! Compares attention with a naive implementation.

use super::{
    super::{
        Compute, ThreadPool,
        memory::Arena,
        pages::{Page, PagePool},
        testing::{assert_fused_agree, assert_near, dot, naive_attention, stored},
    },
    distance::BLOCK,
    runs::SPAN,
    *,
};
use std::sync::Arc;

pub(super) fn wave(seed: usize, index: usize) -> f32 {
    ((seed * 37 + index * 13 + index * index % 101) as f32 * 0.7).sin()
}

/// One query of the naive implementation.
struct NaiveQuery<'a> {
    position: usize,
    content: &'a [f32],
    distance: Option<&'a [f32]>,
    scale: f32,
}

/// Naive attention in f64 over keys, values and distances, (positions, head_dim) each.
fn naive(query: &NaiveQuery<'_>, keys: &[f32], values: &[f32], distances: &[f32]) -> Vec<f64> {
    let h = query.content.len();
    let score = |j: usize| {
        let d = query.position - j;
        let distance_product = query.distance.map_or(0.0, |q| dot(q, &distances[d * h..][..h]));
        (dot(query.content, &keys[j * h..][..h]) + distance_product) * f64::from(query.scale)
    };
    naive_attention((0..=query.position).map(|j| (score(j), &values[j * h..][..h])))
}

/// Fills pages with keys and values. The remaining bytes must not affect results.
pub(super) fn pages(layout: &PageLayout, keys: &[f32], values: &[f32]) -> Vec<Page> {
    let pool = PagePool::new(1 << 30);
    let h = layout.head_dim;
    let fill = |(keys, values): (&[f32], &[f32])| {
        let mut page = pool.allocate(layout.page_bytes()).unwrap();
        let bytes = page.bytes_mut().unwrap();
        bytes.fill(0xff); // NaN for floats
        for (slot, (key, value)) in keys.chunks_exact(h).zip(values.chunks_exact(h)).enumerate() {
            write(layout, bytes, 0, slot, key, value);
        }
        page
    };
    keys.chunks(POSITIONS * h).zip(values.chunks(POSITIONS * h)).map(fill).collect()
}

pub(super) fn query_buffer(compute: &Compute, layout: &PageLayout, numbers: &[f32]) -> QueryBuffer {
    let mut queries = QueryBuffer::default();
    queries.values_mut(numbers.len()).copy_from_slice(numbers);
    queries.finish(compute, layout.dtype, layout.head_dim);
    queries
}

/// Attends for rows at consecutive positions from `first` on, with queries (rows, head_dim).
fn attend_to(
    isa: Isa,
    head: &AttentionHead<'_>,
    keys: KeyPages<'_>,
    first: usize,
    content: &[f32],
    distance: &[f32],
) -> Vec<f32> {
    let dim = head.layout.head_dim;
    let compute = Compute { isa, pool: Arc::new(ThreadPool::new(1)) };
    let [contents, distances] = [content, distance].map(|numbers| query_buffer(&compute, head.layout, numbers));
    let row = |row| QueryRow {
        keys,
        first_key: 0,
        position: first + row,
        content: QueryVariants::single(&contents, row),
        distance: distances.get(row),
    };
    let rows: Vec<_> = (0..content.len() / dim).map(row).collect();
    let mut out = vec![f32::NAN; content.len()];
    attend(isa, head, &rows, &mut out.chunks_exact_mut(dim).collect::<Vec<_>>());
    out
}

pub(super) fn attention_head<'a>(
    layout: &'a PageLayout,
    distances: Option<&'a DistanceTable>,
    scale: f32,
) -> AttentionHead<'a> {
    AttentionHead { distances, scale, ..AttentionHead::new(layout, 0, 0) }
}

/// Returns all pages of a sequence.
pub(super) fn key_pages(pages: &[Page]) -> KeyPages<'_> {
    KeyPages { pages, start: 0, recently_read: false }
}

#[test]
fn overflow_gives_nan() {
    let layout = PageLayout { dtype: CacheDtype::F32, layers: 1, heads: 1, head_dim: 2, output: 0 };
    for (key, query) in [(f32::MAX, 4.0), (f32::MAX, -4.0), (f32::NAN, 1.0)] {
        let pages = pages(&layout, &[0.5, 0.5, key, key], &[1.0; 4]);
        let head = attention_head(&layout, None, 1.0);
        for isa in Isa::all() {
            let out = attend_to(isa, &head, key_pages(&pages), 1, &[query; 2], &[]);
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
                let out = attend_to(isa, &attention_head(&layout, None, 1.0), key_pages(&pages), 2, &queries, &[]);
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
            let out =
                attend_to(isa, &attention_head(&layout, None, 1.0), key_pages(&pages), positions - 1, &[4.0], &[]);
            assert!(if low < positions { out[0] == 2.0 } else { out[0].is_nan() }, "{low} of {positions}: {out:?}");
        }
    }
}

#[test]
fn agrees_with_the_naive_implementation_alone_and_in_a_batch() {
    let shapes = [
        (8, 4),
        (8, 31),
        (8, 32),
        (8, 33),
        (5, 100),
        (64, 600),
        (72, 1100),
        (3, 1030),
        (16, 100),
        (32, 600),
        (48, 130),
        (120, 70),
        (67, 70),
        (130, 33),
    ];
    for (dtype, (head_dim, positions)) in CacheDtype::ALL.into_iter().flat_map(|d| shapes.map(|shape| (d, shape))) {
        let floats = |seed, count: usize| (0..count).map(|i| wave(seed, i)).collect::<Vec<_>>();
        let [keys, values] = [1, 2].map(|seed| floats(seed, positions * head_dim));
        let layout = PageLayout { dtype, layers: 1, heads: 1, head_dim, output: 0 };
        let pages = pages(&layout, &keys, &values);
        let distances = floats(3, (positions + BLOCK) * head_dim);
        let table = DistanceTable::new(dtype, 1, head_dim, positions, Arc::new(Arena::new(1)));
        let fill = |range: std::ops::Range<usize>| distances[range.start * head_dim..range.end * head_dim].to_vec();
        table.cover(positions - 1, fill).unwrap();
        let query_dtype = if dtype == CacheDtype::Int8 { CacheDtype::Int8 } else { CacheDtype::F32 };
        let [keys, values, distances] = [&keys, &values, &distances].map(|rows| stored(dtype, rows, head_dim));
        // f32: scores reach 16, whose last bit changes a weight by 2e-6. int8: each weight is rounded by at most half a step
        // of the largest one's 15 bits, and values are at most 1
        let tolerance = if dtype == CacheDtype::Int8 { 0.5 / 32767.0 * positions.min(64) as f64 } else { 4e-6 };
        let rows = 4.min(positions);
        let [content, distance_queries] = [4, 5].map(|seed| floats(seed, rows * head_dim));
        for first in [0, positions / 2, SPAN - 2, positions].map(|first| first.min(positions - rows)) {
            for (naive_distances, table) in [(None, None), (Some(&distances), Some(&table))] {
                let mut all = Vec::new();
                for isa in Isa::all() {
                    let head = attention_head(&layout, table, 0.4);
                    let cached = KeyPages { recently_read: first % 2 == 0, ..key_pages(&pages) };
                    let batch = attend_to(isa, &head, cached, first, &content, &distance_queries);
                    let queries = content.chunks(head_dim).zip(distance_queries.chunks(head_dim));
                    for (row, (content, distance)) in queries.enumerate() {
                        let out = &batch[row * head_dim..][..head_dim];
                        let alone = attend_to(isa, &head, cached, first + row, content, distance);
                        assert_eq!(alone, out, "the batch changes bits");
                        let [content, distance] = [content, distance].map(|query| stored(query_dtype, query, head_dim));
                        let distance = naive_distances.map(|_| &distance[..]);
                        let query = NaiveQuery { position: first + row, content: &content, distance, scale: 0.4 };
                        let expected = naive(&query, &keys, &values, naive_distances.map_or(&[], |all| all));
                        assert_near(out, &expected, tolerance, &format!("{dtype:?} {head_dim}"));
                    }
                    all.push((isa, batch));
                }
                assert_fused_agree(&all);
            }
        }
    }
}
