//! The latest calibration of a model, which a later one may replace.

use super::{Calibrated, NotCalibrated, TimingTable};
use crate::error::Result;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Result of timing a model's steps. The outer error is that of a step.
pub(super) type Measured = Result<std::result::Result<TimingTable, NotCalibrated>>;

/// The calibration of a model: `None` until a measurement succeeds or fails.
#[derive(Debug, Default)]
pub struct LatestCalibration(Mutex<Option<Calibrated>>);

impl LatestCalibration {
    /// Returns the calibration, or why it failed; `None` until a measurement succeeds or fails.
    pub fn get(&self) -> Option<Calibrated> {
        self.lock().clone()
    }

    /// Measures with `measure` and stores the result, unless the known result needs no repetition: a reliable table, or a failure.
    /// A stopped measurement stores nothing. A repetition replaces a table only if it produces a table.
    pub(in crate::engine) fn measure(&self, measure: impl FnOnce() -> Measured) -> Calibrated {
        let known = self.get();
        match &known {
            Some(Ok(table)) if table.doubt().is_some() => {}
            Some(decided) => return decided.clone(),
            None => {}
        }
        // a panic in a timed step must not keep the model from serving
        let calibrated = match catch_unwind(AssertUnwindSafe(measure)) {
            Ok(Ok(measured)) => measured.map(Arc::new),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a timed step failed");
                Err(NotCalibrated::Failed)
            }
            Err(_) => {
                tracing::error!("a timed step panicked");
                Err(NotCalibrated::Failed)
            }
        };
        let decides = known.is_none() && !matches!(calibrated, Err(NotCalibrated::Stopped));
        if calibrated.is_ok() || decides {
            *self.lock() = Some(calibrated.clone());
        }
        calibrated
    }

    fn lock(&self) -> MutexGuard<'_, Option<Calibrated>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
