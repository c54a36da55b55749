//! Statistics over all requests of a workload.

use super::{
    histogram::{HistogramBar, Percentiles, ValueHistogram},
    request_timer::{ClientTimer, ServerReport},
    shortening::{ModelShortening, TextTotals, by_model},
    summaries::{SummaryFigures, SummaryStats},
};
use crate::{client::connection::OWN, error::Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// Unit in which speeds are recorded, because histograms hold integers: thousandths.
const MILLI: f64 = 1e-3;

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

/// Statistics so far. Times are those of requests that succeeded.
#[derive(Debug)]
pub struct RequestStats {
    /// True if boundary gaps are distinguished from plain ones.
    splits_gaps: bool,
    succeeded: u64,
    cancelled: u64,
    unfinished: u64,
    good: u64,
    errors: BTreeMap<String, u64>,
    characters: u64,
    messages: u64,
    texts: TextTotals,
    first: ValueHistogram,
    first_from_send: ValueHistogram,
    total: ValueHistogram,
    total_from_send: ValueHistogram,
    start_lag: ValueHistogram,
    plain_gap: ValueHistogram,
    boundary_gap: ValueHistogram,
    segment: ValueHistogram,
    per_char: ValueHistogram,
    speed: ValueHistogram,
    queue: ValueHistogram,
    prefill: ValueHistogram,
    server_first: ValueHistogram,
    server_total: ValueHistogram,
    summaries: SummaryStats,
}

/// Computes shortening factors by model, from each workload's model and statistics.
pub fn shortening<'a>(workloads: impl Iterator<Item = (&'a str, &'a RequestStats)>) -> Vec<ModelShortening> {
    by_model(workloads.map(|(model, stats)| (model, stats.texts)))
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
    pub fn own(&self) -> u64 {
        self.errors.get(OWN).copied().unwrap_or(0)
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
    /// From one end of a segment to the next; absent if boundaries were not requested.
    pub segment_ns: Option<Percentiles>,
    /// Per request: the mean time of a character after the first message's.
    pub char_ns: Percentiles,
    /// Per request: characters per second after the first message.
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
}

impl RequestStats {
    /// Builds empty statistics; `splits_gaps` if boundaries are requested.
    ///
    /// # Errors
    /// No memory for a histogram.
    pub fn new(splits_gaps: bool) -> Result<Self> {
        Ok(Self {
            splits_gaps,
            succeeded: 0,
            cancelled: 0,
            unfinished: 0,
            good: 0,
            errors: BTreeMap::new(),
            characters: 0,
            messages: 0,
            texts: TextTotals::default(),
            first: ValueHistogram::new()?,
            first_from_send: ValueHistogram::new()?,
            total: ValueHistogram::new()?,
            total_from_send: ValueHistogram::new()?,
            start_lag: ValueHistogram::new()?,
            plain_gap: ValueHistogram::new()?,
            boundary_gap: ValueHistogram::new()?,
            segment: ValueHistogram::new()?,
            per_char: ValueHistogram::new()?,
            speed: ValueHistogram::new()?,
            queue: ValueHistogram::new()?,
            prefill: ValueHistogram::new()?,
            server_first: ValueHistogram::new()?,
            server_total: ValueHistogram::new()?,
            summaries: SummaryStats::new()?,
        })
    }

    /// True if boundary gaps are distinguished from plain ones.
    pub fn splits_gaps(&self) -> bool {
        self.splits_gaps
    }

    /// Records a request that ended `total` after its intended start.
    pub fn record(&mut self, timer: &ClientTimer, outcome: &RequestOutcome, total: Duration, good: bool) {
        self.start_lag.record_time(timer.sent.map_or(total, |sent| sent - timer.intended));
        match outcome {
            RequestOutcome::Completed => {}
            RequestOutcome::Cancelled => self.cancelled += 1,
            RequestOutcome::Unfinished => self.unfinished += 1,
            RequestOutcome::Failed(code) => *self.errors.entry((*code).to_owned()).or_default() += 1,
        }
        if *outcome != RequestOutcome::Completed {
            return;
        }
        self.succeeded += 1;
        self.good += u64::from(good);
        self.characters += timer.characters;
        self.messages += timer.messages;
        self.record_times(timer, total);
        if let Some(report) = &timer.server_report {
            self.record_server_report(report);
        }
    }

    fn record_times(&mut self, timer: &ClientTimer, total: Duration) {
        self.total.record_time(total);
        if let Some(sent) = timer.sent {
            self.total_from_send.record_time(total.saturating_sub(sent - timer.intended));
        }
        timer.first().into_iter().for_each(|time| self.first.record_time(time));
        timer.first_from_send().into_iter().for_each(|time| self.first_from_send.record_time(time));
        if let Some(time) = timer.per_char() {
            self.per_char.record_time(time);
            self.speed.record((1.0 / time.as_secs_f64().max(1e-9) / MILLI) as u64);
        }
        for gap in &timer.gaps {
            if gap.boundary { self.boundary_gap.record_time(gap.span) } else { self.plain_gap.record_time(gap.span) }
        }
        timer.segments.iter().for_each(|&time| self.segment.record_time(time));
    }

    fn record_server_report(&mut self, report: &ServerReport) {
        self.queue.record_time(report.queue);
        self.prefill.record_time(report.prefill);
        self.server_first.record_time(report.first);
        self.server_total.record_time(report.total);
        self.texts.prompt += report.prompt_chars;
        self.texts.cached += report.cached_chars;
        self.texts.generated += report.generated_chars;
        self.texts.segments += report.segments;
        report.summary.iter().for_each(|summary| self.summaries.record(summary));
    }

    /// Adds the statistics of `other`.
    ///
    /// # Errors
    /// Never: histograms grow as needed.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.succeeded += other.succeeded;
        self.cancelled += other.cancelled;
        self.unfinished += other.unfinished;
        self.good += other.good;
        self.characters += other.characters;
        self.messages += other.messages;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
        self.texts.add(&other.texts);
        self.first.merge(&other.first)?;
        self.first_from_send.merge(&other.first_from_send)?;
        self.total.merge(&other.total)?;
        self.total_from_send.merge(&other.total_from_send)?;
        self.start_lag.merge(&other.start_lag)?;
        self.plain_gap.merge(&other.plain_gap)?;
        self.boundary_gap.merge(&other.boundary_gap)?;
        self.segment.merge(&other.segment)?;
        self.per_char.merge(&other.per_char)?;
        self.speed.merge(&other.speed)?;
        self.queue.merge(&other.queue)?;
        self.prefill.merge(&other.prefill)?;
        self.server_first.merge(&other.server_first)?;
        self.server_total.merge(&other.server_total)?;
        self.summaries.merge(&other.summaries)
    }

    /// Returns the figures for the report.
    ///
    /// # Errors
    /// No memory for a histogram.
    pub fn figures(&self) -> Result<RequestFigures> {
        let mut gaps = self.plain_gap.clone();
        gaps.merge(&self.boundary_gap)?;
        let if_split = |times: &ValueHistogram| self.splits_gaps.then(|| times.percentiles(1.0));
        Ok(RequestFigures {
            requests: self.outcomes(),
            good: self.good,
            characters: self.characters,
            messages: self.messages,
            prompt_chars: self.texts.prompt,
            cached_chars: self.texts.cached,
            shortening_factor: self.texts.factor(),
            time_to_first_char_ns: self.first.percentiles(1.0),
            time_to_first_char_from_send_ns: self.first_from_send.percentiles(1.0),
            total_ns: self.total.percentiles(1.0),
            total_from_send_ns: self.total_from_send.percentiles(1.0),
            start_lag_ns: self.start_lag.percentiles(1.0),
            gap_ns: gaps.percentiles(1.0),
            plain_gap_ns: if_split(&self.plain_gap),
            boundary_gap_ns: if_split(&self.boundary_gap),
            segment_ns: if_split(&self.segment),
            char_ns: self.per_char.percentiles(1.0),
            chars_per_second: self.speed.percentiles(MILLI),
            server: ServerTimings {
                queue_ns: self.queue.percentiles(1.0),
                prefill_ns: self.prefill.percentiles(1.0),
                time_to_first_char_ns: self.server_first.percentiles(1.0),
                total_ns: self.server_total.percentiles(1.0),
            },
            time_to_first_char_bars: self.first.bars(),
            plain_gap_bars: self.plain_gap.bars(),
            boundary_gap_bars: self.boundary_gap.bars(),
            summaries: self.summaries.figures(),
        })
    }

    fn outcomes(&self) -> OutcomeCounts {
        let Self { succeeded, cancelled, unfinished, errors, .. } = self;
        let measured = succeeded + cancelled + unfinished + errors.values().sum::<u64>();
        OutcomeCounts {
            measured,
            well: *succeeded,
            cancelled: *cancelled,
            unfinished: *unfinished,
            errors: errors.clone(),
        }
    }
}
