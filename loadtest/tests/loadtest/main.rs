//! Measures servers with known delays.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap fails the test")]

mod commands;
mod comparisons;
mod connections;
mod edits;
mod known_delays;
mod options;
mod report;
mod stub;
mod support;
