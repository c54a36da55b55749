//! The end of a step: takes the outcome of each request whose rows are ready, sends its characters, and counts the step.

use super::{Batch, LatestStep, drafts::has_draft};
use crate::{
    decode::{contract::StepStatus, session::SessionProgress},
    engine::{
        clock,
        recovery::guarded,
        request::{RequestKind, timing::SymbolLatency},
        shared::Inner,
    },
    error::Result,
};
use std::time::{Duration, Instant};

impl Batch {
    /// Takes the outcome of every request whose rows are all ready.
    pub(super) fn absorb(&mut self) {
        let now = clock::now();
        for index in 0..self.requests.len() {
            let request = &self.requests[index];
            let ready = |&row: &usize| self.row_table.rows[row].status == StepStatus::Ready;
            if !request.in_flight || request.outcome.is_some() || !request.row_indices.iter().all(ready) {
                continue;
            }
            // the bookkeeping of one request ends no other
            if let Err(error) = guarded(|| self.absorb_request(index, now)) {
                self.requests[index].outcome = Some(Err(error));
            }
        }
    }

    fn absorb_request(&mut self, index: usize, now: Instant) -> Result<()> {
        let request = &mut self.requests[index];
        let prefilling = request.is_prefilling(&self.row_table.rows);
        request.in_flight = false;
        let positions: usize = request.row_indices.iter().map(|&row| self.row_table.rows[row].positions()).sum();
        let drafted = if has_draft(request) { positions.saturating_sub(1) } else { 0 };
        request.count_fed(positions, drafted);
        let outcome = match &request.kind {
            RequestKind::Text(_) => self.absorb_text(index, prefilling),
            RequestKind::Document(_) => {
                let answered = request.answered();
                let outcome = self.absorb_summary(index);
                self.counters.generated_chars += (self.requests[index].answered() - answered) as u64;
                outcome
            }
        };
        self.record_progress(index, now);
        self.requests[index].send_output();
        outcome
    }

    fn absorb_text(&mut self, index: usize, prefilling: bool) -> Result<()> {
        let Inner { model, segment_cache, observer, .. } = &*self.inner;
        let request = &mut self.requests[index];
        let (RequestKind::Text(text), Some(&row)) = (&mut request.kind, request.row_indices.first()) else {
            return Ok(());
        };
        let row = &mut self.row_table.rows[row];
        request.timer.wait_steps += row.waited as u64;
        let before = text.session.usage();
        let progress = text.session.absorb(row);
        let after = text.session.usage();
        self.counters.drafted_chars += (after.drafted_chars - before.drafted_chars) as u64;
        self.counters.accepted_chars += (after.accepted_chars - before.accepted_chars) as u64;
        let middle = self.counters.count_fed(row, prefilling, model.card().pooled);
        observer.middle(middle.run, middle.skipped);
        match progress? {
            SessionProgress::Finished(reason) => request.outcome = Some(Ok(reason)),
            SessionProgress::Prefilling if text.session.looks_ahead() => {
                text.cache_open_state(segment_cache, &*row.state)
            }
            SessionProgress::Prefilling => {}
            // a complete prompt is cached at once: the next request may share it
            SessionProgress::Decoding if prefilling => text.cache_state(segment_cache, &*row.state),
            SessionProgress::Decoding => {}
        }
        Ok(())
    }

    /// Records when the request's symbols were ready, and reports latencies to the observer.
    fn record_progress(&mut self, index: usize, now: Instant) {
        let observer = &*self.inner.observer;
        let rows = &self.row_table.rows;
        let request = &mut self.requests[index];
        let prefilling = request.is_prefilling(rows);
        // only the sampled symbol may end a segment, not a drafted one after it
        let first_row = request.row_indices.first();
        let boundary = first_row.is_some_and(|&row| rows[row].decisions.iter().any(|mark| mark.boundary));
        let latency = request.timer.record_progress(now, prefilling, request.answered());
        match latency.filter(|_| request.is_generating()) {
            None => {}
            Some(SymbolLatency::First(after)) => observer.first_char(after),
            Some(SymbolLatency::Next { gap, symbols }) => {
                observer.gap(gap, boundary);
                // accepted symbols come together
                (1..symbols).for_each(|_| observer.gap(Duration::ZERO, false));
                if boundary && let Some(took) = request.timer.start_segment(now) {
                    observer.segment(took);
                }
            }
        }
    }

    /// Counts the step that began at `began`, which fed `fed` symbols and encoded `encoded`, and publishes the totals.
    pub(super) fn count_step(&mut self, began: Instant, fed: usize, encoded: usize) {
        if !(self.fed.is_empty() && encoded == 0) {
            self.latest_step =
                Some(LatestStep { symbols: fed + encoded, rows: self.fed.len(), took: clock::since(began) });
        }
        self.counters.steps += u64::from(!self.fed.is_empty());
        self.counters.symbol_rows += self.fed.len() as u64;
        self.counters.segment_steps += u64::from(!self.due.is_empty());
        self.counters.segment_rows += self.due.len() as u64;
        *self.inner.lock_counters() = self.counters;
        if !(self.fed.is_empty() && self.due.is_empty()) {
            self.inner.observer.step(self.fed.len(), fed, self.due.len());
        }
    }
}
