//! Command line: `run`, `sweep`, `compare`, `report` and `draw`. Data goes to stdout, everything else to stderr.

use crate::{
    args::{LONG, LoadArgs, LoadLimits, ServerArgs, WorkloadArgs, check_in_flight, check_rate, runtime},
    client::{ModelInfo, SymbolUnit, fetch_calibration, wait_for_calibration},
    comparison::{ComparisonSetup, MAX_MODELS, MAX_ROUNDS, ModelComparison, compare_models, text_bits},
    error::{Error, Result},
    knee::{self, RateResult},
    output::{self, DrawArgs, OutputArgs},
    report::{LoadPoint, MeasurementReport, ReportPart},
    schedule::{LoadPattern, RunLength},
    session::MeasurementSession,
};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::{ffi::OsString, process::ExitCode, time::Duration};
use weir_client::flags::{FlagOrigins, without_empty};

/// Load tester for weir's gRPC API: measures latency as clients see it, and the gain of one model over another.
#[derive(Debug, Parser)]
#[command(name = "weir-loadtest", version, propagate_version = true, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure one load of a server, by default at 127.0.0.1:50051: a closed loop (--concurrency) or an open one (--rate).
    Run(RunArgs),
    /// Measure several loads of a server, by default at 127.0.0.1:50051: closed loops of growing concurrency, or open loops of
    /// growing rate up to the knee.
    Sweep(SweepArgs),
    /// Compare models of one server, by default at 127.0.0.1:50051, request by request: measured gain with its confidence interval.
    Compare(CompareArgs),
    /// Measure everything for every model of a server, by default at 127.0.0.1:50051: batch-size curve, knee, a run below it,
    /// comparison.
    Report(ReportArgs),
    /// Draw saved measurements again, as table or Markdown.
    Draw(DrawArgs),
}

