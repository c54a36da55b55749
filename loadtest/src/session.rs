//! Measurements of one server by one command.

use crate::args::{LoadLimits, ServerArgs, WorkloadArgs};
use crate::client::{self, MAX_CONNECTIONS, ModelInfo, ServerSoftware};
use crate::driver::{LoadRun, LoadSetup, RequestSource, StopSignal, WorkloadMix, run_load};
use crate::error::{Error, Result};
use crate::output::{AbortLog, LoadProgress, note};
use crate::report::{Conditions, FORMAT, LoadPoint, MeasurementReport, ReportPart};
use crate::schedule::{ArrivalSchedule, LoadPattern, Pacer};
use crate::workload::{RequestTarget, WorkloadInfo};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::{sync::watch, time::Instant};
use weir_client::connection::ServerEndpoint;

/// Difference between the seeds of a command's measurements. It is odd, so that all seeds differ.
const SEED_STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Calls on one connection if the server does not report a limit.
const DEFAULT_STREAMS: usize = 100;

/// The sessions of a command share all but the models, their workloads and the number of measurements.
#[derive(Clone)]
pub(crate) struct MeasurementSession {
    pub(crate) server: ServerArgs,
    endpoint: ServerEndpoint,
    software: Option<ServerSoftware>,
    pub(crate) workload: WorkloadArgs,
    pub(crate) models: Vec<ModelInfo>,
    workloads: Vec<WorkloadInfo>,
    begun: u64,
    command: String,
    pub(crate) stop: StopSignal,
    /// Measurements so far. Each sends different prompts; otherwise the server's cache would serve the previous measurement's.
    measured: Arc<AtomicU64>,
    pub(crate) abort: AbortLog,
}

impl MeasurementSession {
    /// Connects and selects the models called `names`. Without names, selects the server's only model, or every model if `all`.
    pub(crate) async fn open(
        server: ServerArgs,
        workload: WorkloadArgs,
        names: &[String],
        all: bool,
        command: String,
    ) -> Result<Self> {
        let mut session = Self::connect(server, workload, names, all, command).await?;
        session.workloads = session.mix(session.workload.seed)?.infos();
        Ok(session)
    }

    /// Connects and opens a session for each kind of models, generating and summarizing. The kind of the first model comes first.
    pub(crate) async fn by_kind(
        server: ServerArgs,
        workload: WorkloadArgs,
        names: &[String],
        command: String,
    ) -> Result<Vec<Self>> {
        let all = Self::connect(server, workload, names, true, command).await?;
        let first = all.models.first().is_some_and(|model| model.summarizes);
        let mut sessions = Vec::new();
        for summarizes in [first, !first] {
            let mut models = all.models.clone();
            models.retain(|model| model.summarizes == summarizes);
            if !models.is_empty() {
                let workload = all.workload.only(summarizes)?;
                let mut session = Self { workload, models, measured: Arc::default(), ..all.clone() };
                session.workloads = session.mix(session.workload.seed)?.infos();
                sessions.push(session);
            }
        }
        Ok(sessions)
    }

    /// Connects and selects models, whose workloads are not yet described.
    async fn connect(
        server: ServerArgs,
        workload: WorkloadArgs,
        names: &[String],
        all: bool,
        command: String,
    ) -> Result<Self> {
        let endpoint = server.endpoint()?;
        let client = server.first_connection(&endpoint).await?;
        let mut known = client::list(&client).await?;
        let models = match (all, names) {
            // a model that does not pool is the baseline
            (true, []) => {
                known.sort_by_key(ModelInfo::pools);
                known
            }
            (true, _) => client::select("--models", names, &known)?,
            (false, _) => client::select("--model", names, &known)?,
        };
        if models.is_empty() {
            return Err(Error::Setting("the server has no model".into()));
        }
        Ok(Self {
            server,
            endpoint,
            software: client::fetch_software(&client).await,
            workload,
            models,
            workloads: Vec::new(),
            begun: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            command,
            stop: interruptible()?,
            measured: Arc::default(),
            abort: AbortLog::default(),
        })
    }

    /// True if nothing more is to be measured: the user interrupted the command, or the server is gone.
    pub(crate) fn is_over(&self) -> bool {
        *self.stop.borrow() || self.abort.failed()
    }

