//! Attention across a whole document: softmax over all vectors, or a hybrid of local and global heads. Local heads attend to a
//! block; global heads attend to all vectors in a cheaper way ([`efficient`], [`hashed`]).
//!
//! A layer's [`EncoderAttention`] defines how its keys and values are stored and how queries read them. Vectors write keys and
//! values one by one in the document's order. After [`EncoderAttention::finish_keys`], queries may come in any order: an output
//! depends on what was written and on nothing else.

pub mod efficient;
pub mod hashed;

use crate::kernels::{
    Compute,
    attention::{DenseLayout, attend_dense},
};
use hashed::Hashing;

/// Queries of one task.
const GROUP: usize = 16;

/// Which vectors of a document attend to which, and how.
pub enum AttentionPattern {
    /// Every head attends to all vectors by softmax.
    Full,
    /// The first heads attend to their block by softmax, the others to the whole document in another way.
    Hybrid {
        /// Number of local heads.
        local: usize,
        /// Vectors of a block; the last block may have fewer.
        block: usize,
        /// Attention of the other heads.
        global: Global,
    },
}

impl AttentionPattern {
    /// Returns how many of `heads`, counted from the first, use a softmax over keys.
    pub fn softmax_heads(&self, heads: usize) -> usize {
        match *self {
            Self::Full => heads,
            Self::Hybrid { local, .. } => local,
        }
    }
}

/// Attention of global heads.
pub enum Global {
    /// See [`efficient`].
    Efficient,
    /// See [`hashed`].
    Hashed(Hashing),
}

/// One layer's attention. A store has [`floats`](Self::floats) numbers: for the softmax heads one [`DenseLayout`] a block,
/// then the stores of the global heads.
#[derive(Clone, Copy)]
pub struct EncoderAttention<'a> {
    pub(super) pattern: &'a AttentionPattern,
    pub(super) layer: usize,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    /// Maximum keys in a store.
    pub(super) capacity: usize,
}

