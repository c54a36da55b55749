//! Refused HTTP requests: status and reason of each, without effect on other clients.

use super::{
    eventually,
    http::{Both, connect_and_send, exchange, send_request},
};
use serde_json::json;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use weir::{config::TransportConfig, engine::Limits};

#[tokio::test]
async fn invalid_requests_are_refused_with_the_field() {
    let server = Both::new().await;
    let invalid = "invalid_request_error";
    for (body, status, kind, field) in [
        (json!({ "prompt": "a", "temperature": -1 }), 400, invalid, "temperature"),
        (json!({ "prompt": "a", "max_tokens": 1_000_000_000 }), 400, invalid, "max_tokens"),
        (json!({ "prompt": "a", "logprobs": 1000 }), 400, invalid, "logprobs"),
        (json!({ "prompt": "a", "stop": [""] }), 400, invalid, "stop"),
        (json!({ "prompt": "a?" }), 400, invalid, "prompt"),
        (json!({ "prompt": "" }), 400, invalid, "prompt"),
        (json!({}), 400, invalid, "prompt"),
        (json!({ "prompt": null }), 400, invalid, "prompt"),
        (json!({ "prompt": [] }), 400, invalid, "prompt"),
        (json!({ "prompt": "a", "n": 1.5 }), 400, invalid, "n"),
        (json!({ "prompt": "a", "model": "nobody" }), 404, "not_found_error", "model"),
        (json!({ "prompt": [1, -2] }), 400, invalid, "prompt[1]"),
        (json!({ "prompt": [1, 8] }), 400, invalid, "prompt"),
        (json!({ "prompt": "a", "logit_bias": { "-8": 1 } }), 400, invalid, "logit_bias"),
    ] {
        let refused = server.post(&body).await.refused();
        assert_eq!(refused, (status, kind.into(), field.into()), "{body}");
        // A stream is refused in the same way.
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        assert_eq!(server.post(&streamed).await.refused(), refused);
    }
    // The server rejects the request by its head, before it reads the body.
    let mut stream = TcpStream::connect(server.port).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
                content-length: 9000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let refused = exchange(server.port, "POST", "/v1/completions", &["content-encoding: gzip"], "{}").await;
    assert_eq!(refused.refused(), (415, invalid.into(), String::new()));
    // A client that sends the whole body first gets the same answer.
    let refused = exchange(server.port, "POST", "/v1/completions", &[], &"a".repeat(20_000_000)).await;
    assert_eq!(refused.refused(), (413, invalid.into(), String::new()));
    // The chunked encoding is invalid.
    let mut stream = TcpStream::connect(server.port).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\nmany\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("the body is incomplete or malformed"), "{answer}");
    for (method, path, status) in
        [("GET", "/v1/completions", 405), ("GET", "/v1/nothing", 404), ("POST", "/health", 405)]
    {
        assert_eq!(exchange(server.port, method, path, &[], "").await.refused().0, status, "{path}");
    }
    server.at_rest().await;
}

