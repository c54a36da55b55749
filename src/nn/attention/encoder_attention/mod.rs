//! How an encoder's vectors attend to each other across a whole document: each to all, or some heads to a block around them and
//! the others to all in a cheaper way ([`efficient`], [`hashed`]).
//!
//! A layer's [`EncoderAttention`] says how its keys and values are kept and how queries meet them. Vectors leave theirs one by one in the
//! document's order; once all have, the attention is closed, and then any query may come, in any order: its outcome depends on what
//! was left and on nothing else.

pub mod efficient;
pub mod hashed;

use crate::kernels::{
    Compute,
    attention::{DenseLayout, attend_dense},
};
use hashed::Hashing;

/// Queries that one task takes.
const GROUP: usize = 16;

/// How vectors of a whole document attend to each other.
pub enum AttentionPattern {
    /// Each to all, by softmax of products.
    Full,
    /// The first heads to all of their block, by softmax; the others in another way.
    Hybrid {
        /// Of how many heads.
        local: usize,
        /// Vectors of a block; of the last one there may be fewer.
        block: usize,
        /// The other heads.
        rest: Global,
    },
}

impl AttentionPattern {
    /// Of so many heads those, from the first on, whose queries meet a softmax over keys.
    pub fn scaled(&self, heads: usize) -> usize {
        match *self {
            Self::Full => heads,
            Self::Hybrid { local, .. } => local,
        }
    }
}

/// What stands for the softmax over all.
pub enum Global {
    /// See [`efficient`].
    Efficient,
    /// See [`hashed`].
    Hashed(Hashing),
}

/// One layer's keys, values and queries. A store is of [`numbers`](Self::numbers) floats; of each head that attends to blocks, or to
/// all, keys and values as [`DenseLayout`] has them, a block behind the other; then what the other heads keep.
#[derive(Clone, Copy)]
pub struct EncoderAttention<'a> {
    pub(super) attending: &'a AttentionPattern,
    pub(super) layer: usize,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    /// Keys that there is room for.
    pub(super) room: usize,
}

