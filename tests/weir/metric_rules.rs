//! The rules of `promtool check metrics`, for machines without promtool, on all metrics of a process.

use super::{
    document_model::DocumentModel,
    summaries::write_random_model,
    support::{converted, settings},
};
use std::{collections::BTreeSet, time::Duration};
use weir::{
    decode::{
        options::FinishReason,
        usage::{LevelCounts, Timing, Usage},
    },
    engine::{
        Handle, Limits,
        observer::{EngineEvent, Observer},
    },
    family::load::load,
    metrics::Metrics,
    serve::Engines,
};

/// Units that have a base unit, and the base unit.
const UNITS: [(&str, &str); 16] = [
    ("milliseconds", "seconds"),
    ("microseconds", "seconds"),
    ("nanoseconds", "seconds"),
    ("minutes", "seconds"),
    ("hours", "seconds"),
    ("days", "seconds"),
    ("weeks", "seconds"),
    ("bits", "bytes"),
    ("kilobytes", "bytes"),
    ("megabytes", "bytes"),
    ("gigabytes", "bytes"),
    ("kibibytes", "bytes"),
    ("mebibytes", "bytes"),
    ("gibibytes", "bytes"),
    ("perc", "ratio"),
    ("percent", "ratio"),
];
const ABBREVIATIONS: [&str; 14] = ["s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"];
const KINDS: [&str; 4] = ["counter", "gauge", "histogram", "summary"];

/// Describes a metric in the OpenMetrics text.
#[derive(Debug, Clone)]
struct Description {
    /// The name as samples have it, but without a histogram's `_bucket`, `_count` or `_sum`.
    name: String,
    help: String,
    kind: String,
    labels: Vec<String>,
}

/// Reads the descriptions of OpenMetrics text, where a counter's ending stands in its samples only.
fn descriptions(text: &str) -> Vec<Description> {
    let mut all = Vec::<Description>::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let (name, help) = (name.to_owned(), help.to_owned());
            all.push(Description { name, help, kind: String::new(), labels: Vec::new() });
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let last = all.last_mut().filter(|last| last.name == name).expect("HELP stands before TYPE");
            kind.clone_into(&mut last.kind);
        } else if !line.starts_with('#') {
            let last = all.last_mut().expect("samples follow a description");
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            if last.kind != "histogram" {
                name.clone_into(&mut last.name);
            }
            let labels =
                line.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(labels, _)| labels);
            let labels = labels.split(',').filter_map(|label| label.split_once('='));
            last.labels.extend(labels.map(|(label, _)| label.to_owned()));
        }
    }
    all
}

/// Returns what a description does wrong.
fn problems(metric: &Description) -> Vec<String> {
    let Description { name, help, kind, labels } = metric;
    let mut problems = Vec::new();
    let mut rule = |is_broken: bool, problem: &str| {
        if is_broken {
            problems.push(format!("{name}: {problem}"));
        }
    };
    let parts: Vec<_> = name.split('_').collect();
    rule(help.trim().is_empty(), "no help text");
    rule(name.contains(':'), "colons are for recording rules");
    rule(!name.starts_with("weir_"), "no prefix");
    rule(name.chars().any(char::is_uppercase), "camel case");
    rule((kind == "counter") != name.ends_with("_total"), "`_total` is the ending of counters, and theirs only");
    rule((kind == "info") != name.ends_with("_info"), "`_info` is the ending of infos, and theirs only");
    rule(["_bucket", "_count", "_sum"].iter().any(|ending| name.ends_with(ending)), "an ending of histograms' samples");
    rule(KINDS.iter().any(|kind| parts.contains(kind)), "its type in its name");
    rule(ABBREVIATIONS.iter().any(|unit| parts.contains(unit)), "an abbreviated unit");
    for (unit, base) in UNITS {
        rule(parts.contains(&unit), &format!("{unit} in place of {base}"));
    }
    for unit in ["seconds", "bytes", "ratio"] {
        let base = name.trim_end_matches("_total");
        rule(parts.contains(&unit) && !base.ends_with(&format!("_{unit}")), "its unit is not at its end");
    }
    for label in labels {
        rule(label == "le" && kind != "histogram" || label == "quantile", "a label of histograms or summaries");
        rule(label.chars().any(char::is_uppercase), "camel case in a label");
    }
    problems
}

/// Renders all metrics, of two models.
fn render(metrics: &Metrics) -> String {
    metrics.render(&[]).unwrap()
}

/// Records values of all metrics of `model` that appear with their first value: its histograms, and those of levels of chunking.
pub(super) fn record_all(metrics: &Metrics, model: &str) {
    let meter = metrics.meter(model);
    // Any engine: a meter records nothing before its engine has started.
    meter.begin(&Handle::start(DocumentModel::new(), Limits::default()).unwrap());
    meter.record(EngineEvent::Step { rows: 1, fed: 1, middle: 1 });
    meter.record(EngineEvent::Admitted(Duration::ZERO));
    meter.record(EngineEvent::FirstChar(Duration::ZERO));
    [false, true].iter().for_each(|&boundary| meter.record(EngineEvent::Gap { gap: Duration::ZERO, boundary }));
    let levels = LevelCounts::from(&[2, 1][..]);
    let usage = Usage { prompt_chars: 4, prompt_segments: 1, levels, ..Usage::default() };
    let timing = &Timing { steps: 1, ..Timing::default() };
    meter.record(EngineEvent::Finished { outcome: Ok(&FinishReason::MaxChars), usage: &usage, timing });
}

