//! The Open Inference Protocol over gRPC, with what Triton added to it, for clients of other servers.
//!
//! A request becomes a call of `Generate`, made within the process on the caller's behalf ([`within`](super::within)), so that
//! there is one way to an engine. Reading order: `tensors` (what is in a message), `request` (a message as a request), `reply`
//! (events as messages), `talk` (one request of a stream), `exchange` (the stream), `codec` (how it is read), `models` (what is
//! told of models).

mod codec;
mod exchange;
mod fail;
mod models;
mod reply;
mod request;
mod talk;
mod tensors;

use crate::{
    config::Wire,
    error::Error,
    serve::{
        call::Call,
        in_process::{ClientContext, Services},
        registry::health::Monitor,
        status::status,
    },
};
use codec::Heard;
pub(super) use codec::Served;
use exchange::Exchange;
use reply::Reply;
use request::Inquiry;
use tensors::wrong;
use tonic::{Request, Response, Status, Streaming};
use weir_proto::inference::{self as oip, grpc_inference_service_server::GrpcInferenceService};

/// The service.
#[derive(Clone)]
pub(super) struct Inference {
    services: Services,
    monitor: Monitor,
    /// Requests of one stream that are answered at a time.
    most: usize,
}

/// The service that makes its calls of these, for engines that are looked after there.
pub(super) fn served(services: Services, monitor: Monitor, wire: &Wire) -> Served {
    let most = usize::try_from(wire.concurrent_streams).unwrap_or(usize::MAX).max(1);
    Served::new(Inference { services, monitor, most }, wire.message_bytes)
}

impl Inference {
    /// A stream of requests, and its answers.
    fn exchange(&self, request: Request<Streaming<Heard>>) -> Response<Exchange> {
        let caller = ClientContext::from_grpc(&request);
        Response::new(Exchange::new(self.services.clone(), caller, request, self.most))
    }

    async fn inferred(&self, caller: &ClientContext, inquiry: Inquiry) -> Result<oip::ModelInferResponse, Status> {
        let mut reply = Reply::new(inquiry.wanted.clone());
        let mut answer = talk::begin(self.services.clone(), caller, inquiry).await?;
        while let Some(message) = answer.message().await? {
            message.event.into_iter().for_each(|event| reply.take(event));
        }
        Ok(reply.message())
    }
}

/// What is answered to a call of this service that could not be taken.
fn refused<T>(request: &Request<T>) -> impl Fn(Error) -> Status + use<T> {
    let call = Call::of(request);
    move |error| fail::renamed(&status(&error, &call.id))
}

#[tonic::async_trait]
impl GrpcInferenceService for Inference {
    type ModelStreamInferStream = tokio_stream::Empty<Result<oip::ModelStreamInferResponse, Status>>;

    async fn server_live(
        &self,
        _: Request<oip::ServerLiveRequest>,
    ) -> Result<Response<oip::ServerLiveResponse>, Status> {
        Ok(Response::new(oip::ServerLiveResponse { live: self.monitor.alive().is_ok() }))
    }

    async fn server_ready(
        &self,
        _: Request<oip::ServerReadyRequest>,
    ) -> Result<Response<oip::ServerReadyResponse>, Status> {
        Ok(Response::new(oip::ServerReadyResponse { ready: self.monitor.ready().is_ok() }))
    }

    async fn server_metadata(
        &self,
        _: Request<oip::ServerMetadataRequest>,
    ) -> Result<Response<oip::ServerMetadataResponse>, Status> {
        Ok(Response::new(models::server()))
    }

    async fn model_ready(
        &self,
        request: Request<oip::ModelReadyRequest>,
    ) -> Result<Response<oip::ModelReadyResponse>, Status> {
        let oip::ModelReadyRequest { name, version } = request.get_ref();
        let ready =
            models::find(self.monitor.engines(), name, version).is_ok_and(|engine| models::unready(&engine).is_none());
        Ok(Response::new(oip::ModelReadyResponse { ready: ready && self.monitor.ready().is_ok() }))
    }

    async fn model_metadata(
        &self,
        request: Request<oip::ModelMetadataRequest>,
    ) -> Result<Response<oip::ModelMetadataResponse>, Status> {
        let oip::ModelMetadataRequest { name, version } = request.get_ref();
        let told = models::generating(self.monitor.engines(), "ModelMetadata", (name, version))
            .map(|engine| models::metadata(&engine));
        told.map(Response::new).map_err(refused(&request))
    }

    async fn model_config(
        &self,
        request: Request<oip::ModelConfigRequest>,
    ) -> Result<Response<oip::ModelConfigResponse>, Status> {
        let oip::ModelConfigRequest { name, version } = request.get_ref();
        let told = models::generating(self.monitor.engines(), "ModelConfig", (name, version))
            .map(|engine| models::config(&engine));
        told.map(|config| Response::new(oip::ModelConfigResponse { config: Some(config) })).map_err(refused(&request))
    }

    async fn model_statistics(
        &self,
        request: Request<oip::ModelStatisticsRequest>,
    ) -> Result<Response<oip::ModelStatisticsResponse>, Status> {
        let oip::ModelStatisticsRequest { name, version } = request.get_ref();
        let told = models::statistics(self.monitor.engines(), name, version);
        told.map(|model_stats| Response::new(oip::ModelStatisticsResponse { model_stats })).map_err(refused(&request))
    }

    async fn repository_index(
        &self,
        request: Request<oip::RepositoryIndexRequest>,
    ) -> Result<Response<oip::RepositoryIndexResponse>, Status> {
        let models = models::index(&self.monitor, request.get_ref().ready);
        Ok(Response::new(oip::RepositoryIndexResponse { models }))
    }

    async fn model_infer(
        &self,
        request: Request<oip::ModelInferRequest>,
    ) -> Result<Response<oip::ModelInferResponse>, Status> {
        let (caller, refuse) = (ClientContext::from_grpc(&request), refused(&request));
        let inquiry = Inquiry::read(request.into_inner()).map_err(&refuse)?;
        if inquiry.wanted.stream {
            return Err(refuse(wrong("stream", "true".into(), "false; ModelStreamInfer tells text as it is made")));
        }
        let Inquiry { generate, wanted, deadline } = inquiry;
        let answered = self.inferred(&caller, Inquiry { generate, wanted: wanted.whole(), deadline }).await;
        answered.map(Response::new).map_err(|status| fail::renamed(&status))
    }

    /// Is not called: the stream is read by a codec of its own.
    async fn model_stream_infer(
        &self,
        _: Request<Streaming<oip::ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        Err(Status::unimplemented("requests of this method are read elsewhere"))
    }
}
