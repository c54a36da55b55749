//! One binary of integration tests; each module is one concern.

#![allow(clippy::disallowed_methods, reason = "tests give threads time to do what they must not do")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by it what it counts on")]
#![allow(clippy::type_complexity, reason = "a test's own closures and tables are read once, where they stand")]

mod arrows;
mod bench;
mod browser;
mod certificates;
mod cli;
mod conformance;
mod convert;
mod deploy;
mod document_model;
mod engine;
mod extrapolation;
mod golden;
mod hostile_checkpoints;
mod lex;
mod lslm;
mod mixed_load;
mod naive_decoder;
mod naive_hourglass;
mod operations;
mod process;
mod pyramidion;
mod serve_process;
mod settings;
mod summaries;
mod support;
mod thread_parking;
mod wire;
