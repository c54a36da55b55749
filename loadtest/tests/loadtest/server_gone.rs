//! A server that goes away under load, and a load that is interrupted before anything was measured.

use super::program::{ServedStub, command, failure, run, run_interrupted, script, serve, wait};
use serde_json::Value;
use std::{process::Output, time::Duration};
use weir_loadtest::stub::Script;

/// Runs a command whose server goes away after the first answers.
fn run_until_gone(arguments: &[&str]) -> (Output, String) {
    // slow, so that few answers come before the server goes away, however late that is noticed
    let served: ServedStub = serve(vec![Script { first: Duration::from_millis(300), ..script("stub") }]);
    let address = served.address.clone();
    let short = ["--warm-up", "0", "--duration", "3s", "--output-chars", "4", "--json", "-"];
    let mut child = command(&[&[arguments[0], &address], &arguments[1..], &short].concat()).spawn().unwrap();
    wait(&mut child, || !served.stub.sent().is_empty());
    drop(served);
    (child.wait_with_output().unwrap(), address)
}

#[test]
fn a_closed_loop_backs_off_from_a_lost_server_and_the_command_fails() {
    let (output, _) = run_until_gone(&["run", "--concurrency", "2"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("succeeded: "), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let point = &report[0]["parts"][0]["point"];
    // after 100, 200, 400, 800 and 1000 ms
    let gone = point["figures"]["requests"]["errors"]["UNAVAILABLE"].as_u64().unwrap();
    assert!((4..=16).contains(&gone), "{gone}");
    assert!(point["broken_off"].as_str().unwrap().starts_with("the server went away: "), "{point}");
    assert_eq!(point["tester"]["limits"].as_array().unwrap().len(), 0);
}

#[test]
fn a_sweep_ends_where_the_server_went_away() {
    let (output, address) = run_until_gone(&["sweep", "--concurrency", "2,3"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = report[0]["broken_off"].as_str().unwrap();
    let expected = format!("{address}: closed loop, 2 at a time: the server went away: ");
    assert!(why.starts_with(&expected), "{why}");
    assert_eq!(report[0]["missing"].as_array().unwrap().len(), 1);
    assert_eq!(report[0]["missing"][0]["what"], "closed loop, 3 at a time");
}

/// A single load fails, unlike the search for a knee, which overloads the server on purpose.
#[test]
fn a_load_of_which_fewer_than_half_succeed_fails() {
    let served = serve(vec![Script { refuse: 2, ..script("half") }]);
    let load = ["--requests", "9", "--warm-up", "0", "--output-chars", "2", "--concurrency", "1"];
    assert!(run(&[&["run", &served.address][..], &load].concat()).status.success(), "five of nine");
    let stderr = failure(&[&["run", &served.address][..], &load].concat());
    let expected = "fewer than half of the requests succeeded: 9 requests: 4 succeeded, 5 RESOURCE_EXHAUSTED";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
#[cfg(unix)]
fn an_interrupted_warm_up_measures_nothing() {
    let served = serve(vec![script("stub")]);
    let arguments = ["run", &served.address, "--warm-up", "10m", "--output-chars", "4"];
    let output = run_interrupted(&arguments, || !served.stub.sent().is_empty());
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stdout.contains("\nnothing was measured: ") && !stdout.contains("characters/s"), "{stdout}");
    assert!(output.status.code() == Some(1) && stderr.contains("nothing was measured"), "{stderr}");
}
