//! Compares models of one server request by request: each request goes to one model after the other, with the same prompt, length
//! and seed, in an order that changes with every round.

use crate::client::{CalibrationSummary, SymbolUnit, code_name};
use crate::driver::{StopSignal, WorkloadMix, execute};
use crate::error::Result;
use crate::stats::{RequestFigures, RequestOutcome, RequestStats};
use crate::tester::{LagProbe, TesterFigures};
use crate::timer::{ClientTimer, LiveCounters, ServerReport};
use crate::workload::RequestTarget;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tonic::Status;
use weir_measure::stats::{Gain, MeanDifference, median};
use weir_proto::v1::{ScoreRequest, score_response::Event};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelComparison {
    pub baseline: String,
    pub rounds: u64,
    pub complete: u64,
    pub warm_up: u64,
    pub interrupted: bool,
    pub scored: Option<String>,
    pub models: Vec<ComparedModel>,
    /// Load of the tester itself, warm-up included.
    pub tester: TesterFigures,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparedModel {
    pub model: String,
    /// Unit of its answers' lengths.
    pub unit: SymbolUnit,
    /// Bits per character of the scored text, from the server's `Score`; per byte if symbols are bytes. Absent if not requested or
    /// rejected.
    pub bits_per_char: Option<f64>,
    /// Its bits minus the baseline's. Absent for the baseline, and if the two have other symbols.
    pub bits_difference: Option<MeanDifference>,
    pub score_refused: Option<String>,
    pub figures: RequestFigures,
    /// Medians whose ratios are the gains.
    pub medians: Medians,
    /// Measured speed relative to the baseline, from the medians of complete rounds. Absent for the baseline itself.
    pub gains: Option<Gains>,
    /// Estimated, not measured: speed relative to the same model without pooling, from the server's estimates for the same rounds.
    /// Absent if the server reports no estimates.
    pub estimated: Option<Gains>,
    /// Quality of the calibration behind `estimated`. Absent if the server does not report it.
    pub calibrated: Option<CalibrationSummary>,
}

/// Medians over the rounds in which all models have the figure, counted from sending. `figures` has percentiles of histograms
/// over all requests of the model, which may differ.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Medians {
    pub total_ns: Option<f64>,
    pub time_to_first_char_ns: Option<f64>,
    pub char_ns: Option<f64>,
    pub encode_ns: Option<f64>,
    pub decode_token_ns: Option<f64>,
    pub keystroke_ns: Option<f64>,
}

/// Gains: the baseline's median divided by this model's, over complete rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gains {
    pub total: Option<Gain>,
    pub time_to_first_char: Option<Gain>,
    pub char: Option<Gain>,
    pub encode: Option<Gain>,
    pub decode_token: Option<Gain>,
    pub keystroke: Option<Gain>,
}

impl ComparedModel {
    /// Compares the estimated with the measured gains in total time and in time per character: the estimated one divided by the
    /// measured one, minus 1. Both are about the same thing only if the baseline is this model without pooling.
    pub fn estimate_errors(&self) -> Vec<(&'static str, f64)> {
        let (Some(gains), Some(estimated)) = (&self.gains, &self.estimated) else { return Vec::new() };
        let pairs = [("total", gains.total, estimated.total), ("per character", gains.char, estimated.char)];
        let error = |(figure, measured, estimate): (_, Option<Gain>, Option<Gain>)| {
            Some((figure, estimate?.ratio / measured?.ratio - 1.0))
        };
        pairs.into_iter().filter_map(error).collect()
    }
}

impl ModelComparison {
    /// Sets the unit of each model's answers. If they differ, answers of N symbols are texts of different length, so their total
    /// times have no gain.
    pub fn set_units(&mut self, units: impl IntoIterator<Item = SymbolUnit>) {
        self.models.iter_mut().zip(units).for_each(|(model, unit)| model.unit = unit);
        if self.mixed_units().is_some() {
            self.models.iter_mut().filter_map(|model| model.gains.as_mut()).for_each(|gains| gains.total = None);
        }
    }

