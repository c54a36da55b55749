//! Server that answers with placeholder text at scripted times, so that the tester's figures can be checked. It sets the fields that
//! the tester reads.

use crate::*;
use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
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
        Calibration, Character, CheckRequest, CheckResponse, CompleteDocument, CompletionItem, DocumentClosed,
        DocumentCompletions, Documents, EditFailure, EditRequest, EditResponse, EncoderLayer, EstimatedGain, Finished,
        GenerateResponse, GetModelRequest, GetReportRequest, GetReportResponse, Limits, ListModelsRequest,
        ListModelsResponse, Model, ModelReport, Piece, ScoreRequest, ScoreResponse, ScoreSummary, SegmentRequest,
        SegmentResponse, StaleRequest, SummarizeOptions, SummarizeRequest, SummarizeResponse, SummaryFinished,
        SummaryPiece, SummaryTiming, SummaryUsage, Timing, Usage, document_closed::Reason, edit_request::Action,
        edit_response, editing_server, generate_response, generation_server, latency_server, models_server,
        score_response, summarization_server, summarize_request::Part, summarize_response,
    },
};

/// Messages that may wait for the connection.
const WAITING: usize = 64;

/// Behaviour of a model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    /// Name.
    pub(crate) name: String,
    /// Time from a request's turn to its first character.
    pub(crate) first: Duration,
    /// Time from one character to the next.
    pub(crate) plain: Duration,
    /// Time from one character to the next if that ends a segment.
    pub(crate) boundary: Duration,
    /// Characters per segment; 0: the model does not pool.
    pub(crate) segment: u64,
    /// Requests that run at once; others wait for their turn.
    pub(crate) rows: usize,
    /// Start and end of a pause in which the server hangs, counted from its start.
    pub(crate) pause: Option<(Duration, Duration)>,
    /// Texts that it finishes before it hangs; absent: all.
    pub(crate) answers: Option<u64>,
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

/// Server.
#[derive(Clone)]
pub(crate) struct Stub {
    models: Arc<Vec<(Script, Arc<StubSlots>)>>,
    start: Instant,
    requests: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Stub {
    /// Builds a server of these models; its time begins now.
    pub(crate) fn new(scripts: Vec<Script>) -> Self {
        let slots = |script: &Script| Arc::new(StubSlots::new(script.rows));
        let models = Arc::new(scripts.into_iter().map(|script| (script.clone(), slots(&script))).collect());
        let start = Instant::now();
        Self { models, start, requests: Arc::default(), answered: Arc::default(), ended: Arc::default() }
    }

    /// Returns the number of generated texts so far.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    /// Returns the number of texts so far that were generated, or whose client left.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Relaxed)
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

    fn model(&self, name: &str) -> Result<&(Script, Arc<StubSlots>), Status> {
        let named = self.models.iter().find(|(script, _)| name.is_empty() || script.name == name);
        named.ok_or_else(|| Status::not_found(format!("no model {name:?}")))
    }

    fn is_refused(&self, script: &Script) -> bool {
        let number = self.requests.fetch_add(1, Relaxed) + 1;
        script.refuse > 0 && number.is_multiple_of(script.refuse)
    }
}

/// Requests that a model answers at once. Others wait in order of arrival. A slot counts as free from the moment at which its
/// request was due to end, and the next request begins then, however late this program notices. Waits are therefore those of
/// queueing theory, without the delays of this machine.
struct StubSlots {
    permits: Arc<Semaphore>,
    /// Times since which slots that were taken before are free.
    free_since: Mutex<VecDeque<Instant>>,
}

/// Slot of a request, until it is dropped.
struct StubSlot {
    /// When the request's turn came.
    begun: Instant,
    /// When the request is due to end; absent if the client cancelled it.
    end: Option<Instant>,
    slots: Arc<StubSlots>,
    // dropped after `free_since` was written, because the next request reads it
    _permit: OwnedSemaphorePermit,
}

impl StubSlots {
    fn new(count: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(count)), free_since: Mutex::default() }
    }

    /// Waits for a slot for a request that arrived at `arrived`.
    async fn acquire(self: &Arc<Self>, arrived: Instant) -> StubSlot {
        let permit = self.permits.clone().acquire_owned().await.unwrap();
        let free_since = self.free_since.lock().unwrap().pop_front();
        let begun = free_since.map_or(arrived, |free_since| free_since.max(arrived));
        StubSlot { begun, end: None, slots: self.clone(), _permit: permit }
    }
}

