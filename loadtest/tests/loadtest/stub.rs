//! Server that answers with placeholder text at scripted times, so that the tester's figures can be checked.

use crate::*;
use std::{collections::VecDeque, future::Future, pin::Pin, sync::PoisonError};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, sleep_until},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{
    Response, Streaming,
    transport::server::{Connected, Server},
};
use weir_measure::format::ns;
use weir_proto::{
    inference::{
        grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer},
        *,
    },
    v1::{
        Calibration, Character, CompleteDocument, CompletionItem, DocumentApplied, DocumentClosed, DocumentCompletions,
        Documents, EditFailure, EditRequest, EditResponse, EncoderLayer, EstimatedGain, Finished, GenerateResponse,
        GetModelRequest, GetReportRequest, GetReportResponse, Limits, ListModelsRequest, ListModelsResponse, Model,
        ModelReport, OpenDocument, Piece, ScoreRequest, ScoreResponse, ScoreSummary, SegmentRequest, SegmentResponse,
        StaleRequest, Started, SummarizeOptions, SummarizeRequest, SummarizeResponse, SummaryFinished, SummaryPiece,
        SummaryStarted, SummaryTiming, SummaryUsage, Timing, Usage, document_closed::Reason, edit_request::Action,
        edit_response, editing_server, generate_response, generation_server, latency_server, models_server,
        score_response, summarization_server, summarize_request::Part, summarize_response,
    },
};

/// Messages that may wait for the connection.
pub(crate) const WAITING: usize = 64;
/// Maximum requests whose send times are kept.
const MAX_KEPT: usize = 100_000;

/// Behaviour of a model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    /// Name.
    pub(crate) name: String,
    /// From a request's turn to its first character.
    pub(crate) first: Duration,
    /// From one character to the next.
    pub(crate) plain: Duration,
    /// From one character to the next if that ends a segment.
    pub(crate) boundary: Duration,
    /// Characters per segment; 0: the model does not pool.
    pub(crate) segment: u64,
    /// Requests that run at once; others wait for their turn.
    pub(crate) rows: usize,
    /// Start and end of a pause in which the server hangs, counted from its start.
    pub(crate) pause: Option<(Duration, Duration)>,
    /// Rejects every n-th request; 0: none.
    pub(crate) refuse: u64,
    /// Bits per character that it reports for scored texts.
    pub(crate) bits_per_char: f64,
    /// Gain that it reports for pooling, if it reports one.
    pub(crate) gain: Option<f64>,
    /// Spread that it reports for its calibration.
    pub(crate) spread: f64,
    /// True if it claims to summarize documents.
    pub(crate) summarizes: bool,
}

impl Script {
    /// Returns a model without delays.
    pub(crate) fn instant(name: &str) -> Self {
        Self { name: name.into(), rows: 1 << 16, bits_per_char: 2.0, spread: 0.02, ..Self::default() }
    }
}

/// Times at which the server sent a request's characters, by its own clock.
#[derive(Debug, Clone)]
pub(crate) struct SentTimes {
    /// Arrival of the request.
    pub(crate) arrived: Instant,
    /// When each character was handed to the connection.
    pub(crate) chars: Vec<Instant>,
}

/// Server.
#[derive(Clone)]
pub(crate) struct Stub {
    pub(crate) models: Arc<Vec<(Script, Arc<StubSlots>)>>,
    pub(crate) start: Instant,
    sent: Arc<Mutex<Vec<SentTimes>>>,
    requests: Arc<Mutex<u64>>,
}

impl Stub {
    /// Builds a server of these models; its time begins now.
    pub(crate) fn new(scripts: Vec<Script>) -> Self {
        let slots = |script: &Script| Arc::new(StubSlots::new(script.rows));
        let models = Arc::new(scripts.into_iter().map(|script| (script.clone(), slots(&script))).collect());
        Self { models, start: Instant::now(), sent: Arc::default(), requests: Arc::default() }
    }

    /// Returns the send times of the requests that ended so far.
    pub(crate) fn sent(&self) -> Vec<SentTimes> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn record_sent(&self, times: SentTimes) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() < MAX_KEPT {
            sent.push(times);
        }
    }

    /// Serves on these connections until `end`. They should have TCP_NODELAY, because delayed packets reach a reader late.
    /// Fails if a connection cannot be accepted.
    pub(crate) async fn serve<I, C>(
        self,
        incoming: I,
        end: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error>
    where
        I: Stream<Item = io::Result<C>>,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let mut server = Server::builder().max_concurrent_streams(1 << 16);
        let routes = server.add_service(generation_server::GenerationServer::new(self.clone()));
        let routes = routes.add_service(GrpcInferenceServiceServer::new(self.clone()));
        let routes = routes.add_service(latency_server::LatencyServer::new(self.clone()));
        let routes = routes.add_service(editing_server::EditingServer::new(self.clone()));
        let routes = routes.add_service(summarization_server::SummarizationServer::new(self.clone()));
        routes.add_service(models_server::ModelsServer::new(self)).serve_with_incoming_shutdown(incoming, end).await
    }

    pub(crate) fn model(&self, name: &str) -> Result<&(Script, Arc<StubSlots>), Status> {
        let named = self.models.iter().find(|(script, _)| name.is_empty() || script.name == name);
        named.ok_or_else(|| Status::not_found(format!("no model {name:?}")))
    }

    pub(crate) fn is_refused(&self, script: &Script) -> bool {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests += 1;
        script.refuse > 0 && requests.is_multiple_of(script.refuse)
    }
}

