//! Integration tests, in one binary. Each module tests one concern.

#![allow(clippy::disallowed_methods, reason = "tests sleep to show that threads stay idle")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed assumption must fail the test")]
#![allow(clippy::type_complexity, reason = "the types of a test's tables and closures are used once")]

use crate::{
    certificates::Certificates,
    document_model::DocumentModel,
    golden::Golden,
    process::Server,
    summaries::write_random_model,
    support::{
        Alone, CASES, HNET_CASES, LSLM_CASES, Random, checkpoint, converted, difference, fixture, fixture_in, full,
        golden_data, long_runs, model_of, text_symbols,
    },
};
use prost::Message;
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufReader, Read, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Condvar, LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{
    Code, Request, Status, Streaming,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use weir::{
    engine::{
        Events, Handle, Job, Limits,
        options::{Details, EmittedSymbol, FinishReason, Generate, Sampling, Score, Stopping, WindowOptions},
        session::{Session, SessionProgress},
        summary::Summarize,
    },
    error::{Error, Result},
    kernels::{Dtype, Isa},
    models::{
        checkpoint::Config,
        contract::{
            BoundaryMode, BoundaryOptions, Card, Cost, KvMemory, Model, Noise, Scratch, SequenceRow, State, StepStatus,
            SymbolBoundary, Want, advance,
        },
        convert::Source,
        family::parts::work_mut,
        load::{Settings, blueprint, load},
        text::Vocabulary,
        usage::Usage,
    },
    server::{
        Engines,
        config::{Access, Credentials, Keys, TransportConfig},
        run::ServerParts,
    },
};
use weir_proto::{
    inference::{
        ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
        model_infer_request::InferInputTensor,
    },
    v1::{
        self, GenerateRequest, GenerateResponse, SummarizeOptions, SummarizeRequest, generate_response::Event,
        generation_client::GenerationClient, models_client::ModelsClient, summarization_client::SummarizationClient,
        summarize_request::Part,
    },
};
mod anywhere;
mod bench;
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
