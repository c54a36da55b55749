//! How an encoder's vectors attend to each other across a whole document: each to all, or some heads to a block around them and
//! the others to all in a cheaper way ([`efficient`], [`hashed`]).
//!
//! A layer's [`Meeting`] says how its keys and values are kept and how queries meet them. Vectors leave theirs one by one in the
//! document's order; once all have, the meeting is closed, and then any query may come, in any order: its outcome depends on what
//! was left and on nothing else.

pub mod efficient;
pub mod hashed;

use super::encoder::Encoder;
use crate::kernels::{
    Compute,
    attention::{DenseLayout, attend_dense},
};
use hashed::Hashing;

/// Queries that one task takes.
const GROUP: usize = 16;

/// How vectors of a whole document attend to each other.
pub enum Attending {
    /// Each to all, by softmax of products.
    All,
    /// The first heads to all of their block, by softmax; the others in another way.
    Mixed {
        /// Of how many heads.
        local: usize,
        /// Vectors of a block; of the last one there may be fewer.
        block: usize,
        /// The other heads.
        rest: Rest,
    },
}

impl Attending {
    /// Of so many heads those, from the first on, whose queries meet a softmax over keys.
    pub fn scaled(&self, heads: usize) -> usize {
        match *self {
            Self::All => heads,
            Self::Mixed { local, .. } => local,
        }
    }
}

/// What stands for the softmax over all.
pub enum Rest {
    /// See [`efficient`].
    Efficient,
    /// See [`hashed`].
    Hashed(Hashing),
}

/// One layer's keys, values and queries. A store is of [`numbers`](Self::numbers) floats; of each head that attends to blocks, or to
/// all, keys and values as [`DenseLayout`] has them, a block behind the other; then what the other heads keep.
#[derive(Clone, Copy)]
pub struct Meeting<'a> {
    attending: &'a Attending,
    layer: usize,
    heads: usize,
    head_dim: usize,
    /// Keys that there is room for.
    room: usize,
}

impl Encoder {
    /// A layer's meeting of so many vectors.
    pub fn meeting(&self, layer: usize, room: usize) -> Meeting<'_> {
        Meeting { attending: &self.attending, layer, heads: self.heads, head_dim: self.head_dim, room }
    }
}

impl Meeting<'_> {
    /// Numbers of a store.
    pub fn numbers(&self) -> usize {
        let (local, rest) = (self.local(), self.heads - self.local().heads);
        let kept = match self.attending {
            Attending::All => 0,
            Attending::Mixed { rest: Rest::Efficient, .. } => rest * efficient::numbers(self.head_dim),
            Attending::Mixed { rest: Rest::Hashed(hashing), .. } => rest * hashing.numbers(self.room, self.head_dim),
        };
        self.blocks() * local.floats() + kept
    }

    /// Multiply-adds of `count` vectors that meet as many.
    pub fn multiply_adds(&self, count: usize) -> usize {
        let (local, dim) = (self.local(), self.head_dim);
        let rest = match self.attending {
            Attending::All => 0,
            Attending::Mixed { rest: Rest::Efficient, .. } => 2 * dim * dim,
            Attending::Mixed { rest: Rest::Hashed(hashing), .. } => hashing.multiply_adds(count, dim),
        };
        count * (2 * local.heads * local.capacity.min(count) * dim + (self.heads - local.heads) * rest)
    }

    /// What a block's keys and values look like, of the heads that attend to those.
    fn local(&self) -> DenseLayout {
        let (heads, room) = match *self.attending {
            Attending::All => (self.heads, self.room),
            Attending::Mixed { local, block, .. } => (local, block.min(self.room)),
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
        if let Attending::Mixed { rest: Rest::Efficient, .. } = self.attending {
            let rest = self.rest(store);
            rest.chunks_exact_mut(efficient::numbers(self.head_dim))
                .for_each(|head| efficient::open(self.head_dim, head));
        }
    }

    /// The vector at a place, the next one, leaves a key and a value, (heads, head_dim) each.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn write(&self, store: &mut [f32], place: usize, keys: &[f32], values: &[f32]) {
        let (local, dim) = (self.local(), self.head_dim);
        let own = local.heads * dim;
        let block = place / local.capacity * local.floats();
        local.write(&mut store[block..][..local.floats()], place % local.capacity, &keys[..own], &values[..own]);
        let Attending::Mixed { rest, .. } = self.attending else { return };
        let all = self.rest(store);
        let size = all.len() / (self.heads - local.heads);
        let pairs = keys[own..].chunks_exact(dim).zip(values[own..].chunks_exact(dim));
        for (head, (store, (key, value))) in all.chunks_exact_mut(size).zip(pairs).enumerate() {
            match rest {
                Rest::Efficient => efficient::write(store, key, value),
                Rest::Hashed(hashing) => hashing.write(store, (self.layer, head), (place, self.room), (key, value)),
            }
        }
    }

    /// All vectors, `count`, have left theirs.
    pub fn close(&self, compute: &Compute, store: &mut [f32], count: usize) {
        let (Attending::Mixed { rest, .. }, dim) = (self.attending, self.head_dim) else { return };
        let heads = self.heads - self.local().heads;
        let all = self.rest(store);
        let size = all.len() / heads;
        compute.pool.for_chunks(all, size, true, &|_, store| match rest {
            Rest::Efficient => efficient::close(dim, store),
            Rest::Hashed(hashing) => hashing.close(store, (count, self.room), dim),
        });
    }

    /// `out` (rows, heads, head_dim) = what `queries`, of the same shape, of the vectors from place `first` on, get of `count` keys.
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
        let Attending::Mixed { rest, .. } = self.attending else {
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
                    Rest::Efficient => efficient::attend(store, query, out),
                    Rest::Hashed(hashing) => {
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
