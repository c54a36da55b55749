//! Moves vectors between the rows' states and the batch `work.x`: the plumbing of `model`'s forward pass, in its order. Hot
//! path, as `model` is.

use super::{
    ngrams::Ngrams,
    state::{HourglassState, PooledState, state},
    work::{HourglassStage, Work},
};
use crate::{
    decode::contract::{SequenceRow, StepStatus, SymbolBoundary, state_mut, state_ref},
    error::Result,
    kernels::Compute,
    nn::{
        Position,
        attention::stack::Stack,
        boundary::{Boundaries, evidence::Evidence},
        kv_cache::KvCache,
        pooling::{Pooling, mean_of_sum},
        sized,
    },
};
use std::ops::RangeInclusive;

/// Width D of a stack's residual stream.
fn width(stack: &Stack) -> usize {
    stack.layers[0].qkv.inputs()
}

/// Lists the next chunk of each row's feed with its positions, and makes room in the pre stack's caches.
pub(super) fn gather_symbols(pre: &Stack, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<bool> {
    work.positions.clear();
    work.symbols.clear();
    work.noise.clear();
    work.stream_positions.clear();
    if work.processed.iter().zip(which).all(|(&processed, &index)| processed == rows[index].feed.len()) {
        return Ok(false);
    }
    for (&index, &processed) in which.iter().zip(&work.processed) {
        let SequenceRow { state, feed, .. } = &mut rows[index];
        let state: &mut HourglassState = state_mut(&mut **state)?;
        let start = state.pre.len();
        let chunk = (feed.len() - processed).min(pre.window.chunk());
        pre.reserve(&mut state.pre, chunk)?;
        for position in start..start + chunk {
            work.positions.push(Position { sequence: index, index: position });
            work.stream_positions.push(state.offset + position);
            work.noise.push(state.noise.as_ref().map(|noise| noise.at(position)).transpose()?);
        }
        let symbols = &feed[processed..processed + chunk];
        work.symbols.extend_from_slice(symbols);
        if let Some(recent) = &mut state.recent {
            recent.extend(symbols);
        }
    }
    Ok(true)
}

/// The embeddings of symbols.
pub(super) struct Embedding<'a> {
    /// (V, D)
    pub(super) weight: &'a [f32],
    /// D
    pub(super) dim: usize,
    pub(super) ngrams: Option<&'a Ngrams>,
}

/// `work.x` (symbols, D) = the embeddings of `work.symbols`, and of the n-grams that end with them.
pub(super) fn embed(embedding: &Embedding<'_>, rows: &[SequenceRow], work: &mut Work) -> Result<()> {
    let dim = embedding.dim;
    let x = sized(&mut work.x, work.symbols.len() * dim); // (symbols, D)
    for (x, &symbol) in x.chunks_exact_mut(dim).zip(&work.symbols) {
        x.copy_from_slice(&embedding.weight[symbol as usize * dim..][..dim]);
    }
    let Some(ngrams) = embedding.ngrams else { return Ok(()) };
    for (x, &Position { sequence, index }) in x.chunks_exact_mut(dim).zip(&work.positions) {
        let state: &HourglassState = state_ref(&*rows[sequence].state)?;
        if let Some(recent) = &state.recent {
            ngrams.add(recent, index, x)?;
        }
    }
    Ok(())
}

/// Fills `work.decisions` for the symbols in `work.x`.
pub(super) fn decide_boundaries(
    boundaries: &Boundaries,
    compute: &Compute,
    rows: &[SequenceRow],
    work: &mut Work,
) -> Result<()> {
    work.decisions.clear();
    let entropies = |sequence: usize| -> Result<&[f64]> {
        let state: &HourglassState = state_ref(&*rows[sequence].state)?;
        Ok(state.companion.as_ref().map_or(&[], |companion| &companion.entropies))
    };
    let evidence = Evidence {
        positions: &work.positions,
        symbols: &work.symbols,
        stream_positions: &work.stream_positions,
        hidden: &work.x,
        noise: &work.noise,
        entropies: &entropies,
    };
    boundaries.decide(compute, &evidence, &mut work.boundary, &mut work.decisions)
}

