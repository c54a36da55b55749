//! `weir-loadtest report`: everything there is to tell of a server's models, in one go.

use super::{
    compare::{self, RoundArgs, compare},
    run_length, runtime,
    session::{LoadArgs, MeasurementSession},
    sweep::{ENOUGH, KneeSearchArgs, by_concurrency, by_rate, enough},
};
use crate::{
    client::models::ModelInfo,
    error::{Error, Result},
    load::{
        arrivals::ArrivalProcess,
        schedule::{LoadPattern, RunLength},
    },
    report::data::{MeasurementReport, ReportPart},
};

/// The share of the knee at which the run for gaps and timeline is made.
const BELOW: f64 = 0.5;

/// The lowest rate that a search begins with by itself, in requests a second.
const LOWEST: f64 = 0.1;

/// Measures all of it, for every model of a server.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: LoadArgs,
    /// The models, the baseline first; if not given, all that the server has. Those that read documents are compared with each
    /// other, and so are the others.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    models: Vec<String>,
    /// Closed loops of the batch-size curve, by requests at a time.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16")]
    concurrency: Vec<usize>,
    #[command(flatten)]
    search: KneeSearchArgs,
    #[command(flatten)]
    rounds: RoundArgs,
}

pub(super) fn run(args: Args, command: String) -> Result<()> {
    let Args { common, models, concurrency, search, rounds } = args;
    let LoadArgs { server, work, extent, output } = common;
    search.check(true)?;
    rounds.check()?;
    concurrency.iter().try_for_each(|&count| run_length::in_flight("--concurrency", count))?;
    let limits = (extent.extent()?, extent.max_in_flight);
    output.check()?;
    let (documents, broken) = runtime(server.threads)?.block_on(async {
        let mut documents = Vec::new();
        let mut sessions = MeasurementSession::by_kind(server, work, &models, command).await?;
        sessions.iter().filter(|session| session.models.len() > 1).try_for_each(compare::check)?;
        for session in &mut sessions {
            session.cancel = extent.cancel_share;
            documents.extend(one_kind(session, &rounds, limits, (&concurrency, &search)).await);
        }
        let over = sessions.last().filter(|session| session.is_over());
        let broken = over.and_then(|session| session.end(&mut documents));
        Ok::<_, Error>((documents, broken))
    })?;
    output.tell_measured(&documents, broken)
}

/// Everything of models that are asked for the same.
async fn one_kind(
    session: &MeasurementSession,
    rounds: &RoundArgs,
    limits: (RunLength, usize),
    curves: (&[usize], &KneeSearchArgs),
) -> Vec<MeasurementReport> {
    let mut documents = Vec::new();
    if session.models.len() > 1 {
        let names: Vec<_> = session.models.iter().map(|model| model.name.as_str()).collect();
        let compared = session.unbroken(&names.join(", "), "the comparison", compare(session, rounds)).await;
        documents.extend(compared.map(|comparison| session.document(vec![ReportPart::Compare { comparison }], false)));
    }
    let mut parts = Vec::new();
    for model in &session.models {
        parts.extend(all_of(session, model, limits, curves).await);
    }
    if !parts.is_empty() {
        documents.push(session.document(parts, true));
    }
    documents
}

/// Everything of one model; what the user, or a server that is gone, leaves out is missed.
async fn all_of(
    session: &MeasurementSession,
    model: &ModelInfo,
    (extent, most): (RunLength, usize),
    (concurrency, search): (&[usize], &KneeSearchArgs),
) -> Vec<ReportPart> {
    let mut parts = Vec::new();
    let batches = by_concurrency(session, model, extent, concurrency).await;
    let mut answered = None;
    if let ReportPart::Batches { points, .. } = &batches
        && let Some(first) = points.first()
    {
        answered = Some(first.window.well_per_second);
        parts.push(batches);
    }
    let search = &search.beginning(LOWEST, answered.map(|rate| rate * BELOW));
    let rates = by_rate(session, model, (extent, most), (&[], search)).await;
    let mut sustained = None;
    if let ReportPart::Rates { points, knee, .. } = &rates
        && !points.is_empty()
    {
        sustained = knee.rate;
        parts.push(rates);
    }
    if session.is_over() {
        session.misses(&session.asked(model), "the open loop at half of the knee");
    } else if let Some(rate) = sustained {
        let rate = rate * BELOW;
        let load = LoadPattern::Open { arrivals: ArrivalProcess::Poisson, rate, burst: 1 };
        let measured = session.load(model, load, enough(extent, rate), (most, ENOUGH)).await;
        parts.extend(measured.map(|point| ReportPart::Run { model: session.asked(model), point }));
    }
    parts
}
