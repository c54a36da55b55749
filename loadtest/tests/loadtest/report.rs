//! Reports: the documented example has the keys of real reports, and the page is self-contained.

use super::comparisons::compare_of;
use super::known_delays::script;
use super::stub::Script;
use super::support::{Test, ms, spec};
use crate::*;
use std::{collections::BTreeMap, path::Path};
use weir_loadtest::client::{DocumentInfo, ModelInfo, ServerSoftware};
use weir_loadtest::knee::{self, Knee};
use weir_loadtest::report::{self, Conditions, FORMAT, MeasurementReport, ReportPart};

/// Mark of loads that the tester may have distorted.
const LIMITED: &str = "†";
pub(crate) const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/loadtest.example.json");

async fn point(rate: Option<f64>, refuse: u64) -> LoadPoint {
    let extent = RunLength { warm_up: ms(1000), duration: Some(Duration::from_secs(2)), requests: None };
    let test =
        Test { rate, extent, concurrency: 3, objectives: "ttfc=90ms", ..Test::new(Script { refuse, ..script() }, 20) };
    let (result, _) = test.drive().await;
    let load = match rate {
        Some(rate) => LoadPattern::Open { rate },
        None => LoadPattern::Closed { concurrency: 3 },
    };
    LoadPoint::new(load, extent, result, 1, 1)
}

/// Returns a report with every kind of part.
async fn full_report() -> MeasurementReport {
    let slow = Script { name: "slow".into(), plain: ms(10), ..script() };
    let mut comparison = compare_of(vec![slow, script()], 12, spec(20)).await;
    comparison.scored = Some("the first 2000 characters of bundled English sample".into());
    comparison.models[0].bits_per_char = Some(1.9);
    comparison.models[1].score_refused = Some("UNIMPLEMENTED: <it & does not>".into());
    let rate = point(Some(10.0), 7).await;
    let broken_by = Some("34 of 40 requests succeeded".into());
    let knee = Knee { broken_at: Some(10.0), broken_by, ..knee::knee(&[], true) };
    let run = point(Some(10.0), 0).await;
    let model = || "stub".to_owned();
    let parts = vec![
        ReportPart::Run { model: model(), point: run },
        ReportPart::Batches { model: model(), points: vec![point(None, 0).await] },
        ReportPart::Rates { model: model(), points: vec![rate], knee },
        ReportPart::Compare { comparison },
    ];
    let conditions = Conditions {
        version: "0.1.0".into(),
        begun_unix_s: 1_795_000_000,
        command: "weir-loadtest run 127.0.0.1:50051 --rate 10".into(),
        server: "127.0.0.1:50051".into(),
        software: Some(ServerSoftware { name: "weir".into(), version: "0.1.0".into() }),
        tester: "linux x86_64, 2 cores".into(),
        note: Some("a stub server, on a clock that stands still".into()),
        models: vec![
            ModelInfo { name: "stub".into(), family: "stub".into(), dtype: "f32".into(), ..ModelInfo::default() },
            ModelInfo { name: "reader".into(), documents: Some(DocumentInfo::default()), ..ModelInfo::default() },
        ],
        workloads: WorkloadMix::new(vec![spec(20)], 1).unwrap().infos(),
        seed: 1,
        boundaries: true,
        timeout_ns: 60_000_000_000,
        objectives: Some("ttfc ≤ 90.0 ms".into()),
    };
    let broken_off = Some("it was interrupted".into());
    MeasurementReport { format: FORMAT.into(), conditions, parts, broken_off }
}

/// Collects every key's path and the kinds of its values. Elements of a list, and of maps whose keys are codes, share a path.
fn shape(value: &Value, path: &str, out: &mut BTreeMap<String, Vec<&'static str>>) {
    let kind = match value {
        Value::Null => "nothing",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(list) => {
            list.iter().for_each(|value| shape(value, &format!("{path}[]"), out));
            "list"
        }
        Value::Object(map) => {
            for (key, value) in map {
                let key = if path.ends_with(".errors") { "CODE" } else { key };
                shape(value, &format!("{path}.{key}"), out);
            }
            "map"
        }
    };
    let kinds = out.entry(path.to_owned()).or_default();
    if !kinds.contains(&kind) {
        kinds.push(kind);
        kinds.sort_unstable();
    }
}

#[tokio::test(start_paused = true)]
async fn the_documented_example_has_the_keys_of_reports() {
    let json = report::json(&[full_report().await]).unwrap();
    if std::env::vars().any(|(name, _)| name == "WEIR_WRITE_EXAMPLE") {
        std::fs::write(EXAMPLE, json.clone() + "\n").unwrap();
    }
    let shapes = |text: &str| {
        let mut out = BTreeMap::new();
        shape(&serde_json::from_str(text).unwrap(), "", &mut out);
        out
    };
    let example = std::fs::read_to_string(EXAMPLE).unwrap();
    let actual = shapes(&json);
    assert!(actual.len() > 120, "{}", actual.len());
    assert_eq!(actual, shapes(&example), "write it again with WEIR_WRITE_EXAMPLE=1");
    // reading it loses nothing
    let read = report::read(Path::new(EXAMPLE)).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&report::json(&read).unwrap()).unwrap(),
        serde_json::from_str::<Value>(&example).unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn every_key_of_the_example_is_explained() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/report.md")).unwrap();
    let mut shapes = BTreeMap::new();
    shape(&serde_json::from_str(&std::fs::read_to_string(EXAMPLE).unwrap()).unwrap(), "", &mut shapes);
    let keys = shapes.keys().filter_map(|path| path.rsplit('.').next()).map(|key| key.trim_end_matches("[]"));
    let missing: Vec<_> =
        keys.filter(|key| !key.is_empty() && *key != "CODE" && !text.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test(start_paused = true)]
