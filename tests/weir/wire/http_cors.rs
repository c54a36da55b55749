//! Web pages of listed origins, which may read responses (CORS), and the method `OPTIONS`.

use super::http::{Both, Reply, exchange};
use serde_json::json;
use std::sync::Arc;
use weir::{
    config::{Access, Checks, Credentials, Keys, TransportConfig},
    engine::Limits,
};

const APP: &str = "https://app.example.com";

async fn server(origins: &[&str], keys: Option<Keys>) -> Both {
    let mut checks = Checks::default();
    let origins: Vec<_> = origins.iter().map(|&origin| origin.to_owned()).collect();
    let cors = Arc::new(checks.cors_origins(&origins));
    checks.finish().unwrap();
    let access = Access { cors, ..Access::from(Credentials { keys, ..Credentials::default() }) };
    Both::with(Limits::default(), TransportConfig { access, ..TransportConfig::default() }).await
}

async fn completion(server: &Both, headers: &[&str]) -> Reply {
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    exchange(server.port, "POST", "/v1/completions", headers, &body).await
}

/// Returns the value of a response's header.
pub(super) fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    reply.1.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn preflight(origin: &str) -> [String; 3] {
    [
        format!("origin: {origin}"),
        "access-control-request-method: POST".into(),
        "access-control-request-headers: authorization,content-type,x-stainless-os".into(),
    ]
}

async fn ask_first(server: &Both, origin: &str, more: &[&str]) -> Reply {
    let headers = preflight(origin);
    let headers: Vec<&str> = headers.iter().map(String::as_str).chain(more.iter().copied()).collect();
    exchange(server.port, "OPTIONS", "/v1/completions", &headers, "").await
}

#[tokio::test]
async fn pages_of_listed_origins_read_responses() {
    let keys = Keys::parse("alice:a-key-that-alice-has").unwrap();
    let server = server(&[APP, "http://localhost:3000"], Some(keys)).await;
    // A browser sends a preflight without the key.
    let answer = ask_first(&server, APP, &[]).await;
    assert_eq!((answer.0, answer.body()), (204, ""));
    assert_eq!(header(&answer, "access-control-allow-origin"), Some(APP));
    assert_eq!(header(&answer, "access-control-allow-headers"), Some("authorization,content-type,x-stainless-os"));
    assert!(header(&answer, "access-control-allow-methods").unwrap().contains("POST"));
    assert_eq!(header(&answer, "access-control-allow-credentials"), None);
    let key = "authorization: Bearer a-key-that-alice-has";
    let origin = format!("origin: {APP}");
    let answer = completion(&server, &[&origin, key]).await;
    assert_eq!((answer.0, header(&answer, "access-control-allow-origin")), (200, Some(APP)));
    assert_eq!(header(&answer, "vary"), Some("origin"));
    assert!(header(&answer, "access-control-expose-headers").unwrap().contains("x-request-id"));
    // A page also reads why a request was refused.
    let refused = completion(&server, &[&origin]).await;
    assert_eq!((refused.0, header(&refused, "access-control-allow-origin")), (401, Some(APP)));
    // Programs send no origin.
    let answer = completion(&server, &[key]).await;
    assert_eq!((answer.0, header(&answer, "access-control-allow-origin")), (200, None));
}

#[tokio::test]
async fn pages_of_other_origins_stay_refused() {
    let server = server(&[APP], None).await;
    for origin in ["https://evil.example.com", "http://app.example.com", "null"] {
        for refused in
            [ask_first(&server, origin, &[]).await, completion(&server, &[&format!("origin: {origin}")]).await]
        {
            assert_eq!((refused.0, header(&refused, "access-control-allow-origin")), (403, None), "{origin}");
        }
    }
    // A rebound page is refused by its host, whatever its origin.
    let host = "host: rebound.example.com";
    assert_eq!(ask_first(&server, APP, &[host]).await.0, 403);
    assert_eq!(completion(&server, &[host, &format!("origin: {APP}")]).await.0, 403);
}

#[tokio::test]
async fn every_origin_may_be_allowed() {
    let server = server(&["*"], None).await;
    let answer = ask_first(&server, "https://any.example.com", &[]).await;
    assert_eq!((answer.0, header(&answer, "access-control-allow-origin")), (204, Some("*")));
    let answer = completion(&server, &["origin: https://any.example.com"]).await;
    assert_eq!((answer.0, header(&answer, "access-control-allow-origin")), (200, Some("*")));
    let rebound = ["host: rebound.example.com", "origin: http://rebound.example.com"];
    assert_eq!(completion(&server, &rebound).await.0, 403);
}

#[tokio::test]
async fn options_list_the_methods_of_a_path() {
    let server = server(&[], None).await;
    for (path, methods) in [
        ("/v1/completions", "OPTIONS, POST"),
        ("/v1/chat/completions", "OPTIONS, POST"),
        ("/v1/summaries", "OPTIONS, POST"),
        ("/v1/models", "GET, HEAD, OPTIONS"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"),
    ] {
        let answer = exchange(server.port, "OPTIONS", path, &[], "").await;
        assert_eq!((answer.0, header(&answer, "allow")), (204, Some(methods)), "{path}");
    }
    assert_eq!(exchange(server.port, "OPTIONS", "/v1/nothing", &[], "").await.0, 404);
    assert_eq!(ask_first(&server, APP, &[]).await.0, 403, "no origin is listed");
}
