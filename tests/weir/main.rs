//! Integration tests, in one binary. Each module tests one concern.

#![allow(clippy::disallowed_methods, reason = "tests sleep to show that threads stay idle")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed assumption must fail the test")]
#![allow(clippy::type_complexity, reason = "the types of a test's tables and closures are used once")]

use crate::certificates::Certificates;
use crate::document_model::DocumentModel;
use crate::golden::Golden;
use crate::process::Server;
use crate::summaries::write_random_model;
use crate::support::{
    Alone, BLT_CASES, CASES, HNET_CASES, LSLM_CASES, Random, TIMEOUT, checkpoint, converted, difference, fixture,
    fixture_in, full, golden_data, long_runs, model_of, text_symbols,
};
use prost::Message;
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use weir::engine::options::{Details, EmittedSymbol, FinishReason, Generate, Sampling, Score, Stopping, WindowOptions};
use weir::engine::session::{Session, SessionProgress};
use weir::engine::summary::Summarize;
use weir::engine::{Events, Handle, Job, Limits};
use weir::error::{Error, Result};
use weir::kernels::{Dtype, Isa};
use weir::models::checkpoint::Config;
use weir::models::contract::{
    BoundaryMode, BoundaryOptions, Card, Cost, KvMemory, Model, Noise, Scratch, SequenceRow, State, StepStatus,
    SymbolBoundary, Want, advance,
};
use weir::models::convert::Source;
use weir::models::family::parts::work_mut;
use weir::models::load::{Settings, blueprint, load};
use weir::models::text::Vocabulary;
use weir::models::usage::Usage;
use weir::server::Engines;
use weir::server::config::{Access, Credentials, Keys, TransportConfig};
use weir::server::run::ServerParts;
use weir_proto::inference::ModelInferRequest;
use weir_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use weir_proto::inference::model_infer_request::InferInputTensor;
use weir_proto::v1::generate_response::Event;
use weir_proto::v1::generation_client::GenerationClient;
use weir_proto::v1::models_client::ModelsClient;
use weir_proto::v1::summarization_client::SummarizationClient;
use weir_proto::v1::summarize_request::Part;
use weir_proto::v1::{self, GenerateRequest, GenerateResponse, SummarizeOptions, SummarizeRequest};
mod anywhere;
mod bench;
mod blt;
mod browser;
mod cases;
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
mod mixed_load;
mod module_dependencies;
mod operations;
mod process;
mod pull;
mod pyramidion;
mod request_path;
mod settings;
mod sources;
mod summaries;
mod support;
mod t5;
mod t5_checkpoints;
#[allow(dead_code, reason = "the simulation uses the rest")]
mod toy_model;
mod verify;
mod wire;
