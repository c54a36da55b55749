//! A client of the simulated server: one connection, and the calls on it.

use crate::document_model::{MARKS, hypotheses};
use crate::network::{Dialer, Link};
use crate::plan::{Reading, key};
use crate::scenario::Scenario;
use crate::toy_model::{SAMPLED, SYMBOLS, logits_after};
use crate::*;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status, Streaming};
use tonic_types::StatusExt;
use weir::engine::summary::Summarize;
use weir_proto::{
    CodecEvent,
    inference::{
        ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
        model_infer_request::InferInputTensor,
    },
    v1::{
        self, CompressOptions, CompressRequest, DecompressOptions, DecompressRequest, DocumentChunk, FinishReason,
        SummarizeOptions, SummarizeRequest, SummarizeResponse, SummaryFinished, codec_client::CodecClient,
        compress_request, decompress_request, generate_response, generation_client::GenerationClient,
        models_client::ModelsClient, score_response::Event as ScoreEvent, summarization_client::SummarizationClient,
        summarize_request::Part, summarize_response,
    },
};

/// How long a client waits for the end of a call. Longer than any limit of the server.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pause of a flooding client after a refusal.
const RETRY: Duration = Duration::from_millis(20);

/// A connected client.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) channel: Channel,
    /// The API keys with which a call on this connection was complete. They stay valid for it after a reload.
    used: Arc<Mutex<Option<KeySet>>>,
    /// Connects over HTTP/1.1.
    pub(crate) http: Arc<Mutex<Dialer>>,
    number: usize,
    pub(crate) tenant: usize,
    /// True if the connection may break.
    pub(crate) has_faults: bool,
}

/// How a call ended for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The response is complete.
    Complete,
    /// The server refused it, or ended it with an error, for this reason.
    Refused(String),
    /// The connection broke.
    Disconnected,
    /// The client cancelled it.
    Cancelled,
}

/// Returns the text that a planned call generates with temperature 0: the most probable symbols, each chosen after the one before,
/// of equally probable ones the first. A prompt that makes the step panic has none.
fn generated(CallPlan { prompt, count, .. }: &CallPlan) -> String {
    if prompt.contains('!') {
        return String::new();
    }
    let id = |symbol: char| SYMBOLS.iter().position(|known| known.starts_with(symbol)).unwrap() as u32;
    let mut text: Vec<u32> = prompt.chars().map(id).collect();
    for _ in 0..*count {
        let logits = logits_after(&text);
        let best = (0..SAMPLED as usize).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        text.push(best as u32);
    }
    text[prompt.len()..].iter().map(|&symbol| SYMBOLS[symbol as usize]).collect()
}

/// Runs a client until all of its calls have ended.
pub(crate) async fn run(scenario: Arc<Scenario>, plan: ClientPlan, number: usize, mut random: Random) {
    sleep(plan.start).await;
    let Some((client, link)) = Client::connect(&scenario, &plan, number, random.split()).await else {
        return scenario.log.line(format_args!("client {number} could not connect"));
    };
    let (leave, left) = oneshot::channel();
    let faults = tokio::spawn(break_link(link, plan.link, left));
    if plan.floods {
        client.flood(&plan.calls).await;
    } else if plan.parallel {
        let mut calls = JoinSet::new();
        for (index, call) in plan.calls.into_iter().enumerate() {
            let client = client.clone();
            calls.spawn(async move { client.call(&call, index).await });
        }
        while calls.join_next().await.is_some() {}
    } else {
        for (index, call) in plan.calls.iter().enumerate() {
            client.call(call, index).await;
        }
    }
    drop(client);
    // time for the goodbye
    sleep(Duration::from_millis(100)).await;
    drop(leave);
    let _ = faults.await;
}

