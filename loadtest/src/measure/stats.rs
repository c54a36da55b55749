//! What all requests of a workload came to.

use super::{
    histogram::{HistogramBar, Percentiles, ValueHistogram},
    request_timer::{RequestTimer, ServerReport},
    shortening::{ModelShortening, TextTotals, by_model},
    summaries::{SummaryFigures, SummaryStats},
};
use crate::{client::connection::OWN, error::Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// Thousandths in which speeds are counted.
const MILLI: f64 = 1e-3;

/// The code of requests to a server that is not there.
pub const GONE: &str = "UNAVAILABLE";

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// With everything that it asked for.
    Completed,
    /// This client went away, as it was to.
    Cancelled,
    /// The measurement was interrupted.
    Unfinished,
    /// With this gRPC code.
    Failed(&'static str),
}

/// Numbers of all requests so far. Times are of requests that ended well.
#[derive(Debug)]
pub struct RequestStats {
    /// Whether boundary gaps were told from others.
    split: bool,
    well: u64,
    cancelled: u64,
    unfinished: u64,
    good: u64,
    errors: BTreeMap<String, u64>,
    characters: u64,
    messages: u64,
    sums: TextTotals,
    first: ValueHistogram,
    first_sent: ValueHistogram,
    total: ValueHistogram,
    total_sent: ValueHistogram,
    lag: ValueHistogram,
    plain: ValueHistogram,
    boundary: ValueHistogram,
    segment: ValueHistogram,
    per_char: ValueHistogram,
    speed: ValueHistogram,
    queue: ValueHistogram,
    prefill: ValueHistogram,
    server_first: ValueHistogram,
    server_total: ValueHistogram,
    summaries: SummaryStats,
}

/// Shortening factors of workloads' models, where they are of texts; each tally stands beside its model.
pub fn shortening<'a>(parts: impl Iterator<Item = (&'a str, &'a RequestStats)>) -> Vec<ModelShortening> {
    by_model(parts.map(|(model, tally)| (model, tally.sums)))
}

/// How requests ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeCounts {
    /// Requests whose intended start lay in the measured window.
    pub measured: u64,
    /// Those that ended with all that they asked for.
    pub well: u64,
    /// Those that this client cancelled on purpose.
    pub cancelled: u64,
    /// Those that an interruption of the measurement cut.
    pub unfinished: u64,
    /// Those that failed, by gRPC code; as `TESTER`, those that the tester's own HTTP/2 library ended.
    pub errors: BTreeMap<String, u64>,
}

impl OutcomeCounts {
    /// Counts others, too.
    pub fn add(&mut self, other: &Self) {
        self.measured += other.measured;
        self.well += other.well;
        self.cancelled += other.cancelled;
        self.unfinished += other.unfinished;
        other.errors.iter().for_each(|(code, count)| *self.errors.entry(code.clone()).or_default() += count);
    }

    /// Whether fewer than half ended well of those that neither this client nor an interruption cut.
    pub fn is_mostly_bad(&self) -> bool {
        2 * self.well < self.measured.saturating_sub(self.cancelled + self.unfinished)
    }

    /// How many the tester's own library ended.
    pub fn own(&self) -> u64 {
        self.errors.get(OWN).copied().unwrap_or(0)
    }

    /// That the server went away, if more than half say so.
    pub fn gone(&self) -> Option<String> {
        let gone = self.errors.get(GONE).copied().unwrap_or(0);
        let told = || format!("the server went away: {gone} of {} requests ended as {GONE}", self.measured);
        (2 * gone > self.measured).then(told)
    }

    /// For people.
    pub fn describe(&self) -> String {
        let mut line = format!("{} requests: {} well", self.measured, self.well);
        for (code, count) in &self.errors {
            line += &format!(", {count} {code}");
        }
        if self.cancelled > 0 {
            line += &format!(", {} cancelled by this client on purpose", self.cancelled);
        }
        if self.unfinished > 0 {
            line += &format!(", {} cut by the interruption", self.unfinished);
        }
        line
    }
}

/// What the server told of the requests that ended well.
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

