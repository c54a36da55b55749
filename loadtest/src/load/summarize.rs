//! Workload `summarize`: uploads documents in chunks and requests summaries.

use super::{
    length::MAX_LENGTH,
    settings,
    text::PromptSet,
    workload::{PreparedRequest, RequestTarget, SendFuture, Workload, WorkloadInfo, WorkloadSpec},
};
use crate::{
    error::Result,
    measure::{
        request_timer::{ClientTimer, ReceivedMessage, ServerReport},
        shortening::TextTotals,
        summaries::SummaryMeasurement,
    },
};
use rand_chacha::ChaCha8Rng;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::Instant;
use tonic::Status;
use weir_proto::v1::{
    DocumentChunk, SummarizeOptions, SummarizeRequest, SummaryFinished, summarization_client::SummarizationClient,
    summarize_request::Part, summarize_response::Event,
};

struct SummarizeWorkload {
    spec: WorkloadSpec,
    documents: PromptSet,
}

/// Builds the workload. Fails if an option is out of bounds, or a file cannot be used.
pub(super) fn build(spec: &WorkloadSpec) -> Result<Box<dyn Workload>> {
    spec.check()?;
    Ok(Box::new(SummarizeWorkload { spec: spec.clone(), documents: PromptSet::read(spec.prompts, &spec.files)? }))
}

impl Workload for SummarizeWorkload {
    fn info(&self) -> WorkloadInfo {
        let WorkloadSpec { name, kind, weight, prompts, output, chunk_chars, beam, .. } = &self.spec;
        WorkloadInfo {
            name: name.clone(),
            kind: kind.clone(),
            model: self.spec.model.clone(),
            weight: *weight,
            text: match self.documents.items.len() {
                0 => self.documents.text.name.clone(),
                count => format!("{count} documents of {}", self.documents.text.name),
            },
            prompt_chars: prompts.to_string(),
            output_chars: format!("{output} tokens"),
            chunk_chars: Some(*chunk_chars),
            beam: *beam,
            settings: settings::summarization(*beam),
            ..WorkloadInfo::default()
        }
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> Result<Box<dyn PreparedRequest>> {
        let document = self.documents.draw(rng, MAX_LENGTH)?;
        let tokens = u32::try_from(self.spec.output.draw(rng, MAX_LENGTH)?).unwrap_or(u32::MAX);
        let WorkloadSpec { model, chunk_chars, beam, .. } = &self.spec;
        let chunk = *chunk_chars as usize;
        Ok(Box::new(SummarizeCall { document, tokens, chunk, beam: *beam, model: model.clone() }))
    }
}

struct SummarizeCall {
    document: Arc<str>,
    tokens: u32,
    chunk: usize,
    beam: Option<u32>,
    model: Option<String>,
}

impl SummarizeCall {
    /// Returns the options and then the document in chunks. Sets `uploaded` once the last chunk was taken.
    fn messages(
        &self,
        target: &RequestTarget,
        uploaded: Arc<OnceLock<Instant>>,
    ) -> impl Iterator<Item = SummarizeRequest> + Send + 'static {
        // exactly as many tokens as requested: no summary ends by itself
        let options = SummarizeOptions {
            model: Some(self.model.as_ref().unwrap_or(&target.model).clone()),
            min_tokens: Some(self.tokens),
            max_tokens: Some(self.tokens),
            beam_size: self.beam,
            cut: Some(true),
            ..Default::default()
        };
        let document = Arc::clone(&self.document);
        let size = self.chunk.max(1);
        let mut start = 0;
        let chunks = std::iter::from_fn(move || {
            let rest = document.get(start..)?;
            if rest.is_empty() {
                uploaded.get_or_init(Instant::now);
                return None;
            }
            let end = rest.char_indices().nth(size).map_or(rest.len(), |(end, _)| end);
            let text = rest.get(..end)?.to_owned();
            start += end;
            Some(SummarizeRequest { part: Some(Part::Chunk(DocumentChunk { text })) })
        });
        std::iter::once(SummarizeRequest { part: Some(Part::Options(options)) }).chain(chunks)
    }
}

