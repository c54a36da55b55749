//! Streams over HTTP whose server shuts down, or whose connection reaches its limit.

use super::{
    eventually,
    http::{Both, connect_and_send, exchange},
    long,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weir::{config::TransportConfig, engine::Limits};

#[tokio::test]
async fn streams_finish_while_the_server_drains() {
    let mut server = Both::new().await;
    let complete = server.grpc(long("a", 30)).await.text();
    server.model.hold();
    let body = json!({ "prompt": "a", "max_tokens": 30, "seed": 1 }).to_string();
    let mut running = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
    eventually("the request runs", || server.engine.load().running == 1).await;
    server.shut_down();
    let refused = loop {
        let reply = exchange(server.port, "POST", "/v1/completions", &[], &body);
        // A request before the drain is admitted and waits.
        if let Ok(reply) = tokio::time::timeout(Duration::from_millis(200), reply).await {
            break reply;
        }
    };
    assert_eq!(refused.refused().0, 503);
    assert!(refused.1.contains("retry-after: 1"), "{}", refused.1);
    assert_eq!(exchange(server.port, "GET", "/health", &[], "").await.0, 503);
    server.model.release();
    let mut answer = String::new();
    running.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(&format!("{complete:?}")), "{answer}");
    server.ended().await;
}

/// A stream that is longer than its connection may be ends with an error, not in the middle.
#[tokio::test]
async fn a_stream_that_outlives_its_connection_ends_with_an_error() {
    let config = TransportConfig {
        connection_age: Some(Duration::from_millis(200)),
        connection_age_grace: Duration::from_millis(100),
        ..TransportConfig::default()
    };
    let server = Both::with(Limits::default(), config).await;
    server.model.slow(Duration::from_millis(20));
    let reply = server.post(&json!({ "prompt": "a", "max_tokens": 500, "seed": 1, "stream": true })).await;
    let events = reply.all_events();
    assert!(events.len() > 1, "{events:?}");
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "connection_age", "{last}");
    server.at_rest().await;
}

/// The rest of the body never arrives. If the server waited for it, it would not shut down.
#[tokio::test]
async fn an_incomplete_body_is_refused_when_the_server_drains() {
    let mut server = Both::new().await;
    let mut stream = TcpStream::connect(server.port).await.unwrap();
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    // until the server has read the head
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.shut_down();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("no answer").unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 1"), "{answer}");
    server.ended().await;
}

/// The head of a first request, and of a later one.
#[tokio::test]
async fn an_incomplete_head_times_out() {
    let config = TransportConfig { handshake: Duration::from_millis(600), ..TransportConfig::default() };
    let server = Both::with(Limits::default(), config).await;
    for before in ["", "GET /health HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.port).await.unwrap();
        stream.write_all(before.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(b"GET /heal").await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        let read = tokio::time::timeout(Duration::from_secs(20), read).await.expect("the connection stays open");
        assert!(
            read.is_err() || answer.matches("HTTP/1.1 200 OK").count() == usize::from(!before.is_empty()),
            "{answer}"
        );
    }
}

/// `--handshake-seconds` does not limit the time between two requests.
#[tokio::test]
async fn an_idle_connection_is_kept() {
    let config = TransportConfig { handshake: Duration::from_millis(600), ..TransportConfig::default() };
    let server = Both::with(Limits::default(), config).await;
    let mut stream = TcpStream::connect(server.port).await.unwrap();
    for _ in 0..2 {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        while !answer.ends_with(b"ok\n") {
            answer.rotate_left(1);
            stream.read_exact(&mut answer[14..]).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
}
