//! Large requests are parsed and tokenized away from the threads that serve connections, a limited number at a time.
//!
//! Each test has one thread for all connections. A conversion on that thread would also stop the test's clients.

use super::{
    connections::{channel_from, is_healthy, segment},
    eventually,
    fake_model::{HELD_SYMBOLS, Kind},
    http::{Both, exchange},
    plain, read,
};
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::{Code, Status, codec::CompressionEncoding, transport::Channel};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::{
    inference::{
        InferParameter, ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
        infer_parameter::ParameterChoice, model_infer_request::InferInputTensor,
    },
    v1::{self, generation_client::GenerationClient},
};

/// Time in which a request that is not held would be answered.
const A_WHILE: Duration = Duration::from_millis(200);

async fn with_workers(tokenization_workers: usize) -> Both {
    let config = TransportConfig { tokenization_workers, ..TransportConfig::default() };
    Both::of(Kind::Text8, Limits::default(), config).await
}

/// Returns a text of many bytes whose symbols fit the model: accents are dropped.
fn accented() -> String {
    format!("{}{}", "a".repeat(HELD_SYMBOLS), "\u{301}".repeat(10_000))
}

fn stopping() -> Option<v1::Stopping> {
    Some(v1::Stopping { max_chars: Some(1), ..Default::default() })
}

/// Sends `Generate` with a long prompt.
fn generate(channel: Channel) -> JoinHandle<Result<(), Status>> {
    let request = v1::GenerateRequest { prompt: accented(), stopping: stopping(), ..Default::default() };
    tokio::spawn(async move {
        let stream = GenerationClient::new(channel).generate(request).await?.into_inner();
        read(stream).await.map(drop)
    })
}

/// Sends `ModelInfer` with a long prompt.
fn infer(channel: Channel) -> JoinHandle<Result<(), Status>> {
    let parameter = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(1)) };
    let text = accented().into_bytes();
    let input = InferInputTensor {
        name: "text_input".into(),
        datatype: "BYTES".into(),
        shape: vec![1],
        contents: Some(weir_proto::inference::InferTensorContents { bytes_contents: vec![text], ..Default::default() }),
        ..Default::default()
    };
    let request = ModelInferRequest {
        inputs: vec![input],
        parameters: [("max_tokens".to_owned(), parameter)].into(),
        ..Default::default()
    };
    tokio::spawn(async move { GrpcInferenceServiceClient::new(channel).model_infer(request).await.map(drop) })
}

#[tokio::test]
async fn a_long_request_that_is_converted_delays_no_other() {
    let server = with_workers(4).await;
    let mut requests = Vec::new();
    server.model.hold_submissions();
    let score = v1::ScoreRequest { text: accented(), ..Default::default() };
    let segments = v1::SegmentRequest { text: accented(), ..Default::default() };
    let body = json!({ "prompt": accented(), "max_tokens": 1 }).to_string();
    let port = server.port;
    // Each caller has an address of its own, and half of the workers.
    let channel = channel_from(2, server.address).await;
    requests.push(generate(channel.clone()));
    requests.push(tokio::spawn(async move {
        let mut stream = GenerationClient::new(channel).score(score).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(())
    }));
    let channel = channel_from(3, server.address).await;
    requests.push(tokio::spawn(async move { GenerationClient::new(channel).segment(segments).await.map(drop) }));
    eventually("three requests are converted", || server.model.held_submissions() == 3).await;
    assert!(is_healthy(&plain(server.address)).await);
    segment(server.channel.clone()).await.unwrap();
    // The fourth worker.
    let completion = tokio::spawn(async move { exchange(port, "POST", "/v1/completions", &[], &body).await.0 });
    eventually("four requests are converted", || server.model.held_submissions() == 4).await;
    requests.push(infer(server.channel.clone()));
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(server.model.held_submissions(), 4, "no more than the workers");
    segment(server.channel.clone()).await.unwrap();
    server.model.release_submissions();
    assert_eq!(completion.await.unwrap(), 200);
    for request in requests {
        request.await.unwrap().unwrap();
    }
    server.at_rest().await;
}

