//! What is told of a server that goes away under load, and of a load that was ended before it was measured.

use super::commands::{Served, command, run, script, serve, wait};
use serde_json::Value;
use std::{
    process::{Command, Output},
    time::Duration,
};
use weir_loadtest::stub::Script;

/// The server is gone after the first answers.
fn left(arguments: &[&str]) -> (Output, String) {
    // so slow that few answers are there before it goes, however late this is noticed
    let served: Served = serve(vec![Script { first: Duration::from_millis(300), ..script("stub") }]);
    let address = served.address.clone();
    let short = ["--warm-up", "0", "--duration", "3s", "--output-chars", "4", "--json", "-"];
    let mut child = command(&[&[arguments[0], &address], &arguments[1..], &short].concat()).spawn().unwrap();
    wait(&mut child, || !served.stub.sent().is_empty());
    drop(served);
    (child.wait_with_output().unwrap(), address)
}

#[test]
fn a_server_that_is_gone_is_not_hammered_and_the_command_fails() {
    let (output, _) = left(&["run", "--concurrency", "2"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("ended well: "), "{said}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let point = &told[0]["parts"][0]["point"];
    // after 100, 200, 400, 800 and 1000 ms
    let gone = point["figures"]["requests"]["errors"]["UNAVAILABLE"].as_u64().unwrap();
    assert!((4..=16).contains(&gone), "{gone}");
    assert!(point["broken_off"].as_str().unwrap().starts_with("the server went away: "), "{point}");
    assert_eq!(point["tester"]["limits"].as_array().unwrap().len(), 0);
}

#[test]
fn a_sweep_ends_where_the_server_went_away() {
    let (output, address) = left(&["sweep", "--concurrency", "2,3"]);
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = told[0]["broken_off"].as_str().unwrap();
    let expected = format!("{address}: closed loop, 2 at a time: the server went away: ");
    assert!(why.starts_with(&expected), "{why}");
    assert_eq!(told[0]["missing"].as_array().unwrap().len(), 1);
    assert_eq!(told[0]["missing"][0]["what"], "closed loop, 3 at a time");
}

/// The search for a knee asks for too much on purpose; one load does not.
#[test]
fn a_load_of_which_fewer_than_half_end_well_fails() {
    let served = serve(vec![Script { refuse: 2, ..script("half") }]);
    let load = ["--requests", "9", "--warm-up", "0", "--output-chars", "2", "--concurrency", "1"];
    assert!(run(&[&["run", &served.address][..], &load].concat()).status.success(), "five of nine");
    let said = String::from_utf8(run(&[&["run", &served.address][..], &load].concat()).stderr).unwrap();
    assert!(
        said.contains("fewer than half of the requests ended well: 9 requests: 4 well, 5 RESOURCE_EXHAUSTED"),
        "{said}"
    );
}

#[test]
#[cfg(unix)]
fn a_warm_up_that_was_interrupted_measured_nothing() {
    let served = serve(vec![script("stub")]);
    let arguments = ["--warm-up", "10m", "--output-chars", "4"];
    let mut child = command(&[&["run", &served.address][..], &arguments].concat()).spawn().unwrap();
    wait(&mut child, || !served.stub.sent().is_empty());
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let (told, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(told.contains("\nnothing was measured: ") && !told.contains("characters/s"), "{told}");
    assert!(output.status.code() == Some(1) && said.contains("nothing was measured"), "{said}");
}
