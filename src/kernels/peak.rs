//! What this machine can do at most: bytes read a second, and multiply-adds a second, in the same vector width as the kernels
//! beside. Measurements are told beside these.

use super::{
    Isa, ThreadPool,
    isa::{Simd, WIDTH, multiversion},
    memory::{Arena, Region},
};
use crate::error::Result;

/// Vectors summed side by side: enough chains for memory beyond the nearest cache to be what is waited for.
const GROUP: usize = 4;
/// Parts of a stream for each thread, so that one that is busy elsewhere delays the others by one part.
const PARTS: usize = 4;

/// Numbers to read from the first to the last, in memory like that of weights and pages.
pub struct MemoryStream {
    region: Region,
}

impl MemoryStream {
    /// At least `bytes`, written once: memory that was never written reads as one shared page of zeros, which is no memory.
    ///
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize) -> Result<Self> {
        let mut region = Arena::new(1).allocate(bytes.max(1).next_multiple_of(GROUP * WIDTH * size_of::<f32>()))?;
        region.values_mut().fill(1f32);
        Ok(Self { region })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.region.bytes().len()
    }

    /// Reads all of it `times` times, each thread its own part: the sum of what was read, so that nothing can be left out.
    pub fn read(&self, isa: Isa, pool: &ThreadPool, times: usize) -> f32 {
        // a stream read several times is cut into one part a thread: the same one each time, as weights would be
        let parts = if times > 1 { pool.threads() } else { pool.threads() * PARTS };
        let numbers = self.region.values::<f32>();
        let part = numbers.len().div_ceil(parts).next_multiple_of(GROUP * WIDTH);
        let mut sums = vec![0.0; numbers.len().div_ceil(part)];
        pool.for_chunks(&mut sums, 1, true, &|index, sum| {
            let numbers = &numbers[index * part..];
            sum[0] = add(isa, &numbers[..part.min(numbers.len())], times);
        });
        sums.iter().sum()
    }
}

multiversion! {
    fn add(numbers: &[f32], times: usize) -> f32 = add_body
}

#[inline(always)]
fn add_body<S: Simd>(simd: S, numbers: &[f32], times: usize) -> f32 {
    let one = simd.splat(1.0);
    let mut sums = [simd.splat(0.0); GROUP];
    for _ in 0..times {
        for group in numbers.chunks_exact(GROUP * WIDTH) {
            for (numbers, sum) in group.chunks_exact(WIDTH).zip(&mut sums) {
                *sum = simd.madd(one, simd.load(numbers), *sum);
            }
        }
    }
    total(simd, &sums)
}

/// The most chains of multiply-adds, of sixteen lanes each: enough for none to be waited for. Where fewer go faster, those take turns.
const CHAINS: usize = 12;
/// Multiply-adds of one turn: one of each of so many chains.
const TURN: usize = CHAINS * WIDTH;

/// Does at least `count` multiply-adds on all threads without touching memory: how many they were, and a number that depends
/// on each of them.
pub fn multiply_adds(isa: Isa, pool: &ThreadPool, count: usize) -> (usize, f32) {
    let parts = pool.threads() * PARTS;
    let turns = count.div_ceil(parts * TURN);
    let mut ends = vec![0.0; parts];
    // the factor is hidden from the compiler, which could else foresee where the chains end
    let factor = std::hint::black_box(0.5);
    pool.for_chunks(&mut ends, 1, true, &|_, end| end[0] = chains(isa, factor, turns));
    (parts * turns * TURN, ends.iter().sum())
}

multiversion! {
    fn chains(factor: f32, turns: usize) -> f32 = chains_body
}

#[inline(always)]
fn chains_body<S: Simd>(simd: S, factor: f32, turns: usize) -> f32 {
    match S::CHAINS {
        6 => chains_of::<S, 6>(simd, factor, turns),
        _ => chains_of::<S, CHAINS>(simd, factor, turns),
    }
}

#[inline(always)]
fn chains_of<S: Simd, const C: usize>(simd: S, factor: f32, turns: usize) -> f32 {
    let (factor, addend) = (simd.splat(factor), simd.splat(1.0));
    // different starts, so that no chain is another's copy
    let mut chains: [S::V; C] = std::array::from_fn(|index| simd.splat(index as f32));
    for _ in 0..turns * (CHAINS / C) {
        for chain in &mut chains {
            *chain = simd.madd(*chain, factor, addend);
        }
    }
    total(simd, &chains) * (CHAINS / C) as f32
}

/// The sum of all numbers.
#[inline(always)]
fn total<S: Simd>(simd: S, vectors: &[S::V]) -> f32 {
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
    fn every_number_is_read_as_often_as_asked_for() {
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
    fn chains_end_where_their_recurrence_does() {
        let pool = ThreadPool::new(2);
        for isa in Isa::all() {
            let (count, sum) = multiply_adds(isa, &pool, 1_000_000);
            assert!((1_000_000..1_000_000 + 8 * TURN).contains(&count));
            // x = x/2 + 1 has one fixed point, 2
            assert_eq!(sum, (2 * TURN * pool.threads() * PARTS) as f32);
        }
    }
}
