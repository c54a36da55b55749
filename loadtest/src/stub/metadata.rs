//! Metadata calls of the stub: its models, their calibration, and of the Open Inference Protocol only the server's name and
//! version.

use super::server::{Script, Stub};
use tonic::{Request, Response, Status, Streaming};
use weir_proto::inference::{grpc_inference_service_server::GrpcInferenceService, *};
use weir_proto::v1::{
    Calibration, Documents, EstimatedGain, GetModelRequest, GetReportRequest, GetReportResponse, Limits,
    ListModelsRequest, ListModelsResponse, Model, ModelReport, latency_server, models_server,
};

type RpcResult<T> = Result<Response<T>, Status>;

/// Spread above which the stub reports its calibration as unreliable.
const MAX_SPREAD: f64 = 0.2;

#[tonic::async_trait]
impl models_server::Models for Stub {
    async fn list_models(&self, _: Request<ListModelsRequest>) -> RpcResult<ListModelsResponse> {
        Ok(Response::new(ListModelsResponse {
            models: self.models.iter().map(|(script, _)| describe(script)).collect(),
        }))
    }

    async fn get_model(&self, request: Request<GetModelRequest>) -> RpcResult<Model> {
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
    async fn get_report(&self, request: Request<GetReportRequest>) -> RpcResult<GetReportResponse> {
        let (script, _) = self.model(request.get_ref().model())?;
        let doubt = (script.spread > MAX_SPREAD).then(|| "the machine was busy".to_owned());
        let calibration = Calibration { fewest_samples: 31, spread: script.spread, doubt, ..Default::default() };
        let estimated = EstimatedGain { calibration: Some(calibration), ..Default::default() };
        let estimated_gain = script.gain.map(|_| estimated);
        let report = ModelReport { model: script.name.clone(), estimated_gain, ..Default::default() };
        Ok(Response::new(GetReportResponse { models: vec![report] }))
    }
}

fn unimplemented<T>() -> RpcResult<T> {
    Err(Status::unimplemented("the stub implements only server_metadata"))
}

#[tonic::async_trait]
impl GrpcInferenceService for Stub {
    type ModelStreamInferStream = tokio_stream::Empty<Result<ModelStreamInferResponse, Status>>;

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> RpcResult<ServerMetadataResponse> {
        let version = env!("CARGO_PKG_VERSION").into();
        Ok(Response::new(ServerMetadataResponse { name: "stub".into(), version, extensions: Vec::new() }))
    }

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<ModelInferRequest>>,
    ) -> RpcResult<Self::ModelStreamInferStream> {
        unimplemented()
    }

    async fn server_live(&self, _: Request<ServerLiveRequest>) -> RpcResult<ServerLiveResponse> {
        unimplemented()
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> RpcResult<ServerReadyResponse> {
        unimplemented()
    }

    async fn model_ready(&self, _: Request<ModelReadyRequest>) -> RpcResult<ModelReadyResponse> {
        unimplemented()
    }

    async fn model_metadata(&self, _: Request<ModelMetadataRequest>) -> RpcResult<ModelMetadataResponse> {
        unimplemented()
    }

    async fn model_infer(&self, _: Request<ModelInferRequest>) -> RpcResult<ModelInferResponse> {
        unimplemented()
    }

    async fn model_config(&self, _: Request<ModelConfigRequest>) -> RpcResult<ModelConfigResponse> {
        unimplemented()
    }

    async fn model_statistics(&self, _: Request<ModelStatisticsRequest>) -> RpcResult<ModelStatisticsResponse> {
        unimplemented()
    }

    async fn repository_index(&self, _: Request<RepositoryIndexRequest>) -> RpcResult<RepositoryIndexResponse> {
        unimplemented()
    }
}
