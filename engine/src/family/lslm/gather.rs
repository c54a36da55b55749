//! Moves vectors between the rows' states and the batch `work.x`: the plumbing of the two encoders in `model`'s forward pass, in
//! its order. Hot path, as `model` is.

use super::{
    state::LslmState,
    work::{LslmStage, UnreadSymbols, Work, state},
};
use crate::{
    decode::{
        contract::{Card, SequenceRow, StepStatus, SymbolBoundary, state_mut, state_ref},
        trace,
    },
    error::{Error, Result},
    family::parts::step::check_feed,
    kernels::distribution::sigmoid,
    nn::{Position, boundary::summed::Summed, pooling::Pooling, sized},
};

/// Checks a row's feed and appends its symbols to the sequence; their boundaries follow in [`cut_segments`].
pub(super) fn append_feed(card: &Card, row: &mut SequenceRow) -> Result<()> {
    check_feed(card, row, !state_ref::<LslmState>(&*row.state)?.in_flight)?;
    let SequenceRow { state, feed, .. } = row;
    let state: &mut LslmState = state_mut(&mut **state)?;
    let before = state.symbols.len();
    match feed[..] {
        [trace::END] if state.open_len() == 0 => {
            return Err(Error::Internal("cannot end a segment without symbols".into()));
        }
        [trace::BEGIN] if before > 0 => {
            return Err(Error::Internal(format!("cannot begin a sequence that has {before} symbols")));
        }
        [trace::END | trace::BEGIN] => {}
        _ => {
            state.symbols.extend(feed.iter().map(|&item| trace::symbol(item)));
            let checked = card.vocabulary.check_ids("feed", &state.symbols[before..]);
            if checked.is_err() {
                state.symbols.truncate(before);
            }
            checked?;
        }
    }
    state.in_flight = true;
    Ok(())
}

