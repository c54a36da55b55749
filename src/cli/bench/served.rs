//! A server in this process and its client in another, for measurements over gRPC.
//!
//! The server runs as in `weir serve`, on a free loopback port. The client is this program in a second process; it reads all
//! streams on one thread. Server, client and engine share the machine's cores, so if the engine uses all cores, the times include
//! the full cost of server and client.

use crate::{
    cli::{model, output},
    report::stream::{StreamRequest, StreamRun},
};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, runtime::Runtime};
use weir_client::connection::{Client, ServerEndpoint};
use weir_engine::Handle;
use weir_kernels::error::{Error, Result};
use weir_proto::v1::{self, generate_response::Event};
use weir_server::{Engines, config::TransportConfig, run};

const STOP_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(super) struct ClientArgs {
    /// Address of the server.
    address: String,
}

/// A server for one engine, and its client process. That writes a line of results for each line of requests, and ends with its input or
/// on drop.
pub(super) struct LoopbackServer {
    child: Child,
    requests: ChildStdin,
    results: BufReader<ChildStdout>,
    /// `None` once the server has stopped.
    runtime: Option<Runtime>,
}

impl LoopbackServer {
    pub(super) fn start(engine: Handle) -> Result<Self> {
        let runtime = model::runtime()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(Error::io("127.0.0.1:0"))?;
        let address = listener.local_addr().map_err(Error::io("127.0.0.1:0"))?;
        let engines = Engines::new(vec![engine])?;
        // The task ends with the runtime.
        runtime.spawn(run::run(listener, engines, std::future::pending(), TransportConfig::default()));
        let program = std::env::current_exe().map_err(Error::io("this program"))?;
        let mut command = Command::new(&program);
        let address = address.to_string();
        command.args(["bench", "stream-client", &address]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io(program))?;
        let (Some(requests), Some(results)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Internal("the client process has no pipes".into()));
        };
        Ok(Self { child, requests, results: BufReader::new(results), runtime: Some(runtime) })
    }

    pub(super) fn runtime(&self) -> Result<&Runtime> {
        self.runtime.as_ref().ok_or_else(|| Error::Internal("the server has stopped".into()))
    }

    /// Lets the client send all requests at once and read their responses.
    pub(super) fn request(&mut self, requests: &[StreamRequest]) -> Result<StreamRun> {
        let line = serde_json::to_string(requests).map_err(|error| Error::Internal(error.to_string()))?;
        let mut result = String::new();
        let sent = writeln!(self.requests, "{line}").and_then(|()| self.results.read_line(&mut result));
        if sent.map_err(Error::io("the client process"))? == 0 {
            return Err(Error::Setting("the client process ended without a result".into()));
        }
        serde_json::from_str(&result).map_err(|error| Error::Internal(format!("result of the client process: {error}")))
    }
}

impl Drop for LoopbackServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
        // Fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the client: sends the requests in each line of standard input.
pub(super) fn run_client(args: &ClientArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Internal(format!("the client runtime cannot be started: {error}")))?;
    let server = ServerEndpoint { address: args.address.clone(), ..ServerEndpoint::default() };
    let client = runtime.block_on(server.connect())?;
    for line in std::io::stdin().lines() {
        let line = line.map_err(Error::io("standard input"))?;
        let wrong = |error: serde_json::Error| Error::Setting(format!("standard input: {error}"));
        let read = runtime.block_on(generate(&client, serde_json::from_str(&line).map_err(wrong)?))?;
        output::json(&serde_json::to_value(&read).map_err(|error| Error::Internal(error.to_string()))?)?;
    }
    Ok(())
}

/// Sends all requests at once and reads each stream to its end. Fails with [`Error::Setting`], which holds the
/// server's answer, if the server rejects a request.
async fn generate(client: &Client, requests: Vec<StreamRequest>) -> Result<StreamRun> {
    let begun = Instant::now();
    let spawn = |request| tokio::spawn(read_stream(client.clone(), request));
    let streams: Vec<_> = requests.into_iter().map(spawn).collect();
    let mut read = StreamRun::default();
    for stream in streams {
        let lost = |error| Error::Internal(format!("a stream's reader: {error}"));
        let StreamRun { texts, messages, cached_chars, .. } = stream.await.map_err(lost)??;
        read.texts.extend(texts);
        read.messages += messages;
        read.cached_chars += cached_chars;
    }
    read.ns = begun.elapsed().as_nanos() as f64;
    Ok(read)
}

/// Reads one stream. Leaves the time to the caller.
async fn read_stream(client: Client, request: StreamRequest) -> Result<StreamRun> {
    let StreamRequest { prompt, seed, chars } = request;
    let sampling = Some(v1::Sampling { seed: Some(seed), ..Default::default() });
    let stopping = Some(v1::Stopping { max_chars: Some(chars), ..Default::default() });
    let request = v1::GenerateRequest { prompt, sampling, stopping, ..Default::default() };
    let mut stream = client.generate(request).await?;
    let mut result = StreamRun { texts: vec![String::new()], ..StreamRun::default() };
    while let Some(message) = stream.next().await? {
        result.messages += 1;
        match message.event {
            Some(Event::Started(started)) => result.cached_chars = started.cached_chars,
            Some(Event::Piece(piece)) => result.texts[0] += &piece.text,
            Some(Event::Finished(_)) | None => {}
        }
    }
    Ok(result)
}
