//! Summaries of single documents, from an engine in this process.

use super::input::InputDocument;
use crate::{
    cli::model::count,
    decode::{
        beam::Hypothesis,
        contract::Model,
        document::DocumentLimits,
        options::Sampling,
        summary::{EncodedDocument, Summarize, SummaryResult},
    },
    engine::{DocumentEvent, DocumentSource, Event, Events, Handle, Limits},
    error::{Error, Result},
};
use std::sync::Arc;

/// Generation flags. The checkpoint's generation settings are the defaults.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct GenerationArgs {
    /// Beam size; 1 is greedy search.
    #[arg(long, value_name = "N", env = "WEIR_BEAM", value_parser = count(1..=64))]
    beam: Option<usize>,
    /// Hypotheses to return, at most the beam size.
    #[arg(long, value_name = "N", env = "WEIR_HYPOTHESES", value_parser = count(1..=64))]
    hypotheses: Option<usize>,
    /// Minimum tokens before the end-of-text token. In models of the T5 family the end-of-text token counts, too.
    #[arg(long, value_name = "N", env = "WEIR_MIN_LEN")]
    min_len: Option<usize>,
    /// Maximum tokens before the end-of-text token. In models of the T5 family the end-of-text token counts, too.
    #[arg(long, value_name = "N", env = "WEIR_MAX_LEN")]
    max_len: Option<usize>,
    /// A hypothesis' log-probability is divided by its length to this power.
    #[arg(long, value_name = "X", env = "WEIR_LENGTH_PENALTY", allow_negative_numbers = true)]
    length_penalty: Option<f32>,
    /// Never repeat a run of N tokens; 0 allows all repeats.
    #[arg(long, value_name = "N", env = "WEIR_NO_REPEAT_NGRAM")]
    no_repeat_ngram: Option<usize>,
    /// Sample tokens at this temperature instead of beam search.
    #[arg(long, value_name = "T", env = "WEIR_TEMPERATURE")]
    temperature: Option<f32>,
    /// Seed of the sampled tokens.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    seed: u64,
    /// Keep the selected vectors unchanged in models trained with soft top-k, which mixes other vectors into them.
    #[arg(long, env = "WEIR_HARD_TOPK", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) hard_topk: bool,
}

impl GenerationArgs {
    fn request(&self) -> Summarize {
        let sampling = |temperature| Sampling { temperature, seed: self.seed, ..Sampling::default() };
        Summarize {
            beam: self.beam,
            length_penalty: self.length_penalty,
            min_tokens: self.min_len,
            max_tokens: self.max_len,
            no_repeat_ngram: self.no_repeat_ngram,
            early_stopping: None,
            repetition_penalty: None,
            sampling: self.temperature.map(sampling),
            hypotheses: self.hypotheses,
            hard: Some(self.hard_topk),
        }
    }
}

/// Progress of a summary.
pub(super) enum SummaryEvent<'a> {
    Encoded(&'a EncodedDocument),
    /// Final tokens.
    Tokens(&'a [u32]),
}

/// A summarization model and its engine.
pub(super) struct Summarizer {
    pub(super) model: Arc<dyn Model>,
    pub(super) limits: DocumentLimits,
    engine: Handle,
    request: Summarize,
}

impl Summarizer {
    pub(super) fn new(model: Arc<dyn Model>, limits: DocumentLimits, generation: &GenerationArgs) -> Result<Self> {
        let request = generation.request();
        let rows = request.beam.unwrap_or(limits.generation.beam).max(1);
        let engine = Handle::start(Arc::clone(&model), Limits { rows, queue: 1, ..Limits::default() })?;
        Ok(Self { model, limits, engine, request })
    }

    /// Summarizes a document. Also returns the encoded document.
    pub(super) fn summarize(
        &self,
        document: &InputDocument,
        on_event: &mut dyn FnMut(SummaryEvent<'_>) -> Result<()>,
    ) -> Result<(Arc<EncodedDocument>, Box<SummaryResult>)> {
        let (upload, arriving) = self.engine.upload();
        let mut events: Events = self.engine.summarize(&self.request, DocumentSource::Uploading(arriving), None)?;
        upload.push(&document.ids, &document.byte_ranges);
        upload.close(document.cut);
        let mut encoded = None;
        while let Some(event) = events.blocking_recv() {
            match event? {
                Event::Started { .. }
                | Event::Finished { .. }
                | Event::Coded(_)
                | Event::Document(DocumentEvent::Reading(_) | DocumentEvent::Chosen(_)) => {}
                Event::Document(DocumentEvent::Encoded(document)) => {
                    on_event(SummaryEvent::Encoded(&document))?;
                    encoded = Some(document);
                }
                Event::Characters(tokens) => {
                    let ids: Vec<u32> = tokens.iter().map(|token| token.symbol).collect();
                    on_event(SummaryEvent::Tokens(&ids))?;
                }
                Event::Document(DocumentEvent::Summarized(summary)) => {
                    let broken = || Error::Internal("a summary arrived before its encoded document".into());
                    return Ok((encoded.ok_or_else(broken)?, summary));
                }
            }
        }
        Err(Error::Internal("the engine ended without a summary".into()))
    }

    /// Text of the best hypothesis, without its end-of-text token.
    pub(super) fn text(&self, summary: &SummaryResult) -> String {
        let text = |best: &Hypothesis| self.model.card().vocabulary.decode(best.text(self.limits.marks.end));
        summary.hypotheses.first().map_or_else(String::new, text)
    }
}
