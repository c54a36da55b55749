//! Benchmark of soft top-k compared with hard top-k. `weir bench summarize` measures whole encoders.
//!
//! Run with `cargo bench --bench pyramidion`, and compare figures of one run only. It repeats appendix B.5 of the paper: vectors
//! are uniform in [−1, 1] and scores in [0, 1]. It prints the normalized Chamfer cosine similarity of both selections,
//! nCCS = 1/k Σ_i max_j cos(y_i, ŷ_j), per n and k.
#![allow(clippy::expect_used, reason = "a benchmark without its input cannot run")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::time::Duration;
use weir::kernels::pages::PagePool;
use weir::models::nn::kv_cache::PagedVectors;
use weir::models::nn::topk::{PooledVectors, PoolerInput, PoolerKind};

/// Width of the vectors of appendix B.5, which the paper does not specify.
const DIM: usize = 64;

const SOFT: PoolerKind = PoolerKind::Halving { flip_right: true, sort_back: true };

const HARD: PoolerKind = PoolerKind::HardTopK { sort_back: true };

/// Returns a pseudorandom number, uniform in [0, 1).
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1u64 << 24) as f32
}

/// Input of a pooling.
struct TopKInput {
    vectors: PagedVectors,
    indices: Vec<u32>,
    scores: Vec<f32>,
}

fn random_input(count: usize, seed: u64) -> TopKInput {
    let mut state = seed;
    let mut vectors = PagedVectors::new(PagePool::new(1 << 30), DIM, 512);
    vectors.extend(count).expect("memory for the vectors");
    for page in 0..vectors.pages() {
        let numbers = vectors.page_mut(page).expect("a page of them");
        numbers.iter_mut().for_each(|x| *x = 2.0 * uniform(&mut state) - 1.0);
    }
    TopKInput {
        vectors,
        indices: (0..count as u32).collect(),
        scores: (0..count).map(|_| uniform(&mut state)).collect(),
    }
}

fn pooled(kind: PoolerKind, input: &TopKInput, kept: usize) -> PooledVectors {
    let pool = PagePool::new(1 << 30);
    let pooler = kind.pooler(input.indices.len(), kept).expect("lengths that halve");
    let new_vectors = || PagedVectors::new(pool.clone(), DIM, 512);
    let pooler_input = PoolerInput { vectors: &input.vectors, index: &input.indices };
    pooler.pool(&pooler_input, input.scores.clone(), &new_vectors).expect("memory for the pooled vectors")
}

/// Returns the normalized Chamfer cosine similarity of the soft and the hard selection.
fn nccs(soft: &PagedVectors, hard: &PagedVectors) -> f64 {
    let unit = |row: &[f32]| -> Vec<f64> {
        let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        row.iter().map(|x| f64::from(*x) / length).collect()
    };
    let hard: Vec<_> = (0..hard.len()).map(|row| unit(hard.vector(row))).collect();
    let nearest = |row: usize| {
        let soft = unit(soft.vector(row));
        hard.iter().map(|hard| hard.iter().zip(&soft).map(|(a, b)| a * b).sum::<f64>()).fold(f64::MIN, f64::max)
    };
    (0..soft.len()).map(nearest).sum::<f64>() / soft.len() as f64
}

fn topk(c: &mut Criterion) {
    let mut group = c.benchmark_group("top-k");
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    for count in [256, 1024, 4096, 8192] {
        for kept in [64, 256, 1024].into_iter().filter(|kept| *kept < count) {
            let input = random_input(count, 7);
            let [soft, hard] = [SOFT, HARD].map(|kind| pooled(kind, &input, kept));
            eprintln!("n {count}, k {kept}: nCCS {:.3}", nccs(&soft.vectors, &hard.vectors));
            for (name, kind) in [("soft", SOFT), ("hard", HARD)] {
                let id = BenchmarkId::new(name, format!("{count} to {kept}"));
                group.bench_function(id, |bencher| bencher.iter(|| pooled(kind, &input, kept)));
            }
        }
    }
}

criterion_group!(benches, topk);

criterion_main!(benches);
