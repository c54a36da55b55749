//! All metrics, declared once: each one's name, kind, buckets, labels and help.
//!
//! Names are vLLM's where it has one that `promtool check metrics` accepts, under the prefix `weir_`; vLLM's token is a
//! symbol here. A [`Meter`] takes the events of one engine: from each follow the metrics and the latency report
//! (`latency_windows`). Its series are looked up when the model is loaded, so a step looks up and
//! allocates nothing. One exception: when a request ends, the series of its levels of segments are looked up. Only gauges are read
//! on each scrape ([`Metrics::render`]). A router's picker scrapes twenty times a second, and reads gauges only: it gets no histograms
//! ([`Metrics::render_load`]), which are four fifths of the text.

use crate::latency_windows::{LatencyPeriod, LatencySlice, LatencyWindows};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, text},
    metrics::{MetricType, TypedMetric, counter::Counter, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Metric, Registry},
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_engine::constraint::Constraint;
use weir_engine::observer::{EngineEvent, Observer};
use weir_engine::options::FinishReason;
use weir_engine::{Handle, clock};
use weir_kernels::attention::POSITIONS;
use weir_kernels::error::{Code, Error};
use weir_kernels::sync::lock;
use weir_models::usage::{MAX_LEVELS, Timing, Usage};

/// Values of the label of reloads. Both series exist from the start, so that a first failure is an increase.
const RELOAD_RESULTS: [&str; 2] = ["success", "failure"];

/// The age up to which [`Metrics::render_load`] reuses the bytes of key-value pages that requests use: counting them visits all pages
/// of the caches.
const MEMORY_INTERVAL: Duration = Duration::from_millis(250);

/// The age up to which [`Metrics::render_load`] returns its last text: rendering takes little, however often strangers scrape.
const LOAD_INTERVAL: Duration = Duration::from_millis(10);

/// The labels that series of this file have, and those that Prometheus reserves.
pub(crate) const LABELS: [&str; 17] = [
    "model_name",
    "after",
    "block_size",
    "code",
    "event",
    "finished_reason",
    "handler",
    "kind",
    "le",
    "level",
    "method",
    "num_gpu_blocks",
    "quantile",
    "result",
    "service",
    "status",
    "version",
];

/// Settings of the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Names and values of the labels that all series have in addition.
    pub labels: Vec<(String, String)>,
    /// True if the gauges that routers read are also there under vLLM's names.
    pub vllm_names: bool,
    /// Symbols in a block of the segment cache, a multiple of [`CACHE_BLOCK`](Self::CACHE_BLOCK), which is the default.
    pub cache_block: Option<usize>,
}

impl MetricsConfig {
    /// Symbols whose keys and values have a page: the smallest part of a text that entries of the segment cache share.
    pub const CACHE_BLOCK: usize = POSITIONS;
}

/// All metrics of a process.
pub struct Metrics {
    registry: Registry,
    histograms: Registry,
    /// The gauges that routers read, under vLLM's names.
    vllm_names: Option<Registry>,
    cache_block: usize,
    /// The time at which the bytes of key-value pages were last counted.
    memory_counted: Mutex<Option<Instant>>,
    /// The last text without histograms, and when it was rendered.
    last_load: Mutex<Option<(Instant, String)>>,
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

/// Creates and registers a metric, whose clones share its value.
fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&MetricsConfig::default())
    }
}