/// Does to a connection what is planned, and cuts it when the client leaves.
async fn break_link(link: Link, plan: Vec<(Duration, LinkState)>, left: oneshot::Receiver<()>) {
    let faults = async {
        for (pause, state) in plan {
            sleep(pause).await;
            link.set(state);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        _ = left => {}
        () = faults => {}
    }
}

impl Client {
    /// Connects. Returns the client and the control of its connection.
    pub(crate) async fn connect(
        scenario: &Arc<Scenario>,
        plan: &ClientPlan,
        number: usize,
        mut random: Random,
    ) -> Option<(Self, Link)> {
        let address = SocketAddr::from(([10, 0, 0, number as u8 + 1], 1000));
        let link = Link::open();
        let http = Arc::new(Mutex::new(link.dialer(&scenario.http, address, plan.quality, random.split())));
        let mut dialer = link.dialer(&scenario.listener, address, plan.quality, random);
        let connector = tower::service_fn(move |_: Uri| {
            let connecting = dialer.connect();
            async move { connecting.await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://simulated").initial_stream_window_size(plan.window);
        let channel = endpoint.connect_with_connector(connector).await.ok()?;
        let has_faults = !plan.link.is_empty() || scenario.plan.breaks_connections();
        let used = Arc::default();
        Some((
            Self { scenario: Arc::clone(scenario), channel, used, http, number, tenant: plan.tenant, has_faults },
            link,
        ))
    }

    /// Repeats long calls until all other clients are served.
    async fn flood(&self, calls: &[CallPlan]) {
        let mut floods = JoinSet::new();
        for (index, call) in calls.iter().cloned().enumerate() {
            let client = self.clone();
            floods.spawn(async move {
                loop {
                    let end = tokio::select! {
                        biased;
                        () = client.scenario.served.cancelled() => return,
                        end = client.call(&call, index) => end,
                    };
                    if end != End::Complete {
                        sleep(RETRY).await;
                    }
                }
            });
        }
        while floods.join_next().await.is_some() {}
    }

    /// Makes a call, and checks its response and how it ends.
    pub(crate) async fn call(&self, plan: &CallPlan, index: usize) -> End {
        let log = &self.scenario.log;
        let name = format!("call {}.{index}", self.number);
        log.line(format_args!("{name} {:?} {:?} +{}", plan.kind, plan.prompt, plan.count));
        let began = Instant::now();
        let response = async {
            match plan.kind {
                CallKind::Generate => self.generate(plan, &name).await,
                CallKind::Score => self.score(plan, &name).await,
                CallKind::Segment => self.segment(plan, &name).await,
                CallKind::Summarize => self.summarize(plan, &name).await,
                CallKind::Models => self.models(plan, &name).await,
                CallKind::Health => self.check_health(plan, &name).await,
                CallKind::Completion => Ok(self.complete(plan, &name).await),
                CallKind::RoundTrip => self.round_trip(plan, &name).await,
                CallKind::Inference => self.infer(plan, &name).await,
            }
        };
        let keys = self.scenario.keys();
        let limit = if let Reading::Leave(limit) = plan.reading { limit } else { PATIENCE };
        let end = match timeout(limit, response).await {
            Ok(Ok(end)) => end,
            Ok(Err(status)) => self.judge(plan, &status, &name),
            Err(_) => {
                if limit == PATIENCE && !self.has_faults {
                    log.violation(format_args!("{name} never ends"));
                }
                End::Cancelled
            }
        };
        let took = began.elapsed();
        log.line(format_args!("{name} {end:?}"));
        let kind = match &end {
            End::Refused(reason) => reason.as_str(),
            End::Complete => "complete",
            End::Disconnected => "disconnected",
            End::Cancelled => "cancelled",
        };
        log.count(kind, 1);
        if kind == "UNAUTHENTICATED" && plan.kind != CallKind::Completion {
            *self.used.lock().unwrap() = None;
        }
        if end == End::Complete {
            self.count_complete(plan.kind, keys);
        }
        self.scenario.check_fairness(plan, self.number, took, &end, &name);
        end
    }

    /// Counts a call that began while the server had these keys.
    fn count_complete(&self, kind: CallKind, keys: KeySet) {
        let log = &self.scenario.log;
        match kind {
            CallKind::Completion => log.count("completion over HTTP", 1),
            CallKind::RoundTrip => log.count("text that came back", 1),
            CallKind::Inference => log.count("inference", 1),
            CallKind::Summarize => log.count("summary", 1),
            _ => {}
        }
        // a completion has a connection of its own, and health needs no key
        if !matches!(kind, CallKind::Completion | CallKind::Health) && keys == self.scenario.keys() {
            let used = *self.used.lock().unwrap().get_or_insert(keys);
            if used != keys {
                log.count("call with a removed key", 1);
            }
        }
    }

    /// Returns true if a call may have had a removed key: it was on its way during a reload, or it used a connection that has taken the
    /// place of the one on which the key is valid.
    fn may_have_removed_key(&self, call: &CallPlan) -> bool {
        let removed = self.used.lock().unwrap().filter(|used| *used != self.scenario.keys());
        if removed.is_none() || call.kind == CallKind::Completion {
            return self.scenario.has_just_reloaded();
        }
        self.has_faults || self.scenario.plan.closes_idle_connections()
    }

    /// Returns the keys with which this client calls: the keys used on its connection, or the server's.
    fn keys(&self) -> KeySet {
        self.used.lock().unwrap().unwrap_or(self.scenario.keys())
    }

    /// Returns the request of a call. It has an id, because the length of a random one differs once it is compressed.
    pub(crate) fn request<T>(&self, plan: &CallPlan, name: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("x-request-id", name.replace(' ', "-").parse().unwrap());
        if let Some(deadline) = plan.deadline {
            request.set_timeout(deadline);
        }
        if self.scenario.plan.tenants > 0 {
            let key = format!("Bearer {}", key(self.tenant, self.keys()));
            request.metadata_mut().insert("authorization", key.parse().unwrap());
        }
        request
    }

    async fn generate(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let message = v1::GenerateRequest {
            prompt: plan.prompt.clone(),
            sampling: Some(v1::Sampling { temperature: Some(0.0), seed: Some(1), ..Default::default() }),
            stopping: Some(v1::Stopping { max_chars: Some(plan.count as u32), ..Default::default() }),
            stream: Some(v1::Streaming { per_segment: Some(plan.per_segment), ..Default::default() }),
            priority: Some(plan.priority),
            ..Default::default()
        };
        let mut client = GenerationClient::new(self.channel.clone());
        let call = client.generate(self.request(plan, name, message));
        let mut messages = call.await?.into_inner();
        let log = &self.scenario.log;
        let expected = generated(plan);
        let mut text = String::new();
        let mut started = false;
        let mut finished = false;
        for number in 0.. {
            if plan.reading.pause(number).await {
                return Ok(End::Cancelled);
            }
            match messages.message().await?.map(|message| message.event) {
                Some(Some(generate_response::Event::Started(_))) if !started => started = true,
                Some(Some(generate_response::Event::Piece(piece))) if started && !finished => {
                    log.line(format_args!("{name} {:?}", piece.text));
                    text.push_str(&piece.text);
                    if !expected.starts_with(&text) {
                        log.violation(format_args!("{name}: {text:?} instead of {expected:?}"));
                    }
                }
                Some(Some(generate_response::Event::Finished(last))) if started && !finished => {
                    finished = true;
                    if text != expected || last.reason() != FinishReason::MaxChars {
                        log.violation(format_args!("{name}: finished ({:?}) after {text:?}", last.reason()));
                    }
                }
                Some(other) => log.violation(format_args!("{name}: message {number} is {other:?}")),
                None => break,
            }
        }
        if !finished {
            log.violation(format_args!("{name}: the stream ended without its last message"));
        }
        Ok(End::Complete)
    }

    async fn score(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let message = v1::ScoreRequest {
            text: plan.prompt.clone(),
            seed: Some(1),
            priority: Some(plan.priority),
            ..Default::default()
        };
        let mut client = GenerationClient::new(self.channel.clone());
        let call = client.score(self.request(plan, name, message));
        let mut messages = call.await?.into_inner();
        let mut text = String::new();
        let mut summary = None;
        while let Some(message) = messages.message().await? {
            let is_late = summary.is_some();
            match message.event {
                Some(ScoreEvent::Chunk(chunk)) if !is_late => {
                    chunk.characters.iter().for_each(|character| text.push_str(&character.text));
                }
                Some(ScoreEvent::Summary(found)) if !is_late => summary = Some(found),
                other => self.scenario.log.violation(format_args!("{name}: {other:?} follows the summary")),
            }
        }
        let chars = summary.and_then(|summary| summary.usage).map(|usage| usage.prompt_chars as usize);
        if text != plan.prompt || chars != Some(plan.prompt.len()) {
            self.scenario.log.violation(format_args!("{name}: scored {text:?}, {chars:?} characters"));
        }
        Ok(End::Complete)
    }

    async fn segment(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let message = v1::SegmentRequest {
            text: plan.prompt.clone(),
            seed: Some(1),
            priority: Some(plan.priority),
            ..Default::default()
        };
        let mut client = GenerationClient::new(self.channel.clone());
        let call = client.segment(self.request(plan, name, message));
        let response = call.await?.into_inner();
        let text: String = response.segments.iter().map(|segment| segment.text.as_str()).collect();
        if text != plan.prompt {
            self.scenario.log.violation(format_args!("segments of {:?}: {text:?}", plan.prompt));
        }
        Ok(End::Complete)
    }

    /// Sends the longest message that the server takes, which is too long for the model. Returns the reason of the refusal.
    pub(crate) async fn longest_message(&self) -> Option<String> {
        // a tag and the length of the text
        let text = "a".repeat(self.scenario.plan.transport.message_bytes - 3);
        let message = v1::ScoreRequest { text, ..Default::default() };
        let request = self.request(&CallPlan::plain(), "longest", message);
        let status = GenerationClient::new(self.channel.clone()).score(request).await.err()?;
        error_reason(&status)
    }

    async fn models(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let request = self.request(plan, name, v1::ListModelsRequest::default());
        ModelsClient::new(self.channel.clone()).list_models(request).await?;
        Ok(End::Complete)
    }

    async fn check_health(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let request = self.request(plan, name, tonic_health::pb::HealthCheckRequest::default());
        let mut health = tonic_health::pb::health_client::HealthClient::new(self.channel.clone());
        let status = health.check(request).await?.into_inner().status();
        self.scenario.log.line(format_args!("health: {status:?}"));
        Ok(End::Complete)
    }

    /// Checks that an error is one that the plan explains.
    fn judge(&self, call: &CallPlan, status: &Status, name: &str) -> End {
        let plan = &self.scenario.plan;
        let Some(reason) = error_reason(status) else {
            self.scenario.log.line(format_args!("{name}: {:?} {:?}", status.code(), status.message()));
            let expired = call.deadline.is_some() && matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded);
            // The client's library does not send a call again that met the end of an idle connection.
            let is_unsent = plan.closes_idle_connections()
                && status.code() == Code::Cancelled
                && status.message() == "operation was canceled";
            if !(self.has_faults || expired || is_unsent || self.scenario.is_ending()) {
                self.scenario.log.violation(format_args!("{name}: the connection broke: {status:?}"));
            }
            return End::Disconnected;
        };
        if !self.is_explained(call, &reason) {
            self.scenario.log.violation(format_args!("{name}: {reason}: {}", status.message()));
        }
        End::Refused(reason)
    }

    /// Returns true if the plan explains that a call ends for this reason.
    pub(crate) fn is_explained(&self, call: &CallPlan, reason: &str) -> bool {
        let plan = &self.scenario.plan;
        match reason {
            "QUEUE_FULL" | "TOO_MANY" => true,
            "NEVER_FITS" => plan.never_fits(call),
            "DEADLINE" => call.deadline.is_some(),
            "RAN_TOO_LONG" => plan.limits.request_time < Duration::from_secs(3600),
            "STALLED" => matches!(call.reading, Reading::Slow(_) | Reading::Late(_)) || self.has_faults,
            "OUT_OF_MEMORY" => plan.refusals > 0,
            "DRAINING" => self.scenario.is_ending(),
            // A block and the next part of its text never fit together.
            "OVERSIZED" => {
                call.kind == CallKind::RoundTrip && plan.transport.request_memory == plan.transport.message_bytes
            }
            "UNAUTHENTICATED" => self.may_have_removed_key(call),
            "INTERNAL" => plan.has_panics || plan.breaks.is_some(),
            // Over HTTP: all connections are busy, or this one is too old.
            "CONNECTIONS" | "CONNECTION_AGE" => plan.breaks_connections(),
            _ => false,
        }
    }
}

/// Bytes of a message of a request.
const PIECE: usize = 7;

impl Client {
    /// Compresses the prompt in blocks of the planned length, decompresses the data, and checks the text.
    pub(crate) async fn round_trip(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let options = CompressOptions {
            block_chars: Some(plan.count as u32),
            priority: Some(plan.priority),
            ..Default::default()
        };
        let text = plan.prompt.as_bytes().chunks(PIECE).map(|piece| compress_request::Part::Text(piece.to_vec()));
        let parts: Vec<_> = [compress_request::Part::Options(options)].into_iter().chain(text).collect();
        let parts = parts.into_iter().map(|part| CompressRequest { part: Some(part) });
        let mut client = CodecClient::new(self.channel.clone());
        let call = client.compress(self.request(plan, name, tokio_stream::iter(parts)));
        let Some(data) = self.output(plan, name, call.await?.into_inner()).await? else { return Ok(End::Cancelled) };
        let options = DecompressOptions { priority: Some(plan.priority), ..Default::default() };
        let pieces = data.chunks(PIECE).map(|piece| decompress_request::Part::Data(piece.to_vec()));
        let parts: Vec<_> = [decompress_request::Part::Options(options)].into_iter().chain(pieces).collect();
        let parts = parts.into_iter().map(|part| DecompressRequest { part: Some(part) });
        let call = client.decompress(self.request(plan, name, tokio_stream::iter(parts)));
        let Some(text) = self.output(plan, name, call.await?.into_inner()).await? else { return Ok(End::Cancelled) };
        if text != plan.prompt.as_bytes() {
            self.scenario.log.violation(format_args!("{name}: {:?} comes back", String::from_utf8_lossy(&text)));
        }
        Ok(End::Complete)
    }

    /// Reads a response to its end as the plan says. Returns its output, or `None` if the client cancels the call.
    async fn output(
        &self,
        plan: &CallPlan,
        name: &str,
        mut messages: tonic::Streaming<impl Into<Option<CodecEvent>> + 'static>,
    ) -> Result<Option<Vec<u8>>, Status> {
        let mut output = Vec::new();
        let mut summary = None;
        for number in 0.. {
            if plan.reading.pause(number).await {
                return Ok(None);
            }
            match messages.message().await?.map(Into::into) {
                Some(Some(CodecEvent::Output(more))) if summary.is_none() => output.extend(more),
                Some(Some(CodecEvent::Summary(found))) if summary.is_none() => summary = Some(found),
                Some(Some(event)) if summary.is_some() => {
                    self.scenario.log.violation(format_args!("{name}: {event:?} follows the summary"))
                }
                Some(event) => self.scenario.log.violation(format_args!("{name}: {event:?} is no output")),
                None => break,
            }
        }
        if summary.map(|summary| summary.chars) != Some(plan.prompt.len() as u64) {
            self.scenario.log.violation(format_args!("{name}: the stream ends with {summary:?}"));
        }
        Ok(Some(output))
    }
}

/// Bytes that a slow client reads at once.
const SLOW_BYTES: usize = 64;

/// A response whose connection has closed.
struct Response {
    status: u16,
    body: String,
    /// True if nothing of the body is missing.
    is_complete: bool,
}

impl Client {
    /// Completes a prompt, streamed if the plan wants segments. Checks the text and how the response ends.
    pub(crate) async fn complete(&self, plan: &CallPlan, name: &str) -> End {
        let Some(bytes) = self.exchange(plan, name).await else { return End::Cancelled };
        let Some(response) = Response::parse(&bytes) else { return self.broken(plan, name) };
        if response.status != 200 {
            let reason = serde_json::from_str(&response.body).ok().and_then(|body: Value| reason(&body));
            return reason.map_or_else(|| self.broken(plan, name), |reason| self.refused(plan, reason, name));
        }
        let expected = generated(plan);
        let violation =
            |what: &str, found: &str| self.scenario.log.violation(format_args!("{name}: {what}: {found:?}"));
        if !plan.per_segment {
            if !response.is_complete {
                return self.broken(plan, name);
            }
            let text = serde_json::from_str(&response.body).ok().and_then(|body: Value| text(&body));
            if text.as_ref() != Some(&expected) {
                violation("a completion is not its text", &response.body);
            }
            return End::Complete;
        }
        let mut generated = String::new();
        let mut events = response.body.split_terminator("\n\n").peekable();
        while let Some(event) = events.next() {
            if event == "data: [DONE]" {
                if generated != expected || events.peek().is_some() || !response.is_complete {
                    violation("a stream is done after", &generated);
                }
                return End::Complete;
            }
            let data = event.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
            let Some(data) = data else { break };
            if let Some(reason) = reason(&data) {
                return self.refused(plan, reason, name);
            }
            generated += &text(&data).unwrap_or_default();
            if !expected.starts_with(&generated) {
                violation("a stream has another text", &generated);
            }
        }
        if response.is_complete {
            violation("a stream ends without its last event", &response.body);
        }
        self.broken(plan, name)
    }

    /// Sends a request, and reads until the server closes the connection. Returns `None` if the client leaves before.
    async fn exchange(&self, plan: &CallPlan, name: &str) -> Option<Vec<u8>> {
        let body = json!({
            "prompt": plan.prompt, "max_tokens": plan.count, "temperature": 0, "seed": 1, "stream": plan.per_segment,
            "priority": plan.priority,
        });
        let body = body.to_string();
        let mut head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nX-Request-Id: {}\r\n",
            body.len(),
            name.replace(' ', "-")
        );
        if self.scenario.plan.tenants > 0 {
            head += &format!("Authorization: Bearer {}\r\n", key(self.tenant, self.scenario.keys()));
        }
        let connecting = self.http.lock().unwrap().connect();
        let mut bytes = Vec::new();
        let Ok(mut stream) = connecting.await else { return Some(bytes) };
        if stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.is_err() {
            return Some(bytes);
        }
        let mut part = [0; 4096];
        let size = if matches!(plan.reading, Reading::Slow(_)) { SLOW_BYTES } else { part.len() };
        for reads in 0.. {
            if plan.reading.pause(reads).await {
                return None;
            }
            match stream.read(&mut part[..size]).await {
                Ok(0) | Err(_) => break,
                Ok(count) => bytes.extend_from_slice(&part[..count]),
            }
        }
        Some(bytes)
    }

    /// Checks that a refusal is one that the plan explains.
    fn refused(&self, plan: &CallPlan, reason: String, name: &str) -> End {
        let reason = reason.to_uppercase();
        if !self.is_explained(plan, &reason) {
            self.scenario.log.violation(format_args!("{name}: {reason} over HTTP"));
        }
        End::Refused(reason)
    }

    /// Checks that the plan explains why a response is incomplete.
    fn broken(&self, plan: &CallPlan, name: &str) -> End {
        // Over HTTP the server can end a response early only by closing the connection.
        let is_slow = matches!(plan.reading, Reading::Slow(_) | Reading::Late(_));
        if !(self.has_faults || is_slow || self.scenario.is_ending()) {
            self.scenario.log.violation(format_args!("{name}: the response is incomplete"));
        }
        End::Disconnected
    }
}

impl Response {
    /// Parses what a connection received. Returns `None` if that is not even a head.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let received = String::from_utf8_lossy(bytes);
        let (head, body) = received.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if let Some(length) = length {
            return Some(Self { status, body: body.to_owned(), is_complete: length.parse() == Ok(body.len()) });
        }
        let mut rest = body;
        let mut body = String::new();
        while let Some((size, chunk)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).ok()?;
            if size == 0 {
                return Some(Self { status, body, is_complete: true });
            }
            let Some((data, after)) = chunk.split_at_checked(size) else { break };
            body += data;
            rest = after.strip_prefix("\r\n").unwrap_or_default();
        }
        Some(Self { status, body, is_complete: false })
    }
}

