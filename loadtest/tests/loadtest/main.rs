//! Measures servers with known delays.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap fails the test")]

mod commands;
mod comparisons;
mod edits;
mod known_delays;
mod multiple_loads;
mod program;
mod rejected_options;
mod report;
mod server_gone;
mod sockets;
mod support;
mod tls_and_keys;
mod unreachable;