impl Metrics {
    /// Creates the metrics of a process.
    pub fn new(config: &MetricsConfig) -> Self {
        let labels = || {
            let owned = |text: &String| Cow::Owned(text.clone());
            config.labels.iter().map(move |(name, value)| (owned(name), owned(value)))
        };
        let mut registry = Registry::with_prefix_and_labels("weir", labels());
        let mut histograms = Registry::with_prefix_and_labels("weir", labels());
        let all = &mut registry;
        let families = Families::register(all, &mut histograms);
        let levels = LevelFamilies::register(all);
        let calls = register(all, "grpc_calls", "Answered calls, by service, method and status code");
        let help = "Requests over HTTP, by path, method and status code";
        let http_requests = register(all, "http_requests", help);
        let help = "Reloads of certificates and keys, by result";
        let credential_reloads: SortedFamily<Counter> = register(all, "credential_reloads", help);
        for result in RELOAD_RESULTS {
            drop(credential_reloads.get_or_create(&vec![("result", result.to_owned())]));
        }
        let live = register(all, "live", "1 while no worker is broken or hung, otherwise 0");
        let ready = register(all, "ready", "1 while the server can take requests, otherwise 0");
        let help = "Checkpoints of the models folder that could not be loaded at the start";
        let skipped_checkpoints = register(all, "checkpoints_skipped", help);
        let dropped_log_lines = register(all, "log_lines_dropped", "Log lines that could not be written");
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "The server's version", Info::new(version));
        let vllm_names = config.vllm_names.then(|| families.under_vllm_names(Registry::with_labels(labels())));
        Self {
            registry,
            histograms,
            vllm_names,
            cache_block: config.cache_block.unwrap_or(MetricsConfig::CACHE_BLOCK),
            memory_counted: Mutex::default(),
            last_load: Mutex::default(),
            families,
            levels,
            calls,
            http_requests,
            credential_reloads,
            live,
            ready,
            models: Mutex::default(),
            skipped_checkpoints,
            dropped_log_lines,
            count_dropped: OnceLock::new(),
        }
    }

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
    pub(crate) fn request_totals(&self, model: &str) -> RequestTotals {
        lock(&self.models).get(model).map_or_else(RequestTotals::default, |series| *lock(&series.totals))
    }

    /// Renders all metrics as OpenMetrics text, with the present values of `engines`. Never fails: the writer is a `String`.
    pub fn render(&self, engines: &[(Arc<Meter>, Handle)]) -> Result<String, fmt::Error> {
        self.render_registries(engines, Some(&self.histograms))
    }

    /// Renders all metrics but the histograms, as [`render`](Self::render) does. The key-value memory in use may be a quarter of a
    /// second old, and the text a hundredth.
    pub fn render_load(&self, engines: &[(Arc<Meter>, Handle)]) -> Result<String, fmt::Error> {
        let mut last = lock(&self.last_load);
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| clock::since(*at) < LOAD_INTERVAL) {
            return Ok(text.clone());
        }
        let text = self.render_registries(engines, None)?;
        *last = Some((clock::now(), text.clone()));
        Ok(text)
    }

    fn render_registries(
        &self,
        engines: &[(Arc<Meter>, Handle)],
        histograms: Option<&Registry>,
    ) -> Result<String, fmt::Error> {
        // the lock admits one caller at a time: a model's gauges are set from all its generations together
        let models = lock(&self.models);
        let mut counted = lock(&self.memory_counted);
        let counts_memory = histograms.is_some() || counted.is_none_or(|at| clock::since(at) >= MEMORY_INTERVAL);
        if counts_memory {
            *counted = Some(clock::now());
        }
        drop(counted);
        for series in models.values() {
            let own = engines.iter().filter(|(meter, _)| Arc::ptr_eq(&meter.series, series));
            let own = own.map(|(_, engine)| engine);
            if counts_memory {
                series.set_memory(own.clone());
            }
            series.set_gauges(own, self.cache_block);
        }
        if let Some(count) = self.count_dropped.get() {
            self.dropped_log_lines.inner().store(count(), Ordering::Relaxed);
        }
        let mut out = String::new();
        let registries = [Some(&self.registry), histograms, self.vllm_names.as_ref()];
        registries.into_iter().flatten().try_for_each(|registry| text::encode_registry(&mut out, registry))?;
        text::encode_eof(&mut out)?;
        Ok(out)
    }
}

/// Observes one engine and records its metrics.
pub struct Meter {
    model: String,
    series: Arc<Series>,
    levels: LevelFamilies,
    /// False while the engine warms up.
    enabled: AtomicBool,
    latency: Mutex<LatencyWindows>,
}

impl Meter {
    fn new(model: &str, series: Arc<Series>, levels: LevelFamilies) -> Self {
        Self {
            model: model.to_owned(),
            series,
            levels,
            enabled: AtomicBool::new(false),
            latency: Mutex::new(LatencyWindows::new(clock::now())),
        }
    }

    /// Locks the latency data; `None` while the engine warms up.
    fn latency(&self) -> Option<MutexGuard<'_, LatencyWindows>> {
        self.enabled.load(Relaxed).then(|| lock(&self.latency))
    }

    /// Starts recording, after the engine's warm-up.
    pub fn begin(&self) {
        *lock(&self.latency) = LatencyWindows::new(clock::now());
        self.enabled.store(true, Relaxed);
    }

    /// Returns the data of a latency report, and the length of its period.
    pub fn report(&self, period: LatencyPeriod) -> (LatencySlice, Duration) {
        let (slices, length) = lock(&self.latency).slices(period, clock::now());
        (LatencySlice::sum(&slices), length)
    }

    /// Starts the period since the last reset.
    pub fn reset(&self) {
        lock(&self.latency).reset(clock::now());
    }

    /// Counts an event of an editing session.
    pub(crate) fn edit(&self, event: EditEvent) {
        self.series.edits[event as usize].inc();
    }

    /// Counts a session whose document was opened.
    pub(crate) fn edit_session_opened(&self) {
        self.series.edit_sessions[0].inc();
    }

    /// Counts the end of such a session.
    pub(crate) fn edit_session_closed(&self) {
        self.series.edit_sessions[0].dec();
    }
}

