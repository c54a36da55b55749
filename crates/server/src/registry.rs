//! The models that are served: their engines, from loading to unloading, their health, and the drain at shutdown.

use crate::metrics::{Meter, Metrics};
use std::{
    collections::BTreeMap,
    ops::{ControlFlow, Deref},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    task::Poll,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weir_engine::{
    DocumentEvent, DocumentSource, Event, Events, Handle, Job, Limits, Phase, Terms,
    calibration::{Calibrated, NotCalibrated},
    clock,
    options::{Generate, Sampling, Stopping},
    summary::{ByteRange, Summarize},
};
use weir_kernels::error::{Error, Result, clip};
use weir_models::contract::{DocumentLimits, Model};

/// Returns true if the model continues texts, which it also scores and compresses.
pub(crate) fn continues_text(engine: &Handle) -> bool {
    engine.document_limits().is_none()
}

/// Returns true if the model splits texts into segments.
pub(crate) fn segments_text(engine: &Handle) -> bool {
    continues_text(engine) && engine.card().pooled
}

/// Returns true if the model summarizes documents.
pub(crate) fn summarizes(engine: &Handle) -> bool {
    engine.document_limits().is_some()
}

// Chooses when engines are calibrated: while all engines are idle, because a busy engine would be slowed down, and would distort
// the measurement. A server therefore answers before its models are calibrated. A doubtful calibration is repeated a few times
// when the server is quiet.

/// Interval at which the server checks for idle engines.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);

/// How long all engines must have been idle before each repetition of a doubtful calibration. The waits grow, because other
/// programs that disturb a calibration may run for seconds or for hours.
const REPEAT_AFTER: [Duration; 4] =
    [Duration::from_secs(30), Duration::from_secs(2 * 60), Duration::from_secs(10 * 60), Duration::from_secs(60 * 60)];

impl Engines {
    /// Measures an engine's step times until another engine has work. A failure only appears in the log and in reports, as the
    /// model can be served without a calibration.
    fn calibrate(&self, engine: &Handle) -> Calibrated {
        let name = &engine.card().name;
        let is_repetition = engine.calibration().is_some();
        let calibrated = engine.calibrate(engine.limits().calibration, || self.continue_if_idle());
        match &calibrated {
            Ok(table) => match table.doubt() {
                None => tracing::debug!(model = name, took = ?table.took, spread = table.spread(), "calibrated"),
                // The model serves as well as any other, and reports show the doubt. A busy machine is no fault.
                Some(doubt) if !is_repetition => {
                    tracing::debug!(model = name, took = ?table.took, doubt, "calibrated, but the result is unreliable")
                }
                Some(doubt) => {
                    tracing::debug!(model = name, took = ?table.took, doubt, "calibrated again, still unreliable")
                }
            },
            Err(missing) => tracing::debug!(model = name, why = missing.reason(), "not calibrated"),
        }
        calibrated
    }

    /// Continues a calibration while no engine has work.
    fn continue_if_idle(&self) -> ControlFlow<()> {
        let busy = |engine: &Lease| {
            let load = engine.load();
            load.running + load.queued > 0 || engine.phase() > Phase::Open
        };
        match self.all().iter().chain(&self.draining()).any(busy) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Calibrates uncalibrated engines while all are idle, repeats doubtful calibrations after longer idle times, and stops within
    /// a step when a request arrives. Never returns. [`run`](crate::run::run) does this for its engines.
    pub async fn calibrate_when_idle(self) {
        let mut repetitions = Repetitions::new(clock::now());
        loop {
            if let Some(engine) = self.next_to_calibrate(&mut repetitions) {
                let engines = self.clone();
                let generation = engine.generation();
                let is_repetition = engine.calibration().is_some();
                // An error or a panic is logged, and the engine keeps the calibration that it has.
                let calibrated = tokio::task::spawn_blocking(move || engines.calibrate(&engine)).await;
                if is_repetition {
                    repetitions.record(generation, !matches!(calibrated, Ok(Err(NotCalibrated::Stopped))));
                }
            }
            tokio::time::sleep(IDLE_INTERVAL).await;
        }
    }

    /// Returns an engine without a calibration, or one whose doubtful calibration is due to be repeated; `None` while any has work.
    fn next_to_calibrate(&self, repetitions: &mut Repetitions) -> Option<Lease> {
        let open: Vec<Lease> = self.all().into_iter().filter(|engine| engine.phase() == Phase::Open).collect();
        let steps = open.iter().map(|engine| engine.counters().steps).sum();
        let is_idle = self.continue_if_idle().is_continue();
        repetitions.observe(clock::now(), is_idle, steps);
        if !is_idle {
            return None;
        }
        let uncalibrated = open.iter().find(|engine| engine.calibration().is_none());
        uncalibrated.or_else(|| repetitions.next_due(&open)).cloned()
    }
}

/// Decides when doubtful calibrations are repeated.
struct Repetitions {
    /// Idle time of the engines at the latest observation.
    idle: Duration,
    /// Time at which the engines became idle.
    idle_since: Instant,
    /// Steps of all engines at the latest observation. A larger number shows that requests came and ended since.
    steps: u64,
    /// Completed repetitions, by the number of the generation.
    completed: BTreeMap<u64, usize>,
}

impl Repetitions {
    fn new(now: Instant) -> Self {
        Self { idle: Duration::ZERO, idle_since: now, steps: 0, completed: BTreeMap::new() }
    }

    /// Records whether all engines are idle `now`, and how many steps they have run.
    fn observe(&mut self, now: Instant, is_idle: bool, steps: u64) {
        if !is_idle || steps != self.steps {
            self.idle_since = now;
        }
        self.steps = steps;
        self.idle = now.saturating_duration_since(self.idle_since);
    }

    /// Returns an engine whose calibration is doubtful and due to be repeated.
    fn next_due<'a>(&mut self, engines: &'a [Lease]) -> Option<&'a Lease> {
        self.completed.retain(|number, _| engines.iter().any(|engine| engine.generation() == *number));
        engines.iter().find(|engine| {
            let is_doubtful = matches!(engine.calibration(), Some(Ok(table)) if table.doubt().is_some());
            is_doubtful && self.is_due(engine.generation())
        })
    }

    /// Returns true if generation `number` is due for a repetition.
    fn is_due(&self, number: u64) -> bool {
        let completed = self.completed.get(&number).copied().unwrap_or(0);
        REPEAT_AFTER.get(completed).is_some_and(|wait| self.idle >= *wait)
    }

    /// Counts a calibration of generation `number` if it is complete. The idle time begins anew after one that a request stopped.
    fn record(&mut self, number: u64, is_complete: bool) {
        if is_complete {
            *self.completed.entry(number).or_default() += 1;
        } else {
            self.idle_since = clock::now();
        }
    }
}

