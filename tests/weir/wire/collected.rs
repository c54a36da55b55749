//! Responses that are collected, not streamed: their size is limited, and their memory is released.

use super::{
    Server, eventually,
    fake_model::Kind,
    http::{Both, exchange},
    reason,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_stream::StreamExt;
use tonic::Code;
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest,
    grpc_inference_service_client::GrpcInferenceServiceClient,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

/// The default of `response_bytes` is higher. These need fewer characters.
const RESPONSE_BYTES: usize = 256 << 10;
const INFER_RESPONSE_BYTES: usize = 32 << 10;

fn small() -> TransportConfig {
    TransportConfig { response_bytes: RESPONSE_BYTES, ..TransportConfig::default() }
}

/// A completion that takes more memory than one response may: 4 × 1,000 characters, each with details.
fn large() -> Value {
    json!({ "prompt": "a", "n": 4, "max_tokens": 1000, "echo": true, "logprobs": 5 })
}

fn changed(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

#[tokio::test]
async fn a_large_completion_has_to_be_streamed() {
    let server = Both::with(Limits::default(), small()).await;
    let reply = server.post(&large()).await;
    assert_eq!(reply.refused(), (400, "invalid_request_error".into(), "stream".into()));
    let limit = format!("{RESPONSE_BYTES} bytes of a response that is not streamed");
    assert!(reply.body().contains(&limit) && reply.body().contains("set stream to true"), "{}", reply.body());
    server.at_rest().await;
    let reply = server.post(&changed(large(), "stream", true.into())).await;
    assert!(reply.events().len() > 4);
    // Without details the characters take little memory.
    let reply = server.post(&changed(large(), "logprobs", Value::Null)).await;
    assert_eq!(reply.json()["choices"].as_array().unwrap().len(), 4);
    server.at_rest().await;
}

/// Collected responses share their memory with the requests that arrive.
#[tokio::test]
async fn the_memory_of_collected_responses_is_shared_and_released() {
    let config = TransportConfig {
        response_bytes: 64 << 20,
        request_memory: 1792 << 10,
        message_bytes: 64 << 10,
        ..TransportConfig::default()
    };
    let server = Both::with(Limits::default(), config).await;
    for _ in 0..4 {
        let reply = server.post(&large()).await;
        assert_eq!((reply.0, reply.json()["error"]["code"].as_str()), (429, Some("queue_full")), "{}", reply.body());
        // A tenth fits, and only if the memory of the refused one was released.
        let reply = server.post(&changed(large(), "max_tokens", 100.into())).await;
        assert_eq!(reply.0, 200, "{}", reply.body());
    }
    server.at_rest().await;
}

/// Returns a request for `tokens` characters with their log-probabilities.
pub(super) fn inference(tokens: i64) -> ModelInferRequest {
    let text = InferTensorContents { bytes_contents: vec![b"a".to_vec()], ..Default::default() };
    let input = InferInputTensor {
        name: "text_input".into(),
        datatype: "BYTES".into(),
        shape: vec![1],
        contents: Some(text),
        ..Default::default()
    };
    let tokens = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(tokens)) };
    let outputs =
        ["text_output", "logprobs"].map(|name| InferRequestedOutputTensor { name: name.into(), ..Default::default() });
    ModelInferRequest {
        inputs: vec![input],
        outputs: outputs.to_vec(),
        parameters: [("max_tokens".to_owned(), tokens)].into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_large_inference_has_to_be_streamed() {
    let config = TransportConfig { response_bytes: INFER_RESPONSE_BYTES, ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
    let status = client.model_infer(inference(1000)).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "TOO_LONG"), "{status:?}");
    assert!(status.message().contains("use ModelStreamInfer"), "{status}");
    assert_eq!(client.model_infer(inference(100)).await.unwrap().into_inner().outputs.len(), 2);
    server.at_rest().await;
}

/// A stream of requests does not make their responses streamed.
#[tokio::test]
async fn a_large_inference_on_a_stream_fails_alone() {
    let config = TransportConfig { response_bytes: INFER_RESPONSE_BYTES, ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
    let requests = [1000, 100].map(inference);
    let mut messages = client.model_stream_infer(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let mut failures = Vec::new();
    let mut outputs = 0;
    while let Some(message) = messages.next().await {
        let message = message.unwrap();
        outputs += message.infer_response.map_or(0, |response| response.outputs.len());
        failures.extend(Some(message.error_message).filter(|failure| !failure.is_empty()));
    }
    assert_eq!((outputs, failures.len()), (2, 1), "{failures:?}");
    assert!(failures[0].contains("use the input stream"), "{failures:?}");
    server.at_rest().await;
}

/// A stream that the shutdown ends says so.
#[tokio::test]
async fn a_stream_that_is_cut_ends_with_an_error() {
    let config = TransportConfig { drain: Duration::from_millis(100), ..TransportConfig::default() };
    let mut server = Both::with(Limits::default(), config).await;
    server.model.slow(Duration::from_millis(20));
    let body = json!({ "prompt": "a", "max_tokens": 1900, "stream": true }).to_string();
    let port = server.port;
    let stream = tokio::spawn(async move { exchange(port, "POST", "/v1/completions", &[], &body).await });
    eventually("the request runs", || server.engine.load().running == 1).await;
    server.shut_down();
    let events = stream.await.unwrap().all_events();
    assert!(!events.iter().any(|event| event == "[DONE]"), "{events:?}");
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    let failure = &last["error"];
    assert_eq!((&failure["type"], &failure["code"]), (&json!("server_error"), &json!("draining")), "{failure}");
}
