//! `bench stream`: the overhead of gRPC, measured with a real server and a client in its own process.

use super::{bench, equal, failure, json, keys, number};
use crate::support::{converted, fixture};

const PROMISED: [&str; 9] =
    ["model", "family", "dtype", "threads", "isa", "batch", "engine_step_ns", "served_step_ns", "overhead"];

/// The command itself compares the texts of the engine and of the server in every run.
#[test]
fn stream_reports_the_server_and_the_engine_alone() {
    for case in ["whitespaces", "vanilla"] {
        let args = ["stream", "--json", "--batch", "1,3", "--context", "12", "--chars", "20", "--pairs", "3"];
        let entries =
            json(&[&args[..], &["--threads", "2", "--dtype", "f32,int8", "--model"]].concat(), &[converted(case)]);
        let combinations: Vec<_> =
            entries.iter().map(|entry| (entry["dtype"].as_str().unwrap(), number(entry, "batch"))).collect();
        assert_eq!(combinations, [("f32", 1.0), ("f32", 3.0), ("int8", 1.0), ("int8", 3.0)]);
        for entry in &entries {
            assert_eq!(keys(entry)[..PROMISED.len()], PROMISED);
            assert_eq!(keys(&entry["overhead"]), ["median", "p10", "p90"]);
            for way in ["engine", "served"] {
                let [p10, p50, p90] = ["_p10", "", "_p90"].map(|part| number(entry, &format!("{way}_step_ns{part}")));
                assert!(0.0 < p10 && p10 <= p50 && p50 <= p90);
            }
            let [median, p10, p90] = ["median", "p10", "p90"].map(|key| number(&entry["overhead"], key));
            assert!(-1.0 < p10 && p10 <= median && median <= p90);
            let counts = ["threads", "context", "chars", "pairs"].map(|key| number(entry, key));
            assert_eq!(counts, [2.0, 12.0, 20.0, 3.0]);
            // Each stream has a start, an end, and at most one message per character.
            let batch = number(entry, "batch");
            let messages = number(entry, "messages");
            assert!((3.0 * batch..=22.0 * batch).contains(&messages), "{messages}");
        }
    }
}

#[test]
fn the_overhead_of_one_pair_is_its_ratio() {
    let args = ["stream", "--json", "--batch", "2", "--context", "5", "--chars", "8", "--pairs", "1", "--model"];
    let entry = &json(&args, &[converted("gumbel")])[0];
    let ratio = number(entry, "served_step_ns") / number(entry, "engine_step_ns");
    assert!(equal(ratio, number(&entry["overhead"], "median") + 1.0));
}

#[test]
fn the_default_output_is_a_table_and_limits_are_named() {
    let args = ["stream", "--batch", "1", "--context", "4", "--chars", "4", "--pairs", "1", "--model"];
    let text = String::from_utf8(bench(&args, &[converted("vanilla")]).stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("overhead %") && lines[1].starts_with("vanilla"), "{text}");
    let limit = fixture("vanilla").card().max_symbols;
    let error =
        failure(&["stream", "--context", &limit.to_string(), "--chars", "1", "--model"], &[converted("vanilla")]);
    let expected = format!("--context and --chars together: expected at most {limit} characters, found {}", limit + 1);
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn a_client_without_a_server_names_the_address() {
    let error = failure(&["stream-client", "127.0.0.1:1"], &[]);
    assert!(error.contains("127.0.0.1:1"), "{error}");
}
