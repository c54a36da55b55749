//! Integration tests, in one binary. Each module tests one concern.

#![allow(clippy::disallowed_methods, reason = "tests sleep to show that threads stay idle")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed assumption must fail the test")]
#![allow(clippy::type_complexity, reason = "the types of a test's tables and closures are used once")]

mod anywhere;
mod bench;
mod browser;
mod certificates;
mod codec;
mod command_line;
mod conformance;
mod convert;
mod decoder;
mod deploy;
mod document_model;
mod engine;
mod examples;
mod golden;
mod hnet;
mod hostile_checkpoints;
mod hourglass;
mod hugging_face;
mod logging;
mod lslm;
mod lslm_checkpoints;
mod lsp;
mod mistakes;
mod mixed_load;
mod module_dependencies;
mod operations;
mod process;
mod pull;
mod pyramidion;
mod settings;
mod summaries;
mod support;
mod t5;
mod t5_checkpoints;
mod verify;
mod wire;
