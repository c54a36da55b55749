//! A server that makes delays instead of text: what it is told to take is what the tester must find.

mod inference;
mod report;
mod slots;
mod summaries;

use self::slots::StubSlots;

use crate::units::ns;
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{
    Request, Response, Status,
    transport::server::{Connected, Server},
};
use weir_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use weir_proto::v1::{
    self, Character, Documents, Finished, GenerateRequest, GenerateResponse, GetModelRequest, Limits,
    ListModelsRequest, ListModelsResponse, Model, Piece, ScoreRequest, ScoreResponse, ScoreSummary, SegmentRequest,
    SegmentResponse, Started, Timing, Usage, generate_response, generation_server, latency_server, models_server,
    score_response, summarization_server,
};

/// Messages that may wait for the connection.
const WAITING: usize = 64;
/// Times of requests that are kept.
const MOST_KEPT: usize = 100_000;

/// How a model behaves.
#[derive(Debug, Clone)]
pub struct Script {
    /// Its name.
    pub name: String,
    /// From a request's turn to its first character.
    pub first: Duration,
    /// From one character to the next.
    pub plain: Duration,
    /// The same before a character that ends a segment.
    pub boundary: Duration,
    /// Every so manieth character ends one; 0: the model does not pool.
    pub segment: u64,
    /// Requests that run at once; others wait for their turn.
    pub rows: usize,
    /// From the server's start on: when it hangs, and when it goes on.
    pub pause: Option<(Duration, Duration)>,
    /// Every so manieth request is refused; 0: none is.
    pub refuse: u64,
    /// What it says a text costs.
    pub bits_per_char: f64,
    /// How many times as long it says that requests would have taken without pooling, if it says that.
    pub gain: Option<f64>,
    /// Of what spread it says that the calibration is which that comes from.
    pub spread: f64,
    /// Whether it says that it reads documents.
    pub summarizes: bool,
}

impl Script {
    /// A model that takes no time at all.
    pub fn instant(name: &str) -> Self {
        let none = Duration::ZERO;
        Self {
            name: name.into(),
            first: none,
            plain: none,
            boundary: none,
            segment: 0,
            rows: 1 << 16,
            pause: None,
            refuse: 0,
            bits_per_char: 2.0,
            gain: None,
            spread: 0.02,
            summarizes: false,
        }
    }
}

/// When the server sent a request's characters, by its own clock.
#[derive(Debug, Clone)]
pub struct SentTimes {
    /// When the request came.
    pub came: Instant,
    /// When each character was handed to the connection.
    pub at: Vec<Instant>,
}

/// The server.
#[derive(Clone)]
pub struct Stub {
    models: Arc<Vec<(Script, Arc<StubSlots>)>>,
    start: Instant,
    sent: Arc<Mutex<Vec<SentTimes>>>,
    count: Arc<Mutex<u64>>,
}

impl Stub {
    /// With these models; its time begins now.
    pub fn new(scripts: Vec<Script>) -> Self {
        let models = scripts.into_iter().map(|script| {
            let rows = Arc::new(StubSlots::new(script.rows));
            (script, rows)
        });
        Self { models: Arc::new(models.collect()), start: Instant::now(), sent: Arc::default(), count: Arc::default() }
    }

    /// When it sent what, so far.
    pub fn sent(&self) -> Vec<SentTimes> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves on these connections until `end`. They should send at once: what waits for company reaches a reader late.
    ///
    /// # Errors
    /// The connections' own.
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

    fn model(&self, name: &str) -> Result<&(Script, Arc<StubSlots>), Status> {
        let named = self.models.iter().find(|(script, _)| name.is_empty() || script.name == name);
        named.ok_or_else(|| Status::not_found(format!("no model {name:?}")))
    }

    fn is_refused(&self, script: &Script) -> bool {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        script.refuse > 0 && count.is_multiple_of(script.refuse)
    }
}

/// A request that is being answered.
struct StubGeneration {
    stub: Stub,
    script: Script,
    rows: Arc<StubSlots>,
    prompt: u64,
    chars: u64,
    boundaries: bool,
    out: mpsc::Sender<Result<GenerateResponse, Status>>,
}

impl StubGeneration {
    /// Answers; ends early if nobody reads.
    async fn run(self) -> Option<()> {
        let came = Instant::now();
        let mut row = self.rows.acquire(came).await?;
        let (queue, mut at) = (came.elapsed(), Vec::new());
        let model = self.script.name.clone();
        let started = Started { request_id: String::new(), model, prompt_chars: self.prompt, cached_chars: 0 };
        self.send(generate_response::Event::Started(started)).await?;
        let mut due = row.begun;
        for number in 1..=self.chars {
            let ends = self.ends(number);
            // counted from when it was due, as the row is, so that the stub's own delays do not add up
            due += if number == 1 {
                self.script.first
            } else if ends {
                self.script.boundary
            } else {
                self.script.plain
            };
            self.wait(&mut due).await;
            at.push(Instant::now());
            let piece = self.piece(ends);
            self.send(generate_response::Event::Piece(piece)).await?;
        }
        row.until(due);
        self.send(generate_response::Event::Finished(self.finished(queue, came, at.first().copied()))).await?;
        let mut sent = self.stub.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() < MOST_KEPT {
            sent.push(SentTimes { came, at });
        }
        Some(())
    }