impl Observer for Meter {
    fn record(&self, event: EngineEvent<'_>) {
        let Some(mut latency) = self.latency() else { return };
        latency.record(&event);
        drop(latency);
        let series = &*self.series;
        match event {
            EngineEvent::Step { rows, fed, middle } => {
                lock(&series.totals).steps += 1;
                if rows > 0 {
                    series.step_rows[0].observe(rows as f64);
                    series.step_chars[0].observe(fed as f64);
                }
                if middle > 0 {
                    series.middle_rows[0].observe(middle as f64);
                }
            }
            EngineEvent::Admitted(waited) => series.queue[0].observe(waited.as_secs_f64()),
            EngineEvent::FirstChar(after) => series.first_char[0].observe(after.as_secs_f64()),
            EngineEvent::Gap { gap, boundary } => series.gap[usize::from(boundary)].observe(gap.as_secs_f64()),
            EngineEvent::Finished { outcome, usage, timing } => self.finished(outcome, usage, timing),
            EngineEvent::Fed(fed) => {
                series.prompt_chars[0].inc_by(fed.prompt as u64);
                series.generated_chars[0].inc_by(fed.generated as u64);
                series.middle_run[0].inc_by(fed.middle_run as u64);
                series.middle_skipped[0].inc_by(fed.middle_skipped as u64);
            }
            EngineEvent::CacheLookup { symbols, found, bytes } => {
                if symbols > 0 {
                    series.lookups[usize::from(found == 0)].inc();
                }
                series.cache_queries[0].inc_by(symbols as u64);
                series.cache_hits[0].inc_by(found as u64);
                series.hit_bytes[0].inc_by(bytes as u64);
            }
            EngineEvent::CacheEvicted(entries) => _ = series.evictions[0].inc_by(entries),
            EngineEvent::DocumentLookup { found } => _ = series.document_lookups[usize::from(!found)].inc(),
            EngineEvent::Constrained { kind, took, refused } => {
                let kind = Constraint::KINDS.iter().position(|other| *other == kind).unwrap_or_default();
                let counts = if refused { &series.refused_constraints } else { &series.constraints };
                counts[kind].inc();
                series.constraint_seconds[0].observe(took.as_secs_f64());
            }
            EngineEvent::DocumentEvicted => _ = series.document_evictions[0].inc(),
            EngineEvent::Preempted => _ = series.preemptions[0].inc(),
            EngineEvent::Restarted => _ = series.restarts[0].inc(),
            // these are in reports only
            EngineEvent::Accepted | EngineEvent::Segment(_) | EngineEvent::Summarized { .. } => {}
        }
    }
}

impl Meter {
    fn finished(&self, outcome: Result<&FinishReason, &Error>, usage: &Usage, timing: &Timing) {
        let series = &*self.series;
        lock(&series.totals).add_finished(outcome.is_ok(), timing);
        let seconds = |nanoseconds: u64| Duration::from_nanos(nanoseconds).as_secs_f64();
        series.total[0].observe(seconds(timing.total_ns));
        if usage.resumed_chars > 0 {
            series.resumed[0].inc();
            series.resumed_chars[0].inc_by(usage.resumed_chars as u64);
        }
        series.drafted[0].inc_by(usage.drafted_chars as u64);
        series.accepted[0].inc_by(usage.accepted_chars as u64);
        series.forced[0].inc_by(usage.forced_chars as u64);
        if timing.steps > 0 {
            series.inference[0].observe(seconds(timing.total_ns.saturating_sub(timing.queue_ns)));
        }
        match outcome {
            Err(error) => {
                series.failure[CODES.iter().position(|code| *code == error.code()).unwrap_or_default()].inc();
            }
            Ok(reason) => {
                series.success[index(reason)].inc();
                self.levels.count(&self.model, usage, timing);
                series.prefill[0].observe(seconds(timing.prefill_ns));
                series.prompt[0].observe(usage.prompt_chars as f64);
                if *reason != FinishReason::End {
                    series.decode[0].observe(seconds(timing.decode_ns));
                    series.generation[0].observe(usage.sampled_chars() as f64);
                }
                if let Some(factor) = usage.shortening_factor() {
                    series.request_shortening[0].observe(factor);
                }
            }
        }
    }
}

fn index(reason: &FinishReason) -> usize {
    REASONS.iter().position(|other| other.name() == reason.name()).unwrap_or_default()
}

/// An event of an editing session, in the order of the label's values in `series`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EditEvent {
    /// A change of the text was applied.
    Splice,
    /// Completions were found.
    Completion,
    /// A range was scored.
    Score,
    /// A change overtook a request.
    Stale,
}

/// Buckets of times, in seconds: a step of a small model takes less than a tenth of a millisecond, a queue may take minutes.
const SECONDS: [f64; 28] = [
    50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3, 10e-3, 20e-3,
    50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
];

