//! `bench speculate`: a known text with drafts and without.

use super::{bench, failure, json, keys, number};
use crate::support::{converted, hnet_converted};

const PROMISED: [&str; 10] =
    ["model", "family", "dtype", "threads", "isa", "text", "batch", "speculate", "ratio", "chars_per_second_off"];

#[test]
fn drafts_save_steps_in_a_text_that_repeats() {
    for case in ["vanilla", "fixed_sf3", "whitespaces", "entropy"] {
        let args = ["speculate", "--json", "--batch", "1,3", "--context", "60", "--chars", "90", "--pairs", "2"];
        let args = [&args[..], &["--threads", "2", "--speculate", "5", "--model"]].concat();
        let entries = json(&args, &[converted(case)]);
        let plans: Vec<_> =
            entries.iter().map(|entry| (entry["text"].as_str().unwrap(), number(entry, "batch"))).collect();
        assert_eq!(plans, [("prose", 1.0), ("prose", 3.0), ("repeating", 1.0), ("repeating", 3.0)]);
        for entry in &entries {
            assert_eq!(keys(entry)[..PROMISED.len()], PROMISED);
            assert_eq!(keys(&entry["ratio"]), ["median", "p10", "p90"]);
            assert!(number(&entry["ratio"], "p10") > 0.0);
            let [drafted, accepted, off, on] =
                ["drafted", "accepted", "steps_off", "steps_on"].map(|key| number(entry, key));
            assert!(accepted <= drafted && on <= off, "{case}: {entry}");
            assert!(entry["text"] == "prose" || accepted > 0.0, "{case}: {entry}");
            if number(entry, "batch") == 1.0 {
                assert_eq!((off, on + accepted), (90.0, 90.0), "{case}: {entry}");
            }
        }
    }
}

#[test]
fn the_default_output_is_a_table_and_limits_are_named() {
    let args = ["speculate", "--context", "20", "--chars", "20", "--pairs", "1", "--speculate", "off,auto", "--model"];
    let text = String::from_utf8(bench(&args, &[converted("vanilla")]).stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() >= 5 && lines[0].contains("accepted") && lines[3].contains("repeating"), "{text}");
    // columns are right-aligned, so each title ends where its cell ends
    let column = |title: &str, line: usize| {
        let end = lines[0].find(title).unwrap() + title.len();
        lines[line][..end].rsplit("  ").next().unwrap().to_owned()
    };
    let cells = ["text", "speculate", "steps off"].map(|title| column(title, 2));
    assert_eq!(cells, ["prose", "auto", "20"], "{text}");
    assert!(lines[1..5].iter().all(|line| line.split_whitespace().count() == 16), "{text}");
    let error = failure(&["speculate", "--speculate", "17", "--model"], &[converted("vanilla")]);
    assert!(error.contains("a whole number from 1 to 16"), "{error}");
    let error = failure(&["speculate", "--chars", "100000000", "--model"], &[converted("vanilla")]);
    assert!(error.contains("--chars"), "{error}");
    let error = failure(&["speculate", "--model"], &[hnet_converted("one_stage")]);
    assert!(error.contains("speculates"), "{error}");
}
