//! The service `Generation`: converts a request to a job, submits it to the model's engine, and answers with a stream over the
//! engine's events. `summarization` implements the service `Summarization` for the same type.

use super::{
    convert,
    editing_limits::EditingLimits,
    generate_stream::GenerateEncoder,
    response_stream::{Buffered, JobEvents, MessageEncoder, ResponseStream, buffered, reject},
    score_stream::ScoreEncoder,
    segments::{boundary_levels, segments},
    totals,
};
use crate::{
    decode::options::must_pool,
    engine::{Event, Job, Terms},
    error::Result,
    serve::{
        call::{Call, Reply},
        middleware::body_limits::{BodyMemory, RequestMemory, Reservation},
        registry::{
            abilities::{continues_text, segments_text},
            drain::{Gate, RequestPermit},
            engines::{Engines, Lease},
        },
        tokenization::TokenizationWorkers,
    },
    text::Vocabulary,
};
use prost::Message;
use std::sync::Arc;
use tonic::{Request, Response};
use weir_proto::v1::{self, generation_server};

/// Submits jobs to the engines while the gate is open.
#[derive(Clone)]
pub(crate) struct JobService {
    pub(crate) engines: Engines,
    pub(crate) gate: Gate,
    /// Convert large requests.
    pub(crate) workers: TokenizationWorkers,
    /// The memory that requests and their symbols share.
    pub(crate) memory: Arc<BodyMemory>,
    /// True if a response begins with its first progress or text, for proxies that retry elsewhere until then.
    pub(crate) late_headers: bool,
    /// Limits of editing sessions, and those in progress.
    pub(crate) editing: EditingLimits,
}

impl JobService {
    /// Converts a request and submits it: here if it is small, otherwise on a worker. Returns the job's events, which hold `permit`,
    /// and the data for the response that `convert` prepares. Fails with [`Error::QueueFull`] if no memory is left for the symbols of
    /// the request, which count until the response ends.
    async fn submit<M, R>(
        &self,
        request: Incoming<M>,
        priority: Option<i32>,
        engine: Lease,
        permit: RequestPermit,
        convert: impl FnOnce(M, &Lease) -> Result<(Job, R)> + Send + 'static,
    ) -> Result<(JobEvents, R)>
    where
        M: Message + 'static,
        R: Send + 'static,
    {
        let Incoming { message, call, memory } = request;
        let terms = terms(&call, priority);
        let tenant = Arc::clone(&terms.tenant);
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(&tenant));
        let submitted = self.workers.run(&tenant, message.encoded_len(), move || {
            // Released when the request is submitted.
            let _memory = memory;
            // Few requests are converted at a time, so their symbols are counted afterwards.
            let (job, response) = convert(message, &engine)?;
            reserved.add(job.symbols().saturating_mul(size_of::<u32>()))?;
            let events = engine.submit(job, terms)?;
            Ok((JobEvents::new(events, engine, permit, call.span).holding(reserved), response))
        });
        submitted.await.flatten()
    }

    /// Returns how many messages of a response must be there before its headers are sent.
    pub(super) fn first_messages<E: MessageEncoder>(&self) -> usize {
        if self.late_headers { E::LEADING + 1 } else { 0 }
    }

    /// Starts a `Generate`.
    pub(in crate::serve) async fn start_generate(
        &self,
        request: Incoming<v1::GenerateRequest>,
    ) -> Result<ResponseStream<GenerateEncoder>> {
        let permit = self.gate.enter()?;
        let priority = request.message.priority;
        let call = request.call.clone();
        let engine = self.engines.find_able("model", request.message.model.as_deref(), continues_text)?;
        let id = Arc::clone(&call.id);
        let convert = move |message, engine: &Lease| {
            let (job, format) = convert::generate_job(message, engine.card())?;
            let encoder = GenerateEncoder::new(format, engine.card(), &id).after(&job.resumed);
            Ok((Job::Generate(job), encoder))
        };
        let (events, encoder) = self.submit(request, priority, engine, permit, convert).await?;
        Ok(ResponseStream::new(events, encoder, call))
    }

    async fn start_score(&self, request: Incoming<v1::ScoreRequest>) -> Result<ResponseStream<ScoreEncoder>> {
        let permit = self.gate.enter()?;
        let priority = request.message.priority;
        let call = request.call.clone();
        let engine = self.engines.find_able("model", request.message.model.as_deref(), continues_text)?;
        let convert = |message, engine: &Lease| {
            let card = engine.card();
            let (job, seed) = convert::score_job(&message, card)?;
            let writes_segments = card.pooled && card.vocabulary.specials().is_some();
            let encoder = ScoreEncoder::new(seed, job.top, Arc::clone(&card.vocabulary), writes_segments);
            let normalized_chars = card.vocabulary.normaliser().changed_chars(&message.text);
            Ok((Job::Score(job), encoder.with_normalized_chars(normalized_chars)))
        };
        let (events, encoder) = self.submit(request, priority, engine, permit, convert).await?;
        Ok(ResponseStream::new(events, encoder, call))
    }

    async fn segment_text(&self, request: Incoming<v1::SegmentRequest>) -> Result<v1::SegmentResponse> {
        let permit = self.gate.enter()?;
        let priority = request.message.priority;
        let engine = self.engines.find_able("model", request.message.model.as_deref(), segments_text)?;
        must_pool("Segment", engine.card())?;
        let convert = |message: v1::SegmentRequest, engine: &Lease| {
            let (job, seed) = convert::segment_job(&message, engine.card())?;
            let vocabulary = &engine.card().vocabulary;
            let text = vocabulary.decode(&job.symbols);
            let normalized_chars = Some(vocabulary.normaliser().changed_chars(&message.text) as u64);
            // The engine counts the rest.
            let usage = Some(v1::Usage { normalized_chars, ..Default::default() });
            Ok((Job::Score(job), v1::SegmentResponse { text, seed, usage, ..Default::default() }))
        };
        let vocabulary = Arc::clone(&engine.card().vocabulary);
        let (events, response) = self.submit(request, priority, engine, permit, convert).await?;
        collect_segments(events, response, &vocabulary).await
    }
}

