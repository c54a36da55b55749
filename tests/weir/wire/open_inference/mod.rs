//! The Open Inference Protocol, compared with weir's own API.

mod queries;
mod requests;
pub(super) mod streams;

use super::Server;
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};
use weir_proto::inference::{
    ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
    grpc_inference_service_client::GrpcInferenceServiceClient, infer_parameter::ParameterChoice,
    model_infer_request::InferInputTensor,
};

type Client = GrpcInferenceServiceClient<Channel>;

fn client(server: &Server) -> Client {
    Client::new(server.channel.clone())
}

/// Returns a request with raw inputs: name, datatype and bytes.
pub(super) fn request(id: &str, inputs: &[(&str, &str, Vec<u8>)]) -> ModelInferRequest {
    let tensor = |(name, datatype, _): &(&str, &str, Vec<u8>)| InferInputTensor {
        name: (*name).into(),
        datatype: (*datatype).into(),
        shape: vec![1],
        ..Default::default()
    };
    ModelInferRequest {
        id: id.into(),
        inputs: inputs.iter().map(tensor).collect(),
        raw_input_contents: inputs.iter().map(|(.., raw)| raw.clone()).collect(),
        ..Default::default()
    }
}

pub(super) fn text(name: &'static str, text: &str) -> (&'static str, &'static str, Vec<u8>) {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    (name, "BYTES", [&length[..], text.as_bytes()].concat())
}

pub(super) fn flag(name: &'static str, value: bool) -> (&'static str, &'static str, Vec<u8>) {
    (name, "BOOL", vec![value.into()])
}

/// Returns a streaming request for `chars` characters.
fn streamed(id: &str, prompt: &str, chars: u32) -> ModelInferRequest {
    let sampling = format!(r#"{{"max_tokens": {chars}, "seed": 1}}"#);
    request(id, &[text("text_input", prompt), flag("stream", true), text("sampling_parameters", &sampling)])
}

fn output<'a>(answer: &'a ModelInferResponse, name: &str) -> Option<&'a [u8]> {
    let index = answer.outputs.iter().position(|output| output.name == name)?;
    assert_eq!(answer.outputs[index].shape, [1]);
    Some(&answer.raw_output_contents[index])
}

pub(super) fn words(answer: &ModelInferResponse, name: &str) -> String {
    let raw = output(answer, name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(raw[..4], u32::try_from(raw.len() - 4).unwrap().to_le_bytes());
    String::from_utf8(raw[4..].to_vec()).unwrap()
}

pub(super) fn count(answer: &ModelInferResponse, name: &str) -> u32 {
    u32::from_le_bytes(output(answer, name).unwrap().try_into().unwrap())
}

pub(super) fn is_last(answer: &ModelInferResponse) -> bool {
    match answer.parameters["triton_final_response"].parameter_choice {
        Some(ParameterChoice::BoolParam(last)) => last,
        ref other => panic!("{other:?}"),
    }
}

/// Codec that sends raw bytes.
#[derive(Clone, Copy, Default)]
struct RawCodec;

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(into, &bytes);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = ModelStreamInferResponse;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        Ok(Some(ModelStreamInferResponse::decode(bytes).unwrap()))
    }
}

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = ModelStreamInferResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}
