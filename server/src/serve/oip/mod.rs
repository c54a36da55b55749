//! The Open Inference Protocol over gRPC with Triton's extensions, for clients of other servers.
//!
//! A request becomes a call of `Generate` within the process ([`in_process`](super::in_process)), so it passes the whole middleware
//! stack. Reading order: `tensors` (the contents of a message), `request` (message to `GenerateRequest`), `response` (events to
//! messages), `streamed_request` (one request of a stream), `infer_stream` (the stream), `codec` (its decoding), `models`
//! (metadata, configuration and statistics), `service` (the methods).

mod codec;
mod field_names;
#[cfg(all(feature = "http", any(test, fuzzing)))]
pub(super) mod fuzzing;
mod infer_stream;
mod models;
pub(super) mod request;
mod response;
mod service;
mod streamed_request;
pub(super) mod tensors;

use crate::{
    config::TransportConfig,
    serve::{
        call::STREAM_INFER, collected::CollectedLimits, in_process::Services, middleware::compression::compressing,
        registry::health::Monitor, tokenization::TokenizationWorkers,
    },
};
use codec::LenientCodec;
use infer_stream::InferStream;
use service::InferenceService;
use std::task::{Context, Poll};
use tonic::{
    Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService},
};
use weir_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;

/// Builds the server. It calls `services`, and reports the health that `monitor` sees.
pub(super) fn server(
    services: Services,
    monitor: Monitor,
    workers: TokenizationWorkers,
    collected: CollectedLimits,
    config: &TransportConfig,
) -> InferenceServer {
    let max_concurrent = usize::try_from(config.concurrent_streams).unwrap_or(usize::MAX).max(1);
    let service = InferenceService { services, monitor, workers, collected, max_concurrent };
    let message_bytes = config.message_bytes;
    let methods = compressing!(GrpcInferenceServiceServer::new(service.clone()), message_bytes);
    InferenceServer { methods, service, message_bytes }
}

/// The generated service with its own codec for `ModelStreamInfer`.
#[derive(Clone)]
pub(super) struct InferenceServer {
    methods: GrpcInferenceServiceServer<InferenceService>,
    service: InferenceService,
    message_bytes: usize,
}

impl NamedService for InferenceServer {
    const NAME: &'static str = GrpcInferenceServiceServer::<InferenceService>::NAME;
}

impl Service<http::Request<Body>> for InferenceServer {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != STREAM_INFER {
            return Service::call(&mut self.methods, request);
        }
        let service = self.service.clone();
        let message_bytes = self.message_bytes;
        Box::pin(async move {
            let mut grpc = compressing!(Grpc::new(LenientCodec), message_bytes);
            let begin = move |request| Response::new(InferStream::new(service.clone(), request));
            let handler = tower::service_fn(move |request| std::future::ready(Ok::<_, Status>(begin(request))));
            Ok(grpc.streaming(handler, request).await)
        })
    }
}