/// Buckets of symbol counts.
const CHARS: [f64; 21] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6];

/// Buckets of the rows of a step.
const ROWS: [f64; 14] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 512.0, 4096.0];

/// Buckets of symbols per segment.
const SHORTENING: [f64; 12] = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 24.0, 64.0];

/// Values of the label that separates gaps after a boundary from gaps within a segment.
const AFTER: [&str; 2] = ["char", "boundary"];

/// Values of the label that separates the events of editing sessions.
const EDIT_EVENTS: [&str; 4] = ["splice", "completion", "score", "stale"];

const REASONS: [FinishReason; 7] = [
    FinishReason::MaxChars,
    FinishReason::MaxSegments,
    FinishReason::Stop(0),
    FinishReason::MaxContext,
    FinishReason::EndOfText,
    FinishReason::Constraint,
    FinishReason::End,
];

const CODES: [Code; 11] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::FailedPrecondition,
    Code::ResourceExhausted,
    Code::DeadlineExceeded,
    Code::Cancelled,
    Code::Unauthenticated,
    Code::PermissionDenied,
    Code::OutOfRange,
    Code::Unavailable,
    Code::Internal,
];

type FloatGauge = Gauge<f64, AtomicU64>;

/// Declares the metrics of a model: `field: kind = constructor, label and its values, name, help`.
macro_rules! per_model {
    ($($field:ident: $kind:ty = $new:expr, [$label:literal $values:expr], $name:literal, $help:literal;)*) => {
        /// The metrics of all models.
        struct Families { $($field: SortedFamily<$kind>,)* }

        /// The metrics of one model. Each field holds one series per value of its label, or one series without a label.
        #[derive(Debug)]
        struct Series { $($field: Vec<$kind>,)* totals: Mutex<RequestTotals> }

        impl Families {
            fn register(others: &mut Registry, histograms: &mut Registry) -> Self {
                $(
                    let $field = SortedFamily::<$kind>::new(|| $new);
                    let is_histogram = matches!(<$kind as TypedMetric>::TYPE, MetricType::Histogram);
                    let registry = if is_histogram { &mut *histograms } else { &mut *others };
                    registry.register($name, $help, $field.clone());
                )*
                Self { $($field,)* }
            }

            /// Returns the series of a model; creates those that do not exist.
            fn series(&self, model: &str) -> Series {
                Series { $($field: labels(model, $label, &$values)
                    .map(|labels| self.$field.get_or_create(&labels)).collect(),)* totals: Mutex::default() }
            }

            fn remove(&self, model: &str) {
                $(labels(model, $label, &$values).for_each(|labels| self.$field.remove(&labels));)*
            }
        }
    };
}