/// All figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestFigures {
    /// How requests ended.
    pub requests: OutcomeCounts,
    /// Requests that ended well and kept every objective; of no objectives, those that ended well.
    pub good: u64,
    /// Characters that came, of the requests that ended well.
    pub characters: u64,
    /// Messages that they came in.
    pub messages: u64,
    /// Characters of the prompts of texts; documents are counted in `summaries`.
    pub prompt_chars: u64,
    /// Of these, characters that the server had cached.
    pub cached_chars: u64,
    /// Characters per closed segment of texts, prompts included; absent if no segment was closed, or if the texts are of several
    /// models, which a point tells of each.
    pub shortening_factor: Option<f64>,
    /// From the intended start to the first characters.
    pub time_to_first_char_ns: Percentiles,
    /// From sending to the first characters: what coordinated omission would have told.
    pub time_to_first_char_from_send_ns: Percentiles,
    /// From the intended start to the end of the stream.
    pub total_ns: Percentiles,
    /// From sending to the end of the stream.
    pub total_from_send_ns: Percentiles,
    /// From the intended start to sending.
    pub start_lag_ns: Percentiles,
    /// Between messages, all of them.
    pub gap_ns: Percentiles,
    /// Between messages, where the middle layers did not run; absent if boundaries were not asked for.
    pub plain_gap_ns: Option<Percentiles>,
    /// Between messages, where they did; absent likewise.
    pub boundary_gap_ns: Option<Percentiles>,
    /// From one end of a segment to the next; absent likewise.
    pub segment_ns: Option<Percentiles>,
    /// Of each request: the mean time of a character after the first message's.
    pub char_ns: Percentiles,
    /// Of each request: characters a second after the first message.
    pub chars_per_second: Percentiles,
    /// What the server told.
    pub server: ServerTimings,
    /// The distribution of `time_to_first_char_ns`.
    pub time_to_first_char_bars: Vec<HistogramBar>,
    /// The distribution of `plain_gap_ns`, or of `gap_ns` if boundaries were not asked for.
    pub plain_gap_bars: Vec<HistogramBar>,
    /// The distribution of `boundary_gap_ns`.
    pub boundary_gap_bars: Vec<HistogramBar>,
    /// Of summaries, if there were any.
    pub summaries: Option<SummaryFigures>,
}

