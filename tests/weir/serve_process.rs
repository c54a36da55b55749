//! `weir serve` as a process: how signals end it.
#![cfg(unix)]

use super::{
    certificates::{CLIENT, Certificates},
    process::{Program, Server},
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
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_stream::StreamExt;
use tonic::{Code, Streaming, transport::Endpoint};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use weir_proto::v1::{
    self, GenerateResponse, generate_response::Event, generation_client::GenerationClient, models_client::ModelsClient,
};

const SOON: Duration = Duration::from_secs(120);

/// A server of a small model on a free port; it is killed when dropped.
pub(super) struct Process {
    child: Child,
    address: SocketAddr,
    log: Option<JoinHandle<String>>,
}

impl Process {
    pub(super) fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "2", "--model"]).arg(converted("whitespaces"));
        let mut child = command.args(args).env_clear().stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (address_sender, address_receiver) = mpsc::sync_channel(1);
        let log = std::thread::spawn(move || {
            let mut all = String::new();
            for line in stderr.lines() {
                let line = line.unwrap();
                // With --log-format json this text is inside a log event.
                if let Some((_, url)) = line.split_once("gRPC        http") {
                    let (_, rest) = url.split_once("://").unwrap();
                    let address = rest.split([' ', '"']).next().unwrap();
                    address_sender.send(address.parse().unwrap()).unwrap();
                }
                all.push_str(&line);
                all.push('\n');
            }
            all
        });
        let address = address_receiver.recv_timeout(SOON).expect("it listens");
        Self { child, address, log: Some(log) }
    }

    pub(super) fn plain(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap()
    }

    pub(super) fn terminate(&self) {
        self.signal("TERM");
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -s {name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the process exits successfully, and returns its log.
    pub(super) async fn ended(&mut self) -> String {
        self.ended_with(0).await
    }

    /// Waits until the process exits with this code, and returns its log.
    async fn ended_with(&mut self, code: i32) -> String {
        let started = Instant::now();
        while !self.has_ended() {
            assert!(started.elapsed() < SOON, "it does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.child.wait().unwrap().code(), Some(code));
        self.log.take().unwrap().join().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a request whose answer exceeds all buffers between server and client.
fn endless() -> v1::GenerateRequest {
    v1::GenerateRequest {
        prompt: "a".into(),
        stopping: Some(v1::Stopping { max_chars: Some(8000), ..Default::default() }),
        details: Some(v1::Details { top_logprobs: Some(20), ..Default::default() }),
        ..Default::default()
    }
}

/// Starts a process with TLS and reads the first message of an answer.
async fn started(more: &[&str]) -> (Certificates, Process, Endpoint, Streaming<GenerateResponse>) {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path(name).to_str().unwrap().to_owned();
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(path);
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca, "--log", "debug"];
    let process = Process::start(&[&tls[..], more].concat());
    let endpoint = certificates.reach(process.address, Some(&certificates));
    let mut client = GenerationClient::new(endpoint.connect().await.unwrap());
    let mut stream = client.generate(endless()).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    (certificates, process, endpoint, stream)
}

#[tokio::test]
async fn the_first_signal_drains_and_the_second_ends_encrypted_connections_too() {
    let (_certificates, mut process, endpoint, _unread) = started(&["--drain-seconds", "600"]).await;
    let channel = endpoint.connect().await.unwrap();
    process.terminate();
    // New requests are refused after a moment; the running one continues.
    let started = Instant::now();
    let status = loop {
        assert!(started.elapsed() < SOON, "it takes requests still");
        let request = v1::SegmentRequest { text: "a b".into(), ..Default::default() };
        if let Err(status) = GenerationClient::new(channel.clone()).segment(request).await {
            break status;
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    ModelsClient::new(channel).list_models(v1::ListModelsRequest {}).await.unwrap();
    assert!(!process.has_ended());
    process.terminate();
    let log = process.ended_with(1).await;
    assert!(log.contains("second signal: ending at once"), "{log}");
    assert!(log.contains(&format!("certificate:{CLIENT}")), "{log}");
}

/// Clients can tell a stream that a second signal cuts from a complete one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_streams_with_an_error() {
    let model = converted("whitespaces");
    let flags = ["--http-listen", "127.0.0.1:0", "--threads", "1", "--drain-seconds", "600"];
    let mut server = Server::start(&[&flags[..], &["--model", model.to_str().unwrap()]].concat());
    let http: SocketAddr = server.program.listener("playground").parse().unwrap();
    let mut grpc = GenerationClient::connect(format!("http://{}", server.address)).await.unwrap();
    let mut stream = grpc.generate(endless()).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    let body = "{\"prompt\":\"a\",\"max_tokens\":8000,\"stream\":true}";
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {http}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut events = TcpStream::connect(http).await.unwrap();
    events.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut begun = [0; 500];
    events.read_exact(&mut begun).await.unwrap();
    server.program.signal("TERM");
    server.program.wait_for_part("draining");
    server.program.signal("TERM");
    let status = loop {
        if let Err(status) = stream.next().await.expect("a status ends it") {
            break status;
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let mut rest = Vec::new();
    events.read_to_end(&mut rest).await.unwrap();
    let rest = String::from_utf8_lossy(&rest);
    let last = rest.rsplit("data: ").next().unwrap();
    assert!(last.contains("\"code\":\"draining\""), "{last}");
    assert_eq!(tokio::task::block_in_place(|| server.program.wait()).code(), Some(1));
}

#[tokio::test]
async fn draining_encrypted_connections_has_a_limit() {
    let (_certificates, mut process, _, mut stream) = started(&["--drain-seconds", "1"]).await;
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
    let (certificates, process, _, stream) = started(&[]).await;
    drop(stream);
    let path = |name: &str| certificates.path(name).to_str().unwrap().to_owned();
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(path);
    let plain = process.address.to_string();
    let encrypted = format!("https://{plain}");
    let health = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).env_clear().arg("health").args(args).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let shown = ["--tls-ca", &ca, "--tls-client-cert", &cert, "--tls-client-key", &key];
    let (succeeded, errors) = health(&[&[&*encrypted], &shown[..]].concat());
    assert!(succeeded, "{errors}");
    for wrong in [vec![&*plain], vec![&*encrypted], vec![&*encrypted, "--tls-ca", &ca]] {
        assert!(!health(&wrong).0, "{wrong:?}");
    }
    assert!(health(&[&encrypted]).1.contains("--tls-ca"));
    assert!(health(&[&encrypted, "--tls-ca", "/no/file.pem"]).1.contains("/no/file.pem"));
}

/// A server that is busy for a moment accepts the connections of that moment afterwards.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_wait_for_a_busy_server() {
    // More than the operating system lets wait where the program does not ask for more.
    const CONNECTIONS: usize = 512;
    let mut process = Process::start(&[]);
    process.signal("STOP");
    let connect = || tokio::time::timeout(Duration::from_secs(20), tokio::net::TcpStream::connect(process.address));
    let mut waiting = Vec::new();
    for _ in 0..CONNECTIONS {
        waiting.push(connect().await.expect("the connection waits").unwrap());
    }
    process.signal("CONT");
    process.signal("TERM");
    process.ended().await;
}

/// An idle stream does not delay the shutdown.
#[tokio::test]
async fn an_idle_stream_does_not_delay_the_shutdown() {
    let mut process = Process::start(&["--drain-seconds", "600"]);
    let channel = process.plain().connect().await.unwrap();
    let mut reflection = ServerReflectionClient::new(channel.clone());
    let open = reflection.server_reflection_info(tokio_stream::pending()).await;
    process.terminate();
    process.ended().await;
    drop(open);
}

#[test]
fn a_signal_during_model_loading_ends_the_process() {
    let folder = TempDir::new().unwrap();
    let shape = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/vanilla-41m.json");
    let large = folder.path().join("large");
    let mut init = Command::new(env!("CARGO_BIN_EXE_weir"));
    assert!(init.arg("init").arg("--config").arg(shape).arg(&large).env_clear().status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--model"]).arg(large);
    let mut program = Program::start(command.env_clear());
    program.wait_for_part("the admin port answers while models load");
    program.signal("TERM");
    assert!(program.wait().success());
    assert!(program.stderr().contains("signal while loading models: ending at once"), "{}", program.stderr());
}

/// Starts a server whose shell has run this command before.
#[cfg(target_os = "linux")]
fn started_after(shell: &str) -> Program {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_weir")]).env_clear();
    command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--model"]).arg(converted("whitespaces"));
    let program = Program::start(&mut command);
    program.listener("gRPC");
    program
}

#[cfg(target_os = "linux")]
#[test]
fn the_limit_of_open_files_is_raised() {
    let open_files = |program: &Program| {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", program.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned();
        line.split_whitespace().nth(3).unwrap().parse::<usize>().unwrap()
    };
    let mut raised = started_after("ulimit -Sn 256");
    assert_eq!(open_files(&raised), 2048, "1,024 connections and as many other files");
    raised.signal("TERM");
    assert!(raised.wait().success() && !raised.stderr().contains("open files"), "{}", raised.stderr());
    let limited = started_after("ulimit -n 256");
    assert_eq!(open_files(&limited), 256);
    limited.wait_for_part("--max-connections needs a higher limit of open files");
}
