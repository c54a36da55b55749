//! The tester against servers whose delays are known.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by it what it counts on")]

mod commands;
mod comparisons;
mod known_delays;
mod multiple_loads;
mod rejected_options;
mod report;
mod server_gone;
mod sockets;
mod support;
mod tls_and_keys;
mod unreachable;
