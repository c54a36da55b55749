//! Descriptions of the stub's models, and of their calibration.

use super::server::{Script, Stub};
use tonic::{Request, Response, Status};
use weir_proto::v1::{
    Calibration, Documents, EstimatedGain, GetModelRequest, GetReportRequest, GetReportResponse, Limits,
    ListModelsRequest, ListModelsResponse, Model, ModelReport, latency_server, models_server,
};

/// Spread above which the stub reports its calibration as unreliable.
const MAX_SPREAD: f64 = 0.2;

#[tonic::async_trait]
impl models_server::Models for Stub {
    async fn list_models(&self, _: Request<ListModelsRequest>) -> Result<Response<ListModelsResponse>, Status> {
        let models = self.models.iter().map(|(script, _)| describe(script)).collect();
        Ok(Response::new(ListModelsResponse { models }))
    }

    async fn get_model(&self, request: Request<GetModelRequest>) -> Result<Response<Model>, Status> {
        Ok(Response::new(describe(&self.model(request.into_inner().name())?.0)))
    }
}

fn describe(script: &Script) -> Model {
    let rows = u32::try_from(script.rows).unwrap_or(u32::MAX);
    Model {
        name: script.name.clone(),
        family: "stub".into(),
        shape: "delays instead of text".into(),
        pooled: script.segment > 0,
        dtype: "none".into(),
        documents: script.summarizes.then(Documents::default),
        limits: Some(Limits { max_symbols: 1 << 20, rows, concurrent_streams: 1 << 16, ..Default::default() }),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl latency_server::Latency for Stub {
    async fn get_report(&self, request: Request<GetReportRequest>) -> Result<Response<GetReportResponse>, Status> {
        let (script, _) = self.model(request.get_ref().model())?;
        let doubt = (script.spread > MAX_SPREAD).then(|| "the machine was busy".to_owned());
        let calibration = Calibration { fewest_samples: 31, spread: script.spread, doubt, ..Default::default() };
        let estimated_gain =
            script.gain.map(|_| EstimatedGain { calibration: Some(calibration), ..Default::default() });
        let report = ModelReport { model: script.name.clone(), estimated_gain, ..Default::default() };
        Ok(Response::new(GetReportResponse { models: vec![report] }))
    }
}
