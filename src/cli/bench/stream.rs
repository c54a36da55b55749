//! `weir bench stream` and `resume`, measured by a gRPC client: the overhead of streaming, for which tasks of this process and the
//! client take turns reading from one engine; and the time to the first character with and without a cached prefix.

use crate::{
    cli::{
        bench::{
            served::LoopbackServer,
            setup::{BenchArgs, measure_each},
            table,
        },
        model::{CheckpointArgs, count},
    },
    report::{
        compare::MAX_PAIRS,
        machine::MeasuredModel,
        prefill::MAX_RUNS,
        resume::{ResumeMeasurement, ResumePlan},
        stream::{MAX_BATCH, StreamMeasurement, StreamPlan, StreamRequest, StreamRun},
    },
};
use std::{sync::Arc, time::Instant};
use weir_engine::{Event, Events, Handle, Job, Limits, options::Generate};
use weir_kernels::error::{Error, Result};
use weir_models::{contract::Model, load::MAX_SYMBOLS, text::StreamDetokenizer};

#[derive(Debug, clap::Args)]
pub(super) struct StreamArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Concurrent requests. Several numbers are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16", value_parser = count(1..=MAX_BATCH))]
    batch: Vec<usize>,
    /// Symbols of each prompt. A run includes the prefill.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count(1..=MAX_SYMBOLS))]
    context: usize,
    /// Characters to generate per request.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count(1..=MAX_SYMBOLS))]
    chars: usize,
    /// Timed pairs of runs, one inside the process and one over gRPC, after one warm-up pair.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = count(1..=MAX_PAIRS))]
    pairs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Symbols of the prefix that the two prompts of a pair share. Several lengths are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512", value_parser = count(1..=MAX_SYMBOLS))]
    context: Vec<usize>,
    /// Symbols of each prompt after the shared prefix.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count(1..=MAX_SYMBOLS))]
    more: usize,
    /// Prompt symbols per step.
    #[arg(long, value_name = "N", default_value_t = Limits::default().chunk, value_parser = count(1..=MAX_SYMBOLS))]
    chunk: usize,
    /// Timed pairs of a cold and a resumed prompt, after one warm-up pair.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = count(1..=MAX_RUNS))]
    runs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

pub(super) fn run_stream(args: &StreamArgs) -> Result<()> {
    let StreamArgs { context, chars, pairs, .. } = *args;
    let plans: Vec<_> = args.batch.iter().map(|&batch| StreamPlan { batch, context, chars, pairs }).collect();
    let entries = args.bench.compute.with_each_setup(&args.checkpoint, |model, machine| {
        let card = model.card();
        plans.iter().try_for_each(|plan| plan.check(card))?;
        let rows = plans.iter().map(|plan| plan.batch).max().unwrap_or(1).max(Limits::default().rows);
        let engine = Handle::start(model.clone(), Limits { rows, ..Limits::default() })?;
        let mut bench = Bench { served: LoopbackServer::start(engine.clone())?, engine };
        measure_each(plans.clone(), |plan| {
            let prompts = plan.requests(card);
            let mut pair = || Ok((bench.in_process(&**model, plan, &prompts)?, bench.served.request(&prompts)?));
            pair()?;
            let runs = (0..plan.pairs).map(|_| pair()).collect::<Result<Vec<_>>>()?;
            StreamMeasurement::new(MeasuredModel::new(card, machine), plan, &runs)
        })
    })?;
    args.bench.print(&entries, table::stream)
}

/// An engine, and the server in front of it.
struct Bench {
    served: LoopbackServer,
    engine: Handle,
}

impl Bench {
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
        Ok(StreamRun { ns, texts: received.into_iter().map(text).collect(), messages, cached_chars: 0 })
    }

    async fn generate(&self, jobs: Vec<Generate>) -> Result<Vec<Received>> {
        let submit = |job| self.engine.submit(Job::Generate(job), None);
        let spawn = |job| Ok(tokio::spawn(read_events(submit(job)?)));
        let readers = jobs.into_iter().map(spawn).collect::<Result<Vec<_>>>()?;
        let mut received = Vec::with_capacity(readers.len());
        for reader in readers {
            received.push(reader.await.map_err(|error| Error::Internal(format!("a reader task failed: {error}")))??);
        }
        Ok(received)
    }
}

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
            Event::Started { .. } | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(all) => received.symbols.extend(all.iter().map(|character| character.symbol)),
            Event::Finished { .. } => return Ok(received),
        }
    }
    Err(Error::Internal("the engine ended before the request finished".into()))
}

pub(super) fn run_resume(args: &ResumeArgs) -> Result<()> {
    let ResumeArgs { more, runs, chunk, .. } = *args;
    let plans: Vec<_> = args.context.iter().map(|&context| ResumePlan { context, more, runs }).collect();
    let entries = args.bench.compute.with_each_setup(&args.checkpoint, |model, machine| {
        let card = model.card();
        plans.iter().try_for_each(|plan| plan.check(card))?;
        measure_each(plans.clone(), |plan| {
            // Each length gets an engine of its own, because prompts of different lengths may share prefixes.
            let limits = Limits { chunk, cache_bytes: model.memory().limit / 2, ..Limits::default() };
            let mut served = LoopbackServer::start(Handle::start(Arc::clone(model), limits)?)?;
            let mut pair = |number| -> Result<[StreamRun; 2]> {
                let mut first_char = |prompt| served.request(&[StreamRequest { prompt, seed: 1, chars: 1 }]);
                let [cold, resumed] = plan.prompts(card, number);
                Ok([first_char(cold)?, first_char(resumed)?])
            };
            pair(0)?;
            let pairs = (1..=plan.runs).map(pair).collect::<Result<Vec<_>>>()?;
            ResumeMeasurement::new(MeasuredModel::new(card, machine), card, plan, chunk, &pairs)
        })
    })?;
    args.bench.print(&entries, table::resume)
}
