//! The built program as a process: how it starts, reloads, reports to systemd, uses memory and threads, and stops.

use crate::{certificates::CLIENT, *};
use std::io::BufRead;
use std::net;
use std::os::unix::net::UnixDatagram;
use std::process::ExitStatus;
use std::sync::Barrier;
use std::thread::JoinHandle;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use weir::kernels::{ThreadPool, distribution::log_probability};
use weir_proto::v1::{ListModelsRequest, ScoreRequest, Windows};

/// Returns a command of the program, without an environment.
pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args).env_clear().stdin(Stdio::null());
    command
}

/// Runs a command to its end. Returns stdout if it succeeds, otherwise stderr.
pub(crate) fn outcome(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Runs the program to its end. Returns stdout if it succeeds, otherwise stderr.
pub(crate) fn weir(args: &[&str]) -> Result<String, String> {
    outcome(&mut program(args))
}

/// Runs a command that must succeed, and returns the JSON that it prints.
#[track_caller]
pub(crate) fn weir_json(args: &[&str]) -> Value {
    serde_json::from_str(&weir(args).unwrap()).unwrap()
}

/// Scores ids in one pass, symbol by symbol and in chunks, with the same logits to the bit. Returns the three outputs and the logits.
pub(crate) fn scored_in_each_mode(model: &Path, symbols: &[u32]) -> ([Value; 3], Golden) {
    let out = TempDir::new().unwrap();
    let ids = symbols.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let model = model.to_str().unwrap();
    let files = ["full", "incremental", "chunked"].map(|mode| out.path().join(mode));
    let outputs = files.each_ref().map(|file| {
        let mode = file.file_name().unwrap().to_str().unwrap();
        let args = ["score", "--json", "--model", model, "--ids", &ids, "--mode", mode, "--chunk", "17", "--logits"];
        weir_json(&[&args[..], &[file.to_str().unwrap()]].concat())
    });
    let bytes = files.each_ref().map(|file| fs::read(file).unwrap());
    assert!(bytes[1] == bytes[0] && bytes[2] == bytes[0], "{model}: other bits in steps");
    assert!(outputs[1] == outputs[0] && outputs[2] == outputs[0], "{model}: other scores in steps");
    let written = Golden::read_file(&files[0]);
    let vocabulary = written.shape("logits")[1];
    let logprobs: Vec<f64> = serde_json::from_value(outputs[0]["logprobs"].clone()).unwrap();
    let scored = symbols.iter().skip(symbols.len() - logprobs.len());
    for ((logits, &symbol), logprob) in written.get("logits").chunks(vocabulary).zip(scored).zip(logprobs) {
        assert!((log_probability(logits, symbol).unwrap() - logprob).abs() < 1e-13, "{model}: {logprob}");
    }
    (outputs, written)
}

/// Writes a checkpoint that takes long to load.
pub(crate) fn write_large_model(folder: &Path) -> String {
    let shape = concat!(env!("CARGO_MANIFEST_DIR"), "/models/shapes/vanilla-41m.json");
    let large = folder.join("large").to_str().unwrap().to_owned();
    weir(&["init", "--config", shape, &large]).unwrap();
    large
}

/// Sends a request over HTTP, such as `GET /metrics`, with lines of headers. Returns the status and the body of the response.
pub(crate) fn http(address: &str, request: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let host = if headers.to_lowercase().contains("host: ") { String::new() } else { format!("host: {address}\r\n") };
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nconnection: close\r\n{host}content-length: {length}\r\n{headers}\r\n");
    Write::write_all(&mut stream, format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    Read::read_to_string(&mut stream, &mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A child process. Killed when it is dropped.
pub(crate) struct Program {
    child: Child,
    stderr: Arc<(Mutex<Vec<String>>, Condvar)>,
    /// The thread that collects stderr. It ends when the process has closed stderr.
    collector: Option<JoinHandle<()>>,
}

impl Program {
    /// Starts a program and collects its stderr.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut program = Self::start_with(command, Stdio::piped());
        let lines = BufReader::new(program.child.stderr.take().unwrap()).lines();
        let collected = Arc::clone(&program.stderr);
        program.collector = Some(std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                collected.0.lock().unwrap().push(line);
                collected.1.notify_all();
            }
        }));
        program
    }

    /// Starts a program whose stderr goes elsewhere.
    pub(crate) fn start_with(command: &mut Command, stderr: Stdio) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Self { child, stderr: Arc::default(), collector: None }
    }

    /// Waits for a line that starts with `prefix` and returns the rest of it.
    pub(crate) fn wait_for_line(&self, prefix: &str) -> String {
        self.wait_for(prefix, |line| line.strip_prefix(prefix).map(str::to_owned))
    }

    fn wait_for(&self, part: &str, rest: impl Fn(&str) -> Option<String>) -> String {
        let (lines, changed) = &*self.stderr;
        let find = |lines: &Vec<String>| lines.iter().find_map(|line| rest(line));
        let waiting = lines.lock().unwrap();
        let (lines, _) = changed.wait_timeout_while(waiting, TIMEOUT, |lines| find(lines).is_none()).unwrap();
        find(&lines).unwrap_or_else(|| panic!("{part:?} is not in\n{}", lines.join("\n")))
    }

    /// Waits for the URL of a server's `gRPC`, `playground` or `metrics`, which may be within a log event. Returns the URL's address.
    pub(crate) fn listener(&self, name: &str) -> String {
        let url = self.wait_for_part(&format!("{name:<12}http"));
        let (_, rest) = url.split_once("://").unwrap();
        rest.split(['/', ' ', '"']).next().unwrap().to_owned()
    }

    /// Waits until stderr contains `part`. A thread of its own writes the log, so a line may come after later events. Returns the rest
    /// of the line.
    pub(crate) fn wait_for_part(&self, part: &str) -> String {
        self.wait_for(part, |line| line.split_once(part).map(|(_, rest)| rest.to_owned()))
    }

    /// Returns the stderr so far. It is complete after [`Program::wait`].
    pub(crate) fn stderr(&self) -> String {
        self.stderr.0.lock().unwrap().join("\n")
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, given by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits for the exit of the process and for the end of its stderr.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        while !self.has_ended() {
            assert!(Instant::now() < deadline, "the process does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.collector.take().map_or(Ok(()), JoinHandle::join).unwrap();
        self.child.wait().unwrap()
    }

    /// Waits for the exit of the process while other tasks run. Returns the exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        while !self.has_ended() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.wait().code()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `weir serve` on free ports.
pub(crate) struct Server {
    pub(crate) program: Program,
    /// Address of the gRPC port.
    pub(crate) address: SocketAddr,
    /// Address of the admin port.
    pub(crate) admin_address: SocketAddr,
}

impl Server {
    /// Starts a server with `flags` in addition to its addresses.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, &[])
    }

    /// Starts a server with `flags` and with no other variables than `variables`.
    pub(crate) fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = program(&["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
        let program = Program::start(command.args(flags).envs(variables.iter().copied()));
        let admin_address = program.listener("metrics").parse().unwrap();
        let address = program.listener("gRPC").parse().unwrap();
        Self { program, address, admin_address }
    }

    /// Starts a server of these models on one thread, with an HTTP port and without calibration.
    pub(crate) fn of(models: &[PathBuf], flags: &[&str]) -> Self {
        let quick = ["--http-listen", "127.0.0.1:0", "--threads", "1", "--calibration-milliseconds", "0"];
        let models = models.iter().flat_map(|model| ["--model", model.to_str().unwrap()]);
        Self::start(&quick.into_iter().chain(models).chain(flags.iter().copied()).collect::<Vec<_>>())
    }

    /// Returns the address of the HTTP port.
    pub(crate) fn http(&self) -> String {
        self.program.listener("playground")
    }

    /// Returns an endpoint without TLS.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap()
    }

    /// Requests a path of the admin port. Returns status and body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        http(&self.admin_address.to_string(), &format!("GET {path}"), "", "")
    }

    /// Returns the resident memory in MiB. `None` where `/proc` does not report it.
    pub(crate) fn resident_mib(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.program.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib / 1024.0)
    }

    /// Returns the value of a metric of the only model.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(&format!("weir_{name}{{")));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
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

