//! Entry point of a fuzz target: requests of the Open Inference Protocol.

use crate::open_inference::request::InferRequest;
use weir_proto::{codec::decode_bounded, inference::ModelInferRequest, v1::GenerateRequest};

/// Symbols of the model.
const SYMBOLS: usize = 256;

/// Reads a request, with its tensors, and returns the request of `Generate` that it becomes.
pub(crate) fn request(mut encoded: &[u8]) -> Option<GenerateRequest> {
    convert(decode_bounded(&mut encoded).ok()?)
}

/// Returns the request of `Generate` that a request becomes.
pub(crate) fn convert(request: ModelInferRequest) -> Option<GenerateRequest> {
    InferRequest::parse(request, SYMBOLS).ok().map(|request| request.generate)
}
