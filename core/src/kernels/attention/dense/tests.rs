//! Tests of dense attention against a naive implementation in f64.

use super::*;
use crate::kernels::testing::{assert_near, computes, dot, naive_attention, numbers};
use proptest::prelude::*;

/// Naive implementation in f64: one query of one head over keys and values, (count, heads, head_dim).
fn naive(query: &[f32], keys: &[f32], values: &[f32], head: usize, heads: usize) -> Vec<f64> {
    let dim = query.len();
    let rows = keys.chunks_exact(heads * dim).zip(values.chunks_exact(heads * dim));
    let own = head * dim..(head + 1) * dim;
    naive_attention(rows.map(|(key, value)| (dot(query, &key[own.clone()]), &value[own.clone()])))
}

fn stored(layout: DenseLayout, keys: &[f32], values: &[f32]) -> Vec<f32> {
    let mut store = vec![0.0; layout.floats()];
    let inner = layout.heads * layout.head_dim;
    for (index, (key, value)) in keys.chunks_exact(inner).zip(values.chunks_exact(inner)).enumerate() {
        layout.write(&mut store, index, key, value);
    }
    store
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn agrees_with_the_naive_implementation_and_does_not_depend_on_the_batch(
        rows in 1usize..110, count in 1usize..600, heads in 1usize..4, head_dim in 1usize..50, spare in 0usize..40, seed: u32,
    ) {
        let inner = heads * head_dim;
        let keys = numbers(seed, count * inner);
        let values = numbers(seed ^ 1, count * inner);
        let queries: Vec<f32> = numbers(seed ^ 2, rows * inner).iter().map(|x| 2.0 * x).collect();
        let layout = DenseLayout { heads, head_dim, capacity: count + spare };
        let store = stored(layout, &keys, &values);
        for (compute, alone) in computes(2).iter().zip(computes(1)) {
            let mut out = vec![f32::NAN; rows * inner];
            attend_dense(compute, layout, &store, count, &queries, &mut out);
            for row in 0..rows {
                let query = &queries[row * inner..][..inner];
                let mut single = vec![f32::NAN; inner];
                attend_dense(&alone, layout, &store, count, query, &mut single);
                prop_assert_eq!(&single[..], &out[row * inner..][..inner]);
                if row % 16 == 0 {
                    let head = row / 16 % heads;
                    let own = head * head_dim..(head + 1) * head_dim;
                    let expected = naive(&query[own.clone()], &keys, &values, head, heads);
                    assert_near(&single[own], &expected, 1e-5, "a row");
                }
            }
        }
    }
}

#[test]
fn weights_of_keys_add_up_over_queries() {
    let layout = DenseLayout { heads: 2, head_dim: 5, capacity: 40 };
    let [keys, values] = [1, 2].map(|seed| numbers(seed, 370));
    let queries = numbers(3, 80);
    let store = stored(layout, &keys, &values);
    let mut sums = vec![0.0; 37];
    layout.add_weights(&store, 1, queries.chunks(10).map(|query| &query[5..]), &mut sums);
    assert!((sums.iter().sum::<f32>() - 8.0).abs() < 1e-5);
    // the weight of a key is the output for values that are one at that key and zero elsewhere
    for key in [0, 15, 36] {
        let indicator: Vec<f32> = (0..370).map(|index| f32::from(u8::from(index / 10 == key))).collect();
        let weight = |query: &[f32]| naive(&query[5..], &keys, &indicator, 1, 2)[0];
        let expected: f64 = queries.chunks(10).map(weight).sum();
        assert!((f64::from(sums[key]) - expected).abs() < 1e-5, "{key}: {} {expected}", sums[key]);
    }
}

