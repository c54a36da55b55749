//! `weir-loadtest stub`, a server with known delays to check the tester's figures; and `self-test`, which measures how fast the
//! tester reads. Its server sends messages as fast as it can.
//!
//! The server is a second process of this program. The tester reads on one thread, with the code that measures. The result is
//! messages per second of that thread's processor time: what the tester would read with a core of its own.

use super::{
    load_args::{MAX_IN_FLIGHT, check_in_flight},
    output,
    server::runtime,
};
use crate::{
    client::connection::ConnectOptions,
    error::{Error, Result},
    load::{
        driver::{LoadRun, LoadSetup, RequestSource, run_load},
        mix::WorkloadMix,
        schedule::RunLength,
        workload::{RequestTarget, WorkloadSpec},
    },
    measure::{
        counters::CounterDelta,
        objective::Objectives,
        tester::{CpuClock, MIN_CPU_SHARE},
    },
    stub::{Script, Stub},
    units,
};
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch, time::Instant};
use tonic::transport::server::TcpIncoming;

/// Characters of each answer.
const CHARS: u64 = 2000;
/// Time limit of an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures the tester itself.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    /// Duration of the measurement.
    #[arg(long, value_name = "TIME", default_value = "3s", allow_hyphen_values = true, value_parser = units::duration)]
    duration: Duration,
    /// Streams at a time.
    #[arg(long, value_name = "N", default_value_t = 16)]
    streams: usize,
    /// Time between messages of a stream; 0 sends as fast as possible. Many streams with a gap resemble a server that steps them
    /// together.
    #[arg(long, value_name = "TIME", default_value = "0", allow_hyphen_values = true, value_parser = units::duration_or_zero)]
    gap: Duration,
    /// Fail if a core reads fewer messages per second than this. Also fail if the load was too small to show it: fewer messages
    /// per second arrived, and the reader used less than a quarter of a core.
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    at_least: f64,
}

pub(super) fn run(args: Args) -> Result<()> {
    check_in_flight("--streams", args.streams)?;
    let server = StubProcess::start(args.gap)?;
    let runtime = runtime(1)?;
    let before = CpuClock::Thread.read();
    let window = runtime.block_on(read(server.address, &args))?;
    let cpu = CpuClock::Thread.since(before).map(|cpu| cpu.as_secs_f64());
    let messages = window.counts.messages;
    let seconds = window.span.as_secs_f64();
    let arrived = messages as f64 / seconds;
    output::print(&format!(
        "{messages} messages of {} streams in {seconds:.2} s: {} messages/s next to the sending server, on this machine now\n",
        args.streams,
        units::digits(arrived)
    ))?;
    let Some(rate) = cpu.filter(|cpu| *cpu > 0.0).map(|cpu| messages as f64 / cpu) else {
        return Err(Error::Setting("this system does not report a thread's processor time".into()));
    };
    let share = arrived / rate;
    let percent = units::digits(share * 100.0);
    let result = if share < MIN_CPU_SHARE {
        "the load is too small to show what a core could read".into()
    } else {
        format!("{} messages/s on a core of its own (messages by seconds of processor time)", units::digits(rate))
    };
    output::print(&format!("{percent} % of a core; {result}\n"))?;
    let least = args.at_least;
    if rate < least {
        return Err(Error::Setting(format!("{rate:.0} messages/s are fewer than --at-least {least}")));
    }
    if arrived < least && share < MIN_CPU_SHARE {
        return Err(Error::Setting(format!(
            "{arrived:.0} messages/s at {percent} % of a core do not show whether it reads --at-least {least}: use more --streams or a \
             shorter --gap"
        )));
    }
    Ok(())
}

/// Reads for the duration of the test. Returns the changes of the counters.
async fn read(address: SocketAddr, args: &Args) -> Result<CounterDelta> {
    let pool = ConnectOptions { address: address.to_string(), ..ConnectOptions::default() }.pool(1).await?;
    let target = RequestTarget { pool, model: String::new(), boundaries: true, timeout: TIMEOUT };
    let mix = WorkloadMix::new(&[WorkloadSpec::fixed("self-test", 16, CHARS)], 1, 0.0)?;
    let job = Arc::new(LoadSetup { target, mix, objectives: Objectives::default() });
    let duration = args.duration;
    let (end, stop) = watch::channel(false);
    // interrupts the answers at the end, because with a gap they last longer than the measurement
    let ending = tokio::spawn(async move {
        tokio::time::sleep(duration).await;
        let _ = end.send(true);
        std::future::pending::<()>().await;
    });
    let length = RunLength { warm_up: Duration::ZERO, duration: None, requests: None };
    let source = RequestSource::Closed(args.streams);
    let run = LoadRun { length, begin: Instant::now(), source, stop, probe_lag: false };
    let result = run_load(job, run, &mut |_| {}).await?;
    ending.abort();
    for stats in &result.stats {
        let errors = stats.figures().requests.errors;
        if !errors.is_empty() {
            return Err(Error::Internal(format!("the stub server failed: {errors:?}")));
        }
    }
    Ok(result.window)
}

