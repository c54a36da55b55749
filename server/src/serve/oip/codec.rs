//! The codec of `ModelStreamInfer`. A request that is not valid protobuf becomes an item like others, so that it fails alone and
//! not with the whole stream.

use prost::{Message, bytes::Buf};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};
use weir_proto::{
    codec::decode_bounded,
    inference::{ModelInferRequest, ModelStreamInferResponse},
};

/// A request of a stream, or the reason why it cannot be decoded.
pub(super) type DecodedRequest = Result<ModelInferRequest, String>;

/// Decodes requests, valid or not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LenientCodec;

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
