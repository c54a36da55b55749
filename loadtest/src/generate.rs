//! Workloads `generate`, which continues prompts taken from a text, and `summarize`, which uploads documents in chunks and requests
//! summaries.

use crate::error::Result;
use crate::timer::{ClientTimer, ReceivedMessage, ServerReport};
use crate::workload::{
    self, MAX_LENGTH, PreparedRequest, PromptSet, RequestTarget, SendFuture, WorkloadKind, WorkloadSpec,
    generation_settings, summarization_settings,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use weir_proto::v1::{
    Details, DocumentChunk, Finished, GenerateRequest, Piece, Sampling, Stopping, SummarizeOptions, SummarizeRequest,
    SummaryFinished, generate_response::Event, summarize_request::Part, summarize_response,
};

/// First stream of the random number generator for common prefixes; requests use the streams below.
const PREFIX_STREAMS: u64 = 1 << 63;

/// Continues prompts.
pub(crate) const GENERATE: WorkloadKind = WorkloadKind {
    name: "generate",
    check: WorkloadSpec::check_length,
    describe: |spec, _, info| {
        let WorkloadSpec { shared_prefix, prefixes, temperature, .. } = *spec;
        info.shared_prefix_chars = shared_prefix;
        info.prefixes = if shared_prefix > 0 { prefixes } else { 0 };
        info.temperature = temperature;
        info.settings = generation_settings(temperature);
    },
    draw: |spec, prompts, rng| {
        let WorkloadSpec { max_symbols, temperature, pools, .. } = *spec;
        let prompt = prompt(spec, prompts, rng)?;
        let left = max_symbols.saturating_sub(prompt.chars().count() as u64);
        let chars = u32::try_from(spec.output.draw(rng, left)?).unwrap_or(u32::MAX);
        Ok(Box::new(GenerateCall { prompt, chars, seed: rng.random(), temperature, model: spec.model.clone(), pools }))
    },
};

fn prompt(spec: &WorkloadSpec, prompts: &PromptSet, rng: &mut ChaCha8Rng) -> Result<String> {
    let WorkloadSpec { seed, shared_prefix, prefixes, output, max_symbols, .. } = *spec;
    let mut prompt = String::new();
    if shared_prefix > 0 {
        let mut prefix = ChaCha8Rng::seed_from_u64(seed);
        prefix.set_stream(PREFIX_STREAMS + rng.random_range(0..prefixes));
        prompt = prompts.text.excerpt(&mut prefix, shared_prefix);
    }
    // leaves room for the longest answer, or for one character if the length has no bound
    let answer = output.longest().unwrap_or(1);
    prompt.push_str(&prompts.draw(rng, max_symbols.saturating_sub(shared_prefix + answer))?);
    Ok(prompt)
}

struct GenerateCall {
    prompt: String,
    chars: u32,
    seed: u64,
    temperature: Option<f32>,
    /// Model, if it is not the measured one.
    model: Option<String>,
    /// True if `model` pools.
    pools: bool,
}

impl GenerateCall {
    fn message(&self, target: &RequestTarget) -> GenerateRequest {
        let sampling = Sampling { seed: Some(self.seed), temperature: self.temperature, ..Default::default() };
        // exactly as many characters as requested: no text ends by itself
        let chars = Some(self.chars);
        let stopping = Stopping { max_chars: chars, min_chars: chars, ignore_eos: Some(true), ..Default::default() };
        GenerateRequest {
            model: Some(self.model.as_ref().unwrap_or(&target.model).clone()),
            prompt: self.prompt.clone(),
            sampling: Some(sampling),
            stopping: Some(stopping),
            details: (target.boundaries && (self.model.is_none() || self.pools))
                .then(|| Details { boundaries: Some(true), ..Default::default() }),
            ..Default::default()
        }
    }
}

impl PreparedRequest for GenerateCall {
    fn send<'a>(&'a self, target: &'a RequestTarget, timer: &'a mut ClientTimer) -> SendFuture<'a> {
        Box::pin(async move {
            let connection = target.pool.next()?;
            let request = connection.request_within(self.message(target), target.timeout);
            timer.mark_sent();
            let mut stream = connection.start_generate(request).await?.into_inner();
            let mut cached_chars = 0;
            while let Some(message) = stream.message().await? {
                match message.event {
                    Some(Event::Started(started)) => cached_chars = started.cached_chars,
                    Some(Event::Piece(piece)) => {
                        let recorded = timer.record(received(&piece));
                        if recorded.is_break() {
                            return Ok(());
                        }
                    }
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
        })
    }

    fn max_chars(&self) -> u64 {
        self.chars.into()
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

/// Uploads documents and requests summaries.
pub(crate) const SUMMARIZE: WorkloadKind = WorkloadKind {
    name: workload::SUMMARIZE,
    // the model's limit is in tokens, which only the server can count
    check: |_| Ok(()),
    describe: |spec, documents, info| {
        if !documents.items.is_empty() {
            info.text = format!("{} documents of {}", documents.items.len(), documents.text.name);
        }
        info.output_chars = format!("{} tokens", spec.output);
        info.chunk_chars = Some(spec.chunk_chars);
        info.beam = spec.beam;
        info.settings = summarization_settings(spec.beam);
    },
    draw: |spec, documents, rng| {
        let document = documents.draw(rng, MAX_LENGTH)?;
        let tokens = u32::try_from(spec.output.draw(rng, MAX_LENGTH)?).unwrap_or(u32::MAX);
        let WorkloadSpec { model, chunk_chars, beam, .. } = spec;
        let chunk = *chunk_chars as usize;
        Ok(Box::new(SummarizeCall { document, tokens, chunk, beam: *beam, model: model.clone() }))
    },
};

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
            Some(SummarizeRequest { part: Some(Part::Chunk(DocumentChunk { text, ids: Vec::new() })) })
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
            let request = connection.request_within(messages, target.timeout);
            timer.mark_sent();
            let begun = Instant::now();
            let mut stream = connection.start_summarize(request).await?.into_inner();
            while let Some(message) = stream.message().await? {
                match message.event {
                    Some(summarize_response::Event::Piece(piece)) => {
                        let characters = piece.text.chars().count() as u64;
                        if timer.record(ReceivedMessage { characters, ..ReceivedMessage::default() }).is_break() {
                            return Ok(());
                        }
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
        })
    }

    fn max_chars(&self) -> u64 {
        self.tokens.into()
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
