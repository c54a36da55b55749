//! How `Summarize` answers: `started`, progress, what was selected, pieces, `finished`.

use super::{response_stream::MessageEncoder, summarization::Receiving};
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
use weir_proto::v1::{self, summarize_response::Event as Said};

/// Bytes of text that a message has at most before another is begun.
const PIECE: usize = 4096;

/// The messages of one summary.
pub(in crate::serve) struct Summarized {
    request_id: String,
    model: String,
    vocabulary: Arc<Vocabulary>,
    text: StreamDetokenizer,
    /// What receives the document; it is of no use once the summary is over.
    receiving: Option<Receiving>,
    started: Option<v1::SummaryStarted>,
    progress: Option<v1::Progress>,
    selected: VecDeque<v1::Selected>,
    /// Of how many poolings it was told what they have chosen.
    chosen: usize,
    encoded: Option<Arc<EncodedDocument>>,
    piece: String,
    finished: Option<v1::SummaryFinished>,
    closed: bool,
}

impl Summarized {
    /// Nothing yet.
    pub(in crate::serve) fn new(card: &Card, request_id: &str) -> Self {
        let vocabulary = Arc::clone(&card.vocabulary);
        Self {
            request_id: request_id.to_owned(),
            model: card.name.clone(),
            text: StreamDetokenizer::new(Arc::clone(&vocabulary)),
            vocabulary,
            receiving: None,
            started: None,
            progress: None,
            selected: VecDeque::new(),
            chosen: 0,
            encoded: None,
            piece: String::new(),
            finished: None,
            closed: false,
        }
    }

    /// The same of a document that is being received.
    pub(in crate::serve) fn with(self, receiving: Option<Receiving>) -> Self {
        Self { receiving, ..self }
    }

    fn document(&mut self, event: DocumentEvent) {
        match event {
            DocumentEvent::Reading(reading) => self.progress = Some(progress(reading)),
            DocumentEvent::Chosen(chosen) => self.select(&chosen.choices, &chosen.places, chosen.tokens),
            DocumentEvent::Encoded(encoded) => {
                self.progress = None;
                self.select(
                    &encoded.choices[self.chosen.min(encoded.choices.len())..],
                    &encoded.places,
                    encoded.tokens,
                );
                self.encoded = Some(encoded);
            }
            DocumentEvent::Summarized(summary) => self.finished = Some(self.finish(&summary)),
        }
    }

    /// Takes what the next poolings have chosen.
    fn select(&mut self, choices: &[PoolingChoice], places: &[ByteRange], tokens: usize) {
        self.chosen += choices.len();
        self.selected.extend(choices.iter().map(|choice| selected(choice, places, tokens)));
    }

    fn finish(&mut self, summary: &summary::SummaryResult) -> v1::SummaryFinished {
        let summary::SummaryResult { hypotheses, document_id, reason, usage, timing, waits } = summary;
        let (tokens, total_ns) = (usage.generated_chars, timing.total_ns);
        tracing::info!(?reason, document_tokens = usage.prompt_chars, summary_tokens = tokens, total_ns, "summarized");
        let reason = match reason {
            FinishReason::EndOfText => v1::SummaryFinishReason::EndOfText,
            _ => v1::SummaryFinishReason::MaxTokens,
        };
        let encoded = self.encoded.as_deref();
        let count = |of: fn(&EncodedDocument) -> usize| encoded.map_or(0, |encoded| of(encoded) as u64);
        let layers = encoded.into_iter().flat_map(|encoded| &encoded.layers);
        let steps = (tokens as u64).saturating_sub(1);
        v1::SummaryFinished {
            reason: reason.into(),
            document_id: document_id.clone(),
            hypotheses: hypotheses.iter().map(|one| self.hypothesis(one)).collect(),
            usage: Some(v1::SummaryUsage {
                document_tokens: usage.prompt_chars as u64,
                cached_tokens: usage.cached_chars as u64,
                cut: encoded.is_some_and(|encoded| encoded.cut),
                summary_tokens: tokens as u64,
                vectors: count(|encoded| encoded.vectors),
                cross_attention_bytes: count(|encoded| encoded.bytes),
                unpooled_cross_attention_bytes: count(|encoded| encoded.unpooled_bytes),
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
            }),
        }
    }

    fn hypothesis(&self, Hypothesis { tokens, logprobs, score }: &Hypothesis) -> v1::Hypothesis {
        let text = tokens.split_last().map_or(&[][..], |(_, text)| text);
        let (ids, logprobs) = (tokens.clone(), logprobs.clone());
        v1::Hypothesis { text: self.vocabulary.decode(text), ids, score: *score, logprobs }
    }
}

/// A pooling's choice in the words of the wire.
fn selected(choice: &PoolingChoice, places: &[ByteRange], tokens: usize) -> v1::Selected {
    let (spans, tokens) = spans(choice, places, tokens);
    let span = |KeptSpan { start, end, score }| v1::Span { byte_start: start, byte_end: end, score };
    let layer = u32::try_from(choice.layer).unwrap_or(u32::MAX);
    v1::Selected { layer, spans: spans.into_iter().map(span).collect(), tokens: tokens as u64 }
}

fn progress(reading: summary::DocumentProgress) -> v1::Progress {
    let summary::DocumentProgress { stage, tokens, blocks, total } = reading;
    let (stage, layer) = match stage {
        EncodingStage::Waiting => ("waiting", None),
        EncodingStage::Layer(layer) => ("layer", Some(layer)),
        EncodingStage::Memory => ("memory", None),
        EncodingStage::Done => ("done", None),
    };
    v1::Progress {
        stage: stage.to_owned(),
        layer: layer.map(|layer| u32::try_from(layer).unwrap_or(u32::MAX)),
        tokens_read: tokens as u64,
        blocks_encoded: blocks as u64,
        blocks_total: total.map(|total| total as u64),
    }
}

impl MessageEncoder for Summarized {
    type Message = v1::SummarizeResponse;

    const HEAD: usize = 1;

    fn take(&mut self, event: Event) {
        match event {
            Event::Started { cached_chars } => {
                let (request_id, model) = (std::mem::take(&mut self.request_id), std::mem::take(&mut self.model));
                self.started = Some(v1::SummaryStarted { request_id, model, cached_tokens: cached_chars as u64 });
            }
            Event::Characters(tokens) => {
                tokens.iter().for_each(|token| self.piece.push_str(self.text.push(token.symbol)));
            }
            Event::Document(event) => self.document(event),
            Event::Finished { .. } => {}
        }
    }

    fn close(&mut self) {
        self.receiving = None;
        self.piece.push_str(self.text.finish());
        self.closed = true;
    }

    fn next(&mut self) -> Option<v1::SummarizeResponse> {
        let said = if let Some(started) = self.started.take() {
            Said::Started(started)
        } else if let Some(progress) = self.progress.take() {
            Said::Progress(progress)
        } else if let Some(selected) = self.selected.pop_front() {
            Said::Selected(selected)
        } else if !self.piece.is_empty() {
            Said::Piece(v1::SummaryPiece { text: std::mem::take(&mut self.piece) })
        } else {
            Said::Finished(self.finished.take().filter(|_| self.closed)?)
        };
        Some(v1::SummarizeResponse { event: Some(said) })
    }

    fn is_full(&self) -> bool {
        self.piece.len() >= PIECE
    }
}
