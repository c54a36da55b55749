//! The methods of the protocol.

use super::{for_client, models, request::InferRequest, response::ResponseBuilder, streamed_request::start_call};
use crate::{
    error::Error,
    serve::{
        call::{Call, Reply},
        collected::CollectedLimits,
        in_process::{ClientContext, Services},
        middleware::body_limits::RequestMemory,
        registry::health::Monitor,
        status::status,
        tokenization::TokenizationWorkers,
    },
};
use prost::Message;
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming};
use weir_proto::inference::{self as oip, grpc_inference_service_server::GrpcInferenceService};

/// The service, which calls our own services.
#[derive(Clone)]
pub(super) struct InferenceService {
    pub(super) services: Services,
    pub(super) monitor: Monitor,
    pub(super) workers: TokenizationWorkers,
    /// Limits of responses that are not streamed.
    pub(super) collected: CollectedLimits,
    /// Maximum concurrent requests of one stream.
    pub(super) max_concurrent: usize,
}

impl InferenceService {
    /// Collects the response to a request of this tenant.
    async fn infer(
        &self,
        client: &ClientContext,
        request: InferRequest,
        tenant: &Arc<str>,
    ) -> Result<oip::ModelInferResponse, Status> {
        let mut response = ResponseBuilder::new(request.output.clone());
        let mut stream = start_call(self.services.clone(), client, request).await?;
        let mut size = self.collected.begin(tenant, "use ModelStreamInfer with the input stream");
        while let Some(message) = stream.message().await? {
            message.event.into_iter().for_each(|event| response.push(event));
            size.grow_to(response.memory_bytes()).map_err(|error| status(&error, &client.request_id))?;
        }
        let bytes = response.memory_bytes();
        let built = self.workers.run(tenant, bytes, move || {
            let _size = size;
            response.take_message()
        });
        built.await.map_err(|error| status(&error, &client.request_id))
    }
}

/// Returns a function that converts errors of this call to statuses.
fn status_of<T>(request: &Request<T>) -> impl Fn(Error) -> Status + use<T> {
    let call = Call::of(request);
    move |error| for_client(&status(&error, &call.id))
}

#[tonic::async_trait]
impl GrpcInferenceService for InferenceService {
    type ModelStreamInferStream = tokio_stream::Empty<Result<oip::ModelStreamInferResponse, Status>>;

    async fn server_live(&self, _: Request<oip::ServerLiveRequest>) -> Reply<oip::ServerLiveResponse> {
        Ok(Response::new(oip::ServerLiveResponse { live: self.monitor.alive().is_ok() }))
    }

    async fn server_ready(&self, _: Request<oip::ServerReadyRequest>) -> Reply<oip::ServerReadyResponse> {
        Ok(Response::new(oip::ServerReadyResponse { ready: self.monitor.ready().is_ok() }))
    }

    async fn server_metadata(&self, _: Request<oip::ServerMetadataRequest>) -> Reply<oip::ServerMetadataResponse> {
        Ok(Response::new(models::server()))
    }

    async fn model_ready(&self, request: Request<oip::ModelReadyRequest>) -> Reply<oip::ModelReadyResponse> {
        let oip::ModelReadyRequest { name, version } = request.get_ref();
        let ready = models::find(self.monitor.engines(), name, version)
            .is_ok_and(|engine| models::unready_reason(&engine).is_none());
        Ok(Response::new(oip::ModelReadyResponse { ready: ready && self.monitor.ready().is_ok() }))
    }

    async fn model_metadata(&self, request: Request<oip::ModelMetadataRequest>) -> Reply<oip::ModelMetadataResponse> {
        let oip::ModelMetadataRequest { name, version } = request.get_ref();
        let engine = models::find_generating(self.monitor.engines(), "ModelMetadata", name, version);
        engine.map(|engine| Response::new(models::metadata(&engine))).map_err(status_of(&request))
    }

    async fn model_config(&self, request: Request<oip::ModelConfigRequest>) -> Reply<oip::ModelConfigResponse> {
        let oip::ModelConfigRequest { name, version } = request.get_ref();
        let engine = models::find_generating(self.monitor.engines(), "ModelConfig", name, version);
        let config = engine.map(|engine| Some(models::config(&engine))).map_err(status_of(&request))?;
        Ok(Response::new(oip::ModelConfigResponse { config }))
    }

    async fn model_statistics(
        &self,
        request: Request<oip::ModelStatisticsRequest>,
    ) -> Reply<oip::ModelStatisticsResponse> {
        let oip::ModelStatisticsRequest { name, version } = request.get_ref();
        let statistics = models::statistics(self.monitor.engines(), name, version);
        let model_stats = statistics.map_err(status_of(&request))?;
        Ok(Response::new(oip::ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<oip::RepositoryIndexRequest>,
    ) -> Reply<oip::RepositoryIndexResponse> {
        let models = models::index(&self.monitor, request.get_ref().ready);
        Ok(Response::new(oip::RepositoryIndexResponse { models }))
    }

    async fn model_infer(&self, mut request: Request<oip::ModelInferRequest>) -> Reply<oip::ModelInferResponse> {
        let client = ClientContext::from_grpc(&request);
        let status = status_of(&request);
        let tenant = Call::of(&request).tenant();
        let memory = RequestMemory::take(&mut request);
        let message = request.into_inner();
        let symbols = models::symbols_of(self.monitor.engines(), &message.model_name).map_err(&status)?;
        let parsed = self.workers.run(&tenant, message.encoded_len(), move || {
            let _memory = memory;
            InferRequest::parse(message, symbols)
        });
        let mut request = parsed.await.flatten().map_err(&status)?;
        if request.output.stream {
            return Err(status(Error::bad_option("stream", "true", "false (ModelStreamInfer streams)")));
        }
        request.output.empty_final = false;
        let response = self.infer(&client, request, &tenant).await;
        response.map(Response::new).map_err(|status| for_client(&status))
    }

    /// Never called: [`InferenceServer`](super::InferenceServer) handles this method with its own codec.
    async fn model_stream_infer(
        &self,
        _: Request<Streaming<oip::ModelInferRequest>>,
    ) -> Reply<Self::ModelStreamInferStream> {
        Err(Status::unimplemented("ModelStreamInfer is handled by its own codec"))
    }
}
