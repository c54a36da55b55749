//! Latency reports: counts, windows and estimated gains.

use super::{
    GeneratedResponse, Running, eventually,
    fake_model::{Fake, Kind},
    long, read,
};
use crate::support::{hnet_converted, settings};
use std::{path::Path, sync::Arc, time::Duration};
use tonic::{Code, Status, transport::Channel};
use weir::{
    config::{AdminToken, TransportConfig},
    decode::contract::Model,
    engine::Limits,
    error::{Error, Result},
    family::load::load,
    serve::{AdminConfig, Engines, ModelLoader, Monitor, ServerParts},
};
use weir_proto::v1::{
    self, GenerateRequest, GetReportRequest, ModelReport, ReportWindow, ResetReportRequest, admin_client::AdminClient,
    generation_client::GenerationClient, latency_client::LatencyClient,
};

const TOKEN: &str = "a-token-for-the-tests";

/// A loader that always fails.
struct Nothing;

impl ModelLoader for Nothing {
    fn memory_needed(&self, _: &Path) -> Result<usize> {
        Ok(0)
    }

    fn load(&self, folder: &Path, _: &str) -> Result<Arc<dyn Model>> {
        Err(Error::checkpoint(folder, "config.json", "a model", "none"))
    }
}

struct Served {
    engines: Engines,
    running: Running,
}

impl Served {
    /// Starts a server of these models, launched as the program does.
    async fn new(models: &[Arc<Fake>]) -> Self {
        let engines = Engines::default();
        for model in models {
            launch(&engines, Arc::clone(model) as _).await;
        }
        let token = AdminToken::new(TOKEN).unwrap();
        let loader = Arc::new(Nothing);
        let admin = AdminConfig { token, loader, models_folder: None, max_generations: 8, limits: Limits::default() };
        let monitor = Monitor::new(engines.clone(), Duration::from_secs(60));
        let offer = ServerParts { admin: Some(admin), ..monitor.into() };
        Self { engines, running: Running::offering(offer, TransportConfig::default()).await }
    }

    fn channel(&self) -> Channel {
        self.running.channel.clone()
    }

    async fn answer(&self, model: &str, text: &str, chars: u32) -> GeneratedResponse {
        let request = GenerateRequest { model: Some(model.into()), ..long(text, chars) };
        let stream = GenerationClient::new(self.channel()).generate(request).await.unwrap().into_inner();
        read(stream).await.unwrap()
    }

    async fn reports(&self, model: Option<&str>, window: Option<i32>) -> Result<Vec<ModelReport>, Status> {
        let request = GetReportRequest { model: model.map(Into::into), window };
        Ok(LatencyClient::new(self.channel()).get_report(request).await?.into_inner().models)
    }

    async fn report(&self, model: &str, window: ReportWindow) -> ModelReport {
        self.reports(Some(model), Some(window.into())).await.unwrap().remove(0)
    }

    async fn reset(&self, model: Option<&str>, token: Option<&str>) -> Result<Vec<String>, Status> {
        let mut request = tonic::Request::new(ResetReportRequest { model: model.map(Into::into) });
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Ok(AdminClient::new(self.channel()).reset_report(request).await?.into_inner().models)
    }
}

