//! HTTP: refused requests, admission, browsers and their origins, shutdown.

use super::*;
use crate::wire::http::send_request;

/// Sends these bytes, and returns what the server answers until it closes the connection.
async fn answered(port: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(port).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The rejections by the head, before the body is read.
#[tokio::test]
async fn bodies_are_refused_by_their_heads() {
    let server = Server::new().await;
    for (field, body, status, message) in [
        ("content-length: 9000000", "", "413", ""),
        ("transfer-encoding: chunked", "many\r\n", "400", "the body is incomplete or malformed"),
    ] {
        let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
        let answer = answered(server.port, &format!("{head}\r\n{field}\r\n\r\n{body}")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(message), "{answer}");
    }
    let refused = exchange(server.port, &"A".repeat(500), "/", &[], "").await;
    assert!(refused.0 == 405 && refused.body().len() < 300, "{}", refused.body());
    server.at_rest().await;
}

/// hyper sends a status without a body. Heads have the same limits as over gRPC.
#[tokio::test]
async fn hyper_1_12_0_answers_malformed_heads_itself() {
    let pinned = "\"hyper\"\nversion = \"1.12.0\"\n";
    assert!(include_str!("../../../Cargo.lock").contains(pinned), "the version of hyper changed: {pinned}");
    let server = Server::new().await;
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
    let server =
        Server::within(TransportConfig { upload: Duration::from_millis(200), ..TransportConfig::default() }).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: 20\r\n\r\n{\"prompt\":";
    let answer = answered(server.port, head).await;
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
    let server = Server::limited(limits).await;
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

const ALICE: &str = "authorization: Bearer a-key-that-alice-has";
const BOB: &str = "authorization: Bearer another-key-that-bob-has";

/// A server with two keys and `request_memory` bytes for arriving bodies.
async fn with_keys(request_memory: usize) -> Server {
    let access = alice_and_bob();
    let config = TransportConfig { access, request_memory, message_bytes: 1 << 20, ..TransportConfig::default() };
    Server::within(config).await
}

/// Sends the head of a request with a body of 1 MiB, and the first `sent` bytes of that body.
async fn begin_body(server: &Server, key: &str, sent: usize) -> TcpStream {
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
    let mut answers = JoinSet::new();
    // Alice's fifth body exceeds half of the memory.
    for _ in 0..5 {
        let mut stream = begin_body(&server, ALICE, (1 << 20) - 1).await;
        answers.spawn(async move {
            let mut answer = String::new();
            // The server may close the connection before it has read the body.
            let _ = stream.read_to_string(&mut answer).await;
            answer
        });
    }
    let refused = answers.join_next().await.unwrap().unwrap();
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    // A body that is still awaited gets no answer.
    assert!(timeout(Duration::from_millis(300), answers.join_next()).await.is_err());
    let body = format!("{}{}", " ".repeat(1 << 19), json!({ "prompt": "a" }));
    let reply = exchange(server.port, "POST", "/v1/completions", &[BOB], &body).await;
    assert_eq!(reply.0, 200, "{}", reply.body());
}

#[tokio::test]
async fn streams_finish_while_the_server_drains() {
    let mut server = Server::new().await;
    let complete = server.answer(long("a", 30)).await.unwrap().text();
    server.model.gate.hold(0);
    let body = json!({ "prompt": "a", "max_tokens": 30, "seed": 1 }).to_string();
    let mut running = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
    server.until_running(1).await;
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
    assert_eq!(server.get("/health").await.0, 503);
    server.model.gate.release();
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
    let server = Server::within(config).await;
    server.model.gate.slow(Duration::from_millis(20));
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
    let mut server = Server::new().await;
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
    let server = Server::within(config).await;
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
    let server = Server::within(config).await;
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
