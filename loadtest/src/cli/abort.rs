//! Why a command ended early, and what it therefore did not measure.

use crate::{
    error::{Error, Result},
    report::data::{MeasurementReport, MissingPart},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Log of what ended a command early; all its sessions share it.
#[derive(Clone, Default)]
pub(super) struct AbortLog(Arc<Mutex<AbortState>>);

#[derive(Default)]
struct AbortState {
    error: Option<Error>,
    missing: Vec<MissingPart>,
}

impl AbortLog {
    fn inner(&self) -> MutexGuard<'_, AbortState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn failed(&self) -> bool {
        self.inner().error.is_some()
    }

    /// Returns the value, or records the error. The command then measures no more and writes its report before it fails.
    pub(super) fn ok_or_record<T>(&self, measured: Result<T>) -> Option<T> {
        measured.map_err(|error| self.inner().error.get_or_insert(error).to_string()).ok()
    }

    /// Records that `what` was not measured.
    pub(super) fn add_missing(&self, model: &str, what: &str) {
        self.inner().missing.push(MissingPart { model: model.into(), what: what.into() });
    }

    /// Marks the last report if the command ended early. Returns the error if one ended it.
    pub(super) fn finish(&self, reports: &mut [MeasurementReport], interrupted: bool) -> Option<Error> {
        let mut inner = self.inner();
        let error = inner.error.take();
        let reason = error.as_ref().map(Error::to_string).or(interrupted.then(|| "it was interrupted".to_owned()));
        if let (Some(last), Some(reason)) = (reports.last_mut(), reason) {
            last.broken_off = Some(reason);
            last.missing = Some(std::mem::take(&mut inner.missing));
        }
        error
    }
}