impl Drop for StubSlot {
    fn drop(&mut self) {
        self.slots.free_since.lock().unwrap().push_back(self.end.unwrap_or_else(Instant::now));
    }
}

type StubResponses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Out<T> = mpsc::Sender<Result<T, Status>>;

/// Answers a call with the messages that `run` sends. `run` ends early if the client is gone.
fn streamed<T: Send + 'static, F>(run: impl FnOnce(Out<T>) -> F) -> Response<StubResponses<T>>
where
    F: Future<Output = Option<()>> + Send + 'static,
{
    let (out, responses) = mpsc::channel(WAITING);
    tokio::spawn(run(out));
    Response::new(Box::pin(ReceiverStream::new(responses)))
}

async fn send_event(out: &Out<GenerateResponse>, event: generate_response::Event) -> Option<()> {
    out.send(Ok(GenerateResponse { event: Some(event) })).await.ok()
}

impl Stub {
    async fn answer(
        self,
        (script, slots): (Script, Arc<StubSlots>),
        request: GenerateRequest,
        out: Out<GenerateResponse>,
    ) -> Option<()> {
        let arrived = Instant::now();
        let mut slot = slots.acquire(arrived).await;
        if script.answers.is_some_and(|answers| self.answered() >= answers) {
            out.closed().await;
            return None;
        }
        let queue = arrived.elapsed();
        let count = u64::from(request.stopping.unwrap_or_default().max_chars());
        let boundaries = request.details.unwrap_or_default().boundaries();
        let mut first = None;
        let mut due = slot.begun;
        for number in 1..=count {
            let ends_segment = number.checked_rem(script.segment) == Some(0);
            // counted from when the last character was due, so that the stub's own delays do not add up
            due += match (number, ends_segment) {
                (1, _) => script.first,
                (_, true) => script.boundary,
                (_, false) => script.plain,
            };
            self.wait(&script, &mut due).await;
            first.get_or_insert_with(Instant::now);
            let character = || Character { text: "x".into(), boundary: Some(ends_segment), ..Default::default() };
            let characters = if boundaries { vec![character()] } else { Vec::new() };
            let piece = Piece { text: "x".into(), characters, ..Default::default() };
            send_event(&out, generate_response::Event::Piece(piece)).await?;
        }
        slot.end = Some(due);
        let first = first?;
        let prompt_chars = request.prompt.chars().count() as u64;
        let segments = |chars: u64| chars.checked_div(script.segment).unwrap_or(0);
        let usage = Usage {
            prompt_chars,
            generated_chars: count,
            prompt_segments: segments(prompt_chars),
            generated_segments: segments(count),
            ..Default::default()
        };
        let prefill_ns = ns(script.first);
        let decode_ns = ns(first.elapsed());
        let estimate = |measured: u64| script.gain.map(|gain| (measured as f64 * gain) as u64);
        let timing = Timing {
            queue_ns: ns(queue),
            prefill_ns,
            decode_ns,
            unpooled_prefill_estimate_ns: estimate(prefill_ns),
            unpooled_decode_estimate_ns: estimate(decode_ns),
            time_to_first_char_ns: ns(first - arrived),
            total_ns: ns(arrived.elapsed()),
            ..Default::default()
        };
        let finished = Finished { usage: Some(usage), timing: Some(timing), ..Default::default() };
        send_event(&out, generate_response::Event::Finished(finished)).await?;
        self.answered.fetch_add(1, Relaxed);
        Some(())
    }

    /// Waits until `due`. If that is within the script's pause, waits for its end and moves `due` there.
    async fn wait(&self, script: &Script, due: &mut Instant) {
        if *due > Instant::now() {
            sleep_until(*due).await;
        }
        if let Some((from, to)) = script.pause {
            let end = self.start + to;
            if (self.start + from..end).contains(&Instant::now()) {
                sleep_until(end).await;
                *due = end;
            }
        }
    }
}

