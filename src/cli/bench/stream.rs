//! What a stream over the wire costs: one engine, read in turns by tasks of this process and by a client over gRPC.

use super::{Compute, Setup, Told, count, each, served::Served, table};
use crate::{
    decode::{contract::Model, options::Generate},
    engine::{Event, Events, Handle, Job, Limits},
    error::{Error, Result},
    family::load::MAX_SYMBOLS,
    report::{
        compare::MAX_PAIRS,
        machine::MeasuredModel,
        stream::{MAX_BATCH, StreamMeasurement, StreamPlan, StreamRequest, StreamRun},
    },
    serve::client::streams::{Read, Request},
    text::StreamDetokenizer,
};
use std::{path::PathBuf, time::Instant};

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

pub(super) fn run_stream(args: &StreamArgs) -> Result<()> {
    let StreamArgs { context, chars, pairs, .. } = *args;
    let plans: Vec<_> = args.batch.iter().map(|&batch| StreamPlan { batch, context, chars, pairs }).collect();
    let mut entries = Vec::new();
    for setup in args.compute.setups() {
        entries.extend(measure(setup, args, &plans)?);
    }
    Told { json: args.json, plot: None }.tell(None, &entries, table::stream)
}

fn measure(setup: Setup, args: &StreamArgs, plans: &[StreamPlan]) -> Result<Vec<StreamMeasurement>> {
    let ([model], machine) = setup.load([&args.model])?;
    let card = model.card();
    plans.iter().try_for_each(|plan| plan.check(card))?;
    let rows = plans.iter().map(|plan| plan.batch).max().unwrap_or(1).max(Limits::default().rows);
    let mut bench = Bench::start(Handle::start(model.clone(), Limits { rows, ..Limits::default() })?)?;
    each(plans.to_vec(), |plan| {
        let asked = plan.requests(card);
        let mut pair = || Ok((bench.in_process(&*model, plan, &asked)?, bench.served(plan, &asked)?));
        pair()?;
        let runs = (0..plan.pairs).map(|_| pair()).collect::<Result<Vec<_>>>()?;
        StreamMeasurement::new(MeasuredModel::new(card, &machine), plan, &runs)
    })
}

/// An engine, and the server in front of it.
struct Bench {
    served: Served,
    engine: Handle,
}

impl Bench {
    fn start(engine: Handle) -> Result<Self> {
        Ok(Self { served: Served::start(engine.clone())?, engine })
    }

    /// Submits all requests and reads their events, each on a task of its own, as the server does.
    fn in_process(&self, model: &dyn Model, plan: StreamPlan, asked: &[StreamRequest]) -> Result<StreamRun> {
        let card = model.card();
        let jobs = asked.iter().map(|asked| plan.engine_request(asked, card)).collect::<Result<Vec<_>>>()?;
        let runtime = self.served.runtime()?;
        let begun = Instant::now();
        let told = runtime.block_on(self.generate(jobs))?;
        let ns = begun.elapsed().as_nanos() as f64;
        let messages = told.iter().map(|told| told.messages).sum();
        let text = |told: Heard| {
            let mut stream = StreamDetokenizer::new(card.vocabulary.clone());
            let mut text: String = told.symbols.iter().map(|&symbol| stream.push(symbol).to_owned()).collect();
            text += stream.finish();
            text
        };
        Ok(StreamRun { ns, texts: told.into_iter().map(text).collect(), messages })
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
    fn served(&mut self, plan: StreamPlan, asked: &[StreamRequest]) -> Result<StreamRun> {
        let chars = u32::try_from(plan.chars).unwrap_or(u32::MAX);
        let request = |asked: &StreamRequest| Request { prompt: asked.prompt.clone(), seed: asked.seed, chars };
        let requests: Vec<_> = asked.iter().map(request).collect();
        let Read { ns, texts, messages, .. } = self.served.ask(&requests)?;
        Ok(StreamRun { ns: ns as f64, texts, messages })
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
            Event::Started { .. } | Event::Document(_) => {}
            Event::Characters(characters) => told.symbols.extend(characters.iter().map(|character| character.symbol)),
            Event::Finished { .. } => return Ok(told),
        }
    }
    Err(Error::Internal("the engine ended without an answer".into()))
}