/// Delay after which clients should retry elsewhere. A client with several servers tries the next one by itself.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Admits requests until the shutdown, which waits until no [`RequestPermit`] exists. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// True once new requests are rejected. Each permit has a receiver, so this also counts the running requests.
    closed: Arc<watch::Sender<bool>>,
    /// Cancelled when running requests must end.
    ended: CancellationToken,
}

/// A request's permission to run, held until its response is complete or dropped.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    _running: watch::Receiver<bool>,
    ended: CancellationToken,
}

impl Gate {
    pub(crate) fn open() -> Self {
        Self { closed: Arc::new(watch::Sender::new(false)), ended: CancellationToken::new() }
    }

    /// Admits a request. Fails with [`Error::Draining`] once the server is shutting down.
    pub(crate) fn enter(&self) -> Result<RequestPermit> {
        // The permit is counted before the check: a request that arrives during `close` is either waited for or rejected.
        let running = self.closed.subscribe();
        let is_closed = *running.borrow();
        if is_closed {
            Err(draining_error())
        } else {
            Ok(RequestPermit { _running: running, ended: self.ended.clone() })
        }
    }

    /// Waits until the server begins to shut down. The future counts as a running request.
    pub(crate) fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.closed.subscribe();
        async move {
            // An error means that the server is gone.
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    /// Rejects new requests, and waits up to `limit` for running ones. Returns true if all have finished.
    pub(crate) async fn close(&self, limit: Duration) -> bool {
        self.closed.send_replace(true);
        tokio::time::timeout(limit, self.closed.closed()).await.is_ok()
    }

    /// Ends the requests that still run.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}

impl RequestPermit {
    /// Waits until the request must end. Returns the error to send.
    pub(crate) async fn ended(&self) -> Error {
        self.ended.cancelled().await;
        draining_error()
    }

    /// Is cancelled when the request must end.
    pub(crate) fn ending(&self) -> &CancellationToken {
        &self.ended
    }
}

/// Returns the error for requests that arrive during the shutdown.
pub(crate) fn draining_error() -> Error {
    Error::Draining { retry: RETRY_DELAY }
}

// Loading a model again starts a new generation for new requests. Running requests keep the old one, which is dropped after the last of
// them. One lock guards both leasing and replacing, so no request finds a generation that is being dropped. Dropping the last lease
// never waits for the worker.

/// Maximum bytes of an unknown name that an error repeats.
const NAME_BYTES: usize = 128;

/// Interval at which [`Engines::stop`] looks whether workers have ended.
const STOP_INTERVAL: Duration = Duration::from_millis(5);

/// The running engines by model name. Clones share them.
#[derive(Clone, Default)]
pub struct Engines(Arc<EnginesState>);

#[derive(Default)]
struct EnginesState {
    metrics: Arc<Metrics>,
    table: RwLock<EngineTable>,
    /// Counts the changes of the table, and wakes the tasks that wait for one.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct EngineTable {
    serving: BTreeMap<String, Arc<EngineGeneration>>,
    /// Generations that only finish their running requests.
    draining: Vec<Arc<EngineGeneration>>,
    /// Names of models that are being launched.
    launching: Vec<String>,
    /// Number of the latest generation.
    last_number: u64,
}

/// An engine in service, from one loading of a model.
struct EngineGeneration {
    number: u64,
    engine: Handle,
    meter: Arc<Meter>,
    folder: Option<PathBuf>,
    /// Closed while no lease exists.
    leases: watch::Sender<()>,
}

/// A warmed-up engine that is not in service yet.
pub struct LaunchedEngine {
    engine: Handle,
    meter: Arc<Meter>,
    folder: Option<PathBuf>,
    /// Keeps the metrics of its name.
    launching: Option<LaunchGuard>,
}

/// Lists a model as being launched. Dropping the guard drops the metrics of its name, unless the model is in service by then.
struct LaunchGuard {
    engines: Engines,
    name: String,
}

impl Drop for LaunchGuard {
    fn drop(&mut self) {
        let mut table = self.engines.write();
        if let Some(index) = table.launching.iter().position(|name| *name == self.name) {
            table.launching.swap_remove(index);
        }
        drop(table);
        self.engines.drop_unused_metrics(&self.name);
    }
}

/// An engine in use. Its generation stays in memory while a lease exists.
#[derive(Clone)]
pub struct Lease {
    // Dropped in this order: once `leases` is closed, no lease refers to the generation.
    generation: Arc<EngineGeneration>,
    _held: watch::Receiver<()>,
}

impl Deref for Lease {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.generation.engine
    }
}

impl Lease {
    /// Returns the number of the generation, counted from 1 in the order of loading.
    pub fn generation(&self) -> u64 {
        self.generation.number
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.generation.meter
    }

