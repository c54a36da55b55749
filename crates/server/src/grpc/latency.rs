//! The service `Latency`: reports how long requests took, per model, next to an estimate of the time without pooling.

use crate::call::{Call, Reply};
use crate::grpc::convert::{self, count, nanoseconds};
use crate::latency_windows::{LatencyKind, LatencyPeriod, LatencySlice, LayerTotals, ReportCounts, SHARE_UNITS};
use crate::registry::{Engines, Lease};
use crate::status::status;
use std::time::UNIX_EPOCH;
use tonic::{Request, Response};
use weir_engine::Handle;
use weir_engine::calibration::{Calibrated, NotCalibrated, StepTiming, TimingTable};
use weir_kernels::error::{Error, Result};
use weir_models::{contract::unpooled_name, usage::by_level};
use weir_proto::v1::{self, ReportWindow, latency_server};

pub(crate) struct LatencyService(pub(crate) Engines);

impl LatencyService {
    fn report(&self, request: &v1::GetReportRequest) -> Result<v1::GetReportResponse> {
        let window = report_window(request)?;
        let engines = self.0.select(request.model.as_deref())?;
        let all = self.0.all();
        let models = engines.iter().map(|engine| model_report(engine, find_baseline(engine, &all), window)).collect();
        Ok(v1::GetReportResponse { models })
    }
}

impl Engines {
    /// Resets the reports since the last reset, for the model of that name or for all models. Returns their names.
    pub(crate) fn reset_reports(&self, model: Option<&str>) -> Result<Vec<String>> {
        let engines = self.select(model)?;
        engines.iter().for_each(|engine| engine.meter().reset());
        Ok(engines.iter().map(|engine| engine.card().name.clone()).collect())
    }

    /// Returns the engine of that name, or all engines without a name.
    fn select(&self, name: Option<&str>) -> Result<Vec<Lease>> {
        match name.filter(|name| !name.is_empty()) {
            Some(name) => Ok(vec![self.find("model", Some(name))?]),
            None => Ok(self.all()),
        }
    }
}

/// Returns the window that a request asks for, by default the time since the model was loaded.
fn report_window(request: &v1::GetReportRequest) -> Result<ReportWindow> {
    let number = request.window.unwrap_or_default();
    match ReportWindow::try_from(number) {
        Ok(ReportWindow::Unspecified) => Ok(ReportWindow::SinceLoad),
        Ok(window) => Ok(window),
        Err(_) => Err(Error::bad_option("window", number.to_string(), "a value of ReportWindow, 0 to 3")),
    }
}

fn model_report(engine: &Lease, baseline: Option<&Lease>, window: ReportWindow) -> v1::ModelReport {
    let period = match window {
        ReportWindow::Unspecified | ReportWindow::SinceLoad => LatencyPeriod::SinceLoad,
        ReportWindow::SinceReset => LatencyPeriod::SinceReset,
        ReportWindow::LastMinute => LatencyPeriod::LastMinute,
    };
    let (slice, length) = engine.meter().report(period);
    let gain_over = |baseline: &Lease| baseline_gain(&slice, &baseline.meter().report(period).0, &baseline.card().name);
    let card = engine.card();
    let calibration = engine.calibration();
    let summarizes = engine.document_limits().is_some();
    v1::ModelReport {
        model: card.name.clone(),
        family: card.family.to_owned(),
        shape: card.shape.clone(),
        dtype: card.dtype.to_owned(),
        sha256: card.sha256.clone(),
        generation: engine.generation(),
        pooled: card.pooled,
        window: window.into(),
        window_ns: nanoseconds(length),
        texts: (!summarizes).then(|| texts(&slice)),
        estimated_gain: gain(&slice.counts, calibration.as_ref()),
        estimate_missing: missing(engine, &slice.counts, calibration.as_ref()),
        cache: (!summarizes).then(|| cache(&slice.counts)),
        summaries: summarizes.then(|| summaries(&slice)),
        twin_gain: baseline.map(gain_over),
        calibration_pending: calibration.is_none() && engine.card().pooled && !summarizes,
    }
}

