//! `bench prefill` and `bench resume`.

use super::{equal, failure, json, keys, number};
use crate::support::{converted, fixture};

#[test]
fn prefill_reports_speed_and_peak() {
    let args = ["prefill", "--json", "--symbols", "50,70", "--chunk", "32", "--runs", "3", "--threads", "2", "--model"];
    let entries = json(&args, &[converted("whitespaces")]);
    let symbols: Vec<_> = entries.iter().map(|entry| number(entry, "symbols")).collect();
    assert_eq!(symbols, [50.0, 70.0]);
    for entry in &entries {
        let [p10, p50, p90] = ["run_ns_p10", "run_ns_p50", "run_ns_p90"].map(|key| number(entry, key));
        assert!(0.0 < p10 && p10 <= p50 && p50 <= p90);
        let speed = number(entry, "symbols_per_second");
        assert!(equal(speed * p50, number(entry, "symbols") * 1e9));
        assert!(number(entry, "shortening_factor") > 1.0);
        assert!(number(entry, "gflops") > 0.0 && number(entry, "peak_gflops") > 0.0);
    }
}

#[test]
fn prefill_in_int8_reports_no_float_peak() {
    let args = ["prefill", "--json", "--dtype", "int8", "--symbols", "50", "--runs", "1", "--model"];
    let entries = json(&args, &[converted("whitespaces")]);
    assert!(number(&entries[0], "gflops") > 0.0 && entries[0]["peak_gflops"].is_null());
}

#[test]
fn resume_reports_cold_and_resumed_times_and_their_ratio() {
    for case in ["whitespaces", "vanilla", "gumbel"] {
        let args = ["resume", "--json", "--context", "40,70", "--runs", "3", "--threads", "1", "--model"];
        let entries = json(&args, &[converted(case)]);
        let contexts: Vec<_> = entries.iter().map(|entry| number(entry, "context")).collect();
        assert_eq!(contexts, [40.0, 70.0]);
        for entry in &entries {
            for way in ["cold_ns", "resumed_ns"] {
                let [p10, p50, p90] = ["p10", "p50", "p90"].map(|part| number(entry, &format!("{way}_{part}")));
                assert!(0.0 < p10 && p10 <= p50 && p50 <= p90);
            }
            assert_eq!(keys(&entry["ratio"]), ["median", "p10", "p90"]);
            assert!(number(entry, "runs") == 3.0);
            let cached = number(entry, "cached_chars");
            // The text after the cached part may begin with the same symbols by chance.
            assert!(0.0 < cached && cached < number(entry, "context") + number(entry, "more"), "{case}: {cached}");
        }
    }
    let single_run =
        json(&["resume", "--json", "--context", "70", "--runs", "1", "--model"], &[converted("whitespaces")]);
    let ratio = number(&single_run[0], "cold_ns_p50") / number(&single_run[0], "resumed_ns_p50");
    assert!(equal(number(&single_run[0]["ratio"], "median"), ratio), "cold divided by resumed");
    let limit = fixture("whitespaces").card().max_symbols - 1;
    let error = failure(&["resume", "--context", "40,999999", "--model"], &[converted("whitespaces")]);
    assert!(error.contains("--context and --more together") && error.contains(&limit.to_string()), "{error}");
    let error = failure(&["resume", "--context", "31", "--model"], &[converted("whitespaces")]);
    assert!(error.contains("--context: expected at least 32, of which"), "{error}");
}