    /// Returns the folder that the model was loaded from, if any.
    pub fn folder(&self) -> Option<&Path> {
        self.generation.folder.as_deref()
    }

    fn new(generation: &Arc<EngineGeneration>) -> Self {
        Self { generation: Arc::clone(generation), _held: generation.leases.subscribe() }
    }
}

impl Engines {
    /// Serves these engines without warm-up, calibration or step metrics. Fails if names repeat or `handles` is empty.
    pub fn new(handles: Vec<Handle>) -> Result<Self> {
        let engines = Self::default();
        if handles.is_empty() {
            return Err(Error::Setting("there is no model to serve".into()));
        }
        for engine in handles {
            let meter = engines.metrics().meter(&engine.card().name);
            engines.add(LaunchedEngine { engine, meter, folder: None, launching: None })?;
        }
        Ok(engines)
    }

    /// Starts an engine and warms it up. Blocks meanwhile. Metrics count from after the warm-up. Fails if the operating system
    /// refuses a thread or a step fails.
    pub fn launch(&self, model: Arc<dyn Model>, limits: Limits, folder: Option<PathBuf>) -> Result<LaunchedEngine> {
        let launching = LaunchGuard { engines: self.clone(), name: model.card().name.clone() };
        self.write().launching.push(launching.name.clone());
        let meter = self.metrics().meter(&launching.name);
        let engine = Handle::start_with(model, limits, Arc::clone(&meter) as _)?;
        warm_up(&engine).map_err(|error| match error {
            Error::NeverFits { needed, limit, .. } | Error::OutOfPages { needed, limit } => Error::Setting(format!(
                "the model {:?} needs {needed} bytes of key-value memory for its first prompt, --kv-memory leaves {limit}",
                launching.name
            )),
            other => other,
        })?;
        meter.begin();
        Ok(LaunchedEngine { engine, meter, folder, launching: Some(launching) })
    }