fn text(message: &Value) -> Option<String> {
    Some(message["choices"][0]["text"].as_str()?.to_owned())
}

fn reason(message: &Value) -> Option<String> {
    Some(message["error"]["code"].as_str()?.to_owned())
}

/// Bytes before a text in a tensor, which are its length.
const LENGTH_BYTES: usize = 4;

impl Client {
    /// Continues the prompt, and checks the text, which begins with the prompt.
    pub(crate) async fn infer(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let parameters = json!({ "max_tokens": plan.count, "temperature": 0, "seed": 1 });
        let texts = [("text_input", plan.prompt.clone()), ("sampling_parameters", parameters.to_string())];
        let tensor = |(name, _): &(&str, String)| InferInputTensor {
            name: (*name).into(),
            datatype: "BYTES".into(),
            shape: vec![1],
            ..Default::default()
        };
        let raw = |(_, text): &(&str, String)| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        let message = ModelInferRequest {
            model_name: "sim".into(),
            id: "id".into(),
            inputs: texts.iter().map(tensor).collect(),
            raw_input_contents: texts.iter().map(raw).collect(),
            ..Default::default()
        };
        let mut client = GrpcInferenceServiceClient::new(self.channel.clone());
        let response = client.model_infer(self.request(plan, name, message)).await?.into_inner();
        let index = response.outputs.iter().position(|output| output.name == "text_output");
        let text = index.and_then(|index| response.raw_output_contents.get(index)?.get(LENGTH_BYTES..));
        // a prompt that makes the step panic has no response
        let is_expected =
            |text: &[u8]| !plan.prompt.contains('!') && text == (plan.prompt.clone() + &generated(plan)).as_bytes();
        if !text.is_some_and(is_expected) {
            self.scenario.log.violation(format_args!("{name}: inferred {:?}", text.map(String::from_utf8_lossy)));
        }
        Ok(End::Complete)
    }
}

