//! One measurement of a server: connected, interruptible, with a bar that tells how far it is.

use super::{
    abort::AbortLog,
    run_length::RunLengthArgs,
    server::ServerArgs,
    workload::{Boundaries, WorkloadArgs},
};
use crate::{
    client::{
        connection::ConnectOptions,
        models::{self, ModelInfo, ServerSoftware},
    },
    error::{Error, Result},
    load::{
        driver::{LoadSetup, RequestSource, StopSignal, run_load},
        pacer::Pacer,
        schedule::{LoadPattern, RunLength},
        settings,
        workload::{RequestTarget, SUMMARIZE, WorkloadInfo, WorkloadMix},
    },
    measure::counters::LiveCounters,
    report::data::{Conditions, FORMAT, LoadPoint, MeasurementReport, ReportPart},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{sync::watch, time::Instant};

/// What seeds of one command's measurements are apart: an odd number, so that no two are the same.
const APART: u64 = 0x9e37_79b9_7f4a_7c15;
/// Calls on one connection, where the server does not say.
const STREAMS: usize = 100;

pub(super) struct MeasurementSession {
    server: ServerArgs,
    reach: ConnectOptions,
    software: Option<ServerSoftware>,
    pub(super) work: WorkloadArgs,
    /// The models that are asked.
    pub(super) models: Vec<ModelInfo>,
    /// All models of the server.
    known: Vec<ModelInfo>,
    workloads: Vec<WorkloadInfo>,
    begun: u64,
    command: String,
    pub(super) stop: StopSignal,
    pub(super) cancel: f64,
    /// Measurements so far: each asks for other prompts, or the server's cache would answer for the one before.
    measured: AtomicU64,
    broken: AbortLog,
}

impl MeasurementSession {
    /// Connects, and finds the models; of no names the only one there is, or, if `all`, every one.
    pub(super) async fn open(
        server: ServerArgs,
        work: WorkloadArgs,
        names: &[String],
        all: bool,
        command: String,
    ) -> Result<Self> {
        let found = Discovery::look(&server, names, all).await?;
        let models = found.models.clone();
        let session = Self::of(found, models, (server, work, command), interruptible()?)?;
        searched(std::slice::from_ref(&session))?;
        Ok(session)
    }

    /// The same, a session for those that write texts and one for those that read documents, which are asked for other things; the
    /// kind of the first model is first.
    pub(super) async fn by_kind(
        server: ServerArgs,
        work: WorkloadArgs,
        names: &[String],
        command: String,
    ) -> Result<Vec<Self>> {
        let (found, stop) = (Discovery::look(&server, names, true).await?, interruptible()?);
        let first = found.models.first().is_some_and(|model| model.summarizes);
        let mut sessions = Vec::new();
        for reads in [first, !first] {
            let models: Vec<ModelInfo> =
                found.models.iter().filter(|model| model.summarizes == reads).cloned().collect();
            if !models.is_empty() {
                let of = (server.clone(), work.only(reads)?, command.clone());
                sessions.push(Self::of(found.clone(), models, of, stop.clone())?);
            }
        }
        searched(&sessions)?;
        Ok(sessions)
    }

    fn of(
        Discovery { reach, software, known, broken, .. }: Discovery,
        models: Vec<ModelInfo>,
        (server, work, command): (ServerArgs, WorkloadArgs, String),
        stop: StopSignal,
    ) -> Result<Self> {
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        // checks them, and reads their files, before anything is measured
        let mut workloads = work.mix(&models, &known, 0.0, work.seed)?.info();
        for WorkloadInfo { model, settings, .. } in &mut workloads {
            let asked: Vec<_> = match model {
                Some(name) => known.iter().filter(|known| known.name == *name).collect(),
                None => models.iter().collect(),
            };
            settings::tell(settings, &asked);
        }
        Ok(Self {
            server,
            reach,
            software,
            work,
            models,
            known,
            workloads,
            begun,
            command,
            stop,
            cancel: 0.0,
            measured: AtomicU64::new(0),
            broken,
        })
    }

    /// Whether nothing more is to be measured: the user has had enough, or the server is gone.
    pub(super) fn is_over(&self) -> bool {
        *self.stop.borrow() || self.broken.failed()
    }

    /// A workload that names a model of its own, if there is one.
    pub(super) fn named(&self) -> Option<(&str, &str)> {
        self.workloads.iter().find_map(|workload| Some((workload.name.as_str(), workload.model.as_deref()?)))
    }

    /// This was to be measured of the model, and will not be.
    pub(super) fn misses(&self, model: &str, what: &str) {
        self.broken.misses(model, what);
    }

    /// Measures that, in these words, of the model, unless nothing more is to be measured. It is missed if nothing comes of it.
    pub(super) async fn unbroken<T>(
        &self,
        model: &str,
        what: &str,
        measuring: impl Future<Output = Result<T>>,
    ) -> Option<T> {
        let measured = if self.is_over() { None } else { self.broken.unbroken(measuring.await) };
        if measured.is_none() {
            self.misses(model, what);
        }
        measured
    }

    /// Measures a load of several, unless nothing more is to be measured, in which case it is missed. What the server did not stay for
    /// ends the command.
    pub(super) async fn load(
        &self,
        model: &ModelInfo,
        load: LoadPattern,
        extent: RunLength,
        limits: (usize, u64),
    ) -> Option<LoadPoint> {
        let point =
            self.unbroken(&self.asked(model), &load.describe(), self.point(model, load, extent, limits)).await?;
        if let Some(why) = &point.broken_off {
            let gone =
                Error::Remote { server: self.reach.address.clone(), answer: format!("{}: {why}", load.describe()) };
            self.broken.unbroken::<()>(Err(gone));
        }
        Some(point)
    }

    /// Marks the last of a command's documents if it was broken off; gives the error if that is why.
    pub(super) fn end(&self, documents: &mut [MeasurementReport]) -> Option<Error> {
        self.broken.end(documents, *self.stop.borrow())
    }

    /// Whether to ask this model where segments end, where that is as the command does if nothing else was said.
    fn boundaries(&self, model: &ModelInfo, usual: bool) -> bool {
        self.work.boundaries.map_or(usual && model.pooled, |asked| asked == Boundaries::Ask)
    }

    /// A target for so many calls at a time.
    pub(super) async fn target(&self, model: &ModelInfo, calls: usize, usual: bool) -> Result<RequestTarget> {
        let streams = match model.concurrent_streams as usize {
            0 => STREAMS,
            streams => streams,
        };
        let pool = self.reach.pool(self.server.connections(calls, streams)).await?;
        let boundaries = self.boundaries(model, usual);
        Ok(RequestTarget { pool, model: model.name.clone(), boundaries, timeout: self.work.timeout })
    }

    /// Threads that the tester computes on.
    pub(super) fn threads(&self) -> usize {
        self.server.threads
    }

    /// The next measurement's seed, of its place in the command: of its requests and of their arrivals.
    pub(super) fn next_seed(&self) -> u64 {
        let place = self.measured.fetch_add(1, Relaxed);
        self.work.seed.wrapping_add(place.wrapping_mul(APART))
    }

    /// A measurement's requests.
    pub(super) fn mix(&self, seed: u64) -> Result<WorkloadMix> {
        self.work.mix(&self.models, &self.known, self.cancel, seed)
    }

    /// Measures a load; an open one until at least so many requests have come, unless their number was given.
    pub(super) async fn point(
        &self,
        model: &ModelInfo,
        load: LoadPattern,
        extent: RunLength,
        (max_in_flight, least): (usize, u64),
    ) -> Result<LoadPoint> {
        let calls = match load {
            LoadPattern::Closed { concurrency } => concurrency,
            LoadPattern::Open { .. } => max_in_flight,
        };
        let target = self.target(model, calls, true).await?;
        let connections = target.pool.size();
        let seed = self.next_seed();
        let job = Arc::new(LoadSetup { target, mix: self.mix(seed)?, objectives: self.work.objectives() });
        let schedule = load.schedule(seed)?;
        let extent = schedule.as_ref().map_or(extent, |schedule| extent.holding(schedule, least));
        let begin = Instant::now();
        let (pacer, source) = match (load, schedule) {
            (LoadPattern::Open { .. }, Some(schedule)) => {
                let (pacer, tickets) = Pacer::start(extent.tickets(schedule, begin))?;
                (Some(pacer), RequestSource::Open(tickets, max_in_flight))
            }
            _ => (None, RequestSource::Closed(calls)),
        };
        let bar = LoadProgress::new(&format!("{}, {}", self.asked(model), load.describe()), &extent);
        let driven =
            run_load(job, (extent, begin), source, (self.stop.clone(), true), &mut |meter| bar.tell(meter, begin))
                .await?;
        drop(pacer);
        LoadPoint::new(load, extent, driven, self.server.threads, connections)
    }

    /// The models that are asked where this one is measured, with commas: workloads may name others.
    pub(super) fn asked(&self, measured: &ModelInfo) -> String {
        let mut names: Vec<&str> = Vec::new();
        for name in self.workloads.iter().map(|workload| workload.model.as_deref().unwrap_or(&measured.name)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    }

    /// All models that are asked: those that are measured, where a workload names none, and those that workloads name.
    fn all_asked(&self) -> Vec<ModelInfo> {
        let is_measured = self.workloads.iter().any(|workload| workload.model.is_none());
        let mut all = if is_measured { self.models.clone() } else { Vec::new() };
        for name in self.workloads.iter().filter_map(|workload| workload.model.as_ref()) {
            if !all.iter().any(|model| model.name == *name) {
                all.extend(self.known.iter().find(|model| model.name == *name).cloned());
            }
        }
        all
    }

    /// All of it as a document.
    pub(super) fn document(&self, parts: Vec<ReportPart>, usual: bool) -> MeasurementReport {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let objectives = self.work.objectives();
        let conditions = Conditions {
            version: env!("CARGO_PKG_VERSION").into(),
            begun_unix_s: self.begun,
            command: self.command.clone(),
            server: self.reach.address.clone(),
            software: self.software.clone(),
            tester: format!("{} {}, {cores} cores", std::env::consts::OS, std::env::consts::ARCH),
            note: self.work.note.clone(),
            models: self.all_asked(),
            workloads: self.workloads.clone(),
            seed: self.work.seed,
            boundaries: self.models.iter().any(|model| self.boundaries(model, usual)),
            timeout_ns: crate::units::ns(self.work.timeout),
            cancel_share: self.cancel,
            objectives: (!objectives.is_empty()).then(|| objectives.to_string()),
        };
        MeasurementReport { format: FORMAT.into(), conditions, parts, broken_off: None, missing: None }
    }
}

/// Whether there are summaries to search, if it is said how.
fn searched(sessions: &[MeasurementSession]) -> Result<()> {
    let summaries = |session: &MeasurementSession| session.workloads.iter().any(|workload| workload.kind == SUMMARIZE);
    match sessions.iter().find_map(|session| session.work.beam) {
        Some(beam) if !sessions.iter().any(summaries) => Err(Error::option(
            "--beam",
            beam,
            "given where summaries are asked for, and no model that is asked writes any",
        )),
        _ => Ok(()),
    }
}

/// A server, and which of its models are meant.
#[derive(Clone)]
struct Discovery {
    reach: ConnectOptions,
    software: Option<ServerSoftware>,
    known: Vec<ModelInfo>,
    models: Vec<ModelInfo>,
    broken: AbortLog,
}

impl Discovery {
    async fn look(server: &ServerArgs, names: &[String], all: bool) -> Result<Self> {
        let reach = server.reach()?;
        let listed = match server.first(&reach).await {
            Ok(connection) => models::list(&reach.address, &connection).await.map(|known| (known, connection)),
            Err(error) => Err(error),
        };
        let (known, connection) = match listed {
            Ok(listed) => listed,
            Err(error) => return Err(reach.explained(error).await),
        };
        let models = if all && names.is_empty() {
            known.clone()
        } else {
            models::choose(if all { "--models" } else { "--model" }, names, &known)?
        };
        if models.is_empty() {
            return Err(Error::Setting("the server has no model".into()));
        }
        let software = models::software(&connection).await;
        Ok(Self { reach, software, known, models, broken: AbortLog::default() })
    }
}

/// Turns true on Ctrl-C, and where the system has it on SIGTERM: what was measured so far is then told.
fn interruptible() -> Result<StopSignal> {
    let (tell, stop) = watch::channel(false);
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
        // those who are left to hear it may be none
        let _ = tell.send(true);
        std::future::pending::<()>().await;
    });
    Ok(stop)
}

