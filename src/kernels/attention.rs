//! Attention of one query over pages of keys and values, with a relative-distance term; softmax included.
//!
//! A page holds [`POSITIONS`] positions of all layers of one stack: for each layer the keys as (heads, head_dim, positions),
//! so that one vector instruction meets as many keys as it has lanes, then the values as (heads, positions, head_dim). The
//! softmax runs page by page with a running maximum. Pages start at fixed positions, so the order of every sum is a function
//! of the query's position alone.

use super::{
    LANES,
    isa::{Simd, WIDTH, multiversion},
    pages::Page,
    rowwise::{add_up, exp},
};
use std::sync::OnceLock;

/// Positions in a page.
pub const POSITIONS: usize = 2 * LANES;

/// Distances in a block of a [`DistanceTable`].
const BLOCK: usize = 512;
/// Floats in a block for each number of a head: a window of one page may start at its last distance.
const STRIDE: usize = BLOCK + POSITIONS;

/// R_d for every distance d ≥ 0, one layer's: computed in blocks, each once, when a sequence first gets that long.
pub struct DistanceTable {
    heads: usize,
    head_dim: usize,
    /// (heads, head_dim, STRIDE), by falling distance: neighbours in a page of keys are one apart in distance.
    blocks: Vec<OnceLock<Box<[f32]>>>,
}

impl DistanceTable {
    /// A table for sequences of up to `positions`.
    pub fn new(heads: usize, head_dim: usize, positions: usize) -> Self {
        let blocks = positions.div_ceil(BLOCK);
        Self { heads, head_dim, blocks: (0..blocks).map(|_| OnceLock::new()).collect() }
    }

    /// Makes sure that the table covers queries at `position`; `fill` gives R_d (heads, head_dim) for the distances asked for.
    pub fn cover(&self, position: usize, fill: impl Fn(std::ops::Range<usize>) -> Vec<f32>) {
        for (index, block) in self.blocks.iter().enumerate().take(position / BLOCK + 1) {
            block.get_or_init(|| self.block(index, &fill));
        }
    }

    fn block(&self, index: usize, fill: &impl Fn(std::ops::Range<usize>) -> Vec<f32>) -> Box<[f32]> {
        let width = self.heads * self.head_dim;
        // place m holds the distance `high − m`; distances below zero belong to keys after the query, which are masked
        let high = ((index + 1) * BLOCK) as isize - 1;
        let low = (high + 1 - STRIDE as isize).max(0);
        let rows = fill(low as usize..high as usize + 1);
        let mut block = vec![0f32; width * STRIDE].into_boxed_slice();
        for distance in low..=high {
            let row = &rows[(distance - low) as usize * width..][..width];
            let place = (high - distance) as usize;
            for (number, &value) in row.iter().enumerate() {
                block[number * STRIDE + place] = value;
            }
        }
        block
    }

    /// R of one head for a query and the page of keys starting `offset` positions before it: rows of [`STRIDE`] floats, the
    /// page's first key at the returned place.
    #[inline(always)]
    fn window(&self, head: usize, offset: usize) -> (&[f32], usize) {
        let index = offset / BLOCK;
        let block = self.blocks.get(index).and_then(OnceLock::get).map_or(&[][..], |block| block);
        let rows = &block[head * self.head_dim * STRIDE..][..self.head_dim * STRIDE];
        (rows, (index + 1) * BLOCK - 1 - offset)
    }

    /// Bytes computed so far.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().filter_map(OnceLock::get).map(|block| size_of_val(&**block)).sum()
    }
}

/// One head's query, and where its keys and values are.
pub struct Query<'a> {
    /// The sequence's pages, from position 0.
    pub pages: &'a [Page],
    /// Where in each page this layer's and head's keys start: (head_dim, POSITIONS).
    pub keys_at: usize,
    /// Where in each page this layer's and head's values start: (POSITIONS, head_dim).
    pub values_at: usize,
    /// The query's position: it attends to positions 0…position.
    pub position: usize,
    /// The head.
    pub head: usize,
    /// The query for the keys, bias included: (head_dim).
    pub content: &'a [f32],
    /// The query for the distances, bias included: (head_dim); and the distances.
    pub distance: Option<(&'a [f32], &'a DistanceTable)>,
    /// Multiplies every score.
    pub scale: f32,
}

