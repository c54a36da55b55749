//! The service `Generation`: converts a request to a job, submits it to the model's engine, and answers with a stream over the
//! engine's events. `summarization` implements the service `Summarization` for the same type.

use crate::{
    call::{Call, Reply},
    grpc::{
        convert::{self, CharacterDetails, PieceSplit, ResponseFormat},
        editing::EditingLimits,
        score::{ScoreEncoder, boundary_levels, segments},
    },
    middleware::{
        limits::{BodyMemory, RequestMemory, Reservation},
        observe::caught,
    },
    registry::{Engines, Gate, Lease, RequestPermit, continues_text, segments_text},
    status::status,
    tokenization::TokenizationWorkers,
    traces::CallSpan,
};
use prost::Message;
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
    time::{sleep_until, timeout},
};
use tokio_stream::{Iter, Stream, StreamExt, adapters::Chain};
use tonic::{Request, Response, Status};
use tracing::{Instrument, Span};
use weir_engine::{
    DocumentEvent, Event, Events, Job, Terms,
    options::{EmittedSymbol, FinishReason, must_pool},
};
use weir_kernels::error::{Code, Error, Result};
use weir_models::{
    contract::{Card, SymbolBoundary},
    text::{StreamDetokenizer, TextCounter, Vocabulary, text_chars},
};
use weir_proto::v1::{self, generate_response::Event as Payload, generation_server};

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
            Ok((JobEvents::new(events, engine, permit, call.span, Some(reserved)), response))
        });
        submitted.await.flatten()
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
        let call = request.call.clone();
        let engine = self.engines.find_able("model", request.message.model.as_deref(), continues_text)?;
        let id = Arc::clone(&call.id);
        let convert = move |message, engine: &Lease| {
            let (job, format) = convert::generate_job(message, engine.card())?;
            let mut encoder = GenerateEncoder::new(format, engine.card(), &id);
            encoder.pieces.skip(&job.resumed);
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
            let changed = card.vocabulary.normaliser().changed_chars(&message.text);
            let encoder = ScoreEncoder::new(seed, job.top, Arc::clone(&card.vocabulary), writes_segments, changed);
            Ok((Job::Score(job), encoder))
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
            Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(characters) => self.pieces.push(characters),
            Event::Finished { reason, usage, timing } => {
                tracing::debug!(
                    ?reason,
                    generated_chars = usage.generated_chars,
                    total_ns = timing.total_ns,
                    "finished"
                );
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

// The engine emits characters in runs of any length. A request may fix where pieces end. The text of a piece never ends within a code
// point.

/// Maximum characters of a piece, unless the request asks for more. With alternatives, fewer: each counts like a character.
const MAX_PIECE: usize = 256;

/// Maximum characters of a piece that waits for its segment to end: a segment may never end. With alternatives, fewer.
const MAX_SEGMENT: usize = 4096;

/// Characters that wait for their piece to be complete.
pub(super) struct Pieces {
    waiting: VecDeque<EmittedSymbol>,
    /// The first `searched` characters end no segment.
    searched: usize,
    /// Characters of the prompt that are still to be sent.
    echo: usize,
    split: PieceSplit,
    details: CharacterDetails,
    detokenizer: StreamDetokenizer,
    vocabulary: Arc<Vocabulary>,
}

impl Pieces {
    pub(super) fn new(format: &ResponseFormat, vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            waiting: VecDeque::new(),
            searched: 0,
            echo: if format.echo { format.prompt_chars } else { 0 },
            split: format.split,
            details: format.details,
            detokenizer: StreamDetokenizer::new(Arc::clone(&vocabulary)),
            vocabulary,
        }
    }

    /// Continues after generated symbols that were sent before.
    pub(super) fn skip(&mut self, symbols: &[u32]) {
        for &symbol in symbols {
            self.detokenizer.push(symbol);
        }
    }

    /// Appends the next characters.
    pub(super) fn push(&mut self, characters: Vec<EmittedSymbol>) {
        self.waiting.extend(characters);
    }

    /// Returns true if a piece should be sent before more characters are taken.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.max_chars()
    }

    /// Returns the next piece, if one is complete.
    pub(super) fn next(&mut self) -> Option<v1::Piece> {
        self.complete_len().map(|count| self.take(count))
    }

    /// Returns the next piece after the last character has arrived.
    pub(super) fn rest(&mut self) -> Option<v1::Piece> {
        if let Some(piece) = self.next() {
            return Some(piece);
        }
        let mut piece = self.take(self.waiting.len().min(self.max_chars()));
        if self.waiting.is_empty() && piece.ids.is_empty() {
            // An incomplete code point at the end. Ids have no such text, so it is a piece of its own next to them.
            piece.text.push_str(self.detokenizer.finish());
        }
        (!piece.text.is_empty() || !piece.characters.is_empty() || !piece.ids.is_empty()).then_some(piece)
    }

    /// Returns the maximum number of characters that wait for their piece.
    fn max_chars(&self) -> usize {
        let each = 1 + self.details.alternatives;
        match self.split {
            PieceSplit::Characters(min) => min.max(MAX_PIECE / each),
            PieceSplit::Segment => MAX_SEGMENT / each,
        }
    }

    /// Returns the number of characters of the next piece, if it is complete.
    fn complete_len(&mut self) -> Option<usize> {
        let waiting = self.waiting.len();
        let max = self.max_chars();
        let count = match self.split {
            PieceSplit::Characters(min) => (waiting >= min).then(|| waiting.min(max)),
            PieceSplit::Segment => {
                let cut = (self.searched..waiting.min(max)).find(|&last| {
                    let own = &self.waiting[last];
                    self.waiting.get(last + 1).map_or_else(|| ends_segment(own), |next| is_cut(own, next))
                });
                // the next symbol may begin a segment, so the last one is searched again
                self.searched = cut.unwrap_or(waiting.min(max).saturating_sub(1));
                cut.map(|last| last + 1).or((waiting >= max).then_some(max))
            }
        };
        // A piece never holds both prompt and generated text.
        match self.echo {
            0 => count,
            echo if waiting >= echo => Some(count.map_or(echo, |count| count.min(echo))),
            _ => count,
        }
    }

    /// Removes the first `count` characters as a piece.
    fn take(&mut self, count: usize) -> v1::Piece {
        let mut piece = v1::Piece { prompt: self.echo > 0, ..Default::default() };
        self.echo = self.echo.saturating_sub(count);
        self.searched = self.searched.saturating_sub(count);
        for symbol in self.waiting.drain(..count) {
            piece.text.push_str(self.detokenizer.push_symbol(symbol.symbol, symbol.cut));
            if self.details.ids {
                piece.ids.push(symbol.symbol);
            }
            if self.details.listed {
                let details = if piece.prompt { character } else { generated_character };
                piece.characters.push(details(symbol, self.details.boundaries, &self.vocabulary));
            }
        }
        piece
    }
}