    /// Returns how long a client may leave its response unread: the longest limit of any engine.
    pub(crate) fn stall(&self) -> Duration {
        let limits = self.all().into_iter().map(|engine| engine.limits().stall);
        limits.max().unwrap_or_else(|| Limits::default().stall)
    }

    /// Puts an engine into service under a new name. Returns its generation's number. Fails if the name is in use.
    pub fn add(&self, launched: LaunchedEngine) -> Result<u64> {
        let name = launched.engine.card().name.clone();
        if self.read().serving.contains_key(&name) {
            return Err(Error::Setting(format!("two models are named {name:?}: rename one of their folders")));
        }
        Ok(self.install(launched).0.generation())
    }

    /// Puts an engine into service, in place of the generation with its name. Returns that generation's number too: it drains.
    pub(crate) fn replace(&self, launched: LaunchedEngine) -> (Lease, Option<u64>) {
        let (lease, before) = self.install(launched);
        let number = before.as_ref().map(|before| before.number);
        if let Some(before) = before {
            self.drain(before);
        }
        (lease, number)
    }

    /// Takes a model out of service, so that its generation drains. Returns its number, or [`Error::UnknownModel`].
    pub(crate) fn remove(&self, name: &str) -> Result<u64> {
        let mut table = self.write();
        let Some(generation) = table.serving.remove(name) else {
            drop(table);
            return Err(self.unknown("name", name));
        };
        table.draining.push(Arc::clone(&generation));
        drop(table);
        let number = generation.number;
        self.drain(generation);
        self.notify_change();
        Ok(number)
    }

    /// Returns the engine of that name, or the only engine if no name is given. Fails with [`Error::UnknownModel`], or
    /// with [`Error::BadOption`] if no name is given and there are several engines.
    pub fn find(&self, field: &'static str, name: Option<&str>) -> Result<Lease> {
        self.find_able(field, name, |_| true)
    }