/// Requests that a model answers at once. Others wait in order of arrival. A slot counts as free from the moment at which its
/// request was due to end, and the next request begins then, however late this program notices. Waits are therefore those of
/// queueing theory, without the delays of this machine.
pub(crate) struct StubSlots {
    permits: Arc<Semaphore>,
    /// Times since which slots that were taken before are free.
    free_since: Mutex<VecDeque<Instant>>,
}

/// Slot of a request, until it is dropped.
pub(crate) struct StubSlot {
    /// When the request's turn came.
    pub(crate) begun: Instant,
    /// When the request is due to end; absent if the client cancelled it.
    pub(crate) end: Option<Instant>,
    slots: Arc<StubSlots>,
    // dropped after `free_since` was written, because the next request reads it
    _permit: OwnedSemaphorePermit,
}

impl StubSlots {
    pub(crate) fn new(count: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(count)), free_since: Mutex::default() }
    }

    /// Waits for a slot for a request that arrived at `arrived`. Returns `None` if the semaphore is closed.
    pub(crate) async fn acquire(self: &Arc<Self>, arrived: Instant) -> Option<StubSlot> {
        let permit = self.permits.clone().acquire_owned().await.ok()?;
        let free_since = self.free_since.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let begun = free_since.map_or(arrived, |free_since| free_since.max(arrived));
        Some(StubSlot { begun, end: None, slots: self.clone(), _permit: permit })
    }
}

impl Drop for StubSlot {
    fn drop(&mut self) {
        let mut free_since = self.slots.free_since.lock().unwrap_or_else(PoisonError::into_inner);
        free_since.push_back(self.end.unwrap_or_else(Instant::now));
    }
}

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

/// Bytes of keys and values per token.
const BYTES_PER_TOKEN: u64 = 64;

struct StubSummarization {
    script: Script,
    options: SummarizeOptions,
    /// Characters of the document, each of which counts as a token.
    tokens: u64,
    upload: Duration,
    out: mpsc::Sender<Result<SummarizeResponse, Status>>,
}

impl StubSummarization {
    /// Answers the request; ends early if the client is gone.
    async fn run(self) -> Option<()> {
        let uploaded = Instant::now();
        self.send(summarize_response::Event::Started(SummaryStarted {
            model: self.script.name.clone(),
            ..Default::default()
        }))
        .await?;
        sleep(self.script.first).await;
        let encoded = Instant::now();
        let count = u64::from(self.options.max_tokens());
        for number in 0..count {
            if number > 0 {
                sleep(self.script.plain).await;
            }
            self.send(summarize_response::Event::Piece(SummaryPiece { text: "x".into() })).await?;
        }
        self.send(summarize_response::Event::Finished(self.finished(uploaded, encoded, count))).await
    }

    fn finished(&self, uploaded: Instant, encoded: Instant, tokens: u64) -> SummaryFinished {
        let first = ns(self.script.first);
        let decode = ns(encoded.elapsed());
        let vectors = self.tokens.checked_div(self.script.segment).unwrap_or(self.tokens);
        let usage = SummaryUsage {
            document_tokens: self.tokens,
            summary_tokens: tokens,
            vectors,
            cross_attention_bytes: vectors * BYTES_PER_TOKEN,
            unpooled_cross_attention_bytes: self.tokens * BYTES_PER_TOKEN,
            ..Default::default()
        };
        let timing = SummaryTiming {
            upload_ns: ns(self.upload),
            encode_rest_ns: first,
            layers: vec![EncoderLayer { length: self.tokens, ns: first - first / 4 }],
            memory_ns: first / 4,
            time_to_first_token_ns: first,
            decode_ns: decode,
            decode_ns_per_token: decode.checked_div(tokens.saturating_sub(1)),
            total_ns: ns(uploaded.elapsed()),
            encode_ns: first,
            kept_share: (self.tokens > 0).then(|| vectors as f64 / self.tokens as f64),
            cross_attention_bytes: usage.cross_attention_bytes,
            unpooled_cross_attention_bytes: usage.unpooled_cross_attention_bytes,
            ..Default::default()
        };
        SummaryFinished { usage: Some(usage), timing: Some(timing), ..Default::default() }
    }

