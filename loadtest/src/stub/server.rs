//! The server and the scripts of its models.

use super::slots::StubSlots;
use std::{
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use tokio_stream::Stream;
use tonic::{
    Status,
    transport::server::{Connected, Server},
};
use weir_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use weir_proto::v1::{generation_server, latency_server, models_server, summarization_server};

/// Messages that may wait for the connection.
pub(super) const WAITING: usize = 64;
/// Maximum requests whose send times are kept.
const MAX_KEPT: usize = 100_000;

/// Behaviour of a model.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Name.
    pub name: String,
    /// From a request's turn to its first character.
    pub first: Duration,
    /// From one character to the next.
    pub plain: Duration,
    /// From one character to the next if that ends a segment.
    pub boundary: Duration,
    /// Characters per segment; 0: the model does not pool.
    pub segment: u64,
    /// Requests that run at once; others wait for their turn.
    pub rows: usize,
    /// Start and end of a pause in which the server hangs, counted from its start.
    pub pause: Option<(Duration, Duration)>,
    /// Rejects every n-th request; 0: none.
    pub refuse: u64,
    /// Bits per character that it reports for scored texts.
    pub bits_per_char: f64,
    /// Gain that it reports for pooling, if it reports one.
    pub gain: Option<f64>,
    /// Spread that it reports for its calibration.
    pub spread: f64,
    /// True if it claims to summarize documents.
    pub summarizes: bool,
}

impl Script {
    /// Returns a model without delays.
    pub fn instant(name: &str) -> Self {
        Self { name: name.into(), rows: 1 << 16, bits_per_char: 2.0, spread: 0.02, ..Self::default() }
    }
}

/// Times at which the server sent a request's characters, by its own clock.
#[derive(Debug, Clone)]
pub struct SentTimes {
    /// Arrival of the request.
    pub arrived: Instant,
    /// When each character was handed to the connection.
    pub chars: Vec<Instant>,
}

/// Server.
#[derive(Clone)]
pub struct Stub {
    pub(super) models: Arc<Vec<(Script, Arc<StubSlots>)>>,
    pub(super) start: Instant,
    sent: Arc<Mutex<Vec<SentTimes>>>,
    requests: Arc<Mutex<u64>>,
}

impl Stub {
    /// Builds a server of these models; its time begins now.
    pub fn new(scripts: Vec<Script>) -> Self {
        let slots = |script: &Script| Arc::new(StubSlots::new(script.rows));
        let models = Arc::new(scripts.into_iter().map(|script| (script.clone(), slots(&script))).collect());
        Self { models, start: Instant::now(), sent: Arc::default(), requests: Arc::default() }
    }

    /// Returns the send times of the requests that ended so far.
    pub fn sent(&self) -> Vec<SentTimes> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn record_sent(&self, times: SentTimes) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() < MAX_KEPT {
            sent.push(times);
        }
    }

    /// Serves on these connections until `end`. They should have TCP_NODELAY, because delayed packets reach a reader late.
    /// Fails if a connection cannot be accepted.
    pub async fn serve<I, C>(self, incoming: I, end: impl Future<Output = ()>) -> Result<(), tonic::transport::Error>
    where
        I: Stream<Item = io::Result<C>>,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let mut server = Server::builder().max_concurrent_streams(1 << 16);
        let routes = server.add_service(generation_server::GenerationServer::new(self.clone()));
        let routes = routes.add_service(GrpcInferenceServiceServer::new(self.clone()));
        let routes = routes.add_service(latency_server::LatencyServer::new(self.clone()));
        let routes = routes.add_service(summarization_server::SummarizationServer::new(self.clone()));
        routes.add_service(models_server::ModelsServer::new(self)).serve_with_incoming_shutdown(incoming, end).await
    }

    pub(super) fn model(&self, name: &str) -> Result<&(Script, Arc<StubSlots>), Status> {
        let named = self.models.iter().find(|(script, _)| name.is_empty() || script.name == name);
        named.ok_or_else(|| Status::not_found(format!("no model {name:?}")))
    }

    pub(super) fn is_refused(&self, script: &Script) -> bool {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests += 1;
        script.refuse > 0 && requests.is_multiple_of(script.refuse)
    }
}
