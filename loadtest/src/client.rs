//! The server as a client sees it: connections, each one HTTP/2 connection over one TCP connection, which requests use in turn; and the
//! descriptions of its models, which a report keeps as conditions of the measurement.

use crate::error::{Error, Result};
use crate::stats::UNAVAILABLE;
use serde::{Deserialize, Serialize};
use std::error::Error as _;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Code, Status};
use weir_client::connection::{Client, ConnectError, ServerEndpoint};
use weir_client::quoted;
use weir_client::status::CODE_NAMES;
use weir_proto::v1::{Calibration, Documents, Model};

/// Maximum connections.
pub const MAX_CONNECTIONS: usize = 1024;
/// Flow-control window of a stream, in bytes: room for about 2,000 unread messages of about 30 bytes.
const STREAM_WINDOW: u32 = 1 << 16;
/// Flow-control window of a connection, in bytes. The h2 library treats many small unread frames as an attack. The larger this
/// window, the more of them it allows: with this one about two million, which take half a gigabyte of its memory.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Opens one connection. Fails if the server is unreachable, or the key is not a valid header value.
pub async fn connect(server: &ServerEndpoint) -> Result<Client, ConnectError> {
    let opened = server.connect_with(|endpoint| {
        endpoint.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW)
    });
    opened.await
}

/// Opens `count` connections, at least one. Fails as [`connect`] does, with what answers at the address.
pub async fn pool(server: &ServerEndpoint, count: usize) -> Result<ConnectionPool> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        match connect(server).await {
            Ok(connection) => connections.push(connection),
            Err(error) => return Err(Error::Server(server.explain(error).await.to_string())),
        }
    }
    Ok(ConnectionPool::new(connections))
}

/// Connections used in turn.
#[derive(Debug)]
pub struct ConnectionPool {
    pub(crate) connections: Vec<Client>,
    next: AtomicUsize,
}

impl ConnectionPool {
    /// Builds a pool. [`next`](Self::next) fails if `connections` is empty.
    pub fn new(connections: Vec<Client>) -> Self {
        Self { connections, next: AtomicUsize::new(0) }
    }

    /// Returns the next connection. Fails if the pool is empty.
    pub fn next(&self) -> Result<&Client, Status> {
        let index = self.next.fetch_add(1, Relaxed).checked_rem(self.connections.len());
        index.and_then(|index| self.connections.get(index)).ok_or_else(|| Status::internal("no connection"))
    }
}

/// Returns the name of the gRPC code as the specification spells it. A lost connection is `UNAVAILABLE`: tonic's code for it is
/// UNKNOWN while an answer arrives, and CANCELLED before the request was written.
pub fn code_name(status: &Status) -> &'static str {
    match status.code() {
        Code::Unknown | Code::Cancelled if status.source().is_some() => UNAVAILABLE,
        code => CODE_NAMES[code as usize],
    }
}

const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// Model as the server describes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    pub name: String,
    pub family: String,
    pub shape: String,
    pub parameters: u64,
    pub pooled: bool,
    pub summarizes: bool,
    /// Unit of its limits, prompts and answers.
    pub unit: SymbolUnit,
    pub dtype: String,
    pub sha256: String,
    pub max_symbols: u64,
    pub rows: u32,
    pub queue: u32,
    pub chunk: u32,
    pub boundary_wait: u32,
    pub step_ns: u64,
    pub cache_bytes: u64,
    pub concurrent_streams: u32,
    /// Limits and defaults of a model that summarizes.
    pub documents: Option<DocumentInfo>,
}

impl ModelInfo {
    /// True if the model pools its input or its documents.
    pub fn pools(&self) -> bool {
        self.pooled || self.documents.as_ref().is_some_and(|documents| documents.poolings > 0)
    }
}

/// Unit that a model's limits, prompts and answers count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SymbolUnit {
    /// Characters of the vocabulary.
    #[default]
    Characters,
    /// Bytes of UTF-8.
    Bytes,
    /// Subwords.
    Tokens,
}

impl SymbolUnit {
    /// Returns the plural of the unit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Characters => "characters",
            Self::Bytes => "bytes",
            Self::Tokens => "tokens",
        }
    }
}

/// Limits and defaults of a model that summarizes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DocumentInfo {
    pub max_tokens: u64,
    pub max_summary_tokens: u64,
    pub padded: bool,
    pub poolings: u64,
    pub beam_size: u32,
    pub length_penalty: f32,
    pub no_repeat_ngram: u32,
}

impl From<Documents> for DocumentInfo {
    fn from(documents: Documents) -> Self {
        let Documents { max_tokens, max_summary_tokens, padded, beam_size, length_penalty, no_repeat_ngram, .. } =
            documents;
        let poolings = documents.poolings.len() as u64;
        Self { max_tokens, max_summary_tokens, padded, poolings, beam_size, length_penalty, no_repeat_ngram }
    }
}