#[tonic::async_trait]
impl generation_server::Generation for Stub {
    type GenerateStream = StubResponses<GenerateResponse>;
    type ScoreStream = StubResponses<ScoreResponse>;

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let request = request.into_inner();
        let model = self.model(request.model())?.clone();
        if self.is_refused(&model.0) {
            return Err(Status::resource_exhausted("the queue is full"));
        }
        let stub = self.clone();
        Ok(streamed(|out| async move {
            let ended = Arc::clone(&stub.ended);
            let answered = stub.answer(model, request, out).await;
            ended.fetch_add(1, Relaxed);
            answered
        }))
    }

    async fn score(&self, request: Request<ScoreRequest>) -> Result<Response<Self::ScoreStream>, Status> {
        let request = request.into_inner();
        let (script, _) = self.model(request.model())?;
        // the time of one step, whatever the length of the text
        sleep(script.plain).await;
        let summary = ScoreSummary { bits_per_char: Some(script.bits_per_char), ..Default::default() };
        let response = ScoreResponse { event: Some(score_response::Event::Summary(summary)) };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(response)))))
    }

    async fn segment(&self, _: Request<SegmentRequest>) -> Result<Response<SegmentResponse>, Status> {
        Err(Status::unimplemented("the stub has no text to segment"))
    }

    async fn check(&self, _: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Err(Status::unimplemented("the stub has no words to check"))
    }
}

/// Bytes of keys and values per token.
const BYTES_PER_TOKEN: u64 = 64;

/// Summarizes a document of `tokens` characters, each of which counts as a token.
async fn summarize(
    script: Script,
    options: SummarizeOptions,
    document_tokens: u64,
    out: Out<SummarizeResponse>,
) -> Option<()> {
    let send = async |event| out.send(Ok(SummarizeResponse { event: Some(event) })).await.ok();
    let uploaded = Instant::now();
    sleep(script.first).await;
    let encoded = Instant::now();
    let summary_tokens = u64::from(options.max_tokens());
    for number in 0..summary_tokens {
        if number > 0 {
            sleep(script.plain).await;
        }
        send(summarize_response::Event::Piece(SummaryPiece { text: "x".into() })).await?;
    }
    let first = ns(script.first);
    let vectors = document_tokens.checked_div(script.segment).unwrap_or(document_tokens);
    let usage = SummaryUsage {
        document_tokens,
        summary_tokens,
        cross_attention_bytes: vectors * BYTES_PER_TOKEN,
        unpooled_cross_attention_bytes: document_tokens * BYTES_PER_TOKEN,
        ..Default::default()
    };
    let timing = SummaryTiming {
        encode_rest_ns: first,
        layers: vec![EncoderLayer { length: document_tokens, ns: first - first / 4 }],
        memory_ns: first / 4,
        time_to_first_token_ns: first,
        decode_ns: ns(encoded.elapsed()),
        total_ns: ns(uploaded.elapsed()),
        kept_share: (document_tokens > 0).then(|| vectors as f64 / document_tokens as f64),
        ..Default::default()
    };
    let finished = SummaryFinished { usage: Some(usage), timing: Some(timing), ..Default::default() };
    send(summarize_response::Event::Finished(finished)).await
}

#[tonic::async_trait]
impl summarization_server::Summarization for Stub {
    type SummarizeStream = StubResponses<SummarizeResponse>;

    async fn summarize(
        &self,
        request: Request<Streaming<SummarizeRequest>>,
    ) -> Result<Response<Self::SummarizeStream>, Status> {
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
        Ok(streamed(|out| summarize(script, options, tokens, out)))
    }
}

type DueCompletions = Pin<Box<dyn Future<Output = DocumentCompletions> + Send>>;

