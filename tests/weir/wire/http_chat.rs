//! `/v1/chat/completions`, which names the call to make instead.

use super::http::{Both, Reply, exchange};
use serde_json::json;
use weir::{
    config::{Access, Credentials, Keys, TransportConfig},
    engine::Limits,
};

async fn chat(server: &Both, headers: &[&str]) -> Reply {
    let body = json!({ "model": "fake", "messages": [{ "role": "user", "content": "a" }] }).to_string();
    exchange(server.port, "POST", "/v1/chat/completions", headers, &body).await
}

#[tokio::test]
async fn chat_is_refused_with_the_call_to_make() {
    let server = Both::new().await;
    let refused = chat(&server, &[]).await;
    assert_eq!(refused.refused(), (400, "invalid_request_error".into(), "messages".into()));
    assert_eq!(refused.json()["error"]["code"], "no_chat_template");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("\"fake\" completes text") && message.contains("POST /v1/completions"), "{message}");
    assert!(refused.1.contains("x-request-id: "), "{}", refused.1);
    // The body in the message is a request that the server accepts, but for the fake model's alphabet.
    let body = &message[message.find('{').unwrap()..];
    let mut call: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(call["model"], "fake");
    call["prompt"] = "a".into();
    assert_eq!(server.post(&call).await.0, 200);
    let unknown =
        exchange(server.port, "POST", "/v1/chat/completions", &[], r#"{"model": "gpt-4", "messages": []}"#).await;
    assert_eq!(unknown.refused(), (404, "not_found_error".into(), "model".into()));
    assert_eq!(unknown.json()["error"]["code"], "unknown_model");
    assert_eq!(unknown.json()["error"]["message"], "model: expected one of fake, found \"gpt-4\"");
    let malformed = exchange(server.port, "POST", "/v1/chat/completions", &[], r#"{"model": 3}"#).await;
    assert_eq!(malformed.refused(), (400, "invalid_request_error".into(), "model".into()));
    let unnamed = exchange(server.port, "POST", "/v1/chat/completions", &[], r#"{"messages": []}"#).await;
    assert_eq!(unnamed.json()["error"]["message"], message);
    server.at_rest().await;
}

#[tokio::test]
async fn keys_and_limits_apply_to_chat_first() {
    let keys = Keys::parse("alice:a-key-that-alice-has").unwrap();
    let access = Access::from(Credentials { keys: Some(keys), ..Credentials::default() });
    let server = Both::with(Limits::default(), TransportConfig { access, ..TransportConfig::default() }).await;
    assert_eq!(chat(&server, &[]).await.refused().0, 401);
    let key = "authorization: Bearer a-key-that-alice-has";
    assert_eq!(chat(&server, &[key]).await.refused().0, 400);
    assert_eq!(chat(&server, &[key, "content-type: text/plain"]).await.refused().0, 415);
    let long = "a".repeat(5 << 20);
    assert_eq!(exchange(server.port, "POST", "/v1/chat/completions", &[key], &long).await.refused().0, 413);
    assert_eq!(chat(&server, &[key, "origin: https://evil.example.com"]).await.refused().0, 403);
}