/// Returns true if the text is cut between two neighbouring symbols.
pub(super) fn is_cut(before: &EmittedSymbol, after: &EmittedSymbol) -> bool {
    ends_segment(before) || after.decision.is_some_and(SymbolBoundary::begins_segment)
}

/// Returns true if the text is cut after a symbol, whatever follows it.
pub(super) fn ends_segment(symbol: &EmittedSymbol) -> bool {
    symbol.decision.is_some_and(SymbolBoundary::ends_segment)
}

/// Returns the message for a symbol, with its boundary decision if `boundaries` is true.
pub(super) fn character(symbol: EmittedSymbol, boundaries: bool, vocabulary: &Vocabulary) -> v1::Character {
    let decision = symbol.decision.filter(|_| boundaries);
    let top = symbol.top.into_iter();
    v1::Character {
        text: symbol_text(symbol.symbol, vocabulary),
        logprob: symbol.logprob,
        boundary: decision.map(|decision| decision.boundary),
        boundary_probability: decision.and_then(|decision| decision.probability),
        nxt_logprob: decision.and_then(|decision| decision.end_logprob),
        chunk_depth: decision.map_or(0, |decision| decision.depth.into()),
        top: top.map(|(id, logprob)| alternative(id, logprob, vocabulary)).collect(),
        id: symbol.symbol,
        raw_bytes: vocabulary.raw_bytes(symbol.symbol),
        ends_text: false,
    }
}

