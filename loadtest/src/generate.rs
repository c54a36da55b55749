//! Workloads `generate`, which continues prompts taken from a text, and `summarize`, which uploads documents in chunks and requests
//! summaries.

use crate::error::Result;
use crate::timer::{ClientTimer, ReceivedMessage, ServerReport};
use crate::workload::{MAX_LENGTH, PromptText, RequestTarget, WorkloadSpec};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use weir_proto::v1::{
    Details, DocumentChunk, Finished, GenerateRequest, Piece, Sampling, Stopping, SummarizeOptions, SummarizeRequest,
    SummaryFinished, generate_response::Event, summarize_request::Part, summarize_response,
};

/// Characters of each message of a document upload.
const CHUNK: usize = 4096;

/// Continues a prompt.
pub struct GenerateCall {
    prompt: String,
    chars: u32,
    seed: u64,
}

impl GenerateCall {
    /// Draws a request. Fails only if an invariant is broken.
    pub(crate) fn draw(spec: &WorkloadSpec, text: &PromptText, rng: &mut ChaCha8Rng) -> Result<Self> {
        // leaves room for the longest answer, or for one character if the length has no bound
        let answer = spec.output.longest().unwrap_or(1);
        let length = spec.prompt.draw(rng, spec.max_symbols.saturating_sub(answer))?;
        let prompt = text.excerpt(rng, length);
        let left = spec.max_symbols.saturating_sub(prompt.chars().count() as u64);
        let chars = u32::try_from(spec.output.draw(rng, left)?).unwrap_or(u32::MAX);
        Ok(Self { prompt, chars, seed: rng.random() })
    }

    fn message(&self, target: &RequestTarget) -> GenerateRequest {
        // exactly as many characters as requested: no text ends by itself
        let chars = Some(self.chars);
        let stopping = Stopping { max_chars: chars, min_chars: chars, ignore_eos: Some(true), ..Default::default() };
        GenerateRequest {
            model: Some(target.model.clone()),
            prompt: self.prompt.clone(),
            sampling: Some(Sampling { seed: Some(self.seed), ..Default::default() }),
            stopping: Some(stopping),
            details: target.boundaries.then(|| Details { boundaries: Some(true), ..Default::default() }),
            ..Default::default()
        }
    }

    /// Sends the request, reads the answer to its end, and records every message with `timer`.
    pub(crate) async fn send(&self, target: &RequestTarget, timer: &mut ClientTimer) -> Result<(), Status> {
        let connection = target.pool.next()?;
        let request = connection.request_within(self.message(target), target.timeout);
        timer.mark_sent();
        let mut stream = connection.start_generate(request).await?.into_inner();
        let mut cached_chars = 0;
        while let Some(message) = stream.message().await? {
            match message.event {
                Some(Event::Started(started)) => cached_chars = started.cached_chars,
                Some(Event::Piece(piece)) => timer.record(received(&piece)),
                Some(Event::Finished(finished)) => {
                    let Finished { timing, usage, .. } = finished;
                    let timing = timing.unwrap_or_default();
                    let usage = usage.unwrap_or_default();
                    timer.server_report = Some(ServerReport::Text { timing, usage, cached_chars });
                    return Ok(());
                }
                None => {}
            }
        }
        Err(Status::unknown("the stream ended without `finished`"))
    }
}

/// Counts the generated Unicode characters of a piece, whatever the model's symbols are; none if it is the prompt.
fn received(piece: &Piece) -> ReceivedMessage {
    let Piece { text, characters, prompt, .. } = piece;
    if *prompt {
        return ReceivedMessage::default();
    }
    let ends = |marked: bool| {
        let ends = characters.iter().filter(|character| character.boundary());
        ends.filter(|character| character.nxt_logprob.is_some() == marked).count() as u64
    };
    ReceivedMessage { characters: text.chars().count() as u64, predicted_ends: ends(false), marked_ends: ends(true) }
}

/// Uploads a document and requests its summary.
pub struct SummarizeCall {
    document: Arc<str>,
    tokens: u32,
}

