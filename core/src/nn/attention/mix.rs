//! Causal attention of many queries over their sequences' caches: the sum of a head's values, weighted by the softmax of the
//! scores. Positions that share pages, such as those of a prompt or of forks, read them together.

use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{AttentionHead, KeyPages, PageLayout, QueryRow, ROW_TILE, attend},
    },
    nn::{Position, kv_cache::KvCache, sized},
};

/// Multiply-adds of attention below which waking other threads costs more than it saves.
pub(crate) const WORTH_SHARING: usize = 1 << 18;
/// Maximum rows of one call of the kernel if neighbouring rows share no pages. Such calls gain little from more rows, and with smaller
/// tasks threads wait less for each other.
const UNSHARED_TILE: usize = 8;
const _: () = assert!(UNSHARED_TILE <= ROW_TILE);

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
/// `cache` returns a sequence's cache. `query` returns a position's query of one head, without its keys. `head` returns the terms
/// of a head's scores.
pub(crate) fn mix<'c, 'q, 'h>(
    Mixing { compute, layout, positions, keys }: &Mixing<'_>,
    cache: &(impl Fn(usize) -> Result<&'c KvCache> + Sync),
    query: &(impl Fn(usize, usize) -> QueryRow<'q> + Sync),
    head: &(impl Fn(usize) -> AttentionHead<'h> + Sync),
    outputs: &mut Vec<f32>,
) where
    'c: 'q,
{
    let PageLayout { heads, head_dim, .. } = **layout;
    let tile = |first: usize, column: usize, outputs: &mut [&mut [f32]]| {
        let mut rows = [QueryRow::default(); ROW_TILE];
        let rows = &mut rows[..outputs.len()];
        for (index, row) in (first..).zip(&mut *rows) {
            let sequence = positions[index].sequence;
            let Ok(cache) = cache(sequence) else {
                // Unreachable: writing the keys found the cache. NaN keeps a stale buffer from passing for a result.
                return outputs.iter_mut().for_each(|out| out.fill(f32::NAN));
            };
            *row = query(index, column);
            // A sequence that was resumed in its middle holds no earlier keys.
            row.first_key = row.first_key.max(cache.first());
            // the tile before this one ended with the same sequence
            let recently_read = index == first && index > 0 && positions[index - 1].sequence == sequence;
            row.keys = KeyPages { recently_read, ..cache.key_pages() };
        }
        attend(compute.isa, &head(column), rows, outputs);
    };
    let share = keys * heads * head_dim >= WORTH_SHARING;
    let outputs = sized(outputs, positions.len() * heads * head_dim);
    let neighbours_share = positions.windows(2).any(|pair| {
        let keys = |position: Position| cache(position.sequence).map(KvCache::key_pages);
        keys(pair[0]).is_ok_and(|first| keys(pair[1]).is_ok_and(|second| first.share_with(&second)))
    });
    // A head's positions run one after another because they read the same distance table.
    if neighbours_share {
        compute.pool.for_columns::<ROW_TILE>(outputs, positions.len(), heads, share, &tile);
    } else {
        compute.pool.for_columns::<UNSHARED_TILE>(outputs, positions.len(), heads, share, &tile);
    }
}
