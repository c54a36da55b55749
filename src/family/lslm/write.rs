//! The finish step: the segment decoder. Hot path, as `step` is.
//!
//! A segment's row is its opening mark and then its symbols; it sees itself and the segments before. What predicts the symbol
//! after t is the row's vector at t, or, where a segment ends with t, the next row's first vector; the vector at t then
//! predicts the mark. Rows of open segments live in their sequences and are run only where logits are wanted: what was passed
//! over is run before. Rows of segments that end where all logits are wanted are run some dozens at a time, in working memory.

use super::{
    model::Lslm,
    state::LslmState,
    step::{Work, state},
};
use crate::{
    decode::{
        contract::{SequenceRow, StepStatus, Want, state_mut, state_ref},
        sampling::logprobs::log_probability,
        trace,
    },
    error::Result,
    family::parts::step::{hand_out, stepping},
    kernels::linear::Epilogue,
    nn::{Position, attention::layer::Caches, kv_cache::KvCache, sized, t5::T5Memory},
};

/// Rows of closed segments that are run at a time.
const TOGETHER: usize = 64;
/// The place of what nobody wants.
const UNWANTED: usize = usize::MAX;

/// A run of positions of one segment's row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    /// The sequence, by its row in the step, and its place among those that finish.
    row: usize,
    place: usize,
    segment: usize,
    /// The first position, and one past the last.
    from: usize,
    to: usize,
    /// Where its keys are, if not in the sequence.
    spare: Option<usize>,
}

/// The caches of some lines.
struct Lines<'a> {
    rows: &'a mut [SequenceRow],
    lines: &'a [Line],
    spare: &'a mut [KvCache],
}

impl Caches for Lines<'_> {
    fn cache(&self, line: usize) -> Result<&KvCache> {
        let Line { row, spare, .. } = self.lines[line];
        match spare {
            Some(index) => Ok(&self.spare[index]),
            None => Ok(&state_ref::<LslmState>(&*self.rows[row].state)?.open),
        }
    }

    fn cache_mut(&mut self, line: usize) -> Result<&mut KvCache> {
        let Line { row, spare, .. } = self.lines[line];
        match spare {
            Some(index) => Ok(&mut self.spare[index]),
            None => Ok(&mut state_mut::<LslmState>(&mut *self.rows[row].state)?.open),
        }
    }
}

