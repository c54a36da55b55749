//! Attention by locality-sensitive hashing (Reformer, Kitaev et al. 2020, §2).
//!
//! Queries and keys are the same vectors; keys are normalized to length one. Each round of random rotations assigns vectors to
//! buckets, sorts them by bucket and index, and cuts the order into chunks. In each round a vector attends to its own chunk and
//! the one before. A key that several rounds select counts that often, and all rounds share one softmax. A vector attends to
//! itself only if no other key is selected.
//!
//! A head's store: keys and values, (capacity, head_dim) each; for each round the order, (capacity), which lists the vectors'
//! indices; for each round the ranks, (capacity), which hold each vector's place in the order, and its bucket until
//! `finish`. Indices are below 2²⁴, so floats hold them exactly.

use crate::kernels::{
    Isa,
    attention::{HeadKeyValues, attend_selected},
};

/// Added to the mean square before the square root by which keys are divided.
const EPSILON: f32 = 1e-6;
/// Numbers of a rotated vector that are held at a time.
const STRIP: usize = 64;

/// Parameters of the hash rounds.
pub struct Hashing {
    /// Vectors of a chunk.
    pub chunk: usize,
    /// Hash rounds.
    pub rounds: usize,
    /// Buckets of a round: an even number.
    pub buckets: usize,
    /// Random rotations of each layer: (global heads, rounds, head_dim, buckets / 2).
    pub rotations: Vec<Vec<f32>>,
}

impl Hashing {
    pub(super) fn floats(&self, capacity: usize, dim: usize) -> usize {
        2 * capacity * (dim + self.rounds)
    }

    /// Returns the multiply-adds of one vector in one head, out of `count` vectors: rotations, scores, values.
    pub(super) fn multiply_adds(&self, count: usize, dim: usize) -> usize {
        self.rounds * dim * (self.buckets / 2 + 2 * count.min(2 * self.chunk))
    }

    /// Writes the vector at `index`, which is both query and key, and its value, (head_dim) each. `rotations` are one head's.
    pub(super) fn write(&self, store: &mut [f32], rotations: &[f32], index: usize, key: &[f32], value: &[f32]) {
        let dim = key.len();
        let capacity = store.len() / (2 * (dim + self.rounds));
        let (keys, rest) = store.split_at_mut(capacity * dim);
        let (values, rest) = rest.split_at_mut(capacity * dim);
        let buckets = &mut rest[self.rounds * capacity..];
        values[index * dim..][..dim].copy_from_slice(value);
        let square = key.iter().map(|x| x * x).sum::<f32>();
        let scale = 1.0 / ((square / dim as f32 + EPSILON).sqrt() * (dim as f32).sqrt());
        keys[index * dim..][..dim].iter_mut().zip(key).for_each(|(to, x)| *to = x * scale);
        for (round, rotation) in rotations.chunks_exact(dim * self.buckets / 2).enumerate() {
            buckets[round * capacity + index] = self.bucket(key, rotation) as f32;
        }
    }

    /// Returns one head's rotations in a layer: (rounds, head_dim, buckets / 2).
    pub(super) fn head_rotations(&self, layer: usize, head: usize, dim: usize) -> &[f32] {
        let size = self.rounds * dim * self.buckets / 2;
        &self.rotations[layer][head * size..][..size]
    }

    /// Returns the index of the largest number among the rotated vector and its negation; the first one of equals.
    fn bucket(&self, x: &[f32], rotation: &[f32]) -> usize {
        let half = self.buckets / 2;
        let mut largest = (0, f32::NEG_INFINITY);
        let mut smallest = (0, f32::INFINITY);
        for start in (0..half).step_by(STRIP) {
            let mut rotated = [0f32; STRIP];
            let rotated = &mut rotated[..STRIP.min(half - start)];
            for (x, row) in x.iter().zip(rotation.chunks_exact(half)) {
                rotated.iter_mut().zip(&row[start..]).for_each(|(sum, r)| *sum += x * r);
            }
            for (index, &x) in (start..).zip(rotated.iter()) {
                largest = if x > largest.1 { (index, x) } else { largest };
                smallest = if x < smallest.1 { (index, x) } else { smallest };
            }
        }
        if -smallest.1 > largest.1 { half + smallest.0 } else { largest.0 }
    }

    /// Sorts the `count` vectors of a store by bucket, after the last one.
    pub(super) fn finish(&self, store: &mut [f32], count: usize, dim: usize) {
        let capacity = store.len() / (2 * (dim + self.rounds));
        let (orders, ranks) = store[2 * capacity * dim..].split_at_mut(self.rounds * capacity);
        let mut sorted: Vec<u32> = Vec::with_capacity(count);
        for (order, ranks) in orders.chunks_exact_mut(capacity).zip(ranks.chunks_exact_mut(capacity)) {
            sorted.clear();
            sorted.extend(0..count as u32);
            sorted.sort_by_key(|&index| ranks[index as usize] as u32);
            for (rank, &index) in sorted.iter().enumerate() {
                order[rank] = index as f32;
                ranks[index as usize] = rank as f32;
            }
        }
    }

    /// Writes to `out` the attention output of the vector at `index` out of `count`; `query` and `out` are (head_dim).
    pub(super) fn attend(&self, isa: Isa, store: &[f32], count: usize, index: usize, query: &[f32], out: &mut [f32]) {
        let dim = query.len();
        let capacity = store.len() / (2 * (dim + self.rounds));
        let (keys, rest) = store.split_at(capacity * dim);
        let (values, rest) = rest.split_at(capacity * dim);
        let (orders, ranks) = rest.split_at(self.rounds * capacity);
        let last = (count - 1) / self.chunk;
        let chunk_range = |chunk: usize| chunk * self.chunk..count.min((chunk + 1) * self.chunk);
        let mut runs: Vec<&[f32]> = Vec::with_capacity(2 * self.rounds);
        for (order, ranks) in orders.chunks_exact(capacity).zip(ranks.chunks_exact(capacity)) {
            let own = ranks[index] as usize / self.chunk;
            let before = own.checked_sub(1).unwrap_or(last);
            if before != own {
                runs.push(&order[chunk_range(before)]);
            }
            runs.push(&order[chunk_range(own)]);
        }
        attend_selected(isa, HeadKeyValues { keys, values }, query, &runs, index as f32, out);
    }
}