#[test]
fn nan_keys_give_nan() {
    let layout = DenseLayout { heads: 1, head_dim: 4, capacity: 20 };
    let mut keys = numbers(1, 80);
    let values = numbers(2, 80);
    keys[77] = f32::NAN;
    let store = stored(layout, &keys, &values);
    for compute in computes(1) {
        let mut out = [0.0; 4];
        attend_dense(&compute, layout, &store, 20, &[1.0; 4], &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
        attend_dense(&compute, layout, &store, 19, &[1.0; 4], &mut out);
        assert!(out.iter().all(|x| x.is_finite()));
    }
}

/// Positions in rising order, from differences of 1 to 3.
fn rising(seed: u32, count: usize) -> Vec<u32> {
    let mut next = 0;
    let mut position = |x: &f32| {
        let position = next;
        next += 1 + (x.abs() * 97.0) as u32 % 3;
        position
    };
    numbers(seed, count).iter().map(&mut position).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// One section of near keys with a bias and a window, and one of side keys with another bias.
    #[test]
    fn sections_agree_with_the_naive_implementation_and_do_not_depend_on_the_batch(
        count in 1usize..700, side in 1usize..40, radius in prop::option::of(0usize..90), max in 1usize..40,
        gaps: bool, sink: bool, seed: u32,
    ) {
        let (heads, head_dim) = (2, 12);
        let inner = heads * head_dim;
        let layout = |count| DenseLayout { heads, head_dim, capacity: count };
        let [keys, values] = [0, 1].map(|salt| numbers(seed ^ salt, count * inner));
        let [side_keys, side_values] = [2, 3].map(|salt| numbers(seed ^ salt, side * inner));
        let queries: Vec<f32> = numbers(seed ^ 4, count * inner).iter().map(|x| 2.0 * x).collect();
        let tables: Vec<Vec<f32>> = (0..heads as u32).map(|head| numbers(seed ^ (9 + head), 2 * max + 1)).collect();
        let positions = if gaps { rising(seed ^ 5, count) } else { (0..count as u32).collect() };
        let groups: Vec<u32> = (0..count as u32).map(|index| (index / 4).min(side as u32 - 1)).collect();
        let store = stored(layout(count), &keys, &values);
        let side_store = stored(layout(side), &side_keys, &side_values);
        let sections = |rows: std::ops::Range<usize>| {
            let near = RelativeKeys {
                tables: &tables,
                query_positions: &positions[rows.clone()],
                key_positions: gaps.then_some(&positions[..]),
                radius,
            };
            let far = RelativeKeys { query_positions: &groups[rows], key_positions: None, radius: None, ..near };
            [
                DenseKeys { layout: layout(count), store: &store, count, relative: Some(near) },
                DenseKeys { layout: layout(side), store: &side_store, count: side, relative: Some(far) },
            ]
        };
        let bias = |head: usize, query: u32, key: u32| {
            let distance = i64::from(key) - i64::from(query);
            f64::from(tables[head][(distance.clamp(-(max as i64), max as i64) + max as i64) as usize])
        };
        for (compute, alone) in computes(2).iter().zip(computes(1)) {
            let mut out = vec![f32::NAN; queries.len()];
            attend_sections(compute, &sections(0..count), sink, &queries, &mut out);
            for row in (0..count).step_by(7) {
                let query = &queries[row * inner..][..inner];
                let mut single = vec![f32::NAN; inner];
                attend_sections(&alone, &sections(row..row + 1), sink, query, &mut single);
                prop_assert_eq!(&single[..], &out[row * inner..][..inner]);
                let head = row % heads;
                let own = head * head_dim..(head + 1) * head_dim;
                let seen = |key: &usize| {
                    radius.is_none_or(|radius| positions[*key].abs_diff(positions[row]) as usize <= radius)
                };
                let near = (0..count).filter(seen).map(|key| {
                    let score = dot(&query[own.clone()], &keys[key * inner..][own.clone()]);
                    (score + bias(head, positions[row], positions[key]), &values[key * inner..][own.clone()])
                });
                let far = (0..side).map(|key| {
                    let score = dot(&query[own.clone()], &side_keys[key * inner..][own.clone()]);
                    (score + bias(head, groups[row], key as u32), &side_values[key * inner..][own.clone()])
                });
                let zero = [0f32; 12];
                let extra = sink.then_some((0.0, &zero[..]));
                let expected = naive_attention(near.chain(far).chain(extra));
                assert_near(&single[own.clone()], &expected, 1e-5, "a row");
            }
        }
    }
}