impl From<Model> for ModelInfo {
    fn from(model: Model) -> Self {
        let limits = model.limits.unwrap_or_default();
        let unit = match &model.vocabulary {
            Some(vocabulary) if vocabulary.pieces => SymbolUnit::Tokens,
            Some(vocabulary) if vocabulary.bytes || vocabulary.first_byte > 0 => SymbolUnit::Bytes,
            _ => SymbolUnit::Characters,
        };
        Self {
            name: model.name,
            family: model.family,
            shape: model.shape,
            parameters: model.parameters,
            pooled: model.pooled,
            summarizes: model.documents.is_some(),
            unit,
            dtype: model.dtype,
            sha256: model.sha256,
            max_symbols: limits.max_symbols,
            rows: limits.rows,
            queue: limits.queue,
            chunk: limits.chunk,
            boundary_wait: limits.boundary_wait,
            step_ns: limits.step_ns,
            cache_bytes: limits.cache_bytes,
            concurrent_streams: limits.concurrent_streams,
            documents: model.documents.map(DocumentInfo::from),
        }
    }
}

/// Quality of the calibration that a model's estimates are based on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibrationSummary {
    pub fewest_samples: u32,
    pub spread: f64,
    pub doubt: Option<String>,
}

impl CalibrationSummary {
    /// Returns a human-readable summary of the calibration.
    pub fn describe(&self) -> String {
        let spread = weir_measure::format::digits(self.spread * 100.0);
        let table = format!(
            "timings of each step: at least {}, spread {spread} % (interquartile range divided by median)",
            self.fewest_samples
        );
        match &self.doubt {
            Some(doubt) => format!("UNRELIABLE: {doubt}; {table}"),
            None => table,
        }
    }
}

/// Longest wait for a server that times a model's steps.
const CALIBRATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until the server has timed the model's steps, because requests that end before have no estimated gain. Gives up after
/// ten seconds.
pub async fn wait_for_calibration(client: &Client, model: &str) {
    let is_pending = async || {
        let reports = client.reports(Some(model.to_owned()), None, METADATA_TIMEOUT).await;
        reports.is_ok_and(|models| models.first().is_some_and(|model| model.calibration_pending))
    };
    let calibrated = async {
        while is_pending().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    // A report without estimates is complete in everything else.
    let _ = timeout(CALIBRATION_TIMEOUT, calibrated).await;
}

/// Fetches the quality of a model's calibration; `None` if the server has none or does not report it.
pub async fn fetch_calibration(client: &Client, model: &str) -> Option<CalibrationSummary> {
    let reports = client.reports(Some(model.to_owned()), None, METADATA_TIMEOUT);
    let models = timeout(METADATA_TIMEOUT, reports).await.ok()?.ok()?;
    let calibration = models.into_iter().next()?.estimated_gain?.calibration?;
    let Calibration { fewest_samples, spread, doubt, .. } = calibration;
    Some(CalibrationSummary { fewest_samples, spread, doubt })
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSoftware {
    pub name: String,
    pub version: String,
}

/// Fetches the name and version of the server software; `None` if the server does not report them.
pub async fn fetch_software(client: &Client) -> Option<ServerSoftware> {
    let metadata = timeout(METADATA_TIMEOUT, client.server_metadata(METADATA_TIMEOUT)).await.ok()?.ok()?;
    Some(ServerSoftware { name: metadata.name, version: metadata.version })
}

/// Lists all models of the server. Fails if the server rejects the request or does not answer in time.
pub async fn list(client: &Client) -> Result<Vec<ModelInfo>> {
    let listed = client.list_models(METADATA_TIMEOUT).await;
    let models = client.answered(listed).await.map_err(|error| Error::Server(error.to_string()))?;
    Ok(models.into_iter().map(ModelInfo::from).collect())
}

/// Selects the models called `names`, in that order; without names, the server's only model.
/// Fails if a name is unknown or repeated, or if several models exist and none is named.
pub fn select(field: &str, names: &[String], all: &[ModelInfo]) -> Result<Vec<ModelInfo>> {
    let known = || all.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
    let repeated = names.iter().enumerate().find(|(index, name)| names.iter().take(*index).any(|other| other == *name));
    if let Some((_, name)) = repeated {
        return Err(Error::option(
            "--models",
            quoted(name),
            "each model once (a model compared with itself shows nothing)",
        ));
    }
    match (names, all) {
        ([], [only]) => Ok(vec![only.clone()]),
        ([], []) => Err(Error::Setting("the server has no model".into())),
        ([], _) => Err(Error::option("--model", "no name", format!("one of {}", known()))),
        (names, all) => names
            .iter()
            .map(|name| all.iter().find(|model| model.name == *name).cloned().ok_or((name, known())))
            .collect::<std::result::Result<_, _>>()
            .map_err(|(name, known)| Error::option(field, quoted(name), format!("one of {known}"))),
    }
}
