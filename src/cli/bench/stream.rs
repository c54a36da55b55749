//! What a stream over the wire costs: one engine, read in turns by tasks of this process and by a client over gRPC.
//!
//! The server runs in this process as `weir serve` runs it, on a free port of loopback; the client is a process of its own,
//! this program again, which reads all streams on one thread. Both share the machine's cores with the engine, so what they
//! compute counts in full where the engine uses all cores; a network would add its own time, and take the client elsewhere.

use super::{Compute, Setup, Told, count, each, table};
use crate::{
    config::Wire,
    decode::{contract::Model, options::Generate},
    engine::handle::{Event, Events, Handle, Job, Limits},
    error::{Error, Result},
    family::load::MAX_SYMBOLS,
    report::{
        compare::MAX_PAIRS,
        head::Head,
        stream::{Asked, Entry, MAX_BATCH, Plan, Run},
    },
    serve::{
        self, Engines,
        streams::{Client, Read, Request},
    },
    text::TextStream,
};
use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, runtime::Runtime};

/// How long what is left of the server may take to stop.
const STOP: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(super) struct StreamArgs {
    /// The checkpoint's folder.
    #[arg(long, value_name = "DIR", env = "WEIR_MODEL")]
    model: PathBuf,
    /// Requests at a time; several numbers are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16", allow_negative_numbers = true,
        value_parser = count(1..=MAX_BATCH))]
    batch: Vec<usize>,
    /// Symbols of each prompt; their prefill is part of a run.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true,
        value_parser = count(1..=MAX_SYMBOLS))]
    context: usize,
    /// Characters that each request generates.
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true,
        value_parser = count(1..=MAX_SYMBOLS))]
    chars: usize,
    /// Pairs of runs, one in the process and one over the wire, after one pair that is not timed.
    #[arg(long, value_name = "N", default_value_t = 11, allow_negative_numbers = true,
        value_parser = count(1..=MAX_PAIRS))]
    pairs: usize,
    #[command(flatten)]
    compute: Compute,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ClientArgs {
    /// Where the server listens.
    address: String,
}

pub(super) fn run_stream(args: &StreamArgs) -> Result<()> {
    let StreamArgs { context, chars, pairs, .. } = *args;
    let plans: Vec<_> = args.batch.iter().map(|&batch| Plan { batch, context, chars, pairs }).collect();
    let mut entries = Vec::new();
    for setup in args.compute.setups() {
        entries.extend(measure(setup, args, &plans)?);
    }
    Told { json: args.json, plot: None }.tell(None, &entries, table::stream)
}

fn measure(setup: Setup, args: &StreamArgs, plans: &[Plan]) -> Result<Vec<Entry>> {
    let ([model], machine) = setup.load([&args.model])?;
    let card = model.card();
    plans.iter().try_for_each(|plan| plan.check(card))?;
    let rows = plans.iter().map(|plan| plan.batch).max().unwrap_or(1).max(Limits::default().rows);
    let mut bench = Bench::start(Handle::start(model.clone(), Limits { rows, ..Limits::default() })?)?;
    each(plans.to_vec(), |plan| {
        let asked = plan.asked(card);
        let mut pair = || Ok((bench.in_process(&*model, plan, &asked)?, bench.served(plan, &asked)?));
        pair()?;
        let runs = (0..plan.pairs).map(|_| pair()).collect::<Result<Vec<_>>>()?;
        Entry::new(Head::new(card, &machine), plan, &runs)
    })
}

/// An engine, the server in front of it, and its client.
struct Bench {
    client: Process,
    engine: Handle,
    /// None once it has stopped.
    runtime: Option<Runtime>,
}

impl Bench {
    fn start(engine: Handle) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::Internal(format!("no threads for the server: {error}")))?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(Error::io("127.0.0.1:0"))?;
        let address = listener.local_addr().map_err(Error::io("127.0.0.1:0"))?;
        let engines = Engines::new(vec![engine.clone()])?;
        // it ends with the runtime
        runtime.spawn(serve::run(listener, engines, std::future::pending(), Wire::default()));
        Ok(Self { client: Process::start(&address.to_string())?, engine, runtime: Some(runtime) })
    }

    /// Submits all requests and reads their events, each on a task of its own, as the server does.
    fn in_process(&self, model: &dyn Model, plan: Plan, asked: &[Asked]) -> Result<Run> {
        let card = model.card();
        let jobs = asked.iter().map(|asked| plan.job(asked, card)).collect::<Result<Vec<_>>>()?;
        let runtime = self.runtime.as_ref().ok_or_else(|| Error::Internal("the server has stopped".into()))?;
        let begun = Instant::now();
        let told = runtime.block_on(self.generate(jobs))?;
        let ns = begun.elapsed().as_nanos() as f64;
        let messages = told.iter().map(|told| told.messages).sum();
        let text = |told: Heard| {
            let mut stream = TextStream::new(card.vocabulary.clone());
            let mut text: String = told.symbols.iter().map(|&symbol| stream.push(symbol).to_owned()).collect();
            text += stream.finish();
            text
        };
        Ok(Run { ns, texts: told.into_iter().map(text).collect(), messages })
    }

    async fn generate(&self, jobs: Vec<Generate>) -> Result<Vec<Heard>> {
        let submit = |job| self.engine.submit(Job::Generate(job), None);
        let readers: Vec<_> =
            jobs.into_iter().map(|job| Ok(tokio::spawn(hear(submit(job)?)))).collect::<Result<_>>()?;
        let mut told = Vec::with_capacity(readers.len());
        for reader in readers {
            told.push(reader.await.map_err(|error| Error::Internal(format!("a reader: {error}")))??);
        }
        Ok(told)
    }

    /// Has the client ask for the same.
    fn served(&mut self, plan: Plan, asked: &[Asked]) -> Result<Run> {
        let chars = u32::try_from(plan.chars).unwrap_or(u32::MAX);
        let request = |asked: &Asked| Request { prompt: asked.prompt.clone(), seed: asked.seed, chars };
        let Read { ns, texts, messages } = self.client.generate(&asked.iter().map(request).collect::<Vec<_>>())?;
        Ok(Run { ns: ns as f64, texts, messages })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP);
        }
    }
}

/// What an engine said.
#[derive(Default)]
struct Heard {
    symbols: Vec<u32>,
    messages: usize,
}

async fn hear(mut events: Events) -> Result<Heard> {
    let mut told = Heard::default();
    while let Some(event) = events.recv().await {
        told.messages += 1;
        match event? {
            Event::Started { .. } => {}
            Event::Characters(characters) => told.symbols.extend(characters.iter().map(|character| character.symbol)),
            Event::Finished { .. } => return Ok(told),
        }
    }
    Err(Error::Internal("the engine ended without an answer".into()))
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