    /// Describes the units of the answers, if the models that write texts have different ones.
    pub fn mixed_units(&self) -> Option<String> {
        let mut units: BTreeMap<SymbolUnit, Vec<&str>> = BTreeMap::new();
        for model in self.models.iter().filter(|model| model.figures.summaries.is_none()) {
            units.entry(model.unit).or_default().push(&model.model);
        }
        let all: Vec<_> =
            units.iter().map(|(unit, models)| format!("N {} from {}", unit.name(), models.join(" and "))).collect();
        (all.len() > 1).then(|| {
            format!(
                "an answer of N symbols is {}: the texts have different lengths, so total times are not compared; compare times per \
                 character",
                all.join(", but ")
            )
        })
    }
}

/// Maximum models.
pub const MAX_MODELS: usize = 8;
/// Maximum rounds; the figures of each are kept.
pub const MAX_ROUNDS: u64 = 100_000;

/// Models, requests and size of a comparison.
pub struct ComparisonSetup {
    /// One target per model, the baseline first.
    pub targets: Vec<RequestTarget>,
    pub mix: WorkloadMix,
    pub rounds: u64,
    /// Rounds before, which are not measured.
    pub warm_up: u64,
    pub seed: u64,
    pub threads: usize,
}

/// Figures of a model in a round in which it succeeded.
#[derive(Debug, Clone, Copy)]
struct RoundFigures {
    /// Times in total, to the first character, per character, encoding, per token, from keystroke to completions.
    times: [Option<Duration>; 6],
    /// Estimates of the server: see [`ServerReport::estimates`].
    estimates: Option<[(f64, f64); 3]>,
}

/// Figures of each model in a round; `None` for models that failed.
type RoundOfModels = Vec<Option<RoundFigures>>;

/// Runs all rounds. Calls `on_round` after each with the number of rounds begun. With `probe_lag`, measures how late this program
/// sees events. Fails only if an invariant is broken; failed requests are not errors.
pub async fn compare_models(
    setup: ComparisonSetup,
    stop: StopSignal,
    probe_lag: bool,
    on_round: impl Fn(u64),
) -> Result<ModelComparison> {
    let counters = Arc::new(LiveCounters::default());
    let mut stats: Vec<_> = setup.targets.iter().map(|target| RequestStats::new(target.boundaries)).collect();
    let mut rounds = Vec::new();
    let probe = if probe_lag { Some(LagProbe::start()?) } else { None };
    let begun = counters.read();
    for number in 0..setup.warm_up + setup.rounds {
        if *stop.borrow() {
            break;
        }
        let mut measured = if number < setup.warm_up { None } else { Some(&mut stats) };
        let round = run_round(&setup, number, &counters, &stop, measured.as_deref_mut()).await?;
        rounds.extend(measured.map(|_| round));
        on_round(number + 1);
    }
    let lags = LagProbe::stop(probe).await?;
    let mut tester = TesterFigures::new(
        setup.threads,
        setup.targets.iter().map(|target| target.pool.connections.len()).sum(),
        counters.read().since(&begun),
        &lags,
    );
    let models = compared_models(&setup, &stats, &rounds);
    tester.find_limits(&models.iter().map(|model| &model.figures).collect::<Vec<_>>());
    Ok(ModelComparison {
        baseline: setup.targets.first().map(|target| target.model.clone()).unwrap_or_default(),
        rounds: rounds.len() as u64,
        complete: rounds.iter().filter(|round| round.iter().all(Option::is_some)).count() as u64,
        warm_up: setup.warm_up,
        interrupted: *stop.borrow(),
        scored: None,
        models,
        tester,
    })
}