async fn launch(engines: &Engines, model: Arc<dyn Model>) {
    let into = engines.clone();
    let limits = Limits { cache_bytes: 1 << 16, ..Limits::default() };
    tokio::task::spawn_blocking(move || into.add(into.launch(model, limits, None).unwrap()).unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_report_sums_the_usage_of_requests() {
    let served = Served::new(&[Fake::new("fake", Kind::Pooled)]).await;
    let mut usages = Vec::new();
    for text in ["ab cd e", "ab cd e", "abc ", "d de ea"] {
        usages.push(served.answer("fake", text, 40).await.finished.usage.unwrap());
    }
    let report = served.report("fake", ReportWindow::SinceLoad).await;
    assert_eq!((report.model.as_str(), report.generation, report.pooled), ("fake", 1, true));
    assert!(report.window_ns > 0 && report.window() == ReportWindow::SinceLoad && report.summaries.is_none());
    let texts = report.texts.unwrap();
    assert_eq!((texts.requests, texts.failed), (4, 0));
    assert_eq!(texts.prompt_chars, usages.iter().map(|usage| usage.prompt_chars).sum::<u64>());
    assert_eq!(texts.cached_chars, usages.iter().map(|usage| usage.cached_chars).sum::<u64>());
    assert!(texts.cached_chars > 0, "the second text was cached");
    assert_eq!(texts.generated_chars, usages.iter().map(|usage| usage.generated_chars).sum::<u64>());
    let all = texts.middle_steps_run + texts.middle_steps_skipped;
    assert_eq!(texts.shortening_factor, Some(all as f64 / texts.middle_steps_run as f64));
    let first = texts.time_to_first_char.unwrap();
    let plain = texts.plain_gap.unwrap();
    let boundary = texts.boundary_gap.unwrap();
    assert_eq!((first.count, texts.total.unwrap().count, texts.queue.unwrap().count), (4, 4, 4));
    assert_eq!(plain.count + boundary.count + 4, texts.generated_chars);
    assert!(boundary.count > 0 && texts.segment.unwrap().count < boundary.count);
    for histogram in [&first, &plain, &boundary] {
        assert_eq!(histogram.bars.iter().map(|bar| bar.count).sum::<u64>(), histogram.count);
        assert!([histogram.min_ns, histogram.p50_ns, histogram.p99_ns, histogram.max_ns].is_sorted());
        assert!(histogram.bars.windows(2).all(|pair| pair[0].below_ns <= pair[1].from_ns));
    }
    let cache = report.cache.unwrap();
    assert_eq!((cache.hits + cache.misses, cache.found_chars), (4, texts.cached_chars));
}

#[tokio::test]
async fn the_estimate_sums_those_of_the_requests_and_names_its_calibration() {
    let served = Served::new(&[Fake::new("fake", Kind::Pooled), Fake::new("plain", Kind::Vanilla)]).await;
    let mut sums = [0; 4];
    for text in ["ab cd e", "bcd", "a b c"] {
        let timing = served.answer("fake", text, 30).await.finished.timing.unwrap();
        let prefill = timing.unpooled_prefill_estimate_ns.unwrap();
        let decode = timing.unpooled_decode_estimate_ns.unwrap();
        assert_eq!(timing.unpooled_estimate_ns, Some(prefill + decode));
        let took = timing.prefill_ns + timing.decode_ns;
        assert_eq!(timing.gain_estimate, Some((prefill + decode) as f64 / took as f64));
        let figures = [timing.prefill_ns, prefill, timing.decode_ns, decode];
        sums.iter_mut().zip(figures).for_each(|(sum, more)| *sum += more);
    }
    let report = served.report("fake", ReportWindow::SinceLoad).await;
    let gain = report.estimated_gain.unwrap();
    assert_eq!((gain.requests, report.estimate_missing), (3, None));
    let prefill = [gain.measured_prefill_ns, gain.unpooled_prefill_estimate_ns];
    let decode = [gain.measured_decode_ns, gain.unpooled_decode_estimate_ns];
    assert_eq!([prefill, decode].concat(), sums);
    assert_eq!(gain.gain_estimate, Some((sums[1] + sums[3]) as f64 / (sums[0] + sums[2]) as f64));
    let calibration = gain.calibration.unwrap();
    let steps = calibration.steps.iter().filter(|step| step.chars == 1 && step.context < 100);
    let rows: Vec<_> = steps.map(|step| step.rows).collect();
    assert!(calibration.took_ns > 0 && rows == [1, 2, 4, 8, 16, 32], "{rows:?}");
    assert!(calibration.steps.iter().all(|step| step.samples > 0 && step.segments > 0));
    let fewest = calibration.steps.iter().map(|step| step.samples).min();
    assert_eq!(Some(calibration.fewest_samples), fewest);
    let mut spreads: Vec<_> = calibration.steps.iter().map(|step| step.spread).collect();
    spreads.sort_by(f64::total_cmp);
    assert_eq!(calibration.spread, spreads[spreads.len() / 2]);
    let is_doubtful = calibration.spread > 0.2 || calibration.fewest_samples < 5;
    assert_eq!(calibration.doubt.is_some(), is_doubtful, "{calibration:?}");
    // A model that does not pool has no estimate, and the report gives the reason.
    let timing = served.answer("plain", "abc", 10).await.finished.timing.unwrap();
    assert_eq!((timing.unpooled_estimate_ns, timing.gain_estimate), (None, None));
    let plain = served.report("plain", ReportWindow::SinceLoad).await;
    assert!(plain.estimated_gain.is_none() && plain.estimate_missing.unwrap().contains("does not pool"));
}

#[tokio::test]
async fn a_reset_needs_the_admin_token_and_changes_one_window() {
    let served = Served::new(&[Fake::new("a", Kind::Pooled), Fake::new("b", Kind::Pooled)]).await;
    for model in ["a", "b"] {
        served.answer(model, "abc ab", 5).await;
    }
    for (token, code) in [(None, Code::Unauthenticated), (Some("another-token-for-it"), Code::PermissionDenied)] {
        assert_eq!(served.reset(None, token).await.unwrap_err().code(), code);
    }
    assert_eq!(served.reset(Some("a"), Some(TOKEN)).await.unwrap(), ["a"]);
    assert_eq!(served.reset(Some("c"), Some(TOKEN)).await.unwrap_err().code(), Code::NotFound);
    let requests = async |model: &str, window| served.report(model, window).await.texts.unwrap().requests;
    assert_eq!(requests("a", ReportWindow::SinceReset).await, 0);
    for (model, window) in [
        ("a", ReportWindow::SinceLoad),
        ("a", ReportWindow::LastMinute),
        ("b", ReportWindow::SinceReset),
        ("b", ReportWindow::Unspecified),
    ] {
        assert_eq!(requests(model, window).await, 1, "{model} {window:?}");
    }
    served.answer("a", "abc", 5).await;
    assert_eq!(requests("a", ReportWindow::SinceReset).await, 1);
    assert_eq!(served.reset(None, Some(TOKEN)).await.unwrap(), ["a", "b"]);
}

#[tokio::test]
async fn unknown_models_and_windows_are_refused() {
    let served = Served::new(&[Fake::new("a", Kind::Pooled), Fake::new("b", Kind::Pooled)]).await;
    let all = served.reports(None, None).await.unwrap();
    assert_eq!(all.iter().map(|report| report.model.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let unknown = served.reports(Some("c"), None).await.unwrap_err();
    assert!(unknown.code() == Code::NotFound && unknown.message().contains("a, b"), "{unknown:?}");
    let window = served.reports(None, Some(9)).await.unwrap_err();
    assert!(window.code() == Code::InvalidArgument && window.message().contains("window"), "{window:?}");
}

/// Calibration does not disturb running streams: it waits until no request runs.
#[tokio::test]
async fn a_model_loaded_under_load_is_calibrated_later() {
    let busy = Fake::new("busy", Kind::Pooled);
    let served = Served::new(&[Arc::clone(&busy)]).await;
    busy.slow(Duration::from_millis(2));
    let streaming = GenerationClient::new(served.channel()).generate(long("abc", 1500)).await.unwrap();
    let late = Fake::new("late", Kind::Pooled);
    launch(&served.engines, Arc::clone(&late) as _).await;
    let report = served.report("late", ReportWindow::SinceLoad).await;
    assert!(report.estimated_gain.is_none() && report.estimate_missing.unwrap().contains("other requests"));
    let early = served.answer("late", "abc", 4).await.finished.timing.unwrap();
    assert_eq!(early.unpooled_estimate_ns, None);
    drop(streaming);
    busy.release();
    eventually("the model is calibrated", || {
        let engine = served.engines.find("model", Some("late")).unwrap();
        engine.calibration().is_some_and(|calibrated| calibrated.is_ok())
    })
    .await;
    let report = served.report("late", ReportWindow::SinceLoad).await;
    assert!(report.estimated_gain.is_some() && report.estimate_missing.unwrap().contains("1 of 1 requests"));
    assert!(served.answer("late", "abc", 4).await.finished.timing.unwrap().gain_estimate.is_some());
}

/// The report and the metrics have the sums of the requests' levels.
#[tokio::test]
async fn levels_are_reported_and_counted() {
    for case in ["one_stage", "two_stage"] {
        let model = load(&hnet_converted(case), &settings()).unwrap();
        let engines = Engines::default();
        launch(&engines, model).await;
        let running = Running::offering(ServerParts::from(engines.clone()), TransportConfig::default()).await;
        let mut sums = [[0, 0]; 2];
        let mut symbols = 0;
        for seed in [1, 2] {
            let sampling = Some(v1::Sampling { seed: Some(seed), ..Default::default() });
            let request = GenerateRequest { sampling, ..long("Chunks of bytes", 40) };
            let stream = GenerationClient::new(running.channel.clone()).generate(request).await.unwrap().into_inner();
            let answer = read(stream).await.unwrap();
            let usage = answer.finished.usage.unwrap();
            symbols += usage.prompt_chars + usage.generated_chars;
            for (sum, level) in sums.iter_mut().zip(&answer.finished.levels) {
                *sum = [sum[0] + level.chunks, sum[1] + level.middle_steps];
            }
        }
        let report = GetReportRequest::default();
        let mut client = LatencyClient::new(running.channel.clone());
        let report = client.get_report(report).await.unwrap().into_inner().models.remove(0);
        let levels = report.texts.unwrap().levels;
        let metrics = engines.metrics().render(&[]).unwrap();
        if case == "one_stage" {
            assert!(levels.is_empty() && !metrics.contains("level=\"1\""), "{levels:?}");
            continue;
        }
        assert_eq!(levels.len(), 2);
        let mut around = symbols;
        for (index, (level, [chunks, middle_steps])) in levels.iter().zip(sums).enumerate() {
            assert_eq!((level.chunks, level.middle_steps), (chunks, middle_steps));
            assert_eq!(level.shortening_factor, around as f64 / chunks as f64);
            around = chunks;
            let labels = format!("{{model_name=\"{}\",level=\"{}\"}}", report.model, index + 1);
            let factor = metrics.split(&format!("weir_level_shortening_factor{labels} ")).nth(1).unwrap();
            let factor: f64 = factor.lines().next().unwrap().parse().unwrap();
            assert!((factor - level.shortening_factor).abs() < 1e-9, "{factor}");
            for sample in [
                format!("weir_level_chunks_total{labels} {chunks}\n"),
                format!("weir_level_middle_steps_total{labels} {middle_steps}\n"),
            ] {
                assert!(metrics.contains(&sample), "{sample}");
            }
        }
    }
}
