//! Causal attention of many queries over their sequences' caches: the sum of a head's values, weighted by the softmax of the
//! scores. Neighbouring positions of one sequence, such as those of a prompt, read its pages together.

use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{AttentionHead, PageLayout, QueryRow, ROW_TILE, attend},
    },
    nn::{Position, kv_cache::KvCache, sized},
};

/// Multiply-adds of attention below which waking other threads costs more than it saves.
pub(crate) const WORTH_SHARING: usize = 1 << 15;

/// One call of [`mix`]: the queries' positions and the size of the work.
pub(crate) struct Mixing<'a> {
    pub(crate) compute: &'a Compute,
    /// Layout of the caches.
    pub(crate) layout: &'a PageLayout,
    /// Sequence and index of each query.
    pub(crate) positions: &'a [Position],
    /// Sum over queries of the keys that each attends to.
    pub(crate) keys: usize,
}

/// Writes `outputs`, (positions, heads · head_dim).
///
/// `cache` finds a sequence's cache, `query` returns a position's query of one head, and `source` locates a head's keys and
/// values in a cache; its last argument is true if a position of the same sequence has just read the pages.
pub(crate) fn mix<'c, 'q, 's, Q: Fn(usize, usize) -> QueryRow<'q> + Sync>(
    Mixing { compute, layout, positions, keys }: &Mixing<'_>,
    cache: &(impl Fn(usize) -> Result<&'c KvCache> + Sync),
    query: &Q,
    source: &(impl Fn(&'c KvCache, usize, bool) -> AttentionHead<'s> + Sync),
    outputs: &mut Vec<f32>,
) {
    let PageLayout { heads, head_dim, .. } = **layout;
    let tile = |tile_start: usize, head: usize, tile_outputs: &mut [&mut [f32]]| {
        let mut buffer = [QueryRow::default(); ROW_TILE];
        let mut queries = &mut buffer[..tile_outputs.len()];
        queries.iter_mut().zip(tile_start..).for_each(|(slot, index)| *slot = query(index, head));
        let mut outputs = tile_outputs;
        let mut first = tile_start;
        while !queries.is_empty() {
            let run = run_length(&positions[first..first + queries.len()]);
            let (run_queries, later_queries) = queries.split_at_mut(run);
            let (run_outputs, later_outputs) = outputs.split_at_mut(run);
            let sequence = positions[first].sequence;
            let recently_read = first > 0 && positions[first - 1].sequence == sequence;
            match cache(sequence) {
                Ok(cache) => {
                    // A sequence that was resumed in its middle holds no earlier keys.
                    run_queries.iter_mut().for_each(|query| query.first_key = query.first_key.max(cache.first()));
                    attend(compute.isa, &source(cache, head, recently_read), run_queries, run_outputs);
                }
                // Unreachable: writing the keys found the cache. NaN keeps a stale buffer from passing for a result.
                Err(_) => run_outputs.iter_mut().for_each(|out| out.fill(f32::NAN)),
            }
            first += run;
            queries = later_queries;
            outputs = later_outputs;
        }
    };
    let share = keys * heads * head_dim >= WORTH_SHARING;
    let outputs = sized(outputs, positions.len() * heads * head_dim);
    // A head's positions run one after another because they read the same distance table.
    compute.pool.for_columns::<ROW_TILE>(outputs, positions.len(), heads, share, &tile);
}

/// Returns how many positions, from the first on, are neighbours in one sequence.
fn run_length(positions: &[Position]) -> usize {
    let follows = |pair: &&[Position]| pair[0].sequence == pair[1].sequence && pair[0].index + 1 == pair[1].index;
    1 + positions.windows(2).take_while(follows).count()
}