impl PreparedRequest for SummarizeCall {
    fn send<'a>(&'a self, target: &'a RequestTarget, timer: &'a mut ClientTimer) -> SendFuture<'a> {
        Box::pin(async move {
            let connection = target.pool.next()?;
            let uploaded = Arc::new(OnceLock::new());
            let messages = tokio_stream::iter(self.messages(target, Arc::clone(&uploaded)));
            let request = connection.request(messages, target.timeout);
            let mut client = SummarizationClient::new(connection.channel());
            timer.mark_sent();
            let begun = Instant::now();
            let mut stream = client.summarize(request).await?.into_inner();
            while let Some(message) = stream.message().await? {
                match message.event {
                    Some(Event::Piece(piece)) => {
                        let characters = piece.text.chars().count() as u64;
                        if timer.record(ReceivedMessage { characters, ..ReceivedMessage::default() }).is_break() {
                            return Ok(());
                        }
                    }
                    Some(Event::Finished(finished)) => {
                        let upload = uploaded.get().map_or_else(Duration::default, |uploaded| *uploaded - begun);
                        timer.server_report = Some(server_report(&finished, upload));
                        return Ok(());
                    }
                    Some(Event::Started(_) | Event::Progress(_) | Event::Selected(_) | Event::Part(_)) | None => {}
                }
            }
            Err(Status::unknown("the stream ended without `finished`"))
        })
    }

    fn max_chars(&self) -> u64 {
        self.tokens.into()
    }
}

fn server_report(finished: &SummaryFinished, upload: Duration) -> ServerReport {
    let timing = finished.timing.clone().unwrap_or_default();
    let usage = finished.usage.unwrap_or_default();
    let encode = timing.layers.iter().map(|layer| layer.ns).sum::<u64>() + timing.memory_ns;
    let summary = SummaryMeasurement {
        upload,
        encode: Duration::from_nanos(encode),
        encode_rest: Duration::from_nanos(timing.encode_rest_ns),
        decode: Duration::from_nanos(timing.decode_ns),
        document_tokens: usage.document_tokens,
        cached_tokens: usage.cached_tokens,
        summary_tokens: usage.summary_tokens,
        cross_attention_bytes: usage.cross_attention_bytes,
        unpooled_cross_attention_bytes: usage.unpooled_cross_attention_bytes,
        kept_share: timing.kept_share,
    };
    ServerReport {
        queue: Duration::from_nanos(timing.queue_ns),
        prefill: Duration::from_nanos(timing.upload_ns + timing.encode_rest_ns),
        first: Duration::from_nanos(timing.time_to_first_token_ns),
        total: Duration::from_nanos(timing.total_ns),
        // tokens are counted in `summary`: a sum of tokens and characters would be meaningless
        texts: TextTotals::default(),
        unpooled: None,
        summary: Some(summary),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::connection::ConnectionPool;

    #[test]
    fn chunks_are_the_document_in_order_and_mark_its_end() {
        let target = RequestTarget {
            pool: ConnectionPool::new(Vec::new()),
            model: "all".into(),
            boundaries: false,
            timeout: Duration::from_secs(1),
        };
        let call = SummarizeCall { document: "aé🦀bcd".into(), tokens: 7, chunk: 2, beam: Some(3), model: None };
        let uploaded = Arc::new(OnceLock::new());
        let mut messages = call.messages(&target, Arc::clone(&uploaded));
        let Some(Part::Options(options)) = messages.next().and_then(|message| message.part) else { panic!("options") };
        assert_eq!(
            (options.model(), options.min_tokens(), options.max_tokens(), options.beam_size()),
            ("all", 7, 7, 3)
        );
        let mut chunks = Vec::new();
        for message in messages.by_ref() {
            let Some(Part::Chunk(chunk)) = message.part else { panic!("a chunk") };
            chunks.push(chunk.text);
        }
        assert_eq!(chunks, ["aé", "🦀b", "cd"]);
        assert!(uploaded.get().is_some());
    }
}
