//! Calls without a model's name on a server of several models.

use super::{
    Running, details,
    fake_model::{Fake, Kind},
    http::exchange,
    prompt, reason,
};
use crate::document_model::DocumentModel;
use serde_json::json;
use std::{net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;
use weir::{
    config::TransportConfig,
    decode::contract::Model,
    engine::{Handle, Limits},
    serve::{Engines, ServerParts},
};
use weir_proto::v1::{
    self, SegmentRequest, SummarizeOptions, SummarizeRequest, generation_client::GenerationClient,
    summarization_client::SummarizationClient, summarize_request::Part,
};

/// Starts a server of a summarizer and of these models. Returns the address of its HTTP port.
async fn server(writers: &[(&str, Kind)]) -> (Running, SocketAddr) {
    let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
    let models = writers.iter().map(|&(name, kind)| Fake::new(name, kind) as Arc<dyn Model>);
    let models = models.chain([DocumentModel::new() as Arc<dyn Model>]);
    let engines = models.map(|model| Handle::start(model, limits).unwrap()).collect();
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = http.local_addr().unwrap();
    let offer = ServerParts { http: Some(http.into()), ..Engines::new(engines).unwrap().into() };
    (Running::offering(offer, TransportConfig::default()).await, port)
}

fn summarize() -> impl tokio_stream::Stream<Item = SummarizeRequest> {
    let options = SummarizeOptions { max_tokens: Some(3), ..Default::default() };
    let parts = [Part::Options(options), Part::Chunk(v1::DocumentChunk { text: "a document".into() })];
    tokio_stream::iter(parts.map(|part| SummarizeRequest { part: Some(part) }))
}

#[tokio::test]
async fn a_call_without_a_name_goes_to_the_only_model_that_can_answer_it() {
    let (server, port) = server(&[("writer", Kind::Pooled)]).await;
    let mut generation = GenerationClient::new(server.channel.clone());
    generation.generate(prompt("a")).await.unwrap();
    generation.score(v1::ScoreRequest { text: "ab".into(), ..Default::default() }).await.unwrap();
    SummarizationClient::new(server.channel.clone()).summarize(summarize()).await.unwrap();
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    let completion = exchange(port, "POST", "/v1/completions", &[], &body).await;
    assert_eq!((completion.0, &completion.json()["model"]), (200, &json!("writer")));
    let body = json!({ "document": "a document", "max_tokens": 3 }).to_string();
    let summary = exchange(port, "POST", "/v1/summaries", &[], &body).await;
    assert_eq!(summary.0, 200, "{}", summary.body());
}

#[tokio::test]
async fn a_call_that_several_models_can_answer_needs_a_name() {
    let (server, port) = server(&[("one", Kind::Pooled), ("other", Kind::Vanilla)]).await;
    let mut generation = GenerationClient::new(server.channel.clone());
    let refused = generation.generate(prompt("a")).await.unwrap_err();
    assert_eq!(reason(&refused), "BAD_OPTION");
    let violation = details(&refused).bad_request().unwrap().field_violations[0].clone();
    assert_eq!(violation.field, "model");
    assert!(refused.message().ends_with("expected one of one, other, found no name"), "{}", refused.message());
    // Only one of the two splits texts into segments.
    generation.segment(SegmentRequest { text: "a b".into(), ..Default::default() }).await.unwrap();
    SummarizationClient::new(server.channel.clone()).summarize(summarize()).await.unwrap();
    let refused = exchange(port, "POST", "/v1/completions", &[], r#"{"prompt": "a"}"#).await;
    assert_eq!(refused.refused(), (400, "invalid_request_error".into(), "model".into()));
}

/// The error says what the model lacks, not that its name is missing.
#[tokio::test]
async fn a_call_that_the_only_model_cannot_answer_says_why() {
    let (server, _) = server(&[]).await;
    let mut generation = GenerationClient::new(server.channel.clone());
    assert_eq!(reason(&generation.generate(prompt("a")).await.unwrap_err()), "WRONG_KIND_OF_MODEL");
}
