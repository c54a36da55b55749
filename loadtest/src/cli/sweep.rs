//! `weir-loadtest run` and `sweep`: measure one load, or several one after the other.

use super::{
    load_args::{ArrivalArgs, LONG, LoadArgs, check_in_flight, check_rate},
    server::runtime,
    session::{LoadLimits, MeasurementSession},
    steps::{Plan, rounded_time},
};
use crate::{
    client::models::ModelInfo,
    error::{Error, Result},
    knee::{self, RateResult},
    load::schedule::{LoadPattern, RunLength},
    measure::limits::LimitEvidence,
    report::data::{LoadPoint, ReportPart},
};
use std::time::Duration;

/// Smallest number of requests of a rate.
const MIN_REQUESTS: usize = 20;
const MAX_POINTS: usize = 64;
/// Default of --refine.
const REFINEMENTS: usize = 3;

/// Measures one load.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct RunArgs {
    #[command(flatten)]
    common: LoadArgs,
    /// Model; may be left out if the server has only one.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Closed loop with this many requests in flight: when one ends, the next starts [default: 8, unless --rate is given].
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    concurrency: Option<usize>,
    /// Open loop with this many requests per second, independent of the answers.
    #[arg(long, value_name = "RATE")]
    rate: Option<f64>,
    #[command(flatten)]
    arrivals: ArrivalArgs,
}

/// Measures several loads.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct SweepArgs {
    #[command(flatten)]
    common: LoadArgs,
    /// Model; may be left out if the server has only one.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Closed loops with these numbers of requests in flight: the batch-size curve.
    #[arg(long, value_name = "N", value_delimiter = ',', allow_hyphen_values = true, conflicts_with = "rates")]
    concurrency: Vec<usize>,
    /// Open loops with these rates, in requests per second [default: search for the knee, unless --concurrency is given].
    #[arg(long, value_name = "RATE", value_delimiter = ',', allow_hyphen_values = true)]
    rates: Vec<f64>,
    #[command(flatten)]
    search: KneeSearchArgs,
}

/// Options of the search for the knee.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct KneeSearchArgs {
    /// First rate of the search, which doubles until a rate is not sustained [default: 1; in `report`, half of the rate of the
    /// first closed loop].
    #[arg(long, value_name = "RATE")]
    from: Option<f64>,
    /// Highest rate of the search.
    #[arg(long, value_name = "RATE", default_value_t = 1024.0)]
    to: f64,
    /// Number of times that the search bisects between the highest sustained and the lowest unsustained rate [default: 3; in
    /// `report`, 1].
    #[arg(long, value_name = "N")]
    refine: Option<usize>,
    #[command(flatten)]
    arrivals: ArrivalArgs,
}

impl KneeSearchArgs {
    /// Checks the options; `has_open_loops` is true if the command runs open loops.
    pub(super) fn check(&self, has_open_loops: bool) -> Result<()> {
        self.from.into_iter().try_for_each(|from| check_rate("--from", from))?;
        check_rate("--to", self.to)?;
        if let Some(from) = self.from.filter(|from| *from > self.to) {
            return Err(Error::option("--from", from, format!("at most {} (the value of --to)", self.to)));
        }
        if self.refinements() > MAX_POINTS / 2 {
            return Err(Error::option("--refine", self.refinements(), format!("at most {}", MAX_POINTS / 2)));
        }
        self.arrivals.check(has_open_loops, "--rates, or no load option,")
    }

    /// Returns the same search with `default` bisections, unless --refine is given.
    pub(super) fn refining(self, default: usize) -> Self {
        Self { refine: Some(self.refine.unwrap_or(default)), ..self }
    }

    /// Returns how often the search bisects.
    pub(super) fn refinements(&self) -> usize {
        self.refine.unwrap_or(REFINEMENTS)
    }

    /// Returns the same search starting at `rate`, but at least at `min`, unless --from is given.
    pub(super) fn starting_at(&self, min: f64, rate: Option<f64>) -> Self {
        Self { from: self.from.or(rate.map(|rate| rate.max(min).min(self.to))), ..self.clone() }
    }
}

