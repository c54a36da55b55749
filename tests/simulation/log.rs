//! The log of a world: every event with its virtual time, violated invariants, and how often each kind of event occurred.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard},
};
use tokio::time::Instant;

pub(crate) struct Log {
    start: Instant,
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) lines: Vec<String>,
    pub(crate) violations: Vec<String>,
    /// Number of events of each kind.
    pub(crate) counts: BTreeMap<String, usize>,
}

impl Log {
    /// Begins a log. Its times count from now.
    pub(crate) fn begin() -> Self {
        Self { start: Instant::now(), contents: Mutex::default() }
    }

    pub(crate) fn line(&self, what: impl std::fmt::Display) {
        let line = format!("{:>7} ms  {what}", self.start.elapsed().as_millis());
        self.contents().lines.push(line);
    }

    /// Records a broken invariant.
    pub(crate) fn violation(&self, what: impl std::fmt::Display) {
        self.line(format_args!("VIOLATION: {what}"));
        self.contents().violations.push(what.to_string());
    }

    pub(crate) fn count(&self, kind: &str, by: usize) {
        *self.contents().counts.entry(kind.to_owned()).or_default() += by;
    }

    /// Takes everything out of the log.
    pub(crate) fn take(&self) -> Contents {
        std::mem::take(&mut *self.contents())
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap()
    }
}

impl Contents {
    /// Returns a hash of all events and their times.
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.lines.hash(&mut hasher);
        hasher.finish()
    }
}
