//! Compares windows, query variants and biases with a naive implementation, for every storage type.

use super::{
    super::{
        Compute, ThreadPool,
        memory::Arena,
        pages::Page,
        testing::{assert_near, dot, naive_attention, stored},
    },
    runs::SPAN,
    tests::{attention_head, key_pages, pages, query_buffer, wave},
    *,
};
use std::sync::Arc;

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
}

const SCALE: f32 = 0.4;
/// Maximum variants of a query.
const VARIANTS: usize = 48;

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
        let distance_table = self.distances.as_ref().map(|(_, table)| table);
        let head = AttentionHead {
            block: self.block,
            bias: self.bias(),
            ..attention_head(&self.layout, distance_table, SCALE)
        };
        let keys = KeyPages { start: first_page * POSITIONS, ..key_pages(&all[first_page..]) };
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

    fn check(&self, name: &str, firsts: &[usize], rows: usize) {
        let h = self.layout.head_dim;
        let all = pages(&self.layout, &self.keys, &self.values);
        // see `agrees_with_the_naive_implementation_alone_and_in_a_batch`
        let tolerance = if self.layout.dtype == CacheDtype::Int8 { 0.5 / 32767.0 * 64.0 } else { 5e-6 };
        for &first in firsts {
            for isa in Isa::all() {
                let batch = self.attend(isa, &all, first..first + rows);
                for (row, out) in batch.chunks(h).enumerate() {
                    let position = first + row;
                    let alone = self.attend(isa, &all, position..position + 1);
                    assert_eq!(alone, out, "{name} at {position}: the batch changes bits");
                    let context = format!("{name}, {:?} at {position}", self.layout.dtype);
                    assert_near(out, &self.naive(position), tolerance, &context);
                }
            }
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
    }
}

#[test]
fn windows_agree_with_the_naive_implementation_alone_and_in_a_batch() {
    for (dtype, (name, first_key)) in
        CacheDtype::ALL.into_iter().flat_map(|dtype| WINDOWS.map(|window| (dtype, window)))
    {
        // around the ends of blocks, pages and a span
        case(dtype, 28, 1100, first_key).check(name, &[0, 13, 30, 60, 126, SPAN - 3, SPAN + 90, 1092], 7);
    }
}

#[test]
fn variants_are_used_for_their_blocks() {
    for (dtype, (name, first_key)) in
        CacheDtype::ALL.into_iter().flat_map(|dtype| WINDOWS.map(|window| (dtype, window)))
    {
        for block in [32, 64] {
            WindowCase { block, ..case(dtype, 24, 700, first_key) }.check(name, &[0, 29, 62, 127, 509, 640], 5);
        }
    }
}

#[test]
fn biases_and_distances_respect_windows() {
    for (dtype, (name, first_key)) in
        CacheDtype::ALL.into_iter().flat_map(|dtype| WINDOWS.map(|window| (dtype, window)))
    {
        let positions = 640;
        let plain = || case(dtype, 40, positions, first_key);
        let firsts = [0, 61, 510, 600];
        WindowCase { slope: Some(0.05), ..plain() }.check(name, &firsts, 5);
        let table = (0..70).map(|distance| wave(11, distance)).collect();
        WindowCase { table, ..plain() }.check(name, &firsts, 5);
        let rows: Vec<f32> = (0..1024 * 40).map(|i| wave(3, i)).collect();
        let table = DistanceTable::new(dtype, 1, 40, positions, Arc::new(Arena::new(1)));
        table.cover(positions, |range| rows[range.start * 40..range.end * 40].to_vec()).unwrap();
        WindowCase { distances: Some((rows, table)), ..plain() }.check(name, &firsts, 5);
    }
}

#[test]
fn keys_before_the_window_do_not_affect_results() {
    for dtype in CacheDtype::ALL {
        let good = case(dtype, 24, 200, WINDOWS[3].1);
        let mut bad = case(dtype, 24, 200, WINDOWS[3].1);
        for number in bad.keys[..100 * 24].iter_mut().chain(&mut bad.values[..100 * 24]) {
            *number = f32::NAN;
        }
        let [good_pages, bad_pages] = [&good, &bad].map(|case| pages(&case.layout, &case.keys, &case.values));
        for isa in Isa::all() {
            let rows = 140..147;
            assert_eq!(good.attend(isa, &good_pages, rows.clone()), bad.attend(isa, &bad_pages, rows), "{dtype:?}");
        }
    }
}
