//! Peak rates of the machine: bytes read per second and multiply-adds per second, with the vector width of the kernels.
//!
//! Reports compare measurements with these rates.

use super::{
    Isa, ThreadPool,
    isa::{Simd, WIDTH, multiversion},
    memory::{Arena, Region, cast, cast_mut},
};
use crate::error::Result;

/// Independent sums of vectors: enough for memory, not arithmetic latency, to be the bottleneck.
const GROUP: usize = 4;
/// Parts per thread, so that a thread whose core is busy delays the others by at most one part.
const PARTS: usize = 4;

/// A buffer to read sequentially, in the same kind of memory as weights and pages.
pub struct MemoryStream {
    region: Region,
}

impl MemoryStream {
    /// Allocates at least `bytes` bytes and writes them: unwritten memory is one page of zeros. Fails if memory runs out.
    pub fn new(bytes: usize) -> Result<Self> {
        let mut region = Arena::new(1).allocate(bytes.max(1).next_multiple_of(GROUP * WIDTH * size_of::<f32>()))?;
        cast_mut(region.bytes_mut()).fill(1f32);
        Ok(Self { region })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.region.bytes().len()
    }

    /// Reads the buffer `times` times on all threads and returns the sum, so that the compiler cannot omit reads.
    pub fn read(&self, isa: Isa, pool: &ThreadPool, times: usize) -> f32 {
        // if read several times, each thread reads the same part each time, like weights
        let parts = if times > 1 { pool.threads() } else { pool.threads() * PARTS };
        let numbers = cast::<f32>(self.region.bytes());
        let part = numbers.len().div_ceil(parts).next_multiple_of(GROUP * WIDTH);
        let mut sums = vec![0.0; numbers.len().div_ceil(part)];
        pool.for_chunks(&mut sums, 1, true, &|index, sum| {
            let numbers = &numbers[index * part..];
            sum[0] = sum_repeatedly(isa, &numbers[..part.min(numbers.len())], times);
        });
        sums.iter().sum()
    }
}

multiversion! {
    fn sum_repeatedly(numbers: &[f32], times: usize) -> f32 = sum_repeatedly_body
}

#[inline(always)]
fn sum_repeatedly_body<S: Simd>(simd: S, numbers: &[f32], times: usize) -> f32 {
    let one = simd.splat(1.0);
    let mut sums = [simd.splat(0.0); GROUP];
    for _ in 0..times {
        for group in numbers.chunks_exact(GROUP * WIDTH) {
            for (numbers, sum) in group.chunks_exact(WIDTH).zip(&mut sums) {
                *sum = simd.madd(one, simd.load(numbers), *sum);
            }
        }
    }
    sum_of_lanes(simd, &sums)
}

/// Independent chains of multiply-adds, of sixteen lanes each: enough to hide their latency. Instruction sets on which
/// fewer chains are faster run those repeatedly.
const CHAINS: usize = 12;
/// Multiply-adds of one turn: one per lane of each chain.
const TURN: usize = CHAINS * WIDTH;

/// Runs at least `count` multiply-adds on all threads without accessing memory. Returns their number and a result of all.
pub fn multiply_adds(isa: Isa, pool: &ThreadPool, count: usize) -> (usize, f32) {
    let parts = pool.threads() * PARTS;
    let turns = count.div_ceil(parts * TURN);
    let mut results = vec![0.0; parts];
    // the compiler must not know the factor, or it could compute the result
    let factor = std::hint::black_box(0.5);
    pool.for_chunks(&mut results, 1, true, &|_, result| result[0] = run_chains(isa, factor, turns));
    (parts * turns * TURN, results.iter().sum())
}

multiversion! {
    fn run_chains(factor: f32, turns: usize) -> f32 = run_chains_body
}

#[inline(always)]
fn run_chains_body<S: Simd>(simd: S, factor: f32, turns: usize) -> f32 {
    match S::CHAINS {
        6 => chains_of::<S, 6>(simd, factor, turns),
        _ => chains_of::<S, CHAINS>(simd, factor, turns),
    }
}

#[inline(always)]
fn chains_of<S: Simd, const C: usize>(simd: S, factor: f32, turns: usize) -> f32 {
    let factor = simd.splat(factor);
    let addend = simd.splat(1.0);
    // different initial values, so that the compiler cannot merge chains
    let mut chains: [S::V; C] = std::array::from_fn(|index| simd.splat(index as f32));
    for _ in 0..turns * (CHAINS / C) {
        for chain in &mut chains {
            *chain = simd.madd(*chain, factor, addend);
        }
    }
    sum_of_lanes(simd, &chains) * (CHAINS / C) as f32
}

/// Returns the sum of all lanes.
#[inline(always)]
fn sum_of_lanes<S: Simd>(simd: S, vectors: &[S::V]) -> f32 {
    let mut sum = 0.0;
    for &vector in vectors {
        let mut numbers = [0.0; WIDTH];
        simd.store(vector, &mut numbers);
        sum += numbers.iter().sum::<f32>();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_the_requested_number_of_times() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            for (bytes, times) in [(0, 1), (1, 2), (4096, 1), (4100, 3), (100_000, 1), (100_000, 5)] {
                let stream = MemoryStream::new(bytes).unwrap();
                assert!(stream.bytes() >= bytes && stream.bytes() < bytes + 2 * GROUP * WIDTH * size_of::<f32>());
                for isa in Isa::all() {
                    let numbers = (stream.bytes() / size_of::<f32>() * times) as f32;
                    assert_eq!(stream.read(isa, &pool, times), numbers, "{bytes} bytes, {times} times");
                }
            }
        }
    }

    #[test]
    fn chains_converge_to_the_fixed_point() {
        let pool = ThreadPool::new(2);
        for isa in Isa::all() {
            let (count, sum) = multiply_adds(isa, &pool, 1_000_000);
            assert!((1_000_000..1_000_000 + 8 * TURN).contains(&count));
            // x = x/2 + 1 has one fixed point, 2
            assert_eq!(sum, (2 * TURN * pool.threads() * PARTS) as f32);
        }
    }
}
