//! What the server says of its models: the conditions of a measurement.

use super::connection::{ServerConnection, refused};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use weir_proto::inference::{ServerMetadataRequest, grpc_inference_service_client::GrpcInferenceServiceClient};
use weir_proto::v1::{
    Calibration, Documents, GetReportRequest, ListModelsRequest, Model, latency_client::LatencyClient,
    models_client::ModelsClient,
};

/// How long the server may take to list them.
const PATIENCE: Duration = Duration::from_secs(10);

/// A model, as the server describes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelInfo {
    /// The name that requests give.
    pub name: String,
    /// Its family.
    pub family: String,
    /// Layers, width and boundaries in one line.
    pub shape: String,
    /// Trained numbers.
    pub parameters: u64,
    /// Whether it pools.
    pub pooled: bool,
    /// Whether it reads documents and summarizes them.
    #[serde(default)]
    pub summarizes: bool,
    /// The type of the weights' numbers.
    pub dtype: String,
    /// Of the weights' file.
    pub sha256: String,
    /// The most characters of prompt and answer together.
    pub max_symbols: u64,
    /// Requests that run at once.
    pub rows: u32,
    /// Requests that wait.
    pub queue: u32,
    /// Characters of a step.
    pub chunk: u32,
    /// Steps that a request may wait at a boundary.
    pub boundary_wait: u32,
    /// How long a step with prompts may last beside others, about.
    pub step_ns: u64,
    /// Bytes in which texts are kept for later requests.
    pub cache_bytes: u64,
    /// Calls in progress on a connection.
    pub concurrent_streams: u32,
    /// Of a model that reads documents: what it reads and writes. Absent from reports of versions that did not tell.
    #[serde(default)]
    pub documents: Option<DocumentInfo>,
}

/// What a model that summarizes reads and writes, and how, where requests do not say otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentInfo {
    /// The most tokens of a document.
    pub max_tokens: u64,
    /// The most tokens of a summary.
    pub max_summary_tokens: u64,
    /// Whether every document is padded to the longest.
    pub padded: bool,
    /// Poolings between the encoder's layers.
    pub poolings: u64,
    /// Hypotheses.
    pub beam_size: u32,
    /// The power of the length by which log-probabilities are divided.
    pub length_penalty: f32,
    /// No run of so many tokens comes twice; 0: no such rule.
    pub no_repeat_ngram: u32,
}

impl DocumentInfo {
    /// What the model does where a request leaves this setting out; none of what is not told.
    pub fn default_of(&self, setting: &str) -> Option<String> {
        match setting {
            "beam_size" => Some(self.beam_size.to_string()),
            "length_penalty" => Some(self.length_penalty.to_string()),
            "no_repeat_ngram" => Some(self.no_repeat_ngram.to_string()),
            _ => None,
        }
    }
}

impl From<Documents> for DocumentInfo {
    fn from(documents: Documents) -> Self {
        let Documents { max_tokens, max_summary_tokens, padded, poolings, beam_size, length_penalty, .. } = documents;
        let (poolings, no_repeat_ngram) = (poolings.len() as u64, documents.no_repeat_ngram);
        Self { max_tokens, max_summary_tokens, padded, poolings, beam_size, length_penalty, no_repeat_ngram }
    }
}

impl From<Model> for ModelInfo {
    fn from(model: Model) -> Self {
        let limits = model.limits.unwrap_or_default();
        Self {
            name: model.name,
            family: model.family,
            shape: model.shape,
            parameters: model.parameters,
            pooled: model.pooled,
            summarizes: model.documents.is_some(),
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

/// What the server says of the table that a model's estimates come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationSummary {
    /// How often the step was timed that was timed least.
    pub fewest_samples: u32,
    /// How far the times of one and the same step are apart: the interquartile range by the median.
    pub spread: f64,
    /// Why the estimates are not to be trusted, if they are not.
    pub doubt: Option<String>,
}

impl CalibrationSummary {
    /// For people.
    pub fn describe(&self) -> String {
        let spread = crate::units::digits(self.spread * 100.0);
        let table = format!(
            "each step timed at least {} times, spread {spread} % (interquartile range by median)",
            self.fewest_samples
        );
        match &self.doubt {
            Some(doubt) => format!("NOT TO BE TRUSTED: {doubt}; {table}"),
            None => table,
        }
    }
}

/// The table that a model's estimates come from; none where the server has none, or does not tell.
pub async fn calibrated(connection: &ServerConnection, model: &str) -> Option<CalibrationSummary> {
    let request = GetReportRequest { model: Some(model.to_owned()), window: None };
    let mut client = LatencyClient::new(connection.channel());
    let asked = client.get_report(connection.request(request, PATIENCE));
    let answer = tokio::time::timeout(PATIENCE, asked).await.ok()?.ok()?.into_inner();
    let calibration = answer.models.into_iter().next()?.estimated_gain?.calibration?;
    let Calibration { fewest_samples, spread, doubt, .. } = calibration;
    Some(CalibrationSummary { fewest_samples, spread, doubt })
}

/// The server's program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSoftware {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The server's program, by its own word; none where it does not tell.
pub async fn software(connection: &ServerConnection) -> Option<ServerSoftware> {
    let mut client = GrpcInferenceServiceClient::new(connection.channel());
    let asked = client.server_metadata(connection.request(ServerMetadataRequest {}, PATIENCE));
    let told = tokio::time::timeout(PATIENCE, asked).await.ok()?.ok()?.into_inner();
    Some(ServerSoftware { name: told.name, version: told.version })
}

/// All models of the server.
///
/// # Errors
/// It refuses, or does not answer in time.
pub async fn list(server: &str, connection: &ServerConnection) -> Result<Vec<ModelInfo>> {
    let mut client = ModelsClient::new(connection.channel());
    let asked = client.list_models(connection.request(ListModelsRequest {}, PATIENCE));
    let late = |_| Error::Remote { server: server.to_owned(), answer: format!("no list of models in {PATIENCE:?}") };
    let answer = tokio::time::timeout(PATIENCE, asked).await.map_err(late)?;
    let answer = answer.map_err(|status| refused(server, &status))?;
    Ok(answer.into_inner().models.into_iter().map(ModelInfo::from).collect())
}

/// The models of these names, in their order; of no names the only one there is.
///
/// # Errors
/// One that is not there, or several to choose from.
pub fn choose(field: &str, names: &[String], all: &[ModelInfo]) -> Result<Vec<ModelInfo>> {
    let known = || all.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some((_, twice)) = names.iter().enumerate().find(|(at, name)| names.iter().take(*at).any(|one| one == *name))
    {
        return Err(Error::option("--models", twice, "given once: a model that is compared with itself tells nothing"));
    }
    match (names, all) {
        ([], [only]) => Ok(vec![only.clone()]),
        ([], []) => Err(Error::Setting("the server has no model".into())),
        ([], _) => Err(Error::option("--model", "not given", format!("one of {}", known()))),
        (names, all) => names
            .iter()
            .map(|name| all.iter().find(|model| model.name == *name).cloned().ok_or((name, known())))
            .collect::<std::result::Result<_, _>>()
            .map_err(|(name, known)| Error::option(field, name, format!("one of {known}"))),
    }
}
