//! The Open Inference Protocol over gRPC with Triton's extensions, for clients of other servers.
//!
//! A request becomes a call of `Generate` ([`Calls::generate`]): `tensors` reads its contents, `request` converts it, and `response`
//! converts the events back. This file has the methods, and describes server and models.

pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod service;
mod stream;
pub(crate) mod tensors;

use crate::{
    call::STREAM_INFER,
    middleware::compression::compressing,
    open_inference::{response::DecodedRequest, service::InferenceService, stream::InferStream},
};
use prost::{Message, bytes::Buf};
use std::{
    convert::Infallible,
    task::{Context, Poll},
};
use tonic::{
    Response, Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService},
};
use weir_kernels::error::Result;
use weir_proto::{
    codec::decode_bounded,
    inference::{ModelStreamInferResponse, grpc_inference_service_server::GrpcInferenceServiceServer},
};

/// Builds the server of a service, for messages of at most `message_bytes` bytes.
pub(crate) fn server(service: InferenceService, message_bytes: usize) -> InferenceServer {
    let methods = compressing!(GrpcInferenceServiceServer::new(service.clone()), message_bytes);
    InferenceServer { methods, service, message_bytes }
}

/// The generated service with its own codec for `ModelStreamInfer`.
#[derive(Clone)]
pub(crate) struct InferenceServer {
    methods: GrpcInferenceServiceServer<InferenceService>,
    service: InferenceService,
    message_bytes: usize,
}

impl NamedService for InferenceServer {
    const NAME: &'static str = GrpcInferenceServiceServer::<InferenceService>::NAME;
}

impl Service<http::Request<Body>> for InferenceServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
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

/// The codec of `ModelStreamInfer`. A request that is not valid protobuf becomes an item, so that it fails without the other requests.
#[derive(Debug, Clone, Copy, Default)]
struct LenientCodec;

impl Decoder for LenientCodec {
    type Item = DecodedRequest;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<DecodedRequest>, Status> {
        let request = decode_bounded(bytes).map_err(|error| error.message().to_owned());
        // The rest of an invalid request must not become the start of the next one.
        bytes.advance(bytes.remaining());
        Ok(Some(request))
    }
}

impl Encoder for LenientCodec {
    type Item = ModelStreamInferResponse;
    type Error = Status;

    fn encode(&mut self, message: Self::Item, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(into).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Codec for LenientCodec {
    type Encode = ModelStreamInferResponse;
    type Decode = DecodedRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

#[cfg(test)]
mod tests {

    use crate::open_inference::response::for_client;
    use tonic_types::StatusExt;
    use weir_kernels::error::Error;

    #[test]
    fn details_have_the_clients_names() {
        let wrong_kind = Error::wrong_kind("stopping.max_segments", "m", "pools", "another");
        for (error, key, named) in [
            (Error::only_summarizes("m", "pools", "another"), "instead", "weir.v1.Summarization"),
            (wrong_kind, "field", "max_segments"),
        ] {
            let details = for_client(error, "r").get_error_details();
            assert_eq!(details.error_info().unwrap().metadata[key], named);
            assert_eq!(details.request_info().unwrap().request_id, "r");
        }
    }
}