#[tokio::test]
async fn long_bodies_are_parsed_by_workers() {
    let server = with_workers(1).await;
    server.model.hold_submissions();
    let held = generate(channel_from(2, server.address).await);
    eventually("the worker is busy", || server.model.held_submissions() == 1).await;
    let malformed = format!("{{\"prompt\": 7}}{}", " ".repeat(20_000));
    let port = server.port;
    let post = tokio::spawn(async move { exchange(port, "POST", "/v1/completions", &[], &malformed).await.0 });
    let unknown = InferInputTensor { name: "x".repeat(20_000), ..Default::default() };
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
    let request = ModelInferRequest { inputs: vec![unknown], ..Default::default() };
    let streamed = request.clone();
    let infer = tokio::spawn(async move { client.model_infer(request).await.map(drop) });
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
    let stream = tokio::spawn(async move {
        let mut stream = client.model_stream_infer(tokio_stream::once(streamed)).await?.into_inner();
        stream.message().await
    });
    tokio::time::sleep(A_WHILE).await;
    assert!(!post.is_finished() && !infer.is_finished() && !stream.is_finished(), "parsed without a worker");
    assert!(is_healthy(&plain(server.address)).await);
    assert_eq!(exchange(port, "POST", "/v1/completions", &[], "{}x").await.0, 400);
    server.model.release_submissions();
    assert_eq!(post.await.unwrap(), 400);
    assert_eq!(infer.await.unwrap().unwrap_err().code(), Code::InvalidArgument);
    assert!(stream.await.unwrap().unwrap().unwrap().error_message.contains("inputs"));
    held.await.unwrap().unwrap();
    server.at_rest().await;
}

/// Some kilobytes can decompress to megabytes.
#[tokio::test]
async fn long_messages_are_decompressed_by_workers() {
    let server = with_workers(1).await;
    server.model.hold_submissions();
    let held = generate(channel_from(2, server.address).await);
    eventually("the worker is busy", || server.model.held_submissions() == 1).await;
    let mut waiting = Vec::new();
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = GenerationClient::new(server.channel.clone()).send_compressed(encoding);
        let short = v1::SegmentRequest { text: "a".into(), ..Default::default() };
        assert_eq!(client.segment(short).await.unwrap().into_inner().segments.len(), 1);
        let long = v1::SegmentRequest { model: Some("a".repeat(1 << 20)), ..Default::default() };
        let refused = tokio::spawn(async move { client.segment(long).await.map(drop) });
        tokio::time::sleep(A_WHILE).await;
        assert!(!refused.is_finished(), "decompressed without a worker");
        assert!(is_healthy(&plain(server.address)).await);
        segment(server.channel.clone()).await.unwrap();
        waiting.push(refused);
    }
    server.model.release_submissions();
    for refused in waiting {
        assert_eq!(refused.await.unwrap().unwrap_err().code(), Code::NotFound);
    }
    held.await.unwrap().unwrap();
    server.at_rest().await;
}

/// A text of megabytes that normalises to a few symbols is refused after a bounded number of bytes.
#[tokio::test]
async fn texts_are_refused_by_bytes() {
    let server = with_workers(2).await;
    for text in ["\u{301}", "\u{fdfa}"] {
        let prompt = format!("a{}", text.repeat(1 << 20));
        let request = v1::GenerateRequest { prompt, stopping: stopping(), ..Default::default() };
        let status = GenerationClient::new(server.channel.clone()).generate(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "prompt: expected at most 64000 bytes, found more");
    }
    let stop = v1::Stopping { stop: vec!["a".repeat(1 << 20)], ..Default::default() };
    let request = v1::GenerateRequest { prompt: "a".into(), stopping: Some(stop), ..Default::default() };
    let status = GenerationClient::new(server.channel.clone()).generate(request).await.unwrap_err();
    assert!(status.message().starts_with("stopping.stop[0]: expected at most "), "{status}");
    server.at_rest().await;
}
