//! The models that are served: their engines, from loading to unloading, their health, and the drain at shutdown.

pub(crate) mod abilities;
pub(super) mod calibration;
pub(super) mod drain;
pub(super) mod engines;
pub(super) mod health;
mod warmup;
