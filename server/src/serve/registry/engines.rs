//! The engines that serve models, by name and generation. Loading a model again starts a new generation for new requests. Running
//! requests keep the old generation, which is dropped after the last of them.
//!
//! Users of an engine hold a [`Lease`]. One lock guards both leasing and replacing, so no request finds a generation that is being
//! dropped. Dropping the last lease never waits for the worker.

use super::warmup;
use crate::{
    decode::contract::Model,
    engine::{Handle, Limits, Phase, clock},
    error::{Error, Result, clip},
    metrics::{Meter, Metrics},
};
use std::{
    collections::BTreeMap,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};
use tokio::sync::watch;

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

    /// Starts an engine, warms it up, and calibrates it. Blocks meanwhile. Metrics count from after the warm-up. Fails
    /// if the operating system refuses a thread or a step fails.
    pub fn launch(&self, model: Arc<dyn Model>, limits: Limits, folder: Option<PathBuf>) -> Result<LaunchedEngine> {
        let launching = LaunchGuard { engines: self.clone(), name: model.card().name.clone() };
        self.write().launching.push(launching.name.clone());
        let meter = self.metrics().meter(&launching.name);
        let engine = Handle::start_with(model, limits, Arc::clone(&meter) as _)?;
        warmup::run(&engine).map_err(|error| match error {
            Error::NeverFits { needed, limit, .. } | Error::OutOfPages { needed, limit } => Error::Setting(format!(
                "the model {:?} needs {needed} bytes of key-value memory for its first prompt, --kv-memory leaves {limit}",
                launching.name
            )),
            other => other,
        })?;
        // a failure is logged, and the model serves without a calibration
        let _ = self.calibrate(&engine);
        meter.begin(&engine);
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
            return Err(self.unknown(name));
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

    /// Returns the engine of that name. If no name is given, returns the only engine that `can` answer the call and is no unpooled
    /// twin. If none can, returns any engine, which refuses the call with the reason. Fails as [`find`](Self::find) does.
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
        lease.ok_or_else(|| self.unknown(name))
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
        names(&self.read())
    }

    /// Returns the names of the models whose workers are broken, sorted.
    pub(crate) fn broken_names(&self) -> Vec<String> {
        let all = self.all();
        let broken = all.iter().filter(|engine| engine.phase() == Phase::Broken);
        broken.map(|engine| engine.card().name.clone()).collect()
    }

    /// Returns the metrics of all engines.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Renders all metrics as OpenMetrics text.
    pub fn render_metrics(&self) -> Result<String> {
        let mut leases = self.all();
        leases.extend(self.draining());
        let metered = |lease: &Lease| (Arc::clone(&lease.generation.meter), Handle::clone(lease));
        let engines: Vec<_> = leases.iter().map(metered).collect();
        self.metrics().render(&engines).map_err(|error| Error::Internal(format!("metrics: {error}")))
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
            let dropped = tokio::task::spawn_blocking(move || {
                generation.meter.catch_up(&generation.engine);
                drop(generation);
            });
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

    fn unknown(&self, name: &str) -> Error {
        Error::UnknownModel { name: clip(name, NAME_BYTES), known: self.names() }
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

fn names(table: &EngineTable) -> Vec<String> {
    table.serving.keys().cloned().collect()
}