pub(super) fn run(args: RunArgs, command: String) -> Result<()> {
    let RunArgs { common, model, concurrency, rate, arrivals } = args;
    arrivals.check(rate.is_some(), "--rate")?;
    let load = match rate {
        Some(rate) => {
            check_rate("--rate", rate)?;
            arrivals.load(rate)
        }
        None => {
            let concurrency = concurrency.unwrap_or(8);
            check_in_flight("--concurrency", concurrency)?;
            LoadPattern::Closed { concurrency }
        }
    };
    let LoadArgs { server, workload, length, output } = common;
    let limits = length.limits(LONG)?;
    output.check()?;
    let report = runtime(server.threads)?.block_on(async {
        let mut session = MeasurementSession::open(server, workload, &Vec::from_iter(model), false, command).await?;
        session.cancel_share = length.cancel_share;
        let model = &session.models[0];
        let mut plan = Plan::default();
        plan.add_loads(1, &limits.length);
        session.steps.begin(&plan);
        session.steps.next(format_args!("{}, {}", session.model_names(model), load.describe()));
        let point = session.point(model, load, limits).await?;
        Ok::<_, Error>(session.report(vec![ReportPart::Run { model: session.model_names(model), point }], true))
    })?;
    output.write_measured(&[report], None)
}

pub(super) fn sweep(args: SweepArgs, command: String) -> Result<()> {
    let SweepArgs { common, model, concurrency, rates, search } = args;
    let LoadArgs { server, workload, length, output } = common;
    search.check(concurrency.is_empty())?;
    rates.iter().try_for_each(|&rate| check_rate("--rates", rate))?;
    concurrency.iter().try_for_each(|&count| check_in_flight("--concurrency", count))?;
    let points = concurrency.len().max(rates.len());
    if points > MAX_POINTS {
        return Err(Error::option("--concurrency and --rates", points, format!("at most {MAX_POINTS} loads")));
    }
    let limits = length.limits(LONG)?;
    output.check()?;
    let (reports, error) = runtime(server.threads)?.block_on(async {
        let mut session = MeasurementSession::open(server, workload, &Vec::from_iter(model), false, command).await?;
        session.cancel_share = length.cancel_share;
        let loads = ModelLoads { session: &session, model: &session.models[0], limits };
        session.steps.begin(&loads.plan(&concurrency, &rates, &search));
        let part = if !concurrency.is_empty() {
            loads.sweep_concurrency(&concurrency).await
        } else if !rates.is_empty() {
            loads.sweep_rates(&rates, &search.arrivals).await
        } else {
            loads.search_knee(&search).await
        };
        let mut reports = [session.report(vec![part], true)];
        let error = session.finish(&mut reports);
        Ok::<_, Error>((reports, error))
    })?;
    output.write_measured(&reports, error)
}

/// Loads of one model.
#[derive(Clone, Copy)]
pub(super) struct ModelLoads<'a> {
    pub(super) session: &'a MeasurementSession,
    pub(super) model: &'a ModelInfo,
    pub(super) limits: LoadLimits,
}

