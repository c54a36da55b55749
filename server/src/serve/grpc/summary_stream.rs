//! The messages of a `Summarize` response: `started`, progress, selections, pieces, `finished`.

use super::{document_upload::UploadTask, response_stream::MessageEncoder, totals::count};
use crate::{
    decode::{
        beam::Hypothesis,
        contract::Card,
        document::{EncodingStage, PoolingChoice},
        options::FinishReason,
        spans::{KeptSpan, spans},
        summary::{self, ByteRange, EncodedDocument},
    },
    engine::{DocumentEvent, Event},
    text::{StreamDetokenizer, Vocabulary},
};
use std::{collections::VecDeque, sync::Arc};
use weir_proto::v1::{self, summarize_response::Event as Payload};

/// Bytes of text from which on a message is sent before more events are taken.
const PIECE: usize = 4096;

/// Encodes the events of one summary.
pub(crate) struct SummaryEncoder {
    request_id: String,
    model: String,
    vocabulary: Arc<Vocabulary>,
    /// Id of the end mark.
    end: u32,
    text: StreamDetokenizer,
    /// The task that receives the document, if it is uploaded. Dropped when the summary is over.
    upload_task: Option<UploadTask>,
    started: Option<v1::SummaryStarted>,
    progress: Option<v1::Progress>,
    selected: VecDeque<v1::Selected>,
    /// Poolings whose selection is already queued.
    poolings_selected: usize,
    encoded: Option<Arc<EncodedDocument>>,
    piece: String,
    finished: Option<v1::SummaryFinished>,
    closed: bool,
}

impl SummaryEncoder {
    pub(super) fn new(card: &Card, end: u32, request_id: &str, upload_task: Option<UploadTask>) -> Self {
        let vocabulary = Arc::clone(&card.vocabulary);
        Self {
            request_id: request_id.to_owned(),
            model: card.name.clone(),
            text: StreamDetokenizer::new(Arc::clone(&vocabulary)),
            vocabulary,
            end,
            upload_task,
            started: None,
            progress: None,
            selected: VecDeque::new(),
            poolings_selected: 0,
            encoded: None,
            piece: String::new(),
            finished: None,
            closed: false,
        }
    }

    fn push_document(&mut self, event: DocumentEvent) {
        match event {
            DocumentEvent::Reading(reading) => self.progress = Some(progress(reading)),
            DocumentEvent::Chosen(update) => self.select(&update.choices, &update.byte_ranges, update.tokens),
            DocumentEvent::Encoded(encoded) => {
                let new = &encoded.choices[self.poolings_selected.min(encoded.choices.len())..];
                self.select(new, &encoded.byte_ranges, encoded.tokens);
                self.encoded = Some(encoded);
            }
            DocumentEvent::Summarized(summary) => self.finished = Some(self.finish(&summary)),
        }
    }

    /// Queues the selections of the next poolings. `ranges` holds the byte range of each of the document's `tokens`.
    fn select(&mut self, choices: &[PoolingChoice], ranges: &[ByteRange], tokens: usize) {
        self.poolings_selected += choices.len();
        self.selected.extend(choices.iter().map(|choice| selection(choice, ranges, tokens)));
    }

    fn finish(&self, summary: &summary::SummaryResult) -> v1::SummaryFinished {
        let summary::SummaryResult { hypotheses, document_id, reason, usage, timing, waits } = summary;
        let tokens = usage.generated_chars;
        let total_ns = timing.total_ns;
        tracing::debug!(?reason, document_tokens = usage.prompt_chars, summary_tokens = tokens, total_ns, "summarized");
        let reason = match reason {
            FinishReason::EndOfText => v1::SummaryFinishReason::EndOfText,
            _ => v1::SummaryFinishReason::MaxTokens,
        };
        let encoded = self.encoded.as_deref();
        let count = |field: fn(&EncodedDocument) -> usize| encoded.map_or(0, |encoded| field(encoded) as u64);
        let layers = encoded.into_iter().flat_map(|encoded| &encoded.layers);
        let steps = (tokens as u64).saturating_sub(1);
        v1::SummaryFinished {
            reason: reason.into(),
            document_id: document_id.clone(),
            hypotheses: hypotheses.iter().map(|hypothesis| self.hypothesis(hypothesis)).collect(),
            usage: Some(v1::SummaryUsage {
                document_tokens: usage.prompt_chars as u64,
                cached_tokens: usage.cached_chars as u64,
                cut: encoded.is_some_and(|encoded| encoded.cut),
                summary_tokens: tokens as u64,
                vectors: count(|encoded| encoded.vectors),
                cross_attention_bytes: count(|encoded| encoded.bytes),
                unpooled_cross_attention_bytes: count(|encoded| encoded.unpooled_bytes),
                document_bytes: encoded.and_then(EncodedDocument::read_bytes),
            }),
            timing: Some(v1::SummaryTiming {
                queue_ns: timing.queue_ns,
                upload_ns: waits.arrival_ns,
                encode_rest_ns: waits.rest_ns,
                blocks_at_end: waits.blocks_at_end as u64,
                blocks: waits.blocks as u64,
                layers: layers.map(|layer| v1::EncoderLayer { length: layer.length as u64, ns: layer.ns }).collect(),
                memory_ns: encoded.map_or(0, |encoded| encoded.memory_ns),
                time_to_first_token_ns: timing.time_to_first_char_ns,
                decode_ns: timing.decode_ns,
                decode_ns_per_token: timing.decode_ns.checked_div(steps),
                total_ns,
                encode_ns: encoded.map_or(0, EncodedDocument::encode_ns),
                kept_share: encoded.and_then(EncodedDocument::kept_share),
                cross_attention_bytes: count(|encoded| encoded.bytes),
                unpooled_cross_attention_bytes: count(|encoded| encoded.unpooled_bytes),
            }),
            parts: Vec::new(),
        }
    }