#[tokio::test]
async fn a_wrong_method_is_refused_with_those_of_the_path() {
    let server = Both::new().await;
    for (method, path, allowed) in [
        ("GET", "/v1/completions", "OPTIONS, POST"),
        ("HEAD", "/v1/completions", "OPTIONS, POST"),
        ("GET", "/v1/chat/completions", "OPTIONS, POST"),
        ("PUT", "/v1/summaries", "OPTIONS, POST"),
        ("GET", "/v2/models/fake/infer", "OPTIONS, POST"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/edit", "GET, OPTIONS"),
        ("BREW", "/", "GET, HEAD, OPTIONS"),
    ] {
        let refused = exchange(server.port, method, path, &[], "").await;
        let lists: Vec<_> = refused.1.lines().filter_map(|line| line.strip_prefix("allow: ")).collect();
        assert_eq!((refused.0, &lists[..]), (405, &[allowed][..]), "{method} {path}");
        if method != "HEAD" {
            let error = &refused.json()["error"];
            assert_eq!(error["message"], format!("method: expected one of {allowed}, found \"{method}\""));
            assert_eq!(error["code"], "unknown_method");
        }
    }
    let long = "A".repeat(500);
    let refused = exchange(server.port, &long, "/", &[], "").await;
    assert!(refused.0 == 405 && refused.body().len() < 300, "{}", refused.body());
}

/// Clients may send the biases of other models.
#[tokio::test]
async fn biases_of_unknown_ids_have_no_effect() {
    let server = Both::new().await;
    let text = async |biases| {
        let body = json!({ "prompt": "a", "max_tokens": 20, "seed": 1, "temperature": 1, "logit_bias": biases });
        let answer = server.post(&body).await;
        assert_eq!(answer.0, 200, "{}", answer.body());
        answer.json()["choices"][0]["text"].clone()
    };
    let plain = text(json!({})).await;
    assert_eq!(text(json!({ "8": 100, "50256": -100, "99999999999": 1 })).await, plain);
    assert_ne!(text(json!({ "1": 100, "8": 100 })).await, plain, "other biases stay");
    server.at_rest().await;
}

/// hyper sends a status without a body. Heads have the same limits as over gRPC.
#[tokio::test]
async fn hyper_1_12_0_answers_malformed_heads_itself() {
    let pinned = "\"hyper\"\nversion = \"1.12.0\"\n";
    assert!(include_str!("../../../Cargo.lock").contains(pinned), "the version of hyper changed: {pinned}");
    let server = Both::new().await;
    let long = "y".repeat(20_000);
    let too_many_fields: Vec<_> = (0..101).map(|index| format!("x-{index}: a")).collect();
    let too_many_fields: Vec<_> = too_many_fields.iter().map(String::as_str).collect();
    let long_path = format!("/{long}{long}{long}{long}");
    for (method, path, headers, body, status) in [
        ("POST", "/v1/completions", &[&*format!("x-a: {long}")][..], "{}", 431),
        ("POST", "/v1/completions", &too_many_fields, "{}", 431),
        ("POST", "/v1/completions", &["no field"], "{}", 400),
        ("GET", &*long_path, &[], "", 431),
    ] {
        let rejected = exchange(server.port, method, path, headers, body).await;
        assert_eq!((rejected.0, rejected.body()), (status, ""), "{method} with {} headers", headers.len());
    }
    server.at_rest().await;
}

#[tokio::test]
async fn an_incomplete_body_times_out() {
    let server = Both::with(
        Limits::default(),
        TransportConfig { upload: Duration::from_millis(200), ..TransportConfig::default() },
    )
    .await;
    let mut stream = TcpStream::connect(server.port).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: 20\r\n\r\n{\"prompt\":";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 408 ") && answer.contains("the body did not arrive completely within 200ms"),
        "{answer}"
    );
    // The request's memory is released, and other requests are served.
    assert_eq!(server.post(&json!({ "prompt": "a" })).await.0, 200);
    server.at_rest().await;
}

#[tokio::test]
async fn a_connection_whose_client_does_not_read_is_closed() {
    let limits = Limits { rows: 64, stall: Duration::from_millis(300), ..Limits::default() };
    let server = Both::with(limits, TransportConfig::default()).await;
    // The body exceeds the system's buffers for a client with a small receive buffer.
    let body = json!({ "prompt": "a", "max_tokens": 1900, "n": 16, "logprobs": 8, "stream": true }).to_string();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8192).unwrap();
    let client = socket.connect(server.port).await.unwrap();
    let mut client = send_request(client, "POST", "/v1/completions", &[], &body).await;
    eventually("the request runs", || server.engine.load().running > 0).await;
    server.at_rest().await;
    // The pause is longer than the write timeout.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let mut bytes = Vec::new();
    // The connection may be reset.
    let _ = client.read_to_end(&mut bytes).await;
    let answer = String::from_utf8_lossy(&bytes);
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("[DONE]"), "{} bytes", bytes.len());
}

#[tokio::test]
async fn a_full_queue_sends_a_retry_delay() {
    let limits = Limits { rows: 1, queue: 2, ..Limits::default() };
    let server = Both::with(limits, TransportConfig::default()).await;
    server.model.hold();
    let ask = json!({ "prompt": "a", "seed": 1 }).to_string();
    let mut waiting = Vec::new();
    for there in 1..=2 {
        waiting.push(connect_and_send(server.port, "POST", "/v1/completions", &[], &ask).await);
        eventually("the request is admitted", || {
            let load = server.engine.load();
            load.queued + load.running == there
        })
        .await;
    }
    let reply = loop {
        let stream = exchange(server.port, "POST", "/v1/completions", &[], &ask);
        match tokio::time::timeout(Duration::from_millis(300), stream).await {
            Ok(reply) => break reply,
            Err(_) => continue,
        }
    };
    assert_eq!(reply.refused().0, 429);
    let wait = reply.1.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    assert!(wait.parse::<u64>().unwrap() >= 1);
    // Cancelled requests release everything.
    drop(waiting);
    server.model.release();
    server.at_rest().await;
}

#[tokio::test]
async fn a_cancelled_request_frees_its_row() {
    let server = Both::new().await;
    for stream in [true, false] {
        server.model.hold();
        let body = json!({ "prompt": "a", "max_tokens": 1900, "stream": stream }).to_string();
        let client = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
        eventually("the request runs", || server.engine.load().running == 1).await;
        drop(client);
        server.model.release();
        server.at_rest().await;
    }
}

#[tokio::test]
async fn a_malformed_path_is_refused_in_the_form_of_its_protocol() {
    let server = Both::new().await;
    let refused = exchange(server.port, "GET", "/v1/models/%FF", &[], "").await;
    assert!(refused.0 == 400 && refused.1.contains("x-request-id: "), "{}", refused.1);
    assert_eq!(refused.json()["error"]["code"], "malformed_path");
    for (method, path) in [("GET", "/v2/models/%FF"), ("GET", "/v2/models/%FF/ready"), ("POST", "/v2/models/%FF/infer")]
    {
        let refused = exchange(server.port, method, path, &[], "{}").await;
        assert!(refused.0 == 400 && refused.1.contains("x-request-id: "), "{path}: {}", refused.1);
        assert!(refused.json()["error"].as_str().unwrap().starts_with("malformed path: "), "{}", refused.body());
    }
}