multiversion! {
    /// `out` (head_dim) = Σ softmax(scores) · values.
    pub fn attend(query: &Query<'_>, out: &mut [f32]) = attend_body
}

#[inline(always)]
fn attend_body<S: Simd>(simd: S, query: &Query<'_>, out: &mut [f32]) {
    let head_dim = query.content.len();
    let (mut top, mut total) = (f32::NEG_INFINITY, 0f32);
    out.fill(0.0);
    for (index, page) in query.pages.iter().enumerate().take(query.position / POSITIONS + 1) {
        let first = index * POSITIONS;
        let keys = (query.position + 1 - first).min(POSITIONS);
        let floats = page.floats();
        let mut scores = scores(simd, query, &floats[query.keys_at..][..head_dim * POSITIONS], first);
        scores[keys..].fill(f32::NEG_INFINITY);
        let page_top = largest(&scores);
        if page_top > top {
            let shrink = exp::<S>(top - page_top);
            top = page_top;
            total *= shrink;
            for out in out.iter_mut() {
                *out *= shrink;
            }
        }
        for score in &mut scores {
            *score = exp::<S>(*score - top);
        }
        // keys beyond the query weigh nothing at all
        scores[keys..].fill(0.0);
        total += add_up(std::array::from_fn(|lane| scores[lane] + scores[lane + LANES]));
        add_values(simd, &scores[..keys], &floats[query.values_at..][..head_dim * POSITIONS], out);
    }
    let share = 1.0 / total;
    for out in out {
        *out *= share;
    }
}

#[inline(always)]
fn largest(scores: &[f32; POSITIONS]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes: [f32; LANES] = std::array::from_fn(|lane| larger(scores[lane], scores[lane + LANES]));
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = larger(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Vectors of a page's scores.
const VECTORS: usize = POSITIONS / WIDTH;

/// The scores of a page's keys.
#[inline(always)]
fn scores<S: Simd>(simd: S, query: &Query<'_>, keys: &[f32], first: usize) -> [f32; POSITIONS] {
    let mut content = [simd.splat(0.0); VECTORS];
    let mut distance = [simd.splat(0.0); VECTORS];
    if let Some((query_distance, table)) = query.distance {
        let (rows, place) = table.window(query.head, query.position - first);
        let queries = query.content.iter().zip(query_distance);
        for ((keys, row), (&a, &b)) in keys.chunks_exact(POSITIONS).zip(rows.chunks_exact(STRIDE)).zip(queries) {
            let (a, b, row) = (simd.splat(a), simd.splat(b), &row[place..place + POSITIONS]);
            for v in 0..VECTORS {
                content[v] = simd.madd(a, simd.load(&keys[v * WIDTH..]), content[v]);
                distance[v] = simd.madd(b, simd.load(&row[v * WIDTH..]), distance[v]);
            }
        }
    } else {
        for (keys, &a) in keys.chunks_exact(POSITIONS).zip(query.content) {
            let a = simd.splat(a);
            for v in 0..VECTORS {
                content[v] = simd.madd(a, simd.load(&keys[v * WIDTH..]), content[v]);
            }
        }
    }
    let (mut scores, mut far) = ([0f32; POSITIONS], [0f32; POSITIONS]);
    for v in 0..VECTORS {
        simd.store(content[v], &mut scores[v * WIDTH..]);
        simd.store(distance[v], &mut far[v * WIDTH..]);
    }
    std::array::from_fn(|lane| (scores[lane] + far[lane]) * query.scale)
}

/// `out` += Σ weights · values, each number of `out` its own chain over the positions in order.
#[inline(always)]
fn add_values<S: Simd>(simd: S, weights: &[f32], values: &[f32], out: &mut [f32]) {
    let head_dim = out.len();
    let mut done = 0;
    while done + 8 * WIDTH <= head_dim {
        add_columns::<S, 8>(simd, weights, values, out, done);
        done += 8 * WIDTH;
    }
    while done + WIDTH <= head_dim {
        add_columns::<S, 1>(simd, weights, values, out, done);
        done += WIDTH;
    }
    for at in done..head_dim {
        for (position, &weight) in weights.iter().enumerate() {
            out[at] = S::madd1(weight, values[position * head_dim + at], out[at]);
        }
    }
}

/// `W` vectors of numbers side by side.
#[inline(always)]
fn add_columns<S: Simd, const W: usize>(simd: S, weights: &[f32], values: &[f32], out: &mut [f32], at: usize) {
    let head_dim = out.len();
    let out = &mut out[at..at + W * WIDTH];
    let mut sums: [S::V; W] = std::array::from_fn(|v| simd.load(&out[v * WIDTH..]));
    for (values, &weight) in values.chunks_exact(head_dim).zip(weights) {
        let (values, weight) = (&values[at..at + W * WIDTH], simd.splat(weight));
        for v in 0..W {
            sums[v] = simd.madd(weight, simd.load(&values[v * WIDTH..]), sums[v]);
        }
    }
    for v in 0..W {
        simd.store(sums[v], &mut out[v * WIDTH..]);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Isa, pages::PagePool},
        *,
    };

    fn wave(seed: usize, index: usize) -> f32 {
        ((seed * 37 + index * 13 + index * index % 101) as f32 * 0.7).sin()
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

    #[test]
    fn agrees_with_the_naive_twin() {
        for (head_dim, positions) in [(8, 1), (8, 31), (8, 32), (8, 33), (5, 100), (64, 600), (72, 1100), (3, 1030)] {
            let floats = |seed, count: usize| (0..count).map(|i| wave(seed, i)).collect::<Vec<_>>();
            let (keys, values, distances) = (
                floats(1, positions * head_dim),
                floats(2, positions * head_dim),
                floats(3, (positions + BLOCK) * head_dim),
            );
            let pool = PagePool::new(1 << 30);
            let page_floats = (2 * head_dim * POSITIONS).next_multiple_of(16);
            let mut pages = Vec::new();
            for first in (0..positions).step_by(POSITIONS) {
                let mut page = pool.take(page_floats).unwrap();
                let floats = page.floats_mut().unwrap();
                floats.fill(f32::NAN); // what lies beyond the query must not matter
                for j in first..positions.min(first + POSITIONS) {
                    for d in 0..head_dim {
                        floats[d * POSITIONS + j - first] = keys[j * head_dim + d];
                        floats[head_dim * POSITIONS + (j - first) * head_dim + d] = values[j * head_dim + d];
                    }
                }
                pages.push(page);
            }
            let table = DistanceTable::new(1, head_dim, positions);
            table.cover(positions - 1, |range| distances[range.start * head_dim..range.end * head_dim].to_vec());
            let (content, far) = (floats(4, head_dim), floats(5, head_dim));
            for position in [0, positions / 2, positions - 1] {
                for distance in [None, Some((&far[..], &table))] {
                    let query = Query {
                        pages: &pages,
                        keys_at: 0,
                        values_at: head_dim * POSITIONS,
                        position,
                        head: 0,
                        content: &content,
                        distance,
                        scale: 0.4,
                    };
                    let want = naive(&query, &keys, &values, &distances);
                    for isa in [Isa::detect(), Isa::portable()] {
                        let mut out = vec![0.0; head_dim];
                        attend(isa, &query, &mut out);
                        for (got, want) in out.iter().zip(&want) {
                            assert!((f64::from(*got) - want).abs() < 2e-6, "{head_dim} {position}: {got} {want}");
                        }
                    }
                }
            }
        }
    }
}
