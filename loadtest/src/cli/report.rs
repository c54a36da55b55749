//! `weir-loadtest report`: measures everything about a server's models.

use super::{
    compare::{self, RoundArgs, compare},
    load_args::{DefaultLength, LoadArgs, check_in_flight},
    server::runtime,
    session::{LoadLimits, MeasurementSession},
    steps::Plan,
    sweep::{KneeSearchArgs, ModelLoads},
};
use crate::{
    error::{Error, Result},
    load::{arrivals::ArrivalProcess, schedule::LoadPattern},
    report::data::{MeasurementReport, ReportPart},
};
use std::time::Duration;

/// Rate of the run for gaps and timeline, as a share of the knee.
const SHARE_OF_KNEE: f64 = 0.5;
/// Lowest first rate of a search, in requests per second, unless --from is given.
const MIN_FIRST_RATE: f64 = 0.1;
/// Length of a load: all loads of one model then take little more than a minute.
const SHORT: DefaultLength = DefaultLength { warm_up: Duration::from_secs(1), duration: Duration::from_secs(5) };
/// Default of --refine. Short loads have too few requests to tell rates apart that differ by less.
const REFINEMENTS: usize = 1;

/// Measures everything for every model of a server.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    #[command(flatten)]
    common: LoadArgs,
    /// Models, the baseline first [default: all models of the server]. The command compares models that summarize with each
    /// other, and models that generate with each other.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    models: Vec<String>,
    /// Requests in flight of each closed loop of the batch-size curve.
    #[arg(long, value_name = "N", value_delimiter = ',', allow_hyphen_values = true, default_value = "1,2,4,8,16")]
    concurrency: Vec<usize>,
    #[command(flatten)]
    search: KneeSearchArgs,
    #[command(flatten)]
    rounds: RoundArgs,
}

/// Loads that `report` measures for each model.
struct Loads {
    limits: LoadLimits,
    concurrency: Vec<usize>,
    search: KneeSearchArgs,
}

impl Loads {
    /// Adds the loads of one model to a plan.
    fn add_to(&self, plan: &mut Plan) {
        let length = &self.limits.length;
        plan.add_loads(self.concurrency.len(), length);
        plan.add_search(self.search.refinements(), length);
        plan.add_loads(1, length);
    }
}

pub(super) fn run(args: Args, command: String) -> Result<()> {
    let Args { common, models, concurrency, search, rounds } = args;
    let LoadArgs { server, workload, length, output } = common;
    let search = search.refining(REFINEMENTS);
    search.check(true)?;
    rounds.check()?;
    concurrency.iter().try_for_each(|&count| check_in_flight("--concurrency", count))?;
    let loads = Loads { limits: length.limits(SHORT)?, concurrency, search };
    output.check()?;
    let (reports, error) = runtime(server.threads)?.block_on(async {
        let mut reports = Vec::new();
        let mut sessions = MeasurementSession::by_kind(server, workload, &models, command).await?;
        sessions.iter().filter(|session| session.models.len() > 1).try_for_each(compare::check)?;
        if let Some(first) = sessions.first() {
            first.steps.begin(&plan(&sessions, &rounds, &loads));
        }
        for session in &mut sessions {
            session.cancel_share = length.cancel_share;
            reports.extend(measure_kind(session, &rounds, &loads).await);
        }
        let over = sessions.last().filter(|session| session.is_over());
        let error = over.and_then(|session| session.finish(&mut reports));
        Ok::<_, Error>((reports, error))
    })?;
    output.write_measured(&reports, error)
}

/// Returns the plan of all sessions.
fn plan(sessions: &[MeasurementSession], rounds: &RoundArgs, loads: &Loads) -> Plan {
    let mut plan = Plan::default();
    for session in sessions {
        if session.models.len() > 1 {
            plan.add_rounds(rounds.total());
        }
        session.models.iter().for_each(|_| loads.add_to(&mut plan));
    }
    plan
}

async fn measure_kind(session: &MeasurementSession, rounds: &RoundArgs, loads: &Loads) -> Vec<MeasurementReport> {
    let mut reports = Vec::new();
    if session.models.len() > 1 {
        let names: Vec<_> = session.models.iter().map(|model| model.name.as_str()).collect();
        let compared = session.measure_or_skip(&names.join(", "), "the comparison", compare(session, rounds)).await;
        reports.extend(compared.map(|comparison| session.report(vec![ReportPart::Compare { comparison }], false)));
    }
    let mut parts = Vec::new();
    for model in &session.models {
        parts.extend(measure_model(ModelLoads { session, model, limits: loads.limits }, loads).await);
    }
    if !parts.is_empty() {
        reports.push(session.report(parts, true));
    }
    reports
}

/// Measures one model. Loads skipped because of an interruption or a lost server are recorded as missing.
async fn measure_model(model_loads: ModelLoads<'_>, loads: &Loads) -> Vec<ReportPart> {
    let ModelLoads { session, model, .. } = model_loads;
    let mut parts = Vec::new();
    let batches = model_loads.sweep_concurrency(&loads.concurrency).await;
    let mut answered = None;
    if let ReportPart::Batches { points, .. } = &batches
        && let Some(first) = points.first()
    {
        answered = Some(first.window.succeeded_per_second);
        parts.push(batches);
    }
    let search = loads.search.starting_at(MIN_FIRST_RATE, answered.map(|rate| rate * SHARE_OF_KNEE));
    let rates = model_loads.search_knee(&search).await;
    let mut sustained = None;
    if let ReportPart::Rates { points, knee, .. } = &rates
        && !points.is_empty()
    {
        sustained = knee.rate;
        parts.push(rates);
    }
    if session.is_over() {
        model_loads.add_missing("the open loop at half of the knee");
    } else if let Some(rate) = sustained {
        let rate = rate * SHARE_OF_KNEE;
        let load = LoadPattern::Open { arrivals: ArrivalProcess::Poisson, rate, burst: 1 };
        model_loads.begin_step(&model_loads.describe_open_loop(load, rate));
        let measured = model_loads.measure_rate(load, rate).await;
        parts.extend(measured.map(|point| ReportPart::Run { model: session.model_names(model), point }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// Returns the seconds in which the loads of one model send requests.
    fn seconds(options: &str) -> u64 {
        let words = ["report", "127.0.0.1:50051"].into_iter().chain(options.split_whitespace());
        let Args { common, concurrency, search, .. } = Command::parse_from(words).args;
        let limits = common.length.limits(SHORT).unwrap();
        let mut plan = Plan::default();
        Loads { limits, concurrency, search: search.refining(REFINEMENTS) }.add_to(&mut plan);
        plan.time.as_secs()
    }

    #[test]
    fn a_model_takes_little_more_than_a_minute_unless_options_ask_for_more() {
        assert_eq!(seconds(""), 66);
        assert_eq!(seconds("--duration 30s --refine 3"), 403);
        assert_eq!(seconds("--warm-up 0 --duration 10s --concurrency 1"), 70);
    }
}
