//! The counter of requests over HTTP.

use super::{
    edit_socket::Client,
    eventually,
    http::{Both, connect_and_send, exchange},
};
use serde_json::json;
use std::time::Duration;
use weir::{config::TransportConfig, engine::Limits};

/// Waits until a series has this value.
async fn until(server: &Both, handler: &str, method: &str, status: u16, value: u32) {
    let series = format!("weir_http_requests_total{{handler=\"{handler}\",method=\"{method}\",status=\"{status}\"}}");
    let expected = format!("{series} {value}");
    eventually(&expected, || server.metrics().lines().any(|line| line == expected)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_counted_by_path_method_and_status() {
    let server = Both::with(Limits::default(), TransportConfig { message_bytes: 1000, ..Default::default() }).await;
    let complete = async |body: &str| exchange(server.port, "POST", "/v1/completions", &[], body).await.0;
    for stream in [false, true] {
        let body = json!({ "prompt": "a", "max_tokens": 2, "stream": stream });
        assert_eq!(complete(&body.to_string()).await, 200);
    }
    until(&server, "/v1/completions", "POST", 200, 2).await;
    assert_eq!(complete("{}").await, 400);
    until(&server, "/v1/completions", "POST", 400, 1).await;
    // Refused by its length, before it becomes a call.
    assert_eq!(complete(&"a".repeat(2000)).await, 413);
    until(&server, "/v1/completions", "POST", 413, 1).await;
    for (method, path, counted_method, handler, status) in [
        ("GET", "/v1/models/fake", "GET", "/v1/models/{name}", 200),
        ("GET", "/v1/models/none", "GET", "/v1/models/{name}", 404),
        ("HEAD", "/health", "HEAD", "/health", 200),
        ("OPTIONS", "/v1/completions", "OPTIONS", "/v1/completions", 204),
        ("GET", "/v1/completions", "GET", "/v1/completions", 405),
        ("BREW", "/v1/completions", "other", "/v1/completions", 405),
        ("GET", "/v1/edit", "GET", "/v1/edit", 426),
        ("GET", "/v1/nothing", "GET", "other", 404),
    ] {
        assert_eq!(exchange(server.port, method, path, &[], "").await.0, status, "{method} {path}");
        until(&server, handler, counted_method, status, 1).await;
    }
    let socket = Client::connect(server.port, &[]).unwrap();
    until(&server, "/v1/edit", "GET", 101, 1).await;
    drop(socket);
    let page = ["origin: https://elsewhere.example.com"];
    assert_eq!(exchange(server.port, "GET", "/v1/models", &page, "").await.0, 403);
    until(&server, "/v1/models", "GET", 403, 1).await;
}

#[tokio::test]
async fn a_client_that_leaves_is_counted() {
    let server = Both::new().await;
    server.model.slow(Duration::from_millis(5));
    let body = json!({ "prompt": "a", "max_tokens": 1900 }).to_string();
    let stream = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
    eventually("the request runs", || server.engine.load().running == 1).await;
    drop(stream);
    until(&server, "/v1/completions", "POST", 499, 1).await;
    server.at_rest().await;
}

#[tokio::test]
async fn connections_for_health_checks_are_counted_by_path() {
    let config = TransportConfig { connections: 4, connections_per_address: 2, ..Default::default() };
    let server = Both::with(Limits::default(), config).await;
    server.model.slow(Duration::from_millis(20));
    let body = json!({ "prompt": "a", "max_tokens": 1900 }).to_string();
    let mut busy = Vec::new();
    for running in 1..=2 {
        busy.push(connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await);
        eventually("the request runs", || server.engine.load().running == running).await;
    }
    assert_eq!(exchange(server.port, "GET", "/health", &[], "").await.0, 200);
    let refused = exchange(server.port, "GET", "/v1/models", &[], "").await;
    assert_eq!((refused.0, &refused.json()["error"]["code"]), (503, &json!("connections")));
    until(&server, "/v1/models", "GET", 503, 1).await;
    until(&server, "/health", "GET", 200, 1).await;
}
