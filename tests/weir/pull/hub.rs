//! `weir pull` from the Hugging Face Hub, which a local server stands for.

use super::{
    User, digest, small,
    web_server::{Answer, WebServer},
};
use crate::certificates::Certificates;
use std::fs;
use tempfile::TempDir;

#[test]
fn the_hub_serves_one_commit_of_a_repository() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let server = WebServer::start(|request| {
        let first = "/org/small/resolve/v%2F1/config.json";
        let rest = format!("/org/small/resolve/{COMMIT}/");
        match request.path.as_str() {
            path if path == first => Answer::file(small().join("config.json")).header("x-repo-commit", COMMIT),
            // The Hub redirects to the storage of large files.
            path if *path == format!("{rest}model.safetensors") => Answer::redirect("/storage/weights"),
            "/storage/weights" => Answer::file(small().join("model.safetensors")),
            path if path.starts_with(&rest) => Answer::status(404),
            _ => Answer::status(500),
        }
    });
    let user = User { endpoint: server.url(), ..User::new() };
    user.pull(&["hf:org/small@v/1"]).unwrap();
    assert_eq!(user.names(), ["small"]);
    assert_eq!(digest(&user.models().join("small")), digest(&small()));
    assert!(
        server.requests().iter().all(|request| !request.headers.contains("hf_secret")),
        "the token was sent in plain text"
    );
}

#[test]
fn the_hub_is_reached_over_tls() {
    let certificates = Certificates::new();
    let tls = certificates.access(false).credentials.current().tls.as_ref().unwrap().http1();
    let server = WebServer::start_with(Some(tls), |request| match request.path.as_str() {
        "/org/small/resolve/main/config.json" => Answer::file(small().join("config.json")),
        "/org/small/resolve/main/model.safetensors" => Answer::file(small().join("model.safetensors")),
        _ => Answer::status(404),
    });
    let user = User { endpoint: server.url(), authorities: certificates.path("ca.pem"), ..User::new() };
    user.pull(&["hf:org/small"]).unwrap();
    assert_eq!(digest(&user.models().join("small")), digest(&small()));
    assert!(server.requests().iter().all(|request| request.headers.contains("authorization: bearer hf_secret")));

    let before = server.requests().len();
    let hub = TempDir::new().unwrap();
    fs::write(hub.path().join("token"), "hf_of_file\n").unwrap();
    let token = ("HF_HOME", hub.path().to_str().unwrap().to_owned());
    let user = User { endpoint: server.url(), authorities: certificates.path("ca.pem"), token, ..User::new() };
    user.pull(&["hf:org/small"]).unwrap();
    let later = server.requests().split_off(before);
    assert!(!later.is_empty());
    assert!(later.iter().all(|request| request.headers.contains("authorization: bearer hf_of_file")));

    let others = Certificates::new();
    let other = User { endpoint: server.url(), authorities: others.path("ca.pem"), ..User::new() };
    let error = other.error(&["hf:org/small"]);
    assert!(error.contains("config.json: ") && error.contains("certificate"), "{error}");
    let none = User { endpoint: server.url(), authorities: certificates.path("server.key"), ..User::new() };
    let error = none.error(&["hf:org/small"]);
    assert!(error.contains("no certificate authorities") && error.contains("SSL_CERT_FILE"), "{error}");
}

#[test]
fn a_token_stays_here_if_the_environment_forbids_to_send_it() {
    let certificates = Certificates::new();
    let tls = certificates.access(false).credentials.current().tls.as_ref().unwrap().http1();
    let server = WebServer::start_with(Some(tls), |request| match request.path.as_str() {
        "/org/small/resolve/main/config.json" => Answer::file(small().join("config.json")),
        "/org/small/resolve/main/model.safetensors" => Answer::file(small().join("model.safetensors")),
        "/org/private/resolve/main/config.json" => Answer::status(401),
        _ => Answer::status(404),
    });
    let user = |disable_token| User {
        endpoint: server.url(),
        authorities: certificates.path("ca.pem"),
        disable_token,
        ..User::new()
    };
    user("1").pull(&["hf:org/small"]).unwrap();
    let error = user("true").error(&["hf:org/private"]);
    assert!(
        error.contains("401") && error.contains("HF_HUB_DISABLE_IMPLICIT_TOKEN stops weir from sending"),
        "{error}"
    );
    let requests = server.requests().len();
    assert!(server.requests().iter().all(|request| !request.headers.contains("authorization")));
    user("0").pull(&["hf:org/small"]).unwrap();
    let later = server.requests().split_off(requests);
    assert!(!later.is_empty() && later.iter().all(|request| request.headers.contains("bearer hf_secret")));
}

#[test]
fn a_private_repository_asks_for_a_token() {
    let server = WebServer::start(|_| Answer::status(401));
    let user = User { endpoint: server.url(), ..User::new() };
    let error = user.error(&["hf:org/private"]);
    assert!(error.contains("401") && error.contains("a token, which is not sent without TLS"), "{error}");
    let expected = "SOURCE: expected a repository of the Hugging Face Hub, found hf:org/private, which does not exist or is private";
    assert!(error.contains(expected), "{error}");
    // A URL of another kind gets no token.
    let error = user.error(&[&format!("{}/org/private", server.url())]);
    assert!(error.contains("401") && !error.contains("HF_TOKEN"), "{error}");
    let secret = User { endpoint: server.url().replace("http://", "http://user:hidden@"), ..User::new() };
    let error = secret.error(&["hf:org/private"]);
    assert!(error.contains("HF_ENDPOINT: expected a URL without a user") && !error.contains("hidden"), "{error}");
    let error = user.error(&[&format!("{}/org/private?token=hidden", server.url())]);
    assert!(error.contains("without a query") && !error.contains("hidden"), "{error}");
    assert!(user.error(&["hf:private"]).contains("expected hf:ORG/NAME"));
    let wrong = User { endpoint: "ftp://x".into(), ..User::new() };
    assert!(wrong.error(&["hf:org/private"]).contains("HF_ENDPOINT: expected a URL that begins with"));
}

/// With a token, the Hub answers 404 for a repository that does not exist. Its header distinguishes that from a missing file.
#[test]
fn a_missing_repository_is_no_missing_file() {
    let server = WebServer::start(|request| {
        let code = match request.path.as_str() {
            "/org/none/resolve/main/config.json" => "RepoNotFound",
            "/org/old/resolve/v9/config.json" => "RevisionNotFound",
            _ => "EntryNotFound",
        };
        Answer::status(404).header("X-Error-Code", code)
    });
    let user = User { endpoint: server.url(), ..User::new() };
    let error = user.error(&["hf:org/none"]);
    assert!(error.contains("found hf:org/none, which does not exist or is private (the Hub answered 404"), "{error}");
    let error = user.error(&["hf:org/old@v9"]);
    let expected = "SOURCE: expected a revision of a repository of the Hugging Face Hub, found hf:org/old@v9, which does not exist";
    assert!(error.contains(expected), "{error}");
    let error = user.error(&["hf:org/empty"]);
    assert!(error.contains("config.json") && !error.contains("private"), "{error}");
}
