//! The models that are served, by name.

use crate::{
    engine::handle::{Handle, Phase},
    error::{Error, Result, clip},
};
use std::{collections::BTreeMap, sync::Arc, task::Poll};

/// Bytes of an unknown name that an error repeats.
const NAME_BYTES: usize = 128;

/// The running engines, by the names of their models. Clones share them.
#[derive(Clone)]
pub struct Engines(Arc<BTreeMap<String, Handle>>);

impl Engines {
    /// These engines, each under the name of its model.
    ///
    /// # Errors
    /// Two of one name, or none at all.
    pub fn new(handles: Vec<Handle>) -> Result<Self> {
        let mut engines = BTreeMap::new();
        for handle in handles {
            let name = handle.card().name.clone();
            if engines.insert(name.clone(), handle).is_some() {
                return Err(Error::Setting(format!("two models are named {name:?}: rename one of their folders")));
            }
        }
        if engines.is_empty() {
            return Err(Error::Setting("there is no model to serve".into()));
        }
        Ok(Self(Arc::new(engines)))
    }

    /// The engine of that name; the only one there is if no name is given.
    ///
    /// # Errors
    /// [`Error::UnknownModel`]; [`Error::BadOption`] if no name is given and there are several.
    pub fn find(&self, field: &'static str, name: Option<&str>) -> Result<&Handle> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let mut all = self.all();
            return match (all.next(), all.next()) {
                (Some(only), None) => Ok(only),
                _ => {
                    let bound = format!("one of {}", self.names().join(", "));
                    Err(Error::BadOption { field, found: "\"\"".into(), bound })
                }
            };
        };
        self.0.get(name).ok_or_else(|| Error::UnknownModel { name: clip(name, NAME_BYTES), known: self.names() })
    }

    /// All engines, sorted by name.
    pub fn all(&self) -> impl Iterator<Item = &Handle> {
        self.0.values()
    }

    /// Waits until one of the workers has broken.
    pub(super) async fn broken(&self) {
        let mut waits: Vec<_> = self.all().map(|engine| Box::pin(engine.broken())).collect();
        std::future::poll_fn(|cx| match waits.iter_mut().any(|wait| wait.as_mut().poll(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// The names of the models whose workers have broken, sorted.
    pub(super) fn names_of_broken(&self) -> Vec<&str> {
        let broken = self.all().filter(|engine| engine.phase() == Phase::Broken);
        broken.map(|engine| engine.card().name.as_str()).collect()
    }

    /// The names of the models, sorted.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}
