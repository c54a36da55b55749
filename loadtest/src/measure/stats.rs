//! Statistics over all requests of a workload.

use super::{
    edits::{EditFigures, EditStats},
    histogram::{HistogramBar, MILLI, Percentiles, ValueHistogram},
    request_timer::{ClientTimer, ServerReport},
    shortening::TextTotals,
    summaries::{SummaryFigures, SummaryStats},
};
use crate::client::connection::TESTER_CODE;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// gRPC code of requests to an unavailable server.
pub const UNAVAILABLE: &str = "UNAVAILABLE";

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It returned everything that was requested.
    Completed,
    /// This client cancelled it on purpose.
    Cancelled,
    /// The measurement was interrupted.
    Unfinished,
    /// It failed with this gRPC code.
    Failed(&'static str),
}

/// Value of a request with a histogram over all requests: times, unless stated.
#[derive(Clone, Copy)]
enum Figure {
    First,
    FirstFromSend,
    Total,
    TotalFromSend,
    StartLag,
    PlainGap,
    BoundaryGap,
    Segment,
    PerChar,
    /// Thousandths of characters per second.
    Speed,
    Queue,
    Prefill,
    ServerFirst,
    ServerTotal,
}

/// Statistics so far. Times are those of requests that succeeded.
#[derive(Debug, Default)]
pub struct RequestStats {
    /// True if boundary gaps are distinguished from plain ones.
    pub splits_gaps: bool,
    outcomes: OutcomeCounts,
    good: u64,
    characters: u64,
    messages: u64,
    /// Totals of generated texts.
    pub texts: TextTotals,
    /// Histograms by [`Figure`].
    histograms: [ValueHistogram; Figure::ServerTotal as usize + 1],
    summaries: SummaryStats,
    edits: EditStats,
}

/// How requests ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeCounts {
    /// Requests whose intended start was in the measured window.
    pub measured: u64,
    /// Requests that returned everything that was requested.
    pub well: u64,
    /// Requests that this client cancelled on purpose.
    pub cancelled: u64,
    /// Requests that an interruption of the measurement cut off.
    pub unfinished: u64,
    /// Requests that failed, by gRPC code; `TESTER` for those that the tester's own HTTP/2 library ended.
    pub errors: BTreeMap<String, u64>,
}

impl OutcomeCounts {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.measured += other.measured;
        self.well += other.well;
        self.cancelled += other.cancelled;
        self.unfinished += other.unfinished;
        other.errors.iter().for_each(|(code, count)| *self.errors.entry(code.clone()).or_default() += count);
    }

    /// True if fewer than half succeeded of those that neither this client nor an interruption ended.
    pub fn is_mostly_bad(&self) -> bool {
        2 * self.well < self.measured.saturating_sub(self.cancelled + self.unfinished)
    }

    /// Returns how many the tester's own HTTP/2 library ended.
    pub fn ended_by_tester(&self) -> u64 {
        self.errors.get(TESTER_CODE).copied().unwrap_or(0)
    }

    /// Returns a message if the server became unavailable for more than half of the requests.
    pub fn server_gone(&self) -> Option<String> {
        let gone = self.errors.get(UNAVAILABLE).copied().unwrap_or(0);
        let message = || format!("the server went away: {gone} of {} requests ended as {UNAVAILABLE}", self.measured);
        (2 * gone > self.measured).then(message)
    }

    /// Describes the outcomes for people.
    pub fn describe(&self) -> String {
        let mut line = format!("{} requests: {} succeeded", self.measured, self.well);
        for (code, count) in &self.errors {
            line += &format!(", {count} {code}");
        }
        if self.cancelled > 0 {
            line += &format!(", {} cancelled by this client on purpose", self.cancelled);
        }
        if self.unfinished > 0 {
            line += &format!(", {} cut off by the interruption", self.unfinished);
        }
        line
    }
}