impl EncoderAttention<'_> {
    /// Returns the floats of a store.
    pub fn floats(&self) -> usize {
        let local = self.local();
        let per_head = match self.pattern {
            AttentionPattern::Full => 0,
            AttentionPattern::Hybrid { global: Global::Efficient, .. } => efficient::floats(self.head_dim),
            AttentionPattern::Hybrid { global: Global::Hashed(hashing), .. } => {
                hashing.floats(self.capacity, self.head_dim)
            }
        };
        self.blocks() * local.floats() + (self.heads - local.heads) * per_head
    }

    /// Returns the multiply-adds of `count` vectors that attend to each other.
    pub fn multiply_adds(&self, count: usize) -> usize {
        let local = self.local();
        let dim = self.head_dim;
        let per_global_head = match self.pattern {
            AttentionPattern::Full => 0,
            AttentionPattern::Hybrid { global: Global::Efficient, .. } => 2 * dim * dim,
            AttentionPattern::Hybrid { global: Global::Hashed(hashing), .. } => hashing.multiply_adds(count, dim),
        };
        count * (2 * local.heads * local.capacity.min(count) * dim + (self.heads - local.heads) * per_global_head)
    }

    /// Returns the layout of one block's keys and values, in the heads that use softmax.
    fn local(&self) -> DenseLayout {
        let (heads, capacity) = match *self.pattern {
            AttentionPattern::Full => (self.heads, self.capacity),
            AttentionPattern::Hybrid { local, block, .. } => (local, block.min(self.capacity)),
        };
        DenseLayout { heads, head_dim: self.head_dim, capacity }
    }

    fn blocks(&self) -> usize {
        self.capacity.div_ceil(self.local().capacity.max(1))
    }

    /// Returns where the stores of the global heads start.
    fn global_offset(&self) -> usize {
        self.blocks() * self.local().floats()
    }

    /// Prepares a store of unspecified content for the first key.
    pub fn reset(&self, store: &mut [f32]) {
        if let AttentionPattern::Hybrid { global: Global::Efficient, .. } = self.pattern {
            for head in store[self.global_offset()..].chunks_exact_mut(efficient::floats(self.head_dim)) {
                efficient::reset(self.head_dim, head);
            }
        }
    }

    /// Writes the keys and values of the next vector, at `index`: (heads, head_dim) each. Panics if the store is full.
    pub fn write(&self, store: &mut [f32], index: usize, keys: &[f32], values: &[f32]) {
        let local = self.local();
        let dim = self.head_dim;
        let own = local.heads * dim;
        let block_store = &mut store[index / local.capacity * local.floats()..][..local.floats()];
        local.write(block_store, index % local.capacity, &keys[..own], &values[..own]);
        let AttentionPattern::Hybrid { global, .. } = self.pattern else { return };
        let stores = &mut store[self.global_offset()..];
        let size = stores.len() / (self.heads - local.heads);
        let pairs = keys[own..].chunks_exact(dim).zip(values[own..].chunks_exact(dim));
        for (head, (store, (key, value))) in stores.chunks_exact_mut(size).zip(pairs).enumerate() {
            match global {
                Global::Efficient => efficient::write(store, key, value),
                Global::Hashed(hashing) => {
                    hashing.write(store, hashing.head_rotations(self.layer, head, dim), index, key, value);
                }
            }
        }
    }

    /// Prepares a store of `count` keys for queries, after the last key.
    pub fn finish_keys(&self, compute: &Compute, store: &mut [f32], count: usize) {
        let AttentionPattern::Hybrid { global, .. } = self.pattern else { return };
        let dim = self.head_dim;
        let stores = &mut store[self.global_offset()..];
        let size = stores.len() / (self.heads - self.local().heads);
        compute.pool.for_chunks(stores, size, true, &|_, store| match global {
            Global::Efficient => efficient::finish(dim, store),
            Global::Hashed(hashing) => hashing.finish(store, count, dim),
        });
    }

    /// Writes the attention outputs, (vectors, heads, head_dim), of `queries` of the same shape over a store of `count` keys.
    ///
    /// Queries, scaled in softmax heads, belong to the vectors from index `first` on. Panics if the lengths do not fit.
    pub fn attend(
        &self,
        compute: &Compute,
        store: &[f32],
        count: usize,
        first: usize,
        queries: &[f32],
        outputs: &mut [f32],
    ) {
        let local = self.local();
        let AttentionPattern::Hybrid { global, .. } = self.pattern else {
            return attend_dense(compute, local, store, count, queries, outputs);
        };
        self.attend_locally(compute, store, count, first, queries, outputs);
        let dim = self.head_dim;
        let inner = self.heads * dim;
        let stores = &store[self.global_offset()..];
        let size = stores.len() / (self.heads - local.heads);
        let group = |group_start: usize, head: usize, outputs: &mut [&mut [f32]]| {
            let Some(global_head) = head.checked_sub(local.heads) else { return };
            let store = &stores[global_head * size..][..size];
            for (row, out) in (group_start..).zip(outputs) {
                let query = &queries[row * inner + head * dim..][..dim];
                match global {
                    Global::Efficient => efficient::attend(store, query, out),
                    Global::Hashed(hashing) => hashing.attend(compute.isa, store, count, first + row, query, out),
                }
            }
        };
        compute.pool.for_columns::<GROUP>(outputs, queries.len() / inner, self.heads, true, &group);
    }

    /// Writes the outputs of the local heads, a block at a time.
    fn attend_locally(
        &self,
        compute: &Compute,
        store: &[f32],
        count: usize,
        first: usize,
        queries: &[f32],
        outputs: &mut [f32],
    ) {
        let local = self.local();
        let inner = self.heads * self.head_dim;
        let own = local.heads * self.head_dim;
        if own == 0 {
            return;
        }
        let rows = queries.len() / inner;
        let mut row = 0;
        while row < rows {
            let block = (first + row) / local.capacity;
            let end = rows.min((block + 1) * local.capacity - first);
            let block_queries = queries[row * inner..end * inner].chunks_exact(inner);
            let local_queries: Vec<f32> = block_queries.flat_map(|query| &query[..own]).copied().collect(); // (rows, own)
            let mut local_outputs = vec![0.0; local_queries.len()];
            let keys = local.capacity.min(count - block * local.capacity);
            let store = &store[block * local.floats()..][..local.floats()];
            attend_dense(compute, local, store, keys, &local_queries, &mut local_outputs);
            for (out, local) in outputs[row * inner..].chunks_exact_mut(inner).zip(local_outputs.chunks_exact(own)) {
                out[..own].copy_from_slice(local);
            }
            row = end;
        }
    }
}
