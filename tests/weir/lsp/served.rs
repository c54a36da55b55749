//! A model on a server: the same completions, keys, errors, and servers that go away.
#![cfg(unix)]

use super::{
    super::{
        certificates::Certificates,
        process::{Program, Server},
        summaries::write_random_model,
        support::converted,
    },
    Client, Options, at,
    client::notification,
    inserted,
};
use serde_json::json;
use std::{
    process::Command,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const LIST: &str = "textDocument/completion";
const INLINE: &str = "textDocument/inlineCompletion";
const KEY: &str = "key-of-the-test-0123456789";
/// Maximum time until a server that came back is used.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the server's count of events of editing sessions.
fn events(server: &Server, event: &str) -> u64 {
    let (_, metrics) = server.get("/metrics");
    let label = format!("event=\"{event}\"");
    let line = metrics.lines().find(|line| line.starts_with("weir_edit_events_total{") && line.contains(&label));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn completions_are_those_of_this_process() {
    let model = converted("whitespaces");
    let certificates = Certificates::new();
    let keys = certificates.write("keys", &format!("tester:{KEY}\n"));
    let path = |name: &str| certificates.path(name).to_str().unwrap().to_owned();
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(path);
    let server = Server::start(&[
        "--model",
        model.to_str().unwrap(),
        "--threads=1",
        "--calibration-milliseconds=0",
        "--api-keys",
        keys.to_str().unwrap(),
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
    ]);
    let address = format!("https://{}", server.address);
    let more = ["--count", "4", "--until", "segment", "--completion-chars", "6"];
    let mut remote = Options::with([&["--tls-ca", &ca][..], &more].concat());
    remote.variables = vec![("WEIR_SERVER", &address)];
    let mut rejected = Client::silent(&remote);
    let (code, errors) = rejected.ended();
    assert!(code == Some(1) && errors.contains("use --api-key-file or WEIR_API_KEY"), "{errors}");
    remote.variables.push(("WEIR_API_KEY", KEY));
    let mut local = Options::process(&model);
    local.flags.extend(more);
    let answers = [remote, local].map(|options| {
        let (mut client, _) = Client::start(&options);
        client.open("a", "é the river runs past");
        let answers = [9, 21].map(|character| {
            let list = client.ask(LIST, at("a", 0, character));
            assert_eq!(inserted(&list).len(), 4, "{list}");
            list["result"].clone()
        });
        client.shut_down();
        answers
    });
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn a_cancelled_request_is_cancelled_on_the_server() {
    let model = converted("whitespaces");
    let server = Server::start(&["--model", model.to_str().unwrap(), "--threads=1", "--calibration-milliseconds=0"]);
    let address = server.address.to_string();
    let flags = vec!["--server", &address, "--count", "16", "--until", "line", "--completion-chars", "64"];
    let (mut client, _) = Client::start(&Options::with(flags));
    client.open("a", &"the river runs past the mill. ".repeat(30));
    let (id, request) = client.request(INLINE, at("a", 0, 890));
    client.send(&[request, notification("$/cancelRequest", json!({ "id": id }))]);
    assert_eq!(client.answer(id)["error"]["code"], super::CANCELLED);
    let end = Instant::now() + TIMEOUT;
    while events(&server, "stale") == 0 {
        assert!(Instant::now() < end, "the server was not told");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((events(&server, "stale"), events(&server, "completion")), (1, 0));
    client.shut_down();
}

/// Requests before the furthest cursor overtake nothing. The log has why a session ended.
#[test]
fn requests_at_several_cursors_are_completed_at_once() {
    let model = converted("whitespaces");
    let mut server =
        Server::start(&["--model", model.to_str().unwrap(), "--threads=1", "--calibration-milliseconds=0"]);
    let address = server.address.to_string();
    let mut options = Options::with(vec!["--server", &address]);
    // WEIR_MAX_CHARS is a variable of `weir generate`.
    options.variables = vec![("WEIR_COMPLETION_CHARS", "5"), ("WEIR_MAX_CHARS", "1000")];
    let (mut client, _) = Client::start(&options);
    client.open("a", "the river runs");
    let cursors = [14, 9, 3, 6];
    let (ids, requests): (Vec<_>, Vec<_>) =
        cursors.map(|cursor| client.request(INLINE, at("a", 0, cursor))).into_iter().unzip();
    client.send(&requests);
    for id in ids {
        let answer = client.answer(id);
        assert!(!inserted(&answer).is_empty(), "{answer}");
    }
    assert_eq!((events(&server, "stale"), events(&server, "completion")), (0, 4));
    server.program.signal("KILL");
    server.program.wait();
    let logged = client.message("window/logMessage");
    assert!(logged.contains("the session of a ended: "), "{logged}");
    client.shut_down();
}

/// A server that drains ends the sessions. Its successor gets the documents.
#[test]
fn documents_are_opened_again_on_another_server() {
    let model = converted("whitespaces");
    let flags = ["--model", model.to_str().unwrap(), "--threads=1", "--calibration-milliseconds=0"];
    let mut first = Server::start(&flags);
    let address = first.address.to_string();
    let (mut client, _) = Client::start(&Options::with(vec!["--server", &address]));
    client.open("a", "the river");
    let before = client.ask(INLINE, at("a", 0, 9));
    first.program.signal("TERM");
    assert!(first.program.wait().success());
    let logged = client.message("window/logMessage");
    assert!(logged.contains("closed the session of a: REASON_DRAINING"), "{logged}");
    // Requests have empty answers, and the reason is logged once.
    for _ in 0..3 {
        assert_eq!(inserted(&client.ask(INLINE, at("a", 0, 9))), [""; 0]);
    }
    let logged = client.message("window/logMessage");
    assert!(logged.contains("there are no completions until the server answers"), "{logged}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["serve", "--listen", &address]).args(flags).env_clear();
    let second = Program::start(&mut command);
    second.listener("gRPC");
    client.change("a", &[super::change([0, 9], [0, 9], "s")]);
    client.change("a", &[super::change([0, 9], [0, 10], "")]);
    let end = Instant::now() + TIMEOUT;
    let after = loop {
        let answer = client.ask(INLINE, at("a", 0, 9));
        if !inserted(&answer).is_empty() {
            break answer;
        }
        assert!(Instant::now() < end, "the server is not used again");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(after["result"], before["result"]);
    assert!(client.message("window/logMessage").contains("the server answers again"));
    assert!(!client.others().iter().any(|message| message.get("method").is_some()), "{:?}", client.others());
    client.shut_down();
}

#[test]
fn a_model_that_does_not_continue_texts_is_refused_at_the_start() {
    let folder = TempDir::new().unwrap();
    let summarizer = write_random_model(folder.path());
    let unpooled = converted("vanilla");
    let unpooled = unpooled.to_str().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (flags, expected) in [
        (
            vec!["--model", &summarizer, "--threads=1"],
            "--model: expected one that continues texts of characters or bytes (for `weir lsp`), found ",
        ),
        (
            vec!["--model", unpooled, "--until", "segment", "--threads=1"],
            "--until: expected a model that pools its input, found ",
        ),
        (vec!["--server", &free], "no server listens there"),
        (vec!["--server", "h:1", "--dtype=bf16"], "--dtype: expected no value next to --server, found one"),
        (vec!["--count", "17"], "expected a whole number from 1 to 16"),
        (vec!["--until", "chars"], "--until: expected one of word, line, segment, found \"chars\""),
    ] {
        let (code, errors) = Client::silent(&Options::with(flags)).ended();
        assert!(code != Some(0) && errors.contains(expected), "{errors}");
    }
}
