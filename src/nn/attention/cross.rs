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
        attention::{QueryBuffer, QueryRow, QueryVariants, ROW_TILE, attend},
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
    work.cross_queries.finish(compute, layout.dtype, layout.head_dim);
    let queries = &work.cross_queries;
    let tile = |tile_start: usize, head: usize, tile_outputs: &mut [&mut [f32]]| {
        let mut first = tile_start;
        let mut outputs = tile_outputs;
        while !outputs.is_empty() {
            let memory = |row: usize| memory_of(caches, positions[row].sequence).ok();
            let same = |row: &usize| same_memory(memory(first), memory(*row));
            let run = 1 + (first + 1..first + outputs.len()).take_while(same).count();
            let (run_outputs, later) = outputs.split_at_mut(run);
            match memory(first) {
                Some(memory) => attend_memory(compute, memory, layer, head, queries, first, run_outputs),
                // Unreachable: the loop above found the memory. NaN keeps a stale buffer from passing for a result.
                None => run_outputs.iter_mut().for_each(|out| out.fill(f32::NAN)),
            }
            first += run;
            outputs = later;
        }
    };
    let head_outputs = sized(&mut work.head_outputs, positions.len() * cross.query.outputs());
    let share = keys * layout.heads * layout.head_dim >= WORTH_SHARING;
    compute.pool.for_columns::<ROW_TILE>(head_outputs, positions.len(), layout.heads, share, &tile);
    let delta = sized(&mut work.delta, x.len());
    cross.output.apply(compute, head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
    Ok(())
}

/// Runs one head of the queries from row `first` on over one memory.
fn attend_memory(
    compute: &Compute,
    memory: &KvCache,
    layer: usize,
    head: usize,
    queries: &QueryBuffer,
    first: usize,
    outputs: &mut [&mut [f32]],
) {
    let heads = memory.layout().heads;
    let mut rows = [QueryRow::default(); ROW_TILE];
    for (index, row) in rows.iter_mut().enumerate().take(outputs.len()) {
        let content = QueryVariants::single(queries, (first + index) * heads + head);
        *row = QueryRow { first_key: 0, position: memory.len() - 1, content, ..QueryRow::default() };
    }
    attend(compute.isa, &memory.attention_head(layer, head), &rows[..outputs.len()], outputs);
}

/// Returns true if two memories share their pages and length.
fn same_memory(a: Option<&KvCache>, b: Option<&KvCache>) -> bool {
    let key = |cache: Option<&KvCache>| cache.and_then(|cache| Some((cache.pages().first()?.id(), cache.len())));
    key(a).is_some() && key(a) == key(b)
}

/// Returns a sequence's memory, which is not empty.
fn memory_of(caches: &impl Caches, sequence: usize) -> Result<&KvCache> {
    let memory = caches.memory(sequence)?.filter(|memory| !memory.is_empty());
    memory.ok_or_else(|| Error::Internal(format!("sequence {sequence} of a decoder has no memory")))
}