    /// Returns the engine of that name. If no name is given, returns the only engine that `can` answer the call and is not an
    /// unpooled baseline. If none can, returns any engine, which refuses the call with the reason. Fails as [`find`](Self::find) does.
    pub(crate) fn find_able(
        &self,
        field: &'static str,
        name: Option<&str>,
        can: impl Fn(&Handle) -> bool,
    ) -> Result<Lease> {
        let table = self.read();
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let candidates: Vec<_> = table
                .serving
                .iter()
                .filter(|(_, able)| can(&able.engine) && !able.engine.card().unpooled_baseline)
                .collect();
            if let [(_, only)] = candidates[..] {
                return Ok(Lease::new(only));
            }
            // The call fails with the reason why this model cannot answer it.
            if let Some((_, first)) = table.serving.iter().next().filter(|_| candidates.is_empty()) {
                return Ok(Lease::new(first));
            }
            let names: Vec<_> = candidates.iter().map(|(name, _)| name.as_str()).collect();
            return Err(Error::bad_option(field, "no name", format!("one of {}", names.join(", "))));
        };
        let lease = table.serving.get(name).map(Lease::new);
        drop(table);
        lease.ok_or_else(|| self.unknown(field, name))
    }

    /// Creates an empty table of engines that report to `metrics`.
    pub fn with_metrics(metrics: Metrics) -> Self {
        Self(Arc::new(EnginesState { metrics: Arc::new(metrics), ..EnginesState::default() }))
    }

    /// Returns all engines in service, sorted by name.
    pub fn all(&self) -> Vec<Lease> {
        self.read().serving.values().map(Lease::new).collect()
    }

    /// Returns the engines that drain, in the order in which they left service.
    pub(crate) fn draining(&self) -> Vec<Lease> {
        self.read().draining.iter().map(Lease::new).collect()
    }

    /// Returns the names of the models in service, sorted.
    pub fn names(&self) -> Vec<String> {
        self.read().serving.keys().cloned().collect()
    }

    /// Returns the metrics of all engines.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Renders all metrics as OpenMetrics text.
    pub fn render_metrics(&self) -> Result<String> {
        self.metrics().render(&self.metered()).map_err(unwritable)
    }

    /// Renders all metrics but the histograms as OpenMetrics text.
    pub(crate) fn render_load_metrics(&self) -> Result<String> {
        self.metrics().render_load(&self.metered()).map_err(unwritable)
    }

    /// Returns all engines with their meters, draining ones included.
    fn metered(&self) -> Vec<(Arc<Meter>, Handle)> {
        let mut leases = self.all();
        leases.extend(self.draining());
        leases.iter().map(|lease| (Arc::clone(&lease.generation.meter), Handle::clone(lease))).collect()
    }

    /// Closes all engines, and waits up to `limit` for their workers, which finish the step that they run. Fails if a worker does
    /// not end: dropping its last lease would wait for it.
    pub async fn stop(&self, limit: Duration) -> Result<()> {
        self.close();
        let mut engines = self.all();
        engines.extend(self.draining());
        let began = clock::now();
        while let Some(engine) = engines.iter().find(|engine| !engine.has_ended()) {
            if clock::since(began) >= limit {
                let name = &engine.card().name;
                return Err(Error::Internal(format!(
                    "the worker of {name:?} has not finished its step after {limit:?}"
                )));
            }
            tokio::time::sleep(STOP_INTERVAL).await;
        }
        Ok(())
    }

    /// Closes all engines: each worker ends after the step that it runs.
    pub fn close(&self) {
        self.all().iter().chain(&self.draining()).for_each(|engine| engine.close());
    }

    /// Returns true if the workers of all engines have ended.
    pub fn have_ended(&self) -> bool {
        self.all().iter().chain(&self.draining()).all(|engine| engine.has_ended())
    }

    /// Returns the bytes by which the key-value caches of all engines may still grow.
    pub(crate) fn reserved_bytes(&self) -> usize {
        let leases = self.all().into_iter().chain(self.draining());
        leases.map(|engine| engine.memory()).map(|memory| memory.limit.saturating_sub(memory.in_use)).sum()
    }

