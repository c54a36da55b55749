//! The log of `weir serve`: its content, refusals, and a log that cannot be written, which costs log lines and nothing else.

use crate::process::{Program, http, program};
use crate::*;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use std::fs::File;
use std::io::{PipeReader, pipe};
use weir_proto::v1::Stopping;

/// Calls that log far more than a pipe holds.
const CALLS: usize = 400;

/// Calls a server whose log goes to `stderr` while a stream runs, and ends it.
async fn serves(stderr: Stdio) {
    // The addresses cannot be read from the log.
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [address, admin_address] = listeners.map(|listener| listener.local_addr().unwrap());
    let mut command = program(&["serve", "--threads", "1", "--log", "trace", "--calibration-milliseconds", "0"]);
    command.arg("--listen").arg(address.to_string()).arg("--admin-listen").arg(admin_address.to_string());
    let program = Program::start_with(command.arg("--model").arg(converted("whitespaces")), stderr);
    let mut server = Server { program, address, admin_address };
    let started = Instant::now();
    let channel = loop {
        assert!(!server.program.has_ended() && started.elapsed() < TIMEOUT, "it does not listen");
        match server.endpoint().connect().await {
            Ok(channel) => break channel,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let mut client = GenerationClient::new(channel);
    let request = |max_chars| GenerateRequest {
        prompt: "a b".into(),
        stopping: Some(Stopping { max_chars: Some(max_chars), ..Default::default() }),
        ..Default::default()
    };
    let mut running = client.generate(request(200)).await.unwrap().into_inner();
    for _ in 0..CALLS {
        drained(client.generate(request(2)).await).await.unwrap();
    }
    while running.message().await.unwrap().is_some() {}
    let (_, metrics) = server.get("/metrics");
    let dropped = metrics.lines().find_map(|line| line.strip_prefix("weir_log_lines_dropped_total "));
    assert!(dropped.unwrap().parse::<u64>().unwrap() > 0);
    server.program.signal("TERM");
    assert_eq!(server.program.ended().await, Some(0));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_closed_log_costs_lines_only() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    serves(writer.into()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_costs_lines_only() {
    serves(File::options().write(true).open("/dev/full").unwrap().into()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_log_that_nobody_reads_costs_lines_only() {
    let (_unread, writer): (PipeReader, _) = pipe().unwrap();
    serves(writer.into()).await;
}

/// Refusals over HTTP are logged like those over gRPC: with the rule and the field, and without text of the request.
#[test]
fn refusals_over_http_are_logged_with_the_field() {
    let server = Server::of(&[converted("whitespaces")], &[]);
    let invalid = |rule, field| format!("code=InvalidArgument rule=\"{rule}\" field=\"{field}\"");
    // The log has one line for each code and rule in an interval.
    for (body, status, logged) in [
        (r#"{"prompt": "secret", "best_of": 3}"#, 400, invalid("BAD_OPTION", "best_of")),
        (r#"{"prompt": "secret", "top_p": 3}"#, 400, String::new()),
        (r#"{"prompt": "secret", "top_p": "secret"}"#, 400, invalid("UNREADABLE", "top_p")),
        (r#"{"prompt": "a", "logit_bias": {"secret": []}}"#, 400, String::new()),
        (
            r#"{"prompt": "secret", "model": "nobody"}"#,
            404,
            r#"code=NotFound rule="UNKNOWN_MODEL" field="model""#.into(),
        ),
    ] {
        let headers = "x-request-id: mine\r\ncontent-type: application/json\r\n";
        let (found, response) = http(&server.http(), "POST /v1/completions", headers, body);
        assert_eq!(found, status, "{response}");
        server.program.wait_for_part(&logged);
    }
    let log = server.program.stderr();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("refused a call")).collect();
    assert_eq!(lines.len(), 3, "{log}");
    for line in &lines {
        assert!(line.contains(r#"call{path="/v1/completions" id="mine" principal=address:127.0.0.1}"#), "{line}");
    }
    assert!(!log.contains("secret") && !log.contains("nobody"), "{log}");
}

/// Starts a server that needs a key, and allows one editing session.
fn with_key_of_alice() -> Server {
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys");
    fs::write(&keys, "alice:a-key-that-alice-has\n").unwrap();
    let flags = ["--max-edit-sessions", "1", "--api-keys", keys.to_str().unwrap()];
    Server::of(&[converted("whitespaces")], &flags)
}

/// A peer without a key can cause any number of refusals, so several share a line.
#[test]
fn refused_credentials_and_pages_are_logged_once_in_a_while() {
    let server = with_key_of_alice();
    for _ in 0..3 {
        for (request, header, status) in [
            ("POST /v1/completions", "authorization: Bearer another-key\r\n", 401),
            ("GET /v1/models", "authorization: Bearer another-key\r\n", 401),
            ("GET /v1/models", "origin: https://example.org\r\n", 403),
        ] {
            let headers = format!("{header}content-type: application/json\r\n");
            let (found, response) = http(&server.http(), request, &headers, r#"{"prompt": "a"}"#);
            assert_eq!(found, status, "{response}");
        }
    }
    server.program.wait_for_part("refused credentials");
    server.program.wait_for_part("rejected");
    let log = server.program.stderr();
    for line in ["refused credentials", "rejected"] {
        assert_eq!(log.lines().filter(|logged| logged.contains(line)).count(), 1, "{log}");
    }
    assert!(log.contains("code=Unauthenticated") && !log.contains("another-key"), "{log}");
}

#[cfg(target_os = "linux")]
/// A page cannot set the header of an API key for a WebSocket. The log has the owner of the key that a subprotocol carries.
#[tokio::test]
async fn a_refused_websocket_is_logged_with_its_principal() {
    let server = with_key_of_alice();
    let http = server.http();
    let key = URL_SAFE_NO_PAD.encode("a-key-that-alice-has");
    let open = async |key: &str| {
        let mut connection = TcpStream::connect(&http).await.unwrap();
        let head = format!(
            "GET /v1/edit HTTP/1.1\r\nhost: {http}\r\nconnection: upgrade\r\nupgrade: websocket\r\nx-request-id: mine\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             sec-websocket-protocol: weir.v1.edit, weir.v1.bearer.{key}\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        connection.read_exact(&mut status).await.unwrap();
        (connection, String::from_utf8(status.to_vec()).unwrap())
    };
    let (_malformed, refused) = open("a-key?").await;
    assert_eq!(refused, "HTTP/1.1 401");
    let malformed = r#"refused a call code=InvalidArgument rule="MALFORMED_KEY" field="Sec-WebSocket-Protocol""#;
    server.program.wait_for_part(malformed);
    let (_first, begun) = open(&key).await;
    assert_eq!(begun, "HTTP/1.1 101");
    let (_second, refused) = open(&key).await;
    assert_eq!(refused, "HTTP/1.1 429");
    server.program.wait_for_part(r#"call{path="/v1/edit" id="mine" principal=key:alice}"#);
    let log = server.program.stderr();
    let line = log.lines().find(|line| line.contains("refused a call: a limit")).unwrap();
    assert!(line.contains("principal=key:alice") && line.contains("code=ResourceExhausted"), "{log}");
    assert!(!log.contains("a-key-that-alice-has") && !log.contains(&key) && !log.contains("a-key?"), "{log}");
}

async fn drained<T>(call: Result<tonic::Response<Streaming<T>>, Status>) -> Result<(), Status> {
    let mut stream = call?.into_inner();
    while stream.message().await?.is_some() {}
    Ok(())
}

/// Letters of the model's alphabet that no log contains by chance.
const WORD: &str = "zxqjvkwzqx";

const KEY: &str = "key-of-the-test-0123456789";

/// Sends valid and invalid calls that contain `WORD` in each text field, and returns their codes.
async fn calls(server: &Server) -> Vec<Code> {
    let channel = server.endpoint().connect().await.unwrap();
    let mut client = GenerationClient::with_interceptor(channel, |mut request: Request<()>| {
        request.metadata_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
        Ok(request)
    });
    let text = format!("a {WORD} b");
    let right = v1::GenerateRequest {
        prompt: text.clone(),
        stopping: Some(v1::Stopping { max_chars: Some(20), stop: vec![WORD.into()], ..Default::default() }),
        details: Some(v1::Details { echo: Some(true), logprobs: Some(true), ..Default::default() }),
        ..Default::default()
    };
    let wrong = [
        right.clone(),
        v1::GenerateRequest { prompt: format!("{WORD}{}", WORD.repeat(2000)), ..right.clone() },
        v1::GenerateRequest { boundary_mode: Some(WORD.into()), ..right.clone() },
        v1::GenerateRequest { model: Some(WORD.into()), ..right.clone() },
        v1::GenerateRequest {
            stopping: Some(v1::Stopping { stop: vec![WORD.to_uppercase()], ..Default::default() }),
            ..right.clone()
        },
        v1::GenerateRequest {
            sampling: Some(v1::Sampling {
                logit_bias: vec![v1::LogitBias { symbol: Some(v1::logit_bias::Symbol::Text(WORD.into())), bias: 1.0 }],
                ..Default::default()
            }),
            ..right.clone()
        },
    ];
    let mut results = Vec::new();
    for request in wrong {
        results.push(drained(client.generate(request).await).await);
    }
    let score = v1::ScoreRequest { text: text.clone(), ..Default::default() };
    results.push(drained(client.score(score.clone()).await).await);
    results.push(drained(client.score(v1::ScoreRequest { top_logprobs: Some(99), ..score.clone() }).await).await);
    results.push(client.segment(v1::SegmentRequest { text, ..Default::default() }).await.map(drop));
    // Sends a cancelled call and one with an unknown key.
    drop(client.generate(right).await.unwrap());
    let mut stranger = GenerationClient::new(server.endpoint().connect().await.unwrap());
    let mut request = Request::new(score);
    request.metadata_mut().insert("authorization", format!("Bearer not-{KEY}").parse().unwrap());
    results.push(drained(stranger.score(request).await).await);
    results.into_iter().map(|result| result.map_or_else(|status| status.code(), |()| Code::Ok)).collect()
}

/// At the most verbose level, valid and invalid calls log neither a text of a request nor a key.
#[tokio::test]
async fn no_text_of_a_request_is_logged() {
    let certificates = Certificates::new();
    let keys = certificates.write("keys", &format!("tester:{KEY}\n"));
    let keys = keys.to_str().unwrap();
    for format in ["text", "json"] {
        let flags = ["--log", "trace", "--log-format", format, "--api-keys", keys];
        let mut server = Server::of(&[converted("whitespaces")], &flags);
        let invalid = Code::InvalidArgument;
        let expected = [
            Code::Ok,
            invalid,
            invalid,
            Code::NotFound,
            // A stop string that the model cannot generate.
            Code::Ok,
            invalid,
            Code::Ok,
            invalid,
            Code::Ok,
            Code::Unauthenticated,
        ];
        assert_eq!(calls(&server).await, expected);
        server.program.signal("TERM");
        assert_eq!(server.program.ended().await, Some(0));
        let log = server.program.stderr();
        // The log is complete and contains all levels.
        for part in ["TRACE", "DEBUG", "finished", "scored", "ended early", "refused credentials", "draining", "tester"]
        {
            assert!(log.contains(part), "{part} is not in the log");
        }
        let bytes = |text: &str| text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
        let hexadecimal = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        for secret in [WORD, KEY] {
            for form in [secret.to_owned(), secret.to_uppercase(), bytes(secret), hexadecimal(secret)] {
                let line = log.lines().find(|line| line.contains(&form));
                assert_eq!(line, None, "{form} is in the log");
            }
        }
    }
}

/// The server warns of a key file that others can read or change, and uses it.
#[test]
fn a_readable_key_file_causes_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys");
    fs::write(&keys, format!("tester:{KEY}\n")).unwrap();
    for (mode, warned) in [(0o644, true), (0o620, true), (0o600, false), (0o440, false)] {
        fs::set_permissions(&keys, fs::Permissions::from_mode(mode)).unwrap();
        let server = Server::of(&[converted("whitespaces")], &["--api-keys", keys.to_str().unwrap()]);
        let log = server.program.stderr();
        assert_eq!(log.contains("others can read or change this secret"), warned, "{mode:o}: {log}");
    }
}
