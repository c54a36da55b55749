//! The client behind `weir admin`, `weir health` and `weir report`, and behind the commands that call a server instead of loading a
//! model.

mod connection;
pub mod editing;
mod in_memory;
pub mod inference;
pub mod streams;
pub mod summaries;

pub use connection::ServerEndpoint;

use crate::{
    config::AdminToken,
    error::{Error, Result},
};
use connection::{Peer, TIMEOUT, authorization, call_failed, connect};
use tonic::{
    Code, Request, Response, Status,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
pub use weir_proto::v1::{
    CacheEffect, Calibration, EstimatedGain, KeptShares, LatencyHistogram, MeasuredSummaries, MeasuredTexts,
    MedianGain, ModelReport, TwinGain,
};
use weir_proto::v1::{
    GetReportRequest, ListGenerationsRequest, LoadModelRequest, LoadModelResponse, ModelGeneration, ReportWindow,
    ResetReportRequest, UnloadModelRequest, admin_client::AdminClient, latency_client::LatencyClient,
    model_generation::State,
};

/// Maximum bytes of a report, which has the histograms of many models.
const REPORT_BYTES: usize = 64 << 20;

/// Returns true if a service reports that it serves. `""` stands for the server as a whole. Fails if the server or
/// service is unknown or does not answer in five seconds.
pub async fn is_serving(server: &ServerEndpoint, service: &str) -> Result<bool> {
    let mut request = Request::new(HealthCheckRequest { service: service.to_owned() });
    request.set_timeout(TIMEOUT);
    let mut client = HealthClient::new(connect(server).await?);
    match client.check(request).await {
        Ok(answer) => Ok(answer.into_inner().status() == ServingStatus::Serving),
        Err(status) if status.code() == Code::NotFound => {
            let answer = format!("the server has no service {service:?}");
            Err(Error::Remote { server: server.address.clone(), answer })
        }
        Err(status) => Err(call_failed(server, &status).await),
    }
}

/// The time that a report covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportPeriod {
    /// Since the model was loaded.
    Load,
    /// Since an operator last reset the report.
    Reset,
    /// About the last minute.
    Minute,
}

/// Returns the latency report of the model of that name, or of all models. Fails if the server is unreachable, rejects
/// the call or does not answer in five seconds, or if no header can hold `key`.
pub async fn report(
    server: &ServerEndpoint,
    key: Option<&str>,
    model: Option<String>,
    period: ReportPeriod,
) -> Result<Vec<ModelReport>> {
    let window = match period {
        ReportPeriod::Load => ReportWindow::SinceLoad,
        ReportPeriod::Reset => ReportWindow::SinceReset,
        ReportPeriod::Minute => ReportWindow::LastMinute,
    };
    let mut request = Request::new(GetReportRequest { model, window: Some(window.into()) });
    request.set_timeout(TIMEOUT);
    if let Some(key) = key {
        request.metadata_mut().insert("authorization", authorization(key)?);
    }
    let mut client = LatencyClient::new(connect(server).await?).max_decoding_message_size(REPORT_BYTES);
    match client.get_report(request).await {
        Ok(answer) => Ok(answer.into_inner().models),
        Err(status) => {
            let peer = Peer { server: server.clone(), has_key: key.is_some() };
            Err(peer.call_error(&status).await)
        }
    }
}

/// A client of a server's admin service. Every call fails with [`Error::Remote`] if the server rejects it.
pub struct AdminConnection {
    server: ServerEndpoint,
    client: AdminClient<Channel>,
    token: MetadataValue<Ascii>,
}

/// A model in the server's memory, as loaded once.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Loaded {
    /// The model's name.
    pub name: String,
    /// The number of the generation.
    pub generation: u64,
    /// `serving`, `draining` or `broken`.
    pub state: &'static str,
    /// The folder that it was loaded from, on the server.
    pub path: String,
    /// SHA-256 of its weights, hexadecimal.
    pub sha256: String,
    /// Running requests.
    pub running: u32,
    /// Queued requests.
    pub waiting: u32,
    /// Bytes of key-value cache in use.
    pub kv_bytes: u64,
}

impl AdminConnection {
    /// Connects to a server. Fails if the server is unreachable.
    pub async fn connect(server: &ServerEndpoint, token: &AdminToken) -> Result<Self> {
        let token = MetadataValue::try_from(token.bearer());
        let mut token = token.map_err(|error| Error::Internal(format!("the token: {error}")))?;
        token.set_sensitive(true);
        Ok(Self { server: server.clone(), client: AdminClient::new(connect(server).await?), token })
    }

    /// Loads a model. Returns the generation that serves now, and the number of the one that drains.
    pub async fn load(&mut self, path: Option<String>, name: Option<String>) -> Result<(Loaded, Option<u64>)> {
        let request = self.request(LoadModelRequest { path, name });
        let answer = self.client.load_model(request).await;
        let answer = self.answered(answer).await?;
        let LoadModelResponse { generation, draining } = answer.into_inner();
        Ok((Loaded::from(generation.unwrap_or_default()), draining))
    }

    /// Unloads a model. Returns the number of the generation that drains.
    pub async fn unload(&mut self, name: String) -> Result<u64> {
        let request = self.request(UnloadModelRequest { name });
        let answer = self.client.unload_model(request).await;
        let answer = self.answered(answer).await?;
        Ok(answer.into_inner().generation)
    }

    /// Lists all generations in memory.
    pub async fn list(&mut self) -> Result<Vec<Loaded>> {
        let request = self.request(ListGenerationsRequest {});
        let answer = self.client.list_generations(request).await;
        let answer = self.answered(answer).await?;
        Ok(answer.into_inner().generations.into_iter().map(Loaded::from).collect())
    }

    /// Resets the report of a model, or of all models. Returns their names.
    pub async fn reset_report(&mut self, model: Option<String>) -> Result<Vec<String>> {
        let request = self.request(ResetReportRequest { model });
        let answer = self.client.reset_report(request).await;
        let answer = self.answered(answer).await?;
        Ok(answer.into_inner().models)
    }

    async fn answered<T>(&self, answer: Result<Response<T>, Status>) -> Result<Response<T>> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
                let answer = format!("{}: check --admin-token-file or WEIR_ADMIN_TOKEN", status.message());
                Err(Error::Remote { server: self.server.address.clone(), answer })
            }
            Err(status) => Err(call_failed(&self.server, &status).await),
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token.clone());
        request
    }
}

impl From<ModelGeneration> for Loaded {
    fn from(generation: ModelGeneration) -> Self {
        let state = match generation.state() {
            State::Serving => "serving",
            State::Draining => "draining",
            State::Broken => "broken",
            State::Unspecified => "unknown",
        };
        let ModelGeneration { name, number, path, sha256, running, waiting, kv_bytes, .. } = generation;
        Self { name, generation: number, state, path, sha256, running, waiting, kv_bytes }
    }
}