fn with_two_models() -> Metrics {
    let metrics = Metrics::default();
    metrics.meter("b");
    metrics.meter("a");
    metrics.count_call("s", "m", "OK");
    metrics.count_http_request("/", "GET", 200);
    metrics
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    let metrics = with_two_models();
    record_all(&metrics, "a");
    let all = descriptions(&render(&metrics));
    assert!(all.len() > 40 && all.iter().all(|metric| !metric.kind.is_empty()), "{} metrics", all.len());
    assert_eq!(all.iter().flat_map(problems).collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn broken_names_are_found() {
    let good = Description {
        name: "weir_request_queue_time_seconds".into(),
        help: "Help.".into(),
        kind: "histogram".into(),
        labels: vec!["model_name".into(), "le".into()],
    };
    assert_eq!(problems(&good), Vec::<String>::new());
    for name in [
        "weir_queue:mean_seconds",
        "vllm_queue_seconds",
        "weir_queueTime",
        "weir_queue_total",
        "weir_queue_info",
        "weir_queue_count",
        "weir_queue_histogram",
        "weir_queue_ms",
        "weir_queue_milliseconds",
        "weir_usage_perc",
        "weir_seconds_queue",
    ] {
        assert_eq!(problems(&Description { name: name.into(), ..good.clone() }).len(), 1, "{name}");
    }
    let wrong = [
        Description { help: " ".into(), ..good.clone() },
        Description { kind: "counter".into(), labels: Vec::new(), ..good.clone() },
        Description { kind: "gauge".into(), ..good.clone() },
        Description { labels: vec!["quantile".into()], ..good.clone() },
        Description { labels: vec!["modelName".into()], ..good },
    ];
    for metric in wrong {
        assert_eq!(problems(&metric).len(), 1, "{metric:?}");
    }
}

#[test]
fn the_order_of_series_is_stable() {
    let first = with_two_models();
    let text = render(&first);
    assert_eq!(text, render(&first));
    // another process, whose models and calls came in another order
    let second = Metrics::default();
    second.meter("a");
    second.meter("c");
    second.count_call("s", "m", "OK");
    second.count_http_request("/", "GET", 200);
    second.meter("b");
    second.remove_model("c");
    assert_eq!(text, render(&second));
    let models = |text: &str| text.lines().filter(|line| line.starts_with("weir_num_requests_running")).count();
    assert_eq!(models(&text), 2);
}

/// Returns the names and labels of the histograms' counts.
fn histogram_counts(text: &str) -> BTreeSet<String> {
    let counts = text.lines().filter_map(|line| line.split_once(' ')).filter(|(series, _)| series.contains("_count{"));
    counts.map(|(series, _)| series.to_owned()).collect()
}

#[test]
fn a_histogram_appears_with_its_first_observation() {
    let metrics = with_two_models();
    let text = render(&metrics);
    assert!(!text.contains("_bucket{") && histogram_counts(&text).is_empty(), "{text}");
    let described = text.lines().filter(|line| line.ends_with(" histogram")).count();
    // A gap within a segment adds no series for gaps after a boundary or for the other model.
    let meter = metrics.meter("a");
    meter.begin(&Handle::start(DocumentModel::new(), Limits::default()).unwrap());
    meter.record(EngineEvent::Gap { gap: Duration::ZERO, boundary: false });
    let gaps = "weir_inter_token_latency_seconds_count{model_name=\"a\",after=\"char\"}";
    assert_eq!(histogram_counts(&render(&metrics)), BTreeSet::from([gaps.to_owned()]));
    record_all(&metrics, "a");
    // one more series than histograms: gaps have two
    assert_eq!(histogram_counts(&render(&metrics)).len(), described + 1);
    metrics.remove_model("a");
    assert!(histogram_counts(&render(&metrics)).is_empty());
}

/// A model that has served nothing reports no count, and its caches are empty, although it was warmed up.
#[test]
fn no_metric_counts_the_warm_up() {
    let limits = Limits { cache_bytes: 1 << 20, document_bytes: 1 << 20, chunk: 64, ..Limits::default() };
    let folder = tempfile::tempdir().unwrap();
    let summarizer = write_random_model(folder.path());
    for folder in [converted("whitespaces"), summarizer.into()] {
        let model = load(&folder, &settings()).unwrap();
        let name = model.card().name.clone();
        let engines = Engines::default();
        engines.add(engines.launch(model, limits, None).unwrap()).unwrap();
        let text = engines.render_metrics().unwrap();
        let samples = text.lines().filter(|line| line.contains(&format!("model_name={name:?}")));
        let (state, counts): (Vec<_>, Vec<_>) = samples.partition(|line| {
            line.starts_with("weir_kv_cache_limit_bytes{") || line.starts_with("weir_model_generations{")
        });
        assert!(state.len() == 2 && counts.len() > 20, "{name}: {text}");
        for line in counts {
            assert!(line.ends_with(" 0") || line.ends_with(" 0.0"), "{name}: {line}");
        }
    }
}