    fn hypothesis(&self, hypothesis: &Hypothesis) -> v1::Hypothesis {
        let Hypothesis { tokens, logprobs, score } = hypothesis;
        v1::Hypothesis {
            text: self.vocabulary.decode(hypothesis.text(self.end)),
            ids: tokens.clone(),
            score: *score,
            logprobs: logprobs.clone(),
        }
    }
}

/// Returns an encoder for a program that runs an engine without a server: it takes the events of one summary, `None` at their end, and
/// returns the messages about each. `end` is the id of the end mark.
pub fn summary(card: &Card, end: u32) -> impl FnMut(Option<Event>) -> Vec<v1::SummarizeResponse> + use<> {
    let mut encoder = SummaryEncoder::new(card, end, "", None);
    move |event| {
        match event {
            Some(event) => encoder.push(event),
            None => encoder.close(),
        }
        std::iter::from_fn(|| encoder.next()).collect()
    }
}

/// Returns the message for the spans that one pooling keeps.
fn selection(choice: &PoolingChoice, ranges: &[ByteRange], tokens: usize) -> v1::Selected {
    let (spans, tokens) = spans(choice, ranges, tokens);
    let span = |KeptSpan { start, end, score }| v1::Span { byte_start: start, byte_end: end, score };
    let spans = spans.into_iter().map(span).collect();
    v1::Selected { layer: count(choice.layer), spans, tokens: tokens as u64 }
}

fn progress(reading: summary::DocumentProgress) -> v1::Progress {
    let summary::DocumentProgress { stage, tokens, read_bytes, cut, blocks, total } = reading;
    let (stage, layer) = match stage {
        EncodingStage::Waiting => ("waiting", None),
        EncodingStage::Layer(layer) => ("layer", Some(layer)),
        EncodingStage::Memory => ("memory", None),
        EncodingStage::Done => ("done", None),
    };
    v1::Progress {
        stage: stage.to_owned(),
        layer: layer.map(count),
        tokens_read: tokens as u64,
        blocks_encoded: blocks as u64,
        blocks_total: total.map(|total| total as u64),
        document_bytes: read_bytes,
        cut,
    }
}

impl MessageEncoder for SummaryEncoder {
    type Message = v1::SummarizeResponse;

    const LEADING: usize = 1;

    fn push(&mut self, event: Event) {
        match event {
            Event::Started { cached_chars } => {
                self.started = Some(v1::SummaryStarted {
                    request_id: std::mem::take(&mut self.request_id),
                    model: std::mem::take(&mut self.model),
                    cached_tokens: cached_chars as u64,
                });
            }
            Event::Characters(tokens) => {
                tokens.iter().for_each(|token| self.piece.push_str(self.text.push(token.symbol)));
            }
            Event::Document(event) => self.push_document(event),
            Event::Finished { .. } | Event::Coded(_) | Event::Next(_) => {}
        }
    }

    fn close(&mut self) {
        self.upload_task = None;
        self.piece.push_str(self.text.finish());
        self.closed = true;
    }

    fn next(&mut self) -> Option<v1::SummarizeResponse> {
        let payload = if let Some(started) = self.started.take() {
            Payload::Started(started)
        } else if let Some(progress) = self.progress.take() {
            Payload::Progress(progress)
        } else if let Some(selected) = self.selected.pop_front() {
            Payload::Selected(selected)
        } else if !self.piece.is_empty() {
            Payload::Piece(v1::SummaryPiece { text: std::mem::take(&mut self.piece) })
        } else {
            Payload::Finished(self.finished.take().filter(|_| self.closed)?)
        };
        Some(v1::SummarizeResponse { event: Some(payload) })
    }

    fn is_full(&self) -> bool {
        self.piece.len() >= PIECE
    }
}