    /// Measures one of several loads unless the session is over. Ends the session if the server went away.
    pub(crate) async fn load(&self, model: &ModelInfo, load: LoadPattern, limits: LoadLimits) -> Option<LoadPoint> {
        if self.is_over() {
            return None;
        }
        let point = self.abort.ok_or_record(self.point(model, load, limits).await)?;
        if let Some(why) = &point.broken_off {
            let reason = format!("{}: {}: {why}", self.endpoint.address, load.describe());
            self.abort.ok_or_record::<()>(Err(Error::Server(reason)));
        }
        Some(point)
    }

    pub(crate) fn finish(&self, reports: &mut [MeasurementReport]) -> Option<Error> {
        self.abort.finish(reports, *self.stop.borrow())
    }

    /// Opens connections for `calls` calls at a time. With `boundaries`, requests to a model that pools ask for them.
    pub(crate) async fn target(&self, model: &ModelInfo, calls: usize, boundaries: bool) -> Result<RequestTarget> {
        let streams = match model.concurrent_streams as usize {
            0 => DEFAULT_STREAMS,
            streams => streams,
        };
        let pool = client::pool(&self.endpoint, calls.div_ceil(streams).clamp(1, MAX_CONNECTIONS)).await?;
        let boundaries = boundaries && model.pooled;
        Ok(RequestTarget { pool, model: model.name.clone(), boundaries, timeout: self.workload.timeout })
    }

    /// Returns the seed of the next measurement's requests and arrivals.
    pub(crate) fn next_seed(&self) -> u64 {
        let index = self.measured.fetch_add(1, Relaxed);
        self.workload.seed.wrapping_add(index.wrapping_mul(SEED_STRIDE))
    }

    pub(crate) fn mix(&self, seed: u64) -> Result<WorkloadMix> {
        self.workload.mix(&self.models, seed)
    }

    pub(crate) async fn point(&self, model: &ModelInfo, load: LoadPattern, limits: LoadLimits) -> Result<LoadPoint> {
        let calls = load.concurrency().unwrap_or(limits.max_in_flight);
        let target = self.target(model, calls, true).await?;
        let connections = target.pool.connections.len();
        let seed = self.next_seed();
        let job = Arc::new(LoadSetup { target, mix: self.mix(seed)?, objectives: self.workload.objectives() });
        let schedule = load.rate().map(|rate| ArrivalSchedule::new(rate, seed)).transpose()?;
        let title = format!("{}, {}", model.name, load.describe());
        note(&title);
        let mut length = limits.length;
        let begin = Instant::now();
        let (pacer, source) = match schedule {
            Some(schedule) => {
                length = length.extended(&schedule, limits.min_requests);
                let (pacer, requests) = Pacer::start(length.requests_of(schedule, begin))?;
                (Some(pacer), RequestSource::Open { requests, max_in_flight: limits.max_in_flight })
            }
            None => (None, RequestSource::Closed(calls)),
        };
        let progress = LoadProgress::new(&title, &length);
        let run = LoadRun { length, begin, source, stop: self.stop.clone(), probe_lag: true };
        let result = run_load(job, run, &mut |counters| progress.update(counters, begin)).await?;
        drop(pacer);
        Ok(LoadPoint::new(load, length, result, self.server.threads, connections))
    }

    pub(crate) fn report(&self, parts: Vec<ReportPart>, boundaries: bool) -> MeasurementReport {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let objectives = self.workload.objectives();
        let conditions = Conditions {
            version: env!("CARGO_PKG_VERSION").into(),
            begun_unix_s: self.begun,
            command: self.command.clone(),
            server: self.endpoint.address.clone(),
            software: self.software.clone(),
            tester: format!("{} {}, {cores} cores", std::env::consts::OS, std::env::consts::ARCH),
            note: self.workload.note.clone(),
            models: self.models.clone(),
            workloads: self.workloads.clone(),
            seed: self.workload.seed,
            boundaries: boundaries && self.models.iter().any(|model| model.pooled),
            timeout_ns: weir_measure::format::ns(self.workload.timeout),
            objectives: (!objectives.is_empty()).then(|| objectives.to_string()),
        };
        MeasurementReport { format: FORMAT.into(), conditions, parts, broken_off: None }
    }
}

/// Returns a signal that becomes true on Ctrl-C, and on SIGTERM where the system has it. The command then reports what it measured.
fn interruptible() -> Result<StopSignal> {
    let (interrupt, stop) = watch::channel(false);
    #[cfg(unix)]
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|error| Error::Internal(format!("no handler for SIGTERM: {error}")))?;
    tokio::spawn(async move {
        #[cfg(unix)]
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminated.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
        // fails only if no measurement is running
        let _ = interrupt.send(true);
        std::future::pending::<()>().await;
    });
    Ok(stop)
}
