//! Summaries of single documents, from an engine in this process.

use super::{
    args::{Args, GenerationArgs},
    input::{Document, InputDocument},
    summary::{
        DocumentUsage, EncodedText, KeptPosition, KeptTokens, LayerTime, OnEvent, Summary, SummaryEvent, SummaryText,
        SummaryTimes,
    },
};
use crate::{
    decode::{
        beam::Hypothesis,
        contract::Model,
        document::{DocumentLimits, PoolingChoice},
        options::{FinishReason, Sampling},
        spans::spans,
        summary::{EncodedDocument, Summarize, SummaryResult},
    },
    engine::{DocumentEvent, DocumentSource, Event, Events, Handle, Limits},
    error::{Error, Result},
    text::{StreamDetokenizer, Vocabulary},
};
use std::sync::Arc;

impl GenerationArgs {
    fn request(&self) -> Summarize {
        let default = Sampling::default();
        let repetition_penalty = self.repetition_penalty.unwrap_or(default.repetition_penalty);
        let sampling = |temperature| Sampling { temperature, repetition_penalty, seed: self.seed, ..default.clone() };
        Summarize {
            beam: self.beam,
            length_penalty: self.length_penalty,
            min_tokens: self.min_len,
            max_tokens: self.max_len,
            no_repeat_ngram: self.no_repeat_ngram,
            early_stopping: self.early_stopping,
            repetition_penalty: self.repetition_penalty,
            sampling: self.temperature.map(sampling),
            hypotheses: self.hypotheses,
            hard: Some(self.hard_topk),
        }
    }
}

/// A summarization model and its engine.
pub(super) struct ProcessSummarizer {
    model: Arc<dyn Model>,
    limits: DocumentLimits,
    engine: Handle,
    request: Summarize,
    cut: bool,
}

/// Returns the error of a model that does not summarize.
pub(super) fn no_summaries(model: &dyn Model) -> Error {
    let shape = &model.card().shape;
    let found = format!(
        "a model that continues text (use Generate): {shape}; docs/summarization.md describes models that read documents"
    );
    Error::WrongKind { call: "Summarize", model: model.card().name.clone(), wanted: "reads documents", found }
}

impl ProcessSummarizer {
    /// Starts the model's engine. Fails if the model does not summarize.
    pub(super) fn new(model: Arc<dyn Model>, args: &Args) -> Result<Self> {
        let limits = model.document_encoder().map(|encoder| encoder.limits().clone());
        let limits = limits.ok_or_else(|| no_summaries(&*model))?;
        let request = args.generation.request();
        let rows = request.beam.unwrap_or(limits.generation.beam).max(1);
        let engine = Handle::start(Arc::clone(&model), Limits { rows, queue: 1, ..Limits::default() })?;
        Ok(Self { model, limits, engine, request, cut: args.cuts() })
    }

    /// Returns the model's vocabulary.
    pub(super) fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.model.card().vocabulary
    }

    /// Returns the model's limits.
    pub(super) fn limits(&self) -> &DocumentLimits {
        &self.limits
    }

    /// Summarizes a document.
    pub(super) fn summarize(&self, document: &Document, on_event: &mut OnEvent<'_>) -> Result<Summary> {
        self.run(&InputDocument::read(document, &*self.model, &self.limits, self.cut)?, on_event)
    }

    /// Summarizes a document that is ready for the encoder.
    pub(super) fn run(&self, document: &InputDocument, on_event: &mut OnEvent<'_>) -> Result<Summary> {
        let (upload, arriving) = self.engine.upload();
        let mut events: Events = self.engine.summarize(&self.request, DocumentSource::Uploading(arriving), None)?;
        upload.push(&document.ids, &document.byte_ranges);
        upload.close(document.cut);
        let mut stream = StreamDetokenizer::new(Arc::clone(self.vocabulary()));
        let mut encoded = None;
        while let Some(event) = events.blocking_recv() {
            match event? {
                Event::Started { .. }
                | Event::Finished { .. }
                | Event::Coded(_)
                | Event::Next(_)
                | Event::Document(DocumentEvent::Reading(_) | DocumentEvent::Chosen(_)) => {}
                Event::Document(DocumentEvent::Encoded(done)) => {
                    let poolings = poolings(&done);
                    let text = EncodedText { text: &document.text, tokens: done.tokens, poolings: &poolings };
                    on_event(SummaryEvent::Encoded(&text))?;
                    encoded = Some(done);
                }
                Event::Characters(tokens) => {
                    let text: String = tokens.iter().map(|token| stream.push(token.symbol).to_owned()).collect();
                    on_event(SummaryEvent::Text(&text))?;
                }
                Event::Document(DocumentEvent::Summarized(summary)) => {
                    on_event(SummaryEvent::Text(stream.finish()))?;
                    let broken = || Error::Internal("a summary arrived before its encoded document".into());
                    let encoded = encoded.ok_or_else(broken)?;
                    return Ok(self.summary(&encoded, *summary));
                }
            }
        }
        Err(Error::Internal("the engine ended without a summary".into()))
    }

    fn summary(&self, encoded: &EncodedDocument, result: SummaryResult) -> Summary {
        let SummaryResult { hypotheses, reason, usage, timing, .. } = result;
        let layers = encoded.layers.iter().map(|layer| LayerTime { length: layer.length, ns: layer.ns });
        Summary {
            hypotheses: hypotheses.into_iter().map(|hypothesis| self.hypothesis(hypothesis)).collect(),
            // Summaries consist of tokens, not characters.
            reason: if reason == FinishReason::MaxChars { "max_tokens" } else { reason.name() },
            poolings: poolings(encoded),
            document: DocumentUsage {
                tokens: encoded.tokens,
                bytes: encoded.read_bytes(),
                cut: encoded.cut,
                vectors: encoded.vectors,
                cross_attention_bytes: encoded.bytes,
                unpooled_cross_attention_bytes: encoded.unpooled_bytes,
                kept_share: encoded.kept_share(),
            },
            summary_tokens: usage.generated_chars,
            timing: SummaryTimes {
                encode_ns: encoded.encode_ns(),
                layers: layers.collect(),
                memory_ns: encoded.memory_ns,
                decode_ns: timing.decode_ns,
                total_ns: timing.total_ns,
            },
            parts: Vec::new(),
        }
    }

    fn hypothesis(&self, hypothesis: Hypothesis) -> SummaryText {
        let text = self.model.card().vocabulary.decode(hypothesis.text(self.limits.marks.end));
        let Hypothesis { tokens, score, logprobs } = hypothesis;
        SummaryText { ids: tokens, score, text, logprobs }
    }
}

fn poolings(encoded: &EncodedDocument) -> Vec<KeptTokens> {
    let pooling = |choice: &PoolingChoice| {
        let (spans, tokens) = spans(choice, &encoded.byte_ranges, encoded.tokens);
        let order = choice.kept.iter().map(|kept| KeptPosition { position: kept.token, score: kept.score });
        KeptTokens { layer: choice.layer, tokens, spans, order: Some(order.collect()) }
    };
    encoded.choices.iter().map(pooling).collect()
}
