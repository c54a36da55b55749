//! The server, the scripts of its models, and their slots.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_stream::Stream;
use tonic::{
    Status,
    transport::server::{Connected, Server},
};
use weir_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use weir_proto::v1::{editing_server, generation_server, latency_server, models_server, summarization_server};

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
        let routes = routes.add_service(editing_server::EditingServer::new(self.clone()));
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

/// Requests that a model answers at once. Others wait in order of arrival. A slot counts as free from the moment at which its
/// request was due to end, and the next request begins then, however late this program notices. Waits are therefore those of
/// queueing theory, without the delays of this machine.
pub(super) struct StubSlots {
    permits: Arc<Semaphore>,
    /// Times since which slots that were taken before are free.
    free_since: Mutex<VecDeque<Instant>>,
}

/// Slot of a request, until it is dropped.
pub(super) struct StubSlot {
    /// When the request's turn came.
    pub(super) begun: Instant,
    /// When the request is due to end; absent if the client cancelled it.
    pub(super) end: Option<Instant>,
    slots: Arc<StubSlots>,
    // dropped after `free_since` was written, because the next request reads it
    _permit: OwnedSemaphorePermit,
}

impl StubSlots {
    pub(super) fn new(count: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(count)), free_since: Mutex::default() }
    }

    /// Waits for a slot for a request that arrived at `arrived`. Returns `None` if the semaphore is closed.
    pub(super) async fn acquire(self: &Arc<Self>, arrived: Instant) -> Option<StubSlot> {
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