/// Sends a request to each model in turn. Records the outcomes in `stats`, if the round is measured.
async fn run_round(
    setup: &ComparisonSetup,
    number: u64,
    counters: &Arc<LiveCounters>,
    stop: &StopSignal,
    mut stats: Option<&mut Vec<RequestStats>>,
) -> Result<RoundOfModels> {
    let targets = &setup.targets;
    let (_, request) = setup.mix.draw(number)?;
    let mut round: RoundOfModels = vec![None; targets.len()];
    for turn in 0..targets.len() {
        let model = (turn + number as usize) % targets.len();
        let mut timer = ClientTimer::new(counters.clone(), Instant::now());
        let outcome = execute(&request, &targets[model], &mut timer, &mut stop.clone()).await;
        let total = timer.sent.unwrap_or(timer.intended).elapsed();
        let good = outcome == RequestOutcome::Completed;
        round[model] = good.then(|| RoundFigures::of(&timer, total));
        if let Some(stats) = &mut stats {
            stats[model].record(&timer, &outcome, total, good);
        }
        if *stop.borrow() {
            break;
        }
    }
    Ok(round)
}

impl RoundFigures {
    fn of(timer: &ClientTimer, total: Duration) -> Self {
        let report = timer.server_report.as_ref();
        let is_summary = matches!(report, Some(ServerReport::Summary { .. }));
        let times = [
            // the typist determines how long a session takes
            timer.edits.is_none().then_some(total),
            timer.first_from_send(),
            // summaries have equally many tokens, which are more characters of one model than of another
            timer.per_char().filter(|_| !is_summary),
            report.and_then(ServerReport::encode_ns).map(Duration::from_nanos),
            report.and_then(ServerReport::token_ns).map(Duration::from_nanos),
            timer.edits.as_ref().and_then(|edits| edits.percentile(0.5)),
        ];
        Self { times, estimates: report.and_then(ServerReport::estimates) }
    }
}

fn estimated_gains(rounds: &[[(f64, f64); 3]], seed: u64) -> Option<Gains> {
    let gain_in = |figure: usize| {
        let pairs = rounds.iter().map(|pairs| pairs[figure]).filter(|(_, measured)| *measured > 0.0);
        Gain::from_pairs(&pairs.collect::<Vec<_>>(), seed)
    };
    let [total, time_to_first_char, char] = [0, 1, 2].map(gain_in);
    (!rounds.is_empty()).then(|| Gains { total, time_to_first_char, char, ..Gains::default() })
}

fn compared_models(setup: &ComparisonSetup, stats: &[RequestStats], rounds: &[RoundOfModels]) -> Vec<ComparedModel> {
    let seed = setup.seed;
    let complete: Vec<_> = rounds.iter().filter(|round| round.iter().all(Option::is_some)).collect();
    // only rounds in which all models have the figure, so that a model's median does not depend on the model it is compared with
    let column = |model: usize, figure: usize| -> Vec<f64> {
        let nanos = |figures: &Option<RoundFigures>| Some(figures.as_ref()?.times[figure]?.as_nanos() as f64);
        let usable = complete.iter().filter(|round| round.iter().all(|figures| nanos(figures).is_some()));
        usable.filter_map(|round| nanos(round.get(model)?)).collect()
    };
    let all = [0, 1, 2, 3, 4, 5];
    let gains = |model: usize| {
        let [total, time_to_first_char, char, encode, decode_token, keystroke] = all.map(|figure| {
            let pairs: Vec<_> = column(0, figure).into_iter().zip(column(model, figure)).collect();
            Gain::from_pairs(&pairs, seed)
        });
        Gains { total, time_to_first_char, char, encode, decode_token, keystroke }
    };
    let medians = |model: usize| {
        let [total_ns, time_to_first_char_ns, char_ns, encode_ns, decode_token_ns, keystroke_ns] =
            all.map(|figure| median(column(model, figure)));
        Medians { total_ns, time_to_first_char_ns, char_ns, encode_ns, decode_token_ns, keystroke_ns }
    };
    let compared = |(model, (target, stats)): (usize, (&RequestTarget, &RequestStats))| {
        let estimates: Vec<_> = complete.iter().filter_map(|round| round.get(model)?.as_ref()?.estimates).collect();
        ComparedModel {
            model: target.model.clone(),
            unit: SymbolUnit::default(),
            bits_per_char: None,
            bits_difference: None,
            score_refused: None,
            figures: stats.figures(),
            medians: medians(model),
            gains: (model > 0).then(|| gains(model)),
            estimated: estimated_gains(&estimates, seed),
            calibrated: None,
        }
    };
    setup.targets.iter().zip(stats).enumerate().map(compared).collect()
}

