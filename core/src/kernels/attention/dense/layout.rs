//! Layout of the keys and values of dense attention.

use crate::kernels::{LANES, isa::WIDTH};

/// Layout of a store: the keys of each head, (panels of sixteen keys, head_dim, 16), then the values of each head,
/// (keys, head_dim padded to whole vectors). Padding is unspecified and does not affect results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseLayout {
    /// Number of heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Maximum keys.
    pub capacity: usize,
}

impl DenseLayout {
    /// Returns the number of floats of a store.
    pub fn floats(&self) -> usize {
        self.values_offset() + self.heads * self.capacity * self.padded_dim()
    }

    pub(super) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(WIDTH)
    }

    pub(super) fn head_keys(&self) -> usize {
        self.capacity.next_multiple_of(LANES) * self.head_dim
    }

    pub(super) fn values_offset(&self) -> usize {
        self.heads * self.head_keys()
    }

    /// Adds the attention weights of the first `count` keys of a head to `sums` (count), summed over scaled queries,
    /// (head_dim) each: column sums of the attention matrix. Each is one sum over the queries, in order. Panics if the
    /// store has fewer than `sums.len()` keys.
    pub fn add_weights<'a>(
        &self,
        store: &[f32],
        head: usize,
        queries: impl Iterator<Item = &'a [f32]>,
        sums: &mut [f32],
    ) {
        let keys = &store[head * self.head_keys()..][..sums.len().next_multiple_of(LANES) * self.head_dim];
        let mut weights = vec![[0f32; LANES]; keys.len() / (LANES * self.head_dim)];
        for query in queries {
            for (scores, panel) in weights.iter_mut().zip(keys.chunks_exact(LANES * self.head_dim)) {
                *scores = [0.0; LANES];
                for (lanes, x) in panel.chunks_exact(LANES).zip(query) {
                    scores.iter_mut().zip(lanes).for_each(|(score, key)| *score += x * key);
                }
            }
            let weights = &mut weights.as_flattened_mut()[..sums.len()];
            let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|score| *score = (*score - top).exp());
            let factor = 1.0 / weights.iter().sum::<f32>();
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += factor * *weight);
        }
    }

    /// Writes the keys and values at index `index`, (heads, head_dim) each. Panics if `index` is not below the capacity.
    pub fn write(&self, store: &mut [f32], index: usize, keys: &[f32], values: &[f32]) {
        assert!(index < self.capacity);
        let (all_keys, all_values) = store.split_at_mut(self.values_offset());
        let heads = all_keys.chunks_exact_mut(self.head_keys()).zip(keys.chunks_exact(self.head_dim));
        for (all, key) in heads {
            let panel = &mut all[index / LANES * LANES * self.head_dim..][..LANES * self.head_dim];
            for (lanes, &x) in panel.chunks_exact_mut(LANES).zip(key) {
                lanes[index % LANES] = x;
            }
        }
        let heads =
            all_values.chunks_exact_mut(self.capacity * self.padded_dim()).zip(values.chunks_exact(self.head_dim));
        for (all, value) in heads {
            all[index * self.padded_dim()..][..self.head_dim].copy_from_slice(value);
        }
    }
}
