//! Attention beside its definition.

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
            near: false,
        };
        for isa in [Isa::detect(), Isa::portable()] {
            let mut out = [0.0; 2];
            attend(isa, &query, &mut out);
            // a key at −∞ weighs nothing; anything else leaves no distribution
            assert!(if key > 0.0 && content[0] < 0.0 { out == [1.0; 2] } else { out[0].is_nan() }, "{out:?}");
        }
    }
}

/// Wherever a span ends: keys at −∞ weigh nothing, and if all are there, there is no distribution.
#[test]
fn a_span_without_weight_is_passed_over() {
    let layout = Layout { dtype: Dtype::F32, layers: 1, heads: 1, head_dim: 1, output: 0 };
    for (low, positions) in [(SPAN, SPAN + 1), (SPAN - 1, SPAN + 1), (SPAN, SPAN), (3, 3)] {
        let keys: Vec<f32> = (0..positions).map(|j| if j < low { -f32::MAX } else { 1.0 }).collect();
        let pages = pages(&layout, &keys, &vec![2.0; positions]);
        let (position, content) = (positions - 1, &[4.0][..]);
        let query = Query {
            pages: &pages,
            layout: &layout,
            layer: 0,
            head: 0,
            position,
            content,
            distance: None,
            scale: 1.0,
            near: false,
        };
        for isa in [Isa::detect(), Isa::portable()] {
            let mut out = [0.0];
            attend(isa, &query, &mut out);
            assert!(if low < positions { out[0] == 2.0 } else { out[0].is_nan() }, "{low} of {positions}: {out:?}");
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
                let query = Query {
                    pages,
                    layout,
                    layer: 0,
                    head: 0,
                    position,
                    content,
                    distance,
                    scale: 0.4,
                    near: position % 2 == 0,
                };
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