/// Process of the server, killed on drop.
struct StubProcess {
    child: Child,
    address: SocketAddr,
}

impl StubProcess {
    fn start(gap: Duration) -> Result<Self> {
        let program = std::env::current_exe().map_err(Error::io("this program"))?;
        let mut command = Command::new(&program);
        command.args(["stub", "--attached", "--listen", "127.0.0.1:0", "--gap", &format!("{}ns", units::ns(gap))]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(Error::io(&program))?;
        let out = child.stdout.take();
        // from here on the child is killed if anything fails
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let mut line = String::new();
        let read = out.map(|out| BufReader::new(out).read_line(&mut line));
        read.transpose().map_err(Error::io("the stub server"))?;
        let address = line.trim().strip_prefix(LISTENING).and_then(|address| address.parse().ok());
        let silent = || Error::Internal("the stub server did not print its address".into());
        server.address = address.ok_or_else(silent)?;
        Ok(server)
    }
}

impl Drop for StubProcess {
    fn drop(&mut self) {
        // fails only if the process has ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Text that the stub prints before its address.
const LISTENING: &str = "listening on ";

/// Serves placeholder text with known delays.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct StubArgs {
    /// Address to listen on. Port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50052", value_parser = listen_address)]
    listen: SocketAddr,
    /// Time to the first character, from the moment at which one of the --rows is free for the request.
    #[arg(long, value_name = "TIME", default_value = "0", allow_hyphen_values = true, value_parser = units::duration_or_zero)]
    first: Duration,
    /// Time from each character to the next.
    #[arg(long, value_name = "TIME", default_value = "0", allow_hyphen_values = true, value_parser = units::duration_or_zero)]
    gap: Duration,
    /// Time before a character that ends a segment [default: --gap].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration_or_zero, requires = "segment")]
    boundary_gap: Option<Duration>,
    /// Characters per segment. Default: no segments, as in a model that does not pool.
    #[arg(long, value_name = "N")]
    segment: Option<u64>,
    /// Requests that run at once; others wait in order of arrival.
    #[arg(long, value_name = "N", default_value_t = MAX_IN_FLIGHT)]
    rows: usize,
    /// Time from the start of the server to a pause in all its answers.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration_or_zero, requires = "pause_for")]
    pause_after: Option<Duration>,
    /// Duration of that pause.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration, requires = "pause_after")]
    pause_for: Option<Duration>,
    /// End when standard input ends, because the process that started the stub is then gone.
    #[arg(long, hide = true)]
    attached: bool,
}

/// Parses an address to listen on. The error says what is expected.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an IP address with a port, such as 127.0.0.1:50052".to_owned())
}

impl StubArgs {
    fn script(&self) -> Result<Script> {
        check_in_flight("--rows", self.rows)?;
        if self.segment == Some(0) {
            return Err(Error::option("--segment", 0, "at least 1"));
        }
        Ok(Script {
            first: self.first,
            plain: self.gap,
            boundary: self.boundary_gap.unwrap_or(self.gap),
            segment: self.segment.unwrap_or(0),
            rows: self.rows,
            pause: self.pause_after.zip(self.pause_for).map(|(after, span)| (after, after + span)),
            ..Script::instant("stub")
        })
    }
}

pub(super) fn run_stub(args: StubArgs) -> Result<()> {
    let script = args.script()?;
    runtime(1)?.block_on(async {
        let failed = |error| Error::Setting(format!("--listen: cannot listen on {}: {error}", args.listen));
        let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        output::print(&format!("{LISTENING}{address}\n"))?;
        let end = async {
            if !args.attached {
                return std::future::pending().await;
            }
            // a read error counts as the end of standard input
            let _ = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await;
        };
        let served = Stub::new(vec![script]).serve(TcpIncoming::from(listener).with_nodelay(Some(true)), end);
        served.await.map_err(|error| Error::Internal(format!("the stub server: {error}")))
    })
}
