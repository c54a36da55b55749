//! `--late-headers`: response headers wait for the first characters.

use super::{
    Server, eventually,
    fake_model::Kind,
    http::{Both, connect_and_send},
    long, prompt, read, reason,
};
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tonic::Code;
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_come_with_the_first_characters() {
    let config = TransportConfig { late_headers: true, ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    server.model.hold();
    let mut client = server.generation();
    let call = tokio::spawn(async move { client.generate(long("a", 20)).await });
    eventually("it runs", || server.engine.load().running == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!call.is_finished());
    server.model.release();
    let answer = read(call.await.unwrap().unwrap().into_inner()).await.unwrap();
    assert_eq!(answer.text(), Server::new().await.answer(long("a", 20)).await.unwrap().text());
    let request = v1::ScoreRequest { text: "ab c".into(), ..Default::default() };
    let mut scored = server.generation().score(request).await.unwrap().into_inner();
    let mut summary = None;
    while let Some(message) = scored.message().await.unwrap() {
        summary = message.event;
    }
    assert!(matches!(summary, Some(v1::score_response::Event::Summary(_))), "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_failure_is_the_status_of_the_call() {
    let config = TransportConfig { late_headers: true, drain: Duration::ZERO, ..TransportConfig::default() };
    let mut server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    let status = server.generate(prompt("ab!")).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Internal, "INTERNAL"));
    server.model.hold();
    let mut client = server.generation();
    let call = tokio::spawn(async move { client.generate(long("a", 20)).await });
    eventually("it runs", || server.engine.load().running == 1).await;
    server.running.shut_down();
    let status = call.await.unwrap().map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
    server.model.release();
    server.at_rest().await;
}

/// All choices of a completion run at the same time, and the headers come with the first one's text.
#[tokio::test]
async fn choices_over_http_start_together() {
    let config = TransportConfig { late_headers: true, ..TransportConfig::default() };
    let server = Both::with(Limits::default(), config).await;
    server.model.hold();
    let body = json!({ "prompt": "a", "max_tokens": 9, "n": 3, "seed": 1, "stream": true }).to_string();
    let mut client = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
    eventually("all choices run", || server.engine.load().running == 3).await;
    let mut answer = String::new();
    let early = tokio::time::timeout(Duration::from_millis(100), client.read_to_string(&mut answer)).await;
    assert!(early.is_err() && answer.is_empty(), "{answer}");
    server.model.release();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("[DONE]"), "{answer}");
    server.at_rest().await;
}

#[tokio::test]
async fn an_early_failure_over_http_is_the_status_of_the_request() {
    let config = TransportConfig { late_headers: true, drain: Duration::ZERO, ..TransportConfig::default() };
    let mut server = Both::with(Limits::default(), config).await;
    server.model.hold();
    let body = json!({ "prompt": "a", "max_tokens": 9, "n": 2, "seed": 1, "stream": true }).to_string();
    let mut client = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
    eventually("all choices run", || server.engine.load().running == 2).await;
    server.shut_down();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    server.model.release();
    server.ended().await;
}