/// Times that the server reports for the requests that succeeded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerTimings {
    /// `timing.queue_ns`.
    pub queue_ns: Percentiles,
    /// `timing.prefill_ns`.
    pub prefill_ns: Percentiles,
    /// `timing.time_to_first_char_ns`.
    pub time_to_first_char_ns: Percentiles,
    /// `timing.total_ns`.
    pub total_ns: Percentiles,
}

/// All figures of a workload, or of several together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestFigures {
    /// How requests ended.
    pub requests: OutcomeCounts,
    /// Requests that succeeded and met every objective.
    pub good: u64,
    /// Characters received in requests that succeeded.
    pub characters: u64,
    /// Messages with these characters.
    pub messages: u64,
    /// Characters of generation prompts; documents are counted in `summaries`.
    pub prompt_chars: u64,
    /// Prompt characters that the server had cached.
    pub cached_chars: u64,
    /// Characters per closed segment of generated texts, prompts included. Absent if no segment was closed, or if several models
    /// generated texts; the point then has a factor for each.
    pub shortening_factor: Option<f64>,
    /// From the intended start to the first characters.
    pub time_to_first_char_ns: Percentiles,
    /// From sending to the first characters: the figure that suffers from coordinated omission.
    pub time_to_first_char_from_send_ns: Percentiles,
    /// From the intended start to the end of the stream.
    pub total_ns: Percentiles,
    /// From sending to the end of the stream.
    pub total_from_send_ns: Percentiles,
    /// From the intended start to sending.
    pub start_lag_ns: Percentiles,
    /// Between messages, all gaps.
    pub gap_ns: Percentiles,
    /// Between messages, where the middle layers did not run; absent if boundaries were not requested.
    pub plain_gap_ns: Option<Percentiles>,
    /// Between messages, where the middle layers ran; absent if boundaries were not requested.
    pub boundary_gap_ns: Option<Percentiles>,
    /// From one end of a segment to the next, if not all messages came together; absent if boundaries were not requested.
    pub segment_ns: Option<Percentiles>,
    /// Per request: the mean time of a character, without those that came together with the first message.
    pub char_ns: Percentiles,
    /// Per request: characters per second, without those that came together with the first message.
    pub chars_per_second: Percentiles,
    /// Times that the server reports.
    pub server: ServerTimings,
    /// Distribution of `time_to_first_char_ns`.
    pub time_to_first_char_bars: Vec<HistogramBar>,
    /// Distribution of `plain_gap_ns`, or of `gap_ns` if boundaries were not requested.
    pub plain_gap_bars: Vec<HistogramBar>,
    /// Distribution of `boundary_gap_ns`.
    pub boundary_gap_bars: Vec<HistogramBar>,
    /// Figures of summaries, if there were any.
    pub summaries: Option<SummaryFigures>,
    /// Figures of edited documents, if there were any. Absent from reports of versions that did not edit.
    #[serde(default)]
    pub edits: Option<EditFigures>,
}

impl RequestStats {
    /// Builds empty statistics; `splits_gaps` if boundaries are requested.
    pub fn new(splits_gaps: bool) -> Self {
        Self { splits_gaps, ..Self::default() }
    }

    fn record_time(&mut self, figure: Figure, time: Duration) {
        self.histograms[figure as usize].record_time(time);
    }

    /// Records a request that ended `total` after its intended start.
    pub fn record(&mut self, timer: &ClientTimer, outcome: &RequestOutcome, total: Duration, good: bool) {
        self.record_time(Figure::StartLag, timer.sent.map_or(total, |sent| sent - timer.intended));
        let outcomes = &mut self.outcomes;
        outcomes.measured += 1;
        match outcome {
            RequestOutcome::Completed => outcomes.well += 1,
            RequestOutcome::Cancelled => outcomes.cancelled += 1,
            RequestOutcome::Unfinished => outcomes.unfinished += 1,
            RequestOutcome::Failed(code) => *outcomes.errors.entry((*code).to_owned()).or_default() += 1,
        }
        if *outcome != RequestOutcome::Completed {
            return;
        }
        self.good += u64::from(good);
        self.characters += timer.characters;
        self.messages += timer.messages;
        self.record_times(timer, total);
        timer.edits.iter().for_each(|edits| self.edits.record(edits));
        if let Some(report) = &timer.server_report {
            self.record_server_report(report);
        }
    }