/// Returns the message for a generated symbol. An end symbol has no text in a generated text.
fn generated_character(symbol: EmittedSymbol, boundaries: bool, vocabulary: &Vocabulary) -> v1::Character {
    let mut sent = character(symbol, boundaries, vocabulary);
    sent.ends_text = vocabulary.ends_text(sent.id);
    if sent.ends_text {
        sent.text.clear();
    }
    sent.top.iter_mut().filter(|other| vocabulary.ends_text(other.id)).for_each(|other| other.text.clear());
    sent
}

fn alternative(id: u32, logprob: f32, vocabulary: &Vocabulary) -> v1::Alternative {
    v1::Alternative { text: symbol_text(id, vocabulary), logprob, id, raw_bytes: vocabulary.raw_bytes(id) }
}

/// Returns the text of a single symbol, or an escape for a byte that is no text by itself.
pub(super) fn symbol_text(id: u32, vocabulary: &Vocabulary) -> String {
    match vocabulary.byte_of(id) {
        Some(byte) if !byte.is_ascii() => format!("\\x{byte:02x}"),
        _ => vocabulary.decode(&[id]),
    }
}

/// The symbols of a prompt, and the sizes that the response reports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) symbols: Vec<u32>,
    /// Unicode characters of its text.
    pub(super) text_chars: usize,
    /// Unicode characters of the text, as sent, that normalising replaced or dropped.
    pub(super) normalized_chars: usize,
}

impl Prompt {
    /// Encodes a text, or takes ids as they are. Fails if a request has both, and if one is too long or has an unknown symbol.
    pub(super) fn new(text: &str, ids: Vec<u32>, card: &Card) -> Result<Self> {
        let vocabulary = &card.vocabulary;
        if ids.is_empty() {
            let symbols = card.encode("prompt", text)?;
            return Ok(Self {
                text_chars: text_chars(text, &symbols, vocabulary),
                normalized_chars: vocabulary.normaliser().changed_chars(text),
                symbols,
            });
        }
        if !text.is_empty() {
            return Err(Error::Exclusive { first: "prompt", second: "prompt_ids" });
        }
        // The engine checks these too; here they bound the work of counting.
        weir_engine::options::check_length("prompt_ids", ids.len(), card)?;
        vocabulary.check_text("prompt_ids", &ids)?;
        let text_chars = TextCounter::chars_of(&ids, Arc::clone(vocabulary));
        Ok(Self { symbols: ids, text_chars, normalized_chars: 0 })
    }
}

// A response reads its job's events itself, without a task between engine and connection. While a client does not read, its response
// is not polled and takes no events, so the row pauses. A client that disconnects drops both, which frees the row.

/// The events of one job, ended early if the server shuts down.
pub(super) struct JobEvents {
    events: Events,
    /// The engine that runs the job. The lease keeps it loaded until the response is over.
    engine: Lease,
    /// The memory of the job's symbols, until the response is over.
    _reserved: Option<Reservation>,
    /// The span of the call, if it is traced.
    span: Option<CallSpan>,
    /// Completes with the error that ends the job if the server shuts down.
    ended: Pin<Box<dyn Future<Output = Error> + Send>>,
}

impl JobEvents {
    /// The events of a job that holds this permit, and the memory of its symbols.
    pub(super) fn new(
        events: Events,
        engine: Lease,
        permit: RequestPermit,
        span: Option<CallSpan>,
        reserved: Option<Reservation>,
    ) -> Self {
        Self { events, engine, _reserved: reserved, span, ended: Box::pin(async move { permit.ended().await }) }
    }