impl Client {
    /// Summarizes the prompt, and once more from the cache if the server has kept it. Checks the summaries.
    pub(crate) async fn summarize(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let pieces = plan.prompt.as_bytes().chunks(PIECE).map(String::from_utf8_lossy);
        let chunks = pieces.map(|piece| Part::Chunk(DocumentChunk { text: piece.into_owned(), ids: Vec::new() }));
        let options = self.summary_options(plan, None);
        let parts = [Part::Options(options)].into_iter().chain(chunks).collect();
        let Some(finished) = self.summary(plan, name, parts).await? else { return Ok(End::Cancelled) };
        let Some(id) = finished.document_id else { return Ok(End::Complete) };
        let options = self.summary_options(plan, Some(id));
        match self.summary(plan, name, vec![Part::Options(options)]).await {
            Ok(Some(_)) => self.scenario.log.count("summary of a cached document", 1),
            Ok(None) => return Ok(End::Cancelled),
            // another document has taken its place
            Err(status) if error_reason(&status).as_deref() == Some("UNKNOWN_DOCUMENT") => {
                self.scenario.log.count("document that was not kept", 1);
            }
            Err(status) => return Err(status),
        }
        Ok(End::Complete)
    }

    fn summary_options(&self, plan: &CallPlan, document_id: Option<String>) -> SummarizeOptions {
        let Summarize { beam, min_tokens, max_tokens, .. } = search(plan, self.scenario.plan.limits.rows);
        SummarizeOptions {
            beam_size: beam.map(|beam| beam as u32),
            min_tokens: min_tokens.map(|count| count as u32),
            max_tokens: max_tokens.map(|count| count as u32),
            priority: Some(plan.priority),
            document_id,
            ..Default::default()
        }
    }

