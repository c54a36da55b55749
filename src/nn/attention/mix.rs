//! PagedVectors' queries over their sequences' caches: each head's values, weighted by the softmax of the scores. Neighbours in one
//! sequence, as a prompt's rows are, read its pages together.

use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{AttentionHead, PageLayout, QueryRow, ROW_TILE, attend},
    },
    nn::{Position, kv_cache::KvCache, sized},
};

/// Multiply-adds of attention below which waking other threads costs more than it brings.
pub(in crate::nn) const WORTH_SHARING: usize = 1 << 15;

/// Which rows attend, and to how much.
pub(in crate::nn) struct Mixing<'a> {
    pub(in crate::nn) compute: &'a Compute,
    /// Of the caches.
    pub(in crate::nn) layout: &'a PageLayout,
    /// Where each row stands in which sequence.
    pub(in crate::nn) positions: &'a [Position],
    /// Keys that the rows attend to, all together.
    pub(in crate::nn) keys: usize,
}

/// `mixed` (rows, heads · head_dim), given a sequence's cache, a row's query of one head, and where a head's keys and values
/// are in a cache, whose pages a row of the same sequence may have read just before.
pub(in crate::nn) fn mix<'c, 'r, 's>(
    Mixing { compute, layout, positions, keys }: &Mixing<'_>,
    cache: &(impl Fn(usize) -> Result<&'c KvCache> + Sync),
    row: &(impl Fn(usize, usize) -> QueryRow<'r> + Sync),
    source: &(impl Fn(&'c KvCache, usize, bool) -> AttentionHead<'s> + Sync),
    mixed: &mut Vec<f32>,
) {
    let PageLayout { heads, head_dim, .. } = **layout;
    let some = |first: usize, head: usize, outs: &mut [&mut [f32]]| {
        let mut rows = [QueryRow::default(); ROW_TILE];
        for (to, at) in rows.iter_mut().zip(first..).take(outs.len()) {
            *to = row(at, head);
        }
        let mut rest = (first, &mut rows[..outs.len()], outs);
        while let (first, [_, ..], _) = rest {
            let run = run_of(&positions[first..first + rest.1.len()]);
            let (rows, later_rows) = rest.1.split_at_mut(run);
            let (outs, later_outs) = rest.2.split_at_mut(run);
            let sequence = positions[first].sequence;
            // the rows before, in a chunk of the same sequence, have just read the same pages
            let near = first > 0 && positions[first - 1].sequence == sequence;
            match cache(sequence) {
                Ok(cache) => {
                    // of a sequence that was taken up in its middle there is nothing further back
                    rows.iter_mut().for_each(|row| row.first_key = row.first_key.max(cache.first()));
                    attend(compute.isa, &source(cache, head, near), rows, outs);
                }
                // it was found a moment ago, when the keys were written; else nothing here is to pass for a number
                Err(_) => outs.iter_mut().for_each(|out| out.fill(f32::NAN)),
            }
            rest = (first + run, later_rows, later_outs);
        }
    };
    let share = keys * heads * head_dim >= WORTH_SHARING;
    let mixed = sized(mixed, positions.len() * heads * head_dim);
    // a head's rows come one after the other: they read the same distances
    compute.pool.for_columns::<ROW_TILE>(mixed, positions.len(), heads, share, &some);
}

/// How many rows from the first on are neighbours in one sequence.
fn run_of(positions: &[Position]) -> usize {
    let follows = |pair: &&[Position]| pair[0].sequence == pair[1].sequence && pair[0].index + 1 == pair[1].index;
    1 + positions.windows(2).take_while(follows).count()
}
