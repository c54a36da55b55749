//! Moves vectors between the rows' states and the batch `work.x`: the plumbing of the segment decoder in `model`'s forward pass.
//! Hot path, as `model` is.
//!
//! The decoder reads a segment's opening symbol and then its symbols; it attends to these and to the segments before. The symbol
//! after t is predicted by the vector at t, or, if a segment ends with t, by the next segment's first vector; the vector at t
//! then predicts the segment's end. The decoder's keys of open segments live in their sequences; they are computed only where
//! logits are wanted, from the last symbol decoded on. Segments that close while all logits are wanted use spare caches.

use super::{
    state::LslmState,
    work::{EndDecision, SegmentRun, WantedVectors, Work, state},
};
use crate::{
    decode::{
        contract::{SequenceRow, Want, state_mut, state_ref},
        sampling::logprobs::log_probability,
        trace,
    },
    error::Result,
    kernels::attention::PageLayout,
    nn::{Position, attention::layer::Caches, kv_cache::KvCache},
};

/// Maximum closed segments that one pass decodes.
const MAX_RUNS: usize = 64;

/// The decoder's caches, by run.
pub(super) struct SegmentCaches<'a> {
    pub(super) rows: &'a mut [SequenceRow],
    pub(super) runs: &'a [SegmentRun],
    pub(super) spare: &'a mut [KvCache],
}

impl Caches for SegmentCaches<'_> {
    fn cache(&self, run: usize) -> Result<&KvCache> {
        let SegmentRun { row, spare, .. } = self.runs[run];
        match spare {
            Some(index) => Ok(&self.spare[index]),
            None => Ok(&state_ref::<LslmState>(&*self.rows[row].state)?.decoder),
        }
    }

    fn cache_mut(&mut self, run: usize) -> Result<&mut KvCache> {
        let SegmentRun { row, spare, .. } = self.runs[run];
        match spare {
            Some(index) => Ok(&mut self.spare[index]),
            None => Ok(&mut state_mut::<LslmState>(&mut *self.rows[row].state)?.decoder),
        }
    }
}

/// The memory that a run attends to: its sequence's segments.
pub(super) fn segment_memory<'a>(caches: &'a SegmentCaches<'_>, run: usize) -> Result<&'a KvCache> {
    Ok(&state_ref::<LslmState>(&*caches.rows[caches.runs[run].row].state)?.memory)
}

/// True if the row wants logits after each of its fed symbols.
fn wants_all(row: &SequenceRow) -> bool {
    row.want == Want::All && !trace::is_control(&row.feed)
}

/// Reserves room for the wanted vectors, (wanted, `dim`), of the rows `which`.
pub(super) fn reserve_wanted(dim: usize, rows: &[SequenceRow], which: &[usize], work: &mut Work) {
    let wanted = &mut work.wanted;
    let mut count = 0;
    wanted.slots.clear();
    for &index in which {
        wanted.slots.push(count);
        count += rows[index].wanted();
    }
    // a vector that no run fills must not pass for a number
    wanted.vectors.clear();
    wanted.vectors.resize(count * dim, f32::NAN);
    wanted.end_vectors.clear();
    wanted.end_decisions.clear();
    wanted.next_row = 0;
    wanted.next_segment = None;
}

/// Lists in `work.runs` the next closed segments of rows that want all logits; false if there are none left.
pub(super) fn gather_closed_segments(
    layout: PageLayout,
    rows: &mut [SequenceRow],
    which: &[usize],
    work: &mut Work,
) -> Result<bool> {
    work.runs.clear();
    while let Some(&row) = which.get(work.wanted.next_row).filter(|_| work.runs.len() < MAX_RUNS) {
        let scored = wants_all(&rows[row]);
        let state = state(rows, row)?;
        let segment = work.wanted.next_segment.unwrap_or(state.finished_segments);
        if !scored || segment == state.segment_ends.len() {
            work.wanted.next_row += 1;
            work.wanted.next_segment = None;
            continue;
        }
        // the segment that was open until this step continues in its sequence's cache
        let own = state.decoder_segment == segment;
        work.runs.push(SegmentRun {
            row,
            slot: work.wanted.slots[work.wanted.next_row],
            segment,
            start: if own { state.decoder.len() } else { 0 },
            end: state.segment(segment).len() + 1,
            spare: (!own).then_some(work.runs.len()),
        });
        work.wanted.next_segment = Some(segment + 1);
    }
    work.clear_spare_caches(work.runs.len(), layout);
    Ok(!work.runs.is_empty())
}