fn texts(slice: &LatencySlice) -> v1::MeasuredTexts {
    let ReportCounts { middle_run, middle_skipped, steps, rows, middle_steps, middle_rows, .. } = slice.counts;
    v1::MeasuredTexts {
        requests: slice.counts.requests,
        failed: slice.counts.failed,
        prompt_chars: slice.counts.prompt_chars,
        cached_chars: slice.counts.cached_chars,
        generated_chars: slice.counts.generated_chars,
        middle_steps_run: middle_run,
        middle_steps_skipped: middle_skipped,
        shortening_factor: ratio(middle_run + middle_skipped, middle_run),
        steps,
        rows_per_step: ratio(rows, steps),
        rows_per_middle_step: ratio(middle_rows, middle_steps),
        time_to_first_char: histogram(slice, LatencyKind::First),
        plain_gap: histogram(slice, LatencyKind::PlainGap),
        boundary_gap: histogram(slice, LatencyKind::BoundaryGap),
        segment: histogram(slice, LatencyKind::Segment),
        queue: histogram(slice, LatencyKind::Queue),
        prefill: histogram(slice, LatencyKind::Prefill),
        total: histogram(slice, LatencyKind::Total),
        levels: levels(slice),
    }
}

fn levels(slice: &LatencySlice) -> Vec<v1::LevelUsage> {
    let symbols = usize::try_from(slice.counts.nested_chars).unwrap_or(usize::MAX);
    by_level(symbols, &slice.chunks, &slice.level_steps).into_iter().map(convert::level).collect()
}

fn summaries(slice: &LatencySlice) -> v1::MeasuredSummaries {
    let sums = &slice.counts;
    let layer = |&LayerTotals { vectors, took_ns }: &LayerTotals| v1::EncoderLayerReport { vectors, took_ns };
    v1::MeasuredSummaries {
        requests: sums.requests,
        failed: sums.failed,
        cached_documents: sums.cached_documents,
        document_tokens: sums.prompt_chars,
        summary_tokens: sums.generated_chars,
        queue: histogram(slice, LatencyKind::Queue),
        upload: histogram(slice, LatencyKind::Upload),
        encode: histogram(slice, LatencyKind::Encode),
        time_to_first_token: histogram(slice, LatencyKind::First),
        decode: histogram(slice, LatencyKind::Decode),
        decode_per_token: histogram(slice, LatencyKind::TokenDecode),
        total: histogram(slice, LatencyKind::Total),
        layers: slice.layers.iter().map(layer).collect(),
        cross_attention_bytes: sums.memory_bytes,
        unpooled_cross_attention_bytes: sums.unpooled_memory_bytes,
        kept_share: kept_shares(slice),
    }
}

fn kept_shares(slice: &LatencySlice) -> Option<v1::KeptShares> {
    let shares = slice.kept_shares()?;
    // A histogram returns the upper end of a bar.
    let share = |units: u64| (units as f64 / SHARE_UNITS).min(1.0);
    let quantile = |at: f64| share(shares.value_at_quantile(at).min(shares.max()));
    Some(v1::KeptShares {
        count: shares.len(),
        mean: (shares.mean() / SHARE_UNITS).min(1.0),
        min: share(shares.min()),
        p10: quantile(0.1),
        p50: quantile(0.5),
        p90: quantile(0.9),
        max: share(shares.max()),
    })
}

fn cache(sums: &ReportCounts) -> v1::CacheEffect {
    let computed = sums.prompt_chars.saturating_sub(sums.cached_chars);
    let ns_per_char = ratio(sums.prefill_ns, computed);
    v1::CacheEffect {
        hits: sums.hits,
        misses: sums.misses,
        looked_up_chars: sums.looked_up,
        found_chars: sums.found,
        shared_bytes: sums.shared_bytes,
        prefill_spared_estimate_ns: ns_per_char.map(|ns| (ns * sums.cached_chars as f64) as u64),
    }
}

