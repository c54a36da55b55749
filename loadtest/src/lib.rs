//! `weir-loadtest`: measures over gRPC the latency that clients of a weir server see.
//!
//! The modules follow a measurement:
//!
//! - [`cli`]: the commands, with [`args`] (their options), [`session`] (the measurements of one command) and [`output`]
//! - [`client`]: connections, and the descriptions of models
//! - [`workload`]: what requests contain; [`generate`] and [`edit`] send them
//! - [`schedule`]: when requests are sent; [`driver`] runs a load
//! - [`timer`]: when the answers of one request came; [`stats`]: figures of all requests; [`tester`]: the tester's own load
//! - [`comparison`]: models request by request; [`knee`]: the highest sustained rate
//! - [`report`]: the results as JSON, text and Markdown; [`error`]: the errors of all of these

#![allow(
    missing_docs,
    reason = "docs/report.md explains the keys of reports; only the tests of this package use the library"
)]

pub mod args;
pub mod cli;
pub mod client;
pub mod comparison;
pub mod driver;
pub mod edit;
pub mod error;
pub mod generate;
pub mod knee;
pub mod output;
pub mod report;
pub mod schedule;
pub mod session;
pub mod stats;
pub mod tester;
pub mod timer;
pub mod workload;
