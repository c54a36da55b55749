//! What is left of a command that was broken off: why, and what is missing.

use crate::{
    error::{Error, Result},
    report::data::{MeasurementReport, MissingPart},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What broke a command off, if anything did; all its sessions share it.
#[derive(Clone, Default)]
pub(super) struct AbortLog(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    error: Option<Error>,
    missing: Vec<MissingPart>,
}

impl AbortLog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an error has ended the command.
    pub(super) fn failed(&self) -> bool {
        self.state().error.is_some()
    }

    /// What is there, unless it failed: then no more is measured, and what there is so far is told before the command fails.
    pub(super) fn unbroken<T>(&self, measured: Result<T>) -> Option<T> {
        measured.map_err(|error| self.state().error.get_or_insert(error).to_string()).ok()
    }

    /// This was to be measured and was not.
    pub(super) fn misses(&self, model: &str, what: impl Into<String>) {
        self.state().missing.push(MissingPart { model: model.into(), what: what.into() });
    }

    /// Marks the last of a command's documents if something that was to follow is missing; gives the error if that is why.
    pub(super) fn end(&self, documents: &mut [MeasurementReport], interrupted: bool) -> Option<Error> {
        let mut state = self.state();
        let error = state.error.take();
        let why = error.as_ref().map(Error::to_string).or(interrupted.then(|| "it was interrupted".to_owned()));
        if let (Some(last), Some(why)) = (documents.last_mut(), why) {
            (last.broken_off, last.missing) = (Some(why), Some(std::mem::take(&mut state.missing)));
        }
        error
    }
}
