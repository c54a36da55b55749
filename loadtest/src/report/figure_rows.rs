//! The rows of every table of figures: what each is, and what it is counted in.

use crate::{
    measure::{histogram::Percentiles, stats::RequestFigures},
    units,
};

/// What numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nanoseconds, told with the unit in which they read best.
    Time,
    /// Characters a second.
    Speed,
}

/// A row.
pub(super) struct FigureRow {
    pub(super) name: &'static str,
    /// What exactly it is, short.
    pub(super) what: &'static str,
    pub(super) unit: Unit,
    pub(super) spread: Percentiles,
}

/// The columns, after the count.
pub(super) const COLUMNS: [&str; 8] = ["mean", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];

impl FigureRow {
    fn time(name: &'static str, what: &'static str, spread: Percentiles) -> Self {
        Self { name, what, unit: Unit::Time, spread }
    }

    /// The cells, in the order of [`COLUMNS`]; a dash where there are too few numbers for one.
    pub(super) fn cells(&self) -> [String; 8] {
        let Percentiles { mean, min, p50, p90, p95, p99, p999, max, .. } = self.spread;
        [mean, min, p50, p90, p95, p99, p999, max].map(|number| match (number, self.unit) {
            (None, _) => "–".into(),
            (Some(ns), Unit::Time) => units::time(ns),
            (Some(speed), Unit::Speed) => format!("{} /s", units::digits(speed)),
        })
    }
}

/// All rows that a measurement has numbers for.
pub(super) fn rows(figures: &RequestFigures) -> Vec<FigureRow> {
    let server = &figures.server;
    let speed = "characters a second of a request, after its first message";
    let mut rows = vec![
        FigureRow::time("time to first character", "from the intended start", figures.time_to_first_char_ns),
        FigureRow::time(
            "… from sending",
            "what coordinated omission would tell",
            figures.time_to_first_char_from_send_ns,
        ),
        FigureRow::time("total", "from the intended start to the end", figures.total_ns),
        FigureRow::time("… from sending", "what coordinated omission would tell", figures.total_from_send_ns),
    ];
    match (figures.plain_gap_ns, figures.boundary_gap_ns) {
        (Some(plain), Some(boundary)) => rows.extend([
            FigureRow::time("plain gap", "between messages, middle layers not run", plain),
            FigureRow::time("boundary gap", "between messages, middle layers run", boundary),
        ]),
        _ => rows.push(FigureRow::time("gap", "between messages", figures.gap_ns)),
    }
    rows.extend(
        figures.segment_ns.map(|spread| FigureRow::time("segment", "from one segment's end to the next", spread)),
    );
    rows.extend([
        FigureRow::time("time per character", "a request's mean, after its first message", figures.char_ns),
        FigureRow { name: "speed", what: speed, unit: Unit::Speed, spread: figures.chars_per_second },
        FigureRow::time("queue (server's word)", "from arrival to a row", server.queue_ns),
        FigureRow::time("prefill (server's word)", "from a row to the end of the prompt", server.prefill_ns),
        FigureRow::time("first character (server's word)", "from arrival", server.time_to_first_char_ns),
        FigureRow::time("start lag (tester's own)", "from the intended start to sending", figures.start_lag_ns),
    ]);
    if let Some(told) = &figures.summaries {
        rows.extend([
            FigureRow::time("upload", "from sending to the document's end", told.upload_ns),
            FigureRow::time("encode (server's word)", "all layers and the decoder's keys and values", told.encode_ns),
            FigureRow::time("… after the upload", "from the document's end to its encoding's", told.encode_rest_ns),
            FigureRow::time("decode (server's word)", "from the first step to the last", told.decode_ns),
            FigureRow::time("… per token", "the mean of these steps", told.decode_token_ns),
        ]);
        let (what, spread) = ("tokens a second of a summary, after its first", told.tokens_per_second);
        rows.push(FigureRow { name: "tokens (server's word)", what, unit: Unit::Speed, spread });
    }
    rows.retain(|row| row.spread.count > 0);
    rows
}

/// Of comparisons of summarizers, what stands in no column of theirs.
pub(super) const SUMMARIES: &str = "Pooled: how many times fewer of a document's keys and values the decoder attends to than it would \
    without pooling, by the server's word. SummaryStats are not scored in bits per character, and no gain of theirs is estimated.";

/// What of summarizers stands in place of a shortening factor, and the bytes of a document that it is made of.
pub(super) fn pooled_words(figures: &RequestFigures) -> String {
    let Some((told, times)) = figures.summaries.as_ref().and_then(|told| Some((told, told.pooled()?))) else {
        return "–".into();
    };
    let each = told.cross_attention_bytes as f64 / told.count.max(1) as f64 / f64::from(1 << 20);
    format!("{}× ({} MiB a document)", units::digits(times), units::digits(each))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::summaries::SummaryFigures;

    #[test]
    fn how_far_documents_were_pooled() {
        let words = |kept, unpooled, count| {
            let told = SummaryFigures {
                count,
                cross_attention_bytes: kept,
                unpooled_cross_attention_bytes: unpooled,
                ..SummaryFigures::default()
            };
            pooled_words(&RequestFigures { summaries: Some(told), ..RequestFigures::default() })
        };
        assert_eq!(words(3 << 20, 48 << 20, 2), "16.0× (1.50 MiB a document)");
        assert_eq!((words(0, 0, 0), pooled_words(&RequestFigures::default())), ("–".into(), "–".into()));
    }
}
