//! Statistics over all requests of a workload.

use crate::timer::{ClientTimer, EditMeasurement, ServerReport, TextTotals};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use weir_measure::histogram::{HistogramBar, MILLI, Percentiles, ValueHistogram};
use weir_proto::v1::SummaryUsage;

/// gRPC code of requests to an unavailable server.
pub const UNAVAILABLE: &str = "UNAVAILABLE";

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It returned everything that was requested.
    Completed,
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
    Upload,
    Encode,
    EncodeRest,
    Decode,
    PerToken,
    /// Thousandths of tokens per second.
    TokenSpeed,
    /// Share in units of [`SHARE`].
    KeptShare,
    Keystroke,
    KeystrokeLag,
    KeystrokeServer,
    /// Characters.
    Recomputed,
}

/// Statistics so far. Times are of requests that succeeded.
#[derive(Debug, Default)]
pub struct RequestStats {
    /// True if boundary gaps are distinguished from plain ones.
    pub splits_gaps: bool,
    outcomes: OutcomeCounts,
    good: u64,
    characters: u64,
    messages: u64,
    texts: TextTotals,
    /// Histograms by [`Figure`].
    histograms: [ValueHistogram; Figure::Recomputed as usize + 1],
    summaries: u64,
    /// Sums over all summaries.
    summary_sums: SummaryUsage,
    /// Sessions that edited a document.
    sessions: u64,
    /// Sums over all sessions; the lists stay empty.
    edit_sums: EditMeasurement,
}

/// How requests ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OutcomeCounts {
    pub measured: u64,
    pub well: u64,
    pub unfinished: u64,
    pub errors: BTreeMap<String, u64>,
}

impl OutcomeCounts {
    pub fn add(&mut self, other: &Self) {
        self.measured += other.measured;
        self.well += other.well;
        self.unfinished += other.unfinished;
        other.errors.iter().for_each(|(code, count)| *self.errors.entry(code.clone()).or_default() += count);
    }

    /// True if fewer than half succeeded of those that no interruption ended.
    pub fn is_mostly_bad(&self) -> bool {
        2 * self.well < self.measured.saturating_sub(self.unfinished)
    }

    /// Returns a message if the server became unavailable for more than half of the requests.
    pub fn server_gone(&self) -> Option<String> {
        let gone = self.errors.get(UNAVAILABLE).copied().unwrap_or(0);
        let message = || format!("the server went away: {gone} of {} requests ended as {UNAVAILABLE}", self.measured);
        (2 * gone > self.measured).then(message)
    }

    /// Returns a human-readable summary of the outcomes.
    pub fn describe(&self) -> String {
        let mut line = format!("{} requests: {} succeeded", self.measured, self.well);
        for (code, count) in &self.errors {
            line += &format!(", {count} {code}");
        }
        if self.unfinished > 0 {
            line += &format!(", {} cut off by the interruption", self.unfinished);
        }
        line
    }
}

/// Times that the server reports for the requests that succeeded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerTimings {
    pub queue_ns: Percentiles,
    pub prefill_ns: Percentiles,
    pub time_to_first_char_ns: Percentiles,
    pub total_ns: Percentiles,
}