    /// Sends a request, and reads its response as the plan says. Returns its last message, or `None` if the client cancels the call.
    async fn summary(&self, plan: &CallPlan, name: &str, parts: Vec<Part>) -> Result<Option<SummaryFinished>, Status> {
        let parts = parts.into_iter().map(|part| SummarizeRequest { part: Some(part) });
        let mut client = SummarizationClient::new(self.channel.clone());
        let call = client.summarize(self.request(plan, name, tokio_stream::iter(parts)));
        let mut messages: Streaming<SummarizeResponse> = call.await?.into_inner();
        let mut text = String::new();
        let mut started = false;
        let mut finished = None;
        for number in 0.. {
            if plan.reading.pause(number).await {
                return Ok(None);
            }
            match messages.message().await?.map(|message| message.event) {
                Some(Some(summarize_response::Event::Started(_))) if !started => started = true,
                Some(Some(summarize_response::Event::Progress(_) | summarize_response::Event::Selected(_)))
                    if started && text.is_empty() => {}
                Some(Some(summarize_response::Event::Piece(piece))) if started && finished.is_none() => {
                    text.push_str(&piece.text)
                }
                Some(Some(summarize_response::Event::Finished(last))) if started && finished.is_none() => {
                    finished = Some(last)
                }
                Some(other) => self.scenario.log.violation(format_args!("{name}: message {number} is {other:?}")),
                None => break,
            }
        }
        let expected = best(&plan.prompt, &search(plan, self.scenario.plan.limits.rows), &self.scenario.reader);
        let found = finished.as_ref().and_then(|finished| finished.hypotheses.first());
        if text != expected || found.map(|found| &found.text) != Some(&expected) {
            self.scenario.log.violation(format_args!("{name}: {text:?} and {found:?} instead of {expected:?}"));
        }
        Ok(finished)
    }
}

/// Returns the options of the planned call.
fn search(plan: &CallPlan, rows: usize) -> Summarize {
    Summarize {
        beam: Some(rows.min(2)),
        min_tokens: Some(1),
        max_tokens: Some(plan.count.clamp(1, 40)),
        ..Summarize::default()
    }
}

/// Returns the best summary of a text, from a beam search without a server.
fn best(text: &str, request: &Summarize, model: &DocumentModel) -> String {
    let document: Vec<u32> = text.bytes().map(u32::from).chain([MARKS.end]).collect();
    let found = hypotheses(&document, request, model, 2);
    found[0].text(MARKS.end).iter().map(|token| char::from(*token as u8)).collect()
}

/// Returns the reason of an error, if the server has sent one.
fn error_reason(status: &Status) -> Option<String> {
    status.get_error_details().error_info().map(|info| info.reason.clone())
}
