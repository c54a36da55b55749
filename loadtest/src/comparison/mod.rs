//! Models of one server compared request by request: the same prompt, length and seed of one after the other, in an order that
//! changes with every pair.

pub mod bootstrap;
pub mod score;

use self::bootstrap::{Gain, gain, median};
use crate::{
    client::models::CalibrationSummary,
    error::{Error, Result},
    load::{
        driver::StopSignal,
        execute::execute,
        workload::{PreparedRequest, RequestTarget, WorkloadMix},
    },
    measure::{
        counters::{CounterSnapshot, LiveCounters},
        histogram::ValueHistogram,
        request_timer::{RequestTimer, UnpooledTimes},
        stats::{RequestFigures, RequestOutcome, RequestStats},
        tester::{self, LagProbe, TesterFigures, TesterMeasurement},
    },
};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

/// The most models.
pub const MAX_MODELS: usize = 8;
/// The most pairs: their figures are kept one by one.
pub const MAX_PAIRS: u64 = 100_000;

/// What came of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelComparison {
    /// The model that others are measured by.
    pub baseline: String,
    /// Rounds in which every model answered the same request.
    pub rounds: u64,
    /// Of these, rounds in which all models ended well: what gains are worked out from.
    pub complete: u64,
    /// Rounds in flight at a time; in each, one model answers at a time.
    pub concurrency: usize,
    /// Rounds before, which were not measured.
    pub warm_up: u64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// The text that `bits_per_char` are of, and its characters.
    pub scored: Option<String>,
    /// Every model, the baseline first.
    pub models: Vec<ComparedModel>,
    /// What the tester took, warm-up included. Absent from reports of versions that did not tell.
    #[serde(default)]
    pub tester: Option<TesterFigures>,
}

/// A model in a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparedModel {
    /// Its name.
    pub model: String,
    /// What it costs: bits per character of the scored text, by the server's `Score`. Absent if not asked for, or refused.
    pub bits_per_char: Option<f64>,
    /// Why there is no `bits_per_char` although it was asked for.
    pub score_refused: Option<String>,
    /// Figures of its requests.
    pub figures: RequestFigures,
    /// What gains are ratios of. Absent from reports of versions that did not tell.
    #[serde(default)]
    pub medians: Option<Medians>,
    /// How many times as fast as the baseline it is, by the medians of complete rounds. None for the baseline itself.
    pub gains: Option<Gains>,
    /// Estimated, not measured: how many times as fast as the same model without pooling the server says that it is, by the medians
    /// of the same rounds. None where the server tells no estimate.
    pub estimated: Option<Gains>,
    /// The server's word of what that comes from. None where it tells none.
    #[serde(default)]
    pub calibrated: Option<CalibrationSummary>,
}

/// Medians over the rounds in which all models have the figure, from sending: the middle number, or the mean of the two in the middle.
/// Percentiles of `figures` are of histograms and of all its requests, so that they may be others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Medians {
    /// Of the time from sending to the end.
    pub total_ns: Option<f64>,
    /// Of the time from sending to the first character.
    pub time_to_first_char_ns: Option<f64>,
    /// Of the mean time of a character after the first.
    pub char_ns: Option<f64>,
    /// Of what encoding a document took, by the server's word.
    pub encode_ns: Option<f64>,
    /// Of a token of a summary after its first, by the server's word.
    pub decode_token_ns: Option<f64>,
}

/// Measured gains: the baseline's median by this model's, over complete rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gains {
    /// Of the time from sending to the end.
    pub total: Option<Gain>,
    /// Of the time from sending to the first character.
    pub time_to_first_char: Option<Gain>,
    /// Of the mean time of a character after the first.
    pub char: Option<Gain>,
    /// Of what encoding a document took, by the server's word.
    pub encode: Option<Gain>,
    /// Of a token of a summary after its first, by the server's word.
    pub decode_token: Option<Gain>,
}

