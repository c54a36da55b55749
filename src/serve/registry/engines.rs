//! The models that are served, by name, each in generations: a model that is loaded again is served by its new generation
//! from then on, while requests that run keep the old one, which is dropped with the last of them.
//!
//! Whoever uses an engine holds a [`Lease`]. Leases are given out, and generations exchanged, under one lock: no request
//! finds a generation that is being dropped, and the last to let go of one never waits for its worker.

use super::warmup;
use crate::{
    decode::contract::Model,
    engine::{Handle, Limits, Phase},
    error::{Error, Result, clip},
    metrics::{Meter, Metrics},
};
use std::{
    collections::BTreeMap,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};
use tokio::sync::watch;

/// Bytes of an unknown name that an error repeats.
const NAME_BYTES: usize = 128;

/// The running engines, by the names of their models. Clones share them.
#[derive(Clone, Default)]
pub struct Engines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    metrics: Arc<Metrics>,
    table: RwLock<Table>,
    /// For those who wait for another table: how many there have been.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Table {
    serving: BTreeMap<String, Arc<Generation>>,
    /// Those that serve their last requests.
    leaving: Vec<Arc<Generation>>,
    /// The names of those that take their first steps.
    launching: Vec<String>,
    /// The number of the latest.
    latest: u64,
}

/// One loading of a model.
struct Generation {
    number: u64,
    engine: Handle,
    meter: Arc<Meter>,
    folder: Option<PathBuf>,
    /// Closed once nobody holds a lease.
    leases: watch::Sender<()>,
}

/// An engine that is ready to serve, and does not yet.
pub struct Fresh {
    engine: Handle,
    meter: Arc<Meter>,
    folder: Option<PathBuf>,
    /// Its name's series stay while it is there.
    launching: Option<Launching>,
}

/// The name of a model that is to be served; its series are dropped with it, unless the model is served by then.
struct Launching {
    engines: Engines,
    name: String,
}

impl Drop for Launching {
    fn drop(&mut self) {
        let mut table = self.engines.write();
        if let Some(at) = table.launching.iter().position(|name| *name == self.name) {
            table.launching.swap_remove(at);
        }
        drop(table);
        self.engines.forget_unless_known(&self.name);
    }
}

/// An engine in use: its generation stays while this is held.
#[derive(Clone)]
pub struct Lease {
    // In this order: whoever sees that nobody holds a lease finds the generation free.
    generation: Arc<Generation>,
    _held: watch::Receiver<()>,
}

impl Deref for Lease {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.generation.engine
    }
}

impl Lease {
    /// The number of the generation, from 1 in the order of loading.
    pub fn generation(&self) -> u64 {
        self.generation.number
    }

    /// What measures it.
    pub(in crate::serve) fn meter(&self) -> &Meter {
        &self.generation.meter
    }

    /// The folder that it was loaded from, if it was from one.
    pub fn folder(&self) -> Option<&Path> {
        self.generation.folder.as_deref()
    }

    fn of(generation: &Arc<Generation>) -> Self {
        Self { generation: Arc::clone(generation), _held: generation.leases.subscribe() }
    }
}

impl Engines {
    /// These engines, each under the name of its model, as they are: neither warmed up nor measured.
    ///
    /// # Errors
    /// Two of one name, or none at all.
    pub fn new(handles: Vec<Handle>) -> Result<Self> {
        let engines = Self::default();
        if handles.is_empty() {
            return Err(Error::Setting("there is no model to serve".into()));
        }
        for engine in handles {
            let meter = engines.metrics().meter(&engine.card().name);
            engines.add(Fresh { engine, meter, folder: None, launching: None })?;
        }
        Ok(engines)
    }

    /// Starts an engine that is measured, and runs its first steps, which are not. Blocks meanwhile.
    ///
    /// # Errors
    /// The operating system refuses a thread; a step fails.
    pub fn launch(&self, model: Arc<dyn Model>, limits: Limits, folder: Option<PathBuf>) -> Result<Fresh> {
        let launching = Launching { engines: self.clone(), name: model.card().name.clone() };
        self.write().launching.push(launching.name.clone());
        let meter = self.metrics().meter(&launching.name);
        let engine = Handle::start_with(model, limits, Arc::clone(&meter) as _)?;
        warmup::run(&engine).map_err(|error| match error {
            Error::NeverFits { needed, limit, .. } | Error::OutOfPages { needed, limit } => {
                let name = &launching.name;
                let has =
                    format!("{needed} bytes of key-value memory for its first prompt, --kv-memory leaves {limit}");
                Error::Setting(format!("the model {name:?} needs {has}"))
            }
            other => other,
        })?;
        self.calibrate(&engine);
        meter.begin(&engine);
        Ok(Fresh { engine, meter, folder, launching: Some(launching) })
    }

    /// Serves a model under a new name; returns its generation's number.
    ///
    /// # Errors
    /// There is a model of that name.
    pub fn add(&self, fresh: Fresh) -> Result<u64> {
        let name = fresh.engine.card().name.clone();
        if self.read().serving.contains_key(&name) {
            return Err(Error::Setting(format!("two models are named {name:?}: rename one of their folders")));
        }
        Ok(self.install(fresh).0.generation())
    }

