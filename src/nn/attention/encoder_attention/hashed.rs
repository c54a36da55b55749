//! Attention by locality-sensitive hashing (Reformer, Kitaev et al. 2020, §2): queries and keys are the same vectors, keys made as
//! long as one; each round of random rotations puts vectors into buckets, sorts them by bucket and position, and cuts the order
//! into chunks. A vector meets those of its own chunk and of the one before, in each round; those that it meets in several rounds
//! count as often, and all rounds share one softmax. It meets itself only where there is nobody else.
//!
//! A head's store: keys and values, (room, head_dim) each; for each round the order, (room): the vectors' positions, sorted; for each
//! round the ranks, (room): where in the order the vector of each position is, and until all have come its bucket. Places are below 2²⁴, so
//! floats hold them exactly.

use crate::kernels::{
    Isa,
    attention::{HeadKeyValues, attend_selected},
};

/// Added to the mean square that keys are divided by the root of.
const EPSILON: f32 = 1e-6;
/// Numbers of a rotated vector that are held at a time.
const STRIP: usize = 64;

/// What vectors are hashed by.
pub struct Hashing {
    /// Vectors of a chunk.
    pub chunk: usize,
    /// Rounds.
    pub rounds: usize,
    /// Buckets of a round: an even number.
    pub buckets: usize,
    /// For each layer (heads, rounds, head_dim, buckets / 2), of the heads that hash.
    pub rotations: Vec<Vec<f32>>,
}

impl Hashing {
    /// Numbers of a head's store.
    pub(super) fn numbers(&self, room: usize, dim: usize) -> usize {
        2 * room * (dim + self.rounds)
    }

    /// Multiply-adds of one head of one of `count` vectors: rotations, scores, values.
    pub(super) fn multiply_adds(&self, count: usize, dim: usize) -> usize {
        self.rounds * dim * (self.buckets / 2 + 2 * count.min(2 * self.chunk))
    }

    /// A vector, (head_dim), which is query and key, and its value.
    pub(super) fn write(
        &self,
        store: &mut [f32],
        (layer, head): (usize, usize),
        (position, room): (usize, usize),
        (key, value): (&[f32], &[f32]),
    ) {
        let dim = key.len();
        let (keys, rest) = store.split_at_mut(room * dim);
        let (values, rest) = rest.split_at_mut(room * dim);
        let buckets = &mut rest[self.rounds * room..];
        values[position * dim..][..dim].copy_from_slice(value);
        let square = key.iter().map(|x| x * x).sum::<f32>();
        let scale = 1.0 / ((square / dim as f32 + EPSILON).sqrt() * (dim as f32).sqrt());
        keys[position * dim..][..dim].iter_mut().zip(key).for_each(|(to, x)| *to = x * scale);
        let size = self.rounds * dim * self.buckets / 2;
        let of_rounds = self.rotations[layer][head * size..][..size].chunks_exact(dim * self.buckets / 2);
        for (round, rotation) in of_rounds.enumerate() {
            buckets[round * room + position] = self.bucket(key, rotation) as f32;
        }
    }

    /// The largest of the rotated vector's numbers and of those with their signs turned, the first one of equals.
    fn bucket(&self, x: &[f32], rotation: &[f32]) -> usize {
        let half = self.buckets / 2;
        let (mut largest, mut smallest) = ((0, f32::NEG_INFINITY), (0, f32::INFINITY));
        for from in (0..half).step_by(STRIP) {
            let mut rotated = [0f32; STRIP];
            let rotated = &mut rotated[..STRIP.min(half - from)];
            for (x, row) in x.iter().zip(rotation.chunks_exact(half)) {
                rotated.iter_mut().zip(&row[from..]).for_each(|(sum, r)| *sum += x * r);
            }
            for (at, &x) in (from..).zip(rotated.iter()) {
                largest = if x > largest.1 { (at, x) } else { largest };
                smallest = if x < smallest.1 { (at, x) } else { smallest };
            }
        }
        if -smallest.1 > largest.1 { half + smallest.0 } else { largest.0 }
    }

    /// All `count` vectors have come: they are put into order.
    pub(super) fn close(&self, store: &mut [f32], (count, room): (usize, usize), dim: usize) {
        let (orders, ranks) = store[2 * room * dim..].split_at_mut(self.rounds * room);
        let mut sorted: Vec<u32> = Vec::with_capacity(count);
        for (order, ranks) in orders.chunks_exact_mut(room).zip(ranks.chunks_exact_mut(room)) {
            sorted.clear();
            sorted.extend(0..count as u32);
            sorted.sort_by_key(|&position| ranks[position as usize] as u32);
            for (rank, &position) in sorted.iter().enumerate() {
                order[rank] = position as f32;
                ranks[position as usize] = rank as f32;
            }
        }
    }

    /// `out` = what the vector of a position gets; all (head_dim).
    pub(super) fn attend(
        &self,
        isa: Isa,
        (store, count, room): (&[f32], usize, usize),
        (position, query): (usize, &[f32]),
        out: &mut [f32],
    ) {
        let dim = query.len();
        let (keys, rest) = store.split_at(room * dim);
        let (values, rest) = rest.split_at(room * dim);
        let (orders, ranks) = rest.split_at(self.rounds * room);
        let last = (count - 1) / self.chunk;
        let chunk_of = |order: &'_ [f32], chunk: usize| chunk * self.chunk..order.len().min((chunk + 1) * self.chunk);
        let mut runs: Vec<&[f32]> = Vec::with_capacity(2 * self.rounds);
        for (order, ranks) in orders.chunks_exact(room).zip(ranks.chunks_exact(room)) {
            let (order, own) = (&order[..count], ranks[position] as usize / self.chunk);
            let before = own.checked_sub(1).unwrap_or(last);
            if before != own {
                runs.push(&order[chunk_of(order, before)]);
            }
            runs.push(&order[chunk_of(order, own)]);
        }
        attend_selected(isa, HeadKeyValues { keys, values }, query, &runs, position as f32, out);
    }
}