/// A bar on stderr, where stderr is a terminal.
pub(super) struct LoadProgress {
    bar: ProgressBar,
    /// What is counted, if it is not time.
    requests: Option<u64>,
}

impl LoadProgress {
    fn new(title: &str, extent: &RunLength) -> Self {
        let whole = extent.duration.map(|duration| (duration + extent.warm_up).as_millis() as u64);
        let bar = Self::bare(title, extent.requests.or(whole).unwrap_or(0));
        Self { bar, requests: extent.requests }
    }

    /// Of rounds.
    pub(super) fn rounds(title: &str, count: u64) -> ProgressBar {
        Self::bare(title, count)
    }

    fn bare(title: &str, length: u64) -> ProgressBar {
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {elapsed} {msg}");
        let bar = ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.with_prefix(title.to_owned())
    }

    fn tell(&self, meter: &LiveCounters, begin: Instant) {
        let [finished, failed] = [&meter.finished, &meter.failed].map(|count| count.load(Relaxed));
        let elapsed = begin.elapsed().max(Duration::from_millis(1));
        let speed = meter.characters.load(Relaxed) as f64 / elapsed.as_secs_f64();
        let flight = meter.read().in_flight();
        self.bar.set_position(self.requests.map_or(elapsed.as_millis() as u64, |_| finished + failed));
        self.bar.set_message(format!("{finished} well, {failed} not, {flight} in flight, {speed:.0} characters/s"));
    }
}

impl Drop for LoadProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The part of the flags that loads share.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) work: WorkloadArgs,
    #[command(flatten)]
    pub(super) extent: RunLengthArgs,
    #[command(flatten)]
    pub(super) output: super::output::OutputArgs,
}
