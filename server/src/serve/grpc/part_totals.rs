//! The usage and the timing of a document that is summarized in parts: sums over the jobs of its parts and of the last round.

use super::totals::nanoseconds;
use crate::decode::{
    long_documents::TextPart,
    summary::SummaryResult,
    usage::{Timing, Usage},
};
use std::time::Duration;
use weir_proto::v1;

/// Sums over the jobs of one call.
#[derive(Default)]
pub(super) struct PartTotals {
    /// Time from the call's arrival to the end of its upload.
    upload: Duration,
    /// Bytes of the document up to the end of its last part, if it has parts.
    document_bytes: Option<u64>,
    timing: v1::SummaryTiming,
    /// Decoder steps.
    steps: u64,
    job_usage: Usage,
    job_timing: Timing,
}

impl PartTotals {
    /// Begins with a document whose upload took this long.
    pub(super) fn new(upload: Duration) -> Self {
        Self { upload, ..Self::default() }
    }

    /// Adds a job.
    pub(super) fn add(&mut self, finished: &v1::SummaryFinished, result: &SummaryResult) {
        let SummaryResult { usage, timing: job_timing, .. } = result;
        self.job_usage.prompt_chars += usage.prompt_chars;
        self.job_usage.cached_chars += usage.cached_chars;
        self.job_usage.generated_chars += usage.generated_chars;
        self.job_timing.queue_ns += job_timing.queue_ns;
        self.job_timing.prefill_ns += job_timing.prefill_ns;
        self.job_timing.decode_ns += job_timing.decode_ns;
        self.job_timing.total_ns += job_timing.total_ns;
        self.job_timing.steps += job_timing.steps;
        self.steps += (usage.generated_chars as u64).saturating_sub(1);
        let Some(timing) = &finished.timing else { return };
        self.timing.queue_ns += timing.queue_ns;
        self.timing.encode_rest_ns += timing.encode_rest_ns;
        self.timing.blocks_at_end += timing.blocks_at_end;
        self.timing.blocks += timing.blocks;
        self.timing.memory_ns += timing.memory_ns;
        self.timing.encode_ns += timing.encode_ns;
        self.timing.decode_ns += timing.decode_ns;
        self.timing.layers.resize(timing.layers.len().max(self.timing.layers.len()), v1::EncoderLayer::default());
        for (sum, layer) in self.timing.layers.iter_mut().zip(&timing.layers) {
            sum.length += layer.length;
            sum.ns += layer.ns;
        }
    }

    /// Records where a part of the first round ends.
    pub(super) fn add_part(&mut self, part: &TextPart) {
        if part.round == 1 {
            self.document_bytes = Some(part.end);
        }
    }

    /// Returns the sums as the engine counts them.
    pub(super) fn of_jobs(&self) -> (&Usage, &Timing) {
        (&self.job_usage, &self.job_timing)
    }

    /// Returns the last message of the call: that of the last job, with the parts and the sums. The job was submitted `submitted`
    /// after the call's arrival, which is `total` ago.
    pub(super) fn finish(
        self,
        last: v1::SummaryFinished,
        parts: Vec<v1::SummaryPart>,
        submitted: Duration,
        total: Duration,
    ) -> v1::SummaryFinished {
        let usage = last.usage.unwrap_or_default();
        let timing = last.timing.unwrap_or_default();
        v1::SummaryFinished {
            // An id of the last round's text is not one of the document.
            document_id: last.document_id.filter(|_| parts.is_empty()),
            usage: Some(v1::SummaryUsage {
                document_tokens: self.job_usage.prompt_chars as u64,
                cached_tokens: self.job_usage.cached_chars as u64,
                summary_tokens: self.job_usage.generated_chars as u64,
                document_bytes: self.document_bytes.or(usage.document_bytes),
                ..usage
            }),
            timing: Some(v1::SummaryTiming {
                upload_ns: nanoseconds(self.upload),
                time_to_first_token_ns: nanoseconds(submitted).saturating_add(timing.time_to_first_token_ns),
                decode_ns_per_token: self.timing.decode_ns.checked_div(self.steps),
                total_ns: nanoseconds(total),
                kept_share: timing.kept_share,
                cross_attention_bytes: timing.cross_attention_bytes,
                unpooled_cross_attention_bytes: timing.unpooled_cross_attention_bytes,
                ..self.timing
            }),
            parts,
            ..last
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::options::FinishReason;

    #[test]
    fn jobs_are_added() {
        let job = |tokens: usize, generated: usize| {
            let layers = vec![v1::EncoderLayer { length: tokens as u64, ns: 5 }; 2];
            let timing = v1::SummaryTiming {
                queue_ns: 1,
                decode_ns: 12,
                time_to_first_token_ns: 7,
                encode_ns: 11,
                kept_share: Some(tokens as f64 / 8.0),
                cross_attention_bytes: 13,
                unpooled_cross_attention_bytes: 17,
                layers,
                ..Default::default()
            };
            let usage = v1::SummaryUsage { document_tokens: tokens as u64, vectors: 3, ..Default::default() };
            let finished = v1::SummaryFinished {
                usage: Some(usage),
                timing: Some(timing),
                document_id: Some("id".into()),
                ..Default::default()
            };
            let result = SummaryResult {
                hypotheses: Vec::new(),
                document_id: None,
                reason: FinishReason::EndOfText,
                usage: Usage { prompt_chars: tokens, generated_chars: generated, ..Usage::default() },
                timing: Timing { queue_ns: 1, total_ns: 9, ..Timing::default() },
                waits: Default::default(),
            };
            (finished, result)
        };
        let mut totals = PartTotals::new(Duration::from_nanos(50));
        for (tokens, generated) in [(10, 3), (4, 2)] {
            let (finished, result) = job(tokens, generated);
            totals.add(&finished, &result);
        }
        totals.document_bytes = Some(9);
        assert_eq!((totals.of_jobs().0.prompt_chars, totals.of_jobs().1.total_ns), (14, 18));
        let parts = vec![v1::SummaryPart::default()];
        let last = totals.finish(job(4, 2).0, parts, Duration::from_nanos(100), Duration::from_nanos(200));
        let usage = last.usage.unwrap();
        assert_eq!((usage.document_tokens, usage.summary_tokens, usage.vectors), (14, 5, 3));
        assert_eq!((usage.document_bytes, last.document_id), (Some(9), None));
        let timing = last.timing.unwrap();
        assert_eq!((timing.queue_ns, timing.upload_ns, timing.decode_ns, timing.total_ns), (2, 50, 24, 200));
        assert_eq!((timing.time_to_first_token_ns, timing.decode_ns_per_token), (107, Some(8)));
        assert_eq!((timing.encode_ns, timing.kept_share), (22, Some(0.5)));
        assert_eq!((timing.cross_attention_bytes, timing.unpooled_cross_attention_bytes), (13, 17));
        assert_eq!(timing.layers, [v1::EncoderLayer { length: 14, ns: 10 }; 2]);
    }
}