    /// Polls for the next event, or the error that ends the job. Must not be called after an error or the last event.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        // Polled first, so that the shutdown also ends a job that always has an event ready.
        if let Poll::Ready(error) = self.ended.as_mut().poll(cx) {
            return Poll::Ready(Err(error));
        }
        let broken = || Err(Error::Internal("the engine dropped a job without a final event".into()));
        let event = std::task::ready!(self.events.poll_recv(cx)).unwrap_or_else(broken);
        let done = match &event {
            Ok(Event::Finished { usage, timing, .. }) => Some((usage, timing)),
            Ok(Event::Document(DocumentEvent::Summarized(summary))) => Some((&summary.usage, &summary.timing)),
            _ => None,
        };
        if let (Some((usage, timing)), Some(span)) = (done, &self.span) {
            span.record_job(&self.engine.card().name, usage, timing);
        }
        Poll::Ready(event)
    }

    /// Waits for the next event, as [`poll`](Self::poll) does.
    pub(super) async fn next(&mut self) -> Result<Event> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }
}

/// Turns the events of one kind of call into response messages.
pub(crate) trait MessageEncoder: Unpin + Send {
    /// The message type of the response.
    type Message: Unpin + Send;

    /// Number of messages before the first text.
    const LEADING: usize;

    /// Takes the next event.
    fn push(&mut self, event: Event);

    /// Signals the encoder that no event follows, because the job finished or failed. It then releases the text that it held back.
    fn close(&mut self);

    /// Returns the next message, if one is complete.
    fn next(&mut self) -> Option<Self::Message>;

    /// Returns true if a message should be sent before the encoder takes more events.
    fn is_full(&self) -> bool;
}

/// The response to one call.
pub(crate) struct ResponseStream<E: MessageEncoder> {
    /// `None` after the last event.
    events: Option<JobEvents>,
    encoder: E,
    /// The error that ended the job, until it is sent.
    failure: Option<Status>,
    call: Call,
    span: Span,
}

impl<E: MessageEncoder> ResponseStream<E> {
    /// The response for a job's events.
    pub(super) fn new(events: JobEvents, encoder: E, call: Call) -> Self {
        Self { events: Some(events), encoder, failure: None, call, span: Span::current() }
    }

    pub(crate) fn encoder(&self) -> &E {
        &self.encoder
    }

    /// Takes events while they are ready and the encoder is not full, then returns the next message.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<E::Message, Status>>> {
        while !self.encoder.is_full() {
            let Some(events) = &mut self.events else { break };
            match events.poll(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(event)) => {
                    let last = is_last(&event);
                    let encoder = &mut self.encoder;
                    self.span.in_scope(|| encoder.push(event));
                    if last {
                        self.end();
                    }
                }
                Poll::Ready(Err(error)) => {
                    log_failure(&self.span, &error);
                    self.failure = Some(status(&error, &self.call.id));
                    self.end();
                }
            }
        }
        match self.encoder.next() {
            Some(message) => Poll::Ready(Some(Ok(message))),
            None if self.events.is_some() => Poll::Pending,
            None => Poll::Ready(self.failure.take().map(Err)),
        }
    }

    fn end(&mut self) {
        self.encoder.close();
        self.events = None;
    }
}

impl<E: MessageEncoder> Stream for ResponseStream<E> {
    type Item = Result<E::Message, Status>;

    /// Catches panics, which the middleware does not see once the response has begun.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        caught(|| self.advance(cx)).unwrap_or_else(|error| {
            log_failure(&self.span, &error);
            self.events = None;
            Poll::Ready(Some(Err(status(&error, &self.call.id))))
        })
    }
}

/// A stream whose first messages have been read.
pub(crate) type Buffered<S> = Chain<Iter<std::vec::IntoIter<<S as Stream>::Item>>, S>;

/// Waits for the first `count` messages of a response. A call that fails before them then fails, instead of a response that has
/// begun.
pub(super) async fn buffered<T, S: Stream<Item = Result<T, Status>> + Unpin>(
    mut stream: S,
    count: usize,
) -> Result<Buffered<S>, Status> {
    let mut first = Vec::new();
    while first.len() < count
        && let Some(message) = stream.next().await.transpose()?
    {
        first.push(Ok(message));
    }
    Ok(tokio_stream::iter(first).chain(stream))
}

