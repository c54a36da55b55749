//! Open Inference Protocol of the stub: only the server's name and version.

use super::server::Stub;
use tonic::{Request, Response, Status, Streaming};
use weir_proto::inference::{self as oip, grpc_inference_service_server::GrpcInferenceService};

type RpcResult<T> = Result<Response<T>, Status>;

fn unimplemented<T>() -> RpcResult<T> {
    Err(Status::unimplemented("the stub implements only server_metadata"))
}

#[tonic::async_trait]
impl GrpcInferenceService for Stub {
    type ModelStreamInferStream = tokio_stream::Empty<Result<oip::ModelStreamInferResponse, Status>>;

    async fn server_metadata(&self, _: Request<oip::ServerMetadataRequest>) -> RpcResult<oip::ServerMetadataResponse> {
        let version = env!("CARGO_PKG_VERSION").into();
        Ok(Response::new(oip::ServerMetadataResponse { name: "stub".into(), version, extensions: Vec::new() }))
    }

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<oip::ModelInferRequest>>,
    ) -> RpcResult<Self::ModelStreamInferStream> {
        unimplemented()
    }

    async fn server_live(&self, _: Request<oip::ServerLiveRequest>) -> RpcResult<oip::ServerLiveResponse> {
        unimplemented()
    }

    async fn server_ready(&self, _: Request<oip::ServerReadyRequest>) -> RpcResult<oip::ServerReadyResponse> {
        unimplemented()
    }

    async fn model_ready(&self, _: Request<oip::ModelReadyRequest>) -> RpcResult<oip::ModelReadyResponse> {
        unimplemented()
    }

    async fn model_metadata(&self, _: Request<oip::ModelMetadataRequest>) -> RpcResult<oip::ModelMetadataResponse> {
        unimplemented()
    }

    async fn model_infer(&self, _: Request<oip::ModelInferRequest>) -> RpcResult<oip::ModelInferResponse> {
        unimplemented()
    }

    async fn model_config(&self, _: Request<oip::ModelConfigRequest>) -> RpcResult<oip::ModelConfigResponse> {
        unimplemented()
    }

    async fn model_statistics(
        &self,
        _: Request<oip::ModelStatisticsRequest>,
    ) -> RpcResult<oip::ModelStatisticsResponse> {
        unimplemented()
    }

    async fn repository_index(
        &self,
        _: Request<oip::RepositoryIndexRequest>,
    ) -> RpcResult<oip::RepositoryIndexResponse> {
        unimplemented()
    }
}
