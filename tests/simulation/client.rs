//! A client of the simulated server: one connection, and the calls on it.

use crate::{
    answer::Answer,
    dice::Dice,
    network::{Dialer, Link, LinkState},
    plan::{CallKind, CallPlan, ClientPlan, KeySet, Reading, key},
    world::World,
};
use hyper_util::rt::TokioIo;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint, Uri},
};
use tonic_types::StatusExt;
use weir_proto::v1::{
    self, generation_client::GenerationClient, models_client::ModelsClient, score_response::Event as ScoreEvent,
};

/// How long a client waits for the end of a call. Longer than any limit of the server.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause of a flooding client after a refusal.
const RETRY: Duration = Duration::from_millis(20);

/// A connected client.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) world: Arc<World>,
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

/// Runs a client until all of its calls have ended.
pub(crate) async fn run(world: Arc<World>, plan: ClientPlan, number: usize, mut dice: Dice) {
    sleep(plan.start).await;
    let Some((client, link)) = Client::connect(&world, &plan, number, dice.split()).await else {
        return world.log.line(format_args!("client {number} could not connect"));
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
        world: &Arc<World>,
        plan: &ClientPlan,
        number: usize,
        mut dice: Dice,
    ) -> Option<(Self, Link)> {
        let address = SocketAddr::from(([10, 0, 0, number as u8 + 1], 1000));
        let link = Link::open();
        let http = Arc::new(Mutex::new(link.dialer(&world.http, address, plan.quality, dice.split())));
        let mut dialer = link.dialer(&world.listener, address, plan.quality, dice);
        let connector = tower::service_fn(move |_: Uri| {
            let connecting = dialer.connect();
            async move { connecting.await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://simulated").initial_stream_window_size(plan.window);
        let channel = endpoint.connect_with_connector(connector).await.ok()?;
        let has_faults = !plan.link.is_empty() || world.plan.breaks_connections();
        let used = Arc::default();
        Some((Self { world: Arc::clone(world), channel, used, http, number, tenant: plan.tenant, has_faults }, link))
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
                        () = client.world.served.cancelled() => return,
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
        let log = &self.world.log;
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
        let keys = self.world.keys();
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
        self.world.check_fairness(plan, self.tenant, took, &end, &name);
        end
    }

    /// Counts a call that began while the server had these keys.
    fn count_complete(&self, kind: CallKind, keys: KeySet) {
        let log = &self.world.log;
        match kind {
            CallKind::Completion => log.count("completion over HTTP", 1),
            CallKind::RoundTrip => log.count("text that came back", 1),
            CallKind::Inference => log.count("inference", 1),
            CallKind::Summarize => log.count("summary", 1),
            _ => {}
        }
        // a completion has a connection of its own, and health needs no key
        if !matches!(kind, CallKind::Completion | CallKind::Health) && keys == self.world.keys() {
            let used = *self.used.lock().unwrap().get_or_insert(keys);
            if used != keys {
                log.count("call with a removed key", 1);
            }
        }
    }

    /// Returns true if a call may have had a removed key: it was on its way during a reload, or it used a connection that has taken the
    /// place of the one on which the key is valid.
    fn may_have_removed_key(&self, call: &CallPlan) -> bool {
        let removed = self.used.lock().unwrap().filter(|used| *used != self.world.keys());
        if removed.is_none() || call.kind == CallKind::Completion {
            return self.world.has_just_reloaded();
        }
        self.has_faults || self.world.plan.closes_idle_connections()
    }

    /// Returns the keys with which this client calls: those that it has used on its connection, or those of the server.
    fn keys(&self) -> KeySet {
        self.used.lock().unwrap().unwrap_or(self.world.keys())
    }

    /// Returns the request of a call. It has an id, because the length of a random one differs once it is compressed.
    pub(crate) fn request<T>(&self, plan: &CallPlan, name: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("x-request-id", name.replace(' ', "-").parse().unwrap());
        if let Some(deadline) = plan.deadline {
            request.set_timeout(deadline);
        }
        if self.world.plan.tenants > 0 {
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
        let mut answer = Answer::new(plan, name, &self.world.log);
        loop {
            if answer.pause(plan.reading).await {
                return Ok(End::Cancelled);
            }
            match messages.message().await? {
                Some(message) => answer.take(message),
                None => return Ok(answer.end()),
            }
        }
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
                other => self.world.log.violation(format_args!("{name}: {other:?} follows the summary")),
            }
        }
        let chars = summary.and_then(|summary| summary.usage).map(|usage| usage.prompt_chars as usize);
        if text != plan.prompt || chars != Some(plan.prompt.len()) {
            self.world.log.violation(format_args!("{name}: scored {text:?}, {chars:?} characters"));
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
            self.world.log.violation(format_args!("segments of {:?}: {text:?}", plan.prompt));
        }
        Ok(End::Complete)
    }

    /// Sends the longest message that the server takes, which is too long for the model. Returns the reason of the refusal.
    pub(crate) async fn longest_message(&self) -> Option<String> {
        // a tag and the length of the text
        let text = "a".repeat(self.world.plan.transport.message_bytes - 3);
        let message = v1::ScoreRequest { text, ..Default::default() };
        let request = self.request(&CallPlan::plain(), "longest", message);
        let status = GenerationClient::new(self.channel.clone()).score(request).await.err()?;
        status.get_error_details().error_info().map(|info| info.reason.clone())
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
        self.world.log.line(format_args!("health: {status:?}"));
        Ok(End::Complete)
    }

    /// Checks that an error is one that the plan explains.
    fn judge(&self, call: &CallPlan, status: &Status, name: &str) -> End {
        let plan = &self.world.plan;
        let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
        let Some(reason) = reason else {
            self.world.log.line(format_args!("{name}: {:?} {:?}", status.code(), status.message()));
            let expired = call.deadline.is_some() && matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded);
            // The client's library does not send a call again that met the end of an idle connection.
            let is_unsent = plan.closes_idle_connections()
                && status.code() == Code::Cancelled
                && status.message() == "operation was canceled";
            if !(self.has_faults || expired || is_unsent || self.world.is_ending()) {
                self.world.log.violation(format_args!("{name}: the connection broke: {status:?}"));
            }
            return End::Disconnected;
        };
        if !self.is_explained(call, &reason) {
            self.world.log.violation(format_args!("{name}: {reason}: {}", status.message()));
        }
        End::Refused(reason)
    }

    /// Returns true if the plan explains that a call ends for this reason.
    pub(crate) fn is_explained(&self, call: &CallPlan, reason: &str) -> bool {
        let plan = &self.world.plan;
        match reason {
            "QUEUE_FULL" | "TOO_MANY" => true,
            "NEVER_FITS" => plan.never_fits(call),
            "DEADLINE" => call.deadline.is_some(),
            "RAN_TOO_LONG" => plan.limits.request_time < Duration::from_secs(3600),
            "STALLED" => matches!(call.reading, Reading::Slow(_) | Reading::Late(_)) || self.has_faults,
            "OUT_OF_MEMORY" => plan.refusals > 0,
            "DRAINING" => self.world.is_ending(),
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
