//! Requests that a web page of another server makes through a visitor's browser.

use super::http::{Both, Reply, exchange};
use serde_json::json;
use std::sync::Arc;
use weir::{
    config::{Access, Checks, Credentials, Keys, TransportConfig},
    engine::Limits,
};

/// Posts a completion with these headers.
async fn completion(server: &Both, headers: &[&str]) -> Reply {
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    exchange(server.port, "POST", "/v1/completions", headers, &body).await
}

async fn with_access(access: Access) -> Both {
    Both::with(Limits::default(), TransportConfig { access, ..TransportConfig::default() }).await
}

#[tokio::test]
async fn a_page_of_another_origin_cannot_use_the_server() {
    let server = Both::new().await;
    let host = format!("host: {}", server.port);
    for origin in ["https://evil.example.com", "null", "http://127.0.0.1", "http://localhost:1"] {
        let refused = completion(&server, &[&host, &format!("origin: {origin}")]).await;
        assert_eq!(refused.refused(), (403, "permission_error".into(), String::new()), "{origin}");
        for part in ["origin: ", origin, "--allowed-origins"] {
            assert!(refused.body().contains(part), "{part} is not in {}", refused.body());
        }
        let listed = exchange(server.port, "GET", "/v1/models", &[&host, &format!("origin: {origin}")], "").await;
        assert_eq!(listed.0, 403);
    }
    let own = format!("origin: http://{}", server.port);
    assert_eq!(completion(&server, &[&host, &own]).await.0, 200);
    assert_eq!(completion(&server, &[&host]).await.0, 200, "programs send no origin");
    server.at_rest().await;
}

#[tokio::test]
async fn a_rebound_name_reads_nothing() {
    let server = Both::new().await;
    // The page's origin is that of its host, so only the host shows the attack.
    let headers = ["host: rebound.example.com:8000", "origin: http://rebound.example.com:8000"];
    for (method, path) in [("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/"), ("GET", "/health")] {
        let refused = exchange(server.port, method, path, &headers, "{}").await;
        assert_eq!(refused.refused(), (403, "permission_error".into(), String::new()), "{path}");
        for part in ["host: ", "rebound.example.com:8000", "--allowed-hosts"] {
            assert!(refused.body().contains(part), "{part} is not in {}", refused.body());
        }
    }
    for host in ["localhost:8000", "weir", "[::1]:8000", "10.1.2.3", "weir.default.svc.cluster.local"] {
        assert_eq!(completion(&server, &[&format!("host: {host}")]).await.0, 200, "{host}");
    }
}

#[tokio::test]
async fn listed_hosts_and_origins_are_allowed() {
    let mut checks = Checks::default();
    let allowed = checks.allowed_names(&["weir.example.com".into()], &["https://app.example.com".into()]);
    checks.finish().unwrap();
    let server = with_access(Access { allowed: Arc::new(allowed), ..Access::default() }).await;
    let host = "host: weir.example.com";
    for (headers, status) in [
        (&[host][..], 200),
        (&[host, "origin: https://weir.example.com"], 200),
        (&[host, "origin: https://app.example.com"], 200),
        (&[host, "origin: https://other.example.com"], 403),
        (&["host: other.example.com"], 403),
    ] {
        assert_eq!(completion(&server, headers).await.0, status, "{headers:?}");
    }
}

/// A rebound page has no key, and a server with keys may have any name.
#[tokio::test]
async fn keys_protect_from_rebound_names() {
    let keys = Keys::parse("alice:a-key-that-alice-has").unwrap();
    let server = with_access(Access::from(Credentials { keys: Some(keys), ..Credentials::default() })).await;
    let key = "authorization: Bearer a-key-that-alice-has";
    let host = "host: weir.example.com";
    assert_eq!(completion(&server, &[host, key]).await.0, 200);
    assert_eq!(completion(&server, &[host]).await.0, 401);
    assert_eq!(completion(&server, &[host, key, "origin: https://evil.example.com"]).await.0, 403);
}

/// A browser sends other types for a page of any origin without asking the server first.
#[tokio::test]
async fn only_json_is_accepted() {
    let server = Both::new().await;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        let refused = completion(&server, &[&format!("content-type: {kind}")]).await;
        assert_eq!(refused.refused(), (415, "invalid_request_error".into(), String::new()), "{kind}");
        assert!(refused.body().contains("Content-Type: expected application/json"), "{}", refused.body());
    }
    let twice = ["content-type: application/json", "content-type: text/plain"];
    assert_eq!(completion(&server, &twice).await.0, 415);
    assert_eq!(completion(&server, &["content-type: Application/JSON; charset=utf-8"]).await.0, 200);
}