per_model! {
    running: Gauge = Gauge::default(), ["" [""]], "num_requests_running", "Requests that hold a row";
    waiting: Gauge = Gauge::default(), ["" [""]], "num_requests_waiting", "Requests that wait for a row";
    kv_usage: FloatGauge = FloatGauge::default(), ["" [""]],
        "kv_cache_usage_ratio", "Share of the key-value memory that requests use: 1 is all of it";
    cache_config: CacheConfig = CacheConfig::default(), ["" [""]],
        "cache_config", "Symbols in a block of the segment cache, and blocks that fit into it, whatever their text";
    kv_bytes: Gauge = Gauge::default(), ["" [""]], "kv_cache_used_bytes", "Bytes of key-value pages that requests use";
    kv_limit: Gauge = Gauge::default(), ["" [""]], "kv_cache_limit_bytes", "Maximum bytes of key-value pages";
    preemptions: Counter = Counter::default(), ["" [""]],
        "num_preemptions", "Running requests that were preempted";
    restarts: Counter = Counter::default(), ["" [""]],
        "worker_restarts", "Times that the model's worker started over after a panic";
    prompt_chars: Counter = Counter::default(), ["" [""]],
        "prompt_tokens", "Symbols of prompts and scored texts that were processed";
    generated_chars: Counter = Counter::default(), ["" [""]], "generation_tokens", "Symbols generated";
    cache_queries: Counter = Counter::default(), ["" [""]],
        "prefix_cache_queries", "Symbols of prompts looked up in the segment cache: all but the last, which is always fed";
    cache_hits: Counter = Counter::default(), ["" [""]],
        "prefix_cache_hits", "Symbols of prompts that came from the segment cache";
    resumed: Counter = Counter::default(), ["" [""]],
        "resumed_requests", "Requests that continued the text of a broken stream";
    resumed_chars: Counter = Counter::default(), ["" [""]],
        "resumed_tokens", "Symbols of such texts, which were fed and not generated";
    drafted: Counter = Counter::default(), ["" [""]],
        "spec_decode_num_draft_tokens", "Symbols that speculation guessed and fed";
    accepted: Counter = Counter::default(), ["" [""]],
        "spec_decode_num_accepted_tokens", "Guessed symbols that were right";
    constraints: Counter = Counter::default(), ["kind" Constraint::KINDS],
        "constrained_requests", "Requests whose text must have a form, by the kind of their constraint";
    refused_constraints: Counter = Counter::default(), ["kind" Constraint::KINDS],
        "refused_constraints", "Constraints that were refused, by kind";
    constraint_seconds: ObservedHistogram = ObservedHistogram::new(SECONDS), ["" [""]],
        "constraint_compile_seconds", "Time to compile a constraint, or to find it compiled";
    forced: Counter = Counter::default(), ["" [""]],
        "forced_chars", "Generated symbols that a constraint forced, fed together";
    edit_sessions: Gauge = Gauge::default(), ["" [""]], "edit_sessions", "Editing sessions with an open document";
    edits: Counter = Counter::default(), ["event" EDIT_EVENTS],
        "edit_events", "Changes, completions and scores of editing sessions, and requests that a change overtook";
    success: Counter = Counter::default(), ["finished_reason" REASONS.map(|reason| reason.name())],
        "request_success", "Completed requests, by finish reason";
    failure: Counter = Counter::default(), ["code" CODES.map(Code::name)],
        "request_failure", "Requests that an engine accepted and ended with an error, by status code";
    first_char: ObservedHistogram = ObservedHistogram::new(SECONDS), ["" [""]],
        "time_to_first_token_seconds", "From a request's arrival to its first symbol";
    gap: ObservedHistogram = ObservedHistogram::new(SECONDS), ["after" AFTER],
        "inter_token_latency_seconds", "From one symbol to the next, after a boundary or within a segment";
    total: ObservedHistogram = ObservedHistogram::new(SECONDS), ["" [""]],
        "e2e_request_latency_seconds", "From a request's arrival to its end";
    queue: ObservedHistogram = ObservedHistogram::new(SECONDS), ["" [""]],
        "request_queue_time_seconds", "From a request's arrival to its admission";
    inference: ObservedHistogram = ObservedHistogram::new(SECONDS), ["" [""]],
        "request_inference_time_seconds", "From a request's admission to its end";
    prefill: ObservedHistogram = ObservedHistogram::new(SECONDS), ["" [""]],
        "request_prefill_time_seconds", "From a request's admission to the end of its prompt";
    decode: ObservedHistogram = ObservedHistogram::new(SECONDS), ["" [""]],
        "request_decode_time_seconds", "From a request's first symbol to its last";
    prompt: ObservedHistogram = ObservedHistogram::new(CHARS), ["" [""]], "request_prompt_tokens", "Symbols of a request's prompt";
    generation: ObservedHistogram = ObservedHistogram::new(CHARS), ["" [""]],
        "request_generation_tokens", "Symbols generated for a request";
    step_chars: ObservedHistogram = ObservedHistogram::new(CHARS), ["" [""]],
        "iteration_tokens", "Symbols fed in a step, all rows together";
    step_rows: ObservedHistogram = ObservedHistogram::new(ROWS), ["" [""]], "rows_per_step", "Rows fed in a step";
    middle_rows: ObservedHistogram = ObservedHistogram::new(ROWS), ["" [""]],
        "middle_rows_per_step", "Rows that shared a run of the middle layers";
    middle_run: Counter = Counter::default(), ["" [""]],
        "middle_steps_run", "Runs of the middle layers: one for each segment that closed";
    middle_skipped: Counter = Counter::default(), ["" [""]],
        "middle_steps_skipped", "Runs of the middle layers that pooling saved: one for each symbol that closed no segment";
    shortening: FloatGauge = FloatGauge::default(), ["" [""]],
        "shortening_factor", "Symbols per closed segment since a model of this name was first loaded; 0 before the first";
    boundary_rate: FloatGauge = FloatGauge::default(), ["" [""]],
        "boundary_rate", "Closed segments per symbol since a model of this name was first loaded";
    request_shortening: ObservedHistogram = ObservedHistogram::new(SHORTENING), ["" [""]],
        "request_shortening_factor", "Symbols per closed segment of a request that closed any";
    lookups: Counter = Counter::default(), ["result" ["hit", "miss"]],
        "segment_cache_lookups", "Lookups in the segment cache, by result";
    hit_bytes: Counter = Counter::default(), ["" [""]],
        "segment_cache_hit_bytes", "Bytes of key-value pages that requests shared with the segment cache";
    evictions: Counter = Counter::default(), ["" [""]],
        "segment_cache_evictions", "Entries evicted from the segment cache for other entries or for requests";
    cache_bytes: Gauge = Gauge::default(), ["" [""]],
        "segment_cache_bytes", "Bytes that the segment cache holds: its pages, and an estimate of its tree";
    cache_entries: Gauge = Gauge::default(), ["" [""]], "segment_cache_entries", "Entries of the segment cache";
    document_lookups: Counter = Counter::default(), ["result" ["hit", "miss"]],
        "document_cache_lookups", "Lookups in the document cache, by result";
    document_evictions: Counter = Counter::default(), ["" [""]],
        "document_cache_evictions", "Encoded documents evicted for other documents or for requests";
    document_bytes: Gauge = Gauge::default(), ["" [""]],
        "document_cache_bytes", "Bytes of the encoded documents in the document cache";
    document_entries: Gauge = Gauge::default(), ["" [""]], "document_cache_entries", "Encoded documents in the document cache";
    generations: Gauge = Gauge::default(), ["" [""]],
        "model_generations", "Generations of the model in memory: the serving one and draining ones";
}

