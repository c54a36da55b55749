//! The service `Latency`: reports how long requests took, per model, next to an estimate of the time without pooling.

use super::{
    totals::{self, count, nanoseconds},
    twin_gain::{find_twin, twin_gain},
};
use crate::{
    decode::usage::by_level,
    engine::{
        Handle,
        calibration::{Calibrated, NotCalibrated, StepTiming, TimingTable},
    },
    error::{Error, Result},
    metrics::latency_windows::{LatencyKind, LatencyPeriod, LatencySlice, LayerTotals, ReportCounts, SHARE_UNITS},
    serve::{
        call::{Call, Reply},
        registry::engines::{Engines, Lease},
        status::status,
    },
};
use std::time::UNIX_EPOCH;
use tonic::{Request, Response};
use weir_proto::v1::{self, ReportWindow, latency_server};

pub(crate) struct LatencyService(pub(crate) Engines);

impl LatencyService {
    fn report(&self, request: &v1::GetReportRequest) -> Result<v1::GetReportResponse> {
        let window = report_window(request)?;
        let engines = self.0.select(request.model.as_deref())?;
        let all = self.0.all();
        let models = engines.iter().map(|engine| model_report(engine, find_twin(engine, &all), window)).collect();
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

fn model_report(engine: &Lease, twin: Option<&Lease>, window: ReportWindow) -> v1::ModelReport {
    let period = match window {
        ReportWindow::Unspecified | ReportWindow::SinceLoad => LatencyPeriod::SinceLoad,
        ReportWindow::SinceReset => LatencyPeriod::SinceReset,
        ReportWindow::LastMinute => LatencyPeriod::LastMinute,
    };
    let (slice, length) = engine.meter().report(period);
    let gain_over = |twin: &Lease| twin_gain(&slice, &twin.meter().report(period).0, &twin.card().name);
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
        twin_gain: twin.map(gain_over),
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
    by_level(symbols, &slice.chunks, &slice.level_steps).into_iter().map(totals::level).collect()
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