impl ComparedModel {
    /// The medians that its gains are made of; of reports that do not tell them, those of its requests' histograms.
    pub fn told(&self) -> Medians {
        let figures = &self.figures;
        self.medians.clone().unwrap_or_else(|| Medians {
            total_ns: figures.total_from_send_ns.p50,
            time_to_first_char_ns: figures.time_to_first_char_from_send_ns.p50,
            // as many tokens are asked for of every summary, but not as many characters
            char_ns: figures.char_ns.p50.filter(|_| figures.summaries.is_none()),
            encode_ns: figures.summaries.as_ref().and_then(|told| told.encode_ns.p50),
            decode_token_ns: figures.summaries.as_ref().and_then(|told| told.decode_token_ns.p50),
        })
    }

    /// How much higher, as a share, the estimated gain is than the measured one: of the total and of a character. They are about the
    /// same thing only where the baseline is the model without its pooling.
    pub fn disagreement(&self) -> Vec<(&'static str, f64)> {
        let (Some(gains), Some(estimated)) = (&self.gains, &self.estimated) else { return Vec::new() };
        let pairs = [("total", gains.total, estimated.total), ("per character", gains.char, estimated.char)];
        let known = pairs.into_iter().filter_map(|(name, measured, told)| Some((name, measured?, told?)));
        known.map(|(name, measured, told)| (name, told.ratio / measured.ratio - 1.0)).collect()
    }
}

impl ModelComparison {
    /// Holds the server's estimates against what was measured.
    ///
    /// # Errors
    /// One is more than so many percent above or below, or there is none.
    pub fn agrees(&self, percent: f64) -> Result<()> {
        let told = || self.models.iter().flat_map(|side| side.disagreement().into_iter().map(move |told| (side, told)));
        if told().next().is_none() {
            let none = "--agree-within: the server told no estimate of any model but the baseline";
            return Err(Error::Setting(none.into()));
        }
        let Some((side, (what, share))) = told().find(|(_, (_, share))| (share * 100.0).abs() > percent) else {
            return Ok(());
        };
        let far = format!("{:+.1} % from the measured one, more than {percent} %", share * 100.0);
        Err(Error::Setting(format!("{}, {what}: the estimated gain is {far}", side.model)))
    }
}

/// What is compared.
pub struct ComparisonSetup {
    /// One for each model, the baseline first.
    pub targets: Vec<RequestTarget>,
    /// What they are asked for.
    pub mix: WorkloadMix,
    /// Rounds that are measured.
    pub rounds: u64,
    /// Rounds that are not, before.
    pub warm_up: u64,
    /// Rounds at a time.
    pub concurrency: usize,
    /// Of the bootstrap.
    pub seed: u64,
    /// Threads that the tester computes on.
    pub threads: usize,
}

/// A model's figures in a round that ended well.
#[derive(Debug, Clone, Copy)]
struct RoundFigures {
    /// The time to the end, to the first character, of a character; of a document's encoding, and of a token of its summary.
    times: [Option<Duration>; 5],
    /// What the server says it took, and would have taken without pooling.
    unpooled: Option<UnpooledTimes>,
}

struct ComparisonState {
    plan: ComparisonSetup,
    meter: Arc<LiveCounters>,
    next: AtomicU64,
    played: Mutex<RoundResults>,
    stop: StopSignal,
}

struct RoundResults {
    tallies: Vec<RequestStats>,
    rounds: Vec<Vec<Option<RoundFigures>>>,
}

