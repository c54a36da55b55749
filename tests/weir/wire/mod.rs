//! The server over loopback connections, with real engines and a fake model.

mod admin;
mod codec;
mod connections;
mod editing;
pub(crate) mod errors;
mod fake_model;
mod families;
mod generation;
mod http;
mod http_refusals;
mod lifecycle;
mod limits;
mod open_inference;
mod other_calls;
mod overload;
mod summaries;

use crate::support::{settings, t5_shortened};
use crate::wire::connections::{
    ALICE, BOB, DATA, RST_STREAM, alice_and_bob, bearing, called, channel_from, connect, frame, is_healthy, segment,
    sent, to_end, with_keys,
};
use crate::wire::fake_model::{Fake, Kind, MAX_SYMBOLS};
use crate::wire::http::{Reply, connect_and_send};
use crate::*;
pub(crate) use connections::{exchange_http2, framed};
pub(crate) use editing::Client as WebSocketClient;
use h2::{RecvStream, client::SendRequest};
pub(crate) use http::exchange;
use std::collections::HashMap;
use std::f64::consts::LN_2;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicBool;
use tokio::{net::TcpSocket, sync::oneshot, task::JoinHandle, time::sleep};
use tonic::codegen::Bytes;
use tonic::codegen::http::{Response, Version};
use tonic::metadata::MetadataValue;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_types::{ErrorDetails, StatusExt};
use weir::engine::Phase;
use weir::server::config::{AdminToken, Checks};
use weir::server::run::run;
use weir::server::{AdminConfig, ModelLoader, Monitor, REQUEST_ID};
use weir_proto::{
    inference::{
        ModelInferResponse, ModelStreamInferResponse, infer_parameter::ParameterChoice,
        model_infer_request::InferRequestedOutputTensor,
    },
    v1::{
        DocumentChunk, FinishReason, SegmentRequest, admin_client::AdminClient, codec_client::CodecClient,
        document_closed::Reason, edit_request::Action, editing_client::EditingClient,
        score_response::Event as ScoreEvent,
    },
};

/// A server with gRPC and HTTP ports on free addresses, and a client of the first. Aborted on drop.
struct Running {
    /// The gRPC port.
    address: SocketAddr,
    /// The HTTP port.
    port: SocketAddr,
    channel: Channel,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
}

impl Running {
    async fn start(engines: Vec<Handle>, config: TransportConfig) -> Self {
        Self::offering(Engines::new(engines).unwrap(), config).await
    }

    /// Starts a server of one model.
    async fn of(model: Arc<dyn Model>, limits: Limits, config: TransportConfig) -> Self {
        Self::start(vec![Handle::start(model, limits).unwrap()], config).await
    }

    /// Starts a server with admin or trace parts.
    async fn offering(offer: impl Into<ServerParts>, config: TransportConfig) -> Self {
        Self::reached_by(offer, config, plain).await
    }

    /// Starts a server, and connects to the endpoint that `how` returns.
    async fn reached_by(
        offer: impl Into<ServerParts>,
        config: TransportConfig,
        how: impl FnOnce(SocketAddr) -> Endpoint,
    ) -> Self {
        let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = grpc.local_addr().unwrap();
        let port = http.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let parts = ServerParts { http: Some(http.into()), ..offer.into() };
        let task = tokio::spawn(run(grpc, parts, shutdown, config));
        let channel = how(address).connect().await.unwrap();
        Self { address, port, channel, stop: Some(stop), task }
    }