/// Starts a server with TLS and reads the first message of an answer.
async fn started(more: &[&str]) -> (Certificates, Server, Endpoint, Streaming<GenerateResponse>) {
    let certificates = Certificates::new();
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| certificates.name(name));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca, "--log", "debug"];
    let server = Server::of(&[converted("whitespaces")], &[&tls[..], more].concat());
    let endpoint = certificates.reach(server.address, Some(&certificates));
    let mut client = GenerationClient::new(endpoint.connect().await.unwrap());
    let mut stream = client.generate(endless()).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    (certificates, server, endpoint, stream)
}

#[tokio::test]
async fn the_first_signal_drains_and_the_second_ends_encrypted_connections_too() {
    let (_certificates, mut server, endpoint, _unread) = started(&["--drain-seconds", "600"]).await;
    let channel = endpoint.connect().await.unwrap();
    server.program.signal("TERM");
    // New requests are refused after a moment; the running one continues.
    let started = Instant::now();
    let status = loop {
        assert!(started.elapsed() < TIMEOUT, "requests are still accepted");
        let request = v1::SegmentRequest { text: "a b".into(), ..Default::default() };
        if let Err(status) = GenerationClient::new(channel.clone()).segment(request).await {
            break status;
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    ModelsClient::new(channel).list_models(v1::ListModelsRequest {}).await.unwrap();
    assert!(!server.program.has_ended());
    server.program.signal("TERM");
    assert_eq!(server.program.ended().await, Some(1));
    for part in ["second signal: ending at once".to_owned(), format!("certificate:{CLIENT}")] {
        server.program.wait_for_part(&part);
    }
}

/// Clients can tell a stream that a second signal cuts from a complete one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_streams_with_an_error() {
    let mut server = Server::of(&[converted("whitespaces")], &["--drain-seconds", "600"]);
    let http = server.http();
    let mut grpc = GenerationClient::new(server.endpoint().connect().await.unwrap());
    let mut stream = grpc.generate(endless()).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    let body = "{\"prompt\":\"a\",\"max_tokens\":8000,\"stream\":true}";
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {http}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut events = TcpStream::connect(&http).await.unwrap();
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
    assert_eq!(server.program.ended().await, Some(1));
}

#[tokio::test]
async fn draining_encrypted_connections_has_a_limit() {
    let (_certificates, mut server, _, mut stream) = started(&["--drain-seconds", "1"]).await;
    server.program.signal("TERM");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let status = loop {
        match stream.next().await.expect("a status ends it") {
            Ok(message) => assert!(!matches!(message.event, Some(Event::Finished(_)))),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(server.program.ended().await, Some(0));
    server.program.wait_for_part("the limit for draining has passed");
}

/// A server that is busy for a moment accepts the connections of that moment afterwards.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_wait_for_a_busy_server() {
    // More than the operating system lets wait where the program does not ask for more.
    const CONNECTIONS: usize = 512;
    let mut server = Server::of(&[converted("whitespaces")], &[]);
    server.program.signal("STOP");
    let connect = || timeout(Duration::from_secs(20), TcpStream::connect(server.address));
    let mut waiting = Vec::new();
    for _ in 0..CONNECTIONS {
        waiting.push(connect().await.expect("the connection waits").unwrap());
    }
    server.program.signal("CONT");
    server.program.signal("TERM");
    assert_eq!(server.program.ended().await, Some(0));
}

#[tokio::test]
async fn an_idle_stream_does_not_delay_the_shutdown() {
    let mut server = Server::of(&[converted("whitespaces")], &["--drain-seconds", "600"]);
    let mut reflection = ServerReflectionClient::new(server.endpoint().connect().await.unwrap());
    let open = reflection.server_reflection_info(tokio_stream::pending()).await;
    server.program.signal("TERM");
    assert_eq!(server.program.ended().await, Some(0));
    drop(open);
}

#[test]
fn a_signal_during_model_loading_ends_the_process() {
    let folder = TempDir::new().unwrap();
    let large = write_large_model(folder.path());
    let flags = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--model", &large];
    let mut program = Program::start(&mut program(&flags));
    program.wait_for_part("the admin port answers while models load");
    program.signal("TERM");
    assert!(program.wait().success());
    program.wait_for_part("signal while loading models: ending at once");
}

/// The characters before the end of a stream are output, and the error counts them.
#[test]
fn a_stream_that_breaks_says_how_much_was_written() {
    let mut server = Server::of(&[converted("whitespaces")], &[]);
    let address = server.address.to_string();
    let mut command = program(&["generate", "a", "--max-chars", "8000", "--ignore-eos", "--server", &address]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    server.program.signal("KILL");
    server.program.wait();
    let output = child.wait_with_output().unwrap();
    let written = 1 + output.stdout.len();
    let error = String::from_utf8(output.stderr).unwrap();
    let expected = format!("; the text is incomplete: {written} characters were written\n");
    assert!(error.starts_with("weir: ") && error.ends_with(&expected), "{written} characters, then {error}");
    assert_eq!(output.status.code(), Some(1));
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

/// A thread that the system refuses costs its request, and no other.
#[cfg(target_os = "linux")]
#[test]
fn a_refused_thread_fails_one_request() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let server = Server::of(&[converted("whitespaces")], &[]);
    let id = server.program.id();
    let maximum = getrlimit(Resource::As).maximum;
    let allow = |current: Option<u64>| {
        let process = Pid::from_raw(i32::try_from(id).unwrap());
        prlimit(process, Resource::As, Rlimit { current, maximum }).unwrap();
    };
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
    let constrained = || {
        let grammar = json!({ "grammar": "start: \"aa\"" });
        let body = json!({ "prompt": "a", "max_tokens": 2, "structured_outputs": grammar }).to_string();
        http(&server.http(), "POST /v1/completions", "content-type: application/json\r\n", &body)
    };
    // Enough for requests, but not for the stack of a grammar's parser.
    allow(Some((used + (128 << 10)) << 10));
    let (status, body) = constrained();
    assert!(status == 429 && body.contains("no_thread"), "{status} {body}");
    let plain =
        http(&server.http(), "POST /v1/completions", "content-type: application/json\r\n", r#"{"prompt": "a"}"#);
    assert_eq!(plain.0, 200, "{}", plain.1);
    allow(maximum);
    let (status, body) = constrained();
    assert!(status == 200 && body.contains("aa"), "{status} {body}");
}

const OLD: &str = "a-key-that-is-removed";
const NEW: &str = "a-key-that-is-added";

/// Returns the numbers of reloads that succeeded and that failed.
fn reloads(server: &Server) -> [u64; 2] {
    let (_, text) = server.get("/metrics");
    ["success", "failure"].map(|result| {
        let name = format!("weir_credential_reloads_total{{result=\"{result}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    })
}

/// Sends SIGHUP and waits until the metrics report these results.
async fn reload(server: &Server, expected: [u64; 2]) {
    server.program.signal("HUP");
    let started = Instant::now();
    while reloads(server) != expected {
        assert!(started.elapsed() < TIMEOUT, "{:?}, expected {expected:?}", reloads(server));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Connects with the authority of `certificates`, and calls with each key.
async fn codes(server: &Server, certificates: &Certificates) -> Option<[Code; 2]> {
    let channel = certificates.reach(server.address, None).connect().await.ok()?;
    let mut codes = Vec::new();
    for key in [OLD, NEW] {
        let mut request = Request::new(ListModelsRequest {});
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        let listed = ModelsClient::new(channel.clone()).list_models(request).await;
        codes.push(listed.map_or_else(|status| status.code(), |_| Code::Ok));
    }
    codes.try_into().ok()
}

#[tokio::test]
async fn a_hangup_reloads_certificates_and_keys() {
    let certificates = Certificates::new();
    let others = Certificates::new();
    certificates.write("keys", &format!("alice:{OLD}\n"));
    let [cert, key, keys] = ["server.pem", "server.key", "keys"].map(|name| certificates.name(name));
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--api-keys", &keys];
    let server = Server::of(&[converted("whitespaces")], &flags);
    let before = Some([Code::Ok, Code::Unauthenticated]);
    assert_eq!(codes(&server, &certificates).await, before);
    assert_eq!(reloads(&server), [0, 0]);

    // The certificate does not match the key: the new API keys are not used either.
    fs::copy(others.path("server.pem"), &cert).unwrap();
    fs::write(&keys, format!("alice:{NEW}\n")).unwrap();
    reload(&server, [0, 1]).await;
    assert_eq!(codes(&server, &certificates).await, before);
    assert_eq!(codes(&server, &others).await, None);

    fs::copy(others.path("server.key"), &key).unwrap();
    reload(&server, [1, 1]).await;
    let after = Some([Code::Unauthenticated, Code::Ok]);
    assert_eq!(codes(&server, &others).await, after);
    assert_eq!(codes(&server, &certificates).await, None);

    for (path, broken, expected) in
        [(&cert, Some("no PEM"), [1, 2]), (&cert, None, [1, 3]), (&keys, Some("\n"), [1, 4])]
    {
        let valid = fs::read(path).unwrap();
        match broken {
            Some(text) => fs::write(path, text).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        reload(&server, expected).await;
        assert_eq!(codes(&server, &others).await, after, "{broken:?}");
        fs::write(path, valid).unwrap();
    }
    reload(&server, [2, 4]).await;

    for part in [
        "reloaded certificates and keys",
        "found that of another certificate",
        "expected PEM with a certificate, found none",
        "No such file",
        "expected a key, found none",
        "server.pem",
    ] {
        server.program.wait_for_part(part);
    }
    let log = server.program.stderr();
    assert!(!log.contains(OLD) && !log.contains(NEW), "{log}");
}

#[tokio::test]
async fn a_hangup_without_files_changes_nothing() {
    let server = Server::of(&[converted("whitespaces")], &[]);
    server.program.signal("HUP");
    server.program.wait_for_part("name no certificates and keys to read again");
    assert_eq!(reloads(&server), [0, 0]);
}

/// A socket in place of systemd's.
struct Manager {
    socket: UnixDatagram,
    folder: TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, folder }
    }

    fn path(&self) -> String {
        self.folder.path().join("notify").to_str().unwrap().to_owned()
    }

    /// Returns the lines of the next notification.
    fn received(&self) -> Vec<String> {
        let mut buffer = [0; 1024];
        let length = self.socket.recv(&mut buffer).unwrap();
        std::str::from_utf8(&buffer[..length]).unwrap().lines().map(str::to_owned).collect()
    }

    /// Checks that no notification waits.
    fn is_silent(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let is_silent = self.socket.recv(&mut [0; 16]).is_err();
        self.socket.set_nonblocking(false).unwrap();
        is_silent
    }
}

fn model_flag() -> String {
    format!("--model=m={}", converted("whitespaces").display())
}

#[test]
fn systemd_is_notified_of_readiness_and_shutdown() {
    let manager = Manager::new();
    let mut server = Server::start_with(&[&model_flag()], &[("NOTIFY_SOCKET", &manager.path())]);
    assert_eq!(manager.received(), ["READY=1", "STATUS=serving m"]);
    drop(net::TcpStream::connect(server.address).unwrap());
    assert!(manager.is_silent());
    server.program.signal("TERM");
    assert_eq!(manager.received(), ["STOPPING=1"]);
    assert!(server.program.wait().success());
    assert!(manager.is_silent());
}

#[test]
fn a_server_without_its_manager_serves() {
    let manager = Manager::new();
    let path = manager.path();
    drop(manager);
    let mut server = Server::start_with(&[&model_flag()], &[("NOTIFY_SOCKET", &path)]);
    server.program.wait_for_part("systemd is not notified");
    drop(net::TcpStream::connect(server.address).unwrap());
    server.program.signal("TERM");
    assert!(server.program.wait().success());
}

/// Returns the values of a setting of the unit, in order.
fn unit(setting: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd/weir.service");
    let text = fs::read_to_string(file).unwrap();
    let values = text.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn the_unit_waits_for_notifications_and_for_the_drain() {
    assert_eq!(unit("Type"), ["notify"]);
    assert_eq!(unit("ExecStart"), ["/usr/bin/weir serve"]);
    // SIGHUP reloads certificates and keys
    assert_eq!(unit("ExecReload"), ["/bin/kill -HUP $MAINPID"]);
    let settings = weir(&["serve", "--print-config"]).unwrap();
    let drain = settings.lines().find_map(|line| line.trim_start_matches("# ").strip_prefix("drain-seconds = "));
    let drain: u64 = drain.unwrap_or_else(|| panic!("no drain-seconds in\n{settings}")).parse().unwrap();
    let stop: u64 = unit("TimeoutStopSec")[0].parse().unwrap();
    assert!(stop >= drain + 20, "{stop} {drain}");
}

#[test]
fn the_unit_does_not_restart_a_server_with_an_unknown_flag() {
    let code = |flag| program(&["serve", "--check-config", flag]).status().unwrap().code().unwrap().to_string();
    assert_eq!(unit("Restart"), ["on-failure"]);
    assert_eq!(unit("RestartPreventExitStatus"), [code("--unknown")]);
    // Other failures can end without a correction, such as a port in use.
    assert_ne!(unit("RestartPreventExitStatus"), [code("--models=/missing")]);
}

const THREADS: usize = 3;

/// Runs a job that needs every thread of the pool. Returns the `/proc` folder of each thread.
fn run_on_all(pool: &ThreadPool) -> BTreeSet<PathBuf> {
    let barrier = Barrier::new(THREADS);
    let threads = Mutex::new(BTreeSet::new());
    pool.run(THREADS, &|_| {
        threads.lock().unwrap().insert(PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap()));
        barrier.wait();
    });
    threads.into_inner().unwrap()
}

/// Returns the processor time of a thread in nanoseconds.
fn busy_ns(thread: &Path) -> u64 {
    fs::read_to_string(thread.join("schedstat")).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Returns true if a thread sleeps, by the state letter after its name.
fn is_asleep(thread: &Path) -> bool {
    let stat = fs::read_to_string(thread.join("stat")).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
}

#[cfg(target_os = "linux")]
#[test]
fn idle_threads_use_no_time_and_wake_for_the_next_job() {
    let pool = ThreadPool::new(THREADS);
    let own = PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap());
    let all = run_on_all(&pool);
    let workers: Vec<_> = all.iter().filter(|thread| **thread != own).collect();
    assert_eq!((all.len(), workers.len()), (THREADS, THREADS - 1));
    for _ in 0..3 {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !workers.iter().all(|worker| is_asleep(worker)) {
            assert!(Instant::now() < deadline, "the workers never sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
        let before: Vec<_> = workers.iter().map(|worker| busy_ns(worker)).collect();
        std::thread::sleep(Duration::from_millis(100));
        let after: Vec<_> = workers.iter().map(|worker| busy_ns(worker)).collect();
        assert_eq!(before, after, "a sleeping thread used processor time");
        assert_eq!(run_on_all(&pool), all, "other threads ran");
        assert!(workers.iter().zip(after).all(|(worker, idle)| busy_ns(worker) > idle));
    }
}

/// While the system clears memory for a prompt, all streams wait.
#[cfg(target_os = "linux")]
#[test]
fn prompts_of_a_warm_server_take_no_new_memory() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    let server = Server::of(&[model], &["--cache-memory", "0"]);
    let threads = fs::read_dir(format!("/proc/{}/task", server.program.id())).unwrap();
    let worker = threads
        .map(|thread| thread.unwrap().path())
        .find(|thread| fs::read_to_string(thread.join("comm")).unwrap().starts_with("weir-hourglass"))
        .unwrap();
    // the eighth field after the name
    let faults = || -> u64 {
        let stat = fs::read_to_string(worker.join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
    };
    let body = json!({ "prompt": "the river ".repeat(60), "max_tokens": 32 }).to_string();
    let ask = || http(&server.http(), "POST /v1/completions", "content-type: application/json\r\n", &body);
    (0..4).for_each(|_| assert_eq!(ask().0, 200));
    let before = faults();
    (0..16).for_each(|_| assert_eq!(ask().0, 200));
    let taken = faults() - before;
    // the outputs of one chunk are 64 pages
    assert!(taken < 16 * 16, "{taken} pages");
}

/// Calls at the same time, each with 4 MiB of text.
const CALLS: usize = 24;

/// Calls that run at least, each with 16 MiB of symbols.
const SCORES: usize = 4;

/// What may stay: the heaps, the buffers of the connection, and the keys and values of the rows.
const MAX_GROWTH: f64 = 60.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_large_requests_is_returned() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    let server = Server::start(&["--model", model.to_str().unwrap(), "--threads", "1"]);
    let Some(before) = server.resident_mib() else { return eprintln!("skipped: /proc does not report the memory") };
    let channel = server.endpoint().connect().await.unwrap();
    let windows = Some(Windows { length: 64, stride: 64 });
    let text = "the city ".repeat((4 << 20) / 9 - 100);
    let mut starting = JoinSet::new();
    for _ in 0..CALLS {
        let request = ScoreRequest { text: text.clone(), windows, ..Default::default() };
        let mut client = GenerationClient::new(channel.clone());
        starting.spawn(async move {
            let mut response = client.score(request).await?.into_inner();
            response.message().await.map(|_| response)
        });
    }
    // The limit of the memory of requests refuses the others.
    let running: Vec<_> = starting.join_all().await.into_iter().filter_map(Result::ok).collect();
    assert!(running.len() >= SCORES, "{} scores run", running.len());
    let during = server.resident_mib().unwrap();
    assert!(during > before + 16.0 * SCORES as f64, "{before} MiB, then {during}: the scores hold their symbols");
    drop(running);
    let deadline = Instant::now() + TIMEOUT;
    while server.metric("num_requests_running") != 0.0 {
        assert!(Instant::now() < deadline, "the scores go on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut after = server.resident_mib().unwrap();
    while after > before + MAX_GROWTH {
        assert!(Instant::now() < deadline, "{before} MiB before, {during} during, {after} after the requests");
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = server.resident_mib().unwrap();
    }
    eprintln!("{before} MiB before, {during} during, {after} after");
}