/// Lists in `work.runs` the open segments of rows that want logits.
pub(super) fn gather_open_segments(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.runs.clear();
    for (&row, &slot) in which.iter().zip(&work.wanted.slots) {
        let want = rows[row].want;
        let begins = rows[row].feed[..] == [trace::BEGIN];
        let state = state(rows, row)?;
        state.switch_to_open_segment();
        if begins {
            state.decoder.truncate(0);
        }
        if want != Want::Nothing {
            let segment = state.segment_ends.len();
            let start = state.decoder.len();
            let end = state.open_len() + 1;
            work.runs.push(SegmentRun { row, slot, segment, start, end, spare: None });
        }
    }
    Ok(())
}

/// `work.x` (positions, `dim`) = the embeddings of the runs' symbols; makes room in the decoder's caches.
pub(super) fn gather_runs(
    embedding: &[f32],
    dim: usize,
    segment_start: u32,
    rows: &mut [SequenceRow],
    work: &mut Work,
) -> Result<()> {
    work.positions.clear();
    work.memory_positions.clear();
    work.x.clear();
    for (index, run) in work.runs.iter().enumerate() {
        let state = state(rows, run.row)?;
        let cache = run.spare.map_or(&mut state.decoder, |spare| &mut work.spare_caches[spare]);
        cache.reserve(run.end - run.start)?;
        let first = state.segment_start(run.segment);
        for position in run.start..run.end {
            work.positions.push(Position { sequence: index, index: position });
            // memory position 0 is the start symbol's segment, so segment m attends up to position m
            work.memory_positions.push(Position { sequence: index, index: run.segment });
            let symbol = if position == 0 { segment_start } else { state.symbols[first + position - 1] };
            work.x.extend_from_slice(&embedding[symbol as usize * dim..][..dim]); // (positions, E)
        }
    }
    Ok(())
}

/// Stores the runs' vectors in `work.wanted`.
pub(super) fn scatter_runs(dim: usize, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
    let mut rest = &work.x[..];
    for run in &work.runs {
        let (own, others) = rest.split_at((run.end - run.start) * dim);
        let cache = match run.spare {
            Some(spare) => &mut work.spare_caches[spare],
            None => &mut state(rows, run.row)?.decoder,
        };
        cache.advance(run.end - run.start);
        scatter_run(dim, &rows[run.row], run, own, &mut work.wanted)?;
        rest = others;
    }
    Ok(())
}

/// Copies a run's vectors, `own` (positions, `dim`): those of wanted logits to the row's slots, those that predict a segment's end
/// to the end vectors.
fn scatter_run(dim: usize, row: &SequenceRow, run: &SegmentRun, own: &[f32], wanted: &mut WantedVectors) -> Result<()> {
    let state: &LslmState = state_ref(&*row.state)?;
    let all = wants_all(row);
    let closed = run.segment < state.segment_ends.len();
    let first = state.segment_start(run.segment);
    for (position, vector) in (run.start..run.end).zip(own.chunks_exact(dim)) {
        let last = position + 1 == run.end;
        // index among the fed symbols of the symbol that the vector follows
        let fed = (first + position).checked_sub(1 + state.finished);
        let slot = match fed {
            Some(decision) if all && closed && last => {
                wanted.end_vectors.extend_from_slice(vector);
                wanted.end_decisions.push(EndDecision { row: run.row, decision });
                None
            }
            _ if all => fed.map(|fed| run.slot + fed),
            _ => last.then_some(run.slot),
        };
        if let Some(slot) = slot {
            wanted.vectors[slot * dim..][..dim].copy_from_slice(vector);
        }
    }
    Ok(())
}

/// Writes the log-probabilities of segment ends into the rows' decisions, from `work.logits` (segments, V); V = `symbols`.
pub(super) fn end_logprobs(symbols: usize, segment_end: u32, rows: &mut [SequenceRow], work: &Work) -> Result<()> {
    for (logits, end) in work.logits.chunks_exact(symbols).zip(&work.wanted.end_decisions) {
        let logprob = log_probability(logits, segment_end)?;
        if let Some(decision) = rows[end.row].decisions.get_mut(end.decision) {
            decision.end_logprob = Some(logprob as f32);
        }
    }
    Ok(())
}

/// Records that no symbol of these rows is in flight any more.
pub(super) fn finish_rows(rows: &mut [SequenceRow], which: &[usize]) -> Result<()> {
    for &index in which {
        let state = state(rows, index)?;
        state.finished = state.symbols.len();
        state.finished_segments = state.segment_ends.len();
        state.in_flight = false;
    }
    Ok(())
}