impl Stub {
    /// Edits one document.
    async fn edit_document(self, mut requests: Streaming<EditRequest>, out: Out<EditResponse>) -> Option<()> {
        let send = async |event| out.send(Ok(EditResponse { event: Some(event) })).await.ok();
        let mut model = None;
        // only the first completions compute the whole document
        let mut is_warm = false;
        // completions that are due later, with their number
        let mut running: Option<(u64, DueCompletions)> = None;
        loop {
            let answer = async {
                match &mut running {
                    Some((_, work)) => work.as_mut().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                answer = answer => {
                    running = None;
                    send(edit_response::Event::Completions(answer)).await?;
                }
                message = requests.message() => match message.ok()??.action? {
                    Action::Open(open) => {
                        let opened = self.model(open.model()).ok()?.clone();
                        if self.is_refused(&opened.0) {
                            let code = "RESOURCE_EXHAUSTED".into();
                            send(edit_response::Event::Failed(EditFailure { code, ..Default::default() })).await?;
                        }
                        model = Some(opened);
                    }
                    Action::Splice(_) => {
                        if let Some((id, _)) = running.take() {
                            send(edit_response::Event::Stale(StaleRequest { id })).await?;
                        }
                    }
                    Action::Complete(complete) => {
                        let (script, slots) = model.clone()?;
                        let delay = if is_warm { script.plain } else { script.first };
                        let recomputed_chars = if is_warm { 1 } else { complete.cursor_byte };
                        is_warm = true;
                        running = Some((complete.id, Box::pin(completions(complete, recomputed_chars, slots, delay))));
                    }
                    Action::Close(_) => {
                        return send(edit_response::Event::Closed(DocumentClosed { reason: Reason::Client.into() })).await;
                    }
                    Action::Score(_) => return None,
                },
            }
        }
    }
}

/// Returns completions of 2, 3 and more characters after `delay`.
async fn completions(
    complete: CompleteDocument,
    recomputed_chars: u64,
    slots: Arc<StubSlots>,
    delay: Duration,
) -> DocumentCompletions {
    let arrived = Instant::now();
    let mut slot = slots.acquire(arrived).await;
    let due = slot.begun + delay;
    sleep_until(due).await;
    slot.end = Some(due);
    let item = |length: usize| CompletionItem { text: "x".repeat(length), ..Default::default() };
    let items = (2..).map(item).take(complete.count() as usize).collect();
    let duration_ns = ns(arrived.elapsed());
    DocumentCompletions { id: complete.id, items, recomputed_chars, duration_ns, ..Default::default() }
}

#[tonic::async_trait]
impl editing_server::Editing for Stub {
    type EditStream = StubResponses<EditResponse>;

    async fn edit(&self, request: Request<Streaming<EditRequest>>) -> Result<Response<Self::EditStream>, Status> {
        let stub = self.clone();
        let requests = request.into_inner();
        Ok(streamed(|out| stub.edit_document(requests, out)))
    }
}

type RpcResult<T> = Result<Response<T>, Status>;

/// Spread above which the stub reports its calibration as unreliable.
const MAX_SPREAD: f64 = 0.2;

#[tonic::async_trait]
impl models_server::Models for Stub {
    async fn list_models(&self, _: Request<ListModelsRequest>) -> RpcResult<ListModelsResponse> {
        let describe = |(script, _): &(Script, Arc<StubSlots>)| Model {
            name: script.name.clone(),
            family: "stub".into(),
            shape: "delays instead of text".into(),
            pooled: script.segment > 0,
            dtype: "none".into(),
            documents: script.summarizes.then(Documents::default),
            limits: Some(Limits { max_symbols: 1 << 20, concurrent_streams: 1 << 16, ..Default::default() }),
            ..Default::default()
        };
        Ok(Response::new(ListModelsResponse { models: self.models.iter().map(describe).collect() }))
    }

    async fn get_model(&self, _: Request<GetModelRequest>) -> RpcResult<Model> {
        Err(Status::unimplemented("the tester lists all models"))
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

/// Implements the Open Inference Protocol, of which the tester calls one method.
macro_rules! inference_service {
    ($($unused:ident($request:ty) -> $response:ty;)*) => {
        #[tonic::async_trait]
        impl GrpcInferenceService for Stub {
            type ModelStreamInferStream = tokio_stream::Empty<Result<ModelStreamInferResponse, Status>>;

            async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> RpcResult<ServerMetadataResponse> {
                let version = env!("CARGO_PKG_VERSION").into();
                Ok(Response::new(ServerMetadataResponse { name: "stub".into(), version, extensions: Vec::new() }))
            }

            $(async fn $unused(&self, _: Request<$request>) -> RpcResult<$response> {
                Err(Status::unimplemented("the stub implements only server_metadata"))
            })*
        }
    };
}

inference_service! {
    server_live(ServerLiveRequest) -> ServerLiveResponse;
    server_ready(ServerReadyRequest) -> ServerReadyResponse;
    model_ready(ModelReadyRequest) -> ModelReadyResponse;
    model_metadata(ModelMetadataRequest) -> ModelMetadataResponse;
    model_infer(ModelInferRequest) -> ModelInferResponse;
    model_stream_infer(Streaming<ModelInferRequest>) -> Self::ModelStreamInferStream;
    model_config(ModelConfigRequest) -> ModelConfigResponse;
    model_statistics(ModelStatisticsRequest) -> ModelStatisticsResponse;
    repository_index(RepositoryIndexRequest) -> RepositoryIndexResponse;
}
