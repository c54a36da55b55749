//! Encoder layers: each vector attends to all vectors of its block, or of the document, on both sides.
//!
//! Vectors in blocks go through a layer in one call, in place ([`EncoderStack::blocks`]). Where vectors attend to the whole
//! document, a layer has two halves: [`EncoderStack::project`] returns queries, keys and values; when all keys are written in
//! the document's order, [`EncoderStack::finish`] takes the vectors through the rest, in any order. A layer's
//! [`EncoderAttention`] defines how keys and values are stored and read.

use crate::nn::attention::{Layer, NormOrder, add, copy_norm};
use crate::nn::{Activation, sized};
use weir_kernels::attention::{DenseLayout, HeadKeyValues, attend_dense, attend_selected};
use weir_kernels::linear::{Epilogue, QuantizedRows};
use weir_kernels::rowwise::add_layer_norm;
use weir_kernels::{Compute, Isa};

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
    /// Keys and values reduce to one matrix.
    Efficient,
    /// Keys are selected by hashing.
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
            AttentionPattern::Hybrid { global: Global::Efficient, .. } => floats(self.head_dim),
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
            for head in store[self.global_offset()..].chunks_exact_mut(floats(self.head_dim)) {
                reset(self.head_dim, head);
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
                Global::Efficient => write(store, key, value),
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
            Global::Efficient => finish(dim, store),
            Global::Hashed(hashing) => hashing.finish(store, count, dim),
        });
    }

    /// Writes the attention outputs, (vectors, heads, head_dim), of `queries` of the same shape, scaled in softmax heads, over a
    /// store of `count` keys. Queries belong to the vectors from index `first` on. Panics if the lengths do not fit.
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
                    Global::Efficient => attend(store, query, out),
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

// Efficient attention (Shen et al. 2021, §3.2): a softmax over the numbers of each query, and one over all keys for each of
// their numbers. A head's store holds, for each number of a key, the largest value seen and the sum of exponentials, (head_dim)
// each, and then the matrix that keys and values reduce to, (head_dim, head_dim). Nothing is scaled, as published.

fn floats(dim: usize) -> usize {
    dim * (dim + 2)
}

fn reset(dim: usize, store: &mut [f32]) {
    let (maxima, rest) = store.split_at_mut(dim);
    maxima.fill(f32::NEG_INFINITY);
    rest.fill(0.0);
}

/// Adds a key and its value, (head_dim) each.
fn write(store: &mut [f32], key: &[f32], value: &[f32]) {
    let (maxima, rest) = store.split_at_mut(key.len());
    let (sums, matrix) = rest.split_at_mut(key.len());
    let rows = maxima.iter_mut().zip(sums).zip(matrix.chunks_exact_mut(key.len())).zip(key);
    for (((max, sum), row), &number) in rows {
        if number > *max {
            let shrink = (*max - number).exp();
            *max = number;
            *sum *= shrink;
            row.iter_mut().for_each(|x| *x *= shrink);
        }
        // A NaN in a key makes the whole row NaN.
        let weight = (number - *max).exp();
        *sum += weight;
        row.iter_mut().zip(value).for_each(|(x, value)| *x += weight * value);
    }
}

/// Divides the matrix's rows by their sums, after the last key.
fn finish(dim: usize, store: &mut [f32]) {
    let (sums, matrix) = store[dim..].split_at_mut(dim);
    for (sum, row) in sums.iter().zip(matrix.chunks_exact_mut(dim)) {
        row.iter_mut().for_each(|x| *x /= sum);
    }
}

/// Writes to `out` the matrix's rows, weighted by the softmax over the query's numbers; all (head_dim).
fn attend(store: &[f32], query: &[f32], out: &mut [f32]) {
    let dim = query.len();
    let max = query.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    out.fill(0.0);
    for (number, row) in query.iter().zip(store[2 * dim..].chunks_exact(dim)) {
        let weight = (number - max).exp();
        total += weight;
        out.iter_mut().zip(row).for_each(|(out, x)| *out += weight * x);
    }
    out.iter_mut().for_each(|x| *x /= total);
}

