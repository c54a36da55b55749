//! Cross-attention to a memory: the keys and values of an encoder's output, projected once and read by every position.
//!
//! Several sequences may share a memory, as the hypotheses of a beam do. Where their positions follow each other, the
//! memory's pages are read for all of them together.

use super::{
    layer::{Caches, Cross, StackPass},
    mix::WORTH_SHARING,
};
use crate::{
    error::{Error, Result},
    kernels::{
        Compute,
        attention::{AttentionHead, PageLayout, QueryBuffer, QueryRow, QueryVariants, ROW_TILE, attend},
        linear::{Epilogue, Linear, QuantizedRows},
        rowwise::LayerNorm,
    },
    nn::{kv_cache::KvCache, sized},
};

/// Projects the vectors of a memory, (vectors, C), to each layer's keys and values, (I) each, and passes them to `write`
/// with the layer and the vector's index. `projections` yields each layer's matrix, (2·I, C). Fails as `write` does.
pub fn project_memory<'a>(
    compute: &Compute,
    projections: impl Iterator<Item = (usize, &'a Linear)>,
    vectors: &[f32],
    buffer: &mut Vec<f32>,
    quantized: &mut QuantizedRows,
    mut write: impl FnMut(usize, usize, &[f32], &[f32]) -> Result<()>,
) -> Result<()> {
    for (layer, projection) in projections {
        let projected = sized(buffer, vectors.len() / projection.inputs() * projection.outputs());
        projection.apply(compute, vectors, Epilogue::None, quantized, projected); // (vectors, 2·I)
        for (index, key_value) in projected.chunks_exact(projection.outputs()).enumerate() {
            let (keys, values) = key_value.split_at(key_value.len() / 2);
            write(layer, index, keys, values)?;
        }
    }
    Ok(())
}

/// Writes the attention of `x`, (positions, D), to the sequences' memories into `work.delta`. Fails if a memory is missing.
pub(super) fn forward(
    layer: usize,
    cross: &Cross<LayerNorm>,
    x: &[f32],
    pass: &mut StackPass<'_, impl Caches>,
) -> Result<()> {
    let StackPass { compute, positions, caches, work } = pass;
    let caches = &**caches;
    let queries = work.cross_queries.values_mut(positions.len() * cross.query.outputs());
    cross.query.apply(compute, x, Epilogue::None, &mut work.quantized, queries); // (positions, I)
    let mut keys = 0;
    for position in *positions {
        keys += memory_of(caches, position.sequence)?.len();
    }
    let Some(first) = positions.first() else { return Ok(()) };
    let layout = *memory_of(caches, first.sequence)?.layout();
    let scale = 1.0 / (layout.head_dim as f32).sqrt();
    let job = MemoryAttention { compute, layout: &layout, layer, rows: positions.len(), keys, scale, sink: false };
    let memory = |row: usize| {
        let memory = memory_of(caches, positions[row].sequence).ok()?;
        Some(MemoryPart { memory, last: memory.len() - 1 })
    };
    job.run(&memory, &mut work.cross_queries, &mut work.head_outputs); // (positions, I)
    let delta = sized(&mut work.delta, x.len());
    cross.output.apply(compute, &work.head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
    Ok(())
}

/// The part of a memory that a row attends to.
pub(in crate::nn) struct MemoryPart<'a> {
    pub(in crate::nn) memory: &'a KvCache,
    /// Index of the last vector.
    pub(in crate::nn) last: usize,
}

/// One layer's attention of rows to memories. Rows with the same memory read it together.
pub(in crate::nn) struct MemoryAttention<'a> {
    pub(in crate::nn) compute: &'a Compute,
    /// Layout of the memories.
    pub(in crate::nn) layout: &'a PageLayout,
    pub(in crate::nn) layer: usize,
    pub(in crate::nn) rows: usize,
    /// Sum over rows of the keys that each attends to.
    pub(in crate::nn) keys: usize,
    /// Factor of every score.
    pub(in crate::nn) scale: f32,
    /// True if the softmax has one more key, of score zero and value zero.
    pub(in crate::nn) sink: bool,
}

impl MemoryAttention<'_> {
    /// Writes the weighted values of each head, (rows, I), to `head_outputs`. `part` finds a row's memory.
    pub(in crate::nn) fn run<'c>(
        &self,
        part: &(impl Fn(usize) -> Option<MemoryPart<'c>> + Sync),
        queries: &mut QueryBuffer,
        head_outputs: &mut Vec<f32>,
    ) {
        let Self { compute, layout, layer, rows, keys, scale, sink } = *self;
        queries.finish(compute, layout.dtype, layout.head_dim);
        let queries = &*queries;
        let tile = |first: usize, column: usize, outputs: &mut [&mut [f32]]| {
            let mut rows = [QueryRow::default(); ROW_TILE];
            let rows = &mut rows[..outputs.len()];
            for (index, row) in (first..).zip(&mut *rows) {
                let Some(MemoryPart { memory, last }) = part(index) else {
                    // Unreachable: the caller found the memory. NaN keeps a stale buffer from passing for a result.
                    return outputs.iter_mut().for_each(|out| out.fill(f32::NAN));
                };
                let content = QueryVariants::single(queries, index * layout.heads + column);
                *row = QueryRow { keys: memory.key_pages(), position: last, content, ..QueryRow::default() };
            }
            let head = AttentionHead { scale, sink, ..AttentionHead::new(layout, layer, column) };
            attend(compute.isa, &head, rows, outputs);
        };
        let head_outputs = sized(head_outputs, rows * layout.heads * layout.head_dim);
        let share = keys * layout.heads * layout.head_dim >= WORTH_SHARING;
        compute.pool.for_columns::<ROW_TILE>(head_outputs, rows, layout.heads, share, &tile);
    }
}

/// Returns a sequence's memory, which is not empty.
fn memory_of(caches: &impl Caches, sequence: usize) -> Result<&KvCache> {
    let memory = caches.memory(sequence)?.filter(|memory| !memory.is_empty());
    memory.ok_or_else(|| Error::Internal(format!("sequence {sequence} of a decoder has no memory")))
}