impl<E: MessageEncoder> Drop for ResponseStream<E> {
    fn drop(&mut self) {
        if self.events.is_some() {
            tracing::debug!(parent: &self.span, "the response was dropped before its end");
        }
    }
}

/// Returns true if no event follows this one.
pub(super) fn is_last(event: &Event) -> bool {
    matches!(event, Event::Finished { .. } | Event::Document(DocumentEvent::Summarized(_)))
}

/// Logs a failure: an internal one as an error with its text, any other with only its code, like every end of a request at level
/// `debug`.
pub(super) fn log_failure(span: &Span, error: &Error) {
    match error.code() {
        Code::Internal => tracing::error!(parent: span, %error, "failed"),
        code => tracing::debug!(parent: span, ?code, "ended early"),
    }
}

/// Returns a function that logs the error that rejects a call, and converts it to a status.
pub(crate) fn reject(call: &Call) -> impl FnOnce(Error) -> Status {
    |error| {
        log_failure(&Span::current(), &error);
        status(&error, &call.id)
    }
}

/// Marks bytes that are not UTF-8. A text with it does not determine its symbols, if symbols are bytes.
const REPLACEMENT: char = '\u{fffd}';

/// The symbols of the text that an earlier stream has sent; empty without one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ResumedRequest {
    pub(super) symbols: Vec<u32>,
    /// Unicode characters of its text that were sent.
    pub(super) text_chars: usize,
}

impl ResumedRequest {
    /// Encodes a text exactly, or takes ids as they are. Fails if a request has both or no seed, if the model's text does not
    /// determine its symbols, and if a symbol is unknown or the text longer than the model's longest sequence. A text never has the
    /// end byte, because no stream sends it as text; among ids it may only be the last one.
    pub(super) fn new(text: &str, ids: Vec<u32>, seed: Option<u64>, card: &Card) -> Result<Self> {
        if text.is_empty() && ids.is_empty() {
            return Ok(Self::default());
        }
        if !(text.is_empty() || ids.is_empty()) {
            return Err(Error::Exclusive { first: "resume_text", second: "resume_ids" });
        }
        if seed.is_none() {
            return Err(Error::bad_option("sampling.seed", "nothing", "the seed of the stream that is resumed"));
        }
        if ids.is_empty() { Self::from_text(text, card) } else { Self::from_ids(ids, card) }
    }

    fn from_text(text: &str, card: &Card) -> Result<Self> {
        let field = "resume_text";
        let vocabulary = &card.vocabulary;
        if !vocabulary.is_spelled_out() {
            return Err(Error::WrongKind {
                call: field,
                model: card.name.clone(),
                wanted: "has a text for each of its symbols",
                found: format!("{}, which needs resume_ids", card.shape),
            });
        }
        let text_chars = text.chars().count();
        check_length(field, if vocabulary.is_bytes() { text.len() } else { text_chars }, card)?;
        if let Some(offset) = text.chars().position(|character| character == REPLACEMENT)
            && vocabulary.is_bytes()
        {
            let found = format!("U+FFFD at character {offset}, which stands for bytes that are not UTF-8");
            return Err(Error::bad_option(field, found, "a text without U+FFFD, or resume_ids"));
        }
        let symbols = vocabulary.encode_exactly(field, text)?;
        if let Some(end) = vocabulary.end_byte()
            && let Some(offset) = symbols.iter().position(|symbol| *symbol == end)
        {
            let bound = format!("a text without the end byte {end}");
            return Err(Error::bad_option(field, format!("one at byte {offset}"), bound));
        }
        Ok(Self { symbols, text_chars })
    }

