//! Runs a comparison: rounds in which every model answers the same request, and the score of each model.

use super::{
    bootstrap::{gain, median},
    result::{ComparedModel, Gains, Medians, ModelComparison},
};
use crate::{
    client::connection::code_name,
    error::{Error, Result},
    load::{
        driver::{StopSignal, execute},
        mix::WorkloadMix,
        workload::RequestTarget,
    },
    measure::{
        counters::{CounterSnapshot, LiveCounters},
        histogram::ValueHistogram,
        limits::LimitEvidence,
        request_timer::{ClientTimer, UnpooledTimes},
        stats::{RequestOutcome, RequestStats},
        tester::{CpuClock, LagProbe, TesterFigures, TesterMeasurement},
    },
};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tonic::Status;
use weir_proto::v1::{ScoreRequest, generation_client::GenerationClient, score_response::Event};

/// Maximum models.
pub const MAX_MODELS: usize = 8;
/// Maximum rounds; the figures of each are kept.
pub const MAX_ROUNDS: u64 = 100_000;

/// Models, requests and size of a comparison.
pub struct ComparisonSetup {
    /// One target per model, the baseline first.
    pub targets: Vec<RequestTarget>,
    /// Requests.
    pub mix: WorkloadMix,
    /// Measured rounds.
    pub rounds: u64,
    /// Rounds before, which are not measured.
    pub warm_up: u64,
    /// Rounds in flight at a time.
    pub concurrency: usize,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// Threads of the tester.
    pub threads: usize,
}

/// Figures of a model in a round in which it succeeded.
#[derive(Debug, Clone, Copy)]
struct RoundFigures {
    total: Option<Duration>,
    first: Option<Duration>,
    char: Option<Duration>,
    encode: Option<Duration>,
    decode_token: Option<Duration>,
    keystroke: Option<Duration>,
    unpooled: Option<UnpooledTimes>,
}

/// Figures of each model in a round; `None` for models that failed.
type RoundOfModels = Vec<Option<RoundFigures>>;

struct ComparisonState {
    setup: ComparisonSetup,
    counters: Arc<LiveCounters>,
    next: AtomicU64,
    results: Mutex<RoundResults>,
    stop: StopSignal,
}

struct RoundResults {
    stats: Vec<RequestStats>,
    rounds: Vec<RoundOfModels>,
}

struct TimedRequest {
    timer: ClientTimer,
    outcome: RequestOutcome,
    total: Duration,
}

