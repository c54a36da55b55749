//! Summaries of single documents, from a server.

use super::{
    args::{Args, GenerationArgs},
    input::Document,
    summary::{
        DocumentPart, DocumentUsage, EncodedText, KeptTokens, LayerTime, OnEvent, PartProgress, Summary, SummaryEvent,
        SummaryText, SummaryTimes,
    },
    text_reader::TextReader,
};
use crate::cli::wire::size;
use crate::{
    cli::model_source::{ServedModel, narrow},
    decode::{long_documents::LongDocuments, spans::KeptSpan},
    error::{Error, Result},
};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};
use weir_client::calls::DocumentParts;
use weir_proto::v1::{
    EncoderLayer, Hypothesis, LongDocuments as WireLongDocuments, Sampling, Selected, Span, SummarizeOptions,
    SummaryFinishReason, SummaryFinished, SummaryPart, SummaryTiming, SummaryUsage,
    summarize_response::Event as SummarizeEvent,
};

/// Parts of the document that wait to be sent.
const WAITING_PARTS: usize = 4;

/// A served summarization model.
pub(super) struct ServerSummarizer<'a> {
    model: &'a ServedModel,
    options: SummarizeOptions,
    /// True if the tokens that poolings kept are printed with the document, before the summary.
    highlights: bool,
}

/// The text that was read, if it is printed.
type KeptText = Option<Arc<Mutex<String>>>;

impl<'a> ServerSummarizer<'a> {
    pub(super) fn new(model: &'a ServedModel, args: &Args) -> Result<Self> {
        let options = SummarizeOptions {
            model: model.name.clone(),
            cut: Some(args.cuts()),
            // A server of an older version reads only `cut`.
            long_documents: (args.long_documents() == LongDocuments::Chunk)
                .then_some(i32::from(WireLongDocuments::Chunk)),
            ..args.generation.options()?
        };
        Ok(Self { model, options, highlights: args.highlights && !args.json })
    }

    /// Sends a document and waits for its summary.
    pub(super) fn summarize(&self, document: &Document, on_event: &mut OnEvent<'_>) -> Result<Summary> {
        let kept = self.highlights.then(Arc::<Mutex<String>>::default);
        let parts = send(document, &kept)?;
        let options = self.options.clone();
        let mut events = self.model.call(async |client| client.summarize(options, parts).await)?;
        let mut poolings = Vec::new();
        let mut summarized_parts = Vec::new();
        // The number of the document's tokens, which highlights state, comes with the last event.
        let mut held = String::new();
        let finished = loop {
            match self.model.call(async |_| events.next().await)?.ok_or_else(|| self.model.incomplete("a summary"))? {
                SummarizeEvent::Started(_) | SummarizeEvent::Progress(_) => {}
                SummarizeEvent::Selected(selected) => poolings.push(kept_tokens(selected)),
                SummarizeEvent::Part(part) => {
                    on_event(SummaryEvent::Part(progress(&part)))?;
                    summarized_parts.push(document_part(part));
                }
                SummarizeEvent::Piece(piece) if self.highlights => held += &piece.text,
                SummarizeEvent::Piece(piece) => on_event(SummaryEvent::Text(&piece.text))?,
                SummarizeEvent::Finished(finished) => break finished,
            }
        };
        let summary = Summary { parts: summarized_parts, ..summary(finished, poolings) };
        if let Some(text) = kept {
            let text = text.lock().unwrap_or_else(PoisonError::into_inner);
            let encoded = EncodedText { text: &text, tokens: summary.document.tokens, poolings: &summary.poolings };
            on_event(SummaryEvent::Encoded(&encoded))?;
            on_event(SummaryEvent::Text(&held))?;
        }
        Ok(summary)
    }
}

impl GenerationArgs {
    fn options(&self) -> Result<SummarizeOptions> {
        let narrow = |flag, value: Option<usize>| value.map(|value| narrow(flag, value)).transpose();
        let sampling =
            |temperature| Sampling { temperature: Some(temperature), seed: Some(self.seed), ..Sampling::default() };
        Ok(SummarizeOptions {
            beam_size: narrow("--beam", self.beam)?,
            length_penalty: self.length_penalty,
            min_tokens: narrow("--min-len", self.min_len)?,
            max_tokens: narrow("--max-len", self.max_len)?,
            no_repeat_ngram: narrow("--no-repeat-ngram", self.no_repeat_ngram)?,
            hypotheses: narrow("--hypotheses", self.hypotheses)?,
            sampling: self.temperature.map(sampling),
            hard_topk: Some(self.hard_topk),
            early_stopping: self.early_stopping.map(|when| when.name().to_owned()),
            repetition_penalty: self.repetition_penalty,
            ..SummarizeOptions::default()
        })
    }
}