/// All figures of a workload, or of several together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestFigures {
    pub requests: OutcomeCounts,
    pub good: u64,
    pub characters: u64,
    pub messages: u64,
    pub prompt_chars: u64,
    pub cached_chars: u64,
    /// Characters per closed segment of generated texts, prompts included. Absent if no segment was closed.
    pub shortening_factor: Option<f64>,
    pub time_to_first_char_ns: Percentiles,
    pub time_to_first_char_from_send_ns: Percentiles,
    pub total_ns: Percentiles,
    pub total_from_send_ns: Percentiles,
    pub start_lag_ns: Percentiles,
    pub gap_ns: Percentiles,
    /// Between messages, where the middle layers did not run; absent if boundaries were not requested.
    pub plain_gap_ns: Option<Percentiles>,
    /// Between messages, where the middle layers ran; absent if boundaries were not requested.
    pub boundary_gap_ns: Option<Percentiles>,
    /// From one end of a segment to the next, if not all messages came together; absent if boundaries were not requested.
    pub segment_ns: Option<Percentiles>,
    pub char_ns: Percentiles,
    pub chars_per_second: Percentiles,
    pub server: ServerTimings,
    pub plain_gap_bars: Vec<HistogramBar>,
    pub boundary_gap_bars: Vec<HistogramBar>,
    pub summaries: Option<SummaryFigures>,
    /// Figures of edited documents, if there were any.
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
        timer.edits.iter().for_each(|edits| self.record_edits(edits));
        if let Some(report) = &timer.server_report {
            self.record_server_report(report);
        }
    }

    /// Records the keystrokes of a session that began in the warm-up and completed after it.
    pub fn record_rest(&mut self, timer: &ClientTimer, good: bool) {
        self.outcomes.measured += 1;
        self.outcomes.well += 1;
        self.good += u64::from(good);
        timer.edits.iter().for_each(|edits| self.record_edits(edits));
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

    fn record_ns(&mut self, figure: Figure, ns: u64) {
        self.histograms[figure as usize].record(ns);
    }

    fn record_server_report(&mut self, report: &ServerReport) {
        let (queue, prefill, first, total) = match report {
            ServerReport::Text { timing, usage, cached_chars } => {
                self.texts.add(&TextTotals {
                    prompt: usage.prompt_chars,
                    cached: *cached_chars,
                    generated: usage.generated_chars,
                    segments: usage.prompt_segments + usage.generated_segments,
                });
                (timing.queue_ns, timing.prefill_ns, timing.time_to_first_char_ns, timing.total_ns)
            }
            // its tokens are not added to the characters of texts
            ServerReport::Summary { timing, usage, upload } => {
                self.summaries += 1;
                add_usage(&mut self.summary_sums, usage);
                self.record_time(Figure::Upload, *upload);
                self.record_ns(Figure::Decode, timing.decode_ns);
                if let Some(ns) = report.encode_ns() {
                    self.record_ns(Figure::Encode, ns);
                    self.record_ns(Figure::EncodeRest, timing.encode_rest_ns);
                }
                if let Some(share) = timing.kept_share {
                    self.histograms[Figure::KeptShare as usize].record((share / SHARE).round() as u64);
                }
                if let Some(ns) = report.token_ns() {
                    self.record_ns(Figure::PerToken, ns);
                    self.histograms[Figure::TokenSpeed as usize].record_speed(Duration::from_nanos(ns));
                }
                let prefill = timing.upload_ns + timing.encode_rest_ns;
                (timing.queue_ns, prefill, timing.time_to_first_token_ns, timing.total_ns)
            }
        };
        self.record_ns(Figure::Queue, queue);
        self.record_ns(Figure::Prefill, prefill);
        self.record_ns(Figure::ServerFirst, first);
        self.record_ns(Figure::ServerTotal, total);
    }

    fn record_edits(&mut self, edits: &EditMeasurement) {
        self.sessions += 1;
        self.edit_sums.add(edits);
        edits.latencies.iter().for_each(|&time| self.record_time(Figure::Keystroke, time));
        edits.send_lags.iter().for_each(|&time| self.record_time(Figure::KeystrokeLag, time));
        edits.server.iter().for_each(|&time| self.record_time(Figure::KeystrokeServer, time));
        edits.recomputed.iter().for_each(|&chars| self.histograms[Figure::Recomputed as usize].record(chars));
    }

    /// Adds the statistics of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.outcomes.add(&other.outcomes);
        self.good += other.good;
        self.characters += other.characters;
        self.messages += other.messages;
        self.texts.add(&other.texts);
        self.histograms.iter_mut().zip(&other.histograms).for_each(|(own, other)| own.merge(other));
        self.summaries += other.summaries;
        add_usage(&mut self.summary_sums, &other.summary_sums);
        self.sessions += other.sessions;
        self.edit_sums.add(&other.edit_sums);
    }

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
            plain_gap_bars: histogram(Figure::PlainGap).bars(),
            boundary_gap_bars: histogram(Figure::BoundaryGap).bars(),
            summaries: (self.summaries > 0).then(|| SummaryFigures {
                count: self.summaries,
                document_tokens: self.summary_sums.document_tokens,
                cached_tokens: self.summary_sums.cached_tokens,
                summary_tokens: self.summary_sums.summary_tokens,
                cross_attention_bytes: self.summary_sums.cross_attention_bytes,
                unpooled_cross_attention_bytes: self.summary_sums.unpooled_cross_attention_bytes,
                upload_ns: times(Figure::Upload),
                encode_ns: times(Figure::Encode),
                encode_rest_ns: times(Figure::EncodeRest),
                decode_ns: times(Figure::Decode),
                decode_token_ns: times(Figure::PerToken),
                tokens_per_second: histogram(Figure::TokenSpeed).percentiles(MILLI),
                kept_share: histogram(Figure::KeptShare).percentiles(SHARE),
            }),
            edits: (self.sessions > 0).then(|| EditFigures {
                sessions: self.sessions,
                keystrokes: self.edit_sums.keystrokes,
                stale: self.edit_sums.stale,
                failed: self.edit_sums.failed,
                saved_by_first: self.edit_sums.saved_by_first,
                saved_by_first_three: self.edit_sums.saved_by_first_three,
                keystroke_ns: times(Figure::Keystroke),
                keystroke_lag_ns: times(Figure::KeystrokeLag),
                keystroke_server_ns: times(Figure::KeystrokeServer),
                recomputed_chars: times(Figure::Recomputed),
                keystroke_bars: histogram(Figure::Keystroke).bars(),
            }),
        }
    }
}