impl Lslm {
    /// The finish step.
    pub(super) fn finish(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        stepping(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            self.lay_out(rows, unfinished, work);
            self.write_closed(rows, unfinished, work)?;
            self.write_open(rows, unfinished, work)?;
            self.end_logprobs(rows, work)?;
            self.logits(rows, unfinished, work)
        })
    }

    /// Sets aside room for what the head is to take.
    fn lay_out(&self, rows: &[SequenceRow], which: &[usize], work: &mut Work) {
        let mut wanted = 0;
        work.slots.clear();
        for &index in which {
            work.slots.push(wanted);
            wanted += rows[index].wanted();
        }
        // what is not filled in is not to pass for a number
        work.picked.clear();
        work.picked.resize(wanted * self.head.inputs(), f32::NAN);
        work.at_ends.clear();
        work.ends.clear();
    }

    /// Rows of segments that ended with symbols of which all logits are wanted.
    fn write_closed(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let (mut place, mut segment) = (0, None);
        while place < which.len() {
            work.lines.clear();
            while let Some(&row) = which.get(place).filter(|_| work.lines.len() < TOGETHER) {
                let scored = rows[row].want == Want::All && !trace::is_control(&rows[row].feed);
                let state = state(rows, row)?;
                let next = segment.unwrap_or(state.finished_ends);
                if !scored || next == state.ends.len() {
                    (place, segment) = (place + 1, None);
                    continue;
                }
                // the row that was open until now goes on where it is
                let own = state.open_of == next;
                let from = if own { state.open.len() } else { 0 };
                let (to, spare) = (state.segment(next).len() + 1, (!own).then_some(work.lines.len()));
                work.lines.push(Line { row, place, segment: next, from, to, spare });
                segment = Some(next + 1);
            }
            work.clear_spare(work.lines.len(), self.decoder.layout);
            self.write(rows, work)?;
        }
        Ok(())
    }

    /// Rows of open segments, as far as logits are wanted.
    fn write_open(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        work.lines.clear();
        for (place, &row) in which.iter().enumerate() {
            let SequenceRow { want, feed, .. } = &rows[row];
            let (want, begins) = (*want, feed[..] == [trace::BEGIN]);
            let state = state(rows, row)?;
            state.turn_to_open();
            if begins {
                state.open.truncate(0);
            }
            if want != Want::Nothing {
                let (segment, from, to) = (state.ends.len(), state.open.len(), state.open_len() + 1);
                work.lines.push(Line { row, place, segment, from, to, spare: None });
            }
        }
        self.write(rows, work)
    }

    /// Runs the decoder over `work.lines` and picks what is wanted of it.
    fn write(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        let dim = self.head.inputs();
        work.places.clear();
        work.seen.clear();
        work.x.clear();
        let mut lines = std::mem::take(&mut work.lines);
        for (index, line) in lines.iter().enumerate() {
            let state = state(rows, line.row)?;
            let cache = line.spare.map_or(&mut state.open, |spare| &mut work.spare[spare]);
            cache.reserve(line.to - line.from)?;
            let start = state.start_of(line.segment);
            for position in line.from..line.to {
                work.places.push(Position { sequence: index, index: position });
                // the start's own segment is at 0, so segment m sees as far as m
                work.seen.push(Position { sequence: index, index: line.segment });
                let symbol =
                    if position == 0 { self.specials.segment_start } else { state.symbols[start + position - 1] };
                work.x.extend_from_slice(&self.decoder_embedding[symbol as usize * dim..][..dim]); // (positions, D)
            }
        }
        let mut caches = Lines { rows, lines: &lines, spare: &mut work.spare };
        let memory = T5Memory { positions: &work.seen, cache: memory_of };
        let stack = &mut work.stack;
        self.decoder.forward(&self.compute, &mut work.x, &work.places, (&mut caches, Some(&memory)), stack)?;
        let mut rest = &work.x[..];
        for (index, line) in lines.iter().enumerate() {
            let (own, others) = rest.split_at((line.to - line.from) * dim);
            caches.cache_mut(index)?.advance(line.to - line.from);
            let slot = work.slots[line.place];
            pick(&caches.rows[line.row], line, (own, slot), (&mut work.picked, &mut work.at_ends, &mut work.ends))?;
            rest = others;
        }
        lines.clear();
        work.lines = lines;
        Ok(())
    }

    /// What the vectors at segments' ends say of the mark.
    fn end_logprobs(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        if work.ends.is_empty() {
            return Ok(());
        }
        self.head(work, true);
        for (logits, &(row, mark)) in work.logits.chunks_exact(self.head.outputs()).zip(&work.ends) {
            let logprob = log_probability(logits, self.specials.segment_end)?;
            if let Some(mark) = rows[row].decisions.get_mut(mark) {
                mark.end_logprob = Some(logprob as f32);
            }
        }
        Ok(())
    }

    /// The wanted logits of the rows `which`, which are then ready.
    fn logits(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        self.head(work, false);
        hand_out(rows, which, &work.logits, self.head.outputs())?;
        for &index in which {
            let state = state(rows, index)?;
            (state.finished, state.finished_ends) = (state.symbols.len(), state.ends.len());
            state.in_flight = false;
        }
        Ok(())
    }

    /// `work.logits` = those of what was picked, or of segments' ends.
    fn head(&self, work: &mut Work, ends: bool) {
        let vectors = if ends { &mut work.at_ends } else { &mut work.picked };
        if self.head_scale != 1.0 {
            vectors.iter_mut().for_each(|x| *x *= self.head_scale);
        }
        let logits = sized(&mut work.logits, vectors.len() / self.head.inputs() * self.head.outputs());
        self.head.apply(&self.compute, vectors, Epilogue::None, &mut work.stack.quantized, logits); // (vectors, V)
    }
}

/// A line's memory: its sequence's.
fn memory_of<'a>(lines: &'a Lines<'_>, line: usize) -> Result<&'a KvCache> {
    Ok(&state_ref::<LslmState>(&*lines.rows[lines.lines[line].row].state)?.memory)
}

/// Sorts a line's vectors, `own` (positions, D): into the places of wanted logits, the row's first of which is `slot`, and to
/// those that predict segments' ends.
fn pick(
    row: &SequenceRow,
    line: &Line,
    (own, slot): (&[f32], usize),
    (picked, at_ends, ends): (&mut [f32], &mut Vec<f32>, &mut Vec<(usize, usize)>),
) -> Result<()> {
    let state: &LslmState = state_ref(&*row.state)?;
    let dim = own.len() / (line.to - line.from).max(1);
    let all = row.want == Want::All && !trace::is_control(&row.feed);
    let closed = line.segment < state.ends.len();
    let start = state.start_of(line.segment);
    for (position, vector) in (line.from..line.to).zip(own.chunks_exact(dim.max(1))) {
        let last = position + 1 == line.to;
        // the symbol after which the vector stands, counted among those fed
        let after = (start + position).checked_sub(1 + state.finished);
        let target = match after {
            Some(after) if all && closed && last => {
                at_ends.extend_from_slice(vector);
                ends.push((line.row, after));
                UNWANTED
            }
            Some(after) if all => slot + after,
            None if all => UNWANTED,
            _ if last => slot,
            _ => UNWANTED,
        };
        if target != UNWANTED {
            picked[target * dim..][..dim].copy_from_slice(vector);
        }
    }
    Ok(())
}
