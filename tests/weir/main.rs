//! One binary of integration tests; each module is one concern.

mod arrows;
mod conformance;
mod convert;
mod engine;
mod golden;
mod hostile;
mod support;
mod twin;
mod wire;
