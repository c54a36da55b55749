//! How requests of a stream are read: one that is not protobuf is an item like others, so that it ends itself and not the stream.

use super::Inference;
use crate::serve::{call::STREAM_INFER, middleware::compression::compressing};
use prost::{Message, bytes::Buf};
use std::task::{Context, Poll};
use tonic::{
    Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService},
};
use weir_proto::inference::{
    ModelInferRequest, ModelStreamInferResponse, grpc_inference_service_server::GrpcInferenceServiceServer,
};

/// A request of a stream, or why it is none.
pub(super) type Heard = Result<ModelInferRequest, String>;

/// Reads what may be a request.
#[derive(Debug, Clone, Copy, Default)]
struct Lenient;

impl Decoder for Lenient {
    type Item = Heard;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Heard>, Status> {
        let heard = ModelInferRequest::decode(&mut *bytes).map_err(|error| error.to_string());
        // what was not read of one must not be taken for the beginning of the next
        bytes.advance(bytes.remaining());
        Ok(Some(heard))
    }
}

impl Encoder for Lenient {
    type Item = ModelStreamInferResponse;
    type Error = Status;

    fn encode(&mut self, message: Self::Item, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(into).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Codec for Lenient {
    type Encode = ModelStreamInferResponse;
    type Decode = Heard;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

/// The service: as it was generated, but for the reading of streams.
#[derive(Clone)]
pub(crate) struct Served {
    methods: GrpcInferenceServiceServer<Inference>,
    inference: Inference,
    message_bytes: usize,
}

impl Served {
    pub(super) fn new(inference: Inference, message_bytes: usize) -> Self {
        let methods = compressing!(GrpcInferenceServiceServer::new(inference.clone()), message_bytes);
        Self { methods, inference, message_bytes }
    }
}

impl NamedService for Served {
    const NAME: &'static str = GrpcInferenceServiceServer::<Inference>::NAME;
}

impl Service<http::Request<Body>> for Served {
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
        let (inference, most) = (self.inference.clone(), self.message_bytes);
        Box::pin(async move {
            let mut grpc = compressing!(Grpc::new(Lenient), most);
            let exchange = tower::service_fn(move |request| {
                let answer = inference.exchange(request);
                async move { Ok::<_, Status>(answer) }
            });
            Ok(grpc.streaming(exchange, request).await)
        })
    }
}