    async fn send(&self, event: summarize_response::Event) -> Option<()> {
        self.out.send(Ok(SummarizeResponse { event: Some(event) })).await.ok()
    }
}

#[tonic::async_trait]
impl summarization_server::Summarization for Stub {
    type SummarizeStream = Pin<Box<dyn Stream<Item = Result<SummarizeResponse, Status>> + Send>>;

    async fn summarize(
        &self,
        request: Request<Streaming<SummarizeRequest>>,
    ) -> Result<Response<Self::SummarizeStream>, Status> {
        let arrived = Instant::now();
        let mut parts = request.into_inner();
        let Some(Part::Options(options)) = parts.message().await?.and_then(|message| message.part) else {
            return Err(Status::invalid_argument("the first message has no options"));
        };
        let (script, _) = self.model(options.model())?.clone();
        let mut tokens = 0;
        while let Some(message) = parts.next().await {
            if let Some(Part::Chunk(chunk)) = message?.part {
                tokens += chunk.text.chars().count() as u64;
            }
        }
        let (out, responses) = mpsc::channel(WAITING);
        tokio::spawn(StubSummarization { script, options, tokens, upload: arrived.elapsed(), out }.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}

/// Session of one document.
struct StubDocument {
    stub: Stub,
    /// The document's model, once it is open.
    model: Option<(Script, Arc<StubSlots>)>,
    revision: u64,
    text_bytes: u64,
    /// True if completions were requested before.
    is_warm: bool,
    running: Option<RunningCompletion>,
    out: mpsc::Sender<Result<EditResponse, Status>>,
}

/// Completions that are due later.
struct RunningCompletion {
    id: u64,
    work: Pin<Box<dyn Future<Output = Option<DocumentCompletions>> + Send>>,
}

impl StubDocument {
    /// Answers the messages; ends early if the client is gone.
    async fn run(mut self, mut requests: Streaming<EditRequest>) -> Option<()> {
        loop {
            let running = async {
                match &mut self.running {
                    Some(running) => running.work.as_mut().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                answer = running => {
                    self.running = None;
                    self.send(edit_response::Event::Completions(answer?)).await?;
                }
                message = requests.message() => match message.ok()??.action? {
                    Action::Open(open) => self.open(open).await?,
                    Action::Splice(splice) => {
                        self.revision = splice.revision;
                        self.text_bytes += splice.splices.iter().map(|splice| splice.text.len() as u64).sum::<u64>();
                        self.applied().await?;
                        if let Some(RunningCompletion { id, .. }) = self.running.take() {
                            self.send(edit_response::Event::Stale(StaleRequest { id })).await?;
                        }
                    }
                    Action::Complete(complete) => self.complete(&complete).await?,
                    Action::Close(_) => {
                        return self.send(edit_response::Event::Closed(DocumentClosed { reason: Reason::Client.into() })).await;
                    }
                    Action::Score(_) => return None,
                },
            }
        }
    }

    async fn open(&mut self, open: OpenDocument) -> Option<()> {
        let model = self.stub.model(open.model()).cloned();
        let refused = |code: &str| {
            let code = code.to_owned();
            edit_response::Event::Failed(EditFailure {
                code,
                message: "refused by the script".into(),
                ..Default::default()
            })
        };
        let Ok(model) = model else { return self.send(refused("NOT_FOUND")).await };
        if self.stub.is_refused(&model.0) {
            return self.send(refused("RESOURCE_EXHAUSTED")).await;
        }
        self.model = Some(model);
        self.text_bytes = open.text.len() as u64;
        self.applied().await
    }

    async fn applied(&mut self) -> Option<()> {
        let revision = self.revision;
        let text_bytes = self.text_bytes;
        self.send(edit_response::Event::Applied(DocumentApplied { revision, text_bytes, ..Default::default() })).await
    }

    async fn complete(&mut self, complete: &CompleteDocument) -> Option<()> {
        let Some((script, slots)) = self.model.clone() else { return Some(()) };
        let arrived = Instant::now();
        let delay = if self.is_warm { script.plain } else { script.first };
        let recomputed_chars = if self.is_warm { 1 } else { complete.cursor_byte };
        let item = |length: usize| CompletionItem { text: "x".repeat(length), ..Default::default() };
        let items = (2..).map(item).take(complete.count() as usize).collect();
        let answer = DocumentCompletions {
            id: complete.id,
            revision: self.revision,
            items,
            recomputed_chars,
            ..Default::default()
        };
        self.is_warm = true;
        let work = Box::pin(finish(slots, arrived, delay, answer));
        self.running = Some(RunningCompletion { id: complete.id, work });
        Some(())
    }

    async fn send(&mut self, event: edit_response::Event) -> Option<()> {
        self.out.send(Ok(EditResponse { event: Some(event) })).await.ok()
    }
}

/// Waits for a slot and for the delay of a completion.
async fn finish(
    slots: Arc<StubSlots>,
    arrived: Instant,
    delay: Duration,
    answer: DocumentCompletions,
) -> Option<DocumentCompletions> {
    let mut slot = slots.acquire(arrived).await?;
    let due = slot.begun + delay;
    sleep_until(due).await;
    slot.end = Some(due);
    Some(DocumentCompletions { duration_ns: ns(arrived.elapsed()), ..answer })
}

#[tonic::async_trait]
impl editing_server::Editing for Stub {
    type EditStream = Pin<Box<dyn Stream<Item = Result<EditResponse, Status>> + Send>>;

    async fn edit(&self, request: Request<Streaming<EditRequest>>) -> Result<Response<Self::EditStream>, Status> {
        let (out, responses) = mpsc::channel(WAITING);
        let stub = self.clone();
        let document =
            StubDocument { stub, model: None, revision: 0, text_bytes: 0, is_warm: false, running: None, out };
        tokio::spawn(document.run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}

type RpcResult<T> = Result<Response<T>, Status>;

/// Spread above which the stub reports its calibration as unreliable.
const MAX_SPREAD: f64 = 0.2;

#[tonic::async_trait]
impl models_server::Models for Stub {
    async fn list_models(&self, _: Request<ListModelsRequest>) -> RpcResult<ListModelsResponse> {
        Ok(Response::new(ListModelsResponse {
            models: self.models.iter().map(|(script, _)| describe(script)).collect(),
        }))
    }

    async fn get_model(&self, request: Request<GetModelRequest>) -> RpcResult<Model> {
        Ok(Response::new(describe(&self.model(request.into_inner().name())?.0)))
    }
}

fn describe(script: &Script) -> Model {
    let rows = u32::try_from(script.rows).unwrap_or(u32::MAX);
    Model {
        name: script.name.clone(),
        family: "stub".into(),
        shape: "delays instead of text".into(),
        pooled: script.segment > 0,
        dtype: "none".into(),
        documents: script.summarizes.then(Documents::default),
        limits: Some(Limits { max_symbols: 1 << 20, rows, concurrent_streams: 1 << 16, ..Default::default() }),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl latency_server::Latency for Stub {
    async fn get_report(&self, request: Request<GetReportRequest>) -> RpcResult<GetReportResponse> {
        let (script, _) = self.model(request.get_ref().model())?;
        let doubt = (script.spread > MAX_SPREAD).then(|| "the machine was busy".to_owned());
        let calibration = Calibration { fewest_samples: 31, spread: script.spread, doubt, ..Default::default() };
        let estimated = EstimatedGain { calibration: Some(calibration), ..Default::default() };
        let estimated_gain = script.gain.map(|_| estimated);
        let report = ModelReport { model: script.name.clone(), estimated_gain, ..Default::default() };
        Ok(Response::new(GetReportResponse { models: vec![report] }))
    }
}

fn unimplemented<T>() -> RpcResult<T> {
    Err(Status::unimplemented("the stub implements only server_metadata"))
}

#[tonic::async_trait]
impl GrpcInferenceService for Stub {
    type ModelStreamInferStream = tokio_stream::Empty<Result<ModelStreamInferResponse, Status>>;

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> RpcResult<ServerMetadataResponse> {
        let version = env!("CARGO_PKG_VERSION").into();
        Ok(Response::new(ServerMetadataResponse { name: "stub".into(), version, extensions: Vec::new() }))
    }

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<ModelInferRequest>>,
    ) -> RpcResult<Self::ModelStreamInferStream> {
        unimplemented()
    }

    async fn server_live(&self, _: Request<ServerLiveRequest>) -> RpcResult<ServerLiveResponse> {
        unimplemented()
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> RpcResult<ServerReadyResponse> {
        unimplemented()
    }

    async fn model_ready(&self, _: Request<ModelReadyRequest>) -> RpcResult<ModelReadyResponse> {
        unimplemented()
    }

    async fn model_metadata(&self, _: Request<ModelMetadataRequest>) -> RpcResult<ModelMetadataResponse> {
        unimplemented()
    }

    async fn model_infer(&self, _: Request<ModelInferRequest>) -> RpcResult<ModelInferResponse> {
        unimplemented()
    }

    async fn model_config(&self, _: Request<ModelConfigRequest>) -> RpcResult<ModelConfigResponse> {
        unimplemented()
    }

    async fn model_statistics(&self, _: Request<ModelStatisticsRequest>) -> RpcResult<ModelStatisticsResponse> {
        unimplemented()
    }

    async fn repository_index(&self, _: Request<RepositoryIndexRequest>) -> RpcResult<RepositoryIndexResponse> {
        unimplemented()
    }
}
