//! Benchmark of decode steps and prefill of the paper's 41M shapes, pooled compared with vanilla.
//!
//! The text is English, so that boundaries are as frequent as in real text. Weights are random, because time does not depend
//! on them. Run with `cargo bench --bench hourglass`, and compare figures of one run only.
#![allow(clippy::expect_used, reason = "a benchmark without its model cannot run")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::{path::Path, sync::Arc, time::Duration};
use weir::models::{
    contract::{BoundaryOptions, Model, SequenceRow, Want, advance},
    load::{Settings, init, load},
};

/// Validation text of the shipped model's corpus.
const ENGLISH: &str = include_str!("english.txt");

/// Symbols of a sequence when timing starts.
const CONTEXT: usize = 512;

/// Timed symbols before a sequence is rolled back.
const RUN: usize = 256;

const SHAPES: [&str; 2] = ["hourglass-41m", "vanilla-41m"];

fn model(shape: &str, root: &Path) -> Arc<dyn Model> {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("models/shapes/{shape}.json"));
    let to = root.join(shape);
    init(&config, &to, 1, false).expect("a checkpoint of the shape");
    load(&to, &Settings::default()).expect("a loaded model")
}

fn prefilled(model: &dyn Model, symbols: &[u32]) -> SequenceRow {
    let mut row = SequenceRow::new(model.begin(BoundaryOptions::default()).expect("a sequence"));
    row.set(&symbols[..CONTEXT], Want::Nothing);
    let rows = std::slice::from_mut(&mut row);
    advance(model, rows, &[0], &mut model.scratch()).expect("a step");
    row
}

fn decode(c: &mut Criterion) {
    let root = tempfile::tempdir().expect("a folder");
    let mut group = c.benchmark_group("decode step, context 512");
    group.sample_size(10).measurement_time(Duration::from_secs(8));
    let models: Vec<_> = SHAPES.iter().map(|shape| (shape, model(shape, root.path()))).collect();
    for batch in [1, 8] {
        group.throughput(Throughput::Elements(batch as u64));
        for (shape, model) in &models {
            let symbols = model.card().vocabulary.encode("text", ENGLISH, usize::MAX).expect("English");
            let indices: Vec<usize> = (0..batch).collect();
            // rows start at different positions of the text, so that their boundaries do not coincide
            let mut rows: Vec<SequenceRow> =
                indices.iter().map(|index| prefilled(&**model, &symbols[index * 7..])).collect();
            let mut scratch = model.scratch();
            let mut fed = 0;
            group.bench_function(BenchmarkId::new(**shape, format!("batch {batch}")), |bencher| {
                bencher.iter(|| {
                    if fed == RUN {
                        rows.iter_mut().for_each(|row| row.state.rollback(CONTEXT).expect("a rollback"));
                        fed = 0;
                    }
                    for (index, row) in rows.iter_mut().enumerate() {
                        let symbol = symbols[index * 7 + CONTEXT + fed];
                        row.set(&[symbol], Want::Last);
                    }
                    advance(&**model, &mut rows, &indices, &mut scratch).expect("a step");
                    fed += 1;
                });
            });
        }
    }
    group.finish();
}

fn prefill(c: &mut Criterion) {
    let root = tempfile::tempdir().expect("a folder");
    let mut group = c.benchmark_group("prefill of 512");
    group.sample_size(10).throughput(Throughput::Elements(CONTEXT as u64));
    for shape in SHAPES {
        let model = model(shape, root.path());
        let symbols = model.card().vocabulary.encode("text", ENGLISH, usize::MAX).expect("English");
        group.bench_function(shape, |bencher| bencher.iter(|| prefilled(&*model, &symbols)));
    }
    group.finish();
}

criterion_group!(benches, decode, prefill);

criterion_main!(benches);