impl Families {
    /// Registers what routers read under the names that vLLM gives it.
    fn under_vllm_names(&self, mut registry: Registry) -> Registry {
        registry.register("vllm:num_requests_running", "Requests that hold a row", self.running.clone());
        registry.register("vllm:num_requests_waiting", "Requests that wait for a row", self.waiting.clone());
        let help = "Share of the key-value memory that requests use: 1 is all of it";
        registry.register("vllm:kv_cache_usage_perc", help, self.kv_usage.clone());
        let help = "Symbols in a block of the segment cache, and blocks that fit into it, whatever their text";
        registry.register("vllm:cache_config", help, self.cache_config.clone());
        registry
    }
}

/// The blocks of a model's segment cache: an info, whose labels have the values.
#[derive(Debug, Clone, Default)]
struct CacheConfig {
    block: Arc<AtomicU64>,
    blocks: Arc<AtomicU64>,
}

impl EncodeMetric for CacheConfig {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let block = self.block.load(Relaxed);
        let blocks = self.blocks.load(Relaxed);
        encoder.encode_info(&[("block_size", block), ("num_gpu_blocks", blocks)])
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for CacheConfig {
    const TYPE: MetricType = MetricType::Info;
}

impl Series {
    /// Sets the bytes of key-value pages that requests use.
    fn set_memory<'a>(&self, engines: impl Iterator<Item = &'a Handle>) {
        let bytes: usize = engines.map(|engine| engine.load().bytes).sum();
        self.kv_bytes[0].set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Sets the other gauges from the state of the model's engines. A block of the segment cache has `block` symbols.
    fn set_gauges<'a>(&self, engines: impl Iterator<Item = &'a Handle>, block: usize) {
        let gauges = [
            &self.running,
            &self.waiting,
            &self.kv_limit,
            &self.cache_bytes,
            &self.cache_entries,
            &self.document_bytes,
            &self.document_entries,
            &self.generations,
        ];
        let mut sums = [0_i64; 8];
        let mut blocks = 0;
        for engine in engines {
            blocks = engine.cache_blocks(block).max(blocks);
            let counters = engine.counters();
            let cache = engine.segment_cache_usage();
            let documents = engine.document_cache_usage();
            let values = [
                counters.running,
                counters.waiting,
                engine.memory().limit,
                cache.bytes,
                cache.entries,
                documents.bytes,
                documents.entries,
                1,
            ];
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = sum.saturating_add(i64::try_from(value).unwrap_or(i64::MAX));
            }
        }
        for (gauge, sum) in gauges.into_iter().zip(sums) {
            gauge[0].set(sum);
        }
        self.cache_config[0].block.store(block as u64, Relaxed);
        self.cache_config[0].blocks.store(blocks as u64, Relaxed);
        let ratio = |part: f64, total: f64| if total > 0.0 { part / total } else { 0.0 };
        self.kv_usage[0].set(ratio(self.kv_bytes[0].get() as f64, self.kv_limit[0].get() as f64));
        let closed = self.middle_run[0].get() as f64;
        let open = self.middle_skipped[0].get() as f64;
        self.shortening[0].set(ratio(closed + open, closed));
        self.boundary_rate[0].set(ratio(closed, closed + open));
    }
}

/// Returns the labels of a model's series, one for each value of the metric's label.
fn labels(model: &str, label: &'static str, values: &[&str]) -> impl Iterator<Item = Labels> {
    let own = move |value: &str| (!label.is_empty()).then(|| (label, value.to_owned()));
    values.iter().map(move |value| [("model_name", model.to_owned())].into_iter().chain(own(value)).collect())
}

/// The metrics of all models' levels of segments. A model without several levels has no such series, so they begin with the first
/// request that has levels. Clones share their series.
#[derive(Debug, Clone, Default)]
struct LevelFamilies {
    chunks: SortedFamily<Counter>,
    middle_steps: SortedFamily<Counter>,
    shortening: SortedFamily<FloatGauge>,
    /// Symbols of the requests that are counted. Not rendered.
    symbols: SortedFamily<Counter>,
}