impl EncoderAttention<'_> {
    /// Numbers of a store.
    pub fn numbers(&self) -> usize {
        let (local, rest) = (self.local(), self.heads - self.local().heads);
        let kept = match self.attending {
            AttentionPattern::Full => 0,
            AttentionPattern::Hybrid { rest: Global::Efficient, .. } => rest * efficient::numbers(self.head_dim),
            AttentionPattern::Hybrid { rest: Global::Hashed(hashing), .. } => {
                rest * hashing.numbers(self.room, self.head_dim)
            }
        };
        self.blocks() * local.floats() + kept
    }

    /// Multiply-adds of `count` vectors that meet as many.
    pub fn multiply_adds(&self, count: usize) -> usize {
        let (local, dim) = (self.local(), self.head_dim);
        let rest = match self.attending {
            AttentionPattern::Full => 0,
            AttentionPattern::Hybrid { rest: Global::Efficient, .. } => 2 * dim * dim,
            AttentionPattern::Hybrid { rest: Global::Hashed(hashing), .. } => hashing.multiply_adds(count, dim),
        };
        count * (2 * local.heads * local.capacity.min(count) * dim + (self.heads - local.heads) * rest)
    }

    /// What a block's keys and values look like, of the heads that attend to those.
    fn local(&self) -> DenseLayout {
        let (heads, room) = match *self.attending {
            AttentionPattern::Full => (self.heads, self.room),
            AttentionPattern::Hybrid { local, block, .. } => (local, block.min(self.room)),
        };
        DenseLayout { heads, head_dim: self.head_dim, capacity: room }
    }

    fn blocks(&self) -> usize {
        self.room.div_ceil(self.local().capacity.max(1))
    }

    /// The stores of the other heads, one behind the other.
    fn rest<'s>(&self, store: &'s mut [f32]) -> &'s mut [f32] {
        let from = self.blocks() * self.local().floats();
        &mut store[from..]
    }

    /// Readies a store, which holds whatever, for keys.
    pub fn open(&self, store: &mut [f32]) {
        if let AttentionPattern::Hybrid { rest: Global::Efficient, .. } = self.attending {
            let rest = self.rest(store);
            rest.chunks_exact_mut(efficient::numbers(self.head_dim))
                .for_each(|head| efficient::open(self.head_dim, head));
        }
    }

    /// The vector at a position, the next one, leaves a key and a value, (heads, head_dim) each.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn write(&self, store: &mut [f32], position: usize, keys: &[f32], values: &[f32]) {
        let (local, dim) = (self.local(), self.head_dim);
        let own = local.heads * dim;
        let block = position / local.capacity * local.floats();
        local.write(&mut store[block..][..local.floats()], position % local.capacity, &keys[..own], &values[..own]);
        let AttentionPattern::Hybrid { rest, .. } = self.attending else { return };
        let all = self.rest(store);
        let size = all.len() / (self.heads - local.heads);
        let pairs = keys[own..].chunks_exact(dim).zip(values[own..].chunks_exact(dim));
        for (head, (store, (key, value))) in all.chunks_exact_mut(size).zip(pairs).enumerate() {
            match rest {
                Global::Efficient => efficient::write(store, key, value),
                Global::Hashed(hashing) => {
                    hashing.write(store, (self.layer, head), (position, self.room), (key, value))
                }
            }
        }
    }

    /// All vectors, `count`, have left theirs.
    pub fn close(&self, compute: &Compute, store: &mut [f32], count: usize) {
        let (AttentionPattern::Hybrid { rest, .. }, dim) = (self.attending, self.head_dim) else { return };
        let heads = self.heads - self.local().heads;
        let all = self.rest(store);
        let size = all.len() / heads;
        compute.pool.for_chunks(all, size, true, &|_, store| match rest {
            Global::Efficient => efficient::close(dim, store),
            Global::Hashed(hashing) => hashing.close(store, (count, self.room), dim),
        });
    }

    /// `out` (rows, heads, head_dim) = what `queries`, of the same shape, of the vectors from position `first` on, get of `count` keys.
    /// Queries of heads that attend by softmax over a block, or over all, are scaled already.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn attend(
        &self,
        compute: &Compute,
        (store, count): (&[f32], usize),
        (first, queries): (usize, &[f32]),
        out: &mut [f32],
    ) {
        let local = self.local();
        let AttentionPattern::Hybrid { rest, .. } = self.attending else {
            return attend_dense(compute, local, store, count, queries, out);
        };
        self.attend_locally(compute, (store, count), (first, queries), out);
        let (inner, dim) = (self.heads * self.head_dim, self.head_dim);
        let all = &store[self.blocks() * local.floats()..];
        let size = all.len() / (self.heads - local.heads);
        compute.pool.for_columns::<GROUP>(out, queries.len() / inner, self.heads, true, &|row, head, outs| {
            let Some(other) = head.checked_sub(local.heads) else { return };
            let store = &all[other * size..][..size];
            for (row, out) in (row..).zip(outs) {
                let query = &queries[row * inner + head * dim..][..dim];
                match rest {
                    Global::Efficient => efficient::attend(store, query, out),
                    Global::Hashed(hashing) => {
                        hashing.attend(compute.isa, (store, count, self.room), (first + row, query), out);
                    }
                }
            }
        });
    }

    /// The heads that attend to blocks.
    fn attend_locally(
        &self,
        compute: &Compute,
        (store, count): (&[f32], usize),
        (first, queries): (usize, &[f32]),
        out: &mut [f32],
    ) {
        let (local, inner) = (self.local(), self.heads * self.head_dim);
        let (own, rows) = (local.heads * self.head_dim, queries.len() / inner);
        if own == 0 {
            return;
        }
        let mut row = 0;
        while row < rows {
            let block = (first + row) / local.capacity;
            let end = rows.min((block + 1) * local.capacity - first);
            let asking: Vec<f32> = queries[row * inner..end * inner]
                .chunks_exact(inner)
                .flat_map(|query| &query[..own])
                .copied()
                .collect();
            let mut mixed = vec![0.0; asking.len()];
            let keys = local.capacity.min(count - block * local.capacity);
            let store = &store[block * local.floats()..][..local.floats()];
            attend_dense(compute, local, store, keys, &asking, &mut mixed);
            for (out, mixed) in out[row * inner..].chunks_exact_mut(inner).zip(mixed.chunks_exact(own)) {
                out[..own].copy_from_slice(mixed);
            }
            row = end;
        }
    }
}
