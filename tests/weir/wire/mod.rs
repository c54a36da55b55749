//! The server over loopback connections, with real engines and a fake model.

mod admin;
mod codec;
mod connections;
mod editing;
mod errors;
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

use crate::{
    support::settings,
    wire::{
        connections::{
            ALICE, BOB, DATA, RST_STREAM, bearing, called, channel_from, connect, frame, is_healthy, segment, sent,
        },
        fake_model::{Fake, Kind, MAX_SYMBOLS},
        http::{Both, Reply, connect_and_send, exchange},
    },
    *,
};
use h2::{RecvStream, client::SendRequest};
use std::{collections::HashMap, f64::consts::LN_2, sync::atomic::AtomicBool};
use tokio::{net::TcpSocket, sync::oneshot, task::JoinHandle, time::sleep};
use tonic::{
    codegen::{
        Bytes,
        http::{Response, Version},
    },
    metadata::MetadataValue,
};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_types::{ErrorDetails, StatusExt};
use weir::{
    engine::Phase,
    server::{
        AdminConfig, ModelLoader, Monitor, REQUEST_ID,
        config::{AdminToken, Checks},
        run::run,
    },
};
use weir_proto::{
    inference::{
        InferParameter, ModelInferResponse, ModelStreamInferResponse, infer_parameter::ParameterChoice,
        model_infer_request::InferRequestedOutputTensor,
    },
    v1::{
        DocumentChunk, FinishReason, SegmentRequest, admin_client::AdminClient, codec_client::CodecClient,
        document_closed::Reason, edit_request::Action, editing_client::EditingClient, logit_bias::Symbol,
    },
};

/// A server on a free port with a connected client channel. Aborted on drop.
struct Running {
    address: SocketAddr,
    channel: Channel,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
}

impl Running {
    async fn start(engines: Vec<Handle>, config: TransportConfig) -> Self {
        Self::reached_by(Engines::new(engines).unwrap(), config, plain).await
    }

    /// Starts a server with admin, trace or HTTP parts.
    async fn offering(offer: impl Into<ServerParts>, config: TransportConfig) -> Self {
        Self::reached_by(offer, config, plain).await
    }

    /// Starts a server, and connects to the endpoint that `how` returns.
    async fn reached_by(
        offer: impl Into<ServerParts>,
        config: TransportConfig,
        how: impl FnOnce(SocketAddr) -> Endpoint,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(run(listener, offer.into(), shutdown, config));
        let channel = how(address).connect().await.unwrap();
        Self { address, channel, stop: Some(stop), task }
    }

    fn shut_down(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
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

/// A server of fake models. Stops on drop.
struct Server {
    model: Arc<Fake>,
    engine: Handle,
    channel: Channel,
    running: Running,
}

impl Server {
    /// Starts one pooled model with default limits.
    async fn new() -> Self {
        Self::with(Limits::default(), TransportConfig::default(), &[("fake", Kind::Pooled)]).await
    }

    /// Starts the given models. The fields refer to the first.
    async fn with(limits: Limits, config: TransportConfig, models: &[(&str, Kind)]) -> Self {
        Self::reached_by(limits, config, models, plain).await
    }

    /// Starts a server, and connects to the endpoint that `how` returns.
    async fn reached_by(
        limits: Limits,
        config: TransportConfig,
        models: &[(&str, Kind)],
        how: impl FnOnce(SocketAddr) -> Endpoint,
    ) -> Self {
        let models: Vec<_> = models.iter().map(|&(name, kind)| Fake::new(name, kind)).collect();
        let start = |model: &Arc<Fake>| Handle::start(Arc::clone(model) as Arc<dyn Model>, limits).unwrap();
        let engines: Vec<_> = models.iter().map(start).collect();
        let engine = engines[0].clone();
        let running = Running::reached_by(Engines::new(engines).unwrap(), config, how).await;
        Self { model: Arc::clone(&models[0]), engine, channel: running.channel.clone(), running }
    }

    fn generation(&self) -> GenerationClient<Channel> {
        GenerationClient::new(self.channel.clone())
    }

    fn models(&self) -> ModelsClient<Channel> {
        ModelsClient::new(self.channel.clone())
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Streaming<GenerateResponse>, Status> {
        self.generation().generate(request).await.map(tonic::Response::into_inner)
    }

    /// Returns the complete answer.
    async fn answer(&self, request: GenerateRequest) -> Result<GeneratedResponse, Status> {
        read(self.generate(request).await?).await
    }

    /// Waits until nothing is queued, running or in memory.
    async fn at_rest(&self) {
        eventually("all resources are released", || {
            let load = self.engine.load();
            (load.queued, load.running, load.bytes) == (0, 0, 0)
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Dropping the last handle joins the worker, which must not be blocked then.
        self.model.release();
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

fn details(status: &Status) -> ErrorDetails {
    status.get_error_details()
}

/// Returns the machine-readable reason of a status.
fn reason(status: &Status) -> String {
    details(status).error_info().map(|info| info.reason.clone()).unwrap_or_default()
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
