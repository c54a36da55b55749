//! `weir-loadtest sweep`: several loads one after the other.

use super::{
    arrivals::ArrivalArgs,
    run_length, runtime,
    session::{LoadArgs, MeasurementSession},
};
use crate::{
    client::models::ModelInfo,
    error::{Error, Result},
    knee::{self, RateResult},
    load::schedule::{LoadPattern, RunLength},
    report::data::{LoadPoint, ReportPart},
};
use std::time::Duration;

/// Requests of a rate that are started at least.
pub(super) const ENOUGH: u64 = 20;
/// The most loads of a sweep.
const MAX_POINTS: usize = 64;

/// Measures several loads.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: LoadArgs,
    /// The model; may be left out if the server has one.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Closed loops, of so many requests at a time: the batch-size curve.
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "rates")]
    concurrency: Vec<usize>,
    /// Open loops of these rates, in requests a second; if neither this nor --concurrency is given, rates are searched for.
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    rates: Vec<f64>,
    #[command(flatten)]
    search: KneeSearchArgs,
}

/// How the knee is searched for.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct KneeSearchArgs {
    /// The first rate of the search, which is doubled until one is not sustained; if not given 1, and in `report` half of what
    /// the first closed loop answered.
    #[arg(long, value_name = "RATE")]
    from: Option<f64>,
    /// The highest rate of the search.
    #[arg(long, value_name = "RATE", default_value_t = 1024.0)]
    to: f64,
    /// How often the search halves what lies between the highest sustained rate and the lowest other one.
    #[arg(long, value_name = "N", default_value_t = 3)]
    refine: usize,
    #[command(flatten)]
    arrivals: ArrivalArgs,
}

impl KneeSearchArgs {
    /// Before anything is measured; `open` is whether there are open loops at all.
    pub(super) fn check(&self, open: bool) -> Result<()> {
        self.from.into_iter().try_for_each(|from| run_length::rate("--from", from))?;
        run_length::rate("--to", self.to)?;
        if let Some(from) = self.from.filter(|from| *from > self.to) {
            return Err(Error::option("--from", from, format!("at most --to, which is {}", self.to)));
        }
        if self.refine > MAX_POINTS / 2 {
            return Err(Error::option("--refine", self.refine, format!("at most {}", MAX_POINTS / 2)));
        }
        self.arrivals.check(open, "--rates, or nothing,")
    }

    /// The same, begun at this rate unless another was asked for.
    pub(super) fn beginning(&self, least: f64, rate: Option<f64>) -> Self {
        Self { from: self.from.or(rate.map(|rate| rate.max(least).min(self.to))), ..self.clone() }
    }
}

pub(super) fn run(args: Args, command: String) -> Result<()> {
    let Args { common, model, concurrency, rates, search } = args;
    let LoadArgs { server, work, extent, output } = common;
    search.check(concurrency.is_empty())?;
    rates.iter().try_for_each(|&rate| run_length::rate("--rates", rate))?;
    concurrency.iter().try_for_each(|&count| run_length::in_flight("--concurrency", count))?;
    let points = concurrency.len().max(rates.len());
    if points > MAX_POINTS {
        return Err(Error::option("--concurrency and --rates", points, format!("at most {MAX_POINTS} loads")));
    }
    let (limits, most) = (extent.extent()?, extent.max_in_flight);
    output.check()?;
    let (documents, broken) = runtime(server.threads)?.block_on(async {
        let mut session = MeasurementSession::open(server, work, &Vec::from_iter(model), false, command).await?;
        session.cancel = extent.cancel_share;
        let model = &session.models[0];
        let part = if concurrency.is_empty() {
            by_rate(&session, model, (limits, most), (&rates, &search)).await
        } else {
            by_concurrency(&session, model, limits, &concurrency).await
        };
        let mut documents = [session.document(vec![part], true)];
        let broken = session.end(&mut documents);
        Ok::<_, Error>((documents, broken))
    })?;
    output.tell_measured(&documents, broken)
}

/// The batch-size curve.
pub(super) async fn by_concurrency(
    session: &MeasurementSession,
    model: &ModelInfo,
    extent: RunLength,
    counts: &[usize],
) -> ReportPart {
    let mut points = Vec::new();
    for &concurrency in counts {
        let load = LoadPattern::Closed { concurrency };
        points.extend(session.load(model, load, extent, (concurrency, 0)).await);
    }
    ReportPart::Batches { model: session.asked(model), points }
}

/// These rates, or, of none, those that the search asks for.
pub(super) async fn by_rate(
    session: &MeasurementSession,
    model: &ModelInfo,
    (extent, most): (RunLength, usize),
    (rates, search): (&[f64], &KneeSearchArgs),
) -> ReportPart {
    let objectives = !session.work.objectives().is_empty();
    let (mut tried, mut points): (Vec<RateResult>, Vec<LoadPoint>) = (Vec::new(), Vec::new());
    let mut given = rates.iter().copied();
    loop {
        let next = match (rates, &tried[..]) {
            ([], []) => Some(search.from.unwrap_or(1.0)),
            ([], tried) => knee::next(tried, (search.to, search.refine), objectives),
            _ => given.next(),
        };
        let Some(rate) = next.filter(|_| tried.len() < MAX_POINTS) else { break };
        if rates.is_empty() && session.is_over() {
            let what =
                if points.is_empty() { "the search for the knee" } else { "the rest of the search for the knee" };
            session.misses(&session.asked(model), what);
            break;
        }
        let load = search.arrivals.load(rate);
        let Some(point) = session.load(model, load, enough(extent, rate), (most, ENOUGH)).await else { continue };
        if point.interrupted && point.figures.requests.measured == 0 {
            session.misses(&session.asked(model), &load.describe());
            continue;
        }
        // of half a measurement, or of a server that went away, it is not known whether the rate holds
        tried.extend((!point.interrupted && point.broken_off.is_none()).then(|| seen(rate, &point)));
        points.push(point);
    }
    let knee = knee::knee(&tried, objectives);
    points.sort_by(|a, b| rate_of(a).total_cmp(&rate_of(b)));
    ReportPart::Rates { model: session.asked(model), points, knee }
}

/// As long as it takes for enough requests to tell a rate that holds from one that does not, unless their number was given.
pub(super) fn enough(extent: RunLength, rate: f64) -> RunLength {
    let least = Duration::from_secs_f64(ENOUGH as f64 / rate);
    match (extent.requests, extent.duration) {
        (None, Some(duration)) => RunLength { duration: Some(duration.max(least)), ..extent },
        _ => extent,
    }
}

fn rate_of(point: &LoadPoint) -> f64 {
    match point.load {
        LoadPattern::Open { rate, .. } => rate,
        LoadPattern::Closed { .. } => 0.0,
    }
}

fn seen(rate: f64, point: &LoadPoint) -> RateResult {
    let (figures, window) = (&point.figures, &point.window);
    let measured = [figures.requests.measured, figures.requests.well, figures.good];
    let (first, total_p50) = (figures.time_to_first_char_ns, figures.total_ns.p50);
    let ended = window.begun_and_ended.unwrap_or(window.ended);
    let limited = point.tester.holds_up(figures.requests.own(), first.p50);
    RateResult { rate, ended, measured, first_p90: first.p90.or(first.max), total_p50, limited }
}
