//! A server in this process and its client in another, for what is measured over the wire.
//!
//! The server runs as `weir serve` runs it, on a free port of loopback; the client is a process of its own, this program
//! again, which reads all streams on one thread. Both share the machine's cores with the engine, so what they compute counts
//! in full where the engine uses all cores; a network would add its own time, and take the client elsewhere.

use crate::{
    config::Wire,
    engine::Handle,
    error::{Error, Result},
    serve::{
        self, Engines,
        client::streams::{Client, Read, Request},
    },
};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};
use tokio::{net::TcpListener, runtime::Runtime};

/// How long what is left of the server may take to stop.
const STOP: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(super) struct ClientArgs {
    /// Where the server listens.
    address: String,
}

/// An engine's server, and the client of it.
pub(super) struct Served {
    client: Process,
    /// None once it has stopped.
    runtime: Option<Runtime>,
}

impl Served {
    pub(super) fn start(engine: Handle) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::Internal(format!("no threads for the server: {error}")))?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(Error::io("127.0.0.1:0"))?;
        let address = listener.local_addr().map_err(Error::io("127.0.0.1:0"))?;
        let engines = Engines::new(vec![engine])?;
        // it ends with the runtime
        runtime.spawn(serve::run(listener, engines, std::future::pending(), Wire::default()));
        Ok(Self { client: Process::start(&address.to_string())?, runtime: Some(runtime) })
    }

    /// What the server's calls run on.
    pub(super) fn runtime(&self) -> Result<&Runtime> {
        self.runtime.as_ref().ok_or_else(|| Error::Internal("the server has stopped".into()))
    }

    /// Has the client make these requests, all at once, and read what they are answered.
    pub(super) fn ask(&mut self, requests: &[Request]) -> Result<Read> {
        self.client.generate(requests)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP);
        }
    }
}

/// The client's process: a line of requests in, a line of what was read out. It ends with its input, or when it is dropped.
struct Process {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(address: &str) -> Result<Self> {
        let program = std::env::current_exe().map_err(Error::io("this program"))?;
        let mut command = Command::new(&program);
        command.args(["bench", "stream-client", address]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io(program))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Internal("a process without pipes".into()));
        };
        Ok(Self { child, requests, answers: BufReader::new(answers) })
    }

    fn generate(&mut self, requests: &[Request]) -> Result<Read> {
        let line = serde_json::to_string(requests).map_err(|error| Error::Internal(error.to_string()))?;
        let mut answer = String::new();
        let asked = writeln!(self.requests, "{line}").and_then(|()| self.answers.read_line(&mut answer));
        let told = asked.map_err(Error::io("the client's process"))?;
        if told == 0 {
            return Err(Error::Setting("the client's process ended without an answer".into()));
        }
        serde_json::from_str(&answer).map_err(|error| Error::Internal(format!("the client's answer: {error}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // one that has ended already needs no end, and there is nobody to tell
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The client: answers each line of standard input.
pub(super) fn run_client(args: &ClientArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Internal(format!("no runtime for the client: {error}")))?;
    let client = runtime.block_on(Client::connect(&args.address))?;
    for line in std::io::stdin().lines() {
        let line = line.map_err(Error::io("standard input"))?;
        let wrong = |error: serde_json::Error| Error::Setting(format!("standard input: {error}"));
        let read = runtime.block_on(client.generate(serde_json::from_str(&line).map_err(wrong)?))?;
        let told = serde_json::to_value(&read).map_err(|error| Error::Internal(error.to_string()))?;
        super::output::json(&told)?;
    }
    Ok(())
}