    fn shut_down(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the server has ended.
    async fn ended(&mut self) {
        timeout(Duration::from_secs(20), &mut self.task).await.expect("the server runs on").unwrap().unwrap();
    }

    fn generation(&self) -> GenerationClient<Channel> {
        GenerationClient::new(self.channel.clone())
    }

    fn models(&self) -> ModelsClient<Channel> {
        ModelsClient::new(self.channel.clone())
    }

    fn summarization(&self) -> SummarizationClient<Channel> {
        SummarizationClient::new(self.channel.clone())
    }

    fn inference(&self) -> GrpcInferenceServiceClient<Channel> {
        GrpcInferenceServiceClient::new(self.channel.clone())
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Streaming<GenerateResponse>, Status> {
        self.generation().generate(request).await.map(tonic::Response::into_inner)
    }

    /// Returns the complete answer.
    async fn answer(&self, request: GenerateRequest) -> Result<GeneratedResponse, Status> {
        read(self.generate(request).await?).await
    }

    /// Returns the characters and the summary of a score.
    async fn score(&self, request: v1::ScoreRequest) -> Result<(Vec<v1::Character>, v1::ScoreSummary), Status> {
        let mut characters = Vec::new();
        let summary = self.score_in_chunks(request, |chunk| characters.extend_from_slice(chunk)).await?;
        Ok((characters, summary))
    }

    /// Returns the summary of a score, which is last, and calls `each` with the characters of each chunk.
    async fn score_in_chunks(
        &self,
        request: v1::ScoreRequest,
        mut each: impl FnMut(&[v1::Character]),
    ) -> Result<v1::ScoreSummary, Status> {
        let mut stream = self.generation().score(request).await?.into_inner();
        while let Some(message) = stream.next().await {
            match message?.event.unwrap() {
                ScoreEvent::Chunk(chunk) => {
                    assert!((1..=512).contains(&chunk.characters.len()), "{} characters", chunk.characters.len());
                    each(&chunk.characters);
                }
                ScoreEvent::Summary(summary) => {
                    assert!(stream.next().await.is_none(), "the summary is last");
                    return Ok(summary);
                }
            }
        }
        panic!("no summary");
    }

    /// Describes the only model.
    async fn model(&self) -> v1::Model {
        self.models().get_model(v1::GetModelRequest::default()).await.unwrap().into_inner()
    }

    async fn get(&self, path: &str) -> Reply {
        exchange(self.port, "GET", path, &[], "").await
    }

    async fn post_to(&self, path: &str, body: &Value) -> Reply {
        exchange(self.port, "POST", path, &[], &body.to_string()).await
    }

    /// Sends a completion request.
    async fn post(&self, body: &Value) -> Reply {
        self.post_to("/v1/completions", body).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns an endpoint without TLS.
fn plain(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).unwrap()
}

/// A model that a test holds next to its server.
trait Hosted {
    /// Lets all that is held go on: dropping the last handle of an engine joins its worker.
    fn release_all(&self) {}

    /// Returns true if the model holds nothing but `documents` cached ones.
    fn is_free(&self, documents: usize) -> bool;
}

impl Hosted for Fake {
    fn release_all(&self) {
        self.gate.release();
        self.release_submissions();
    }

    fn is_free(&self, _: usize) -> bool {
        true
    }
}

impl Hosted for DocumentModel {
    fn release_all(&self) {
        self.gate.release();
    }

    fn is_free(&self, documents: usize) -> bool {
        self.alive() == documents
    }
}

impl Hosted for dyn Model {
    fn is_free(&self, _: usize) -> bool {
        self.memory().in_use == 0
    }
}

/// A server and its first model. Stops on drop.
struct Server<M: Hosted + ?Sized = Fake> {
    model: Arc<M>,
    engine: Handle,
    engines: Engines,
    running: Running,
}

impl Server {
    /// Starts one pooled model with default limits.
    async fn new() -> Self {
        Self::with(Limits::default(), TransportConfig::default()).await
    }

    async fn limited(limits: Limits) -> Self {
        Self::with(limits, TransportConfig::default()).await
    }

    async fn within(config: TransportConfig) -> Self {
        Self::with(Limits::default(), config).await
    }

    async fn with(limits: Limits, config: TransportConfig) -> Self {
        Self::of(&[("fake", Kind::Pooled)], limits, config).await
    }

    /// Starts these models.
    async fn of(models: &[(&str, Kind)], limits: Limits, config: TransportConfig) -> Self {
        Self::start(models, limits, config, plain).await
    }

    /// Starts one model with default limits, and connects to the endpoint that `how` returns.
    async fn reached_by(config: TransportConfig, how: impl FnOnce(SocketAddr) -> Endpoint) -> Self {
        Self::start(&[("fake", Kind::Pooled)], Limits::default(), config, how).await
    }

    async fn start(
        models: &[(&str, Kind)],
        limits: Limits,
        config: TransportConfig,
        how: impl FnOnce(SocketAddr) -> Endpoint,
    ) -> Self {
        let models: Vec<_> = models.iter().map(|&(name, kind)| Fake::new(name, kind)).collect();
        // A test holds the steps of its requests, and counts them: none is the server's own.
        let limits = Limits { calibration: Duration::ZERO, ..limits };
        let start = |model: &Arc<Fake>| Handle::start(Arc::clone(model) as Arc<dyn Model>, limits).unwrap();
        let handles: Vec<_> = models.iter().map(start).collect();
        let engine = handles[0].clone();
        let engines = Engines::new(handles).unwrap();
        let running = Running::reached_by(engines.clone(), config, how).await;
        Self { model: Arc::clone(&models[0]), engine, engines, running }
    }
}

impl<M: Hosted + ?Sized> Server<M> {
    /// Starts a server of one model, which is given twice: as the test and as the engine see it.
    async fn hosting(model: Arc<M>, hosted: Arc<dyn Model>, limits: Limits, config: TransportConfig) -> Self {
        let engine = Handle::start(hosted, limits).unwrap();
        let engines = Engines::new(vec![engine.clone()]).unwrap();
        let running = Running::offering(engines.clone(), config).await;
        Self { model, engine, engines, running }
    }

    /// Returns the metrics as OpenMetrics text.
    fn metrics(&self) -> String {
        self.engines.render_metrics().unwrap()
    }

    /// Returns the numbers of queued and of running requests.
    fn load(&self) -> (usize, usize) {
        let load = self.engine.load();
        (load.queued, load.running)
    }

    /// Waits until `count` requests run.
    async fn until_running(&self, count: usize) {
        eventually("the requests run", || self.engine.load().running == count).await;
    }

    /// Waits until `count` requests are queued or run.
    async fn until_taken(&self, count: usize) {
        eventually("the requests are taken", || {
            let (queued, running) = self.load();
            queued + running == count
        })
        .await;
    }

    /// Waits until nothing is queued, running or in memory.
    async fn at_rest(&self) {
        eventually("all resources are released", || {
            let load = self.engine.load();
            (load.queued, load.running, load.bytes) == (0, 0, 0)
                && self.model.is_free(self.engine.document_cache_usage().entries)
        })
        .await;
    }
}

/// A server of a model that summarizes.
type Summarizer = Server<DocumentModel>;

impl Summarizer {
    /// Starts a summarizer that keeps documents.
    async fn summarizing() -> Self {
        Self::summarizing_with(Limits { document_bytes: 1 << 20, ..Limits::default() }, TransportConfig::default())
            .await
    }

    async fn summarizing_with(limits: Limits, config: TransportConfig) -> Self {
        let model = DocumentModel::new();
        Self::hosting(Arc::clone(&model), model, limits, config).await
    }
}

/// The servers that answer `tests/cases/grpc.txt` and `http.txt`, by their names there.
pub(crate) struct CaseServers {
    fake: Server,
    two: Server,
    summarizer: Summarizer,
    t5: Running,
    keyed: Server,
    text8: Server,
    ended: Running,
    endings: Running,
    mixed: Running,
    _folder: TempDir,
}

impl CaseServers {
    pub(crate) async fn start() -> Self {
        let two = [("fake", Kind::Pooled), ("flat", Kind::Vanilla)];
        let folder = t5_shortened(24);
        let scaled = &decoder::folders().iter().find(|(name, _)| name == "scaled").unwrap().1;
        let loaded = |folder: &Path| vec![load(folder, &settings()).unwrap()];
        let started = |models: Vec<Arc<dyn Model>>| {
            let handles = models.into_iter().map(|model| Handle::start(model, Limits::default()).unwrap());
            Running::start(handles.collect(), TransportConfig::default())
        };
        Self {
            fake: Server::new().await,
            two: Server::of(&two, editing::cached(), TransportConfig::default()).await,
            summarizer: Server::summarizing().await,
            t5: started(loaded(folder.path())).await,
            keyed: with_keys(Limits::default()).await,
            text8: Server::of(&[("fake", Kind::Text8)], editing::cached(), TransportConfig::default()).await,
            ended: started(loaded(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english"))).await,
            endings: started(
                [
                    hourglass::folder("ended-ngrams"),
                    scaled,
                    &golden_data("hugging-face/gemma2"),
                    &checkpoint("lslm", LSLM_CASES[0]),
                ]
                .map(loaded)
                .concat(),
            )
            .await,
            mixed: started(vec![Fake::new("writer", Kind::Pooled) as Arc<dyn Model>, DocumentModel::new()]).await,
            _folder: folder,
        }
    }

    pub(crate) fn addresses(&self) -> Vec<(&'static str, String)> {
        let servers: [(_, _, &Running); 9] = [
            ("fake", "fake-http", &self.fake),
            ("two", "two-http", &self.two),
            ("summarizer", "summarizer-http", &self.summarizer),
            ("t5", "t5-http", &self.t5),
            ("keyed", "keyed-http", &self.keyed),
            ("text8", "text8-http", &self.text8),
            ("ended", "ended-http", &self.ended),
            ("endings", "endings-http", &self.endings),
            ("mixed", "mixed-http", &self.mixed),
        ];
        let both =
            servers.map(|(grpc, http, server)| [(grpc, server.address.to_string()), (http, server.port.to_string())]);
        both.concat()
    }

    /// Waits until nothing is left of the requests, and checks that the servers go on.
    pub(crate) async fn at_rest(&self) {
        self.fake.at_rest().await;
        self.two.at_rest().await;
        self.summarizer.at_rest().await;
        self.keyed.at_rest().await;
        self.text8.at_rest().await;
        self.fake.answer(prompt("a")).await.unwrap();
    }
}

impl<M: Hosted + ?Sized> Deref for Server<M> {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl<M: Hosted + ?Sized> DerefMut for Server<M> {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

impl<M: Hosted + ?Sized> Drop for Server<M> {
    fn drop(&mut self) {
        self.model.release_all();
    }
}

/// All messages of a generation.
#[derive(Debug, Default)]
struct GeneratedResponse {
    started: v1::Started,
    pieces: Vec<v1::Piece>,
    finished: v1::Finished,
}

impl GeneratedResponse {
    fn text(&self) -> String {
        self.pieces.iter().filter(|piece| !piece.prompt).map(|piece| piece.text.as_str()).collect()
    }
}

/// Reads the rest of a stream. Returns its last message.
async fn rest(mut stream: Streaming<GenerateResponse>) -> v1::Finished {
    let mut last = None;
    while let Some(message) = stream.next().await {
        last = message.unwrap().event;
    }
    let Some(Event::Finished(finished)) = last else { panic!("cut off: {last:?}") };
    finished
}

/// Reads a stream to its end and checks the order of its messages.
async fn read(mut stream: Streaming<GenerateResponse>) -> Result<GeneratedResponse, Status> {
    let mut answer = GeneratedResponse::default();
    let Some(Event::Started(started)) = stream.message().await?.and_then(|message| message.event) else {
        panic!("the first message is not the start");
    };
    answer.started = started;
    while let Some(message) = stream.next().await {
        match message?.event.unwrap() {
            Event::Started(_) => panic!("started twice"),
            Event::Piece(piece) => answer.pieces.push(piece),
            Event::Finished(finished) => {
                answer.finished = finished;
                assert!(stream.next().await.is_none(), "nothing follows the end");
                return Ok(answer);
            }
        }
    }
    panic!("the last message is not the end");
}

fn prompt(text: &str) -> GenerateRequest {
    GenerateRequest { prompt: text.into(), ..Default::default() }
}

fn seeded(text: &str, seed: u64) -> GenerateRequest {
    GenerateRequest { sampling: Some(v1::Sampling { seed: Some(seed), ..Default::default() }), ..prompt(text) }
}

/// Returns a seeded request for `max_chars` characters.
fn long(text: &str, max_chars: u32) -> GenerateRequest {
    let stopping = Some(v1::Stopping { max_chars: Some(max_chars), ..Default::default() });
    GenerateRequest { stopping, ..seeded(text, 1) }
}

/// Returns a request in JSON with another value of a field.
fn changed(body: &Value, field: &str, value: impl Into<Value>) -> Value {
    let mut body = body.clone();
    body[field] = value.into();
    body
}

fn details(status: &Status) -> ErrorDetails {
    status.get_error_details()
}

/// Returns the machine-readable reason of a status.
fn reason(status: &Status) -> String {
    details(status).error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

/// Returns the field that a status names, or an empty text.
fn field(status: &Status) -> String {
    let violations = details(status).bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default();
    violations.first().map(|violation| violation.field.clone()).unwrap_or_default()
}

/// Checks code and reason of a status.
#[track_caller]
fn assert_refused(status: &Status, code: Code, why: &str) {
    assert_eq!((status.code(), reason(status).as_str()), (code, why), "{status:?}");
}

/// Waits up to 20 s until `holds` returns true.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    eventually_async(what, async || holds()).await;
}

/// Waits until an asynchronous condition holds.
async fn eventually_async(what: &str, holds: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
