//! Admission over HTTP: what a request may use before its key is checked, while its body arrives, and while it is parsed.

use super::http::{Both, exchange};
use serde_json::json;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use weir::{
    config::{Access, Credentials, Keys, TransportConfig},
    engine::Limits,
};

const ALICE: &str = "authorization: Bearer a-key-that-alice-has";
const BOB: &str = "authorization: Bearer a-key-that-bob-has-too";
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server with two keys and `request_memory` bytes for arriving bodies.
async fn with_keys(request_memory: usize) -> Both {
    let keys = Keys::parse("alice:a-key-that-alice-has\nbob:a-key-that-bob-has-too").unwrap();
    let access = Access::from(Credentials { keys: Some(keys), ..Credentials::default() });
    let config = TransportConfig { access, request_memory, message_bytes: 1 << 20, ..TransportConfig::default() };
    Both::with(Limits::default(), config).await
}

/// Sends the head of a request with a body of 1 MiB, and the first `sent` bytes of that body.
async fn begin_body(server: &Both, key: &str, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.port).await.unwrap();
    let length = 1 << 20;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; sent]).await.unwrap();
    stream
}

/// Returns the status line of the response, before the body is sent.
async fn status(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.expect("the server answers").unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_key_is_checked_before_the_body() {
    let server = with_keys(8 << 20).await;
    for key in ["x-no-key: 1", "authorization: Bearer a-key-that-nobody-has"] {
        let mut stream = begin_body(&server, key, 0).await;
        assert!(status(&mut stream).await.starts_with("HTTP/1.1 401 "));
    }
}

#[tokio::test]
async fn bodies_that_never_come_hold_no_memory() {
    let server = with_keys(8 << 20).await;
    let mut waiting = Vec::new();
    for _ in 0..64 {
        waiting.push(begin_body(&server, ALICE, 1).await);
    }
    for key in [ALICE, BOB] {
        let reply =
            exchange(server.port, "POST", "/v1/completions", &[key], &json!({ "prompt": "a" }).to_string()).await;
        assert_eq!(reply.0, 200, "{}", reply.body());
    }
}

#[tokio::test]
async fn one_caller_leaves_memory_for_others() {
    let server = with_keys(8 << 20).await;
    let mut waiting = Vec::new();
    // Alice's fifth body exceeds half of the memory.
    for _ in 0..5 {
        waiting.push(begin_body(&server, ALICE, (1 << 20) - 1).await);
    }
    let mut refused = 0;
    for stream in &mut waiting {
        // A body that is still awaited gets no answer.
        let mut answer = String::new();
        if timeout(Duration::from_secs(2), stream.read_to_string(&mut answer)).await.is_ok() {
            assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
            refused += 1;
        }
    }
    assert_eq!(refused, 1);
    let body = format!("{}{}", " ".repeat(1 << 19), json!({ "prompt": "a" }));
    let reply = exchange(server.port, "POST", "/v1/completions", &[BOB], &body).await;
    assert_eq!(reply.0, 200, "{}", reply.body());
}

#[tokio::test]
async fn long_lists_are_refused_while_they_are_parsed() {
    let server = Both::new().await;
    let many = |element: &str, count: usize| vec![element; count].join(",");
    let biases: Vec<_> = (0..200_000).map(|id| format!("\"{id}\":1")).collect();
    for (body, field) in [
        (format!("{{\"prompt\":\"a\",\"n\":64,\"stop\":[{}]}}", many("\"\"", 1_000_000)), "stop"),
        (format!("{{\"prompt\":[{}]}}", many("\"a\"", 1_000_000)), "prompt"),
        (format!("{{\"prompt\":\"a\",\"logit_bias\":{{{}}}}}", biases.join(",")), "logit_bias"),
    ] {
        let reply = exchange(server.port, "POST", "/v1/completions", &[], &body).await;
        assert_eq!(reply.refused(), (400, "invalid_request_error".into(), field.into()));
        assert!(reply.body().contains("at most"), "{}", reply.body());
    }
    server.at_rest().await;
}