fn gain(sums: &ReportCounts, calibration: Option<&Calibrated>) -> Option<v1::EstimatedGain> {
    let Some(Ok(table)) = calibration else { return None };
    let ReportCounts { measured_prefill_ns, unpooled_prefill_ns, measured_decode_ns, unpooled_decode_ns, .. } = *sums;
    Some(v1::EstimatedGain {
        requests: sums.estimated,
        measured_prefill_ns,
        unpooled_prefill_estimate_ns: unpooled_prefill_ns,
        measured_decode_ns,
        unpooled_decode_estimate_ns: unpooled_decode_ns,
        prefill_gain_estimate: ratio(unpooled_prefill_ns, measured_prefill_ns),
        decode_gain_estimate: ratio(unpooled_decode_ns, measured_decode_ns),
        gain_estimate: ratio(
            unpooled_prefill_ns.saturating_add(unpooled_decode_ns),
            measured_prefill_ns.saturating_add(measured_decode_ns),
        ),
        calibration: Some(calibrated(table)),
    })
}

/// Returns why there is no estimate, or none for some of the requests.
fn missing(engine: &Handle, sums: &ReportCounts, calibration: Option<&Calibrated>) -> Option<String> {
    match calibration {
        Some(Ok(_)) if sums.estimated < sums.requests => {
            let missed = sums.requests - sums.estimated;
            Some(format!("{missed} of {} requests began before the calibration", sums.requests))
        }
        Some(Ok(_)) => None,
        Some(Err(missing)) => Some(missing.reason().into()),
        None if engine.document_limits().is_some() || !engine.card().pooled => {
            Some(NotCalibrated::DoesNotPool.reason().into())
        }
        None => Some(NotCalibrated::Stopped.reason().into()),
    }
}

fn calibrated(table: &TimingTable) -> v1::Calibration {
    let step = |cell: &StepTiming| v1::CalibratedStep {
        rows: count(cell.shape.rows),
        chars: count(cell.shape.symbols),
        context: count(cell.shape.context),
        context_segments: count(cell.shape.context_segments),
        segments: count(cell.shape.closed),
        samples: count(cell.samples),
        symbol_ns: nanoseconds(cell.symbol),
        middle_ns: nanoseconds(cell.middle),
        finish_ns: nanoseconds(cell.finish),
        plain_symbol_ns: cell.plain.map(|plain| nanoseconds(plain.symbol)),
        plain_finish_ns: cell.plain.map(|plain| nanoseconds(plain.finish)),
        spread: cell.spread,
    };
    v1::Calibration {
        made_unix_s: table.created_at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        took_ns: nanoseconds(table.took),
        steps: table.timings.iter().map(step).collect(),
        fewest_samples: count(table.fewest_samples()),
        spread: table.spread(),
        doubt: table.doubt(),
    }
}

fn histogram(slice: &LatencySlice, kind: LatencyKind) -> Option<v1::LatencyHistogram> {
    let Some(times) = slice.times(kind) else { return Some(v1::LatencyHistogram::default()) };
    let quantile = |share: f64| times.value_at_quantile(share).min(times.max());
    let bar = |from_ns: u64, value: u64, count: u64| v1::LatencyBar {
        from_ns,
        below_ns: times.highest_equivalent(value).saturating_add(1),
        count,
    };
    let bars = times.iter_recorded().map(|step| {
        let value = step.value_iterated_to();
        bar(times.lowest_equivalent(value), value, step.count_at_value())
    });
    Some(v1::LatencyHistogram {
        count: times.len(),
        mean_ns: times.mean() as u64,
        min_ns: times.min(),
        p50_ns: quantile(0.5),
        p90_ns: quantile(0.9),
        p99_ns: quantile(0.99),
        p999_ns: quantile(0.999),
        max_ns: times.max(),
        bars: bars.collect(),
    })
}

fn ratio(part: u64, total: u64) -> Option<f64> {
    (total > 0).then(|| part as f64 / total as f64)
}

#[tonic::async_trait]
impl latency_server::Latency for LatencyService {
    async fn get_report(&self, request: Request<v1::GetReportRequest>) -> Reply<v1::GetReportResponse> {
        let call = Call::of(&request);
        let report = self.report(request.get_ref());
        report.map(Response::new).map_err(|error| status(&error, &call.id))
    }
}