    fn from_ids(ids: Vec<u32>, card: &Card) -> Result<Self> {
        let field = "resume_ids";
        check_length(field, ids.len(), card)?;
        card.vocabulary.check_ids(field, &ids)?;
        let before_end = ids.split_last().filter(|(last, _)| card.vocabulary.ends_text(**last)).map(|(_, text)| text);
        let text = before_end.unwrap_or(&ids);
        if let Some(end) = card.vocabulary.end_byte()
            && let Some(index) = text.iter().position(|id| *id == end)
        {
            let bound = format!("the end byte {end} only as the last id");
            return Err(Error::bad_option(field, format!("one at index {index}"), bound));
        }
        let mut counter = TextCounter::new(Arc::clone(&card.vocabulary));
        text.iter().for_each(|&id| counter.push(id, true));
        if before_end.is_some() {
            counter.finish();
        }
        Ok(Self { symbols: ids, text_chars: counter.chars })
    }
}

fn check_length(field: &'static str, length: usize, card: &Card) -> Result<()> {
    let limit = card.max_symbols;
    if length <= limit {
        return Ok(());
    }
    let why = card.max_symbols_why;
    Err(Error::TooLong { field, length, limit, unit: "characters", why })
}

/// Messages that wait for the client, at most.
const MESSAGES: usize = 4;

/// Where a call sends its messages.
pub(super) struct Output<T> {
    sender: Sender<T>,
    /// How long a client may read nothing.
    stall: Duration,
}

impl<T> Output<T> {
    /// Sends a message. Waits while the client is behind; fails with [`Error::Stalled`] if it reads nothing for too long.
    pub(super) async fn send(&self, message: T) -> Result<()> {
        match timeout(self.stall, self.sender.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Error::Cancelled),
            Err(_) => Err(Error::Stalled { limit: self.stall }),
        }
    }
}

/// The response to a call that runs in its own task. Dropping it ends the call, which frees the rows of its jobs within one step.
pub(crate) struct TaskResponse<T> {
    messages: Receiver<T>,
    /// Ends with the error that ended the call, which follows the messages. `None` once it is known.
    task: Option<JoinHandle<Result<(), Status>>>,
    call: Call,
    /// Held until the response is complete or dropped.
    _permit: RequestPermit,
}

impl<T: Send + 'static> TaskResponse<T> {
    /// Starts a task that runs the call until it ends, its deadline passes, or the server shuts down. `permits` are the task's and the
    /// response's. `stall` is how long the client may read nothing.
    pub(super) fn spawn<R: Future<Output = Result<()>> + Send>(
        permits: [RequestPermit; 2],
        call: Call,
        stall: Duration,
        run: impl FnOnce(Output<T>) -> R + Send + 'static,
    ) -> Self {
        let (sender, messages) = mpsc::channel(MESSAGES);
        let output = Output { sender, stall };
        let [permit, response_permit] = permits;
        let id = call.id.clone();
        let deadline = call.deadline;
        let span = Span::current();
        let task = async move {
            let passed = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                biased;
                result = run(output) => result,
                error = permit.ended() => Err(error),
                () = passed => Err(Error::Deadline { stage: "while decoding" }),
            };
            result.map_err(|error| {
                log_failure(&Span::current(), &error);
                status(&error, &id)
            })
        };
        let task = Some(tokio::spawn(task.instrument(span)));
        Self { messages, task, call, _permit: response_permit }
    }
}

impl<T> Unpin for TaskResponse<T> {}

impl<T> Stream for TaskResponse<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = ready!(self.messages.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        let Some(task) = &mut self.task else { return Poll::Ready(None) };
        let ended = ready!(Pin::new(task).poll(cx));
        self.task = None;
        let panicked = |_| Err(status(&Error::Internal("a panic in a call".into()), &self.call.id));
        Poll::Ready(ended.unwrap_or_else(panicked).err().map(Err))
    }
}