/// Stores the pre stack's outputs and boundary decisions in the rows, and pools each segment that closes; `pooling` is `None` in a
/// vanilla model.
pub(super) fn pool_closed(
    pooling: Option<Pooling>,
    rows: &mut [SequenceRow],
    which: &[usize],
    work: &mut Work,
) -> Result<()> {
    let dim = work.x.len() / work.positions.len();
    for ((&Position { sequence, index: position }, decision), x) in
        work.positions.iter().zip(&work.decisions).zip(work.x.chunks_exact(dim))
    {
        let row = &mut rows[sequence];
        row.decisions.push(SymbolBoundary {
            boundary: decision.closes,
            depth: 0,
            probability: decision.probability,
            end_logprob: None,
        });
        // wanted logits are those of the last symbols
        let wanted = row.decisions.len() + row.wanted() > row.feed.len();
        let state: &mut HourglassState = state_mut(&mut *row.state)?;
        state.pre.advance(1);
        if wanted || state.pooled.is_some() {
            state.hidden.extend_from_slice(x);
        }
        let (Some(pooled), Some(pooling)) = (&mut state.pooled, pooling) else { continue };
        let start = pooled.segment_ends.open_start();
        if position < start {
            // A resumed sequence feeds the end of a skipped segment again: nothing closes there.
            row.decisions.iter_mut().next_back().into_iter().for_each(|last| last.boundary = false);
            continue;
        }
        if pooling.sums() {
            state.pre.add_output(position, x, position > start)?;
        } else {
            state.pre.write_output(position, x)?;
        }
        if decision.closes {
            // now, while the cache still holds every output that pooling reads
            let offset = pooled.closed_vectors.len();
            pooled.closed_vectors.resize(offset + dim, 0.0);
            pool_segment(pooling, &state.pre, start..=position, &mut pooled.closed_vectors[offset..]);
            pooled.segment_ends.push(position);
        }
    }
    for (&index, processed) in which.iter().zip(&mut work.processed) {
        *processed = rows[index].decisions.len();
    }
    Ok(())
}

/// `out` (D) = the pooled vector of the segment with these symbols, from the outputs that the pre stack's cache keeps.
fn pool_segment(pooling: Pooling, pre: &KvCache, symbols: RangeInclusive<usize>, out: &mut [f32]) {
    if pooling.sums() {
        return mean_of_sum(pre.output(*symbols.end()), symbols.count(), out);
    }
    let from = (symbols.end() + 1).saturating_sub(pooling.lookback()).max(*symbols.start());
    pooling.pool((from..=*symbols.end()).map(|t| pre.output(t)), out);
}

/// Rows that closed a segment wait for their segment step; all others can be finished.
pub(super) fn set_fed_status(rows: &mut [SequenceRow], which: &[usize]) -> Result<()> {
    for &index in which {
        let waits = state(rows, index)?.needs_segment_step();
        rows[index].status = if waits { StepStatus::Waiting } else { StepStatus::Unfinished };
    }
    Ok(())
}

/// Copies the middle stack's last output, which symbols in flight before the first new segment end still see.
pub(super) fn keep_last_closed(rows: &mut [SequenceRow], waiting: &[usize]) -> Result<()> {
    for &index in waiting {
        let PooledState { middle, middle_outputs, middle_outputs_start, .. } = state(rows, index)?.pooled_mut()?;
        *middle_outputs_start = middle.len() - 1;
        middle_outputs.clear();
        if *middle_outputs_start < middle.first() {
            // no symbol sees the last segment before a resumed sequence's start
            middle_outputs.resize(middle.layout().output, 0.0);
        } else {
            middle_outputs.extend_from_slice(middle.output(*middle_outputs_start));
        }
    }
    Ok(())
}

/// `work.x` (segments, D) = the pooled vectors of the next chunk of each row's new segments.
pub(super) fn gather_segments(
    middle: &Stack,
    rows: &mut [SequenceRow],
    waiting: &[usize],
    work: &mut Work,
) -> Result<bool> {
    work.positions.clear();
    for &index in waiting {
        let pooled = state(rows, index)?.pooled_mut()?;
        let start = pooled.middle.len();
        let chunk = (pooled.segment_ends.len() + 1 - start).min(middle.window.chunk());
        middle.reserve(&mut pooled.middle, chunk)?;
        work.positions.extend((start..start + chunk).map(|position| Position { sequence: index, index: position }));
    }
    let dim = width(middle);
    let x = sized(&mut work.x, work.positions.len() * dim); // (segments, D)
    for (&Position { sequence, index: position }, x) in work.positions.iter().zip(x.chunks_exact_mut(dim)) {
        let pooled = state(rows, sequence)?.pooled_mut()?;
        let index = position - pooled.middle_outputs_start - 1;
        x.copy_from_slice(&pooled.closed_vectors[index * dim..][..dim]);
    }
    work.show(HourglassStage::Pooled);
    Ok(!work.positions.is_empty())
}