/// Plays all rounds; `look` is called after each with how many there were. With a `pulse` it is told how late events are seen.
///
/// # Errors
/// A broken invariant; what requests are answered is no error.
pub async fn play(
    plan: ComparisonSetup,
    (stop, pulse): (StopSignal, bool),
    look: impl Fn(u64) + Send + Sync + 'static,
) -> Result<ModelComparison> {
    let tallies = plan.targets.iter().map(|target| RequestStats::new(target.boundaries)).collect::<Result<Vec<_>>>()?;
    let played = Mutex::new(RoundResults { tallies, rounds: Vec::new() });
    let shared = Arc::new(ComparisonState { plan, meter: Arc::default(), next: AtomicU64::new(0), played, stop });
    let pulse = if pulse { Some(LagProbe::start()?) } else { None };
    let begun = (shared.meter.read(), tester::cpu());
    let (look, mut players) = (Arc::new(look), JoinSet::new());
    for _ in 0..shared.plan.concurrency {
        let (shared, look) = (shared.clone(), look.clone());
        players.spawn(async move {
            loop {
                let number = shared.next.fetch_add(1, Relaxed);
                if *shared.stop.borrow() || number >= shared.plan.warm_up + shared.plan.rounds {
                    return Ok(());
                }
                round(&shared, number).await?;
                look(number + 1);
            }
        });
    }
    while let Some(ended) = players.join_next().await {
        ended.unwrap_or_else(|error| Err(Error::Internal(format!("a round's task: {error}"))))?;
    }
    let lags = match pulse {
        Some(pulse) => Some(pulse.stop().await?),
        None => None,
    };
    let mut comparison = told(&shared)?;
    comparison.tester = Some(judged(&shared, begun, lags, &comparison.models));
    Ok(comparison)
}

/// Whether the tester may be the limit: held against the fastest model, whose figures it would change most.
fn judged(
    shared: &ComparisonState,
    (begun, cpu): (CounterSnapshot, Option<Duration>),
    lags: Option<ValueHistogram>,
    models: &[ComparedModel],
) -> TesterFigures {
    let least = |of: fn(&RequestFigures) -> Option<f64>| {
        models.iter().filter_map(|side| of(&side.figures)).min_by(f64::total_cmp)
    };
    let evidence = TesterMeasurement {
        threads: shared.plan.threads,
        connections: shared.plan.targets.iter().map(|target| target.pool.size()).sum(),
        window: shared.meter.read().since(&begun),
        cpu: tester::cpu().zip(cpu).map(|(now, then)| now.saturating_sub(then)),
        peak: None,
        lags,
        held: 0,
        own: models.iter().map(|side| side.figures.requests.own()).sum(),
        medians: [least(|figures| figures.time_to_first_char_ns.p50), least(|figures| figures.gap_ns.p50)],
    };
    evidence.judge()
}

/// One request, of every model in turn.
async fn round(shared: &ComparisonState, number: u64) -> Result<()> {
    let ComparisonSetup { targets, mix, warm_up, .. } = &shared.plan;
    let drawn = mix.draw(number)?;
    let mut times: Vec<Option<RoundFigures>> = vec![None; targets.len()];
    let mut done = Vec::new();
    for turn in 0..targets.len() {
        let which = (turn + number as usize) % targets.len();
        let (watch, end, total) = timed(shared, &*drawn.exchange, &targets[which]).await;
        if end == RequestOutcome::Completed {
            let summary = watch.told.and_then(|told| told.summary);
            let encode = summary.filter(|summary| summary.cached_tokens == 0).map(|summary| summary.encode);
            let token = summary.and_then(|summary| summary.per_token());
            // of summaries so many tokens are asked for, which are more characters in one model's words than in another's
            let char = watch.per_char().filter(|_| summary.is_none());
            times[which] = Some(RoundFigures {
                times: [Some(total), watch.first_sent(), char, encode, token],
                unpooled: watch.told.and_then(|told| told.unpooled),
            });
        }
        done.push((which, watch, end, total));
        if *shared.stop.borrow() {
            break;
        }
    }
    if number < *warm_up {
        return Ok(());
    }
    let mut played = shared.played.lock().unwrap_or_else(PoisonError::into_inner);
    for (which, watch, end, total) in done {
        let good = end == RequestOutcome::Completed;
        if let Some(tally) = played.tallies.get_mut(which) {
            tally.take(&watch, &end, total, good);
        }
    }
    played.rounds.push(times);
    Ok(())
}