impl<T> Drop for TaskResponse<T> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_models::{
        contract::SymbolBoundary,
        text::{TextMarks, TextNormaliser, Vocabulary},
    };

    fn pieces(split: PieceSplit, prompt_chars: usize, listed: bool) -> Pieces {
        let details = CharacterDetails { listed, boundaries: listed, alternatives: 0, ids: false };
        let format = ResponseFormat {
            prompt_chars,
            prompt_text_chars: prompt_chars,
            normalized_chars: 0,
            echo: prompt_chars > 0,
            split,
            details,
            stop: Vec::new(),
            seed: 0,
            resumed_chars: 0,
            resumed_text_chars: 0,
        };
        Pieces::new(&format, Arc::new(Vocabulary::byte_level(TextNormaliser::None)))
    }

    fn bytes(text: &str) -> Vec<EmittedSymbol> {
        let decision =
            |byte| Some(SymbolBoundary { boundary: byte == b' ', depth: 0, probability: None, end_logprob: None });
        let symbol = |byte: u8| EmittedSymbol {
            symbol: byte.into(),
            logprob: None,
            decision: decision(byte),
            top: Vec::new(),
            cut: None,
        };
        text.bytes().map(symbol).collect()
    }

    /// Returns the texts of all pieces when the text arrives in runs of `step` bytes and pieces are sent at once.
    fn sent(mut pieces: Pieces, text: &str, step: usize) -> Vec<String> {
        let mut all = Vec::new();
        for run in bytes(text).chunks(step) {
            pieces.push(run.to_vec());
            all.extend(std::iter::from_fn(|| pieces.next()));
        }
        all.extend(std::iter::from_fn(|| pieces.rest()));
        all.into_iter().map(|piece| piece.text).collect()
    }

    #[test]
    fn by_default_ready_characters_are_sent() {
        assert_eq!(sent(pieces(PieceSplit::Characters(1), 0, false), "abcde", 2), ["ab", "cd", "e"]);
        assert_eq!(sent(pieces(PieceSplit::Characters(1), 0, false), &"a".repeat(300), 300)[0].len(), MAX_PIECE);
    }

    #[test]
    fn a_piece_waits_for_its_characters() {
        assert_eq!(sent(pieces(PieceSplit::Characters(3), 0, false), "abcdefg", 1), ["abc", "def", "g"]);
    }

    #[test]
    fn segments_are_sent_one_by_one() {
        assert_eq!(sent(pieces(PieceSplit::Segment, 0, false), "ab c  de", 100), ["ab ", "c ", " ", "de"]);
        assert_eq!(sent(pieces(PieceSplit::Segment, 0, false), "ab c  de", 1), ["ab ", "c ", " ", "de"]);
    }

    #[test]
    fn a_segment_without_end_is_sent_in_parts() {
        let text = ["a".repeat(2 * MAX_SEGMENT + 5), " b".into()].concat();
        for step in [1, 1000] {
            let mut pieces = pieces(PieceSplit::Segment, 0, false);
            let mut max_waiting = 0;
            let mut lengths = Vec::new();
            for run in bytes(&text).chunks(step) {
                assert!(!pieces.is_full());
                pieces.push(run.to_vec());
                lengths.extend(std::iter::from_fn(|| pieces.next()).map(|piece| piece.text.len()));
                max_waiting = max_waiting.max(pieces.waiting.len());
            }
            lengths.extend(std::iter::from_fn(|| pieces.rest()).map(|piece| piece.text.len()));
            assert_eq!(lengths, [MAX_SEGMENT, MAX_SEGMENT, 6, 1]);
            assert!(max_waiting < MAX_SEGMENT, "{max_waiting} characters waited");
        }
    }

    #[test]
    fn prompt_and_generated_text_are_never_in_one_piece() {
        assert_eq!(sent(pieces(PieceSplit::Characters(3), 4, false), "abcdefg", 100), ["abcd", "efg"]);
        assert_eq!(sent(pieces(PieceSplit::Characters(3), 4, false), "abcdefg", 1), ["abc", "d", "efg"]);
        assert_eq!(sent(pieces(PieceSplit::Segment, 4, false), "a bcde f", 100), ["a ", "bc", "de ", "f"]);
        let mut pieces = pieces(PieceSplit::Characters(1), 2, true);
        pieces.push(bytes("abc"));
        let kinds: Vec<_> = std::iter::from_fn(|| pieces.next()).map(|piece| (piece.prompt, piece.text)).collect();
        assert_eq!(kinds, [(true, "ab".into()), (false, "c".into())]);
    }

    #[test]
    fn an_incomplete_code_point_is_sent_at_the_end() {
        let mut pieces = pieces(PieceSplit::Characters(1), 0, true);
        pieces.push(bytes("é")[..1].to_vec());
        let piece = pieces.next().unwrap();
        assert_eq!((piece.text.as_str(), piece.characters[0].text.as_str()), ("", "\\xc3"));
        assert_eq!(piece.characters[0].raw_bytes, Some(vec![0xc3]));
        assert_eq!(pieces.rest().unwrap().text, "\u{fffd}");
        assert_eq!(pieces.rest(), None);
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_text(
            text in "[a é€ ]{0,40}", step in 1_usize..9, min in 1_usize..6, prompt in 0_usize..9, segments: bool,
        ) {
            let split = if segments { PieceSplit::Segment } else { PieceSplit::Characters(min) };
            prop_assert_eq!(sent(pieces(split, prompt, false), &text, step).concat(), text);
        }
    }

    #[test]
    fn an_end_symbol_has_text_only_in_prompts() {
        let vocabulary = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        let symbol = || EmittedSymbol { top: vec![(3, -1.0), (97, -2.0)], ..EmittedSymbol::plain(3) };
        let texts = |sent: v1::Character| {
            let top: Vec<String> = sent.top.into_iter().map(|other| other.text).collect();
            (sent.text, top, sent.ends_text)
        };
        let given = texts(character(symbol(), false, &vocabulary));
        assert_eq!(given, ("\u{3}".into(), vec!["\u{3}".into(), "a".into()], false));
        let generated = texts(generated_character(symbol(), false, &vocabulary));
        assert_eq!(generated, (String::new(), vec![String::new(), "a".into()], true));
    }

    fn accented_letters() -> Card {
        Card::for_tests(Vocabulary::from_symbols(&[" ", "a", "b", "é"], TextNormaliser::Text8).unwrap())
    }

    fn byte_level() -> Card {
        Card::for_tests(Vocabulary::byte_level(TextNormaliser::None))
    }

    #[test]
    fn texts_are_not_normalised_and_ids_are_taken_as_they_are() {
        let text = |text, card: &Card| ResumedRequest::new(text, Vec::new(), Some(1), card).unwrap();
        assert_eq!(text(" é  a", &accented_letters()), ResumedRequest { symbols: vec![0, 3, 0, 0, 1], text_chars: 5 });
        assert_eq!(text("é", &byte_level()), ResumedRequest { symbols: vec![0xc3, 0xa9], text_chars: 1 });
        assert_eq!(ResumedRequest::new("", Vec::new(), None, &byte_level()).unwrap(), ResumedRequest::default());
        // the last code point is not complete, so it was not sent
        let ids = ResumedRequest::new("", vec![0x61, 0xc3], Some(1), &byte_level()).unwrap();
        assert_eq!(ids, ResumedRequest { symbols: vec![0x61, 0xc3], text_chars: 1 });
        // the end byte is no text, and nothing completes the code point before it
        let ended = Card::for_tests(Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap());
        let ids = ResumedRequest::new("", vec![0x61, 0xc3, 3], Some(1), &ended).unwrap();
        assert_eq!(ids, ResumedRequest { symbols: vec![0x61, 0xc3, 3], text_chars: 2 });
    }

    #[test]
    fn wrong_texts_are_refused_by_name() {
        let marks = TextMarks { start: 254, end: 255 };
        let marked = Card::for_tests(Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap());
        let ended = Card::for_tests(Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap());
        let long = "a".repeat(101);
        for (field, text, ids, card) in [
            ("resume_text", "a\u{3}", vec![], &ended),
            ("resume_ids", "", vec![0x61, 3, 0x62, 3], &ended),
            ("resume_ids", "", vec![3, 0x61], &ended),
            ("resume_text", &long, vec![], &byte_level()),
            ("resume_ids", "", vec![1; 101], &accented_letters()),
            ("resume_text", "a\u{fffd}", vec![], &byte_level()),
            ("resume_text", "a", vec![], &marked),
        ] {
            let message = ResumedRequest::new(text, ids, Some(1), card).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{field}: expected ")), "{message}");
        }
    }
}