/// Adds the counts that are reported.
fn add_usage(sums: &mut SummaryUsage, usage: &SummaryUsage) {
    sums.document_tokens += usage.document_tokens;
    sums.cached_tokens += usage.cached_tokens;
    sums.summary_tokens += usage.summary_tokens;
    sums.cross_attention_bytes += usage.cross_attention_bytes;
    sums.unpooled_cross_attention_bytes += usage.unpooled_cross_attention_bytes;
}

/// Unit of a kept share in its histogram, whose three digits distinguish all values up to 2,047.
const SHARE: f64 = 1.0 / 2000.0;

/// Figures of summaries; [`SummaryUsage`] describes the counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SummaryFigures {
    pub count: u64,
    pub document_tokens: u64,
    pub cached_tokens: u64,
    pub summary_tokens: u64,
    pub cross_attention_bytes: u64,
    pub unpooled_cross_attention_bytes: u64,
    pub upload_ns: Percentiles,
    pub encode_ns: Percentiles,
    pub encode_rest_ns: Percentiles,
    pub decode_ns: Percentiles,
    pub decode_token_ns: Percentiles,
    pub tokens_per_second: Percentiles,
    /// Share of a document's tokens that the last pooling kept, as the server reports it.
    pub kept_share: Percentiles,
}

impl SummaryFigures {
    /// Returns how many times fewer of a document's keys and values the decoder attends to than without pooling. It corresponds to
    /// the shortening factor of models that generate.
    pub fn pooled(&self) -> Option<f64> {
        let kept = self.cross_attention_bytes as f64;
        let unpooled = self.unpooled_cross_attention_bytes as f64;
        (kept > 0.0 && unpooled > 0.0).then(|| unpooled / kept)
    }
}

/// Figures of edited documents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EditFigures {
    pub sessions: u64,
    pub keystrokes: u64,
    pub stale: u64,
    pub failed: u64,
    pub saved_by_first: u64,
    pub saved_by_first_three: u64,
    pub keystroke_ns: Percentiles,
    pub keystroke_lag_ns: Percentiles,
    pub keystroke_server_ns: Percentiles,
    pub recomputed_chars: Percentiles,
    pub keystroke_bars: Vec<HistogramBar>,
}
