//! Rows and columns that the page and the text table share.

use super::edits;
use crate::{
    comparison::{
        bootstrap::Gain,
        result::{ComparedModel, Gains, Medians},
    },
    measure::{histogram::Percentiles, request_timer::TOGETHER, stats::RequestFigures},
    units,
};

/// Shown where a value is absent.
pub(super) const NONE: &str = "–";
/// Shown as the gain of the baseline.
pub(super) const BASELINE: &str = "baseline";

pub(super) const GOODPUT: &str = "good requests that ended in the measured window, divided by its length; requests that began in the \
                                  warm-up count, requests that ended after the window do not";

/// Formats a time, or a dash if it is absent.
pub(super) fn optional_time(ns: Option<f64>) -> String {
    ns.map_or(NONE.into(), units::time)
}

/// Shortest gap that is shown, in nanoseconds: see [`TOGETHER`].
pub(super) const TOGETHER_NS: f64 = TOGETHER.as_nanos() as f64;

/// Formats a gap; a dash if it is absent.
pub(super) fn optional_gap(ns: Option<f64>) -> String {
    match ns {
        Some(ns) if ns < TOGETHER_NS => format!("< {}", units::time(TOGETHER_NS).replace(".0", "")),
        ns => optional_time(ns),
    }
}

/// Formats a speed in characters or tokens per second; a dash if it is absent.
fn optional_speed(speed: Option<f64>) -> String {
    speed.map_or(NONE.into(), |speed| format!("{} /s", units::digits(speed)))
}

/// Formats the speed of messages that all came together.
fn speed_together(speed: Option<f64>) -> String {
    let most = 1e9 / TOGETHER_NS;
    match speed {
        Some(speed) if speed > most => format!("> {most:.0} /s"),
        speed => optional_speed(speed),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nanoseconds, shown in the unit that reads best.
    Time,
    /// Nanoseconds between messages, or between parts of messages that may all have come together.
    Gap,
    /// Number of characters.
    Count,
    /// Characters or tokens per second.
    Speed,
    /// Characters per second of messages that all came together.
    SpeedTogether,
}

pub(super) struct FigureRow {
    pub(super) name: &'static str,
    pub(super) definition: &'static str,
    pub(super) unit: Unit,
    pub(super) values: Percentiles,
}

/// Columns after the count.
pub(super) const COLUMNS: [&str; 8] = ["mean", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];

impl FigureRow {
    fn time(name: &'static str, definition: &'static str, values: Percentiles) -> Self {
        Self { name, definition, unit: Unit::Time, values }
    }

    fn gap(name: &'static str, definition: &'static str, values: Percentiles) -> Self {
        Self { name, definition, unit: Unit::Gap, values }
    }

    /// Returns the cells in the order of [`COLUMNS`]; a dash where there are too few values.
    pub(super) fn cells(&self) -> [String; 8] {
        let Percentiles { mean, min, p50, p90, p95, p99, p999, max, .. } = self.values;
        [mean, min, p50, p90, p95, p99, p999, max].map(|value| match self.unit {
            Unit::Time => optional_time(value),
            Unit::Gap => optional_gap(value),
            Unit::Count => value.map_or(NONE.into(), units::digits),
            Unit::Speed => optional_speed(value),
            Unit::SpeedTogether => speed_together(value),
        })
    }
}

/// Returns all rows for which the measurement has values.
pub(super) fn rows(figures: &RequestFigures) -> Vec<FigureRow> {
    let server = &figures.server;
    let mut rows = vec![
        FigureRow::time("time to first character", "from the intended start", figures.time_to_first_char_ns),
        FigureRow::time("… from sending", "suffers from coordinated omission", figures.time_to_first_char_from_send_ns),
        FigureRow::time("total", "from the intended start to the end", figures.total_ns),
        FigureRow::time("… from sending", "suffers from coordinated omission", figures.total_from_send_ns),
    ];
    match (figures.plain_gap_ns, figures.boundary_gap_ns) {
        (Some(plain), Some(boundary)) => rows.extend([
            FigureRow::gap("plain gap", "between messages, middle layers not run", plain),
            FigureRow::gap("boundary gap", "between messages, middle layers run", boundary),
        ]),
        _ => rows.push(FigureRow::gap("gap", "between messages", figures.gap_ns)),
    }
    // Reports of earlier versions have times of messages that came together. A mean over characters of which some messages came
    // apart is the server's, however short it is.
    let all_together = figures.gap_ns.max.is_some_and(|longest| longest < TOGETHER_NS);
    let segment = |values| FigureRow::gap("segment", "from one segment's end to the next", values);
    rows.extend(figures.segment_ns.map(segment));
    rows.extend([
        FigureRow {
            name: "time per character",
            definition: "a request's mean, after the characters that came first",
            unit: if all_together { Unit::Gap } else { Unit::Time },
            values: figures.char_ns,
        },
        FigureRow {
            name: "speed",
            definition: "characters per second of a request, after those that came first",
            unit: if all_together { Unit::SpeedTogether } else { Unit::Speed },
            values: figures.chars_per_second,
        },
        FigureRow::time("queue (server)", "from arrival to a row", server.queue_ns),
        FigureRow::time("prefill (server)", "from a row to the end of the prompt", server.prefill_ns),
        FigureRow::time("first character (server)", "from arrival", server.time_to_first_char_ns),
        FigureRow::time("start lag (tester)", "from the intended start to sending", figures.start_lag_ns),
    ]);
    if let Some(summaries) = &figures.summaries {
        rows.extend([
            FigureRow::time("upload", "from sending to the document's end", summaries.upload_ns),
            FigureRow::time("encode (server)", "all layers and the decoder's keys and values", summaries.encode_ns),
            FigureRow::time(
                "… after the upload",
                "from the document's end to the end of encoding",
                summaries.encode_rest_ns,
            ),
            FigureRow::time("decode (server)", "from the first step to the last", summaries.decode_ns),
            FigureRow::time("… per token", "mean of these steps", summaries.decode_token_ns),
            FigureRow {
                name: "tokens (server)",
                definition: "tokens per second of a summary, after its first",
                unit: Unit::Speed,
                values: summaries.tokens_per_second,
            },
        ]);
    }
    rows.extend(figures.edits.iter().flat_map(edits::rows));
    rows.retain(|row| row.values.count > 0);
    rows
}

/// Returns the columns, by index in [`COLUMNS`], in which any of the rows has a value.
pub(super) fn used_columns<'a>(rows: impl Iterator<Item = &'a FigureRow>) -> Vec<usize> {
    let cells: Vec<_> = rows.map(FigureRow::cells).collect();
    let is_used = |column: &usize| cells.iter().any(|cells| cells.get(*column).is_some_and(|cell| cell != NONE));
    (0..COLUMNS.len()).filter(is_used).collect()
}

