//! `weir serve` as a process: what its log tells, and how signals end it.
#![cfg(unix)]

use super::{
    certificates::{CLIENT, Certificates},
    process::Program,
    support::converted,
};
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Status, Streaming, transport::Endpoint};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use weir_proto::v1::{
    self, GenerateResponse, generate_response::Event, generation_client::GenerationClient, models_client::ModelsClient,
};

const SOON: Duration = Duration::from_secs(120);

/// A server of a small model on a free port; it is killed when dropped.
struct Process {
    child: Child,
    address: SocketAddr,
    log: Option<JoinHandle<String>>,
}

impl Process {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "2", "--model"]).arg(converted("whitespaces"));
        let mut child = command.args(args).env_clear().stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tell, told) = mpsc::sync_channel(1);
        let log = std::thread::spawn(move || {
            let mut all = String::new();
            for line in stderr.lines() {
                let line = line.unwrap();
                // an event of the log where that is of JSON
                if let Some((_, rest)) = line.split_once("listening on ") {
                    tell.send(rest.split(' ').next().unwrap().parse().unwrap()).unwrap();
                }
                all.push_str(&line);
                all.push('\n');
            }
            all
        });
        let address = told.recv_timeout(SOON).expect("it listens");
        Self { child, address, log: Some(log) }
    }

    fn plain(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap()
    }

    fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end, which must be a good one; returns the whole log.
    async fn ended(&mut self) -> String {
        let begun = Instant::now();
        while !self.has_ended() {
            assert!(begun.elapsed() < SOON, "it does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(self.child.wait().unwrap().success());
        self.log.take().unwrap().join().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn drained<T>(call: Result<tonic::Response<Streaming<T>>, Status>) -> Result<(), Status> {
    let mut stream = call?.into_inner();
    while stream.message().await?.is_some() {}
    Ok(())
}

/// Letters of the model's alphabet that no log has by chance.
const WORD: &str = "zxqjvkwzqx";
const KEY: &str = "key-of-the-test-0123456789";

/// Calls that go well and calls that do not, each with the word in every text it has.
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
    // One that is given up, and one without a key that is known.
    drop(client.generate(right).await.unwrap());
    let mut stranger = GenerationClient::new(process.plain().connect().await.unwrap());
    let mut request = Request::new(score);
    request.metadata_mut().insert("authorization", format!("Bearer not-{KEY}").parse().unwrap());
    results.push(drained(stranger.score(request).await).await);
    results.into_iter().map(|result| result.map_or_else(|status| status.code(), |()| Code::Ok)).collect()
}

/// Whatever the level, and whether calls go well or not: no text of a request, and no key.
#[tokio::test]
async fn no_text_of_a_request_is_logged() {
    let papers = Certificates::new();
    let keys = papers.write("keys", &format!("tester:{KEY}\n"));
    let keys = keys.to_str().unwrap();
    for format in ["text", "json"] {
        let mut process = Process::start(&["--log", "trace", "--log-format", format, "--api-keys", keys]);
        let bad = Code::InvalidArgument;
        let expected = [Code::Ok, bad, bad, Code::NotFound, bad, bad, Code::Ok, bad, Code::Ok, Code::Unauthenticated];
        assert_eq!(calls(&process).await, expected);
        process.terminate();
        let log = process.ended().await;
        // It is the whole log, and of everything.
        for part in ["TRACE", "DEBUG", "finished", "scored", "ended early", "refused", "draining", "tester"] {
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

/// An open file of keys is told once, and is used all the same.
#[tokio::test]
async fn an_open_file_of_keys_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let papers = Certificates::new();
    let keys = papers.write("keys", &format!("tester:{KEY}\n"));
    for (mode, warned) in [(0o644, true), (0o620, true), (0o600, false), (0o440, false)] {
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut process = Process::start(&["--api-keys", keys.to_str().unwrap()]);
        process.terminate();
        let log = process.ended().await;
        assert_eq!(log.contains("others can read or change this secret"), warned, "{mode:o}: {log}");
    }
}

/// A request whose answer is far longer than what may be on the way.
fn endless() -> v1::GenerateRequest {
    v1::GenerateRequest {
        prompt: "a".into(),
        stopping: Some(v1::Stopping { max_chars: Some(8000), ..Default::default() }),
        details: Some(v1::Details { top_logprobs: Some(20), ..Default::default() }),
        ..Default::default()
    }
}

/// A process behind TLS that has begun an answer.
async fn begun(more: &[&str]) -> (Certificates, Process, Endpoint, Streaming<GenerateResponse>) {
    let papers = Certificates::new();
    let path = |name: &str| papers.path(name).to_str().unwrap().to_owned();
    let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca, "--log", "debug"];
    let process = Process::start(&[&tls[..], more].concat());
    let endpoint = papers.reach(process.address, Some(&papers));
    let mut client = GenerationClient::new(endpoint.connect().await.unwrap());
    let mut stream = client.generate(endless()).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    (papers, process, endpoint, stream)
}

#[tokio::test]
async fn the_first_signal_drains_and_the_second_ends_encrypted_connections_too() {
    let (_papers, mut process, endpoint, _unread) = begun(&["--drain-seconds", "600"]).await;
    let channel = endpoint.connect().await.unwrap();
    process.terminate();
    // Refused from some moment on, while what had begun goes on.
    let begun = Instant::now();
    let status = loop {
        assert!(begun.elapsed() < SOON, "it takes requests still");
        let request = v1::SegmentRequest { text: "a b".into(), ..Default::default() };
        if let Err(status) = GenerationClient::new(channel.clone()).segment(request).await {
            break status;
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    ModelsClient::new(channel).list_models(v1::ListModelsRequest {}).await.unwrap();
    assert!(!process.has_ended());
    process.terminate();
    let log = process.ended().await;
    assert!(log.contains("second signal: ending at once"), "{log}");
    assert!(log.contains(&format!("certificate:{CLIENT}")), "{log}");
}

#[tokio::test]
async fn draining_encrypted_connections_has_a_limit() {
    let (_papers, mut process, _, mut stream) = begun(&["--drain-seconds", "1"]).await;
    process.terminate();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let status = loop {
        match stream.next().await.expect("a status ends it") {
            Ok(message) => assert!(!matches!(message.event, Some(Event::Finished(_)))),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let log = process.ended().await;
    assert!(log.contains("the limit for draining has passed"), "{log}");
}

#[tokio::test]
async fn commands_reach_a_server_behind_tls() {
    let (papers, process, _, stream) = begun(&[]).await;
    drop(stream);
    let path = |name: &str| papers.path(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (path("ca.pem"), path("client.pem"), path("client.key"));
    let (plain, encrypted) = (process.address.to_string(), format!("https://{}", process.address));
    let health = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).env_clear().arg("health").args(args).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let shown = ["--tls-ca", &ca, "--tls-client-cert", &cert, "--tls-client-key", &key];
    let (well, told) = health(&[&[&*encrypted], &shown[..]].concat());
    assert!(well, "{told}");
    for wrong in [vec![&*plain], vec![&*encrypted], vec![&*encrypted, "--tls-ca", &ca]] {
        assert!(!health(&wrong).0, "{wrong:?}");
    }
    assert!(health(&[&encrypted]).1.contains("--tls-ca"));
    assert!(health(&[&encrypted, "--tls-ca", "/no/file.pem"]).1.contains("/no/file.pem"));
}

/// Neither a stream that says nothing nor a request that never comes whole keeps a server that is to end.
#[tokio::test]
async fn what_runs_nothing_does_not_delay_the_end() {
    let mut process = Process::start(&["--drain-seconds", "600"]);
    let channel = process.plain().connect().await.unwrap();
    let mut reflection = ServerReflectionClient::new(channel.clone());
    let open = reflection.server_reflection_info(tokio_stream::pending()).await;
    process.terminate();
    process.ended().await;
    drop(open);
}

#[test]
fn a_signal_while_models_are_loaded_ends_it() {
    let folder = TempDir::new().unwrap();
    let shape = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/vanilla-41m.json");
    let large = folder.path().join("large");
    let mut init = Command::new(env!("CARGO_BIN_EXE_weir"));
    assert!(init.arg("init").arg("--config").arg(shape).arg(&large).env_clear().status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--model"]).arg(large);
    let mut program = Program::start(command.env_clear());
    program.wait_for_line("admin port on ");
    program.signal("TERM");
    assert!(program.wait().success());
    assert!(program.stderr().contains("signal while loading models: ending at once"), "{}", program.stderr());
}
