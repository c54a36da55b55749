//! Windows, forms of queries and biases beside their definition, in every type of numbers.

use super::{
    super::{Compute, ThreadPool, memory::Arena},
    tests::{pages, stored, wave},
    *,
};
use std::sync::Arc;

/// A window's first key.
type Low = fn(usize) -> usize;

/// Blocks of 16 and of 64, each with the one before; the last 1, 33 and 600 keys; all.
const WINDOWS: [(&str, Low); 6] = [
    ("blocks of 16", |i| (i / 16).saturating_sub(1) * 16),
    ("blocks of 64", |i| (i / 64).saturating_sub(1) * 64),
    ("the last one", |i| i),
    ("the last 33", |i| (i + 1).saturating_sub(33)),
    ("the last 600", |i| (i + 1).saturating_sub(600)),
    ("all", |_| 0),
];

/// What is attended to.
struct Case {
    layout: PageLayout,
    keys: Vec<f32>,
    values: Vec<f32>,
    distances: Option<(Vec<f32>, DistanceTable)>,
    table: Vec<f32>,
    slope: Option<f32>,
    block: usize,
    low: Low,
}

const SCALE: f32 = 0.4;
/// QueryVariants that a query has at most.
const FORMS: usize = 48;

impl Case {
    fn bias(&self) -> Bias<'_> {
        match self.slope {
            Some(slope) => Bias::Slope(slope),
            None if self.table.is_empty() => Bias::None,
            None => Bias::Table(&self.table),
        }
    }

    /// The numbers of a row's form, or of its query for distances (form 99).
    fn query(&self, position: usize, form: usize) -> Vec<f32> {
        (0..self.layout.head_dim).map(|i| wave(7 + form, position * 31 + i)).collect()
    }

    fn stored_query(&self, position: usize, form: usize) -> Vec<f32> {
        let of_bytes = if self.layout.dtype == Dtype::Int8 { Dtype::Int8 } else { Dtype::F32 };
        stored(of_bytes, &self.query(position, form), self.layout.head_dim)
    }

    /// By the definition, in f64, of the keys from the window's start on.
    fn naive(&self, position: usize) -> Vec<f64> {
        let h = self.layout.head_dim;
        let [keys, values] = [&self.keys, &self.values].map(|rows| stored(self.layout.dtype, rows, h));
        let distances = self.distances.as_ref().map(|(rows, _)| stored(self.layout.dtype, rows, h));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let forms: Vec<_> = (0..FORMS).map(|form| self.stored_query(position, form)).collect();
        let far_query = self.stored_query(position, 99);
        let weight = |j: usize| {
            let distance = position - j;
            let form = &forms[position / self.block - j / self.block];
            let far = distances.as_ref().map_or(0.0, |rows| dot(&far_query, &rows[distance * h..][..h]));
            let bias = match self.bias() {
                Bias::None => 0.0,
                Bias::Slope(slope) => -f64::from(slope) * distance as f64,
                Bias::Table(table) => f64::from(table[distance.min(table.len() - 1)]),
            };
            ((dot(form, &keys[j * h..][..h]) + far) * f64::from(SCALE) + bias).exp()
        };
        let low = (self.low)(position);
        let weights: Vec<_> = (low..=position).map(weight).collect();
        let total: f64 = weights.iter().sum();
        let mean = |d: usize| weights.iter().zip(low..).map(|(w, j)| w / total * f64::from(values[j * h + d])).sum();
        (0..h).map(mean).collect()
    }

    /// As the kernel has it, of neighbouring rows, from pages that are held only as far back as the first row needs.
    fn attend(&self, isa: Isa, all: &[Page], positions: std::ops::Range<usize>) -> Vec<f32> {
        let (h, compute) = (self.layout.head_dim, Compute { isa, pool: Arc::new(ThreadPool::new(1)) });
        let (mut forms, mut far) = (QueryBuffer::default(), QueryBuffer::default());
        let rows = positions.len();
        let numbers: Vec<f32> = (positions.clone())
            .flat_map(|position| (0..FORMS).flat_map(move |form| self.query(position, form)))
            .collect();
        forms.values_mut(numbers.len()).copy_from_slice(&numbers);
        let numbers: Vec<f32> = positions.clone().flat_map(|position| self.query(position, 99)).collect();
        far.values_mut(numbers.len()).copy_from_slice(&numbers);
        for probes in [&mut forms, &mut far] {
            probes.finish(&compute, self.layout.dtype, h);
        }
        let held = (self.low)(positions.start) / POSITIONS;
        let source = AttentionHead {
            pages: &all[held..],
            start: held * POSITIONS,
            layout: &self.layout,
            layer: 0,
            head: 0,
            block: self.block,
            distances: self.distances.as_ref().map(|(_, table)| table),
            bias: self.bias(),
            scale: SCALE,
            recently_read: false,
        };
        let row = |(index, position): (usize, usize)| {
            let low = (self.low)(position);
            let count = position / self.block - low / self.block + 1;
            let content = QueryVariants::new(&forms, index * FORMS, 1, count);
            QueryRow { first_key: low, position, content, distance: far.get(index) }
        };
        let rows_at: Vec<_> = positions.enumerate().map(row).collect();
        let mut out = vec![f32::NAN; rows * h];
        attend(isa, &source, &rows_at, &mut out.chunks_exact_mut(h).collect::<Vec<_>>());
        out
    }

    fn check(&self, name: &str, firsts: &[usize], rows: usize) {
        let (h, all) = (self.layout.head_dim, pages(&self.layout, &self.keys, &self.values));
        // see `agrees_with_the_naive_twin_alone_and_in_company`
        let tolerance = if self.layout.dtype == Dtype::Int8 { 0.5 / 32767.0 * 64.0 } else { 5e-6 };
        for &first in firsts {
            for isa in Isa::all() {
                let together = self.attend(isa, &all, first..first + rows);
                for (row, out) in together.chunks(h).enumerate() {
                    let position = first + row;
                    let alone = self.attend(isa, &all, position..position + 1);
                    assert_eq!(alone, out, "{name} at {position}: company changes bits");
                    for (got, want) in out.iter().zip(self.naive(position)) {
                        let off = (f64::from(*got) - want).abs();
                        assert!(off < tolerance, "{name}, {:?} at {position}: {got} {want}", self.layout.dtype);
                    }
                }
            }
        }
    }
}

