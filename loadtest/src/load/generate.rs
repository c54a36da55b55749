//! The workload `generate`: prompts from text, continued.

use super::{
    settings,
    text::PromptText,
    workload::{PreparedRequest, PromptSource, RequestTarget, ResponseFuture, Workload, WorkloadInfo, WorkloadSpec},
};
use crate::{
    error::{Error, Result},
    measure::request_timer::{ReceivedMessage, RequestTimer, ServerReport, UnpooledTimes},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{ops::ControlFlow, time::Duration};
use tonic::Status;
use weir_proto::v1::{
    self, Details, Finished, GenerateRequest, Piece, Sampling, Stopping, generate_response::Event,
    generation_client::GenerationClient,
};

/// Streams of the generator from which shared beginnings are drawn: those before are requests'.
const PREFIXES: u64 = 1 << 63;

struct Generate {
    spec: WorkloadSpec,
    text: PromptText,
    lines: Vec<String>,
}

/// Makes the workload.
///
/// # Errors
/// An option out of bounds, or a file that cannot be used.
pub(super) fn build(spec: &WorkloadSpec) -> Result<Box<dyn Workload>> {
    spec.check()?;
    let (text, lines) = match spec.prompts {
        PromptSource::Documents => PromptText::documents(&spec.files)?,
        PromptSource::Lines => {
            let text = PromptText::read(&spec.files)?;
            let lines = text.lines()?;
            (text, lines)
        }
        PromptSource::Parts(_) => (PromptText::read(&spec.files)?, Vec::new()),
    };
    Ok(Box::new(Generate { spec: spec.clone(), text, lines }))
}

impl Generate {
    fn prompt(&self, rng: &mut ChaCha8Rng) -> Result<String> {
        let WorkloadSpec { seed, shared_prefix, prefixes, prompts, max_symbols, .. } = self.spec;
        let mut prompt = String::new();
        if shared_prefix > 0 {
            let mut prefix = ChaCha8Rng::seed_from_u64(seed);
            prefix.set_stream(PREFIXES + rng.random_range(0..prefixes));
            prompt = self.text.window(&mut prefix, shared_prefix);
        }
        match prompts {
            PromptSource::Parts(length) => {
                // room for one character of the answer, or as many as surely come
                let answer = self.spec.output.longest().unwrap_or(1);
                let length = length.draw(rng, max_symbols.saturating_sub(shared_prefix + answer))?;
                prompt.push_str(&self.text.window(rng, length));
            }
            PromptSource::Lines | PromptSource::Documents => {
                let line = self.lines.get(rng.random_range(0..self.lines.len().max(1)));
                prompt.push_str(line.ok_or_else(|| Error::Internal("no lines".into()))?);
            }
        }
        Ok(prompt)
    }
}

impl Workload for Generate {
    fn info(&self) -> WorkloadInfo {
        let WorkloadSpec { name, kind, weight, prompts, output, shared_prefix, prefixes, temperature, .. } = &self.spec;
        WorkloadInfo {
            name: name.clone(),
            kind: kind.clone(),
            model: self.spec.model.clone(),
            weight: *weight,
            text: self.text.name.clone(),
            prompt_chars: prompts.to_string(),
            shared_prefix_chars: *shared_prefix,
            prefixes: if *shared_prefix > 0 { *prefixes } else { 0 },
            output_chars: output.to_string(),
            temperature: *temperature,
            chunk_chars: None,
            beam: None,
            settings: settings::of_texts(*temperature),
        }
    }

    fn draw(&self, rng: &mut ChaCha8Rng, _number: u64) -> Result<Box<dyn PreparedRequest>> {
        let prompt = self.prompt(rng)?;
        let left = self.spec.max_symbols.saturating_sub(prompt.chars().count() as u64);
        let chars = u32::try_from(self.spec.output.draw(rng, left)?).unwrap_or(u32::MAX);
        let WorkloadSpec { temperature, model, pools, .. } = &self.spec;
        let model = model.clone().map(|model| (model, *pools));
        Ok(Box::new(GenerateCall { prompt, chars, seed: rng.random(), temperature: *temperature, model }))
    }
}

/// A request.
struct GenerateCall {
    prompt: String,
    chars: u32,
    seed: u64,
    temperature: Option<f32>,
    /// The model, where it is not the one that is measured, and whether it pools.
    model: Option<(String, bool)>,
}

impl GenerateCall {
    fn message(&self, target: &RequestTarget) -> GenerateRequest {
        let sampling = Sampling { seed: Some(self.seed), temperature: self.temperature, ..Default::default() };
        // as many characters as asked for: no text ends by itself
        let (max_chars, min_chars) = (Some(self.chars), Some(self.chars));
        let stopping = Stopping { max_chars, min_chars, ignore_eos: Some(true), ..Default::default() };
        GenerateRequest {
            model: Some(self.model.as_ref().map_or_else(|| target.model.clone(), |(model, _)| model.clone())),
            prompt: self.prompt.clone(),
            sampling: Some(sampling),
            stopping: Some(stopping),
            details: (target.boundaries && self.model.as_ref().is_none_or(|(_, pools)| *pools))
                .then(|| Details { boundaries: Some(true), ..Default::default() }),
            ..Default::default()
        }
    }
}

impl PreparedRequest for GenerateCall {
    fn run<'a>(&'a self, target: &'a RequestTarget, watch: &'a mut RequestTimer) -> ResponseFuture<'a> {
        Box::pin(async move {
            let connection = target.pool.next()?;
            let request = connection.request(self.message(target), target.timeout);
            let mut client = GenerationClient::new(connection.channel());
            watch.sends();
            let mut stream = client.generate(request).await?.into_inner();
            let mut cached_chars = 0;
            while let Some(message) = stream.message().await? {
                match message.event {
                    Some(Event::Started(started)) => cached_chars = started.cached_chars,
                    Some(Event::Piece(piece)) => {
                        if let ControlFlow::Break(()) = watch.arrived(arrived(&piece)) {
                            return Ok(());
                        }
                    }
                    Some(Event::Finished(finished)) => {
                        watch.told = Some(told(&finished, cached_chars));
                        return Ok(());
                    }
                    None => {}
                }
            }
            Err(Status::unknown("the stream ended without `finished`"))
        })
    }

    fn most_chars(&self) -> u64 {
        self.chars.into()
    }
}

/// What came in a piece: symbols where they are told one by one, code points otherwise; nothing where it is the prompt.
fn arrived(piece: &Piece) -> ReceivedMessage {
    let Piece { text, characters, prompt } = piece;
    if *prompt {
        return ReceivedMessage::default();
    }
    let ends = |marked: bool| {
        let those =
            characters.iter().filter(|character| character.boundary() && character.nxt_logprob.is_some() == marked);
        those.count() as u64
    };
    let count = if characters.is_empty() { text.chars().count() } else { characters.len() };
    ReceivedMessage { characters: count as u64, ends: ends(false), marked: ends(true) }
}

fn told(finished: &Finished, cached_chars: u64) -> ServerReport {
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
        prompt_chars: usage.prompt_chars,
        cached_chars,
        generated_chars: usage.generated_chars,
        segments: usage.prompt_segments + usage.generated_segments,
        unpooled,
        summary: None,
    }
}
