//! Measures servers with known delays.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap fails the test")]

use crate::{
    stub::{Script, Stub},
    support::serve,
};
use serde_json::Value;
use std::{
    fs,
    future::pending,
    io,
    path::PathBuf,
    process::Output,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_stream::StreamExt;
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint, server::TcpIncoming},
};
use weir_loadtest::{
    comparison::{ComparisonSetup, compare_models},
    driver::{LoadResult, LoadRun, LoadSetup, Objectives, RequestSource, WorkloadMix, run_load},
    report::LoadPoint,
    schedule::{ArrivalProcess, LoadPattern, RunLength},
    workload::{RequestTarget, WorkloadSpec},
};
use weir_proto::v1::GenerateRequest;
mod commands;
mod comparisons;
mod connections;
mod edits;
mod known_delays;
mod options;
mod report;
mod stub;
mod support;
