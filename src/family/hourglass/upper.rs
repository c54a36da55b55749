//! The hourglass above the pre stack: the middle stack over the segments just closed, and the post stack over the symbols in
//! flight, each a piece of a row's at a time, so that a windowed stack never holds more than its window and a piece. Hot path, as
//! `step`.

use super::{
    model::{Hourglass, Pooled},
    state::PooledState,
    step::{MIDDLE, Of, POST, Stage, Work, pick_up, state},
};
use crate::{
    decode::contract::{SequenceRow, StepStatus},
    error::Result,
    kernels::rowwise::layer_norm,
    nn::{Position, sized},
};

impl Hourglass {
    /// Runs the middle stack over the segments just closed, a piece of each row's at a time.
    pub(super) fn middle(
        &self,
        model: &Pooled,
        rows: &mut [SequenceRow],
        waiting: &[usize],
        work: &mut Work,
    ) -> Result<()> {
        for &index in waiting {
            let pooled = state(rows, index)?.pooled_mut()?;
            let PooledState { middle, above, above_from, .. } = pooled;
            // symbols in flight before the first of these ends see the segment before
            *above_from = middle.len() - 1;
            above.clear();
            if *above_from < middle.first() {
                // nobody looks at the last segment of those that were passed over
                above.resize(middle.layout().output, 0.0);
            } else {
                above.extend_from_slice(middle.output(*above_from));
            }
        }
        loop {
            work.places.clear();
            for &index in waiting {
                let PooledState { middle, ends, .. } = state(rows, index)?.pooled_mut()?;
                let (done, closed) = (middle.len(), ends.len() + 1);
                let more = (closed - done).min(model.middle.window.chunk());
                model.middle.reserve(middle, more)?;
                work.places.extend((done..done + more).map(|position| Position { sequence: index, index: position }));
            }
            if work.places.is_empty() {
                break;
            }
            self.middle_piece(model, rows, work)?;
        }
        for &index in waiting {
            rows[index].status = StepStatus::Unfinished;
        }
        Ok(())
    }

    fn middle_piece(&self, model: &Pooled, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        let dim = self.pre.layers[0].qkv.inputs();
        let x = sized(&mut work.x, work.places.len() * dim); // (segments, D)
        for (place, x) in work.places.iter().zip(x.chunks_exact_mut(dim)) {
            // the first in flight follows the last one whose output was known before
            let PooledState { closed, above_from, .. } = state(rows, place.sequence)?.pooled_mut()?;
            x.copy_from_slice(&closed[(place.index - *above_from - 1) * dim..][..dim]);
        }
        work.show(Stage::Pooled);
        layer_norm(&self.compute, &mut work.x, &model.norm);
        work.show(Stage::PooledNormed);
        let caches = &mut Of::<MIDDLE>(rows);
        model.middle.forward(&self.compute, &mut work.x, &work.places, caches, &mut work.stack)?;
        work.show(Stage::MiddleOutput);
        for (place, x) in work.places.iter().zip(work.x.chunks_exact(dim)) {
            let PooledState { middle, above, .. } = state(rows, place.sequence)?.pooled_mut()?;
            middle.write_output(place.index, x)?;
            middle.advance(1);
            above.extend_from_slice(x);
        }
        Ok(())
    }

    /// Upsamples, adds the residual, and runs the post stack for the symbols it has not seen, a piece of each row's at a time;
    /// what the head is to take is then in `work.picked`.
    pub(super) fn upper(
        &self,
        model: &Pooled,
        rows: &mut [SequenceRow],
        which: &[usize],
        work: &mut Work,
    ) -> Result<()> {
        work.fed.clear();
        for &index in which {
            work.fed.push(settled(rows, index)?);
        }
        loop {
            work.places.clear();
            for (&index, &fed) in which.iter().zip(&work.fed) {
                let more = (rows[index].decisions.len() - fed).min(model.post.window.chunk());
                let post = &mut state(rows, index)?.pooled_mut()?.post;
                model.post.reserve(post, more)?;
                let done = post.len();
                work.places.extend((done..done + more).map(|position| Position { sequence: index, index: position }));
            }
            if work.places.is_empty() {
                break;
            }
            self.upper_piece(model, rows, which, work)?;
        }
        pick_up(rows, which, work)
    }

    fn upper_piece(&self, model: &Pooled, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let dim = self.pre.layers[0].qkv.inputs();
        let x = sized(&mut work.x, work.places.len() * dim); // (symbols, D)
        for (place, x) in work.places.iter().zip(x.chunks_exact_mut(dim)) {
            let state = state(rows, place.sequence)?;
            let below = &state.hidden[(place.index - state.finished) * dim..][..dim];
            for ((x, below), above) in x.iter_mut().zip(below).zip(state.pooled()?.seen(place.index)) {
                *x = below + above;
            }
        }
        work.show(Stage::PostInput);
        let caches = &mut Of::<POST>(rows);
        model.post.forward(&self.compute, &mut work.x, &work.places, caches, &mut work.stack)?;
        work.show(Stage::PostOutput);
        // what was taken from below is not needed any more: what the head takes comes in its place
        for (place, x) in work.places.iter().zip(work.x.chunks_exact(dim)) {
            let state = state(rows, place.sequence)?;
            let at = (place.index - state.finished) * dim;
            state.hidden[at..at + dim].copy_from_slice(x);
            state.pooled_mut()?.post.advance(1);
        }
        for (&index, fed) in which.iter().zip(&mut work.fed) {
            *fed = settled(rows, index)?;
        }
        Ok(())
    }
}

/// How many of the symbols in flight the post stack is through with: all before its end, where a sequence was taken up in its
/// middle.
fn settled(rows: &mut [SequenceRow], index: usize) -> Result<usize> {
    let fed = rows[index].decisions.len();
    let state = state(rows, index)?;
    Ok((state.pooled()?.post.len() - state.finished).min(fed))
}
