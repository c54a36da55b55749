//! The program for operators: health, admin commands, reports, the metrics table of the documentation, and the rules of `promtool
//! check metrics`.

use crate::cases::copy_folder;
use crate::process::{outcome, program, write_large_model};
use crate::support::settings;
use crate::*;
use weir::engine::observer::{EngineEvent, Observer};
use weir::models::usage::{LevelCounts, Timing};
use weir::server::metrics::Metrics;

const TOKEN: &str = "a-token-for-the-tests";

/// Creates a models folder. `all` holds names and fixtures.
fn models(all: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, case) in all {
        copy_folder(&converted(case), &folder.path().join(name));
    }
    folder
}

/// Runs a command with the admin token. Returns stdout if it succeeds, otherwise stderr.
fn weir(args: &[&str]) -> Result<String, String> {
    outcome(program(args).env("WEIR_ADMIN_TOKEN", TOKEN))
}

/// Starts a server of a models folder that takes the admin token.
fn administered(models: &TempDir) -> Server {
    let folder = models.path().to_str().unwrap();
    let token = models.path().join("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    Server::start(&["--models", folder, "--kv-memory", "64MiB", "--admin-token-file", token.to_str().unwrap()])
}

#[test]
fn models_are_replaced_from_the_command_line() {
    let models = models(&[("first", "whitespaces")]);
    let server = administered(&models);
    let address = server.address.to_string();
    for service in ["", "weir.v1.Generation"] {
        weir(&["health", &address, "--service", service]).unwrap();
    }

    copy_folder(&converted("fixed_sf2"), &models.path().join("second"));
    copy_folder(&converted("vanilla"), &models.path().join("broken"));
    fs::write(models.path().join("broken/model.safetensors"), "no").unwrap();
    let loaded = weir(&["admin", "load", &address, "second", "--name", "other"]).unwrap();
    assert_eq!(loaded, "other is served by generation 2\n");
    let reloaded = weir(&["admin", "load", &address, "--name", "first"]).unwrap();
    assert_eq!(reloaded, "first is served by generation 3; generation 1 drains\n");
    let refused = [("broken", "model.safetensors"), ("../second", "within"), ("nothing", "nothing")];
    for (path, why) in refused {
        let error = weir(&["admin", "load", &address, path]).unwrap_err();
        assert!(error.contains(why), "{path}: {error}");
    }
    let unloaded = weir(&["admin", "unload", &address, "other"]).unwrap();
    assert_eq!(unloaded, "other: generation 2 drains\n");
    let list = || -> serde_json::Value {
        serde_json::from_str(&weir(&["admin", "list", &address, "--json"]).unwrap()).unwrap()
    };
    while list().as_array().unwrap().len() > 1 {}
    let left = &list()[0];
    assert_eq!((&left["name"], &left["generation"], &left["state"]), (&"first".into(), &3.into(), &"serving".into()));
    assert_eq!(server.get("/health/ready").0, 200);
    let (_, metrics) = server.get("/metrics");
    assert!(!metrics.contains("model_name=\"other\""), "an unloaded model leaves no series");
}

#[cfg(unix)]
#[test]
fn broken_checkpoints_leave_the_others_in_service() {
    let models = models(&[
        ("a-broken", "vanilla"),
        ("b-good", "whitespaces"),
        ("c-pipe", "vanilla"),
        ("d-config-pipe", "vanilla"),
    ]);
    let path = |name: &str| models.path().join(name);
    let broken = path("a-broken");
    fs::write(broken.join("model.safetensors"), "no").unwrap();
    for file in ["c-pipe/model.safetensors", "d-config-pipe/config.json"] {
        let pipe = path(file);
        fs::remove_file(&pipe).unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    }
    let folder = models.path().to_str().unwrap();
    let server = Server::start(&["--models", folder, "--kv-memory", "64MiB", "--calibration-milliseconds", "0"]);
    for part in [
        "ERROR",
        "not served",
        "a-broken",
        "expected at least 8 bytes",
        "c-pipe",
        "expected a regular file",
        "d-config-pipe/config.json",
        "serving b-good",
    ] {
        server.program.wait_for_part(part);
    }
    // The server is ready a moment after it says where it listens.
    let began = Instant::now();
    while server.get("/health/ready").0 != 200 {
        assert!(began.elapsed() < TIMEOUT, "not ready");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (_, metrics) = server.get("/metrics");
    assert!(metrics.contains("weir_checkpoints_skipped_total 3"), "{metrics}");
    assert!(!metrics.contains("model_name=\"a-broken\""), "a model that is not served has no series");
    drop(server);

    let named = format!("named={}", broken.display());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--kv-memory", "64MiB", "--models", folder];
    let log = weir(&[&serve[..], &["--model", &named]].concat()).unwrap_err();
    assert!(log.contains("a-broken/model.safetensors"), "{log}");
    fs::remove_dir_all(path("b-good")).unwrap();
    let log = weir(&serve).unwrap_err();
    assert!(log.contains("weir: ") && log.contains("a-broken/model.safetensors"), "{log}");
}

/// Returns the rows of the metrics table, generated from the program's own metrics.
fn rows() -> Vec<String> {
    let metrics = Metrics::default();
    metrics.meter("m");
    record_all(&metrics, "m");
    metrics.count_call("s", "m", "OK");
    metrics.count_http_request("/", "GET", 200);
    let all = descriptions(&metrics.render(&[]).unwrap());
    let rows = all.iter().map(|Description { name, help, kind, labels }| {
        let labels = labels.iter().filter(|label| !["le", "model_name"].contains(&label.as_str()));
        let labels: BTreeSet<_> = labels.map(|label| format!("`{label}`")).collect();
        let labels = labels.into_iter().collect::<Vec<_>>().join(", ");
        format!("| `{name}` | {kind} | {labels} | {} |", help.trim_end_matches('.'))
    });
    rows.collect()
}

/// Compares the table of `docs/metrics.md`, or writes it with WEIR_WRITE_DOCS=1.
#[test]
fn the_page_lists_the_metrics() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let kept = fs::read_to_string(&path).unwrap();
    let head = kept.lines().take_while(|line| !line.starts_with("| `weir_")).map(str::to_owned);
    let made: String = head.chain(rows()).map(|line| line + "\n").collect();
    if std::env::var_os("WEIR_WRITE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&path, &made).unwrap();
    } else {
        let differs = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
        assert!(made == kept, "docs/metrics.md is stale, first in {differs:?}: set WEIR_WRITE_DOCS=1 to write it");
    }
}

#[test]
fn a_report_separates_measured_and_estimated_figures() {
    let models = models(&[("first", "whitespaces")]);
    let server = administered(&models);
    let address = server.address.to_string();
    let report =
        || -> serde_json::Value { serde_json::from_str(&weir(&["report", &address, "--json"]).unwrap()).unwrap() };
    let mut report_now = report();
    while report_now["models"][0]["calibration_pending"] == true {
        report_now = report();
    }
    let model = &report_now["models"][0];
    assert_eq!((&model["model"], &model["window"]), (&"first".into(), &"since_load".into()));
    assert_eq!(model["texts"]["requests"], 0, "the warm-up and the calibration do not count");
    let steps = model["estimated_gain"]["calibration"]["steps"].as_array().unwrap();
    assert!(!steps.is_empty() && steps.iter().all(|step| step["middle_ns"].as_u64().unwrap() > 0), "{steps:?}");
    let table = weir(&["report", &address, "--name", "first", "--window", "reset"]).unwrap();
    assert!(table.starts_with("first (hourglass, ") && table.contains("ESTIMATED gain over"), "{table}");
    let unknown = weir(&["report", &address, "--name", "none"]).unwrap_err();
    assert!(unknown.contains("expected one of first, found \"none\""), "{unknown}");
    assert_eq!(weir(&["admin", "reset-report", &address]).unwrap(), "report window restarted: first\n");
    assert!(weir(&["admin", "reset-report", &address, "none"]).unwrap_err().contains("found \"none\""));
}

/// A worker that hangs does not keep the process after a signal. A step of several seconds stands for one that never ends.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_a_process_whose_worker_hangs() {
    if !long_runs() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let large = write_large_model(folder.path());
    let flags = ["--threads", "1", "--chunk", "4096", "--calibration-milliseconds", "0", "--drain-seconds", "0"];
    let mut server = Server::start(&[&flags[..], &["--model", &large]].concat());
    let mut client = GenerationClient::connect(format!("http://{}", server.address)).await.unwrap();
    let request = GenerateRequest { prompt: "a b c d ".repeat(500), ..Default::default() };
    let call = tokio::spawn(async move { client.generate(request).await?.into_inner().message().await });
    while server.metric("num_requests_running") < 1.0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.program.signal("TERM");
    assert_eq!(server.program.ended().await, Some(1));
    server.program.wait_for_part("the worker of \"large\" has not finished its step");
    drop(call);
}

