//! A stub server in memory on the test's own clock, and loads for it.

use crate::*;
use hyper_util::rt::TokioIo;
use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use weir_client::connection::Client;
use weir_loadtest::client::ConnectionPool;
use weir_loadtest::schedule::ScheduledRequest;
use weir_loadtest::stats::{RequestFigures, RequestStats};
use weir_loadtest::workload::{Length, WorkloadKind};

/// Relative error that the documentation promises for known delays.
pub(crate) const TOLERANCE: f64 = 0.02;

#[track_caller]
pub(crate) fn near(actual: Option<f64>, expected: Duration, what: &str) {
    let actual = actual.unwrap_or_else(|| panic!("{what}: no value"));
    let expected = expected.as_nanos() as f64;
    assert!((actual / expected - 1.0).abs() <= TOLERANCE, "{what}: {actual} ns, not {expected}");
}

/// Time limit of requests and of programs in tests that do not test it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// Connects to a stub in memory. With a paused clock, nothing but the stub's delays takes time.
pub(crate) async fn connect(stub: &Stub) -> Channel {
    let (client, server) = tokio::io::duplex(1 << 20);
    // the server would close the connection when its listener ends
    let incoming = tokio_stream::once(Ok::<_, io::Error>(server)).chain(tokio_stream::pending());
    tokio::spawn(stub.clone().serve(incoming, pending()));
    let client = Arc::new(Mutex::new(Some(client)));
    let connector = tower::service_fn(move |_| {
        let client = client.lock().unwrap().take();
        async move { client.map(TokioIo::new).ok_or_else(|| io::Error::other("connected twice")) }
    });
    Endpoint::from_static("http://stub").connect_with_connector(connector).await.unwrap()
}

pub(crate) async fn target(stub: &Stub, model: &str, boundaries: bool) -> RequestTarget {
    let pool = ConnectionPool::new(vec![Client::of_channel(connect(stub).await, "stub")]);
    RequestTarget { pool, model: model.into(), boundaries, timeout: TIMEOUT }
}

pub(crate) fn spec(output: u64) -> WorkloadSpec {
    WorkloadSpec {
        name: "test".into(),
        kind: WorkloadKind::Generate,
        weight: 1.0,
        files: Vec::new(),
        prompt: Length::Fixed(20),
        output: Length::Fixed(output),
        rate: 10.0,
        pause: Duration::ZERO,
        max_symbols: 1 << 20,
    }
}

/// Load on a stub: an open loop with constant arrivals on the test's clock, or a closed loop if `rate` is absent.
pub(crate) struct Test {
    pub(crate) stub: Stub,
    pub(crate) output: u64,
    pub(crate) rate: Option<f64>,
    pub(crate) concurrency: usize,
    pub(crate) extent: RunLength,
    pub(crate) objectives: &'static str,
    pub(crate) max_in_flight: usize,
    pub(crate) timeout: Duration,
}

impl Test {
    pub(crate) fn new(script: Script, output: u64) -> Self {
        Self {
            stub: Stub::new(vec![script]),
            output,
            rate: None,
            concurrency: 1,
            extent: RunLength { warm_up: Duration::ZERO, duration: Some(Duration::from_secs(10)), requests: None },
            objectives: "",
            max_in_flight: 1 << 16,
            timeout: TIMEOUT,
        }
    }

    pub(crate) async fn drive(self) -> (LoadResult, RequestFigures) {
        let target = RequestTarget { timeout: self.timeout, ..target(&self.stub, "", true).await };
        let mix = WorkloadMix::new(vec![spec(self.output)], 1).unwrap();
        let objectives = match self.objectives {
            "" => Objectives::default(),
            some => some.parse().unwrap(),
        };
        let job = Arc::new(LoadSetup { target, mix, objectives });
        let begin = Instant::now();
        let source = match self.rate {
            None => RequestSource::Closed(self.concurrency),
            Some(rate) => {
                RequestSource::Open { requests: paced(rate, self.extent, begin), max_in_flight: self.max_in_flight }
            }
        };
        let (_never, stop) = watch::channel(false);
        let run = LoadRun { length: self.extent, begin, source, stop, probe_lag: false };
        let result = run_load(job, run, &mut |_| {}).await.unwrap();
        let mut all = RequestStats::new(true);
        result.stats.iter().for_each(|stats| all.merge(stats));
        (result, all.figures())
    }
}

/// Delivers the requests of a schedule by the runtime's timers, which stop with the clock.
fn paced(rate: f64, length: RunLength, begin: Instant) -> mpsc::Receiver<ScheduledRequest> {
    let (sender, receiver) = mpsc::channel(1 << 10);
    let schedule = (0..).map(move |count| Duration::from_secs_f64(f64::from(count) / rate));
    let requests: Vec<_> = length.requests_of(schedule, begin).collect();
    tokio::spawn(async move {
        for scheduled in requests {
            tokio::time::sleep_until(scheduled.intended).await;
            if sender.send(scheduled).await.is_err() {
                break;
            }
        }
    });
    receiver
}

/// Stub that serves until it is dropped.
pub(crate) struct ServedStub {
    pub(crate) address: String,
    pub(crate) stub: Stub,
    _runtime: Runtime,
}

pub(crate) fn serve(scripts: Vec<Script>) -> ServedStub {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stub = Stub::new(scripts);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(stub.clone().serve(TcpIncoming::from(listener).with_nodelay(Some(true)), pending()));
    ServedStub { address, stub, _runtime: runtime }
}

impl ServedStub {
    /// Returns the program with a command line that is split at spaces. `@` stands for the stub's address.
    pub(crate) fn command(&self, line: &str) -> Command {
        command(line.replace('@', &self.address).split(' '))
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs a command line that must succeed, and returns the report that it writes as JSON.
    #[track_caller]
    pub(crate) fn report(&self, line: &str) -> Value {
        let output = self.run(&format!("{line} --json -"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs a command line that must fail, and returns its stderr.
    #[track_caller]
    pub(crate) fn failure(&self, line: &str) -> String {
        let output = self.run(line);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{line}: {stderr}");
        stderr
    }
}

pub(crate) fn command(arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-loadtest"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program, interrupts it as Ctrl-C does once `condition` holds, and returns its output.
#[cfg(unix)]
pub(crate) fn run_interrupted(command: &mut Command, condition: impl Fn() -> bool) -> Output {
    let mut child = command.spawn().unwrap();
    wait(&mut child, condition);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap()
}

pub(crate) fn script(name: &str) -> Script {
    Script { first: ms(20), plain: ms(2), boundary: ms(4), segment: 4, rows: 4, ..Script::instant(name) }
}

/// Waits until `condition` holds; kills the program and panics if it does not within a minute.
pub(crate) fn wait(child: &mut Child, condition: impl Fn() -> bool) {
    let started = Instant::now();
    let (_sender, receiver) = std::sync::mpsc::sync_channel::<()>(0);
    while !condition() {
        if started.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("the condition did not hold within {TIMEOUT:?}");
        }
        let _ = receiver.recv_timeout(ms(10));
    }
}