async fn the_page_names_units_and_conditions() {
    let document = full_report().await;
    let (page, pictures) = report::markdown("a <title>", "pictures", std::slice::from_ref(&document));
    let expected = [
        "# a &lt;title&gt;\n",
        "UNIMPLEMENTED: &lt;it &amp; does not&gt;",
        "boundary gap",
        "20.0 ms",
        "characters/s",
        "begun 2026-11-18",
        "ttfc ≤ 90.0 ms",
        "| note | a stub server",
        "\nstub: knee below 10.0 requests/s",
        "measured, not estimated",
        "| gain: total | – | 1.",
        "95 % interval",
        "\nENDED EARLY: it was interrupted\n",
        "\nserver: 127.0.0.1:50051, weir 0.1.0;",
        "ratio of the baseline's median",
        "of the prompts' symbols",
        "the tester itself: ",
    ];
    for expected in expected {
        assert!(page.contains(expected), "{expected}");
    }
    assert_eq!(pictures.len(), 6, "of a run 1, of batches 2, of rates 2, and of a comparison 1");
    assert!(pictures.iter().all(|(name, _)| page.contains(&format!("<img src=\"pictures/{name}\""))), "{page}");
    assert!(!page.contains("ESTIMATED"), "the report has no estimates");
    let table = report::table(std::slice::from_ref(&document));
    for expected in [
        "boundary gap",
        "gain: total",
        "knee below 10.0 requests/s",
        "server: 127.0.0.1:50051, weir 0.1.0;",
        "ENDED EARLY: it was interrupted\n",
        "RESOURCE_EXHAUSTED",
        "0 % of the prompts' symbols",
        "window  started/s",
        "stub: stub, f32",
    ] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cause_is_warned_of_once_and_empty_columns_are_left_out() {
    let exact = point(None, 0).await;
    assert!(exact.figures.time_to_first_char_ns.p90.is_some() && exact.figures.time_to_first_char_ns.p99.is_none());
    let late = |concurrency| {
        let mut point = LoadPoint { load: LoadPattern::Closed { concurrency }, ..exact.clone() };
        point.tester.limits = vec!["the lag".into(), "the gap".into()];
        point
    };
    let points = vec![late(1), exact.clone(), late(8)];
    let whole = full_report().await;
    let report = MeasurementReport { parts: vec![ReportPart::Batches { model: "stub".into(), points }], ..whole };
    let warning = "the tester may be the limit in 2 of 3 measurements (†), for example: the lag";
    let reports = [report.clone(), MeasurementReport { parts: Vec::new(), ..report.clone() }];
    let (page, _) = report::markdown("t", "t", &reports);
    assert_eq!((page.matches(warning).count(), page.matches("Warning:").count()), (1, 1), "{page}");
    let table = report::table(&reports);
    assert_eq!((table.matches(warning).count(), table.matches("WARNING:").count()), (1, 1), "{table}");
    for shown in [&page, &table] {
        assert_eq!(shown.matches("3 at a time †").count(), 0);
        assert_eq!((shown.matches("1 at a time †").count(), shown.matches("8 at a time †").count()), (1, 1));
    }
    let head = table.lines().find(|line| line.contains("first p50")).unwrap();
    for (column, is_shown) in [("first p90", true), ("first p99", false), ("gap p99", true), ("failed", false)] {
        assert_eq!(head.contains(column), is_shown, "{column}: {head}");
    }
    // The column of failures appears if any request failed.
    let refused = point(Some(10.0), 7).await;
    let points = vec![exact.clone(), refused];
    let failing =
        MeasurementReport { parts: vec![ReportPart::Batches { model: "stub".into(), points }], ..report.clone() };
    let (page, _) = report::markdown("t", "t", &[failing]);
    assert!(page.contains("| failed |") && page.contains("| – |\n"), "{page}");
    assert!(page.contains(" RESOURCE_EXHAUSTED |") && !page.contains(LIMITED), "{page}");
    let single = MeasurementReport { parts: vec![ReportPart::Run { model: "stub".into(), point: exact }], ..report };
    let table = report::table(&[single]);
    let head = table.lines().find(|line| line.contains("count")).unwrap();
    let columns: Vec<_> = head.split_whitespace().collect();
    assert_eq!(
        columns,
        ["figure", "count", "mean", "min", "p50", "p90", "p95", "p99", "max"],
        "too few values for p99.9"
    );
}
