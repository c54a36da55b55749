//! Measures servers with known delays.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap fails the test")]

use crate::stub::{Script, Stub};
use crate::support::serve;
use serde_json::Value;
use std::future::pending;
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use weir_loadtest::comparison::{ComparisonSetup, compare_models};
use weir_loadtest::driver::{LoadResult, LoadRun, LoadSetup, Objectives, RequestSource, WorkloadMix, run_load};
use weir_loadtest::report::LoadPoint;
use weir_loadtest::schedule::{LoadPattern, RunLength};
use weir_loadtest::workload::{RequestTarget, WorkloadSpec};
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