    fn record_times(&mut self, timer: &ClientTimer, total: Duration) {
        self.record_time(Figure::Total, total);
        let from_send = timer.sent.map(|sent| total.saturating_sub(sent - timer.intended));
        from_send.into_iter().for_each(|time| self.record_time(Figure::TotalFromSend, time));
        timer.first().into_iter().for_each(|time| self.record_time(Figure::First, time));
        timer.first_from_send().into_iter().for_each(|time| self.record_time(Figure::FirstFromSend, time));
        if let Some(time) = timer.per_char() {
            self.record_time(Figure::PerChar, time);
            self.histograms[Figure::Speed as usize].record_speed(time);
        }
        for gap in &timer.gaps {
            self.record_time(if gap.boundary { Figure::BoundaryGap } else { Figure::PlainGap }, gap.span);
        }
        timer.segments.iter().for_each(|&time| self.record_time(Figure::Segment, time));
    }

    fn record_server_report(&mut self, report: &ServerReport) {
        self.record_time(Figure::Queue, report.queue);
        self.record_time(Figure::Prefill, report.prefill);
        self.record_time(Figure::ServerFirst, report.first);
        self.record_time(Figure::ServerTotal, report.total);
        self.texts.add(&report.texts);
        report.summary.iter().for_each(|summary| self.summaries.record(summary));
    }

    /// Adds the statistics of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.outcomes.add(&other.outcomes);
        self.good += other.good;
        self.characters += other.characters;
        self.messages += other.messages;
        self.texts.add(&other.texts);
        self.histograms.iter_mut().zip(&other.histograms).for_each(|(own, other)| own.merge(other));
        self.summaries.merge(&other.summaries);
        self.edits.merge(&other.edits);
    }

    /// Returns the figures for the report.
    pub fn figures(&self) -> RequestFigures {
        let histogram = |figure: Figure| &self.histograms[figure as usize];
        let times = |figure| histogram(figure).percentiles(1.0);
        let if_split = |figure| self.splits_gaps.then(|| times(figure));
        let mut gaps = histogram(Figure::PlainGap).clone();
        gaps.merge(histogram(Figure::BoundaryGap));
        RequestFigures {
            requests: self.outcomes.clone(),
            good: self.good,
            characters: self.characters,
            messages: self.messages,
            prompt_chars: self.texts.prompt,
            cached_chars: self.texts.cached,
            shortening_factor: self.texts.factor(),
            time_to_first_char_ns: times(Figure::First),
            time_to_first_char_from_send_ns: times(Figure::FirstFromSend),
            total_ns: times(Figure::Total),
            total_from_send_ns: times(Figure::TotalFromSend),
            start_lag_ns: times(Figure::StartLag),
            gap_ns: gaps.percentiles(1.0),
            plain_gap_ns: if_split(Figure::PlainGap),
            boundary_gap_ns: if_split(Figure::BoundaryGap),
            segment_ns: if_split(Figure::Segment),
            char_ns: times(Figure::PerChar),
            chars_per_second: histogram(Figure::Speed).percentiles(MILLI),
            server: ServerTimings {
                queue_ns: times(Figure::Queue),
                prefill_ns: times(Figure::Prefill),
                time_to_first_char_ns: times(Figure::ServerFirst),
                total_ns: times(Figure::ServerTotal),
            },
            time_to_first_char_bars: histogram(Figure::First).bars(),
            plain_gap_bars: histogram(Figure::PlainGap).bars(),
            boundary_gap_bars: histogram(Figure::BoundaryGap).bars(),
            summaries: self.summaries.figures(),
            edits: self.edits.figures(),
        }
    }
}
