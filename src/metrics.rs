//! Every metric, declared once: name, kind, buckets, labels and help are in the tables below, and nowhere else.
//!
//! Names are vLLM's where it has one, under the prefix `weir:`; a token is a character here. A [`Meter`] is what one engine
//! tells: its series are looked up when the model is loaded, so that nothing is looked up or allocated while it steps.
//! What an engine counts by itself is read when somebody asks ([`Metrics::render`]).

pub mod ledger;
mod meter;
mod totals;

use crate::{decode::options::FinishReason, engine::Handle, error::Code};
pub use meter::Meter;
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};
use totals::Totals;
pub use totals::{Requests, Times};

/// A name, with what all names begin with.
macro_rules! weir {
    ($name:literal) => {
        concat!("weir:", $name)
    };
}

/// Times, in seconds: a step of a small model takes less than a tenth of a millisecond, a queue may take minutes.
const SECONDS: [f64; 28] = [
    50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3, 10e-3, 20e-3,
    50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
];
/// Characters.
const CHARS: [f64; 21] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6];
/// Rows of a step.
const ROWS: [f64; 14] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 512.0, 4096.0];
/// Characters per segment.
const SHORTENING: [f64; 12] = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 24.0, 64.0];

/// The label whose values tell a gap after a boundary from one within a segment.
const AFTER: [&str; 2] = ["char", "boundary"];
const REASONS: [FinishReason; 6] = [
    FinishReason::MaxChars,
    FinishReason::MaxSegments,
    FinishReason::Stop(0),
    FinishReason::MaxContext,
    FinishReason::EndOfText,
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

type Labels = Vec<(&'static str, String)>;
type Ratio = Gauge<f64, AtomicU64>;

/// Declares the metrics of a model: `field: kind = constructor, label and its values, name, help`.
macro_rules! per_model {
    ($($field:ident: $kind:ty = $new:expr, [$label:literal $values:expr], $name:literal, $help:literal;)*) => {
        /// The metrics of all models.
        struct Families { $($field: Family<Labels, $kind>,)* }

        /// The metrics of one model, each by the values of its own label; of one value, if it has none.
        #[derive(Debug)]
        struct Series { $($field: Vec<$kind>,)* totals: Totals }

        impl Families {
            fn register(registry: &mut Registry) -> Self {
                $(
                    let $field = Family::<Labels, $kind>::new_with_constructor(|| $new);
                    registry.register(weir!($name), $help, $field.clone());
                )*
                Self { $($field,)* }
            }

            /// The series of a model, made if they are not there.
            fn series(&self, model: &str) -> Series {
                Series { $($field: labels(model, $label, &$values)
                    .map(|labels| self.$field.get_or_create_owned(&labels)).collect(),)* totals: Totals::default() }
            }

            /// Removes the series of a model.
            fn remove(&self, model: &str) {
                $(labels(model, $label, &$values).for_each(|labels| { self.$field.remove(&labels); });)*
            }
        }
    };
}

per_model! {
    running: Gauge = Gauge::default(), ["" [""]], "num_requests_running", "Requests that hold a row";
    waiting: Gauge = Gauge::default(), ["" [""]], "num_requests_waiting", "Requests that wait for a row";
    kv_usage: Ratio = Ratio::default(), ["" [""]],
        "kv_cache_usage_perc", "Share of the key-value memory whose pages requests use: 1 is all of it";
    kv_bytes: Gauge = Gauge::default(), ["" [""]], "kv_cache_used_bytes", "Bytes of key-value pages that requests use";
    kv_limit: Gauge = Gauge::default(), ["" [""]], "kv_cache_limit_bytes", "Bytes of key-value pages there may be";
    preemptions: Counter = Counter::default(), ["" [""]],
        "num_preemptions", "Times that a running request gave up its row for others";
    prompt_chars: Counter = Counter::default(), ["" [""]],
        "prompt_tokens", "Characters of prompts and scored texts that were processed";
    generated_chars: Counter = Counter::default(), ["" [""]], "generation_tokens", "Characters that were generated";
    cache_queries: Counter = Counter::default(), ["" [""]],
        "prefix_cache_queries", "Characters of prompts that were looked up in the segment cache: all but the last, which has to be fed";
    cache_hits: Counter = Counter::default(), ["" [""]],
        "prefix_cache_hits", "Characters of prompts that came from the segment cache";
    success: Counter = Counter::default(), ["finished_reason" REASONS.map(|reason| reason.name())],
        "request_success", "Requests that came to their end, by why they ended";
    failure: Counter = Counter::default(), ["code" CODES.map(Code::name)],
        "request_failure", "Requests that an engine took and ended with an error, by its code";
    first_char: Histogram = Histogram::new(SECONDS), ["" [""]],
        "time_to_first_token_seconds", "From a request's arrival to its first character";
    gap: Histogram = Histogram::new(SECONDS), ["after" AFTER],
        "inter_token_latency_seconds", "From one character to the next, after a boundary or within a segment";
    total: Histogram = Histogram::new(SECONDS), ["" [""]],
        "e2e_request_latency_seconds", "From a request's arrival to its end";
    queue: Histogram = Histogram::new(SECONDS), ["" [""]],
        "request_queue_time_seconds", "From a request's arrival to its row";
    inference: Histogram = Histogram::new(SECONDS), ["" [""]],
        "request_inference_time_seconds", "From a request's row to its end";
    prefill: Histogram = Histogram::new(SECONDS), ["" [""]],
        "request_prefill_time_seconds", "From a request's row to the end of its prompt";
    decode: Histogram = Histogram::new(SECONDS), ["" [""]],
        "request_decode_time_seconds", "From a request's first character to its last";
    prompt: Histogram = Histogram::new(CHARS), ["" [""]], "request_prompt_tokens", "Characters of a request's prompt";
    generation: Histogram = Histogram::new(CHARS), ["" [""]],
        "request_generation_tokens", "Characters generated for a request";
    step_chars: Histogram = Histogram::new(CHARS), ["" [""]],
        "iteration_tokens_total", "Characters fed in a step, of all rows";
    step_rows: Histogram = Histogram::new(ROWS), ["" [""]], "rows_per_step", "Rows fed in a step";
    middle_rows: Histogram = Histogram::new(ROWS), ["" [""]],
        "middle_rows_per_step", "Rows that shared a run of the middle layers";
    middle_run: Counter = Counter::default(), ["" [""]],
        "middle_steps_run", "Runs of the middle layers: one for each segment that closed";
    middle_skipped: Counter = Counter::default(), ["" [""]],
        "middle_steps_skipped", "Runs of the middle layers that pooling saved: characters that closed no segment";
    shortening: Ratio = Ratio::default(), ["" [""]],
        "shortening_factor", "Characters per closed segment since the model was loaded; 0 before the first";
    boundary_rate: Ratio = Ratio::default(), ["" [""]],
        "boundary_rate", "Closed segments per character since the model was loaded";
    request_shortening: Histogram = Histogram::new(SHORTENING), ["" [""]],
        "request_shortening_factor", "Characters per closed segment of a request that closed any";
    lookups: Counter = Counter::default(), ["result" ["hit", "miss"]],
        "segment_cache_lookups", "Lookups in the segment cache that found something, and that did not";
    hit_bytes: Counter = Counter::default(), ["" [""]],
        "segment_cache_hit_bytes", "Bytes of key-value pages that requests shared with the segment cache";
    evictions: Counter = Counter::default(), ["" [""]],
        "segment_cache_evictions", "Entries of the segment cache that made way for others or for requests";
    cache_bytes: Gauge = Gauge::default(), ["" [""]],
        "segment_cache_bytes", "Bytes that the segment cache holds: its pages, and roughly its tree";
    cache_entries: Gauge = Gauge::default(), ["" [""]], "segment_cache_entries", "Entries of the segment cache";
    document_lookups: Counter = Counter::default(), ["result" ["hit", "miss"]],
        "document_cache_lookups", "Requests for an encoded document that was there, and for one that was not";
    document_evictions: Counter = Counter::default(), ["" [""]],
        "document_cache_evictions", "Encoded documents that made way for others or for requests";
    document_bytes: Gauge = Gauge::default(), ["" [""]],
        "document_cache_bytes", "Bytes that encoded documents occupy that are kept for later requests";
    document_entries: Gauge = Gauge::default(), ["" [""]], "document_cache_entries", "Encoded documents that are kept";
    generations: Gauge = Gauge::default(), ["" [""]],
        "model_generations", "Generations of the model in memory: the one that serves, and those that drain";
}

/// All metrics of a process.
pub struct Metrics {
    registry: Registry,
    families: Families,
    /// Calls that were answered, by service, method and code.
    calls: Family<Labels, Counter>,
    models: Mutex<BTreeMap<String, Arc<Series>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        let calls = Family::default();
        registry.register(
            weir!("grpc_calls"),
            "Calls that were answered, by service, method and status code",
            calls.clone(),
        );
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register(weir!("build"), "The server's version", Info::new(version));
        Self { registry, families, calls, models: Mutex::default() }
    }
}

impl Metrics {
    /// A meter for an engine of the model of that name.
    pub fn meter(&self, model: &str) -> Arc<Meter> {
        let mut models = lock(&self.models);
        let series = models.entry(model.to_owned()).or_insert_with(|| Arc::new(self.families.series(model)));
        Arc::new(Meter::new(Arc::clone(series)))
    }

    /// Drops the series of a model that is gone.
    pub fn forget(&self, model: &str) {
        lock(&self.models).remove(model);
        self.families.remove(model);
    }

    /// A call was answered. The method must be one of a few: each has its series.
    pub fn called(&self, service: &'static str, method: &'static str, code: &'static str) {
        let labels = [("service", service), ("method", method), ("code", code)];
        self.calls.get_or_create(&labels.map(|(key, value)| (key, value.to_owned())).into()).inc();
    }

    /// What became of the requests to a model.
    pub fn requests(&self, model: &str) -> Requests {
        lock(&self.models).get(model).map_or_else(Requests::default, |series| series.totals.read())
    }

    /// Everything, in the text format of OpenMetrics, with what these engines tell now.
    ///
    /// # Errors
    /// None that is known: what is written to is memory.
    pub fn render(&self, engines: &[(Arc<Meter>, Handle)]) -> Result<String, fmt::Error> {
        // One at a time: the gauges of a model are set from all its generations together.
        let models = lock(&self.models);
        for series in models.values() {
            let of = engines.iter().filter(|(meter, _)| meter.is_of(series));
            series.gauge(of.inspect(|(meter, engine)| meter.catch_up(engine)).map(|(_, engine)| engine));
        }
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

impl Series {
    /// Sets what is not counted but looked at.
    fn gauge<'a>(&self, engines: impl Iterator<Item = &'a Handle>) {
        let (mut running, mut waiting, mut bytes, mut limit) = (0, 0, 0, 0);
        let (mut cache_bytes, mut cache_entries, mut generations) = (0, 0, 0);
        let (mut document_bytes, mut document_entries) = (0, 0);
        for engine in engines {
            let (load, cache) = (engine.load(), engine.segment_cache_usage());
            running += signed(load.running);
            waiting += signed(load.queued);
            bytes += signed(load.bytes);
            limit = signed(engine.memory().limit).saturating_add(limit);
            cache_bytes += signed(cache.bytes);
            cache_entries += signed(cache.entries);
            let documents = engine.document_cache_usage();
            document_bytes += signed(documents.bytes);
            document_entries += signed(documents.entries);
            generations += 1;
        }
        let gauges = [
            (&self.running, running),
            (&self.waiting, waiting),
            (&self.kv_bytes, bytes),
            (&self.kv_limit, limit),
            (&self.cache_bytes, cache_bytes),
            (&self.cache_entries, cache_entries),
            (&self.document_bytes, document_bytes),
            (&self.document_entries, document_entries),
            (&self.generations, generations),
        ];
        for (gauge, value) in gauges {
            gauge[0].set(value);
        }
        self.kv_usage[0].set(if limit > 0 { bytes as f64 / limit as f64 } else { 0.0 });
        let (closed, open) = (self.middle_run[0].get() as f64, self.middle_skipped[0].get() as f64);
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        self.shortening[0].set(ratio(closed + open, closed));
        self.boundary_rate[0].set(ratio(closed, closed + open));
    }
}

/// The labels of a model's series, one for each value of the metric's own label.
fn labels(model: &str, label: &'static str, values: &[&str]) -> impl Iterator<Item = Labels> {
    let own = move |value: &str| (!label.is_empty()).then(|| (label, value.to_owned()));
    values.iter().map(move |value| [("model_name", model.to_owned())].into_iter().chain(own(value)).collect())
}

fn signed(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
