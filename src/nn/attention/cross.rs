//! Attention to a memory: what an encoder left behind, keys and values of which are made once and read by every row.
//!
//! PagedVectors of several sequences may ask the same memory, as the hypotheses of a beam do; where they follow each other its pages are
//! read for all of them together.

use super::{
    layer::{Caches, Cross, Layer, Pass},
    mix::WORTH_SHARING,
};
use crate::{
    error::{Error, Result},
    kernels::{
        Compute,
        attention::{AttentionHead, Bias, QueryBuffer, QueryRow, QueryVariants, ROW_TILE, attend},
        linear::{Epilogue, QuantizedRows},
    },
    nn::{kv_cache::KvCache, sized},
};

/// Hands the keys and values, (I) each, that each of the layers has for the vectors of a memory, (rows, C), to `write`, with the
/// layer and the row.
///
/// # Errors
/// What `write` says.
pub fn project_memory(
    compute: &Compute,
    layers: &[Layer],
    rows: &[f32],
    (buffer, quantized): (&mut Vec<f32>, &mut QuantizedRows),
    mut write: impl FnMut((usize, usize), &[f32], &[f32]) -> Result<()>,
) -> Result<()> {
    let crosses = layers.iter().enumerate().filter_map(|(index, layer)| Some((index, layer.cross.as_ref()?)));
    for (index, Cross { memory, .. }) in crosses {
        let both = sized(buffer, rows.len() / memory.inputs() * memory.outputs());
        memory.apply(compute, rows, Epilogue::None, quantized, both); // (rows, 2·I)
        for (row, both) in both.chunks_exact(memory.outputs()).enumerate() {
            let (keys, values) = both.split_at(both.len() / 2);
            write((index, row), keys, values)?;
        }
    }
    Ok(())
}

/// `work.change` (rows, D) = attention of `x` to the rows' memories.
///
/// # Errors
/// A row without a memory.
pub(super) fn forward(layer: usize, cross: &Cross, x: &[f32], pass: &mut Pass<'_, impl Caches>) -> Result<()> {
    let Pass { compute, positions, caches, work } = pass;
    let (caches, rows) = (&**caches, positions.len());
    let queries = work.cross_queries.values_mut(rows * cross.query.outputs());
    cross.query.apply(compute, x, Epilogue::None, &mut work.quantized, queries); // (rows, I)
    let mut keys = 0;
    for position in *positions {
        keys += memory_of(caches, position.sequence)?.len();
    }
    let Some(first) = positions.first() else { return Ok(()) };
    let layout = *memory_of(caches, first.sequence)?.layout();
    work.cross_queries.finish(compute, layout.dtype, layout.head_dim);
    let queries = &work.cross_queries;
    let some = |first: usize, head: usize, outs: &mut [&mut [f32]]| {
        let (mut done, mut outs) = (0, outs);
        while !outs.is_empty() {
            let cache = |index: usize| memory_of(caches, positions[first + index].sequence).ok();
            let run = 1 + (done + 1..done + outs.len()).take_while(|&next| same(cache(done), cache(next))).count();
            let (own, later) = outs.split_at_mut(run);
            match cache(done) {
                Some(cache) => ask(compute, cache, (layer, head), (queries, first + done), own),
                // it was found a moment ago; else nothing here is to pass for a number
                None => own.iter_mut().for_each(|out| out.fill(f32::NAN)),
            }
            (done, outs) = (done + run, later);
        }
    };
    let mixed = sized(&mut work.mixed, rows * cross.query.outputs());
    let share = keys * layout.heads * layout.head_dim >= WORTH_SHARING;
    compute.pool.for_columns::<ROW_TILE>(mixed, rows, layout.heads, share, &some);
    let change = sized(&mut work.change, x.len());
    cross.output.apply(compute, mixed, Epilogue::None, &mut work.quantized, change); // (rows, D)
    Ok(())
}

/// The rows from `first` on ask one memory.
fn ask(
    compute: &Compute,
    cache: &KvCache,
    (layer, head): (usize, usize),
    (queries, first): (&QueryBuffer, usize),
    outs: &mut [&mut [f32]],
) {
    let layout = cache.layout();
    let mut rows = [QueryRow::default(); ROW_TILE];
    for (index, row) in rows.iter_mut().enumerate().take(outs.len()) {
        let content = QueryVariants::single(queries, (first + index) * layout.heads + head);
        *row = QueryRow { first_key: 0, position: cache.len() - 1, content, ..QueryRow::default() };
    }
    let (pages, start, block) = (cache.pages(), cache.start(), usize::MAX);
    let scale = 1.0 / (layout.head_dim as f32).sqrt();
    let (distances, bias, near) = (None, Bias::None, false);
    let source =
        AttentionHead { pages, start, layout, layer, head, block, distances, bias, scale, recently_read: near };
    attend(compute.isa, &source, &rows[..outs.len()], outs);
}

/// Whether two memories are one, by their pages.
fn same(a: Option<&KvCache>, b: Option<&KvCache>) -> bool {
    let of = |cache: Option<&KvCache>| cache.and_then(|cache| Some((cache.pages().first()?.id(), cache.len())));
    of(a).is_some() && of(a) == of(b)
}

/// A sequence's memory, which holds something.
fn memory_of(caches: &impl Caches, sequence: usize) -> Result<&KvCache> {
    let memory = caches.memory(sequence)?.filter(|memory| !memory.is_empty());
    memory.ok_or_else(|| Error::Internal("a row of a decoder without a memory".into()))
}