    /// Serves a model, from now on instead of the one of its name if there is one, which leaves: its number is returned too.
    pub(in crate::serve) fn replace(&self, fresh: Fresh) -> (Lease, Option<u64>) {
        let (lease, before) = self.install(fresh);
        let number = before.as_ref().map(|before| before.number);
        if let Some(before) = before {
            self.see_off(before);
        }
        (lease, number)
    }

    /// Serves a model no more: it leaves. Returns its generation's number.
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub(in crate::serve) fn remove(&self, name: &str) -> Result<u64> {
        let mut table = self.write();
        let Some(generation) = table.serving.remove(name) else {
            drop(table);
            return Err(self.unknown(name));
        };
        table.leaving.push(Arc::clone(&generation));
        drop(table);
        let number = generation.number;
        self.see_off(generation);
        self.tell_change();
        Ok(number)
    }

    /// The engine of that name; the only one there is if no name is given.
    ///
    /// # Errors
    /// [`Error::UnknownModel`]; [`Error::BadOption`] if no name is given and there are several.
    pub fn find(&self, field: &'static str, name: Option<&str>) -> Result<Lease> {
        let table = self.read();
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let mut all = table.serving.values();
            return match (all.next(), all.next()) {
                (Some(only), None) => Ok(Lease::of(only)),
                _ => {
                    let bound = format!("one of {}", names(&table).join(", "));
                    Err(Error::BadOption { field, found: "\"\"".into(), bound })
                }
            };
        };
        let found = table.serving.get(name).map(Lease::of);
        drop(table);
        found.ok_or_else(|| self.unknown(name))
    }

    /// All engines that serve, sorted by name.
    pub fn all(&self) -> Vec<Lease> {
        self.read().serving.values().map(Lease::of).collect()
    }

    /// The engines that serve their last requests, in the order in which they left.
    pub(in crate::serve) fn leaving(&self) -> Vec<Lease> {
        self.read().leaving.iter().map(Lease::of).collect()
    }

    /// The names of the models, sorted.
    pub fn names(&self) -> Vec<String> {
        names(&self.read())
    }

    /// The names of the models whose workers have broken, sorted.
    pub(in crate::serve) fn names_of_broken(&self) -> Vec<String> {
        let all = self.all();
        let broken = all.iter().filter(|engine| engine.phase() == Phase::Broken);
        broken.map(|engine| engine.card().name.clone()).collect()
    }

    /// What measures the engines.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// All metrics, as text.
    pub(in crate::serve) fn measured(&self) -> Result<String> {
        let mut leases = self.all();
        leases.extend(self.leaving());
        let of = |lease: &Lease| (Arc::clone(&lease.generation.meter), Handle::clone(lease));
        let engines: Vec<_> = leases.iter().map(of).collect();
        self.metrics().render(&engines).map_err(|error| Error::Internal(format!("metrics: {error}")))
    }

    /// Bytes that the engines in memory may still take for keys and values.
    pub(in crate::serve) fn promised(&self) -> usize {
        let leases = self.all().into_iter().chain(self.leaving());
        leases.map(|engine| engine.memory()).map(|memory| memory.limit.saturating_sub(memory.in_use)).sum()
    }

    /// Tells of every change of what is served.
    pub(in crate::serve) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn install(&self, fresh: Fresh) -> (Lease, Option<Arc<Generation>>) {
        let Fresh { engine, meter, folder, launching } = fresh;
        let name = engine.card().name.clone();
        let mut table = self.write();
        table.latest += 1;
        let number = table.latest;
        let generation = Arc::new(Generation { number, engine, meter, folder, leases: watch::Sender::new(()) });
        let lease = Lease::of(&generation);
        let before = table.serving.insert(name, generation);
        table.leaving.extend(before.clone());
        drop(table);
        drop(launching);
        self.tell_change();
        (lease, before)
    }

    /// Waits for a generation's last request, then drops it. It is in the list of those that leave.
    fn see_off(&self, generation: Arc<Generation>) {
        let engines = self.clone();
        let (name, number) = (generation.engine.card().name.clone(), generation.number);
        tracing::info!(model = name, generation = number, "takes no new requests");
        tokio::spawn(async move {
            loop {
                generation.leases.closed().await;
                let mut table = engines.write();
                // Somebody may have looked at the list since.
                if generation.leases.is_closed() {
                    table.leaving.retain(|other| other.number != number);
                    break;
                }
            }
            // The worker may have to finish a step for a request whose client has gone.
            let dropped = tokio::task::spawn_blocking(move || {
                generation.meter.catch_up(&generation.engine);
                drop(generation);
            });
            let failed = dropped.await.is_err();
            engines.forget_unless_known(&name);
            tracing::info!(model = name, generation = number, failed, "unloaded");
            engines.tell_change();
        });
    }

    /// Drops the series of a model that is neither served, leaving, nor about to be served.
    fn forget_unless_known(&self, name: &str) {
        // Within the lock, so that no generation of that name is installed meanwhile.
        let table = self.write();
        let is_there = |generation: &Arc<Generation>| generation.engine.card().name == name;
        let comes = table.launching.iter().any(|launching| launching == name);
        if !(comes || table.serving.contains_key(name) || table.leaving.iter().any(is_there)) {
            self.metrics().remove_model(name);
        }
    }

    fn unknown(&self, name: &str) -> Error {
        Error::UnknownModel { name: clip(name, NAME_BYTES), known: self.names() }
    }

    fn tell_change(&self) {
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn names(table: &Table) -> Vec<String> {
    table.serving.keys().cloned().collect()
}
