//! The tester against servers whose delays are known.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by it what it counts on")]

mod commands;
mod gone;
mod honesty;
mod pairs;
mod reached;
mod refused;
mod report;
mod secured;
mod several;
mod sockets;
mod support;
