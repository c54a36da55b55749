//! Integration tests, in one binary. Each module tests one concern.

#![allow(clippy::disallowed_methods, reason = "tests sleep to show that threads stay idle")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed assumption must fail the test")]
#![allow(clippy::type_complexity, reason = "the types of a test's tables and closures are used once")]

mod anywhere;
mod arrows;
mod bench;
mod browser;
mod certificates;
mod cli;
mod codec;
mod conformance;
mod convert;
mod decoder_shapes;
mod deploy;
mod described_models;
mod document_model;
mod engine;
mod examples;
mod extrapolation;
mod freed_memory;
mod golden;
mod hnet;
mod hostile_checkpoints;
mod hourglass;
#[cfg(feature = "candle")]
mod hugging_face;
mod lex;
mod logging;
mod lslm;
mod lsp;
mod metric_rules;
mod mistakes;
mod mixed_load;
mod ngrams;
mod operations;
mod process;
mod pull;
mod pyramidion;
mod reload_signal;
mod serve_log;
mod serve_process;
mod served_commands;
mod settings;
mod summaries;
mod support;
mod systemd;
mod t5;
mod thread_parking;
#[cfg(feature = "candle")]
mod verify;
mod wire;
