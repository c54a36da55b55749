//! What is measured of summaries beside what is measured of every request.

use super::histogram::{Percentiles, ValueHistogram};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Thousandths in which speeds are counted.
const MILLI: f64 = 1e-3;

/// What is known of a summary when it has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SummaryMeasurement {
    /// From sending to when the last of the document was handed to the client library.
    pub upload: Duration,
    /// What encoding took: all layers, and making the decoder's keys and values. The server's word.
    pub encode: Duration,
    /// From the end of the document's arrival to the end of its encoding. The server's word.
    pub encode_rest: Duration,
    /// From the decoder's first step to its last. The server's word.
    pub decode: Duration,
    /// Tokens of the document.
    pub document_tokens: u64,
    /// Of these, tokens that were not encoded again.
    pub cached_tokens: u64,
    /// Tokens of the summary.
    pub summary_tokens: u64,
    /// Bytes of the decoder's keys and values of the document.
    pub cross_attention_bytes: u64,
    /// The same without pooling, by the model's shape.
    pub unpooled_cross_attention_bytes: u64,
}

impl SummaryMeasurement {
    /// The mean time of a token after the first.
    pub fn per_token(&self) -> Option<Duration> {
        self.decode.checked_div(u32::try_from(self.summary_tokens.checked_sub(1)?).ok()?)
    }
}

/// Numbers of all summaries so far.
#[derive(Debug)]
pub(super) struct SummaryStats {
    count: u64,
    sums: SummaryMeasurement,
    upload: ValueHistogram,
    encode: ValueHistogram,
    encode_rest: ValueHistogram,
    decode: ValueHistogram,
    per_token: ValueHistogram,
    speed: ValueHistogram,
}

/// Figures of summaries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummaryFigures {
    /// Summaries that ended well.
    pub count: u64,
    /// Tokens of their documents.
    pub document_tokens: u64,
    /// Of these, tokens that were not encoded again.
    pub cached_tokens: u64,
    /// Tokens of the summaries.
    pub summary_tokens: u64,
    /// Bytes of the decoder's keys and values of the documents.
    pub cross_attention_bytes: u64,
    /// Not measured: the same without pooling, by the model's shape.
    pub unpooled_cross_attention_bytes: u64,
    /// From sending to the document's end.
    pub upload_ns: Percentiles,
    /// Of documents that were encoded: what their layers and the decoder's keys and values took. The server's word.
    pub encode_ns: Percentiles,
    /// From the end of the document's arrival to the end of its encoding. The server's word.
    pub encode_rest_ns: Percentiles,
    /// From the decoder's first step to its last. The server's word.
    pub decode_ns: Percentiles,
    /// The mean of these steps. The server's word.
    pub decode_token_ns: Percentiles,
    /// Tokens a second after the first, of each summary. The server's word.
    pub tokens_per_second: Percentiles,
}

impl SummaryFigures {
    /// How many times fewer of a document's keys and values the decoder attends to than it would without pooling: what of summarizers
    /// stands in place of a shortening factor.
    pub fn pooled(&self) -> Option<f64> {
        let (kept, unpooled) = (self.cross_attention_bytes as f64, self.unpooled_cross_attention_bytes as f64);
        (kept > 0.0 && unpooled > 0.0).then(|| unpooled / kept)
    }
}

impl SummaryStats {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            count: 0,
            sums: SummaryMeasurement::default(),
            upload: ValueHistogram::new()?,
            encode: ValueHistogram::new()?,
            encode_rest: ValueHistogram::new()?,
            decode: ValueHistogram::new()?,
            per_token: ValueHistogram::new()?,
            speed: ValueHistogram::new()?,
        })
    }

    /// Takes one that ended well.
    pub(super) fn take(&mut self, summary: &SummaryMeasurement) {
        self.count += 1;
        self.add_sums(summary);
        self.upload.time(summary.upload);
        if summary.cached_tokens == 0 {
            self.encode.time(summary.encode);
            self.encode_rest.time(summary.encode_rest);
        }
        self.decode.time(summary.decode);
        if let Some(token) = summary.per_token() {
            self.per_token.time(token);
            self.speed.number((1.0 / token.as_secs_f64().max(1e-9) / MILLI) as u64);
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

    pub(super) fn add(&mut self, other: &Self) -> Result<()> {
        self.count += other.count;
        self.add_sums(&other.sums);
        self.upload.add(&other.upload)?;
        self.encode.add(&other.encode)?;
        self.encode_rest.add(&other.encode_rest)?;
        self.decode.add(&other.decode)?;
        self.per_token.add(&other.per_token)?;
        self.speed.add(&other.speed)
    }

    /// What is told; nothing of none.
    pub(super) fn figures(&self) -> Option<SummaryFigures> {
        (self.count > 0).then(|| SummaryFigures {
            count: self.count,
            document_tokens: self.sums.document_tokens,
            cached_tokens: self.sums.cached_tokens,
            summary_tokens: self.sums.summary_tokens,
            cross_attention_bytes: self.sums.cross_attention_bytes,
            unpooled_cross_attention_bytes: self.sums.unpooled_cross_attention_bytes,
            upload_ns: self.upload.spread(1.0),
            encode_ns: self.encode.spread(1.0),
            encode_rest_ns: self.encode_rest.spread(1.0),
            decode_ns: self.decode.spread(1.0),
            decode_token_ns: self.per_token.spread(1.0),
            tokens_per_second: self.speed.spread(MILLI),
        })
    }
}
