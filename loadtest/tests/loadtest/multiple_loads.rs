//! Commands of several measurements: what each is a draw of, and what is told where something is missing.

use super::commands::{command, json, run, script, serve, wait};
use serde_json::Value;
use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};
use weir_loadtest::stub::Script;

/// Arrivals are a function of the measurement's place, too: two rates do not get one draw, and none is held for fewer requests than
/// are promised.
#[test]
fn arrivals_of_each_rate_are_a_draw_of_their_own() {
    let served = serve(vec![Script::instant("stub")]);
    let arguments =
        ["--rates", "40,41,42", "--duration", "100ms", "--warm-up", "0", "--output-chars", "2", "--json", "-"];
    let told = json(&run(&[&["sweep", &served.address][..], &arguments].concat()));
    let points = told[0]["parts"][0]["points"].as_array().unwrap();
    let measured = |point: &Value| point["figures"]["requests"]["measured"].as_u64().unwrap();
    assert!(points.len() == 3 && points.iter().all(|point| measured(point) >= 20), "{points:?}");
    // of one draw, windows that end with the same number of requests would be as long as the rates are apart
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
fn what_was_measured_before_the_server_died_is_told_and_the_command_fails() {
    let served = serve(vec![script("stub")]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, page) = (file("a.json"), file("a.html"));
    let arguments = ["--concurrency", "1,2,3,4", "--requests", "20", "--warm-up", "0", "--output-chars", "4"];
    let to = ["sweep", &served.address, "--json", &data, "--html", &page];
    let mut child = command(&[&to[..], &arguments].concat()).spawn().unwrap();
    wait(&mut child, || served.stub.sent().len() >= 30);
    drop(served);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let told: Value = serde_json::from_str(&fs::read_to_string(&data).unwrap()).unwrap();
    let why = told[0]["broken_off"].as_str().unwrap();
    assert!(said.contains(why), "{why}: {said}");
    let points = told[0]["parts"][0]["points"].as_array().unwrap();
    assert_eq!(points[0]["figures"]["requests"]["well"], 20);
    // every load is measured or missing
    let missing = told[0]["missing"].as_array().unwrap();
    let last = missing.last().unwrap();
    assert_eq!((points.len() + missing.len(), &last["what"]), (4, &Value::from("closed loop, 4 at a time")));
    assert!(fs::read_to_string(&page).unwrap().contains("Broken off: "));
    assert!(String::from_utf8(output.stdout).unwrap().contains("BROKEN OFF: "));
    // of a server that is not there nothing is known, and no file left
    let none = file("none.json");
    assert!(!run(&["sweep", "127.0.0.1:1", "--concurrency", "1", "--json", &none]).status.success());
    assert!(!std::path::Path::new(&none).exists());
}

#[test]
#[cfg(unix)]
fn a_sweep_that_was_interrupted_says_so() {
    let served = serve(vec![script("stub")]);
    let arguments = ["--concurrency", "2,3", "--warm-up", "0", "--duration", "10m", "--output-chars", "4"];
    let mut child = command(&[&["sweep", &served.address][..], &arguments].concat()).spawn().unwrap();
    wait(&mut child, || served.stub.sent().len() >= 10);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    let told = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(
        told.starts_with("BROKEN OFF: it was interrupted; missing:\n  stub: closed loop, 3 at a time\n\n"),
        "{told}"
    );
    assert!(told.contains("2 at a time (interrupted)") && told.matches("3 at a time").count() == 1, "{told}");
}

#[test]
#[cfg(unix)]
fn a_report_that_was_interrupted_lists_what_is_missing() {
    let served = serve(vec![script("a"), script("b"), Script { summarizes: true, ..script("reader") }]);
    let arguments = ["--rounds", "2000", "--concurrency", "1,2", "--output-chars", "4", "--json", "-"];
    let mut child = command(&[&["report", &served.address][..], &arguments].concat()).spawn().unwrap();
    wait(&mut child, || served.stub.sent().len() >= 30);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    let told = json(&child.wait_with_output().unwrap());
    let missing = told[0]["missing"].as_array().unwrap().iter();
    let missing: Vec<_> = missing.map(|one| (one["model"].as_str().unwrap(), one["what"].as_str().unwrap())).collect();
    let all = [
        "closed loop, 1 at a time",
        "closed loop, 2 at a time",
        "the search for the knee",
        "the open loop at half of the knee",
    ];
    let expected: Vec<_> = ["a", "b", "reader"].iter().flat_map(|model| all.map(|what| (*model, what))).collect();
    assert_eq!(missing, expected, "the comparison is there, as far as it came");
}

#[test]
fn models_that_cannot_be_compared_are_refused() {
    let reader = Script { summarizes: true, ..script("reader") };
    let served = serve(vec![script("a"), script("b"), reader]);
    for (arguments, expected) in [
        (&["--models", "a,b,a"][..], "--models: a must be given once"),
        (&["--models", "a,reader"], "reader reads documents and a does not"),
        (&[], "reader reads documents and a does not"),
    ] {
        let output = run(&[&["compare", &served.address][..], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty() && said.contains(expected), "{said}");
    }
}

/// Answers of 2,000 messages 50 ms apart would last 100 s; and so small a load tells nothing of what a core reads, however little
/// processor time it took.
#[test]
fn a_self_test_lasts_as_long_as_asked_and_judges_no_load_that_does_not_tell() {
    let begun = Instant::now();
    let arguments = ["--duration", "500ms", "--streams", "2", "--gap", "50ms", "--at-least"];
    let output = run(&[&["self-test"][..], &arguments, &["100"]].concat());
    assert!(begun.elapsed() < Duration::from_secs(30));
    let (said, told) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(!output.status.success() && said.contains("do not tell whether it reads --at-least 100"), "{said}{told}");
    assert!(told.contains("not told by so small a load"), "{told}");
}