/// Remark on comparisons of summarizing models.
pub(super) const SUMMARIES: &str = "Pooled: how many times fewer of a document's keys and values the decoder attends to than without \
    pooling, as the server reports it. Summaries are not scored in bits per character, and their gains are not estimated.";

/// Describes how far documents were pooled, with the bytes of keys and values per document.
pub(super) fn pooling(figures: &RequestFigures) -> String {
    let Some(summaries) = &figures.summaries else { return NONE.into() };
    let Some(factor) = summaries.pooled() else { return NONE.into() };
    let each = summaries.cross_attention_bytes as f64 / summaries.count.max(1) as f64 / f64::from(1 << 20);
    format!("{}× ({} MiB per document)", units::digits(factor), units::digits(each))
}

/// Describes the share of a document's tokens that the last pooling kept: the median over documents, and their range.
fn kept_share(figures: &RequestFigures) -> String {
    let Some(summaries) = &figures.summaries else { return NONE.into() };
    let Percentiles { p50, min, max, .. } = summaries.kept_share;
    let percent = |share: f64| units::digits(share * 100.0);
    let described = |((median, min), max)| format!("{} % ({} to {})", percent(median), percent(min), percent(max));
    p50.zip(min).zip(max).map_or(NONE.into(), described)
}

pub(super) struct ModelColumn {
    /// Heading on the page.
    pub(super) page: &'static str,
    /// Heading in the text table; empty if only the page has the column.
    pub(super) table: &'static str,
    pub(super) value: fn(&ComparedModel) -> String,
}

const fn column(page: &'static str, table: &'static str, value: fn(&ComparedModel) -> String) -> ModelColumn {
    ModelColumn { page, table, value }
}

/// Returns the shares that the server had cached, each with its unit: characters and tokens cannot be added.
pub(super) fn cached_shares(figures: &RequestFigures) -> Vec<(f64, &'static str)> {
    let summaries = figures.summaries.as_ref();
    let tokens = summaries.map_or((0, 0), |summaries| (summaries.cached_tokens, summaries.document_tokens));
    // reports of earlier versions repeat the documents' tokens here
    let chars = if figures.prompt_chars == tokens.1 { (0, 0) } else { (figures.cached_chars, figures.prompt_chars) };
    let all = [(chars, "the prompts' symbols"), (tokens, "the documents' tokens")].into_iter();
    all.filter(|((_, all), _)| *all > 0).map(|((part, all), unit)| (part as f64 / all as f64, unit)).collect()
}

/// Describes the shares that the server had cached; a dash if nothing could be cached.
pub(super) fn describe_cached(figures: &RequestFigures) -> String {
    let shares = cached_shares(figures);
    let all: Vec<_> =
        shares.iter().map(|(share, unit)| format!("{} % of {unit}", units::digits(share * 100.0))).collect();
    if all.is_empty() { NONE.into() } else { all.join(", ") }
}

fn describe_gain(gain: Option<Gain>) -> String {
    let Some(Gain { ratio, low, high, pairs }) = gain else { return NONE.into() };
    match low.zip(high) {
        Some((low, high)) => format!("{ratio:.2}× ({low:.2} to {high:.2})"),
        None => format!("{ratio:.2}× (too few pairs for an interval: {pairs})"),
    }
}

fn gain(model: &ComparedModel, figure: fn(&Gains) -> Option<Gain>) -> String {
    model.gains.as_ref().map_or_else(|| BASELINE.into(), |gains| describe_gain(figure(gains)))
}

