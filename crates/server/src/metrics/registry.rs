//! The registry of all metrics, and their text format.

use crate::metrics::{
    meter::Meter,
    series::{Families, LevelFamilies, RequestTotals, Series, SortedFamily, metric_name},
};
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, gauge::Gauge, info::Info},
    registry::{Metric, Registry},
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, atomic::Ordering},
};
use weir_engine::Handle;
use weir_kernels::sync::lock;

/// Values of the label of reloads. Both series exist from the start, so that a first failure is an increase.
const RELOAD_RESULTS: [&str; 2] = ["success", "failure"];

/// All metrics of a process.
pub struct Metrics {
    registry: Registry,
    families: Families,
    levels: LevelFamilies,
    /// Answered calls, by service, method and code.
    calls: SortedFamily<Counter>,
    /// Requests over HTTP, by path, method and status code.
    http_requests: SortedFamily<Counter>,
    models: Mutex<BTreeMap<String, Arc<Series>>>,
    /// Reloads of certificates and keys, by result.
    credential_reloads: SortedFamily<Counter>,
    /// 1 while no worker is broken or hung.
    live: Gauge,
    /// 1 while the server can take requests.
    ready: Gauge,
    /// Checkpoints of the models folder that could not be loaded at the start.
    skipped_checkpoints: Counter,
    /// Log lines that were dropped.
    dropped_log_lines: Counter,
    /// Returns the present number of dropped log lines, if the process counts them.
    count_dropped: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>,
}

/// Registers a metric, whose clones share its value.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        let levels = LevelFamilies::register(&mut registry);
        let calls = register(
            &mut registry,
            metric_name!("grpc_calls"),
            "Answered calls, by service, method and status code",
            SortedFamily::default(),
        );
        let help = "Requests over HTTP, by path, method and status code";
        let http_requests = register(&mut registry, metric_name!("http_requests"), help, SortedFamily::default());
        let help = "Reloads of certificates and keys, by result";
        let credential_reloads =
            register(&mut registry, metric_name!("credential_reloads"), help, SortedFamily::<Counter>::default());
        for result in RELOAD_RESULTS {
            drop(credential_reloads.get_or_create(&vec![("result", result.to_owned())]));
        }
        let live = register(
            &mut registry,
            metric_name!("live"),
            "1 while no worker is broken or hung, otherwise 0",
            Gauge::default(),
        );
        let ready = register(
            &mut registry,
            metric_name!("ready"),
            "1 while the server can take requests, otherwise 0",
            Gauge::default(),
        );
        let help = "Checkpoints of the models folder that could not be loaded at the start";
        let skipped_checkpoints =
            register(&mut registry, metric_name!("checkpoints_skipped"), help, Counter::default());
        let dropped_log_lines = register(
            &mut registry,
            metric_name!("log_lines_dropped"),
            "Log lines that could not be written",
            Counter::default(),
        );
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register(metric_name!("build"), "The server's version", Info::new(version));
        let models = Mutex::default();
        Self {
            registry,
            families,
            levels,
            calls,
            http_requests,
            credential_reloads,
            live,
            ready,
            models,
            skipped_checkpoints,
            dropped_log_lines,
            count_dropped: OnceLock::new(),
        }
    }
}

impl Metrics {
    /// Returns a meter for an engine of the model called `model`.
    pub fn meter(&self, model: &str) -> Arc<Meter> {
        let mut models = lock(&self.models);
        let series = models.entry(model.to_owned()).or_insert_with(|| Arc::new(self.families.series(model)));
        Arc::new(Meter::new(model, Arc::clone(series), self.levels.clone()))
    }

    /// Removes the series of an unloaded model.
    pub fn remove_model(&self, model: &str) {
        lock(&self.models).remove(model);
        self.families.remove(model);
        self.levels.remove(model);
    }

    /// Counts an answered call. Each method has its own series, so `method` must be one of a small set.
    pub fn count_call(&self, service: &'static str, method: &'static str, code: &'static str) {
        let labels = [("service", service), ("method", method), ("code", code)];
        self.calls.get_or_create(&labels.map(|(key, value)| (key, value.to_owned())).into()).inc();
    }

    /// Counts a request over HTTP. Each combination has its own series, so `handler` and `method` must be from small sets.
    pub fn count_http_request(&self, handler: &str, method: &str, status: u16) {
        let labels = [("handler", handler.to_owned()), ("method", method.to_owned()), ("status", status.to_string())];
        self.http_requests.get_or_create(&labels.into()).inc();
    }

    /// Counts a reload of certificates and keys.
    pub fn count_credential_reload(&self, success: bool) {
        let [succeeded, failed] = RELOAD_RESULTS;
        let result = if success { succeeded } else { failed };
        self.credential_reloads.get_or_create(&vec![("result", result.to_owned())]).inc();
    }

    /// Records whether the server is live and ready, before the metrics are rendered.
    pub fn record_health(&self, live: bool, ready: bool) {
        self.live.set(i64::from(live));
        self.ready.set(i64::from(ready));
    }

    /// Counts a checkpoint of the models folder that could not be loaded at the start.
    pub fn count_skipped_checkpoint(&self) {
        self.skipped_checkpoints.inc();
    }

    /// Reports dropped log lines, of which `count` returns the number so far. Only the first call has an effect.
    pub fn count_dropped_log_lines(&self, count: impl Fn() -> u64 + Send + Sync + 'static) {
        let _ = self.count_dropped.set(Box::new(count));
    }

    /// Returns the totals of the requests to a model.
    pub fn request_totals(&self, model: &str) -> RequestTotals {
        lock(&self.models).get(model).map_or_else(RequestTotals::default, |series| *lock(&series.totals))
    }

    /// Renders all metrics as OpenMetrics text, with the present values of `engines`. Never fails: the writer is a `String`.
    pub fn render(&self, engines: &[(Arc<Meter>, Handle)]) -> Result<String, fmt::Error> {
        // the lock admits one caller at a time: a model's gauges are set from all its generations together
        let models = lock(&self.models);
        for series in models.values() {
            let own = engines.iter().filter(|(meter, _)| Arc::ptr_eq(&meter.series, series));
            series.set_gauges(own.map(|(_, engine)| engine));
        }
        if let Some(count) = self.count_dropped.get() {
            self.dropped_log_lines.inner().store(count(), Ordering::Relaxed);
        }
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}
