//! The service `Generation`: converts a request to a job, submits it to the model's engine, and answers with a stream over the
//! engine's events. `summarization` implements the service `Summarization` for the same type.

use crate::{
    call::{Call, Reply},
    config::EditingConfig,
    grpc::{
        convert::{self, ResponseFormat},
        response::{GrpcStream, JobEvents, MessageEncoder, Pieces, ResponseStream, reject, reply},
        score::{ScoreEncoder, boundary_levels, check_segments, segments},
    },
    middleware::limits::{BodyMemory, CallTable, RequestMemory, Reservation},
    registry::{Engines, Gate, Lease, RequestPermit, continues_text, segments_text},
    tokenization::TokenizationWorkers,
};
use prost::Message;
use std::sync::Arc;
use tonic::{Request, Response};
use weir_engine::{
    Event, Job, Terms,
    constraint::{CompiledConstraint, Constraint},
    options::{FinishReason, must_pool},
};
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::Card,
    text::{PlacedText, Vocabulary},
};
use weir_proto::v1::{self, generate_response::Event as Payload, generation_server};

/// Submits jobs to the engines while the gate is open.
#[derive(Clone)]
pub(crate) struct JobService {
    pub(crate) engines: Engines,
    pub(crate) gate: Gate,
    /// Convert large requests.
    pub(crate) workers: TokenizationWorkers,
    /// Convert requests with a constraint, however short: to compile it may take seconds, for which no other request waits.
    pub(crate) compilers: TokenizationWorkers,
    /// The memory that requests and their symbols share.
    pub(crate) memory: Arc<BodyMemory>,
    /// True if a response begins with its first progress or text, for proxies that retry elsewhere until then.
    pub(crate) late_headers: bool,
    /// Limits of editing sessions, and those in progress.
    pub(crate) editing: EditingLimits,
}

/// Returns the error of a request with the field that gave its text: the engine does not know whether that were ids.
fn of_ids(error: Error, has_ids: bool) -> Error {
    error.named(|field| match field {
        "text" if has_ids => "ids",
        "prompt" if has_ids => "prompt_ids",
        other => other,
    })
}

/// Does the same for the field that gave the text which a request resumes.
fn of_resumed_ids(error: Error, has_ids: bool) -> Error {
    match error {
        Error::Exclusive { .. } => error,
        _ => error.named(|field| if has_ids && field == "resume_text" { "resume_ids" } else { field }),
    }
}

impl JobService {
    /// Converts a request and submits it: here if it takes no longer than a small one, otherwise on a worker, and on a compiler if it
    /// has a constraint. Returns the job's events, which hold `permit`,
    /// and the data for the response that `convert` prepares. Fails with [`Error::QueueFull`] if no memory is left for the symbols of
    /// the request, which count until the response ends.
    async fn submit<M, R>(
        &self,
        request: Incoming<M>,
        priority: Option<i32>,
        engine: Lease,
        permit: RequestPermit,
        is_constrained: bool,
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
        let bytes = engine.card().vocabulary.work(message.encoded_len());
        let convert = move || {
            // Released when the request is submitted.
            let _memory = memory;
            // Few requests are converted at a time, so their symbols are counted afterwards.
            let (job, response) = convert(message, &engine)?;
            reserved.add(job.bytes())?;
            let events = engine.submit(job, terms)?;
            Ok((JobEvents::new(events, engine, permit, call.span, Some(reserved)), response))
        };
        match is_constrained {
            true => self.compilers.run_on_worker(&tenant, convert).await.flatten(),
            false => self.workers.run(&tenant, bytes, convert).await.flatten(),
        }
    }

    /// Returns how many messages of a response must be there before its headers are sent.
    pub(super) fn first_messages<E: MessageEncoder>(&self) -> usize {
        if self.late_headers { E::LEADING + 1 } else { 0 }
    }

    pub(crate) async fn start_generate(
        &self,
        request: Incoming<v1::GenerateRequest>,
    ) -> Result<ResponseStream<GenerateEncoder>> {
        let permit = self.gate.enter()?;
        let priority = request.message.priority;
        let id = Arc::clone(&request.call.id);
        let engine = self.engines.find_able("model", request.message.model.as_deref(), continues_text)?;
        let memory = Reservation::new(Arc::clone(&self.memory), request.call.tenant());
        let convert = move |message, engine: &Lease| {
            let compile = |constraint: &_| compile(engine, &memory, constraint);
            let (job, format) = convert::generate_job(message, engine.card(), compile)?;
            let mut encoder = GenerateEncoder::new(format, engine.card(), &id);
            encoder.pieces.skip(&job.resumed);
            Ok((Job::Generate(job), encoder))
        };
        let has_ids = request.message.prompt.is_empty() && !request.message.prompt_ids.is_empty();
        let has_resumed_ids = !request.message.resume_ids.is_empty();
        let is_constrained = request.message.constraint.is_some();
        let submitted = self.submit(request, priority, engine, permit, is_constrained, convert).await;
        let named = |error| of_resumed_ids(of_ids(error, has_ids), has_resumed_ids);
        let (events, encoder) = submitted.map_err(named)?;
        Ok(ResponseStream::new(events, encoder))
    }