fn optional_gain(gains: &Option<Gains>, figure: fn(&Gains) -> Option<Gain>) -> String {
    describe_gain(gains.as_ref().and_then(figure))
}

fn median(model: &ComparedModel, figure: fn(&Medians) -> Option<f64>) -> String {
    optional_time(figure(&model.medians()))
}

/// Formats a number with `decimals` decimals, or a dash if it is absent.
pub(super) fn optional_number(number: Option<f64>, decimals: usize) -> String {
    number.map_or(NONE.into(), |number| format!("{number:.decimals$}"))
}

pub(super) const MODEL_COLUMNS: [ModelColumn; 22] = [
    column("model", "model", |model| model.model.clone()),
    column("gain: total", "total", |model| gain(model, |gains| gains.total)),
    column("gain: first character", "first character", |model| gain(model, |gains| gains.time_to_first_char)),
    column("gain: per character", "per character", |model| gain(model, |gains| gains.char)),
    column("ESTIMATED gain: total", "ESTIMATED total", |model| optional_gain(&model.estimated, |gains| gains.total)),
    column("ESTIMATED gain: per character", "ESTIMATED per char", |model| {
        optional_gain(&model.estimated, |gains| gains.char)
    }),
    column("gain: encode", "encode", |model| optional_gain(&model.gains, |gains| gains.encode)),
    column("gain: per token of a summary", "decode/token", |model| {
        optional_gain(&model.gains, |gains| gains.decode_token)
    }),
    column("gain: keystroke to completions", "keystroke", |model| optional_gain(&model.gains, |gains| gains.keystroke)),
    column("median: total", "median total", |model| median(model, |medians| medians.total_ns)),
    column("median: first character", "median first", |model| median(model, |medians| medians.time_to_first_char_ns)),
    column("median: per character", "median char", |model| median(model, |medians| medians.char_ns)),
    column("median: encode (server)", "median encode", |model| median(model, |medians| medians.encode_ns)),
    column("median: per token (server)", "median token", |model| median(model, |medians| medians.decode_token_ns)),
    column("median: keystroke to completions", "median keystroke", |model| {
        median(model, |medians| medians.keystroke_ns)
    }),
    column("keystrokes saved by the first completion", "saved", |model| edits::saved(&model.figures)),
    column("characters per segment (SF)", "SF", |model| optional_number(model.figures.shortening_factor, 3)),
    column("kept share of a document's tokens", "kept", |model| kept_share(&model.figures)),
    column("pooled (keys and values of a document)", "pooled", |model| pooling(&model.figures)),
    column("bits per character", "bits/char", |model| optional_number(model.bits_per_char, 4)),
    column("cached by the server", "cached", |model| describe_cached(&model.figures)),
    column("succeeded", "", |model| format!("{} of {}", model.figures.requests.well, model.figures.requests.measured)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::summaries::SummaryFigures;

    #[test]
    fn means_are_hidden_only_if_all_messages_came_together() {
        let values = |p50| Percentiles { count: 9, p50: Some(p50), max: Some(p50 * 2.0), ..Percentiles::default() };
        let shown = |gap_ns| {
            let figures = RequestFigures {
                gap_ns,
                segment_ns: Some(values(4e3)),
                char_ns: values(4e3),
                chars_per_second: values(250e3),
                ..RequestFigures::default()
            };
            let named = |name| rows(&figures).iter().find(|row| row.name == name).unwrap().cells()[2].clone();
            [named("segment"), named("time per character"), named("speed")]
        };
        assert_eq!(shown(values(1e3)), ["< 20 µs", "< 20 µs", "> 50000 /s"]);
        // Several characters came in each message. The ends of a segment are in different messages.
        assert_eq!(shown(values(80e3)), ["< 20 µs", "4.00 µs", "250000 /s"]);
    }

    #[test]
    fn pooling_is_described_with_bytes_per_document() {
        let describe = |kept, unpooled, count| {
            let summaries = SummaryFigures {
                count,
                cross_attention_bytes: kept,
                unpooled_cross_attention_bytes: unpooled,
                ..SummaryFigures::default()
            };
            pooling(&RequestFigures { summaries: Some(summaries), ..RequestFigures::default() })
        };
        assert_eq!(describe(3 << 20, 48 << 20, 2), "16.0× (1.50 MiB per document)");
        assert_eq!((describe(0, 0, 0), pooling(&RequestFigures::default())), ("–".into(), "–".into()));
    }

    #[test]
    fn kept_shares_are_described_as_median_and_range() {
        let described = |kept_share| {
            let summaries = SummaryFigures { kept_share, ..SummaryFigures::default() };
            self::kept_share(&RequestFigures { summaries: Some(summaries), ..RequestFigures::default() })
        };
        let shares =
            Percentiles { count: 2, min: Some(0.25), p50: Some(0.5), max: Some(1.0), ..Percentiles::default() };
        assert_eq!(described(shares), "50.0 % (25.0 to 100)");
        assert_eq!(
            (described(Percentiles::default()), kept_share(&RequestFigures::default())),
            ("–".into(), "–".into())
        );
    }
}