    fn ends(&self, number: u64) -> bool {
        number.checked_rem(self.script.segment) == Some(0)
    }

    /// Until the moment, and the end of the pause if that is later; the moments after it are then counted from there.
    async fn wait(&self, due: &mut Instant) {
        if *due > Instant::now() {
            sleep_until(*due).await;
        }
        if let Some((from, to)) = self.script.pause {
            let (from, to) = (self.stub.start + from, self.stub.start + to);
            if (from..to).contains(&Instant::now()) {
                sleep_until(to).await;
                *due = to;
            }
        }
    }

    fn piece(&self, ends: bool) -> Piece {
        let told = || Character { text: "x".into(), boundary: Some(ends), ..Default::default() };
        let characters = if self.boundaries { vec![told()] } else { Vec::new() };
        Piece { text: "x".into(), characters, prompt: false }
    }

    fn finished(&self, queue: Duration, came: Instant, first: Option<Instant>) -> Finished {
        let segments = self.chars.checked_div(self.script.segment).unwrap_or(0);
        let usage = Usage {
            prompt_chars: self.prompt,
            generated_chars: self.chars,
            prompt_segments: self.prompt.checked_div(self.script.segment).unwrap_or(0),
            generated_segments: segments,
            ..Default::default()
        };
        let (prefill_ns, decode_ns) = (ns(self.script.first), first.map_or(0, |first| ns(first.elapsed())));
        let estimate = |took: u64| self.script.gain.map(|gain| (took as f64 * gain) as u64);
        let timing = Timing {
            queue_ns: ns(queue),
            prefill_ns,
            decode_ns,
            unpooled_estimate_ns: estimate(prefill_ns + decode_ns),
            gain_estimate: self.script.gain,
            unpooled_prefill_estimate_ns: estimate(prefill_ns),
            unpooled_decode_estimate_ns: estimate(decode_ns),
            time_to_first_char_ns: first.map_or(0, |first| ns(first - came)),
            total_ns: ns(came.elapsed()),
            ..Default::default()
        };
        Finished { usage: Some(usage), timing: Some(timing), ..Default::default() }
    }

    async fn send(&self, event: generate_response::Event) -> Option<()> {
        self.out.send(Ok(GenerateResponse { event: Some(event) })).await.ok()
    }
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl generation_server::Generation for Stub {
    type GenerateStream = ResponseStream<GenerateResponse>;
    type ScoreStream = ResponseStream<ScoreResponse>;

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let request = request.into_inner();
        let (script, rows) = self.model(request.model())?.clone();
        if self.is_refused(&script) {
            return Err(Status::resource_exhausted("the queue is full"));
        }
        let (out, answers) = mpsc::channel(WAITING);
        let job = StubGeneration {
            stub: self.clone(),
            script,
            rows,
            prompt: request.prompt.chars().count() as u64,
            chars: request.stopping.unwrap_or_default().max_chars().into(),
            boundaries: request.details.unwrap_or_default().boundaries(),
            out,
        };
        tokio::spawn(job.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn score(&self, request: Request<ScoreRequest>) -> Result<Response<Self::ScoreStream>, Status> {
        let request = request.into_inner();
        let (script, _) = self.model(request.model())?;
        // one step's time for a text, whatever its length
        sleep(script.plain).await;
        let scored_chars = request.text.chars().count().saturating_sub(1) as u64;
        let summary = ScoreSummary { bits_per_char: Some(script.bits_per_char), scored_chars, ..Default::default() };
        let answer = ScoreResponse { event: Some(score_response::Event::Summary(summary)) };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(answer)))))
    }

    async fn segment(&self, _: Request<SegmentRequest>) -> Result<Response<SegmentResponse>, Status> {
        Err(Status::unimplemented("it has no text to segment"))
    }
}

#[tonic::async_trait]
impl models_server::Models for Stub {
    async fn list_models(&self, _: Request<ListModelsRequest>) -> Result<Response<ListModelsResponse>, Status> {
        Ok(Response::new(ListModelsResponse {
            models: self.models.iter().map(|(script, _)| described(script)).collect(),
        }))
    }

    async fn get_model(&self, request: Request<GetModelRequest>) -> Result<Response<v1::Model>, Status> {
        Ok(Response::new(described(&self.model(request.into_inner().name())?.0)))
    }
}

fn described(script: &Script) -> Model {
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
