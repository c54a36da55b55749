//! One binary of integration tests; each module is one concern.

#![allow(clippy::disallowed_methods, reason = "tests give threads time to do what they must not do")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by it what it counts on")]
#![allow(clippy::type_complexity, reason = "a test's own closures and tables are read once, where they stand")]

mod arrows;
mod bench;
mod browser;
mod cli;
mod conformance;
mod convert;
mod crowd;
mod decoders;
mod deploy;
mod engine;
mod extrapolation;
mod golden;
mod hostile;
mod lex;
mod lslm;
mod operations;
mod papers;
mod parking;
mod process;
mod pyramidion;
mod reader;
mod served;
mod settings;
mod summaries;
mod support;
mod twin;
mod wire;