impl RequestStats {
    /// Of no requests; `split` if boundaries are asked for.
    ///
    /// # Errors
    /// No memory.
    pub fn new(split: bool) -> Result<Self> {
        Ok(Self {
            split,
            well: 0,
            cancelled: 0,
            unfinished: 0,
            good: 0,
            errors: BTreeMap::new(),
            characters: 0,
            messages: 0,
            sums: TextTotals::default(),
            first: ValueHistogram::new()?,
            first_sent: ValueHistogram::new()?,
            total: ValueHistogram::new()?,
            total_sent: ValueHistogram::new()?,
            lag: ValueHistogram::new()?,
            plain: ValueHistogram::new()?,
            boundary: ValueHistogram::new()?,
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

    /// Whether boundary gaps are told from others.
    pub fn is_split(&self) -> bool {
        self.split
    }

    /// Takes a request that ended `total` after its intended start.
    pub fn take(&mut self, watch: &RequestTimer, end: &RequestOutcome, total: Duration, good: bool) {
        self.lag.time(watch.sent.map_or(total, |sent| sent - watch.intended));
        match end {
            RequestOutcome::Completed => {}
            RequestOutcome::Cancelled => self.cancelled += 1,
            RequestOutcome::Unfinished => self.unfinished += 1,
            RequestOutcome::Failed(code) => *self.errors.entry((*code).to_owned()).or_default() += 1,
        }
        if *end != RequestOutcome::Completed {
            return;
        }
        self.well += 1;
        self.good += u64::from(good);
        self.characters += watch.characters;
        self.messages += watch.messages;
        self.times(watch, total);
        if let Some(told) = &watch.told {
            self.told(told);
        }
    }

    fn times(&mut self, watch: &RequestTimer, total: Duration) {
        self.total.time(total);
        if let Some(sent) = watch.sent {
            self.total_sent.time(total.saturating_sub(sent - watch.intended));
        }
        watch.first().into_iter().for_each(|span| self.first.time(span));
        watch.first_sent().into_iter().for_each(|span| self.first_sent.time(span));
        if let Some(span) = watch.per_char() {
            self.per_char.time(span);
            self.speed.number((1.0 / span.as_secs_f64().max(1e-9) / MILLI) as u64);
        }
        for gap in &watch.gaps {
            if gap.boundary { self.boundary.time(gap.span) } else { self.plain.time(gap.span) }
        }
        watch.segments.iter().for_each(|&span| self.segment.time(span));
    }

    fn told(&mut self, told: &ServerReport) {
        self.queue.time(told.queue);
        self.prefill.time(told.prefill);
        self.server_first.time(told.first);
        self.server_total.time(told.total);
        self.sums.prompt += told.prompt_chars;
        self.sums.cached += told.cached_chars;
        self.sums.generated += told.generated_chars;
        self.sums.segments += told.segments;
        told.summary.iter().for_each(|summary| self.summaries.take(summary));
    }

    /// Takes all that another took.
    ///
    /// # Errors
    /// Never: both keep what they need.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.well += other.well;
        self.cancelled += other.cancelled;
        self.unfinished += other.unfinished;
        self.good += other.good;
        self.characters += other.characters;
        self.messages += other.messages;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
        self.sums.add(&other.sums);
        self.summaries.add(&other.summaries)?;
        self.numbers_mut().into_iter().zip(other.numbers()).try_for_each(|(sum, part)| sum.add(part))
    }

    fn numbers(&self) -> [&ValueHistogram; 14] {
        [
            &self.first,
            &self.first_sent,
            &self.total,
            &self.total_sent,
            &self.lag,
            &self.plain,
            &self.boundary,
            &self.segment,
            &self.per_char,
            &self.speed,
            &self.queue,
            &self.prefill,
            &self.server_first,
            &self.server_total,
        ]
    }

    fn numbers_mut(&mut self) -> [&mut ValueHistogram; 14] {
        [
            &mut self.first,
            &mut self.first_sent,
            &mut self.total,
            &mut self.total_sent,
            &mut self.lag,
            &mut self.plain,
            &mut self.boundary,
            &mut self.segment,
            &mut self.per_char,
            &mut self.speed,
            &mut self.queue,
            &mut self.prefill,
            &mut self.server_first,
            &mut self.server_total,
        ]
    }

    /// What is told.
    ///
    /// # Errors
    /// No memory.
    pub fn figures(&self) -> Result<RequestFigures> {
        let mut gaps = self.plain.clone();
        gaps.add(&self.boundary)?;
        let split = |numbers: &ValueHistogram| self.split.then(|| numbers.spread(1.0));
        Ok(RequestFigures {
            requests: self.ends(),
            good: self.good,
            characters: self.characters,
            messages: self.messages,
            prompt_chars: self.sums.prompt,
            cached_chars: self.sums.cached,
            shortening_factor: self.sums.factor(),
            time_to_first_char_ns: self.first.spread(1.0),
            time_to_first_char_from_send_ns: self.first_sent.spread(1.0),
            total_ns: self.total.spread(1.0),
            total_from_send_ns: self.total_sent.spread(1.0),
            start_lag_ns: self.lag.spread(1.0),
            gap_ns: gaps.spread(1.0),
            plain_gap_ns: split(&self.plain),
            boundary_gap_ns: split(&self.boundary),
            segment_ns: split(&self.segment),
            char_ns: self.per_char.spread(1.0),
            chars_per_second: self.speed.spread(MILLI),
            server: ServerTimings {
                queue_ns: self.queue.spread(1.0),
                prefill_ns: self.prefill.spread(1.0),
                time_to_first_char_ns: self.server_first.spread(1.0),
                total_ns: self.server_total.spread(1.0),
            },
            time_to_first_char_bars: self.first.bars(),
            plain_gap_bars: self.plain.bars(),
            boundary_gap_bars: self.boundary.bars(),
            summaries: self.summaries.figures(),
        })
    }

    fn ends(&self) -> OutcomeCounts {
        let Self { well, cancelled, unfinished, errors, .. } = self;
        let measured = well + cancelled + unfinished + errors.values().sum::<u64>();
        OutcomeCounts { measured, well: *well, cancelled: *cancelled, unfinished: *unfinished, errors: errors.clone() }
    }
}