// Attention by locality-sensitive hashing (Reformer, Kitaev et al. 2020, §2).
//
// Queries and keys are the same vectors; keys are normalized to length one. Each round of random rotations sorts the vectors by
// bucket and index, and cuts the order into chunks; a vector attends to its own chunk and the one before. All rounds share one
// softmax. A vector attends to itself only if no other key is selected.
//
// A head's store: keys and values, (capacity, head_dim) each; for each round the order, (capacity), and the ranks, (capacity),
// which hold each vector's place in it, and its bucket until `finish`. Indices are below 2²⁴, so floats hold them exactly.

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
    fn floats(&self, capacity: usize, dim: usize) -> usize {
        2 * capacity * (dim + self.rounds)
    }

    /// Returns the multiply-adds of one vector in one head, out of `count` vectors: rotations, scores, values.
    fn multiply_adds(&self, count: usize, dim: usize) -> usize {
        self.rounds * dim * (self.buckets / 2 + 2 * count.min(2 * self.chunk))
    }

    /// Writes the vector at `index`, which is both query and key, and its value, (head_dim) each. `rotations` are one head's.
    fn write(&self, store: &mut [f32], rotations: &[f32], index: usize, key: &[f32], value: &[f32]) {
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
    fn head_rotations(&self, layer: usize, head: usize, dim: usize) -> &[f32] {
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
    fn finish(&self, store: &mut [f32], count: usize, dim: usize) {
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
    fn attend(&self, isa: Isa, store: &[f32], count: usize, index: usize, query: &[f32], out: &mut [f32]) {
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

/// Layers of an encoder. D = width, I = heads · head_dim, F = inner width of the feed-forward.
pub struct EncoderStack {
    /// Layers, bottom first.
    pub layers: Vec<Layer>,
    /// Placement of the norms.
    pub order: NormOrder,
    /// Nonlinearity of the feed-forwards.
    pub activation: Activation,
    /// Attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Attention across the document, where a layer has two halves.
    pub pattern: AttentionPattern,
}

/// Buffers of a pass, kept between passes.
#[derive(Default)]
pub struct EncoderWork {
    /// Quantized inputs of matrix products.
    pub quantized: QuantizedRows,
    /// Queries that [`EncoderStack::project`] computed: (vectors, I), scaled in the heads that use a softmax over keys.
    pub queries: Vec<f32>,
    /// Outputs of the heads, which [`EncoderStack::finish`] reads: (vectors, I).
    pub head_outputs: Vec<f32>,
    qkv: Vec<f32>,
    store: Vec<f32>,
    normed: Vec<f32>,
    hidden: Vec<f32>,
    delta: Vec<f32>,
}

impl EncoderStack {
    /// Returns a layer's attention across up to `capacity` vectors of a document.
    pub fn attention(&self, layer: usize, capacity: usize) -> EncoderAttention<'_> {
        EncoderAttention { pattern: &self.pattern, layer, heads: self.heads, head_dim: self.head_dim, capacity }
    }

    /// Returns the layout of a store of `capacity` keys and values.
    pub fn store(&self, capacity: usize) -> DenseLayout {
        DenseLayout { heads: self.heads, head_dim: self.head_dim, capacity }
    }

    /// Returns the multiply-adds of one vector in a layer's matrix products.
    pub fn products(&self, layer: usize) -> usize {
        let Layer { qkv, output, up, down, .. } = &self.layers[layer];
        [qkv, output, up, down].iter().map(|matrix| matrix.inputs() * matrix.outputs()).sum()
    }

    /// Takes `x`, (vectors, D), through a layer in place. Every `block` vectors are a block; the last one may be shorter.
    pub fn blocks(&self, compute: &Compute, layer: usize, x: &mut [f32], block: usize, work: &mut EncoderWork) {
        let inner = self.heads * self.head_dim;
        let layout = self.store(block);
        let mut store = std::mem::take(&mut work.store);
        let blocks = (x.len() / self.layers[layer].qkv.inputs()).div_ceil(block);
        // The store is not cleared: the kernel discards what stale padding lanes contribute.
        store.resize(blocks * layout.floats(), 0.0);
        self.project(compute, layer, x, work, |index, keys, values| {
            let block_store = &mut store[index / block * layout.floats()..][..layout.floats()];
            layout.write(block_store, index % block, keys, values);
        });
        let EncoderWork { queries, head_outputs, .. } = work;
        let head_outputs = sized(head_outputs, queries.len());
        let block_rows = queries.chunks(block * inner).zip(head_outputs.chunks_mut(block * inner));
        for ((queries, outputs), store) in block_rows.zip(store.chunks_exact(layout.floats())) {
            attend_dense(compute, layout, store, queries.len() / inner, queries, outputs);
        }
        work.store = store;
        self.finish(compute, layer, x, work);
    }

    /// Appends to `mass` the attention weight that each key received from all queries of its block, summed over heads, in the
    /// layer that [`blocks`](Self::blocks) ran last.
    pub fn block_mass(&self, compute: &Compute, block: usize, work: &EncoderWork, mass: &mut Vec<f32>) {
        let inner = self.heads * self.head_dim;
        let layout = self.store(block);
        for (queries, store) in work.queries.chunks(block * inner).zip(work.store.chunks_exact(layout.floats())) {
            let start = mass.len();
            mass.resize(start + queries.len() / inner, 0.0);
            self.add_mass(compute, layout, store, queries, &mut mass[start..]);
        }
    }

    /// Adds to `mass`, (keys), the weight that each key receives from `queries`, (vectors, I), summed over heads in order.
    pub fn add_mass(&self, compute: &Compute, layout: DenseLayout, store: &[f32], queries: &[f32], mass: &mut [f32]) {
        let mut head_sums = vec![0.0; self.heads * mass.len()]; // (heads, keys)
        compute.pool.for_chunks(&mut head_sums, mass.len(), true, &|head, sums| {
            let rows = queries.chunks_exact(self.heads * self.head_dim);
            let head_queries = rows.map(|row| &row[head * self.head_dim..(head + 1) * self.head_dim]);
            layout.add_weights(store, head, head_queries, sums);
        });
        for sums in head_sums.chunks_exact(mass.len()) {
            mass.iter_mut().zip(sums).for_each(|(mass, sum)| *mass += sum);
        }
    }

    /// Writes the queries of `x`, (vectors, D), to `work.queries`, and passes each vector's index, keys and values, (I) each, to
    /// `write`. Queries of heads that use a softmax over keys are scaled.
    pub fn project(
        &self,
        compute: &Compute,
        layer: usize,
        x: &[f32],
        work: &mut EncoderWork,
        mut write: impl FnMut(usize, &[f32], &[f32]),
    ) {
        let layer = &self.layers[layer];
        let inner = self.heads * self.head_dim;
        let EncoderWork { quantized, queries, qkv, normed, .. } = work;
        let x = match self.order {
            NormOrder::Post => x,
            NormOrder::Pre => copy_norm(compute, x, &layer.attention_norm, normed),
        };
        let vectors = x.len() / layer.qkv.inputs();
        let qkv = sized(qkv, vectors * 3 * inner);
        layer.qkv.apply(compute, x, Epilogue::None, quantized, qkv); // (vectors, 3·I)
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let scaled = self.pattern.softmax_heads(self.heads) * self.head_dim;
        let queries = sized(queries, vectors * inner);
        for (index, (qkv, query)) in qkv.chunks_exact(3 * inner).zip(queries.chunks_exact_mut(inner)).enumerate() {
            query.copy_from_slice(&qkv[..inner]);
            query[..scaled].iter_mut().for_each(|x| *x *= scale);
            let (keys, values) = qkv[inner..].split_at(inner);
            write(index, keys, values);
        }
    }

    /// Takes `x`, (vectors, D), through the rest of a layer in place, from the heads' outputs in `work.head_outputs`.
    pub fn finish(&self, compute: &Compute, layer: usize, x: &mut [f32], work: &mut EncoderWork) {
        let layer = &self.layers[layer];
        let EncoderWork { quantized, head_outputs, normed, hidden, delta, .. } = work;
        let delta = sized(delta, x.len());
        layer.output.apply(compute, head_outputs, Epilogue::None, quantized, delta); // (vectors, D)
        let hidden = sized(hidden, x.len() / layer.up.inputs() * layer.up.outputs());
        match self.order {
            NormOrder::Post => {
                add_layer_norm(compute, x, delta, &layer.attention_norm);
                layer.up.apply(compute, x, self.activation.epilogue(), quantized, hidden); // (vectors, F)
                layer.down.apply(compute, hidden, Epilogue::None, quantized, delta); // (vectors, D)
                add_layer_norm(compute, x, delta, &layer.feed_forward_norm);
            }
            NormOrder::Pre => {
                add(x, delta);
                let normed = copy_norm(compute, x, &layer.feed_forward_norm, normed);
                layer.up.apply(compute, normed, self.activation.epilogue(), quantized, hidden); // (vectors, F)
                layer.down.apply(compute, hidden, Epilogue::None, quantized, delta); // (vectors, D)
                add(x, delta);
            }
        }
    }
}