/// Runs all rounds. Calls `on_round` after each with the number of rounds begun. With `probe_lag`, measures how late this program
/// sees events. Fails only if an invariant is broken; failed requests are not errors.
pub async fn compare_models(
    setup: ComparisonSetup,
    stop: StopSignal,
    probe_lag: bool,
    on_round: impl Fn(u64) + Send + Sync + 'static,
) -> Result<ModelComparison> {
    let stats = setup.targets.iter().map(|target| RequestStats::new(target.boundaries)).collect();
    let results = Mutex::new(RoundResults { stats, rounds: Vec::new() });
    let state = Arc::new(ComparisonState { setup, counters: Arc::default(), next: AtomicU64::new(0), results, stop });
    let probe = if probe_lag { Some(LagProbe::start()?) } else { None };
    let begun = state.counters.read();
    let cpu = CpuClock::Process.read();
    let on_round = Arc::new(on_round);
    let mut tasks = JoinSet::new();
    for _ in 0..state.setup.concurrency {
        let state = state.clone();
        let on_round = on_round.clone();
        tasks.spawn(async move {
            loop {
                let number = state.next.fetch_add(1, Relaxed);
                if *state.stop.borrow() || number >= state.setup.warm_up + state.setup.rounds {
                    return Ok(());
                }
                run_round(&state, number).await?;
                on_round(number + 1);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap_or_else(|error| Err(Error::Internal(format!("a round's task: {error}"))))?;
    }
    let lags = LagProbe::stop(probe).await?;
    let mut comparison = build_comparison(&state)?;
    comparison.tester = Some(assess_tester(&state, begun, cpu, lags, &comparison.models));
    Ok(comparison)
}

/// Assesses whether the tester was the limit.
fn assess_tester(
    state: &ComparisonState,
    begun: CounterSnapshot,
    cpu: Option<Duration>,
    lags: ValueHistogram,
    models: &[ComparedModel],
) -> TesterFigures {
    let figures: Vec<_> = models.iter().map(|model| &model.figures).collect();
    TesterMeasurement {
        threads: state.setup.threads,
        connections: state.setup.targets.iter().map(|target| target.pool.connections.len()).sum(),
        window: state.counters.read().since(&begun),
        cpu: CpuClock::Process.since(cpu),
        peak: None,
        lags,
        held: 0,
        evidence: LimitEvidence::of(&figures),
    }
    .assess()
}

async fn run_round(state: &ComparisonState, number: u64) -> Result<()> {
    let ComparisonSetup { targets, mix, warm_up, .. } = &state.setup;
    let drawn = mix.draw(number)?;
    let mut round: RoundOfModels = vec![None; targets.len()];
    let mut ended = Vec::new();
    for turn in 0..targets.len() {
        let model = (turn + number as usize) % targets.len();
        let mut timer = ClientTimer::new(state.counters.clone(), Instant::now(), None);
        let outcome = execute(&*drawn.request, &targets[model], &mut timer, &mut state.stop.clone()).await;
        let total = timer.sent.unwrap_or(timer.intended).elapsed();
        let request = TimedRequest { timer, outcome, total };
        round[model] = request.figures();
        ended.push((model, request));
        if *state.stop.borrow() {
            break;
        }
    }
    if number < *warm_up {
        return Ok(());
    }
    let mut results = state.results.lock().unwrap_or_else(PoisonError::into_inner);
    for (model, TimedRequest { timer, outcome, total }) in ended {
        let good = outcome == RequestOutcome::Completed;
        if let Some(stats) = results.stats.get_mut(model) {
            stats.record(&timer, &outcome, total, good);
        }
    }
    results.rounds.push(round);
    Ok(())
}

impl TimedRequest {
    fn figures(&self) -> Option<RoundFigures> {
        let report = self.timer.server_report;
        let summary = report.and_then(|report| report.summary);
        (self.outcome == RequestOutcome::Completed).then(|| RoundFigures {
            // the typist determines how long a session takes
            total: self.timer.edits.is_none().then_some(self.total),
            first: self.timer.first_from_send(),
            // summaries have equally many tokens, which are more characters of one model than of another
            char: self.timer.per_char().filter(|_| summary.is_none()),
            encode: summary.filter(|summary| summary.cached_tokens == 0).map(|summary| summary.encode),
            decode_token: summary.and_then(|summary| summary.per_token()),
            keystroke: self.timer.edits.as_ref().and_then(|edits| edits.percentile(0.5)),
            unpooled: report.and_then(|report| report.unpooled),
        })
    }
}

fn estimated_gains(times: &[UnpooledTimes], seed: u64) -> Option<Gains> {
    let gain_in = |estimate_and_measured: fn(&UnpooledTimes) -> (Duration, Duration)| {
        let pairs = times.iter().map(estimate_and_measured).filter(|(_, measured)| !measured.is_zero());
        let pairs = pairs.map(|(estimate, measured)| (estimate.as_secs_f64(), measured.as_secs_f64()));
        gain(&pairs.collect::<Vec<_>>(), seed)
    };
    (!times.is_empty()).then(|| Gains {
        total: gain_in(|times| (times.prefill_estimate + times.decode_estimate, times.prefill + times.decode)),
        time_to_first_char: gain_in(|times| (times.prefill_estimate, times.prefill)),
        char: gain_in(|times| (times.decode_estimate, times.decode)),
        encode: None,
        decode_token: None,
        keystroke: None,
    })
}

fn build_comparison(state: &ComparisonState) -> Result<ModelComparison> {
    let ComparisonSetup { targets, warm_up, concurrency, seed, .. } = &state.setup;
    let results = state.results.lock().unwrap_or_else(PoisonError::into_inner);
    let complete: Vec<_> = results.rounds.iter().filter(|round| round.iter().all(Option::is_some)).collect();
    // only rounds in which all models have the figure, so that a model's median does not depend on the model it is compared with
    let column = |model: usize, figure: fn(&RoundFigures) -> Option<Duration>| -> Vec<f64> {
        let nanos = |figures: &Option<RoundFigures>| Some(figure(figures.as_ref()?)?.as_nanos() as f64);
        let usable = complete.iter().filter(|round| round.iter().all(|figures| nanos(figures).is_some()));
        usable.filter_map(|round| nanos(round.get(model)?)).collect()
    };
    let gain_in = |model: usize, figure: fn(&RoundFigures) -> Option<Duration>| {
        gain(&column(0, figure).into_iter().zip(column(model, figure)).collect::<Vec<_>>(), *seed)
    };
    let compared = |(model, target): (usize, &RequestTarget)| {
        let stats = results.stats.get(model).ok_or_else(|| Error::Internal("a model without figures".into()))?;
        let gains = || Gains {
            total: gain_in(model, |figures| figures.total),
            time_to_first_char: gain_in(model, |figures| figures.first),
            char: gain_in(model, |figures| figures.char),
            encode: gain_in(model, |figures| figures.encode),
            decode_token: gain_in(model, |figures| figures.decode_token),
            keystroke: gain_in(model, |figures| figures.keystroke),
        };
        let unpooled: Vec<_> = complete.iter().filter_map(|round| round.get(model)?.as_ref()?.unpooled).collect();
        Ok(ComparedModel {
            model: target.model.clone(),
            unit: None,
            bits_per_char: None,
            score_refused: None,
            figures: stats.figures(),
            medians: Some(Medians {
                total_ns: median(column(model, |figures| figures.total)),
                time_to_first_char_ns: median(column(model, |figures| figures.first)),
                char_ns: median(column(model, |figures| figures.char)),
                encode_ns: median(column(model, |figures| figures.encode)),
                decode_token_ns: median(column(model, |figures| figures.decode_token)),
                keystroke_ns: median(column(model, |figures| figures.keystroke)),
            }),
            gains: (model > 0).then(gains),
            estimated: estimated_gains(&unpooled, *seed),
            calibrated: None,
        })
    };
    Ok(ModelComparison {
        baseline: targets.first().map(|target| target.model.clone()).unwrap_or_default(),
        rounds: results.rounds.len() as u64,
        complete: complete.len() as u64,
        concurrency: *concurrency,
        warm_up: *warm_up,
        interrupted: *state.stop.borrow(),
        scored: None,
        models: targets.iter().enumerate().map(compared).collect::<Result<_>>()?,
        tester: None,
    })
}

/// Returns the bits per character of the text. Fails if the server rejects the request or exceeds the target's time limit.
pub async fn bits_per_char(target: &RequestTarget, text: &str) -> Result<f64, String> {
    let describe = |status: Status| format!("{}: {}", code_name(&status), status.message());
    match timeout(target.timeout, score(target, text)).await {
        Ok(answer) => answer.map_err(describe),
        Err(_) => Err(format!("no answer in {:?}", target.timeout)),
    }
}

async fn score(target: &RequestTarget, text: &str) -> Result<f64, Status> {
    let connection = target.pool.next()?;
    let message = ScoreRequest { model: Some(target.model.clone()), text: text.into(), ..Default::default() };
    let request = connection.request(message, target.timeout);
    let mut stream = GenerationClient::new(connection.channel()).score(request).await?.into_inner();
    while let Some(message) = stream.message().await? {
        if let Some(Event::Summary(summary)) = message.event {
            return summary.bits_per_char.ok_or_else(|| Status::unknown("nothing was scored"));
        }
    }
    Err(Status::unknown("the stream ended without `summary`"))
}
