//! Statistics of edited documents, in addition to those of every request.

use super::{
    histogram::{HistogramBar, Percentiles, ValueHistogram},
    keystrokes::EditMeasurement,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Default)]
pub(super) struct EditStats {
    sessions: u64,
    /// Counts of all sessions; the lists stay empty.
    sums: EditMeasurement,
    latency: ValueHistogram,
    send_lag: ValueHistogram,
    server: ValueHistogram,
    recomputed: ValueHistogram,
}

/// Figures of edited documents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditFigures {
    /// Sessions that succeeded: one document each.
    pub sessions: u64,
    /// Characters that were typed.
    pub keystrokes: u64,
    /// Keystrokes whose completions a later keystroke overtook.
    pub stale: u64,
    /// Keystrokes without a time, as in `EditMeasurement`.
    pub failed: u64,
    /// Keystrokes that the first completion would have saved.
    pub saved_by_first: u64,
    /// Keystrokes that the first three completions would have saved.
    pub saved_by_first_three: u64,
    /// Time from the planned time of a keystroke to the first completions of a text that contains it.
    pub keystroke_ns: Percentiles,
    /// Time from the planned time of a keystroke to sending.
    pub keystroke_lag_ns: Percentiles,
    /// Time from the request to the answer, as the server reports it.
    pub keystroke_server_ns: Percentiles,
    /// Characters that were computed for an answer, as the server reports it.
    pub recomputed_chars: Percentiles,
    /// Distribution of `keystroke_ns`.
    pub keystroke_bars: Vec<HistogramBar>,
}

impl EditFigures {
    /// Returns the share of keystrokes that the first completion would have saved.
    pub fn first_share(&self) -> f64 {
        self.saved_by_first as f64 / self.keystrokes.max(1) as f64
    }

    /// Returns the share of keystrokes that the first three completions would have saved.
    pub fn first_three_share(&self) -> f64 {
        self.saved_by_first_three as f64 / self.keystrokes.max(1) as f64
    }
}

impl EditStats {
    pub(super) fn record(&mut self, edits: &EditMeasurement) {
        self.sessions += 1;
        self.add_sums(edits);
        edits.latencies.iter().for_each(|&time| self.latency.record_time(time));
        edits.send_lags.iter().for_each(|&time| self.send_lag.record_time(time));
        edits.server.iter().for_each(|&time| self.server.record_time(time));
        edits.recomputed.iter().for_each(|&chars| self.recomputed.record(chars));
    }

    fn add_sums(&mut self, other: &EditMeasurement) {
        let sums = &mut self.sums;
        sums.keystrokes += other.keystrokes;
        sums.stale += other.stale;
        sums.failed += other.failed;
        sums.saved_by_first += other.saved_by_first;
        sums.saved_by_first_three += other.saved_by_first_three;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.sessions += other.sessions;
        self.add_sums(&other.sums);
        self.latency.merge(&other.latency);
        self.send_lag.merge(&other.send_lag);
        self.server.merge(&other.server);
        self.recomputed.merge(&other.recomputed);
    }

    /// Returns the figures for the report, or `None` without documents.
    pub(super) fn figures(&self) -> Option<EditFigures> {
        (self.sessions > 0).then(|| EditFigures {
            sessions: self.sessions,
            keystrokes: self.sums.keystrokes,
            stale: self.sums.stale,
            failed: self.sums.failed,
            saved_by_first: self.sums.saved_by_first,
            saved_by_first_three: self.sums.saved_by_first_three,
            keystroke_ns: self.latency.percentiles(1.0),
            keystroke_lag_ns: self.send_lag.percentiles(1.0),
            keystroke_server_ns: self.server.percentiles(1.0),
            recomputed_chars: self.recomputed.percentiles(1.0),
            keystroke_bars: self.latency.bars(),
        })
    }
}
