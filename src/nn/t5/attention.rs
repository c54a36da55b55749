//! Rows' queries over their sequences' caches: its own keys with biases of distance, or a memory's without.

use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{Bias, DistanceTable, Forms, Probes, Row, Source, TOGETHER, attend},
    },
    nn::{Place, cache::Cache, sized},
};

/// Multiply-adds of attention below which waking other threads costs more than it brings.
const WORTH_SHARING: usize = 1 << 15;

/// The queries of some rows: for the keys, and for the biases.
#[derive(Default)]
pub(super) struct Queries {
    /// (rows, heads, head_dim)
    pub(super) content: Probes,
    /// (rows, heads, head_dim), or empty.
    pub(super) distance: Probes,
}

/// What rows attend to: where each place's sequence has its keys, and up to which position.
pub(super) struct Keys<'a> {
    /// The layer of the caches.
    pub(super) layer: usize,
    /// A row attends to its sequence's positions up to its place's.
    pub(super) places: &'a [Place],
    /// A sequence's cache.
    pub(super) cache: &'a (dyn Fn(usize) -> Result<&'a Cache> + Sync),
    /// Biases, if there are any.
    pub(super) distances: Option<&'a DistanceTable>,
}

/// `mixed` (rows, heads · head_dim) = each head's values, weighted by the softmax of the unscaled scores.
///
/// # Errors
/// A cache that cannot be found.
pub(super) fn mix(compute: &Compute, keys: &Keys<'_>, queries: &Queries, mixed: &mut Vec<f32>) -> Result<()> {
    let Keys { layer, places, cache, distances } = *keys;
    let Some(first) = places.first() else { return Ok(()) };
    let layout = *cache(first.sequence)?.layout();
    let some = |(first, head): (usize, usize), outs: &mut [&mut [f32]]| {
        let mut rows = [Row::default(); TOGETHER];
        for (index, row) in rows.iter_mut().enumerate().take(outs.len()) {
            let (at, position) = ((first + index) * layout.heads + head, places[first + index].position);
            let content = Forms::one(&queries.content, at);
            *row = Row { low: 0, position, content, distance: queries.distance.get(at) };
        }
        let mut rest = (first, &rows[..outs.len()], outs);
        while let (first, [_, ..], _) = rest {
            let run = run_of(&places[first..first + rest.1.len()]);
            let (rows, later_rows) = rest.1.split_at(run);
            let (outs, later_outs) = rest.2.split_at_mut(run);
            let sequence = places[first].sequence;
            let near = first > 0 && places[first - 1].sequence == sequence;
            match cache(sequence) {
                Ok(cache) => {
                    let pages = cache.pages();
                    let (start, block, bias) = (0, usize::MAX, Bias::None);
                    let source =
                        Source { pages, start, layout: &layout, layer, head, block, distances, bias, scale: 1.0, near };
                    attend(compute.isa, &source, rows, outs);
                }
                // it was found when the step was laid out; else nothing here is to pass for a number
                Err(_) => outs.iter_mut().for_each(|out| out.fill(f32::NAN)),
            }
            rest = (first + run, later_rows, later_outs);
        }
    };
    let attended: usize = places.iter().map(|place| place.position + 1).sum();
    let share = attended * layout.heads * layout.head_dim >= WORTH_SHARING;
    let mixed = sized(mixed, places.len() * layout.heads * layout.head_dim);
    compute.pool.columns::<TOGETHER>(mixed, (places.len(), layout.heads), share, &some);
    Ok(())
}

/// How many rows from the first on are neighbours in one sequence.
fn run_of(places: &[Place]) -> usize {
    let follows = |pair: &&[Place]| pair[0].sequence == pair[1].sequence && pair[0].position + 1 == pair[1].position;
    1 + places.windows(2).take_while(follows).count()
}