/// A request of a call, with the memory that it uses until it is converted.
pub(in crate::serve) struct Incoming<M> {
    pub(in crate::serve) message: M,
    pub(in crate::serve) call: Call,
    pub(in crate::serve) memory: Option<RequestMemory>,
}

impl<M> Incoming<M> {
    /// Returns the request of a gRPC call.
    pub(in crate::serve) fn of(mut request: Request<M>) -> Self {
        let call = Call::of(&request);
        let memory = RequestMemory::take(&mut request);
        Self { message: request.into_inner(), call, memory }
    }
}

/// Returns the conditions under which a call's job runs.
pub(super) fn terms(call: &Call, priority: Option<i32>) -> Terms {
    let priority = priority.unwrap_or_default();
    Terms { deadline: call.deadline, tenant: call.tenant(), priority, ..Terms::default() }
}

/// Completes `response` with the segments of a text. Keeps all of them: a text has at most `max_symbols` symbols.
async fn collect_segments(
    mut events: JobEvents,
    response: v1::SegmentResponse,
    vocabulary: &Vocabulary,
) -> Result<v1::SegmentResponse> {
    let mut characters = Vec::new();
    loop {
        match events.next().await? {
            Event::Started { .. } | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(more) => characters.extend(more),
            Event::Finished { usage, timing, .. } => {
                let normalized_chars = response.usage.and_then(|known| known.normalized_chars);
                return Ok(v1::SegmentResponse {
                    segments: segments(&characters, vocabulary),
                    usage: Some(v1::Usage { normalized_chars, ..totals::usage(usage) }),
                    timing: Some(totals::timing(timing)),
                    levels: totals::levels(&usage, &timing),
                    boundary_levels: boundary_levels(&characters),
                    ..response
                });
            }
        }
    }
}

#[tonic::async_trait]
impl generation_server::Generation for JobService {
    type GenerateStream = Buffered<ResponseStream<GenerateEncoder>>;
    type ScoreStream = Buffered<ResponseStream<ScoreEncoder>>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Reply<Self::GenerateStream> {
        let call = Call::of(&request);
        let stream = self.start_generate(Incoming::of(request)).await.map_err(reject(&call))?;
        buffered(stream, self.first_messages::<GenerateEncoder>()).await.map(Response::new)
    }

    async fn score(&self, request: Request<v1::ScoreRequest>) -> Reply<Self::ScoreStream> {
        let call = Call::of(&request);
        let stream = self.start_score(Incoming::of(request)).await.map_err(reject(&call))?;
        buffered(stream, self.first_messages::<ScoreEncoder>()).await.map(Response::new)
    }

    async fn segment(&self, request: Request<v1::SegmentRequest>) -> Reply<v1::SegmentResponse> {
        let call = Call::of(&request);
        self.segment_text(Incoming::of(request)).await.map(Response::new).map_err(reject(&call))
    }
}