/// Stores the middle stack's outputs in the rows.
pub(super) fn scatter_middle(rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
    work.show(HourglassStage::MiddleOutput);
    let dim = work.x.len() / work.positions.len();
    for (&Position { sequence, index: position }, x) in work.positions.iter().zip(work.x.chunks_exact(dim)) {
        let PooledState { middle, middle_outputs, .. } = state(rows, sequence)?.pooled_mut()?;
        middle.write_output(position, x)?;
        middle.advance(1);
        middle_outputs.extend_from_slice(x);
    }
    Ok(())
}

/// Counts in `work.processed` the symbols in flight that the post stack has processed: all symbols before its cache's start,
/// where a sequence was resumed.
pub(super) fn count_post(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.processed.clear();
    for &index in which {
        let fed = rows[index].decisions.len();
        let state = state(rows, index)?;
        work.processed.push((state.pooled()?.post.len() - state.finished).min(fed));
    }
    Ok(())
}

/// `work.x` (symbols, D) = for the next chunk of each row's symbols in flight, the pre stack's output plus the middle stack's
/// output for the last closed segment.
pub(super) fn gather_upsampled(
    post: &Stack,
    rows: &mut [SequenceRow],
    which: &[usize],
    work: &mut Work,
) -> Result<bool> {
    work.positions.clear();
    for (&index, &processed) in which.iter().zip(&work.processed) {
        let chunk = (rows[index].decisions.len() - processed).min(post.window.chunk());
        let cache = &mut state(rows, index)?.pooled_mut()?.post;
        post.reserve(cache, chunk)?;
        let start = cache.len();
        work.positions.extend((start..start + chunk).map(|position| Position { sequence: index, index: position }));
    }
    let dim = width(post);
    let x = sized(&mut work.x, work.positions.len() * dim); // (symbols, D)
    for (&Position { sequence, index: position }, x) in work.positions.iter().zip(x.chunks_exact_mut(dim)) {
        let state = state(rows, sequence)?;
        let residual = &state.hidden[(position - state.finished) * dim..][..dim];
        for ((x, residual), middle) in x.iter_mut().zip(residual).zip(state.pooled()?.upsampled(position)) {
            *x = residual + middle;
        }
    }
    work.show(HourglassStage::PostInput);
    Ok(!work.positions.is_empty())
}

/// Replaces the pre stack's outputs, which are no longer needed, by the post stack's.
pub(super) fn scatter_post(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.show(HourglassStage::PostOutput);
    let dim = work.x.len() / work.positions.len();
    for (&Position { sequence, index: position }, x) in work.positions.iter().zip(work.x.chunks_exact(dim)) {
        let state = state(rows, sequence)?;
        let offset = (position - state.finished) * dim;
        state.hidden[offset..offset + dim].copy_from_slice(x);
        state.pooled_mut()?.post.advance(1);
    }
    count_post(rows, which, work)
}

/// `work.wanted` (wanted, D) = the vectors whose logits are wanted: each row's last ones, row after row.
pub(super) fn gather_wanted(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.wanted.clear();
    for &index in which {
        let fed = rows[index].decisions.len();
        let wanted = rows[index].wanted();
        let state = state(rows, index)?;
        // a vanilla model kept the wanted vectors only
        let kept = if state.pooled.is_some() { fed } else { wanted };
        let unwanted = state.hidden.len() / kept.max(1) * kept.saturating_sub(wanted);
        work.wanted.extend_from_slice(state.hidden.get(unwanted..).unwrap_or_default());
        state.hidden.clear();
    }
    Ok(())
}

/// Records that no symbol of these rows is in flight any more.
pub(super) fn finish_rows(rows: &mut [SequenceRow], which: &[usize]) -> Result<()> {
    for &index in which {
        let state = state(rows, index)?;
        state.finished = state.pre.len();
    }
    Ok(())
}
