//! Calibration: measures how long a model's steps take on this machine, to estimate how long they would take without pooling.
//!
//! [`timing`] measures a [`TimingTable`]. A step's estimated time is a piecewise linear function of its positions, plus a cost
//! for the bytes of keys and values that they attend to. Weights at full resolution are slower to read after the middle stack
//! has passed through the CPU caches, so steps are measured with and without a segment step before them.
//!
//! [`drift_correction`] corrects the table by how long recent steps took. A measurement on a busy machine gives a doubtful table,
//! which a later measurement may replace ([`LatestCalibration`]).

mod curves;
pub mod drift_correction;
mod latest;
mod samples;
mod table;
pub mod timing;

pub use latest::LatestCalibration;
pub use samples::{PlainTiming, StepShape, StepTiming};
use std::sync::Arc;
pub use table::{EngineStep, TimingTable};

/// The measured step times, or why there are none.
pub type Calibrated = Result<Arc<TimingTable>, NotCalibrated>;

/// Why a model has no table of step times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCalibrated {
    /// The model does not pool, or reads documents.
    DoesNotPool,
    /// The model writes the ends of its segments itself: without them it would be another model.
    WritesBoundaries,
    /// No symbol that was tried ended a segment.
    NoBoundary,
    /// The caller stopped it.
    Stopped,
    /// Its time limit is zero.
    NoTime,
    /// Not enough key-value memory.
    NoMemory,
    /// A step failed.
    Failed,
}

impl NotCalibrated {
    /// Returns the reason as a text for users.
    pub fn reason(self) -> &'static str {
        match self {
            Self::DoesNotPool => "the model does not pool text",
            Self::WritesBoundaries => {
                "the model writes its segment boundaries itself, so there is no model without them to compare with"
            }
            Self::NoBoundary => "not calibrated: no symbol that was tried ended a segment",
            Self::Stopped => "not calibrated yet: other requests have been running since the model was loaded",
            Self::NoTime => "not calibrated: its time limit is 0",
            Self::Failed => "not calibrated: a step failed; see the log",
            Self::NoMemory => "not calibrated: not enough key-value memory",
        }
    }
}

#[cfg(test)]
mod tests;