/// Lists the symbols of rows that need the predictor: some fed symbol came without a boundary.
pub(super) fn gather_unread_symbols(rows: &[SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.unread.clear();
    work.positions.clear();
    for &index in which {
        let SequenceRow { feed, state, .. } = &rows[index];
        let state: &LslmState = state_ref(&**state)?;
        if !trace::is_control(feed) && feed.iter().any(|&item| trace::ends_segment(item).is_none()) {
            let start = state.encoded();
            work.unread.push(UnreadSymbols { row: index, start });
            let unread = start..state.symbols.len();
            work.positions.extend(unread.map(|t| Position { sequence: index, index: t + 1 }));
        }
    }
    Ok(())
}

/// Lists the symbols of closed segments that the token encoder has not read.
pub(super) fn gather_closed_symbols(rows: &mut [SequenceRow], waiting: &[usize], work: &mut Work) -> Result<()> {
    work.positions.clear();
    for &index in waiting {
        let state = state(rows, index)?;
        let closed = state.segment_start(state.segment_ends.len());
        work.positions.extend((state.encoded()..closed).map(|t| Position { sequence: index, index: t + 1 }));
    }
    Ok(())
}

/// `work.x` (symbols, `dim`) = the embeddings of the symbols at `work.positions`; makes room in the token encoder's caches.
pub(super) fn embed_symbols(embedding: &[f32], dim: usize, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
    if work.positions.is_empty() {
        return Ok(());
    }
    let x = sized(&mut work.x, work.positions.len() * dim); // (symbols, D)
    let mut offset = 0;
    while let Some(&Position { sequence, index: position }) = work.positions.get(offset) {
        let run = work.positions[offset..].iter().take_while(|position| position.sequence == sequence).count();
        let state = state(rows, sequence)?;
        state.token.reserve(run)?;
        for (x, &symbol) in x[offset * dim..].chunks_exact_mut(dim).zip(&state.symbols[position - 1..][..run]) {
            x.copy_from_slice(&embedding[symbol as usize * dim..][..dim]);
        }
        offset += run;
    }
    Ok(())
}

/// Stores the token encoder's outputs and the predictor's decisions in the rows.
pub(super) fn scatter_symbols(predictor: &Summed, rows: &mut [SequenceRow], work: &Work) -> Result<()> {
    let dim = work.x.len() / work.positions.len();
    for ((position, x), &logit) in work.positions.iter().zip(work.x.chunks_exact(dim)).zip(&work.boundary_logits) {
        let state = state(rows, position.sequence)?;
        state.token.write_output(position.index, x)?;
        state.token.advance(1);
        state.predicted.push(predictor.closes(logit));
    }
    Ok(())
}

/// Appends segment ends and the symbols' boundary decisions. Rows that closed a segment wait for their segment step; all others
/// can be finished.
pub(super) fn cut_segments(predictor: &Summed, rows: &mut [SequenceRow], which: &[usize], work: &Work) -> Result<()> {
    let mut unread = work.unread.iter().peekable();
    let mut logits = &work.boundary_logits[..work.positions.len()];
    for &index in which {
        let SequenceRow { state, feed, decisions, status, .. } = &mut rows[index];
        let state: &mut LslmState = state_mut(&mut **state)?;
        decisions.clear();
        if trace::is_control(feed) {
            let boundary = feed[..] == [trace::END];
            decisions.push(SymbolBoundary { boundary, depth: 0, probability: None, end_logprob: None });
            if boundary {
                state.segment_ends.push(state.symbols.len() - 1);
            }
        } else {
            // the logits of this row's last symbols, if the token encoder read them in this step
            let read = unread.next_if(|unread| unread.row == index).map_or(0, |row| state.symbols.len() - row.start);
            let (own, others) = logits.split_at(read);
            logits = others;
            let first_fed = state.symbols.len() - feed.len();
            let first_read = state.symbols.len() - read;
            for (t, &item) in (first_fed..).zip(feed.iter()) {
                let logit = t.checked_sub(first_read).and_then(|offset| own.get(offset)).copied();
                let predicted = logit.is_some_and(|logit| predictor.closes(logit));
                let boundary = trace::ends_segment(item).unwrap_or(predicted);
                decisions.push(SymbolBoundary {
                    boundary,
                    depth: 0,
                    probability: logit.map(sigmoid),
                    end_logprob: None,
                });
                if boundary {
                    state.segment_ends.push(t);
                }
            }
        }
        *status = if state.needs_segment_step() { StepStatus::Waiting } else { StepStatus::Unfinished };
    }
    Ok(())
}

/// `work.x` (segments, `dim`) = the pooled vectors of the segments that the context encoder has not read; makes room for them.
pub(super) fn pool_segments(
    pooling: Pooling,
    dim: usize,
    rows: &mut [SequenceRow],
    waiting: &[usize],
    work: &mut Work,
) -> Result<()> {
    work.positions.clear();
    for &index in waiting {
        let state = state(rows, index)?;
        let start = state.context.len();
        let end = state.segment_ends.len() + 1;
        state.context.reserve(end - start)?;
        state.memory.reserve(end - start)?;
        work.positions.extend((start..end).map(|position| Position { sequence: index, index: position }));
    }
    let x = sized(&mut work.x, work.positions.len() * dim); // (segments, D)
    for (&Position { sequence, index: position }, x) in work.positions.iter().zip(x.chunks_exact_mut(dim)) {
        let state = state(rows, sequence)?;
        let symbols = state.segment(position - 1);
        pooling.pool(symbols.map(|t| state.token.output(t + 1)), x);
    }
    work.show(LslmStage::Pooled);
    Ok(())
}

/// Records that context encoder and decoder memory hold the segments at `positions`.
pub(super) fn advance_segments(rows: &mut [SequenceRow], positions: &[Position]) -> Result<()> {
    for position in positions {
        let state = state(rows, position.sequence)?;
        state.context.advance(1);
        state.memory.advance(1);
    }
    Ok(())
}

/// Ends the segment step: the rows can be finished.
pub(super) fn set_summarized(rows: &mut [SequenceRow], waiting: &[usize]) -> Result<()> {
    for &index in waiting {
        state(rows, index)?.count_agreed();
        rows[index].status = StepStatus::Unfinished;
    }
    Ok(())
}
