//! The methods of the protocol.

use super::{for_client, models, request::InferRequest, response::ResponseBuilder};
use crate::{
    error::{Error, Result},
    serve::{
        call::{Call, Reply},
        calls::{Calls, ClientContext},
        collected::CollectedLimits,
        grpc::generation::Incoming,
        middleware::body_limits::RequestMemory,
        registry::health::Monitor,
        status::status,
    },
};
use prost::Message;
use std::sync::Arc;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};
use weir_proto::inference::{self as oip, grpc_inference_service_server::GrpcInferenceService};

/// The service. Each request becomes a call of `Generate`.
#[derive(Clone)]
pub(in crate::serve) struct InferenceService {
    pub(in crate::serve) calls: Calls,
    /// Watches the engines, and reports the health of the server.
    pub(in crate::serve) monitor: Monitor,
    /// Limits of responses that are not streamed.
    pub(in crate::serve) collected: CollectedLimits,
    /// Maximum concurrent requests of one stream.
    pub(in crate::serve) max_concurrent: usize,
}

impl InferenceService {
    /// Answers a request in one message.
    pub(in crate::serve) async fn infer(
        &self,
        client: &ClientContext,
        request: Incoming<oip::ModelInferRequest>,
    ) -> Result<oip::ModelInferResponse, Status> {
        let Incoming { message, call, memory } = request;
        let status = status_of(&call);
        let tenant = call.tenant();
        let parsed = self.parse(&tenant, message, memory).await.map_err(&status)?;
        let InferRequest { generate, mut output, deadline } = parsed;
        if output.stream {
            return Err(status(Error::bad_option("stream", "true", "false (ModelStreamInfer streams)")));
        }
        output.empty_final = false;
        let mut response = ResponseBuilder::new(output);
        let for_client = |status: Status| for_client(&status);
        let generated = self.calls.generate(&client.clone().until(deadline), generate).await;
        let mut generated = generated.map_err(for_client)?;
        let mut size = self.collected.begin(&tenant, "use ModelStreamInfer with the input stream");
        while let Some(message) = generated.next().await {
            message.map_err(for_client)?.event.into_iter().for_each(|event| response.push(event));
            size.grow_to(response.memory_bytes()).map_err(&status)?;
        }
        let bytes = response.memory_bytes();
        let built = self.calls.jobs.workers.run(&tenant, bytes, move || {
            let _size = size;
            response.take_message()
        });
        built.await.map_err(status)
    }

    /// Parses a request of this tenant, on a worker if it is long. Holds `memory` until then.
    pub(super) async fn parse(
        &self,
        tenant: &Arc<str>,
        message: oip::ModelInferRequest,
        memory: Option<RequestMemory>,
    ) -> Result<InferRequest> {
        let symbols = models::symbols_of(self.monitor.engines(), &message.model_name)?;
        let parsed = self.calls.jobs.workers.run(tenant, message.encoded_len(), move || {
            let _memory = memory;
            InferRequest::parse(message, symbols)
        });
        parsed.await.flatten()
    }

    /// Returns the tensors of a model.
    pub(in crate::serve) fn metadata(
        &self,
        call: &Call,
        name: &str,
        version: &str,
    ) -> Result<oip::ModelMetadataResponse, Status> {
        let engine = models::find_generating(self.monitor.engines(), "ModelMetadata", name, version);
        engine.map(|engine| models::metadata(&engine)).map_err(status_of(call))
    }

    /// Returns true if a model takes requests.
    pub(in crate::serve) fn is_ready(&self, name: &str, version: &str) -> bool {
        let model = models::find(self.monitor.engines(), name, version);
        model.is_ok_and(|engine| models::unready_reason(&engine).is_none()) && self.monitor.ready().is_ok()
    }
}

/// Returns a function that converts errors of this call to statuses.
fn status_of(call: &Call) -> impl Fn(Error) -> Status + use<> {
    let id = Arc::clone(&call.id);
    move |error| for_client(&status(&error, &id))
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
        Ok(Response::new(oip::ModelReadyResponse { ready: self.is_ready(name, version) }))
    }

    async fn model_metadata(&self, request: Request<oip::ModelMetadataRequest>) -> Reply<oip::ModelMetadataResponse> {
        let oip::ModelMetadataRequest { name, version } = request.get_ref();
        self.metadata(&Call::of(&request), name, version).map(Response::new)
    }

    async fn model_config(&self, request: Request<oip::ModelConfigRequest>) -> Reply<oip::ModelConfigResponse> {
        let oip::ModelConfigRequest { name, version } = request.get_ref();
        let engine = models::find_generating(self.monitor.engines(), "ModelConfig", name, version);
        let config = engine.map(|engine| Some(models::config(&engine))).map_err(status_of(&Call::of(&request)))?;
        Ok(Response::new(oip::ModelConfigResponse { config }))
    }

    async fn model_statistics(
        &self,
        request: Request<oip::ModelStatisticsRequest>,
    ) -> Reply<oip::ModelStatisticsResponse> {
        let oip::ModelStatisticsRequest { name, version } = request.get_ref();
        let statistics = models::statistics(self.monitor.engines(), name, version);
        let model_stats = statistics.map_err(status_of(&Call::of(&request)))?;
        Ok(Response::new(oip::ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<oip::RepositoryIndexRequest>,
    ) -> Reply<oip::RepositoryIndexResponse> {
        let models = models::index(&self.monitor, request.get_ref().ready);
        Ok(Response::new(oip::RepositoryIndexResponse { models }))
    }

    async fn model_infer(&self, request: Request<oip::ModelInferRequest>) -> Reply<oip::ModelInferResponse> {
        let client = ClientContext::of(&request);
        self.infer(&client, Incoming::of(request)).await.map(Response::new)
    }

    /// Never called: [`InferenceServer`](super::InferenceServer) handles this method with its own codec.
    async fn model_stream_infer(
        &self,
        _: Request<Streaming<oip::ModelInferRequest>>,
    ) -> Reply<Self::ModelStreamInferStream> {
        Err(Status::unimplemented("ModelStreamInfer is handled by its own codec"))
    }
}
