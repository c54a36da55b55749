//! Sessions that edit documents, against a stub whose completions and delays are known.

use super::known_delays::undisturbed;
use super::stub::Script;
use super::support::{ms, script, serve};
use crate::*;

/// Twelve characters are typed in each of two documents. The stub's best completion has two characters, and the third best four.
#[test]
fn keystrokes_are_timed_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    // all completions of the stub continue this text
    let text = folder.path().join("text.txt");
    fs::write(&text, "x".repeat(100)).unwrap();
    let page = folder.path().join("page.md");
    let served = serve(vec![script("stub")]);
    let load = "--concurrency 2 --requests 2 --warm-up 0 --objective key_p99=10s";
    let line = format!(
        "run @ --workload kind=edit,prompt-chars=50,output-chars=12,rate=5 --prompts {} {load} --markdown {}",
        text.display(),
        page.display()
    );
    undisturbed(|| {
        let report = served.report(&line);
        let figures = &report[0]["parts"][0]["point"]["figures"];
        let edits = &figures["edits"];
        let counts = |key: &str| edits[key].as_u64().unwrap();
        assert_eq!(["sessions", "keystrokes", "stale", "failed"].map(counts), [2, 24, 0, 0]);
        // every second keystroke, and three of four
        assert_eq!(["saved_by_first", "saved_by_first_three"].map(counts), [12, 18]);
        assert_eq!((&edits["recomputed_chars"]["count"], &edits["recomputed_chars"]["max"]), (&24.into(), &1.0.into()));
        for key in ["keystroke_ns", "keystroke_server_ns"] {
            assert!(edits[key]["min"].as_f64().unwrap() >= 2e6, "{key}: {edits}");
        }
        // the first completions, and one answer for each keystroke
        assert_eq!(
            (&figures["characters"], &figures["good"], &figures["time_to_first_char_ns"]["count"]),
            (&26.into(), &2.into(), &2.into())
        );
    });
    let page = fs::read_to_string(page).unwrap();
    for expected in [
        "keystroke to completions",
        "Distribution of times from keystroke to completions",
        "keystrokes saved by the first completion: 50.0 % (75.0 % by the first three)",
        "workload 1 (edit): 50 characters of text.txt, answers of 12 keystrokes",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
}

/// Completions that take longer than the next keystroke are overtaken, and all keystrokes wait for the last ones.
#[test]
fn keystrokes_that_are_overtaken_wait_for_later_completions() {
    let served = serve(vec![Script { plain: ms(700), ..script("stub") }]);
    let workload = "kind=edit,prompt-chars=10,output-chars=8,rate=50,pause=200ms";
    undisturbed(|| {
        let report = served.report(&format!("run @ --workload {workload} --concurrency 1 --requests 1 --warm-up 0"));
        let edits = &report[0]["parts"][0]["point"]["figures"]["edits"];
        assert_eq!(["keystrokes", "stale"].map(|key| edits[key].as_u64()), [Some(8), Some(7)]);
        let waits = &edits["keystroke_ns"];
        assert_eq!(waits["count"], 8);
        assert!(waits["min"].as_f64().unwrap() >= 7e8 && waits["max"].as_f64() > waits["min"].as_f64(), "{waits}");
    });
}

#[test]
fn models_are_compared_by_their_keystrokes() {
    let slow = Script { plain: ms(40), ..script("slow") };
    let served = serve(vec![slow, Script { plain: ms(4), ..script("fast") }]);
    let workload = "--workload kind=edit,prompt-chars=10,output-chars=4,rate=10";
    let rounds = "--rounds 2 --warm-up-rounds 0 --score-chars 0";
    let line = format!("compare @ --models slow,fast {workload} {rounds}");
    undisturbed(|| {
        let report = served.report(&line);
        let gains = &report[0]["parts"][0]["comparison"]["models"][1]["gains"];
        assert!(gains["keystroke"]["ratio"].as_f64().unwrap() > 1.5, "{gains}");
        assert!(gains["total"].is_null(), "the typist determines how long a session takes: {gains}");
    });
    let table = String::from_utf8(served.run(&line).stdout).unwrap();
    assert!(table.contains("median: keystroke to completions") && !table.contains("per token"), "{table}");
}

#[test]
fn a_sweep_over_editors_has_columns_of_keystrokes() {
    let served = serve(vec![script("stub")]);
    let load = "--concurrency 1,2 --duration 200ms --warm-up 0";
    let output = served.run(&format!("sweep @ --workload kind=edit,prompt-chars=10,output-chars=3,rate=50 {load}"));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("  keystroke p50  ") && table.contains(" % by the first three)"), "{table}");
    assert!(!table.contains("keystroke p99"), "too few keystrokes for this percentile: {table}");
}

#[test]
fn a_session_that_is_refused_fails() {
    let served = serve(vec![Script { refuse: 1, ..script("stub") }]);
    let workload = "--workload kind=edit,prompt-chars=10,output-chars=3";
    let stderr = served.failure(&format!("run @ {workload} --concurrency 1 --requests 2 --warm-up 0"));
    assert!(stderr.contains("2 requests: 0 succeeded, 2 RESOURCE_EXHAUSTED"), "{stderr}");
}
