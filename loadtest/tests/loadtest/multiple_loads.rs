//! Commands of several measurements: independent seeds, and reports of commands that ended early.

use super::program::{command, json, run, run_interrupted, script, serve, wait, words};
use serde_json::Value;
use std::{
    fs,
    time::{Duration, Instant},
};
use weir_loadtest::stub::Script;

/// Arrivals also depend on the measurement's index: two rates do not share a draw, and each has the promised number of requests.
#[test]
fn arrivals_of_each_rate_are_a_draw_of_their_own() {
    let served = serve(vec![Script::instant("stub")]);
    let arguments = words("--rates 40,41,42 --duration 100ms --warm-up 0 --output-chars 2 --json -");
    let report = json(&run(&[&["sweep", &served.address][..], &arguments].concat()));
    let points = report[0]["parts"][0]["points"].as_array().unwrap();
    let measured = |point: &Value| point["figures"]["requests"]["measured"].as_u64().unwrap();
    assert!(points.len() == 3 && points.iter().all(|point| measured(point) >= 20), "{points:?}");
    // with one draw, windows that end at the same request would have lengths inversely proportional to the rates
    let scaled: Vec<_> = points
        .iter()
        .map(|point| {
            let window = point["window"]["window_ns"].as_f64().unwrap();
            (measured(point), window * point["load"]["rate"].as_f64().unwrap())
        })
        .collect();
    let same = |a: (u64, f64), b: (u64, f64)| a.0 == b.0 && (a.1 / b.1 - 1.0).abs() < 0.01;
    assert!(!same(scaled[0], scaled[1]) || !same(scaled[1], scaled[2]), "{scaled:?}");
}

#[test]
fn measurements_before_the_server_died_are_reported_and_the_command_fails() {
    let served = serve(vec![Script { first: Duration::from_millis(150), ..script("stub") }]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let data = file("a.json");
    let page = file("a.html");
    let arguments = ["--concurrency", "1,2,3,4", "--requests", "20", "--warm-up", "0", "--output-chars", "4"];
    let to = ["sweep", &served.address, "--json", &data, "--html", &page];
    let mut child = command(&[&to[..], &arguments].concat()).spawn().unwrap();
    wait(&mut child, || served.stub.sent().len() >= 30);
    drop(served);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&data).unwrap()).unwrap();
    let why = report[0]["broken_off"].as_str().unwrap();
    assert!(stderr.contains(why), "{why}: {stderr}");
    let points = report[0]["parts"][0]["points"].as_array().unwrap();
    assert_eq!(points[0]["figures"]["requests"]["well"], 20);
    // every load is either measured or missing
    let missing = report[0]["missing"].as_array().unwrap();
    let last = missing.last().unwrap();
    assert_eq!((points.len() + missing.len(), &last["what"]), (4, &Value::from("closed loop, 4 at a time")));
    assert!(fs::read_to_string(&page).unwrap().contains("Ended early: "));
    assert!(String::from_utf8(output.stdout).unwrap().contains("ENDED EARLY: "));
    // an unreachable server leaves no file
    let none = file("none.json");
    assert!(!run(&["sweep", "127.0.0.1:1", "--concurrency", "1", "--json", &none]).status.success());
    assert!(!std::path::Path::new(&none).exists());
}

#[test]
#[cfg(unix)]
fn an_interrupted_sweep_reports_the_interruption() {
    let served = serve(vec![script("stub")]);
    let options = words("--concurrency 2,3 --warm-up 0 --duration 10m --output-chars 4");
    let arguments = [&["sweep", &served.address][..], &options].concat();
    let output = run_interrupted(&arguments, || served.stub.sent().len() >= 10);
    let table = String::from_utf8(output.stdout).unwrap();
    let expected = "ENDED EARLY: it was interrupted; missing:\n  stub: closed loop, 3 at a time\n\n";
    assert!(table.starts_with(expected), "{table}");
    assert!(table.contains("2 at a time (interrupted)") && table.matches("3 at a time").count() == 1, "{table}");
}

#[test]
#[cfg(unix)]
fn an_interrupted_report_lists_what_is_missing() {
    let served = serve(vec![script("a"), script("b"), Script { summarizes: true, ..script("reader") }]);
    let arguments = ["--rounds", "2000", "--concurrency", "1,2", "--output-chars", "4", "--json", "-"];
    let arguments = [&["report", &served.address][..], &arguments].concat();
    let report = json(&run_interrupted(&arguments, || served.stub.sent().len() >= 30));
    let missing = report[0]["missing"].as_array().unwrap().iter();
    let missing: Vec<_> =
        missing.map(|entry| (entry["model"].as_str().unwrap(), entry["what"].as_str().unwrap())).collect();
    let loops = ["closed loop, 1 at a time", "closed loop, 2 at a time"];
    let all = [loops[0], loops[1], "the search for the knee", "the open loop at half of the knee"];
    let expected: Vec<_> = ["a", "b", "reader"].iter().flat_map(|model| all.map(|what| (*model, what))).collect();
    assert_eq!(missing, expected, "the comparison is reported as far as it came");
}

#[test]
fn models_that_cannot_be_compared_are_rejected() {
    let reader = Script { summarizes: true, ..script("reader") };
    let served = serve(vec![script("a"), script("b"), reader]);
    for (arguments, expected) in [
        (
            &["--models", "a,b,a"][..],
            "--models: expected each model once (a model compared with itself shows nothing), found \"a\"",
        ),
        (&["--models", "a,reader"], "reader summarizes documents and a does not"),
        (&[], "reader summarizes documents and a does not"),
    ] {
        let output = run(&[&["compare", &served.address][..], arguments].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty() && stderr.contains(expected), "{stderr}");
    }
}

/// Answers of 2,000 messages 50 ms apart would last 100 s. The load is also too small to show what a core reads, however little
/// processor time it took.
#[test]
fn a_self_test_lasts_as_long_as_requested_and_does_not_judge_a_small_load() {
    let begun = Instant::now();
    let arguments = ["--duration", "500ms", "--streams", "2", "--gap", "50ms", "--at-least"];
    let output = run(&[&["self-test"][..], &arguments, &["100"]].concat());
    assert!(begun.elapsed() < Duration::from_secs(30));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{stderr}{stdout}");
    assert!(stderr.contains("do not show whether it reads --at-least 100"), "{stderr}{stdout}");
    assert!(stdout.contains("the load is too small to show"), "{stdout}");
}
