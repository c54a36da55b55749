//! The log of `weir serve`: its content, refusals, and a log that cannot be written, which costs log lines and nothing else.

use crate::{
    process::{self, Process},
    *,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use std::{
    fs::File,
    io::{PipeReader, pipe},
    net::TcpListener,
};
use weir_proto::v1::Stopping;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Calls that log far more than a pipe holds.
const CALLS: usize = 400;

/// A server whose log goes to `stderr`; it is killed when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Server {
    fn start(stderr: Stdio) -> Self {
        // The addresses cannot be read from the log.
        let [address, admin] = free_addresses();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["serve", "--threads", "1", "--log", "trace", "--calibration-milliseconds", "0"]);
        command.arg("--listen").arg(address.to_string()).arg("--admin-listen").arg(admin.to_string());
        let child = command.arg("--model").arg(converted("whitespaces")).env_clear().stderr(stderr).spawn().unwrap();
        Self { child, address, admin }
    }

    async fn connect(&mut self) -> GenerationClient<Channel> {
        let started = Instant::now();
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        loop {
            assert!(self.child.try_wait().unwrap().is_none(), "the process ended");
            match endpoint.connect().await {
                Ok(channel) => return GenerationClient::new(channel),
                Err(error) => assert!(started.elapsed() < TIMEOUT, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the number of dropped lines that the metrics report.
    async fn dropped_lines(&self) -> u64 {
        let mut connection = TcpStream::connect(self.admin).await.unwrap();
        connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).await.unwrap();
        let line = response.lines().find(|line| line.starts_with("weir_log_lines_dropped_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    async fn terminate(&mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
        let started = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < TIMEOUT, "it does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns two addresses on loopback that no listener has.
fn free_addresses() -> [SocketAddr; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

/// Calls a server while a stream runs, and ends it.
async fn serves(stderr: Stdio) {
    let mut server = Server::start(stderr);
    let mut client = server.connect().await;
    let request = |max_chars| GenerateRequest {
        prompt: "a b".into(),
        stopping: Some(Stopping { max_chars: Some(max_chars), ..Default::default() }),
        ..Default::default()
    };
    let mut running = client.generate(request(200)).await.unwrap().into_inner();
    for _ in 0..CALLS {
        let mut stream = client.generate(request(2)).await.unwrap().into_inner();
        while stream.message().await.unwrap().is_some() {}
    }
    while running.message().await.unwrap().is_some() {}
    assert!(server.dropped_lines().await > 0);
    server.terminate().await;
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

#[cfg(target_os = "linux")]
/// Refusals over HTTP are logged like those over gRPC: with the rule and the field, and without text of the request.
#[tokio::test]
async fn refusals_over_http_are_logged_with_the_field() {
    let model = converted("whitespaces");
    let flags = ["--http-listen", "127.0.0.1:0", "--threads", "1", "--calibration-milliseconds", "0", "--model"];
    let server = process::Server::start(&[&flags[..], &[model.to_str().unwrap()]].concat());
    let http: SocketAddr = server.program.listener("playground").parse().unwrap();
    let invalid = |rule, field| format!("code=InvalidArgument rule=\"{rule}\" field=\"{field}\"");
    // The log has one line for each code, rule and field in an interval.
    for (body, status, logged) in [
        (r#"{"prompt": "secret", "best_of": 3}"#, 400, invalid("BAD_OPTION", "best_of")),
        (r#"{"prompt": "secret", "best_of": 4}"#, 400, invalid("BAD_OPTION", "best_of")),
        (r#"{"prompt": "secret", "top_p": 3}"#, 400, invalid("BAD_OPTION", "top_p")),
        (r#"{"prompt": "secret", "top_p": "secret"}"#, 400, invalid("UNREADABLE", "top_p")),
        (r#"{"prompt": "a", "logit_bias": {"secret": []}}"#, 400, invalid("UNREADABLE", "logit_bias")),
        (r#"{"secret": tru}"#, 400, r#"code=InvalidArgument rule="UNREADABLE" unlogged=0"#.into()),
        (
            r#"{"prompt": "secret", "model": "nobody"}"#,
            404,
            r#"code=NotFound rule="UNKNOWN_MODEL" field="model""#.into(),
        ),
    ] {
        let mut connection = TcpStream::connect(http).await.unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\nx-request-id: mine\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        server.program.wait_for_part(&logged);
    }
    let log = server.program.stderr();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("refused a call")).collect();
    assert_eq!(lines.len(), 6, "{log}");
    for line in &lines {
        assert!(line.contains(r#"call{path="/v1/completions" id="mine" principal=address:127.0.0.1}"#), "{line}");
    }
    assert!(!log.contains("secret") && !log.contains("nobody"), "{log}");
}

/// Starts a server that needs a key, and allows one editing session. Returns it with its HTTP address.
fn with_key_of_alice() -> (process::Server, SocketAddr) {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "alice:a-key-that-alice-has\n").unwrap();
    let model = converted("whitespaces");
    let flags = ["--http-listen", "127.0.0.1:0", "--threads", "1", "--calibration-milliseconds", "0"];
    let limit = ["--max-edit-sessions", "1", "--api-keys", keys.to_str().unwrap(), "--model", model.to_str().unwrap()];
    let server = process::Server::start(&[&flags[..], &limit].concat());
    let http = server.program.listener("playground").parse().unwrap();
    (server, http)
}

#[cfg(target_os = "linux")]
/// A peer without a key can cause any number of refusals, so several share a line.
#[tokio::test]
async fn refused_credentials_and_pages_are_logged_once_in_a_while() {
    let (server, http) = with_key_of_alice();
    let body = r#"{"prompt": "a"}"#;
    for _ in 0..3 {
        for (path, headers, status) in [
            ("/v1/completions", "authorization: Bearer another-key", 401),
            ("/v1/models", "authorization: Bearer another-key", 401),
            ("/v1/models", "origin: https://example.org", 403),
        ] {
            let mut connection = TcpStream::connect(http).await.unwrap();
            let method = if path == "/v1/completions" { "POST" } else { "GET" };
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n{headers}\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            connection.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            let mut response = String::new();
            connection.read_to_string(&mut response).await.unwrap();
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
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
    let (server, http) = with_key_of_alice();
    let key = URL_SAFE_NO_PAD.encode("a-key-that-alice-has");
    let open = async |key: &str| {
        let mut connection = TcpStream::connect(http).await.unwrap();
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
async fn calls(process: &Process) -> Vec<Code> {
    let mut client =
        GenerationClient::with_interceptor(process.plain().connect().await.unwrap(), |mut request: Request<()>| {
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
    let mut stranger = GenerationClient::new(process.plain().connect().await.unwrap());
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
        let mut process = Process::start(&["--log", "trace", "--log-format", format, "--api-keys", keys]);
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
        assert_eq!(calls(&process).await, expected);
        process.terminate();
        let log = process.ended().await;
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
#[tokio::test]
async fn a_readable_key_file_causes_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let certificates = Certificates::new();
    let keys = certificates.write("keys", &format!("tester:{KEY}\n"));
    for (mode, warned) in [(0o644, true), (0o620, true), (0o600, false), (0o440, false)] {
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut process = Process::start(&["--api-keys", keys.to_str().unwrap()]);
        process.terminate();
        let log = process.ended().await;
        assert_eq!(log.contains("others can read or change this secret"), warned, "{mode:o}: {log}");
    }
}