    /// Returns a receiver that is notified when engines enter or leave service.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn install(&self, launched: LaunchedEngine) -> (Lease, Option<Arc<EngineGeneration>>) {
        let LaunchedEngine { engine, meter, folder, launching } = launched;
        let name = engine.card().name.clone();
        let mut table = self.write();
        table.last_number += 1;
        let number = table.last_number;
        let generation = Arc::new(EngineGeneration { number, engine, meter, folder, leases: watch::Sender::new(()) });
        let lease = Lease::new(&generation);
        let before = table.serving.insert(name, generation);
        table.draining.extend(before.clone());
        drop(table);
        drop(launching);
        self.notify_change();
        (lease, before)
    }

    /// Waits for the last lease of a generation in `draining`, then drops it.
    fn drain(&self, generation: Arc<EngineGeneration>) {
        let engines = self.clone();
        let name = generation.engine.card().name.clone();
        let number = generation.number;
        tracing::info!(model = name, generation = number, "draining");
        tokio::spawn(async move {
            loop {
                generation.leases.closed().await;
                let mut table = engines.write();
                // A call of `draining` may have taken a lease since.
                if generation.leases.is_closed() {
                    table.draining.retain(|other| other.number != number);
                    break;
                }
            }
            // The worker may have to finish a step for a request whose client has gone.
            let dropped = tokio::task::spawn_blocking(move || drop(generation));
            let failed = dropped.await.is_err();
            engines.drop_unused_metrics(&name);
            tracing::info!(model = name, generation = number, failed, "unloaded");
            engines.notify_change();
        });
    }

    /// Drops the metrics of a model that is neither launching, in service, nor draining.
    fn drop_unused_metrics(&self, name: &str) {
        // The lock keeps a generation of that name from being installed meanwhile.
        let table = self.write();
        let is_named = |generation: &Arc<EngineGeneration>| generation.engine.card().name == name;
        let is_launching = table.launching.iter().any(|launching| launching == name);
        if !(is_launching || table.serving.contains_key(name) || table.draining.iter().any(is_named)) {
            self.metrics().remove_model(name);
        }
    }

    fn unknown(&self, field: &'static str, name: &str) -> Error {
        Error::UnknownModel { field, name: clip(name, NAME_BYTES), known: self.names() }
    }

    fn notify_change(&self) {
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    fn read(&self) -> RwLockReadGuard<'_, EngineTable> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, EngineTable> {
        self.0.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

// The server is alive while no worker is broken or has spent too long in one round of its loop: only a restart repairs that. It is ready
// from the end of all warm-ups until the shutdown, while it is alive and at least one model is loaded and not broken. A model whose file
// changed is broken without harm to the server: loading it again repairs it.

/// Interval at which the monitor checks the workers.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

fn unwritable(error: std::fmt::Error) -> Error {
    Error::Internal(format!("metrics: {error}"))
}

/// Watches the engines. Clones share the state.
#[derive(Clone)]
pub struct Monitor(Arc<MonitorState>);

struct MonitorState {
    engines: Engines,
    /// Maximum duration of one round of a worker's loop.
    hang: Duration,
    stage: watch::Sender<ServerStage>,
    /// What the health service reports; `None` once its calls end.
    health: watch::Sender<Option<HealthState>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerStage {
    Starting,
    Serving,
    Draining,
}

/// The states that the health service reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HealthState {
    /// Reported for `""`, the server as a whole.
    pub(crate) alive: bool,
    /// Reported for each service and each model.
    pub(crate) ready: bool,
    /// The names of the models in service.
    pub(crate) models: Vec<String>,
    /// The models of these that are broken.
    pub(crate) broken: Vec<String>,
}

impl Monitor {
    /// Watches these engines. An engine hangs if a round of its worker's loop lasts longer than `hang`.
    pub fn new(engines: Engines, hang: Duration) -> Self {
        let stage = watch::Sender::new(ServerStage::Starting);
        let health = watch::Sender::new(Some(HealthState::default()));
        Self(Arc::new(MonitorState { engines, hang, stage, health }))
    }

    pub(crate) fn engines(&self) -> &Engines {
        &self.0.engines
    }

    /// Records that every model has been loaded.
    pub(crate) fn set_serving(&self) {
        self.0.stage.send_replace(ServerStage::Serving);
        self.publish();
    }

    /// Records that the server is shutting down.
    pub(crate) fn set_draining(&self) {
        self.0.stage.send_replace(ServerStage::Draining);
        self.publish();
    }

    /// Ends the streams that watch health.
    pub(crate) fn end_health(&self) {
        self.0.health.send_replace(None);
    }

    /// Returns what the health service reports; `None` once its calls end.
    pub(crate) fn published(&self) -> watch::Receiver<Option<HealthState>> {
        self.0.health.subscribe()
    }

    /// Checks that no worker is broken or hangs. The error is the reason, as text.
    pub fn alive(&self) -> Result<(), String> {
        let engines = &self.0.engines;
        let serving = engines.all();
        let broken = serving.iter().filter(|engine| engine.phase() == Phase::Broken && !engine.has_lost_file());
        let broken: Vec<_> = broken.map(|engine| engine.card().name.as_str()).collect();
        if !broken.is_empty() {
            return Err(format!("the workers of these models have broken: {}", broken.join(", ")));
        }
        for engine in serving.iter().chain(&engines.draining()) {
            if let Some(busy) = engine.busy_for().filter(|busy| *busy > self.0.hang) {
                let name = &engine.card().name;
                let limit = self.0.hang;
                return Err(format!(
                    "the worker of {name:?} has been in one step for {busy:.1?}, the limit is {limit:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the server can take requests. The error is the reason, as text.
    pub fn ready(&self) -> Result<(), String> {
        match *self.0.stage.borrow() {
            ServerStage::Starting => return Err("models are being loaded".into()),
            ServerStage::Draining => return Err("the server is shutting down".into()),
            ServerStage::Serving => {}
        }
        let serving = self.0.engines.all();
        if serving.is_empty() {
            return Err("no model is loaded".into());
        }
        if serving.iter().all(|engine| engine.has_lost_file()) {
            return Err("the files of all models have changed: load them again".into());
        }
        self.alive()
    }

    /// Records the current state in the metrics.
    pub(crate) fn record(&self) {
        self.0.engines.metrics().record_health(self.alive().is_ok(), self.ready().is_ok());
    }

    /// Publishes every change to the health service; never returns.
    pub(crate) async fn publish_changes(&self) {
        let mut changes = self.0.engines.changes();
        let mut before = None;
        loop {
            changes.mark_unchanged();
            let HealthState { alive, ready, .. } = self.publish();
            if before.is_none_or(|before| before != (alive, ready)) {
                match (before, self.alive().and_then(|()| self.ready())) {
                    (_, Err(why)) => tracing::error!(live = alive, ready, why, "health"),
                    (Some(_), Ok(())) => tracing::info!("ready again"),
                    (None, Ok(())) => {}
                }
                before = Some((alive, ready));
            }
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = self.wait_for_broken_worker(ready) => {}
                () = tokio::time::sleep(HEALTH_INTERVAL) => {}
            }
        }
    }

    /// Publishes the current state to the health service, if it has changed. Returns it.
    fn publish(&self) -> HealthState {
        let draining = *self.0.stage.borrow() == ServerStage::Draining;
        let engines = self.0.engines.all();
        let broken = engines.iter().filter(|engine| engine.phase() == Phase::Broken);
        let now = HealthState {
            alive: !draining && self.alive().is_ok(),
            ready: self.ready().is_ok(),
            models: self.0.engines.names(),
            broken: broken.map(|engine| engine.card().name.clone()).collect(),
        };
        self.0.health.send_if_modified(|published| {
            let has_changed = published.as_ref() != Some(&now);
            *published = Some(now.clone());
            has_changed
        });
        now
    }

    /// Waits until a worker breaks. Never returns if the server is not ready anyway.
    async fn wait_for_broken_worker(&self, ready: bool) {
        if !ready {
            return std::future::pending().await;
        }
        let engines = self.0.engines.all();
        // the server may be ready although a model's file changed
        let sound = engines.iter().filter(|engine| engine.phase() != Phase::Broken);
        let mut waits: Vec<Pin<Box<_>>> = sound.map(|engine| Box::pin(engine.wait_until_broken())).collect();
        // The waits hold no lease, which would keep an unloaded engine in memory.
        drop(engines);
        std::future::poll_fn(|cx| match waits.iter_mut().any(|wait| wait.as_mut().poll(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

// An engine's first steps touch caches, tables and pages once, and reveal a model that cannot step. Its caches of texts and documents
// stay empty.

const WARM_UP_TENANT: &str = "weir:warm-up";

/// Number of characters to generate.
const WARM_UP_CHARS: usize = 16;

/// Number of different symbols in the prompt. Their choice does not matter.
const WARM_UP_SYMBOLS: usize = 4;

/// Runs a prompt of one full chunk and a few characters through the engine. Blocks until the request ends. Fails with
/// the error that the engine reports.
fn warm_up(engine: &Handle) -> Result<()> {
    match engine.document_limits() {
        None => finish_warm_up(warm_up_text(engine)?),
        Some(limits) => finish_warm_up(warm_up_document(engine, limits)?),
    }
}

fn warm_up_text(engine: &Handle) -> Result<Events> {
    let card = engine.card();
    let chars = WARM_UP_CHARS.min(card.max_symbols.saturating_sub(1)).max(1);
    let length = engine.limits().chunk.min(card.max_symbols.saturating_sub(chars)).max(1);
    let symbols: Vec<u32> = card.vocabulary.text_ids().take(WARM_UP_SYMBOLS).collect();
    let prompt = symbols.iter().copied().cycle().take(length).collect();
    let job = Generate {
        prompt,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stopping: Stopping { max_chars: chars, ignore_end: true, ..Stopping::default() },
        ..Generate::default()
    };
    engine.submit(Job::Generate(job), warm_up_terms())
}

/// Summarizes a document of at most two blocks into a few tokens.
fn warm_up_document(engine: &Handle, limits: &DocumentLimits) -> Result<Events> {
    let marks = limits.marks;
    let symbols = engine.card().vocabulary.text_ids().filter(|id| ![marks.start, marks.pad, marks.end].contains(id));
    let symbols: Vec<u32> = symbols.take(WARM_UP_SYMBOLS).collect();
    let length = limits.tokens.min(limits.block.saturating_mul(2)).saturating_sub(1).max(1);
    let ids: Vec<u32> = symbols.iter().copied().cycle().take(length).chain([marks.end]).collect();
    let (upload, document) = engine.upload();
    upload.use_once();
    let tokens = WARM_UP_CHARS.min(limits.targets.saturating_sub(1)).max(1);
    let request = Summarize {
        beam: Some(1),
        min_tokens: Some(tokens),
        max_tokens: Some(tokens),
        no_repeat_ngram: Some(0),
        ..Summarize::default()
    };
    let events = engine.summarize(&request, DocumentSource::Uploading(document), warm_up_terms())?;
    upload.push(&ids, &vec![ByteRange::default(); ids.len()]);
    upload.close(false);
    Ok(events)
}

fn warm_up_terms() -> Terms {
    Terms { tenant: Arc::from(WARM_UP_TENANT), use_once: true, ..Terms::default() }
}

fn finish_warm_up(mut events: Events) -> Result<()> {
    loop {
        match events.blocking_recv() {
            Some(Ok(Event::Finished { .. } | Event::Document(DocumentEvent::Summarized(_)))) => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(Error::Internal("the engine dropped the warm-up request without an event".into())),
        }
    }
}