/// Reads a document on a thread of its own, up to its end or until the call ends. The process does not wait for that thread,
/// because standard input may stay open.
fn send(document: &Document, kept: &KeptText) -> Result<DocumentParts> {
    let (sender, parts) = mpsc::channel(WAITING_PARTS);
    let (failed, failure) = oneshot::channel();
    match document {
        Document::File(file) => {
            let reader = TextReader::open(file)?;
            let kept = kept.clone();
            std::thread::spawn(move || read(reader, &sender, failed, &kept));
        }
        Document::Text(text) => {
            let text = text.clone();
            let kept = kept.clone();
            std::thread::spawn(move || read(TextReader::text(&text), &sender, failed, &kept));
        }
        Document::Ids(_) => {
            return Err(Error::Setting("--ids: expected no value with a server, found one: give --file".into()));
        }
    }
    Ok(DocumentParts { parts, failure })
}

/// Sends the parts of a document, or the error of reading it.
fn read(mut reader: TextReader<'_>, parts: &mpsc::Sender<String>, failed: oneshot::Sender<Error>, kept: &KeptText) {
    loop {
        match reader.next() {
            Ok(Some(part)) => {
                if let Some(kept) = kept {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push_str(&part);
                }
                // Fails when the call has ended.
                if parts.blocking_send(part).is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                // Before the parts end, so that their end is not taken for that of the document.
                let _ = failed.send(error);
                return;
            }
        }
    }
}

fn kept_tokens(selected: Selected) -> KeptTokens {
    let Selected { layer, spans, tokens } = selected;
    let span = |Span { byte_start, byte_end, score }| KeptSpan { start: byte_start, end: byte_end, score };
    KeptTokens {
        layer: size(layer.into()),
        tokens: size(tokens),
        spans: spans.into_iter().map(span).collect(),
        order: None,
    }
}

fn progress(part: &SummaryPart) -> PartProgress {
    PartProgress {
        round: size(part.round.into()),
        part: size(part.part.into()),
        read: part.byte_end,
        bytes: part.round_bytes,
    }
}

fn document_part(part: SummaryPart) -> DocumentPart {
    DocumentPart {
        round: size(part.round.into()),
        number: size(part.part.into()),
        start: part.byte_start,
        end: part.byte_end,
        round_bytes: part.round_bytes,
        tokens: size(part.document_tokens),
        summary_tokens: size(part.summary_tokens),
        summary: part.summary,
        poolings: part.selected.into_iter().map(kept_tokens).collect(),
    }
}

fn summary(finished: SummaryFinished, poolings: Vec<KeptTokens>) -> Summary {
    let reason = match finished.reason() {
        SummaryFinishReason::EndOfText => "end_of_text",
        SummaryFinishReason::MaxTokens | SummaryFinishReason::Unspecified => "max_tokens",
    };
    let SummaryFinished { hypotheses, usage, timing, .. } = finished;
    let usage: SummaryUsage = usage.unwrap_or_default();
    let timing: SummaryTiming = timing.unwrap_or_default();
    let hypothesis = |Hypothesis { text, ids, score, logprobs }| SummaryText { ids, score, text, logprobs };
    let layer = |EncoderLayer { length, ns }| LayerTime { length: size(length), ns };
    Summary {
        hypotheses: hypotheses.into_iter().map(hypothesis).collect(),
        reason,
        poolings,
        document: DocumentUsage {
            tokens: size(usage.document_tokens),
            bytes: usage.document_bytes,
            cut: usage.cut,
            vectors: size(usage.vectors),
            cross_attention_bytes: size(usage.cross_attention_bytes),
            unpooled_cross_attention_bytes: size(usage.unpooled_cross_attention_bytes),
            kept_share: timing.kept_share,
        },
        summary_tokens: size(usage.summary_tokens),
        timing: SummaryTimes {
            encode_ns: timing.encode_ns,
            layers: timing.layers.into_iter().map(layer).collect(),
            memory_ns: timing.memory_ns,
            decode_ns: timing.decode_ns,
            total_ns: timing.total_ns,
        },
        parts: Vec::new(),
    }
}
