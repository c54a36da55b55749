//! Workload `generate`: continues prompts taken from a text.

use super::{
    settings,
    text::PromptSet,
    workload::{PreparedRequest, RequestTarget, SendFuture, Workload, WorkloadInfo, WorkloadSpec},
};
use crate::{
    error::Result,
    measure::{
        request_timer::{ClientTimer, ReceivedMessage, ServerReport, UnpooledTimes},
        shortening::TextTotals,
    },
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;
use tonic::Status;
use weir_proto::v1::{
    self, Details, Finished, GenerateRequest, Piece, Sampling, Stopping, generate_response::Event,
    generation_client::GenerationClient,
};

/// First stream of the random number generator for common prefixes; requests use the streams below.
const PREFIX_STREAMS: u64 = 1 << 63;

struct GenerateWorkload {
    spec: WorkloadSpec,
    prompts: PromptSet,
}

/// Builds the workload. Fails if an option is out of bounds, or a file cannot be used.
pub(super) fn build(spec: &WorkloadSpec) -> Result<Box<dyn Workload>> {
    spec.check()?;
    Ok(Box::new(GenerateWorkload { spec: spec.clone(), prompts: PromptSet::read(spec.prompts, &spec.files)? }))
}

impl GenerateWorkload {
    fn prompt(&self, rng: &mut ChaCha8Rng) -> Result<String> {
        let WorkloadSpec { seed, shared_prefix, prefixes, output, max_symbols, .. } = self.spec;
        let mut prompt = String::new();
        if shared_prefix > 0 {
            let mut prefix = ChaCha8Rng::seed_from_u64(seed);
            prefix.set_stream(PREFIX_STREAMS + rng.random_range(0..prefixes));
            prompt = self.prompts.text.excerpt(&mut prefix, shared_prefix);
        }
        // leaves room for the longest answer, or for one character if the length has no bound
        let answer = output.longest().unwrap_or(1);
        prompt.push_str(&self.prompts.draw(rng, max_symbols.saturating_sub(shared_prefix + answer))?);
        Ok(prompt)
    }
}

impl Workload for GenerateWorkload {
    fn info(&self) -> WorkloadInfo {
        let WorkloadSpec { name, kind, weight, prompts, output, shared_prefix, prefixes, temperature, .. } = &self.spec;
        WorkloadInfo {
            name: name.clone(),
            kind: kind.clone(),
            model: self.spec.model.clone(),
            weight: *weight,
            text: self.prompts.text.name.clone(),
            prompt_chars: prompts.to_string(),
            shared_prefix_chars: *shared_prefix,
            prefixes: if *shared_prefix > 0 { *prefixes } else { 0 },
            output_chars: output.to_string(),
            temperature: *temperature,
            settings: settings::generation(*temperature),
            ..WorkloadInfo::default()
        }
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> Result<Box<dyn PreparedRequest>> {
        let prompt = self.prompt(rng)?;
        let left = self.spec.max_symbols.saturating_sub(prompt.chars().count() as u64);
        let chars = u32::try_from(self.spec.output.draw(rng, left)?).unwrap_or(u32::MAX);
        let WorkloadSpec { temperature, pools, .. } = self.spec;
        let model = self.spec.model.clone();
        Ok(Box::new(GenerateCall { prompt, chars, seed: rng.random(), temperature, model, pools }))
    }
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
            let request = connection.request(self.message(target), target.timeout);
            let mut client = GenerationClient::new(connection.channel());
            timer.mark_sent();
            let mut stream = client.generate(request).await?.into_inner();
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
                        timer.server_report = Some(server_report(&finished, cached_chars));
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

fn server_report(finished: &Finished, cached_chars: u64) -> ServerReport {
    let timing = finished.timing.unwrap_or_default();
    let v1::Timing { queue_ns, prefill_ns, time_to_first_char_ns, total_ns, decode_ns, .. } = timing;
    let estimates = timing.unpooled_prefill_estimate_ns.zip(timing.unpooled_decode_estimate_ns);
    let unpooled = estimates.map(|(prefill, decode)| UnpooledTimes {
        prefill: Duration::from_nanos(prefill_ns),
        prefill_estimate: Duration::from_nanos(prefill),
        decode: Duration::from_nanos(decode_ns),
        decode_estimate: Duration::from_nanos(decode),
    });
    let usage = finished.usage.unwrap_or_default();
    ServerReport {
        queue: Duration::from_nanos(queue_ns),
        prefill: Duration::from_nanos(prefill_ns),
        first: Duration::from_nanos(time_to_first_char_ns),
        total: Duration::from_nanos(total_ns),
        texts: TextTotals {
            prompt: usage.prompt_chars,
            cached: cached_chars,
            generated: usage.generated_chars,
            segments: usage.prompt_segments + usage.generated_segments,
        },
        unpooled,
        summary: None,
    }
}