    async fn start_score(&self, request: Incoming<v1::ScoreRequest>) -> Result<ResponseStream<ScoreEncoder>> {
        let permit = self.gate.enter()?;
        let priority = request.message.priority;
        let engine = self.engines.find_able("model", request.message.model.as_deref(), continues_text)?;
        let convert = |message, engine: &Lease| {
            let card = engine.card();
            let (job, seed) = convert::score_job(&message, card)?;
            let changed = card.vocabulary.normaliser().changed_chars(&message.text);
            let encoder = ScoreEncoder::new(&job, seed, card, changed);
            Ok((Job::Score(job), encoder))
        };
        let has_ids = request.message.text.is_empty() && !request.message.ids.is_empty();
        let submitted = self.submit(request, priority, engine, permit, false, convert).await;
        let (events, encoder) = submitted.map_err(|error| of_ids(error, has_ids))?;
        Ok(ResponseStream::new(events, encoder))
    }

    async fn segment_text(&self, request: Incoming<v1::SegmentRequest>) -> Result<v1::SegmentResponse> {
        let permit = self.gate.enter()?;
        let priority = request.message.priority;
        let engine = self.engines.find_able("model", request.message.model.as_deref(), segments_text)?;
        must_pool("model", engine.card())?;
        let convert = |message: v1::SegmentRequest, engine: &Lease| {
            let (job, seed) = convert::segment_job(&message, engine.card())?;
            let vocabulary = &engine.card().vocabulary;
            let text = vocabulary.decode(&job.symbols);
            check_segments(job.symbols.len(), text.len(), engine.card())?;
            let normalized_chars = Some(vocabulary.normaliser().changed_chars(&message.text) as u64);
            // The engine counts the rest.
            let usage = Some(v1::Usage { normalized_chars, ..Default::default() });
            Ok((Job::Score(job), v1::SegmentResponse { text, seed, usage, ..Default::default() }))
        };
        let vocabulary = Arc::clone(&engine.card().vocabulary);
        let has_ids = request.message.text.is_empty() && !request.message.ids.is_empty();
        let submitted = self.submit(request, priority, engine, permit, false, convert).await;
        let (events, response) = submitted.map_err(|error| of_ids(error, has_ids))?;
        collect_segments(events, response, &vocabulary).await
    }
}

/// A request of a call, with the memory that it uses until it is converted.
pub(crate) struct Incoming<M> {
    pub(crate) message: M,
    pub(crate) call: Call,
    pub(crate) memory: Option<RequestMemory>,
}

impl<M> Incoming<M> {
    /// Returns the request of a gRPC call.
    pub(crate) fn of(mut request: Request<M>) -> Self {
        let call = Call::of(&request);
        let memory = RequestMemory::take(&mut request);
        Self { message: request.into_inner(), call, memory }
    }
}

/// Compiles a constraint, unless it is kept. Meanwhile, the memory that this may take counts for the tenant.
pub(super) fn compile(
    engine: &Lease,
    memory: &Reservation,
    constraint: &Constraint,
) -> Result<Arc<CompiledConstraint>> {
    engine.compile(memory.tenant(), constraint, |bytes| Ok(Box::new(memory.for_work(bytes)?)))
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
            Event::Started { .. } | Event::Coding(_) | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(more) => characters.extend(more),
            Event::Finished { usage, timing, .. } => {
                let normalized_chars = response.usage.and_then(|known| known.normalized_chars);
                return Ok(v1::SegmentResponse {
                    segments: segments(&characters, vocabulary),
                    usage: Some(v1::Usage { normalized_chars, ..convert::usage(usage) }),
                    timing: Some(convert::timing(timing)),
                    levels: convert::levels(&usage, &timing),
                    boundary_levels: boundary_levels(&characters),
                    ..response
                });
            }
        }
    }
}

#[tonic::async_trait]
impl generation_server::Generation for JobService {
    type GenerateStream = GrpcStream<v1::GenerateResponse>;
    type ScoreStream = GrpcStream<v1::ScoreResponse>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Reply<Self::GenerateStream> {
        let call = Call::of(&request);
        let response = self.start_generate(Incoming::of(request)).await;
        reply(&call, response, self.first_messages::<GenerateEncoder>()).await
    }

    async fn score(&self, request: Request<v1::ScoreRequest>) -> Reply<Self::ScoreStream> {
        let call = Call::of(&request);
        let response = self.start_score(Incoming::of(request)).await;
        reply(&call, response, self.first_messages::<ScoreEncoder>()).await
    }

