//! The client's side of what `weir admin` and `weir health` ask a running server.

pub mod streams;

use crate::{
    config::Token,
    error::{Error, Result},
};
use std::time::Duration;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
pub use weir_proto::v1::{Calibration, EstimatedGain, LatencyHistogram, MeasuredSummaries, MeasuredTexts, ModelReport};
use weir_proto::v1::{
    GetReportRequest, ListGenerationsRequest, LoadModelRequest, LoadModelResponse, ModelGeneration, ReportWindow,
    ResetReportRequest, UnloadModelRequest, admin_client::AdminClient, latency_client::LatencyClient,
    model_generation::State,
};

/// How a server is reached.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// `host:port`, or a URL; `https://` for TLS.
    pub address: String,
    /// PEM: those who may have signed the server's certificate.
    pub authorities: Option<Vec<u8>>,
    /// PEM: the certificate, its chain, and the key that the client shows to a server that asks for them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// How long a connection may take to come about, and the answer about health.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of a report: of many models, each with its distributions.
const REPORT_BYTES: usize = 64 << 20;

/// Whether a server says that it serves, or that a service of it does; `""` is the server as a whole.
///
/// # Errors
/// There is no such server or service, or it does not answer in five seconds.
pub async fn is_serving(server: &Reach, service: &str) -> Result<bool> {
    let mut request = Request::new(HealthCheckRequest { service: service.to_owned() });
    request.set_timeout(PATIENCE);
    let mut client = HealthClient::new(connect(server).await?);
    let answer = client.check(request).await.map_err(|status| refused(&server.address, &status))?;
    Ok(answer.into_inner().status() == ServingStatus::Serving)
}

/// Of which time a report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// All since the model was loaded.
    Load,
    /// All since an operator last reset that.
    Reset,
    /// The last minute, about.
    Minute,
}

/// What a server's models took: of the one of that name, or of all.
///
/// # Errors
/// It is not there, refuses, or does not answer in five seconds; a key that no header can hold.
pub async fn report(
    server: &Reach,
    key: Option<&str>,
    model: Option<String>,
    window: Window,
) -> Result<Vec<ModelReport>> {
    let window = match window {
        Window::Load => ReportWindow::SinceLoad,
        Window::Reset => ReportWindow::SinceReset,
        Window::Minute => ReportWindow::LastMinute,
    };
    let mut request = Request::new(GetReportRequest { model, window: Some(window.into()) });
    request.set_timeout(PATIENCE);
    if let Some(key) = key {
        let header = MetadataValue::try_from(format!("Bearer {key}"));
        let mut header =
            header.map_err(|_| Error::Setting("the API key has characters that no header can hold".into()))?;
        header.set_sensitive(true);
        request.metadata_mut().insert("authorization", header);
    }
    let mut client = LatencyClient::new(connect(server).await?).max_decoding_message_size(REPORT_BYTES);
    let answer = client.get_report(request).await.map_err(|status| refused(&server.address, &status))?;
    Ok(answer.into_inner().models)
}

/// Whoever has the token of a server's admin service.
pub struct Operator {
    server: String,
    client: AdminClient<Channel>,
    token: MetadataValue<Ascii>,
}

/// One loading of a model, as it stands.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Loaded {
    /// The model's name.
    pub name: String,
    /// The number of the generation.
    pub generation: u64,
    /// `serving`, `draining` or `broken`.
    pub state: &'static str,
    /// Where it was loaded from, as the server sees it.
    pub path: String,
    /// Of its weights, hexadecimal.
    pub sha256: String,
    /// Requests that run.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Bytes of key-value memory in use.
    pub kv_bytes: u64,
}

impl Operator {
    /// Connects to a server.
    ///
    /// # Errors
    /// It is not there.
    pub async fn connect(server: &Reach, token: &Token) -> Result<Self> {
        let token = MetadataValue::try_from(token.bearer());
        let mut token = token.map_err(|error| Error::Internal(format!("the token: {error}")))?;
        token.set_sensitive(true);
        Ok(Self { server: server.address.clone(), client: AdminClient::new(connect(server).await?), token })
    }

    /// Loads a model: the generation that serves, and the number of the one that drains.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn load(&mut self, path: Option<String>, name: Option<String>) -> Result<(Loaded, Option<u64>)> {
        let request = self.request(LoadModelRequest { path, name });
        let answer = self.client.load_model(request).await.map_err(|status| refused(&self.server, &status))?;
        let LoadModelResponse { generation, draining } = answer.into_inner();
        Ok((Loaded::from(generation.unwrap_or_default()), draining))
    }

    /// Unloads a model: the number of the generation that drains.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn unload(&mut self, name: String) -> Result<u64> {
        let request = self.request(UnloadModelRequest { name });
        let answer = self.client.unload_model(request).await.map_err(|status| refused(&self.server, &status))?;
        Ok(answer.into_inner().generation)
    }

    /// All generations in memory.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn list(&mut self) -> Result<Vec<Loaded>> {
        let request = self.request(ListGenerationsRequest {});
        let answer = self.client.list_generations(request).await.map_err(|status| refused(&self.server, &status))?;
        Ok(answer.into_inner().generations.into_iter().map(Loaded::from).collect())
    }

    /// Begins the report since the last reset of a model anew, or of all; returns their names.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn reset_report(&mut self, model: Option<String>) -> Result<Vec<String>> {
        let request = self.request(ResetReportRequest { model });
        let answer = self.client.reset_report(request).await.map_err(|status| refused(&self.server, &status))?;
        Ok(answer.into_inner().models)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token.clone());
        request
    }
}

impl From<ModelGeneration> for Loaded {
    fn from(told: ModelGeneration) -> Self {
        let state = match told.state() {
            State::Serving => "serving",
            State::Draining => "draining",
            State::Broken => "broken",
            State::Unspecified => "unknown",
        };
        let ModelGeneration { name, number, path, sha256, running, waiting, kv_bytes, .. } = told;
        Self { name, generation: number, state, path, sha256, running, waiting, kv_bytes }
    }
}

async fn connect(reach: &Reach) -> Result<Channel> {
    let Reach { address, authorities, identity } = reach;
    let failed = |error: &dyn std::error::Error| {
        let mut why = error;
        while let Some(source) = why.source() {
            why = source;
        }
        Error::Remote { server: address.clone(), answer: why.to_string() }
    };
    let url = if address.contains("://") { address.clone() } else { format!("http://{address}") };
    let encrypted = url.starts_with("https://");
    if encrypted && authorities.is_none() {
        return Err(Error::Setting("https:// needs --tls-ca, who signed the server's certificate".into()));
    }
    let mut endpoint = Endpoint::from_shared(url).map_err(|error| failed(&error))?.connect_timeout(PATIENCE);
    if encrypted {
        let mut tls = ClientTlsConfig::new();
        tls = authorities.iter().fold(tls, |tls, pem| tls.ca_certificate(Certificate::from_pem(pem)));
        tls = identity.iter().fold(tls, |tls, (chain, key)| tls.identity(Identity::from_pem(chain, key)));
        endpoint = endpoint.tls_config(tls).map_err(|error| failed(&error))?;
    }
    endpoint.connect().await.map_err(|error| failed(&error))
}

fn refused(server: &str, status: &Status) -> Error {
    Error::Remote { server: server.to_owned(), answer: format!("{:?}: {}", status.code(), status.message()) }
}