/// Fewest times of a model for an interval.
const MIN_TIMES: u64 = 8;

/// Greatest probability that a median lies below its interval, and that it lies above.
const TAIL: f64 = 0.025;

/// Returns the unpooled baseline of a model among `engines`: the same weights and dtype under the baseline's name. `None` for a model
/// that is itself a baseline.
pub(super) fn find_baseline<'a>(engine: &Lease, engines: &'a [Lease]) -> Option<&'a Lease> {
    let card = engine.card();
    let name = unpooled_name(&card.name);
    let is_baseline = |other: &&Lease| {
        let other = other.card();
        other.unpooled_baseline && other.name == name && other.sha256 == card.sha256 && other.dtype == card.dtype
    };
    engines.iter().find(is_baseline).filter(|_| !card.unpooled_baseline)
}

/// Compares a model's requests with its baseline's. `name` is the baseline's.
pub(super) fn baseline_gain(own: &LatencySlice, baseline: &LatencySlice, name: &str) -> v1::TwinGain {
    v1::TwinGain {
        twin: name.to_owned(),
        encode: median_gain(own, baseline, LatencyKind::Encode),
        decode_per_token: median_gain(own, baseline, LatencyKind::TokenDecode),
        cross_attention_bytes: bytes_per_token(baseline)
            .zip(bytes_per_token(own))
            .map(|(baseline, own)| baseline / own),
    }
}

/// Returns the quantiles of `count` times between which their median lies with a probability of at least 95 %: those of two order
/// statistics, by the binomial distribution.
fn interval(count: u64) -> (f64, f64) {
    let n = count as f64;
    let mut rank = 0_u64;
    let mut ln_probability = -n * std::f64::consts::LN_2; // of exactly `rank` times below the median
    let mut below = ln_probability.exp();
    while below <= TAIL && rank < count / 2 {
        ln_probability += ((n - rank as f64) / (rank as f64 + 1.0)).ln();
        below += ln_probability.exp();
        rank += 1;
    }
    // Half a rank less, so that rounding does not select the next one.
    let low = (rank as f64 - 0.5) / n.max(1.0);
    (low.max(0.0), 1.0 - low.max(0.0))
}

fn bytes_per_token(slice: &LatencySlice) -> Option<f64> {
    let tokens = slice.counts.prompt_chars;
    let bytes = slice.counts.memory_bytes;
    (tokens > 0 && bytes > 0).then(|| bytes as f64 / tokens as f64)
}

/// Divides the baseline's median by the model's. The interval spans the ratios of the ends of both medians' 95 % intervals, which are
/// order statistics.
fn median_gain(own: &LatencySlice, baseline: &LatencySlice, kind: LatencyKind) -> Option<v1::MedianGain> {
    let (own, baseline) = own.times(kind).zip(baseline.times(kind))?;
    let count = own.len();
    let baseline_count = baseline.len();
    let own_at = |share: f64| own.value_at_quantile(share).max(1) as f64;
    let baseline_at = |share: f64| baseline.value_at_quantile(share).max(1) as f64;
    let has_interval = count.min(baseline_count) >= MIN_TIMES;
    let (own_low, own_high) = interval(count);
    let (baseline_low, baseline_high) = interval(baseline_count);
    let low = baseline_at(baseline_low) / own_at(own_high);
    let high = baseline_at(baseline_high) / own_at(own_low);
    Some(v1::MedianGain {
        ratio: baseline_at(0.5) / own_at(0.5),
        low: has_interval.then_some(low),
        high: has_interval.then_some(high),
        count,
        twin_count: baseline_count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks are as in tables of the sign test.
    #[test]
    fn the_interval_of_a_median_is_exact() {
        for (count, first, last) in [(8, 1, 8), (9, 2, 8), (20, 6, 15), (100, 40, 61), (100_000, 49_690, 50_311)] {
            let (low, high) = interval(count);
            let rank = |share: f64| (share * count as f64).ceil() as u64;
            assert_eq!((rank(low), rank(high)), (first, last), "{count}");
        }
    }
}