/// Runs the command given by `arguments`, the program's name first. Prints its error to stderr.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let command = without_empty(Cli::command());
    let parsed = command.clone().try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, origins) = match parsed {
        Ok((cli, matches)) => (cli, FlagOrigins::of(&command, &matches)),
        Err(error) => {
            // there is no other place to report that help cannot be printed
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    if arguments.iter().any(|word| output::is_secret(&word.to_string_lossy())) {
        let why = "other users of this machine can see it in the list of processes";
        let flag = output::SECRET;
        eprintln!("weir-loadtest: warning: {flag} has a secret: {why}; use WEIR_API_KEY or {flag}-file");
    }
    let command = output::command_line(&arguments);
    let result = match cli.command {
        Command::Run(args) => run_one(args, command),
        Command::Sweep(args) => run_sweep(args, command),
        Command::Compare(args) => run_compare(args, command),
        Command::Report(args) => run_report(args, command),
        Command::Draw(args) => output::draw(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // a reader such as `head` closed the pipe
        Err(Error::Stdout(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-loadtest: {}", printable(&origins.explain(&error.to_string())));
            ExitCode::FAILURE
        }
    }
}

/// Replaces control characters, because messages of a server could move the terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Smallest number of requests of a rate.
const MIN_REQUESTS: usize = 20;
const MAX_POINTS: usize = 64;
/// Default of --refine in `sweep`.
const REFINEMENTS: usize = 3;

/// Measures one load.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
struct RunArgs {
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
}

/// Measures several loads.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
struct SweepArgs {
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
#[derive(Debug, Clone, Copy, clap::Args)]
struct KneeSearchArgs {
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
}

impl KneeSearchArgs {
    fn check(&self) -> Result<()> {
        self.from.into_iter().try_for_each(|from| check_rate("--from", from))?;
        check_rate("--to", self.to)?;
        if let Some(from) = self.from.filter(|from| *from > self.to) {
            return Err(Error::option("--from", from, format!("at most {} (the value of --to)", self.to)));
        }
        Error::check_range("--refine", self.refine.unwrap_or(0), 0..=MAX_POINTS / 2)
    }

    /// Returns the same search starting at `rate`, but at least at `min`, unless --from is given.
    fn starting_at(&self, min: f64, rate: Option<f64>) -> Self {
        Self { from: self.from.or(rate.map(|rate| rate.max(min).min(self.to))), ..*self }
    }
}

fn run_one(args: RunArgs, command: String) -> Result<()> {
    let RunArgs { common, model, concurrency, rate } = args;
    let load = match rate {
        Some(rate) => {
            check_rate("--rate", rate)?;
            LoadPattern::Open { rate }
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
        let session = MeasurementSession::open(server, workload, &Vec::from_iter(model), false, command).await?;
        let model = &session.models[0];
        let point = session.point(model, load, limits).await?;
        Ok::<_, Error>(session.report(vec![ReportPart::Run { model: model.name.clone(), point }], true))
    })?;
    output.write_measured(&[report], None)
}

fn run_sweep(args: SweepArgs, command: String) -> Result<()> {
    let SweepArgs { common, model, concurrency, rates, search } = args;
    let LoadArgs { server, workload, length, output } = common;
    search.check()?;
    rates.iter().try_for_each(|&rate| check_rate("--rates", rate))?;
    concurrency.iter().try_for_each(|&count| check_in_flight("--concurrency", count))?;
    let points = concurrency.len().max(rates.len());
    if points > MAX_POINTS {
        return Err(Error::option("--concurrency and --rates", points, format!("at most {MAX_POINTS} loads")));
    }
    let limits = length.limits(LONG)?;
    output.check()?;
    let (reports, error) = runtime(server.threads)?.block_on(async {
        let session = MeasurementSession::open(server, workload, &Vec::from_iter(model), false, command).await?;
        let loads = ModelLoads { session: &session, model: &session.models[0], limits };
        let part = if !concurrency.is_empty() {
            loads.sweep_concurrency(&concurrency).await
        } else if !rates.is_empty() {
            loads.sweep_rates(&rates).await
        } else {
            loads.search_knee(search, REFINEMENTS).await
        };
        let mut reports = [session.report(vec![part], true)];
        let error = session.finish(&mut reports);
        Ok::<_, Error>((reports, error))
    })?;
    output.write_measured(&reports, error)
}

#[derive(Clone, Copy)]
struct ModelLoads<'a> {
    session: &'a MeasurementSession,
    model: &'a ModelInfo,
    limits: LoadLimits,
}

impl ModelLoads<'_> {
    /// Measures the batch-size curve.
    async fn sweep_concurrency(self, counts: &[usize]) -> ReportPart {
        let mut points = Vec::new();
        for &concurrency in counts {
            let limits = LoadLimits { max_in_flight: concurrency, ..self.limits };
            points.extend(self.session.load(self.model, LoadPattern::Closed { concurrency }, limits).await);
        }
        ReportPart::Batches { model: self.model.name.clone(), points }
    }

    async fn sweep_rates(self, rates: &[f64]) -> ReportPart {
        let mut points = Vec::new();
        for &rate in rates {
            points.extend(self.measure_rate(rate).await);
        }
        self.rates_part(points)
    }

    async fn search_knee(self, search: KneeSearchArgs, refinements: usize) -> ReportPart {
        let objectives = !self.session.workload.objectives().is_empty();
        let mut points = Vec::new();
        while points.len() < MAX_POINTS && !self.session.is_over() {
            let next = match &rate_results(&points)[..] {
                [] => Some(search.from.unwrap_or(1.0)),
                tried => knee::next_rate(tried, search.to, search.refine.unwrap_or(refinements), objectives),
            };
            let Some(rate) = next else { break };
            points.extend(self.measure_rate(rate).await);
        }
        self.rates_part(points)
    }

    fn rates_part(self, mut points: Vec<LoadPoint>) -> ReportPart {
        let knee = knee::knee(&rate_results(&points), !self.session.workload.objectives().is_empty());
        let rate = |point: &LoadPoint| point.load.rate().unwrap_or(0.0);
        points.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        ReportPart::Rates { model: self.model.name.clone(), points, knee }
    }

    /// Measures an open loop. Its duration is extended until [`MIN_REQUESTS`] are expected, unless their number is given. Returns
    /// `None` if an interruption left nothing of it.
    async fn measure_rate(self, rate: f64) -> Option<LoadPoint> {
        let mut length = self.limits.length;
        if let (None, Some(duration)) = (length.requests, &mut length.duration) {
            *duration = (*duration).max(Duration::from_secs_f64(MIN_REQUESTS as f64 / rate));
        }
        let limits = LoadLimits { length, min_requests: MIN_REQUESTS, ..self.limits };
        let point = self.session.load(self.model, LoadPattern::Open { rate }, limits).await?;
        Some(point).filter(|point| !point.interrupted || point.figures.requests.measured > 0)
    }
}

/// Returns the results of complete loads. An interrupted one, or one whose server went away, does not show whether the rate is
/// sustained.
fn rate_results(points: &[LoadPoint]) -> Vec<RateResult> {
    let complete = points.iter().filter(|point| !point.interrupted && point.broken_off.is_none());
    let result = |point: &LoadPoint| {
        let figures = &point.figures;
        let first = figures.time_to_first_char_ns;
        RateResult {
            rate: point.load.rate().unwrap_or(0.0),
            measured: figures.requests.measured,
            ended: point.window.begun_and_ended,
            succeeded: figures.requests.well,
            good: figures.good,
            first_p90: first.p90.or(first.max),
            total_p50: figures.total_ns.p50,
            tester_limited: point.tester.may_delay(figures),
        }
    };
    complete.map(result).collect()
}

/// Compares models of one server request by request.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
struct CompareArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Models, the baseline first [default: all models of the server, those that do not pool first].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    models: Vec<String>,
    #[command(flatten)]
    rounds: RoundArgs,
}

/// Size of a comparison.
#[derive(Debug, Clone, clap::Args)]
struct RoundArgs {
    /// Rounds; each is one request that every model answers.
    #[arg(long, value_name = "N", default_value_t = 50)]
    rounds: u64,
    /// Rounds before the measured ones.
    #[arg(long, value_name = "N", default_value_t = 3)]
    warm_up_rounds: u64,
    /// Characters of the text to score; 0 disables scoring.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    score_chars: usize,
}

impl RoundArgs {
    fn check(&self) -> Result<()> {
        Error::check_range("--rounds", self.rounds, 1..=MAX_ROUNDS)?;
        Error::check_range("--warm-up-rounds", self.warm_up_rounds, 0..=MAX_ROUNDS)
    }
}

fn run_compare(args: CompareArgs, command: String) -> Result<()> {
    let CompareArgs { server, workload, output, models, rounds } = args;
    rounds.check()?;
    output.check()?;
    let report = runtime(server.threads)?.block_on(async {
        let session = MeasurementSession::open(server, workload, &models, true, command).await?;
        check_comparable(&session)?;
        let comparison = compare(&session, &rounds).await?;
        Ok::<_, Error>(session.report(vec![ReportPart::Compare { comparison }], false))
    })?;
    output.write_measured(&[report], None)
}

/// Checks that all models of the session can answer the same requests.
fn check_comparable(session: &MeasurementSession) -> Result<()> {
    let models = &session.models;
    if !(2..=MAX_MODELS).contains(&models.len()) {
        let found = match models[..] {
            [_] => {
                "1; to compare, serve another model as well, for example with `weir serve MODEL_A MODEL_B`".to_owned()
            }
            _ => models.len().to_string(),
        };
        return Err(Error::option("--models", found, format!("2 to {MAX_MODELS} models")));
    }
    let of_kind = |summarizes| models.iter().find(|model| model.summarizes == summarizes).map(|model| &model.name);
    if let (Some(reader), Some(writer)) = (of_kind(true), of_kind(false)) {
        return Err(Error::Setting(format!(
            "--models: {reader} summarizes documents and {writer} does not, so they cannot answer the same requests: name models of \
             one kind, or use `report`, which compares each kind separately"
        )));
    }
    Ok(())
}

/// Compares the models of a session that [`check_comparable`] accepts.
async fn compare(session: &MeasurementSession, rounds: &RoundArgs) -> Result<ModelComparison> {
    let models = &session.models;
    let names: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
    output::note(format_args!("{}, comparison in {} rounds", names.join(", "), rounds.rounds));
    let mut targets = Vec::new();
    for model in models {
        let target = session.target(model, 1, false).await?;
        if let Ok(connection) = target.pool.next() {
            wait_for_calibration(connection, &model.name).await;
        }
        targets.push(target);
    }
    let mut scores = Vec::new();
    // models that summarize cannot score a text
    let can_score = rounds.score_chars > 0 && !models.iter().any(|model| model.summarizes);
    let scored = if can_score { Some(session.workload.scored_text(rounds.score_chars, models)?) } else { None };
    if let Some((text, _)) = &scored {
        let mut stop = session.stop.clone();
        for target in &targets {
            scores.push(tokio::select! {
                _ = stop.wait_for(|stop| *stop) => Err("interrupted".to_owned()),
                score = text_bits(target, text) => score,
            });
        }
    }
    let setup = ComparisonSetup {
        targets,
        mix: session.mix(session.next_seed())?,
        rounds: rounds.rounds,
        warm_up: rounds.warm_up_rounds,
        seed: session.workload.seed,
        threads: session.server.threads,
    };
    let connections: Vec<_> = setup.targets.iter().map(|target| target.pool.next().ok().cloned()).collect();
    let bar = output::counting("comparing", setup.rounds + setup.warm_up);
    let updated = bar.clone();
    let result = compare_models(setup, session.stop.clone(), true, move |count| updated.set_position(count)).await;
    bar.finish_and_clear();
    let mut comparison = result?;
    comparison.set_units(models.iter().map(|model| model.unit));
    comparison.scored = scored.map(|(_, source)| source);
    let seed = session.workload.seed;
    let baseline = scores.first().and_then(|score| score.as_ref().ok()).cloned();
    for (index, (model, score)) in comparison.models.iter_mut().zip(scores).enumerate() {
        match score {
            Ok(bits) => {
                model.bits_per_char = Some(bits.per_char);
                let same_unit = models.first().is_some_and(|first| first.unit == model.unit);
                let other = baseline.as_ref().filter(|_| index > 0 && same_unit && model.unit != SymbolUnit::Tokens);
                model.bits_difference = other.and_then(|other| bits.minus(other, seed));
            }
            Err(why) => model.score_refused = Some(why),
        }
    }
    for (model, connection) in comparison.models.iter_mut().zip(connections) {
        if let Some(connection) = connection.filter(|_| model.estimated.is_some()) {
            model.calibrated = fetch_calibration(&connection, &model.model).await;
        }
    }
    Ok(comparison)
}

/// Rate of the run below the knee, as a share of the knee.
const SHARE_OF_KNEE: f64 = 0.5;
/// Lowest first rate of a search, in requests per second, unless --from is given.
const MIN_FIRST_RATE: f64 = 0.1;
/// Length of a load: all loads of one model then take little more than a minute.
const SHORT: RunLength =
    RunLength { warm_up: Duration::from_secs(1), duration: Some(Duration::from_secs(5)), requests: None };
/// Default of --refine in `report`. Short loads have too few requests to tell rates apart that differ by less.
const REPORT_REFINEMENTS: usize = 1;

/// Measures everything for every model of a server.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
struct ReportArgs {
    #[command(flatten)]
    common: LoadArgs,
    /// Models, the baseline first [default: all models of the server, those that do not pool first]. The command compares models
    /// that summarize with each other, and models that generate with each other.
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

fn run_report(args: ReportArgs, command: String) -> Result<()> {
    let ReportArgs { common, models, concurrency, search, rounds } = args;
    let LoadArgs { server, workload, length, output } = common;
    search.check()?;
    rounds.check()?;
    concurrency.iter().try_for_each(|&count| check_in_flight("--concurrency", count))?;
    let loads = Loads { limits: length.limits(SHORT)?, concurrency, search };
    output.check()?;
    let (reports, error) = runtime(server.threads)?.block_on(async {
        let mut reports = Vec::new();
        let sessions = MeasurementSession::by_kind(server, workload, &models, command).await?;
        sessions.iter().filter(|session| session.models.len() > 1).try_for_each(check_comparable)?;
        for session in &sessions {
            reports.extend(measure_kind(session, &rounds, &loads).await);
        }
        let over = sessions.last().filter(|session| session.is_over());
        let error = over.and_then(|session| session.finish(&mut reports));
        Ok::<_, Error>((reports, error))
    })?;
    output.write_measured(&reports, error)
}

async fn measure_kind(session: &MeasurementSession, rounds: &RoundArgs, loads: &Loads) -> Vec<MeasurementReport> {
    let mut reports = Vec::new();
    if session.models.len() > 1 && !session.is_over() {
        let compared = session.abort.ok_or_record(compare(session, rounds).await);
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

/// Measures one model, unless an interruption or a lost server ends the session.
async fn measure_model(model_loads: ModelLoads<'_>, loads: &Loads) -> Vec<ReportPart> {
    let model = model_loads.model;
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
    let rates = model_loads.search_knee(search, REPORT_REFINEMENTS).await;
    let mut sustained = None;
    if let ReportPart::Rates { points, knee, .. } = &rates
        && !points.is_empty()
    {
        sustained = knee.rate;
        parts.push(rates);
    }
    if let Some(rate) = sustained {
        let measured = model_loads.measure_rate(rate * SHARE_OF_KNEE).await;
        parts.extend(measured.map(|point| ReportPart::Run { model: model.name.clone(), point }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(command: &clap::Command, path: &str, out: &mut Vec<(String, clap::Arg)>) {
        let path = format!("{path} {}", command.get_name());
        for flag in command.get_arguments().filter(|flag| flag.get_long().is_some()) {
            out.push((path.clone(), flag.clone()));
        }
        command.get_subcommands().for_each(|command| flags(command, &path, out));
    }

    #[test]
    fn flags_have_help_and_connection_flags_have_environment_variables() {
        Cli::command().debug_assert();
        let mut all = Vec::new();
        flags(&Cli::command(), "", &mut all);
        assert!(all.len() > 50, "only {} flags found", all.len());
        // flags that stay the same across measurements can be set in the environment
        let settable = [
            "server",
            "api-key",
            "api-key-file",
            "tls-ca",
            "tls-client-cert",
            "tls-client-key",
            "timeout",
            "threads",
            "note",
        ];
        let mut wrong = Vec::new();
        for (path, flag) in &all {
            let long = flag.get_long().unwrap_or_default();
            if flag.get_help().is_none_or(|help| help.to_string().trim().is_empty()) {
                wrong.push(format!("{path} --{long} has no help"));
            }
            let variable = settable.contains(&long).then(|| format!("WEIR_{}", long.replace('-', "_").to_uppercase()));
            if flag.get_env().and_then(|env| env.to_str()) != variable.as_deref() {
                wrong.push(format!("{path} --{long}: {:?}, not {variable:?}", flag.get_env()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