impl SummarizeCall {
    /// Draws a request. Fails only if an invariant is broken.
    pub(crate) fn draw(spec: &WorkloadSpec, text: &PromptText, rng: &mut ChaCha8Rng) -> Result<Self> {
        let length = spec.prompt.draw(rng, MAX_LENGTH)?;
        let document = text.excerpt(rng, length).into();
        let tokens = u32::try_from(spec.output.draw(rng, MAX_LENGTH)?).unwrap_or(u32::MAX);
        Ok(Self { document, tokens })
    }

    /// Returns the options and then the document in chunks. Sets `uploaded` once the last chunk was taken.
    fn messages(
        &self,
        target: &RequestTarget,
        uploaded: Arc<OnceLock<Instant>>,
    ) -> impl Iterator<Item = SummarizeRequest> + Send + 'static {
        // exactly as many tokens as requested: no summary ends by itself
        let options = SummarizeOptions {
            model: Some(target.model.clone()),
            min_tokens: Some(self.tokens),
            max_tokens: Some(self.tokens),
            cut: Some(true),
            ..Default::default()
        };
        let document = Arc::clone(&self.document);
        let mut start = 0;
        let chunks = std::iter::from_fn(move || {
            let rest = document.get(start..)?;
            if rest.is_empty() {
                uploaded.get_or_init(Instant::now);
                return None;
            }
            let end = rest.char_indices().nth(CHUNK).map_or(rest.len(), |(end, _)| end);
            let text = rest.get(..end)?.to_owned();
            start += end;
            Some(SummarizeRequest { part: Some(Part::Chunk(DocumentChunk { text, ids: Vec::new() })) })
        });
        std::iter::once(SummarizeRequest { part: Some(Part::Options(options)) }).chain(chunks)
    }

    /// Sends the request, reads the answer to its end, and records every message with `timer`.
    pub(crate) async fn send(&self, target: &RequestTarget, timer: &mut ClientTimer) -> Result<(), Status> {
        let connection = target.pool.next()?;
        let uploaded = Arc::new(OnceLock::new());
        let messages = tokio_stream::iter(self.messages(target, Arc::clone(&uploaded)));
        let request = connection.request_within(messages, target.timeout);
        timer.mark_sent();
        let begun = Instant::now();
        let mut stream = connection.start_summarize(request).await?.into_inner();
        while let Some(message) = stream.message().await? {
            match message.event {
                Some(summarize_response::Event::Piece(piece)) => {
                    let characters = piece.text.chars().count() as u64;
                    timer.record(ReceivedMessage { characters, ..ReceivedMessage::default() });
                }
                Some(summarize_response::Event::Finished(finished)) => {
                    let upload = uploaded.get().map_or_else(Duration::default, |uploaded| *uploaded - begun);
                    let SummaryFinished { timing, usage, .. } = finished;
                    let timing = timing.unwrap_or_default();
                    let usage = usage.unwrap_or_default();
                    timer.server_report = Some(ServerReport::Summary { timing, usage, upload });
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(Status::unknown("the stream ended without `finished`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ConnectionPool;

    #[test]
    fn chunks_are_the_document_in_order_and_mark_its_end() {
        let target = RequestTarget {
            pool: ConnectionPool::new(Vec::new()),
            model: "all".into(),
            boundaries: false,
            timeout: Duration::from_secs(1),
        };
        let document = "aé🦀".repeat(2000);
        let call = SummarizeCall { document: document.as_str().into(), tokens: 7 };
        let uploaded = Arc::new(OnceLock::new());
        let mut messages = call.messages(&target, Arc::clone(&uploaded));
        let Some(Part::Options(options)) = messages.next().and_then(|message| message.part) else { panic!("options") };
        assert_eq!((options.model(), options.min_tokens(), options.max_tokens()), ("all", 7, 7));
        let mut chunks = Vec::new();
        for message in messages.by_ref() {
            let Some(Part::Chunk(chunk)) = message.part else { panic!("a chunk") };
            chunks.push(chunk.text);
        }
        assert_eq!((chunks.len(), chunks.concat()), (2, document));
        assert!(uploaded.get().is_some());
    }
}