/// Symbols of a block of a scored text. Neighbouring symbols are hard or easy together, so the interval of a difference comes from
/// blocks.
const BLOCK: usize = 256;

/// Bits of a scored text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TextBits {
    /// Mean per character.
    pub per_char: f64,
    /// Bits of each block of [`BLOCK`] symbols, and their number.
    blocks: Vec<(f64, f64)>,
}

impl TextBits {
    /// Adds the next symbol; `None` if the server did not score it.
    fn add(&mut self, index: usize, bits: Option<f64>) {
        if index.is_multiple_of(BLOCK) {
            self.blocks.push((0.0, 0.0));
        }
        if let (Some(block), Some(bits)) = (self.blocks.last_mut(), bits) {
            block.0 += bits;
            block.1 += 1.0;
        }
    }

    /// Returns these bits minus the baseline's; `None` if the two texts have other symbols.
    pub fn minus(&self, baseline: &Self, seed: u64) -> Option<MeanDifference> {
        let is_same = self.blocks.len() == baseline.blocks.len();
        let pairs = self.blocks.iter().zip(&baseline.blocks);
        if !is_same || pairs.clone().any(|(own, other)| own.1 != other.1) {
            return None;
        }
        let differences: Vec<_> = pairs.map(|(own, other)| (own.0 - other.0, own.1)).collect();
        MeanDifference::from_blocks(&differences, seed)
    }
}

/// Returns the bits of the text. Fails if the server rejects the request or exceeds the target's time limit.
pub async fn text_bits(target: &RequestTarget, text: &str) -> Result<TextBits, String> {
    let describe = |status: Status| format!("{}: {}", code_name(&status), status.message());
    match timeout(target.timeout, score(target, text)).await {
        Ok(answer) => answer.map_err(describe),
        Err(_) => Err(format!("no answer in {:?}", target.timeout)),
    }
}

async fn score(target: &RequestTarget, text: &str) -> Result<TextBits, Status> {
    let connection = target.pool.next()?;
    let message = ScoreRequest { model: Some(target.model.clone()), text: text.into(), ..Default::default() };
    let request = connection.request_within(message, target.timeout);
    let mut stream = connection.start_score(request).await?.into_inner();
    let mut bits = TextBits::default();
    let mut index = 0;
    while let Some(message) = stream.message().await? {
        match message.event {
            Some(Event::Chunk(chunk)) => {
                for character in chunk.characters {
                    let nats = character.logprob.map(|logprob| -f64::from(logprob));
                    bits.add(index, nats.map(|nats| nats / std::f64::consts::LN_2));
                    index += 1;
                }
            }
            Some(Event::Summary(summary)) => {
                bits.per_char = summary.bits_per_char.ok_or_else(|| Status::unknown("nothing was scored"))?;
                return Ok(bits);
            }
            None => {}
        }
    }
    Err(Status::unknown("the stream ended without `summary`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(bits: impl Iterator<Item = f64>) -> TextBits {
        let mut text = TextBits::default();
        text.add(0, None);
        bits.enumerate().for_each(|(index, bits)| text.add(index + 1, Some(bits)));
        text
    }

    #[test]
    fn bits_are_compared_block_by_block() {
        let baseline = scored((1..3000).map(|_| 2.0));
        let better = scored((1..3000).map(|index| if index % 2 == 0 { 1.0 } else { 2.0 }));
        let difference = better.minus(&baseline, 1).unwrap();
        assert!((difference.difference + 0.5).abs() < 1e-3, "{difference:?}");
        assert_eq!(difference.blocks, 12);
        assert!(difference.low.unwrap() <= -0.5 && difference.high.unwrap() >= -0.501, "{difference:?}");
        assert_eq!(scored((1..2999).map(|_| 2.0)).minus(&baseline, 1), None, "another number of symbols");
        assert_eq!(TextBits::default().minus(&TextBits::default(), 1), None);
    }
}
