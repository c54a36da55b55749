//! Estimates, once a step, how long the step would have taken without pooling, and charges the difference to its requests.

use super::rows::RowTable;
use crate::{
    decode::contract::SequenceRow,
    engine::{
        calibration::{Calibrated, EngineStep, TimingTable, drift_correction::DriftCorrection},
        clock,
        request::Request,
    },
};
use std::{sync::Arc, time::Instant};

#[derive(Debug, Default)]
pub(super) struct UnpooledEstimate {
    drift: DriftCorrection,
    /// The table that `drift` corrects. A repeated calibration replaces it.
    table: Option<Arc<TimingTable>>,
    /// When the symbol step began.
    began: Option<Instant>,
    /// Segments that the segment step closed.
    closed: usize,
    /// Symbols that the finish step finished.
    finished: usize,
    /// Requests that were in flight before the step: they wait for a segment step.
    waiting: Vec<usize>,
    /// Symbols that the fed rows had before the step, in total.
    symbols_before: usize,
    /// Segments that the fed rows had before the step, in total.
    segments_before: usize,
}

impl UnpooledEstimate {
    /// Records the state before a step of the rows `fed`.
    pub(super) fn start_step(&mut self, requests: &[Request], rows: &[SequenceRow], fed: &[usize]) {
        self.waiting.clear();
        self.waiting.extend((0..requests.len()).filter(|&index| requests[index].in_flight));
        self.symbols_before = fed.iter().map(|&row| rows[row].state.len()).sum();
        self.segments_before = fed.iter().map(|&row| rows[row].state.segments()).sum();
        self.closed = 0;
        self.finished = 0;
        self.began = Some(clock::now());
    }

    /// Records the rows of the segment step that is about to run.
    pub(super) fn record_segment_step(&mut self, rows: &[SequenceRow], due: &[usize]) {
        let closed = |&row: &usize| rows[row].decisions.iter().filter(|mark| mark.boundary).count().max(1);
        self.closed = due.iter().map(closed).sum();
    }

    /// Records the rows of the finish step that is about to run.
    pub(super) fn record_finish_step(&mut self, rows: &[SequenceRow], unfinished: &[usize]) {
        self.finished = unfinished.iter().map(|&row| rows[row].positions().max(1)).sum();
    }

    /// Charges the step that began at `began` to its requests. Fed requests are charged the additional time without
    /// pooling. Waiting requests are credited the step's duration, since without pooling they would not have waited.
    pub(super) fn charge(
        &mut self,
        calibration: Option<&Calibrated>,
        requests: &mut [Request],
        row_table: &RowTable,
        fed: &[usize],
        began: Instant,
    ) {
        let Some(Ok(timing_table)) = calibration else {
            fed.iter().for_each(|&row| requests[row_table.owners[row]].timer.cannot_estimate());
            return;
        };
        if self.table.as_ref().is_none_or(|known| !Arc::ptr_eq(known, timing_table)) {
            self.drift = DriftCorrection::default();
            self.table = Some(Arc::clone(timing_table));
        }
        let rows = &row_table.rows;
        let symbols = fed.iter().map(|&row| rows[row].positions()).sum();
        let mean = |sum: usize| sum as f64 / fed.len().max(1) as f64;
        let step = EngineStep {
            chunk: fed.iter().any(|&row| rows[row].feed.len() > 1),
            fed: symbols,
            finished: self.finished,
            closed: self.closed,
            waiting: self.waiting.len(),
            // the context of the symbol in the middle of a chunk
            context: mean(self.symbols_before) + mean(symbols) / 2.0,
            segments: mean(self.segments_before),
        };
        let took = self.began.map_or(0.0, |began| clock::since(began).as_nanos() as f64);
        let extra = self.drift.extra_nanoseconds(timing_table, &step, took);
        for &row in fed {
            requests[row_table.owners[row]].timer.add_unpooled_extra(extra as i64);
        }
        let took = i64::try_from(clock::since(began).as_nanos()).unwrap_or(i64::MAX);
        for &index in &self.waiting {
            requests[index].timer.add_unpooled_extra(-took);
        }
    }
}
