//! The Open Inference Protocol over gRPC with Triton's extensions, for clients of other servers.
//!
//! A request becomes a call of `Generate` ([`Calls::generate`](super::calls::Calls::generate)). Reading order: `tensors` (the contents of a message), `request` (message to `GenerateRequest`), `response` (events to
//! messages), `streamed_request` (one request of a stream), `infer_stream` (the stream), `codec` (its decoding), `models`
//! (metadata, configuration and statistics), `service` (the methods).

mod codec;
#[cfg(all(feature = "http", any(test, fuzzing)))]
pub(super) mod fuzzing;
mod infer_stream;
pub(super) mod models;
pub(super) mod request;
mod response;
pub(super) mod service;
mod streamed_request;
pub(super) mod tensors;

use crate::{
    error::Names,
    serve::{call::STREAM_INFER, completion_request, middleware::compression::compressing, status::with_names},
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

/// The names of this protocol.
const NAMES: Names = Names {
    dropped: completion_request::NAMES.dropped,
    fields: &[&[("prompt", tensors::TEXT_INPUT)], &completion_request::FIELDS],
    methods: &[("Generate", "ModelInfer")],
};

/// Returns the status with the client's names for the field and the method.
fn for_client(status: &Status) -> Status {
    with_names(status, &NAMES)
}

/// Builds the server of a service, for messages of at most `message_bytes` bytes.
pub(super) fn server(service: InferenceService, message_bytes: usize) -> InferenceServer {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Error, serve::status::status};
    use tonic_types::StatusExt;

    #[test]
    fn errors_have_the_clients_names() {
        let error = Error::BadOption { field: "stopping.max_chars", found: "0".into(), bound: "1 to 9".into() };
        let renamed = for_client(&status(&error, "r"));
        assert_eq!(renamed.message(), "max_tokens: expected 1 to 9, found 0");
        let details = renamed.get_error_details();
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "max_tokens");
        assert_eq!(details.error_info().unwrap().metadata["bound"], "1 to 9");
        assert_eq!(details.request_info().unwrap().request_id, "r");
        let found = "one that does not".into();
        let error = Error::WrongKind { call: "Generate", model: "m".into(), wanted: "continues text", found };
        let wrong_kind = for_client(&status(&error, "r"));
        let expected = "model: expected one that continues text (for ModelInfer), found \"m\", one that does not";
        assert_eq!(wrong_kind.message(), expected);
        assert_eq!(wrong_kind.get_error_details().error_info().unwrap().metadata["call"], "ModelInfer");
        let found = "which does not".into();
        let error = Error::WrongKind { call: "stopping.max_segments", model: "m".into(), wanted: "pools", found };
        let unsupported = for_client(&status(&error, "r"));
        assert_eq!(unsupported.message(), "max_segments: expected a model that pools, found \"m\", which does not");
        assert_eq!(unsupported.get_error_details().error_info().unwrap().metadata["call"], "max_segments");
        let error = Error::TooLong { field: "prompt", length: 9, limit: 8, unit: "characters", why: None };
        assert!(for_client(&status(&error, "r")).message().starts_with("text_input: expected at most 8 characters"));
    }
}
