//! `weir bench stream`: overhead of gRPC streaming. Tasks of this process and a gRPC client take turns reading from one engine.

use super::{
    served::LoopbackServer,
    setup::{BenchCompute, BenchOutput, Setup, measure_each},
    table,
};
use crate::{
    cli::model::count,
    decode::{contract::Model, options::Generate},
    engine::{Event, Events, Handle, Job, Limits},
    error::{Error, Result},
    family::load::MAX_SYMBOLS,
    report::{
        compare::MAX_PAIRS,
        machine::MeasuredModel,
        stream::{MAX_BATCH, StreamMeasurement, StreamPlan, StreamRequest, StreamRun},
    },
    serve::client::streams::{PromptRequest, TimedResponses},
    text::StreamDetokenizer,
};
use std::{path::PathBuf, time::Instant};

#[derive(Debug, clap::Args)]
pub(super) struct StreamArgs {
    /// Checkpoint folder.
    #[arg(long, value_name = "DIR", env = "WEIR_MODEL")]
    model: PathBuf,
    /// Concurrent requests. Several numbers are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16", allow_negative_numbers = true,
        value_parser = count(1..=MAX_BATCH))]
    batch: Vec<usize>,
    /// Symbols of each prompt. A run includes the prefill.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true,
        value_parser = count(1..=MAX_SYMBOLS))]
    context: usize,
    /// Characters to generate per request.
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true,
        value_parser = count(1..=MAX_SYMBOLS))]
    chars: usize,
    /// Timed pairs of runs, one inside the process and one over gRPC, after one warm-up pair.
    #[arg(long, value_name = "N", default_value_t = 11, allow_negative_numbers = true,
        value_parser = count(1..=MAX_PAIRS))]
    pairs: usize,
    #[command(flatten)]
    compute: BenchCompute,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run_stream(args: &StreamArgs) -> Result<()> {
    let StreamArgs { context, chars, pairs, .. } = *args;
    let plans: Vec<_> = args.batch.iter().map(|&batch| StreamPlan { batch, context, chars, pairs }).collect();
    let mut entries = Vec::new();
    for setup in args.compute.setups() {
        entries.extend(measure(setup, args, &plans)?);
    }
    BenchOutput { json: args.json, plot: None }.print(None, &entries, table::stream)
}

fn measure(setup: Setup, args: &StreamArgs, plans: &[StreamPlan]) -> Result<Vec<StreamMeasurement>> {
    let ([model], machine) = setup.load([&args.model])?;
    let card = model.card();
    plans.iter().try_for_each(|plan| plan.check(card))?;
    let rows = plans.iter().map(|plan| plan.batch).max().unwrap_or(1).max(Limits::default().rows);
    let mut bench = Bench::start(Handle::start(model.clone(), Limits { rows, ..Limits::default() })?)?;
    measure_each(plans.to_vec(), |plan| {
        let prompts = plan.requests(card);
        let mut pair = || Ok((bench.in_process(&*model, plan, &prompts)?, bench.served(plan, &prompts)?));
        pair()?;
        let runs = (0..plan.pairs).map(|_| pair()).collect::<Result<Vec<_>>>()?;
        StreamMeasurement::new(MeasuredModel::new(card, &machine), plan, &runs)
    })
}

/// An engine, and the server in front of it.
struct Bench {
    served: LoopbackServer,
    engine: Handle,
}

impl Bench {
    fn start(engine: Handle) -> Result<Self> {
        Ok(Self { served: LoopbackServer::start(engine.clone())?, engine })
    }

    /// Submits all requests and reads the events of each on its own task, as the server does.
    fn in_process(&self, model: &dyn Model, plan: StreamPlan, prompts: &[StreamRequest]) -> Result<StreamRun> {
        let card = model.card();
        let jobs = prompts.iter().map(|prompt| plan.engine_request(prompt, card)).collect::<Result<Vec<_>>>()?;
        let runtime = self.served.runtime()?;
        let begun = Instant::now();
        let received = runtime.block_on(self.generate(jobs))?;
        let ns = begun.elapsed().as_nanos() as f64;
        let messages = received.iter().map(|received| received.messages).sum();
        let text = |received: Received| {
            let mut stream = StreamDetokenizer::new(card.vocabulary.clone());
            let mut text: String = received.symbols.iter().map(|&symbol| stream.push(symbol).to_owned()).collect();
            text += stream.finish();
            text
        };
        Ok(StreamRun { ns, texts: received.into_iter().map(text).collect(), messages })
    }

    async fn generate(&self, jobs: Vec<Generate>) -> Result<Vec<Received>> {
        let submit = |job| self.engine.submit(Job::Generate(job), None);
        let readers: Vec<_> =
            jobs.into_iter().map(|job| Ok(tokio::spawn(read_events(submit(job)?)))).collect::<Result<_>>()?;
        let mut received = Vec::with_capacity(readers.len());
        for reader in readers {
            received.push(reader.await.map_err(|error| Error::Internal(format!("a reader task failed: {error}")))??);
        }
        Ok(received)
    }

    /// Lets the client send the same requests.
    fn served(&mut self, plan: StreamPlan, prompts: &[StreamRequest]) -> Result<StreamRun> {
        let chars = u32::try_from(plan.chars).unwrap_or(u32::MAX);
        let request =
            |prompt: &StreamRequest| PromptRequest { prompt: prompt.prompt.clone(), seed: prompt.seed, chars };
        let requests: Vec<_> = prompts.iter().map(request).collect();
        let TimedResponses { ns, texts, messages, .. } = self.served.request(&requests)?;
        Ok(StreamRun { ns: ns as f64, texts, messages })
    }
}

/// Events of one request.
#[derive(Default)]
struct Received {
    symbols: Vec<u32>,
    messages: usize,
}

async fn read_events(mut events: Events) -> Result<Received> {
    let mut received = Received::default();
    while let Some(event) = events.recv().await {
        received.messages += 1;
        match event? {
            Event::Started { .. } | Event::Document(_) => {}
            Event::Characters(characters) => {
                received.symbols.extend(characters.iter().map(|character| character.symbol));
            }
            Event::Finished { .. } => return Ok(received),
        }
    }
    Err(Error::Internal("the engine ended before the request finished".into()))
}