    async fn segment(&self, request: Request<v1::SegmentRequest>) -> Reply<v1::SegmentResponse> {
        let call = Call::of(&request);
        self.segment_text(Incoming::of(request)).await.map(Response::new).map_err(reject(&call))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Reply<v1::CheckResponse> {
        let call = Call::of(&request);
        self.check_text(Incoming::of(request)).await.map(Response::new).map_err(reject(&call))
    }
}

/// Encodes the events of one generation.
pub(crate) struct GenerateEncoder {
    request_id: String,
    model: String,
    format: ResponseFormat,
    pieces: Pieces,
    started: Option<v1::Started>,
    finished: Option<v1::Finished>,
    /// Unicode characters of the generated text that was encoded, here or by the stream that this one resumes.
    text_chars: u64,
    closed: bool,
}

impl GenerateEncoder {
    pub(super) fn new(format: ResponseFormat, card: &Card, request_id: &str) -> Self {
        Self {
            request_id: request_id.to_owned(),
            model: card.name.clone(),
            pieces: Pieces::new(&format, Arc::clone(&card.vocabulary)),
            text_chars: format.resumed_text_chars as u64,
            format,
            started: None,
            finished: None,
            closed: false,
        }
    }

    /// Returns the characters of the prompt that normalising changed.
    pub(crate) fn normalized_chars(&self) -> u64 {
        self.format.normalized_chars as u64
    }

    /// Returns the prompt as it was sent, if the response begins with it.
    pub(crate) fn echoed(&self) -> Option<&Arc<PlacedText>> {
        self.format.echoed.as_ref()
    }

    fn started(&mut self, cached_chars: usize) -> v1::Started {
        v1::Started {
            request_id: std::mem::take(&mut self.request_id),
            model: std::mem::take(&mut self.model),
            prompt_chars: self.format.prompt_chars as u64,
            cached_chars: cached_chars as u64,
            prompt_text_chars: Some(self.format.prompt_text_chars as u64),
            normalized_chars: Some(self.format.normalized_chars as u64),
            seed: Some(self.format.seed),
            resumed_chars: self.format.resumed_chars as u64,
        }
    }

    fn matched_stop(&self, reason: &FinishReason) -> Option<String> {
        match reason {
            FinishReason::Stop(index) => self.format.stop.get(*index).cloned(),
            _ => None,
        }
    }
}

impl MessageEncoder for GenerateEncoder {
    type Message = v1::GenerateResponse;

    const LEADING: usize = 1;

    fn push(&mut self, event: Event) {
        match event {
            Event::Started { cached_chars } => self.started = Some(self.started(cached_chars)),
            Event::Coding(_) | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(characters) => self.pieces.push(characters),
            Event::Finished { reason, usage, timing } => {
                tracing::debug!(
                    ?reason,
                    generated_chars = usage.generated_chars,
                    total_ns = timing.total_ns,
                    "finished"
                );
                if matches!(reason, FinishReason::Stop(_)) {
                    self.pieces.stop();
                }
                self.finished = Some(v1::Finished {
                    reason: convert::reason(&reason).into(),
                    matched_stop: self.matched_stop(&reason),
                    seed: self.format.seed,
                    usage: Some(v1::Usage {
                        prompt_text_chars: Some(self.format.prompt_text_chars as u64),
                        normalized_chars: Some(self.format.normalized_chars as u64),
                        ..convert::usage(usage)
                    }),
                    timing: Some(convert::timing(timing)),
                    levels: convert::levels(&usage, &timing),
                });
            }
        }
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn next(&mut self) -> Option<v1::GenerateResponse> {
        let payload = if let Some(started) = self.started.take() {
            Payload::Started(started)
        } else if let Some(piece) = if self.closed { self.pieces.rest() } else { self.pieces.next() } {
            if !piece.prompt {
                self.text_chars += piece.text.chars().count() as u64;
            }
            Payload::Piece(piece)
        } else {
            let mut finished = self.finished.take()?;
            if let Some(usage) = &mut finished.usage {
                usage.generated_text_chars = Some(self.text_chars);
            }
            Payload::Finished(finished)
        };
        Some(v1::GenerateResponse { event: Some(payload) })
    }

    fn is_full(&self) -> bool {
        self.pieces.is_full()
    }
}

/// The limits of editing sessions, and the sessions in progress.
#[derive(Clone)]
pub(crate) struct EditingLimits {
    pub(super) config: EditingConfig,
    pub(super) sessions: Arc<CallTable>,
}

impl EditingLimits {
    pub(crate) fn new(config: EditingConfig) -> Self {
        Self { config, sessions: CallTable::new("editing sessions", config.sessions) }
    }
}
