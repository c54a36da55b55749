//! The stub's name and version, which is all that is asked of this protocol.

use super::Stub;
use tonic::{Request, Response, Status, Streaming};
use weir_proto::inference::{self as oip, grpc_inference_service_server::GrpcInferenceService};

type RpcResult<T> = Result<Response<T>, Status>;

fn nothing<T>() -> RpcResult<T> {
    Err(Status::unimplemented("it has nothing but delays"))
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
        nothing()
    }

    async fn server_live(&self, _: Request<oip::ServerLiveRequest>) -> RpcResult<oip::ServerLiveResponse> {
        nothing()
    }

    async fn server_ready(&self, _: Request<oip::ServerReadyRequest>) -> RpcResult<oip::ServerReadyResponse> {
        nothing()
    }

    async fn model_ready(&self, _: Request<oip::ModelReadyRequest>) -> RpcResult<oip::ModelReadyResponse> {
        nothing()
    }

    async fn model_metadata(&self, _: Request<oip::ModelMetadataRequest>) -> RpcResult<oip::ModelMetadataResponse> {
        nothing()
    }

    async fn model_infer(&self, _: Request<oip::ModelInferRequest>) -> RpcResult<oip::ModelInferResponse> {
        nothing()
    }

    async fn model_config(&self, _: Request<oip::ModelConfigRequest>) -> RpcResult<oip::ModelConfigResponse> {
        nothing()
    }

    async fn model_statistics(
        &self,
        _: Request<oip::ModelStatisticsRequest>,
    ) -> RpcResult<oip::ModelStatisticsResponse> {
        nothing()
    }

    async fn repository_index(
        &self,
        _: Request<oip::RepositoryIndexRequest>,
    ) -> RpcResult<oip::RepositoryIndexResponse> {
        nothing()
    }
}
