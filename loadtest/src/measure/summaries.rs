//! Statistics of summaries, in addition to those of every request.

use super::histogram::{MILLI, Percentiles, ValueHistogram};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SummaryMeasurement {
    /// From sending until the last of the document was handed to the client library.
    pub upload: Duration,
    /// Encoding time of all layers and of the decoder's keys and values, as the server reports it.
    pub encode: Duration,
    /// From the end of the upload to the end of encoding, as the server reports it.
    pub encode_rest: Duration,
    /// From the decoder's first step to its last, as the server reports it.
    pub decode: Duration,
    pub document_tokens: u64,
    pub cached_tokens: u64,
    pub summary_tokens: u64,
    /// Bytes of the decoder's keys and values of the document.
    pub cross_attention_bytes: u64,
    /// Bytes that these would have without pooling, computed from the model's shape.
    pub unpooled_cross_attention_bytes: u64,
    /// Share of the document's tokens that the last pooling kept, as the server reports it; none if it does not.
    pub kept_share: Option<f64>,
}

impl SummaryMeasurement {
    /// Returns the mean time of a token after the first.
    pub fn per_token(&self) -> Option<Duration> {
        self.decode.checked_div(u32::try_from(self.summary_tokens.checked_sub(1)?).ok()?)
    }
}

#[derive(Debug, Default)]
pub(super) struct SummaryStats {
    count: u64,
    sums: SummaryMeasurement,
    upload: ValueHistogram,
    encode: ValueHistogram,
    encode_rest: ValueHistogram,
    decode: ValueHistogram,
    per_token: ValueHistogram,
    speed: ValueHistogram,
    /// Kept shares, in units of [`SHARE`].
    kept_share: ValueHistogram,
}

/// Unit of a kept share in its histogram, whose three digits distinguish all values up to 2,047.
const SHARE: f64 = 1.0 / 2000.0;

/// Figures of summaries; [`SummaryMeasurement`] describes those of the same name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummaryFigures {
    /// Summaries that succeeded.
    pub count: u64,
    pub document_tokens: u64,
    pub cached_tokens: u64,
    pub summary_tokens: u64,
    pub cross_attention_bytes: u64,
    pub unpooled_cross_attention_bytes: u64,
    pub upload_ns: Percentiles,
    /// Encoding time of layers and decoder's keys and values, of documents not cached, as the server reports it.
    pub encode_ns: Percentiles,
    pub encode_rest_ns: Percentiles,
    pub decode_ns: Percentiles,
    /// Mean time of these steps, as the server reports it.
    pub decode_token_ns: Percentiles,
    /// Tokens per second after the first, per summary, as the server reports it.
    pub tokens_per_second: Percentiles,
    /// Share of a document's tokens that the last pooling kept, as the server reports it. Absent from reports of versions that did
    /// not record it.
    #[serde(default)]
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

impl SummaryStats {
    pub(super) fn record(&mut self, summary: &SummaryMeasurement) {
        self.count += 1;
        self.add_sums(summary);
        self.upload.record_time(summary.upload);
        if summary.cached_tokens == 0 {
            self.encode.record_time(summary.encode);
            self.encode_rest.record_time(summary.encode_rest);
        }
        self.decode.record_time(summary.decode);
        if let Some(share) = summary.kept_share {
            self.kept_share.record((share / SHARE).round() as u64);
        }
        if let Some(time) = summary.per_token() {
            self.per_token.record_time(time);
            self.speed.record_speed(time);
        }
    }

    fn add_sums(&mut self, other: &SummaryMeasurement) {
        let sums = &mut self.sums;
        sums.document_tokens += other.document_tokens;
        sums.cached_tokens += other.cached_tokens;
        sums.summary_tokens += other.summary_tokens;
        sums.cross_attention_bytes += other.cross_attention_bytes;
        sums.unpooled_cross_attention_bytes += other.unpooled_cross_attention_bytes;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.add_sums(&other.sums);
        self.upload.merge(&other.upload);
        self.encode.merge(&other.encode);
        self.encode_rest.merge(&other.encode_rest);
        self.decode.merge(&other.decode);
        self.per_token.merge(&other.per_token);
        self.speed.merge(&other.speed);
        self.kept_share.merge(&other.kept_share);
    }

    /// Returns the figures for the report, or `None` without summaries.
    pub(super) fn figures(&self) -> Option<SummaryFigures> {
        (self.count > 0).then(|| SummaryFigures {
            count: self.count,
            document_tokens: self.sums.document_tokens,
            cached_tokens: self.sums.cached_tokens,
            summary_tokens: self.sums.summary_tokens,
            cross_attention_bytes: self.sums.cross_attention_bytes,
            unpooled_cross_attention_bytes: self.sums.unpooled_cross_attention_bytes,
            upload_ns: self.upload.percentiles(1.0),
            encode_ns: self.encode.percentiles(1.0),
            encode_rest_ns: self.encode_rest.percentiles(1.0),
            decode_ns: self.decode.percentiles(1.0),
            decode_token_ns: self.per_token.percentiles(1.0),
            tokens_per_second: self.speed.percentiles(MILLI),
            kept_share: self.kept_share.percentiles(SHARE),
        })
    }
}
