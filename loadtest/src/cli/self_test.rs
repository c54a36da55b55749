//! `weir-loadtest self-test`: how fast the tester reads, against a server that makes nothing but messages.
//!
//! The server is this program again, in a process of its own; the tester reads on one thread, by the code that measures. What
//! counts is messages by seconds of that thread's processor time: what it would do with a core of its own.

use super::{output, runtime, stub::LISTENING};
use crate::{
    client::connection::ConnectOptions,
    error::{Error, Result},
    load::{
        driver::{LoadSetup, RequestSource, run_load},
        length::Length,
        schedule::RunLength,
        workload::{PromptSource, RequestTarget, WorkloadMix, WorkloadSpec},
    },
    measure::{
        objective::Objectives,
        tester::{self, TELLING},
    },
    units,
};
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// Characters of each answer.
const CHARS: u64 = 2000;
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures the tester itself.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How long to measure.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::duration)]
    duration: Duration,
    /// Streams at a time.
    #[arg(long, value_name = "N", default_value_t = 16)]
    streams: usize,
    /// How long each stream's messages are apart; 0: they come as fast as they can be made. Many streams with a gap come as
    /// those of a server do that steps them together.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::span)]
    gap: Duration,
    /// Fail if a core reads fewer messages a second than this, or if it was not busy enough to tell: that many have to come, or a quarter
    /// of a core has to be used.
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    at_least: f64,
}

pub(super) fn run(args: Args) -> Result<()> {
    super::run_length::in_flight("--streams", args.streams)?;
    let server = StubProcess::start(args.gap)?;
    let runtime = runtime(1)?;
    let before = tester::thread_cpu();
    let (messages, seconds) = runtime.block_on(read(server.address, &args))?;
    let spent = tester::thread_cpu().zip(before).map(|(now, then)| (now - then).as_secs_f64());
    let told = spent.filter(|spent| *spent > 0.0).map(|spent| messages as f64 / spent);
    output::write(&format!(
        "{messages} messages of {} streams in {seconds:.2} s: {} messages/s beside the server that makes them, on this machine now\n",
        args.streams,
        units::digits(messages as f64 / seconds)
    ))?;
    let Some(rate) = told else {
        return Err(Error::Setting("this system does not tell a thread's processor time".into()));
    };
    let (came, share) = (messages as f64 / seconds, messages as f64 / rate / seconds);
    let percent = units::digits(share * 100.0);
    let told = match share >= TELLING {
        true => {
            format!("{} messages/s on a core of its own (messages by seconds of processor time)", units::digits(rate))
        }
        false => "what a core could read is not told by so small a load".into(),
    };
    output::write(&format!("{percent} % of a core; {told}\n"))?;
    let least = args.at_least;
    if rate < least {
        return Err(Error::Setting(format!("{rate:.0} messages/s are fewer than --at-least {least}")));
    }
    if came < least && share < TELLING {
        return Err(Error::Setting(format!(
            "{came:.0} messages/s at {percent} % of a core do not tell whether it reads --at-least {least}: give it more --streams, or a \
             shorter --gap"
        )));
    }
    Ok(())
}

/// Reads for as long as asked; messages, and how long that took.
async fn read(address: SocketAddr, args: &Args) -> Result<(u64, f64)> {
    let pool = ConnectOptions { address: address.to_string(), ..ConnectOptions::default() }.pool(1).await?;
    let target = RequestTarget { pool, model: String::new(), boundaries: true, timeout: TIMEOUT };
    let spec = WorkloadSpec {
        name: "self-test".into(),
        kind: "generate".into(),
        model: None,
        pools: false,
        weight: 1.0,
        files: Vec::new(),
        prompts: PromptSource::Parts(Length::Fixed(16)),
        output: Length::Fixed(CHARS),
        shared_prefix: 0,
        prefixes: 1,
        temperature: None,
        chunk_chars: 1,
        beam: None,
        max_symbols: 1 << 20,
        seed: 1,
    };
    let job =
        Arc::new(LoadSetup { target, mix: WorkloadMix::new(&[spec], 1, 0.0)?, objectives: Objectives::default() });
    let duration = args.duration;
    let extent = RunLength { warm_up: Duration::ZERO, duration: None, requests: None };
    let (end, stop) = watch::channel(false);
    let begin = Instant::now();
    // answers are cut at the end: with a gap they last longer than the measurement
    let ending = tokio::spawn(async move {
        tokio::time::sleep(duration).await;
        let _ = end.send(true);
        std::future::pending::<()>().await;
    });
    let driven =
        run_load(job, (extent, begin), RequestSource::Closed(args.streams), (stop, false), &mut |_| {}).await?;
    ending.abort();
    for tally in &driven.tallies {
        let errors = tally.figures()?.requests.errors;
        if !errors.is_empty() {
            return Err(Error::Internal(format!("the stub server failed: {errors:?}")));
        }
    }
    Ok((driven.window.counts[1], driven.window.span.as_secs_f64()))
}

/// The server's process: killed when it is dropped.
struct StubProcess {
    child: Child,
    address: SocketAddr,
}

impl StubProcess {
    fn start(gap: Duration) -> Result<Self> {
        let program = std::env::current_exe().map_err(Error::io("this program"))?;
        let mut command = Command::new(&program);
        let gap = format!("{}ns", units::ns(gap));
        command
            .args(["stub", "--attached", "--listen", "127.0.0.1:0", "--gap", &gap])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io(&program))?;
        let out = child.stdout.take();
        // from here on it is killed if anything fails
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let mut line = String::new();
        let told = out.map(|out| BufReader::new(out).read_line(&mut line));
        told.transpose().map_err(Error::io("the stub server"))?;
        let address = line.trim().strip_prefix(LISTENING).and_then(|address| address.parse().ok());
        let silent = || Error::Internal("the stub server did not say where it listens".into());
        server.address = address.ok_or_else(silent)?;
        Ok(server)
    }
}

impl Drop for StubProcess {
    fn drop(&mut self) {
        // one that has ended already needs no end, and there is nobody to tell
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
