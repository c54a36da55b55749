//! Generation with scripted delays.

use super::server::{Script, SentTimes, Stub, StubSlots, WAITING};
use crate::units::ns;
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};
use weir_proto::v1::{
    Character, Finished, GenerateRequest, GenerateResponse, Piece, ScoreRequest, ScoreResponse, ScoreSummary,
    SegmentRequest, SegmentResponse, Started, Timing, Usage, generate_response, generation_server, score_response,
};

struct StubGeneration {
    stub: Stub,
    script: Script,
    slots: Arc<StubSlots>,
    prompt_chars: u64,
    chars: u64,
    boundaries: bool,
    out: mpsc::Sender<Result<GenerateResponse, Status>>,
}

impl StubGeneration {
    /// Answers the request; ends early if the client is gone.
    async fn run(self) -> Option<()> {
        let arrived = Instant::now();
        let mut slot = self.slots.acquire(arrived).await?;
        let queue = arrived.elapsed();
        let mut chars = Vec::new();
        let model = self.script.name.clone();
        let started = Started { model, prompt_chars: self.prompt_chars, ..Started::default() };
        self.send(generate_response::Event::Started(started)).await?;
        let mut due = slot.begun;
        for number in 1..=self.chars {
            let ends_segment = number.checked_rem(self.script.segment) == Some(0);
            // counted from when the last character was due, so that the stub's own delays do not add up
            due += match (number, ends_segment) {
                (1, _) => self.script.first,
                (_, true) => self.script.boundary,
                (_, false) => self.script.plain,
            };
            self.wait(&mut due).await;
            chars.push(Instant::now());
            self.send(generate_response::Event::Piece(self.piece(ends_segment))).await?;
        }
        slot.end = Some(due);
        self.send(generate_response::Event::Finished(self.finished(queue, arrived, chars.first().copied()))).await?;
        self.stub.record_sent(SentTimes { arrived, chars });
        Some(())
    }

    /// Waits until `due`. If that is within the script's pause, waits for its end and moves `due` there.
    async fn wait(&self, due: &mut Instant) {
        if *due > Instant::now() {
            sleep_until(*due).await;
        }
        if let Some((from, to)) = self.script.pause {
            let end = self.stub.start + to;
            if (self.stub.start + from..end).contains(&Instant::now()) {
                sleep_until(end).await;
                *due = end;
            }
        }
    }

    fn piece(&self, ends_segment: bool) -> Piece {
        let character = || Character { text: "x".into(), boundary: Some(ends_segment), ..Default::default() };
        let characters = if self.boundaries { vec![character()] } else { Vec::new() };
        Piece { text: "x".into(), characters, ..Default::default() }
    }

    fn finished(&self, queue: Duration, arrived: Instant, first: Option<Instant>) -> Finished {
        let usage = Usage {
            prompt_chars: self.prompt_chars,
            generated_chars: self.chars,
            prompt_segments: self.prompt_chars.checked_div(self.script.segment).unwrap_or(0),
            generated_segments: self.chars.checked_div(self.script.segment).unwrap_or(0),
            ..Default::default()
        };
        let prefill_ns = ns(self.script.first);
        let decode_ns = first.map_or(0, |first| ns(first.elapsed()));
        let estimate = |measured: u64| self.script.gain.map(|gain| (measured as f64 * gain) as u64);
        let timing = Timing {
            queue_ns: ns(queue),
            prefill_ns,
            decode_ns,
            unpooled_estimate_ns: estimate(prefill_ns + decode_ns),
            gain_estimate: self.script.gain,
            unpooled_prefill_estimate_ns: estimate(prefill_ns),
            unpooled_decode_estimate_ns: estimate(decode_ns),
            time_to_first_char_ns: first.map_or(0, |first| ns(first - arrived)),
            total_ns: ns(arrived.elapsed()),
            ..Default::default()
        };
        Finished { usage: Some(usage), timing: Some(timing), ..Default::default() }
    }

    async fn send(&self, event: generate_response::Event) -> Option<()> {
        self.out.send(Ok(GenerateResponse { event: Some(event) })).await.ok()
    }
}

type StubResponses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl generation_server::Generation for Stub {
    type GenerateStream = StubResponses<GenerateResponse>;
    type ScoreStream = StubResponses<ScoreResponse>;

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let request = request.into_inner();
        let (script, slots) = self.model(request.model())?.clone();
        if self.is_refused(&script) {
            return Err(Status::resource_exhausted("the queue is full"));
        }
        let (out, responses) = mpsc::channel(WAITING);
        let generation = StubGeneration {
            stub: self.clone(),
            script,
            slots,
            prompt_chars: request.prompt.chars().count() as u64,
            chars: request.stopping.unwrap_or_default().max_chars().into(),
            boundaries: request.details.unwrap_or_default().boundaries(),
            out,
        };
        tokio::spawn(generation.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn score(&self, request: Request<ScoreRequest>) -> Result<Response<Self::ScoreStream>, Status> {
        let request = request.into_inner();
        let (script, _) = self.model(request.model())?;
        // the time of one step, whatever the length of the text
        sleep(script.plain).await;
        let scored_chars = request.text.chars().count().saturating_sub(1) as u64;
        let summary = ScoreSummary { bits_per_char: Some(script.bits_per_char), scored_chars, ..Default::default() };
        let response = ScoreResponse { event: Some(score_response::Event::Summary(summary)) };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(response)))))
    }

    async fn segment(&self, _: Request<SegmentRequest>) -> Result<Response<SegmentResponse>, Status> {
        Err(Status::unimplemented("the stub has no text to segment"))
    }
}
