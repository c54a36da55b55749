//! Calls of a server's service `Summarization`.

use super::inference::{InferenceClient, MESSAGE_BYTES, MessageStream};
use crate::error::{Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{StreamExt, once, wrappers::ReceiverStream};
use weir_proto::v1::{
    DocumentChunk, LongDocuments, SummarizeRequest, SummarizeResponse, SummaryFinishReason,
    summarization_client::SummarizationClient, summarize_request::Part,
};
pub use weir_proto::v1::{
    EncoderLayer, Hypothesis, Sampling, Selected, Span, SummarizeOptions, SummaryFinished, SummaryPart, SummaryTiming,
    SummaryUsage, summarize_response::Event as SummarizeEvent,
};

/// The value of `long_documents` that summarizes a document in parts.
pub const IN_PARTS: i32 = LongDocuments::Chunk as i32;

/// A document that is sent while it is read.
pub struct DocumentParts {
    /// The parts of the text, in order. The document ends when the sender is dropped.
    pub parts: mpsc::Receiver<String>,
    /// The reader's error, if reading fails. The reader sends it before it drops the sender of the parts.
    pub failure: oneshot::Receiver<Error>,
}

/// The events of one summary.
pub struct SummaryEvents {
    messages: MessageStream<SummarizeResponse>,
    failure: Option<oneshot::Receiver<Error>>,
}

impl InferenceClient {
    /// Starts to summarize a document.
    pub async fn summarize(&self, options: SummarizeOptions, document: DocumentParts) -> Result<SummaryEvents> {
        let DocumentParts { parts, failure } = document;
        let first = once(SummarizeRequest { part: Some(Part::Options(options)) });
        let chunk = |text| SummarizeRequest { part: Some(Part::Chunk(DocumentChunk { text })) };
        let request = self.request(first.chain(ReceiverStream::new(parts).map(chunk)));
        let mut client = SummarizationClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES);
        let messages = self.stream(client.summarize(request).await).await?;
        Ok(SummaryEvents { messages, failure: Some(failure) })
    }
}

impl SummaryEvents {
    /// Waits for the next event; `None` at the end. Fails with the server's error, or with that of reading the document.
    pub async fn next(&mut self) -> Result<Option<SummarizeEvent>> {
        loop {
            let message = match &mut self.failure {
                None => self.messages.next().await?,
                // First, so that the beginning of a document is never summarized as the whole.
                Some(failure) => tokio::select! {
                    biased;
                    failed = failure => match failed {
                        Ok(error) => return Err(error),
                        // The reader has ended without an error.
                        Err(_) => {
                            self.failure = None;
                            continue;
                        }
                    },
                    message = self.messages.next() => message?,
                },
            };
            return match message {
                None => Ok(None),
                Some(SummarizeResponse { event: Some(event) }) => Ok(Some(event)),
                Some(SummarizeResponse { event: None }) => continue,
            };
        }
    }
}

/// Returns why a summary ended, by the name that commands print.
pub fn reason_name(finished: &SummaryFinished) -> &'static str {
    match finished.reason() {
        SummaryFinishReason::EndOfText => "end_of_text",
        SummaryFinishReason::MaxTokens | SummaryFinishReason::Unspecified => "max_tokens",
    }
}