impl LevelFamilies {
    fn register(registry: &mut Registry) -> Self {
        let chunks = "Segments of finished requests, by level: 1 is the outermost";
        let steps =
            "Runs of the layers inside a level, summed over finished requests; a shared run counts for each request";
        let mean = "Mean segment length: in symbols at level 1, and in segments of the enclosing level at inner levels";
        Self {
            chunks: register(registry, "level_chunks", chunks),
            middle_steps: register(registry, "level_middle_steps", steps),
            shortening: register(registry, "level_shortening_factor", mean),
            symbols: SortedFamily::default(),
        }
    }

    /// Counts a finished request, if it has several levels.
    fn count(&self, model: &str, usage: &Usage, timing: &Timing) {
        let levels = usage.by_level(timing);
        if levels.is_empty() {
            return;
        }
        let symbols = self.symbols.get_or_create(&level_labels(model, 0));
        symbols.inc_by((usage.prompt_chars + usage.generated_chars) as u64);
        let mut around = symbols.get();
        for (index, level) in levels.iter().enumerate() {
            let labels = level_labels(model, index + 1);
            let chunks = self.chunks.get_or_create(&labels);
            chunks.inc_by(level.chunks as u64);
            self.middle_steps.get_or_create(&labels).inc_by(level.middle_steps as u64);
            let own = chunks.get();
            self.shortening.get_or_create(&labels).set(around as f64 / own as f64);
            around = own;
        }
    }

    fn remove(&self, model: &str) {
        for level in 0..=MAX_LEVELS {
            let labels = level_labels(model, level);
            self.chunks.remove(&labels);
            self.middle_steps.remove(&labels);
            self.shortening.remove(&labels);
            self.symbols.remove(&labels);
        }
    }
}

fn level_labels(model: &str, level: usize) -> Labels {
    vec![("model_name", model.to_owned()), ("level", level.to_string())]
}

/// Names and values of a series' labels.
type Labels = Vec<(&'static str, String)>;

/// The series of one metric, by their labels. The client library's own family renders them in the random order of a hash map,
/// so that two scrapes of an idle server differ.
#[derive(Debug)]
struct SortedFamily<M> {
    series: Arc<RwLock<BTreeMap<Labels, M>>>,
    /// Creates the metric of a new series.
    create: fn() -> M,
}

impl<M> Clone for SortedFamily<M> {
    fn clone(&self) -> Self {
        Self { series: Arc::clone(&self.series), create: self.create }
    }
}

impl<M: Default> Default for SortedFamily<M> {
    fn default() -> Self {
        Self::new(M::default)
    }
}

impl<M> SortedFamily<M> {
    fn new(create: fn() -> M) -> Self {
        Self { series: Arc::default(), create }
    }

    /// Removes a series, if it exists.
    fn remove(&self, labels: &Labels) {
        self.series.write().unwrap_or_else(PoisonError::into_inner).remove(labels);
    }
}

impl<M: Clone> SortedFamily<M> {
    /// Returns the series with these labels; creates it if it does not exist. Clones of a metric share its value.
    fn get_or_create(&self, labels: &Labels) -> M {
        if let Some(metric) = self.series.read().unwrap_or_else(PoisonError::into_inner).get(labels) {
            return metric.clone();
        }
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        series.entry(labels.clone()).or_insert_with(self.create).clone()
    }
}

impl<M: EncodeMetric + TypedMetric> EncodeMetric for SortedFamily<M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, metric) in &*self.series.read().unwrap_or_else(PoisonError::into_inner) {
            metric.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// A histogram whose series are absent from the text until it has an observation. A model has many histograms of dozens of buckets
/// each, and some of them never apply to it.
#[derive(Debug, Clone)]
struct ObservedHistogram {
    histogram: Histogram,
    has_observations: Arc<AtomicBool>,
}

impl ObservedHistogram {
    fn new(buckets: impl IntoIterator<Item = f64>) -> Self {
        Self { histogram: Histogram::new(buckets), has_observations: Arc::default() }
    }

    fn observe(&self, value: f64) {
        self.histogram.observe(value);
        self.has_observations.store(true, Ordering::Release);
    }
}

impl EncodeMetric for ObservedHistogram {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        if self.has_observations.load(Ordering::Acquire) { self.histogram.encode(encoder) } else { Ok(()) }
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for ObservedHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

/// A number of requests, and how long they took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CountAndTime {
    pub(crate) count: u64,
    /// Total time, in nanoseconds.
    pub(crate) ns: u64,
}

/// Totals of a model's requests since the process began, as integers. The KServe statistics call reports them one by one; the sums
/// inside of histograms cannot be read back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RequestTotals {
    /// Completed requests, from arrival to end.
    pub(crate) success: CountAndTime,
    /// Failed requests, from arrival to end.
    pub(crate) fail: CountAndTime,
    /// Completed requests, from arrival to admission.
    pub(crate) queue: CountAndTime,
    /// Completed requests, from admission to the first logits after the prompt.
    pub(crate) prefill: CountAndTime,
    /// Completed requests, from these logits to the end.
    pub(crate) decode: CountAndTime,
    pub(crate) steps: u64,
    /// End of the last request, in milliseconds since 1970.
    pub(crate) last: u64,
}