/// Base units, each with units that it replaces.
const UNITS: [(&str, &str); 3] = [
    ("seconds", "milliseconds microseconds nanoseconds minutes hours days weeks"),
    ("bytes", "bits kilobytes megabytes gigabytes kibibytes mebibytes gibibytes"),
    ("ratio", "perc percent"),
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
    let name_without_total = name.trim_end_matches("_total");
    for (base, others) in UNITS {
        for unit in others.split(' ') {
            rule(parts.contains(&unit), &format!("{unit} in place of {base}"));
        }
        let is_at_end = name_without_total.ends_with(&format!("_{base}"));
        rule(parts.contains(&base) && !is_at_end, "its unit is not at its end");
    }
    for label in labels {
        rule(label == "le" && kind != "histogram" || label == "quantile", "a label of histograms or summaries");
        rule(label.chars().any(char::is_uppercase), "camel case in a label");
    }
    problems
}

/// Records values of all metrics of `model` that appear with their first value: its histograms, and the metrics of levels of chunking.
pub(crate) fn record_all(metrics: &Metrics, model: &str) {
    let meter = metrics.meter(model);
    // A meter records nothing before it begins.
    meter.begin();
    meter.record(EngineEvent::Step { rows: 1, fed: 1, middle: 1 });
    meter.record(EngineEvent::Admitted(Duration::ZERO));
    meter.record(EngineEvent::FirstChar(Duration::ZERO));
    [false, true].iter().for_each(|&boundary| meter.record(EngineEvent::Gap { gap: Duration::ZERO, boundary }));
    meter.record(EngineEvent::Constrained { kind: "regex", took: Duration::ZERO, refused: false });
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
    let all = descriptions(&metrics.render(&[]).unwrap());
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
    let text = first.render(&[]).unwrap();
    assert_eq!(text, first.render(&[]).unwrap());
    // another process, whose models and calls came in another order
    let second = Metrics::default();
    second.meter("a");
    second.meter("c");
    second.count_call("s", "m", "OK");
    second.count_http_request("/", "GET", 200);
    second.meter("b");
    second.remove_model("c");
    assert_eq!(text, second.render(&[]).unwrap());
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
    let text = metrics.render(&[]).unwrap();
    assert!(!text.contains("_bucket{") && histogram_counts(&text).is_empty(), "{text}");
    let described = text.lines().filter(|line| line.ends_with(" histogram")).count();
    // A gap within a segment adds no series for gaps after a boundary or for the other model.
    let meter = metrics.meter("a");
    meter.begin();
    meter.record(EngineEvent::Gap { gap: Duration::ZERO, boundary: false });
    let gaps = "weir_inter_token_latency_seconds_count{model_name=\"a\",after=\"char\"}";
    assert_eq!(histogram_counts(&metrics.render(&[]).unwrap()), BTreeSet::from([gaps.to_owned()]));
    record_all(&metrics, "a");
    // one more series than histograms: gaps have two
    assert_eq!(histogram_counts(&metrics.render(&[]).unwrap()).len(), described + 1);
    metrics.remove_model("a");
    assert!(histogram_counts(&metrics.render(&[]).unwrap()).is_empty());
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
            ["weir_kv_cache_limit_bytes{", "weir_model_generations{", "weir_cache_config_info{"]
                .iter()
                .any(|name| line.starts_with(name))
        });
        assert!(state.len() == 3 && counts.len() > 20, "{name}: {text}");
        for line in counts {
            assert!(line.ends_with(" 0") || line.ends_with(" 0.0"), "{name}: {line}");
        }
    }
}
