//! Receives a document from the client, tokenizes it, and passes the tokens to the engine while they arrive.

use super::request_parts::RequestParts;
use crate::{
    decode::{
        document::{covers_text, no_text},
        summary::ByteRange,
    },
    engine::DocumentUpload,
    error::{Error, Result},
    serve::{registry::engines::Lease, tokenization::TokenizationWorkers},
    text::{LimitStatus, StreamTokenizer, TokenSpan},
};
use std::sync::Arc;
use tokio::task::AbortHandle;
use weir_proto::v1::{self, summarize_request::Part};

/// The field of a document's text in errors.
pub(super) const TEXT: &str = "chunk.text";

/// The task that receives a document. Dropping this aborts it.
pub(super) struct UploadTask(AbortHandle);

impl Drop for UploadTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The workers that tokenize long chunks for this tenant.
#[derive(Clone)]
pub(super) struct DocumentWorkers {
    pub(super) workers: TokenizationWorkers,
    pub(super) tenant: Arc<str>,
}

/// A document on its way to the engine.
pub(super) struct DocumentReceiver {
    workers: DocumentWorkers,
    tokenizer: StreamTokenizer,
    upload: DocumentUpload,
    /// True if a document over the limit is cut instead of rejected.
    cut: bool,
    /// Maximum tokens.
    limit: usize,
    /// The symbol that is appended to the document.
    end: u32,
    /// True if a token covers text of the document.
    covers_text: bool,
}

impl DocumentReceiver {
    pub(super) fn new(engine: &Lease, cut: bool, upload: DocumentUpload, workers: DocumentWorkers) -> Self {
        let limits = engine.document_limits();
        // The end symbol counts as a token, too.
        let limit = limits.map_or(0, |limits| limits.tokens.saturating_sub(1));
        let vocabulary = Arc::clone(&engine.card().vocabulary);
        let tokenizer = match limits {
            Some(limits) => limits.tokenizer(vocabulary, TEXT),
            None => StreamTokenizer::new(vocabulary, TEXT, limit),
        };
        Self {
            workers,
            tokenizer: tokenizer.with_truncation(cut),
            upload,
            cut,
            limit,
            end: limits.map_or(0, |limits| limits.marks.end),
            covers_text: false,
        }
    }

    /// Receives the document in a task of its own.
    pub(super) fn spawn(self, parts: RequestParts<v1::SummarizeRequest>) -> UploadTask {
        UploadTask(tokio::spawn(self.receive(parts)).abort_handle())
    }

    /// Receives the document to its end or to the limit, and tokenizes long chunks on workers. Text beyond the limit is not read.
    async fn receive(mut self, mut parts: RequestParts<v1::SummarizeRequest>) {
        loop {
            let part = match parts.next().await {
                Ok(message) => message.map(|message| message.part),
                Err(error) => return self.upload.fail(error),
            };
            let ended = part.is_none();
            let bytes = match &part {
                Some(Some(Part::Chunk(chunk))) => chunk.text.len(),
                Some(_) => 0,
                // A long document may have a long last word.
                None => usize::try_from(self.tokenizer.bytes()).unwrap_or(usize::MAX),
            };
            let DocumentWorkers { workers, tenant } = self.workers.clone();
            let work = move || {
                let pushed = self.push(part);
                (self, pushed)
            };
            // An error means that the tokenizer panicked, which has ended the upload.
            let Ok((receiver, pushed)) = workers.run(&tenant, bytes, work).await else { return };
            self = receiver;
            match pushed {
                Ok(LimitStatus::Within) if !ended => {}
                Ok(limit_status) => return self.close(limit_status == LimitStatus::Exceeded),
                Err(error) => return self.upload.fail(error),
            }
        }
    }

    /// Tokenizes the next part, or the rest at the end of the document (`None`).
    fn push(&mut self, part: Option<Option<Part>>) -> Result<LimitStatus> {
        let mut tokens = Vec::new();
        let limit_status = match part {
            Some(part) => self.tokenizer.push(&chunk_text(part)?, &mut tokens)?,
            None => self.tokenizer.finish(&mut tokens)?,
        };
        if limit_status == LimitStatus::Exceeded && !self.cut {
            return Err(Error::LongerThan { field: TEXT, limit: self.limit, unit: "tokens", why: None });
        }
        self.covers_text |= covers_text(&tokens);
        let byte_range = |token: &TokenSpan| ByteRange { start: token.start, end: token.end };
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        if !ids.is_empty() {
            self.upload.push(&ids, &tokens.iter().map(byte_range).collect::<Vec<_>>());
        }
        Ok(limit_status)
    }

    fn close(self, cut: bool) {
        if !self.covers_text {
            return self.upload.fail(no_text(TEXT));
        }
        let end = self.tokenizer.bytes();
        self.upload.push(&[self.end], &[ByteRange { start: end, end }]);
        self.upload.close(cut);
    }
}

/// Returns the text of a part after the options. Fails for any other part.
pub(super) fn chunk_text(part: Option<Part>) -> Result<String> {
    match part {
        Some(Part::Chunk(chunk)) => Ok(chunk.text),
        Some(Part::Options(_)) => {
            Err(Error::bad_option("options", "another message of options", "options in the first part only"))
        }
        None => Err(Error::bad_option("part", "nothing", "options or a chunk")),
    }
}
