//! Summaries of single documents, from a server.

use super::{
    args::{Args, GenerationArgs},
    summary::{OnEvent, Summary, collect},
};
use crate::{
    cli::{
        document::{Document, TextReader},
        model_source::{ServedModel, narrow},
    },
    decode::long_documents::LongDocuments,
    error::{Error, Result},
};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};
use weir_client::calls::DocumentParts;
use weir_proto::v1::{
    LongDocuments as WireLongDocuments, Sampling, SummarizeOptions, summarize_response::Event as SummarizeEvent,
};

/// Parts of the document that wait to be sent.
const WAITING_PARTS: usize = 4;

/// A served summarization model.
pub(super) struct Summarizer<'a> {
    model: &'a ServedModel,
    options: SummarizeOptions,
    /// True if the document is printed with the tokens that poolings kept.
    keeps_text: bool,
}

/// The text that was read, if it is printed.
type KeptText = Option<Arc<Mutex<String>>>;

impl<'a> Summarizer<'a> {
    pub(super) fn new(model: &'a ServedModel, args: &Args) -> Result<Self> {
        let options = SummarizeOptions {
            model: model.name.clone(),
            cut: Some(args.cuts()),
            // A server of an older version reads only `cut`.
            long_documents: (args.long_documents() == LongDocuments::Chunk).then_some(WireLongDocuments::Chunk.into()),
            ..args.generation.options()?
        };
        Ok(Self { model, options, keeps_text: args.highlights && !args.json })
    }

    /// Sends a document and waits for its summary.
    pub(super) fn summarize(&self, document: &Document, on_event: &mut OnEvent<'_>) -> Result<Summary> {
        let kept = self.keeps_text.then(Arc::<Mutex<String>>::default);
        let parts = send(document, &kept)?;
        let options = self.options.clone();
        let mut events = self.model.call(async |client| client.summarize(options, parts).await)?;
        let mut summary = Summary::default();
        loop {
            let event = self.model.call(async |_| events.next().await)?;
            let event = event.ok_or_else(|| self.model.incomplete("a summary"))?;
            let is_last = matches!(event, SummarizeEvent::Finished(_));
            collect(&mut summary, event, on_event)?;
            if is_last {
                break;
            }
        }
        if let Some(text) = kept {
            summary.document.clone_from(&text.lock().unwrap_or_else(PoisonError::into_inner));
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