async fn timed(
    shared: &ComparisonState,
    exchange: &dyn PreparedRequest,
    target: &RequestTarget,
) -> (RequestTimer, RequestOutcome, Duration) {
    let mut watch = RequestTimer::new(shared.meter.clone(), Instant::now(), None);
    let end = execute(exchange, target, &mut watch, &mut shared.stop.clone()).await;
    let total = watch.sent.unwrap_or(watch.intended).elapsed();
    (watch, end, total)
}

/// The server's estimates of the same requests, as gains.
fn estimated(told: &[UnpooledTimes], seed: u64) -> Option<Gains> {
    let of = |times: fn(&UnpooledTimes) -> (Duration, Duration)| {
        let pairs = told.iter().map(times).filter(|(_, took)| !took.is_zero());
        gain(&pairs.map(|(would, took)| (would.as_secs_f64(), took.as_secs_f64())).collect::<Vec<_>>(), seed)
    };
    (!told.is_empty()).then(|| Gains {
        total: of(|told| (told.prefill_estimate + told.decode_estimate, told.prefill + told.decode)),
        time_to_first_char: of(|told| (told.prefill_estimate, told.prefill)),
        char: of(|told| (told.decode_estimate, told.decode)),
        encode: None,
        decode_token: None,
    })
}

fn told(shared: &ComparisonState) -> Result<ModelComparison> {
    let ComparisonSetup { targets, warm_up, concurrency, seed, .. } = &shared.plan;
    let played = shared.played.lock().unwrap_or_else(PoisonError::into_inner);
    let complete: Vec<&Vec<Option<RoundFigures>>> =
        played.rounds.iter().filter(|round| round.iter().all(Option::is_some)).collect();
    // of rounds in which all models have the figure, so that a model has one median, whomever it is held against
    let column = |which: usize, figure: usize| -> Vec<f64> {
        let of = |timed: &Option<RoundFigures>| Some(timed.as_ref()?.times[figure]?.as_nanos() as f64);
        let whole = complete.iter().filter(|round| round.iter().all(|timed| of(timed).is_some()));
        whole.filter_map(|round| of(round.get(which)?)).collect()
    };
    let gain_of = |which: usize, figure: usize| {
        gain(&column(0, figure).into_iter().zip(column(which, figure)).collect::<Vec<_>>(), *seed)
    };
    let side = |(which, target): (usize, &RequestTarget)| {
        let tally = played.tallies.get(which).ok_or_else(|| Error::Internal("a model without figures".into()))?;
        let gains = || Gains {
            total: gain_of(which, 0),
            time_to_first_char: gain_of(which, 1),
            char: gain_of(which, 2),
            encode: gain_of(which, 3),
            decode_token: gain_of(which, 4),
        };
        let told: Vec<UnpooledTimes> =
            complete.iter().filter_map(|round| round.get(which)?.as_ref()?.unpooled).collect();
        Ok(ComparedModel {
            model: target.model.clone(),
            bits_per_char: None,
            score_refused: None,
            figures: tally.figures()?,
            medians: Some(Medians {
                total_ns: median(column(which, 0)),
                time_to_first_char_ns: median(column(which, 1)),
                char_ns: median(column(which, 2)),
                encode_ns: median(column(which, 3)),
                decode_token_ns: median(column(which, 4)),
            }),
            gains: (which > 0).then(gains),
            estimated: estimated(&told, *seed),
            calibrated: None,
        })
    };
    Ok(ModelComparison {
        baseline: targets.first().map(|target| target.model.clone()).unwrap_or_default(),
        rounds: played.rounds.len() as u64,
        complete: complete.len() as u64,
        concurrency: *concurrency,
        warm_up: *warm_up,
        interrupted: *shared.stop.borrow(),
        scored: None,
        models: targets.iter().enumerate().map(side).collect::<Result<_>>()?,
        tester: None,
    })
}