impl CountAndTime {
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

impl RequestTotals {
    fn add_finished(&mut self, success: bool, timing: &Timing) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        self.last = u64::try_from(now).unwrap_or(u64::MAX);
        if !success {
            return self.fail.add(timing.total_ns);
        }
        self.success.add(timing.total_ns);
        self.queue.add(timing.queue_ns);
        self.prefill.add(timing.prefill_ns);
        self.decode.add(timing.total_ns.saturating_sub(timing.queue_ns).saturating_sub(timing.prefill_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::usage::LevelCounts;

    #[test]
    fn parts_add_up_to_the_total() {
        let mut totals = RequestTotals::default();
        let timing = Timing { queue_ns: 2, prefill_ns: 3, total_ns: 10, ..Timing::default() };
        totals.add_finished(true, &timing);
        totals.add_finished(false, &timing);
        let RequestTotals { success, fail, queue, prefill, decode, last, .. } = totals;
        assert_eq!((success, fail), (CountAndTime { count: 1, ns: 10 }, CountAndTime { count: 1, ns: 10 }));
        assert_eq!(queue.ns + prefill.ns + decode.ns, success.ns);
        assert!(last > 0);
    }

    #[test]
    fn series_are_rendered_in_the_order_of_their_labels() {
        let family = SortedFamily::<Counter>::default();
        let labels = |value: u32| vec![("value", value.to_string())];
        // 32 series: a random order would be this one by chance in one of 32! runs
        for value in (10..42).rev() {
            family.get_or_create(&labels(value)).inc_by(u64::from(value));
        }
        family.get_or_create(&labels(10)).inc();
        family.remove(&labels(41));
        let mut registry = Registry::default();
        registry.register("a", "A", family);
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        let samples: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        let count = |value: u32| if value == 10 { 11 } else { value };
        let expected: Vec<_> = (10..41).map(|value| format!("a_total{{value=\"{value}\"}} {}", count(value))).collect();
        assert_eq!(samples, expected);
    }

    #[test]
    fn every_series_has_the_given_labels_and_no_others_than_listed() {
        let labels = vec![("pool".to_owned(), "a\"b".to_owned())];
        let metrics = Metrics::new(&MetricsConfig { labels, vllm_names: true, cache_block: Some(64) });
        metrics.meter("m");
        metrics.count_call("s", "m", "OK");
        metrics.count_http_request("/", "GET", 200);
        let text = metrics.render(&[]).unwrap();
        assert!(text.contains(
            "weir_cache_config_info{pool=\"a\\\"b\",block_size=\"64\",num_gpu_blocks=\"0\",model_name=\"m\"} 1\n"
        ));
        assert!(text.contains("vllm:kv_cache_usage_perc{pool=\"a\\\"b\",model_name=\"m\"} 0.0\n"), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.contains("{pool=\"a\\\"b\""), "{line}");
            let names = line.split(['{', ',']).skip(1).filter_map(|label| label.split_once("=\""));
            assert!(names.skip(1).all(|(name, _)| LABELS.contains(&name)), "{line}");
        }
    }

    #[test]
    fn series_begin_with_the_first_observation() {
        let histogram = ObservedHistogram::new([1.0, 2.0]);
        let mut registry = Registry::default();
        registry.register("a", "A", histogram.clone());
        let samples = || {
            let mut out = String::new();
            text::encode(&mut out, &registry).unwrap();
            assert!(out.contains("# HELP a A.\n# TYPE a histogram\n"), "{out}");
            out.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(samples(), Vec::<String>::new());
        histogram.observe(1.5);
        let all =
            ["a_sum 1.5", "a_count 1", "a_bucket{le=\"1.0\"} 0", "a_bucket{le=\"2.0\"} 1", "a_bucket{le=\"+Inf\"} 1"];
        assert_eq!(samples(), all);
    }

    #[test]
    fn the_levels_of_a_removed_model_begin_again() {
        let mut registry = Registry::default();
        let families = LevelFamilies::register(&mut registry);
        let counted = || {
            let usage = Usage { prompt_chars: 6, levels: LevelCounts::from(&[3, 1][..]), ..Usage::default() };
            families.count("m", &usage, &Timing::default());
            let mut out = String::new();
            text::encode(&mut out, &registry).unwrap();
            out
        };
        let first = counted();
        families.remove("m");
        assert_eq!(counted(), first);
    }
}