fn case(dtype: Dtype, head_dim: usize, positions: usize, low: Low) -> Case {
    let floats = |seed, count: usize| (0..count).map(|i| wave(seed, i)).collect::<Vec<_>>();
    let layout = PageLayout { dtype, layers: 1, heads: 1, head_dim, output: 0 };
    let (keys, values) = (floats(1, positions * head_dim), floats(2, positions * head_dim));
    let (distances, table, slope, block) = (None, Vec::new(), None, usize::MAX);
    Case { layout, keys, values, distances, table, slope, block, low }
}

#[test]
fn windows_agree_with_their_definition_alone_and_in_company() {
    for (dtype, (name, low)) in Dtype::ALL.into_iter().flat_map(|dtype| WINDOWS.map(|window| (dtype, window))) {
        // around blocks' edges, pages' edges, and the edge of a span
        case(dtype, 28, 1100, low).check(name, &[0, 13, 30, 60, 126, SPAN - 3, SPAN + 90, 1092], 7);
    }
}

#[test]
fn forms_meet_the_blocks_they_are_for() {
    for (dtype, (name, low)) in Dtype::ALL.into_iter().flat_map(|dtype| WINDOWS.map(|window| (dtype, window))) {
        for block in [32, 64] {
            Case { block, ..case(dtype, 24, 700, low) }.check(name, &[0, 29, 62, 127, 509, 640], 5);
        }
    }
}

#[test]
fn biases_and_distances_keep_to_their_windows() {
    for (dtype, (name, low)) in Dtype::ALL.into_iter().flat_map(|dtype| WINDOWS.map(|window| (dtype, window))) {
        let positions = 640;
        Case { slope: Some(0.05), ..case(dtype, 40, positions, low) }.check(name, &[0, 61, 510, 600], 5);
        let table = (0..70).map(|distance| wave(11, distance)).collect();
        Case { table, ..case(dtype, 40, positions, low) }.check(name, &[0, 61, 510, 600], 5);
        let rows: Vec<f32> = (0..1024 * 40).map(|i| wave(3, i)).collect();
        let table = DistanceTable::new(dtype, 1, 40, positions, Arc::new(Arena::new(1)));
        table.cover(positions, |range| rows[range.start * 40..range.end * 40].to_vec()).unwrap();
        Case { distances: Some((rows, table)), ..case(dtype, 40, positions, low) }.check(name, &[0, 61, 510, 600], 5);
    }
}

/// A key that no row's window shows may hold anything.
#[test]
fn what_lies_before_a_window_does_not_matter() {
    for dtype in Dtype::ALL {
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