impl ModelLoads<'_> {
    /// Returns the plan of a sweep.
    fn plan(self, concurrency: &[usize], rates: &[f64], search: &KneeSearchArgs) -> Plan {
        let mut plan = Plan::default();
        plan.add_loads(concurrency.len(), &self.limits.length);
        rates.iter().for_each(|&rate| plan.add_loads(1, &self.length_at(rate)));
        if plan.steps == 0 {
            plan.add_search(search.refinements(), &self.limits.length);
        }
        plan
    }

    /// Prints the next step: a load of the model.
    pub(super) fn begin_step(self, what: &str) {
        if !self.session.is_over() {
            self.session.steps.next(format_args!("{}, {what}", self.session.model_names(self.model)));
        }
    }

    /// Measures the batch-size curve.
    pub(super) async fn sweep_concurrency(self, counts: &[usize]) -> ReportPart {
        let mut points = Vec::new();
        for &concurrency in counts {
            let limits = LoadLimits { max_in_flight: concurrency, ..self.limits };
            let load = LoadPattern::Closed { concurrency };
            self.begin_step(&load.describe());
            points.extend(self.session.load(self.model, load, limits).await);
        }
        ReportPart::Batches { model: self.session.model_names(self.model), points }
    }

    async fn sweep_rates(self, rates: &[f64], arrivals: &ArrivalArgs) -> ReportPart {
        let mut sweep = RateSweep { loads: self, tried: Vec::new(), points: Vec::new() };
        for &rate in rates {
            let load = arrivals.load(rate);
            self.begin_step(&self.describe_open_loop(load, rate));
            sweep.measure(load, rate).await;
        }
        sweep.into_part()
    }

    pub(super) async fn search_knee(self, search: &KneeSearchArgs) -> ReportPart {
        let objectives = !self.session.workload.objectives().is_empty();
        self.begin_step("search for the knee");
        let mut sweep = RateSweep { loads: self, tried: Vec::new(), points: Vec::new() };
        while sweep.tried.len() < MAX_POINTS {
            let next = match &sweep.tried[..] {
                [] => Some(search.from.unwrap_or(1.0)),
                tried => knee::next_rate(tried, search.to, search.refinements(), objectives),
            };
            let Some(rate) = next else { break };
            if self.session.is_over() {
                let is_first = sweep.points.is_empty();
                let what = if is_first { "the search for the knee" } else { "the rest of the search for the knee" };
                self.add_missing(what);
                break;
            }
            let load = search.arrivals.load(rate);
            let number = sweep.tried.len() + 1;
            self.session.steps.go_on(format_args!("load {number}, {}", self.describe_open_loop(load, rate)));
            sweep.measure(load, rate).await;
        }
        sweep.into_part()
    }

    /// Measures an open loop whose duration is extended until [`MIN_REQUESTS`] are expected, unless their number is given.
    pub(super) async fn measure_rate(self, load: LoadPattern, rate: f64) -> Option<LoadPoint> {
        let length = self.length_at(rate);
        let limits = LoadLimits { length, min_requests: MIN_REQUESTS, ..self.limits };
        self.session.load(self.model, load, limits).await
    }

    /// Describes an open loop, with its time if that is longer than the options state.
    pub(super) fn describe_open_loop(self, load: LoadPattern, rate: f64) -> String {
        let described = load.describe();
        let extended = self.length_at(rate).duration.filter(|length| Some(*length) != self.limits.length.duration);
        match extended.map(rounded_time) {
            Some(time) => format!("{described}, for about {time} until {MIN_REQUESTS} requests have arrived"),
            None => described,
        }
    }

    /// Returns the length of an open loop at `rate`.
    fn length_at(self, rate: f64) -> RunLength {
        let mut length = self.limits.length;
        if let (None, Some(duration)) = (length.requests, &mut length.duration) {
            *duration = (*duration).max(Duration::from_secs_f64(MIN_REQUESTS as f64 / rate));
        }
        length
    }

    pub(super) fn add_missing(self, what: &str) {
        self.session.abort.add_missing(&self.session.model_names(self.model), what);
    }
}

struct RateSweep<'a> {
    loads: ModelLoads<'a>,
    tried: Vec<RateResult>,
    points: Vec<LoadPoint>,
}

impl RateSweep<'_> {
    async fn measure(&mut self, load: LoadPattern, rate: f64) {
        let Some(point) = self.loads.measure_rate(load, rate).await else { return };
        if point.interrupted && point.figures.requests.measured == 0 {
            return self.loads.add_missing(&load.describe());
        }
        // an interrupted measurement, or a server that went away, does not show whether the rate is sustained
        if !point.interrupted && point.broken_off.is_none() {
            self.tried.push(rate_result(rate, &point));
        }
        self.points.push(point);
    }

    fn into_part(mut self) -> ReportPart {
        let ModelLoads { session, model, .. } = self.loads;
        let knee = knee::knee(&self.tried, !session.workload.objectives().is_empty());
        let rate = |point: &LoadPoint| point.load.rate().unwrap_or(0.0);
        self.points.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        ReportPart::Rates { model: session.model_names(model), points: self.points, knee }
    }
}

fn rate_result(rate: f64, point: &LoadPoint) -> RateResult {
    let figures = &point.figures;
    let first = figures.time_to_first_char_ns;
    RateResult {
        rate,
        measured: figures.requests.measured,
        ended: point.window.begun_and_ended.unwrap_or(point.window.ended),
        cancelled: figures.requests.cancelled,
        succeeded: figures.requests.well,
        good: figures.good,
        first_p90: first.p90.or(first.max),
        total_p50: figures.total_ns.p50,
        tester_limited: !LimitEvidence::of(&[figures]).without_gaps().limits(&point.tester).is_empty(),
    }
}
