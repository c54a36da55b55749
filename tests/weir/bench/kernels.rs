//! `bench kernels`: each kernel alone.

use super::{bench, equal, failure, json, number, texts};
use serde_json::Value;

/// Returns the operations of one kernel call: two per multiply-add.
fn operations(entry: &Value) -> f64 {
    let products = match entry["kernel"].as_str().unwrap() {
        "attention" => 2.0 * number(entry, "keys"),
        "attention+distances" => 3.0 * number(entry, "keys"),
        _ => number(entry, "rows") * number(entry, "inputs"),
    };
    2.0 * products * number(entry, "outputs")
}

#[test]
fn kernels_are_reported_with_peaks_and_plotted() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("kernels.svg");
    let args = ["kernels", "--json", "--threads", "1", "--seconds", "0.0001", "--megabytes", "1"];
    let args = [&args[..], &["--dtype", "f32,bf16,int8", "--plot"]].concat();
    let entries = json(&args, std::slice::from_ref(&svg));
    let entries_of = |kernel: &str| entries.iter().filter(|entry| entry["kernel"] == *kernel).collect::<Vec<_>>();
    let names = ["matrix", "matrix+gelu", "attention", "attention+distances", "norm", "dispatch"];
    // Each dtype has four shapes, cold and hot, with six row counts.
    assert_eq!(names.map(|kernel| entries_of(kernel).len()), [3 * 4 * 2 * 6, 3 * 6, 3 * 3, 3 * 3, 2, 1]);
    let mut dtypes: Vec<_> = entries.iter().filter_map(|entry| entry["dtype"].as_str()).collect();
    dtypes.dedup();
    assert_eq!(dtypes, ["f32", "bf16", "int8", "f32", "bf16", "int8"]);
    for entry in &entries {
        let [p10, p50, p90] = ["ns_p10", "ns_p50", "ns_p90"].map(|key| number(entry, key));
        assert!(0.0 < p10 && p10 <= p50 && p50 <= p90);
    }
    for entry in
        [entries_of("matrix"), entries_of("matrix+gelu"), entries_of("attention"), entries_of("attention+distances")]
            .concat()
    {
        assert!(equal(number(entry, "gflops") * number(entry, "ns_p50"), operations(entry)), "{entry}");
        let achieved = number(entry, "bytes") / number(entry, "ns_p50") * 1e9;
        assert!(equal(achieved, number(entry, "bytes_per_second")));
        assert!(number(entry, "ceiling_bytes_per_second") > 0.0);
        // int8 products have no float peak to compare with; int8 attention reads bytes but multiplies floats.
        let bytes = entry["dtype"] == "int8" && entry["kernel"].as_str().unwrap().starts_with("matrix");
        assert_eq!(entry["peak_gflops"].as_f64().is_some_and(|peak| peak > 0.0), !bytes, "{entry}");
    }
    // Each dtype has four shapes, cold and hot, with bandwidth and arithmetic, each in its own panel. Attention has one
    // panel.
    let drawn = texts(&svg);
    let count = |part: &str| drawn.iter().filter(|text| text.contains(part)).count();
    assert_eq!([count(" -> "), count("weights, threads 1"), count("attention")], [3 * 4 * 4, 3 * 4, 3 * 2]);
    assert!(failure(&["kernels", "--seconds", "0"], &[]).contains("--seconds: expected above 0, up to 60, found 0"));
}

#[test]
fn the_table_explains_why_int8_has_no_peak() {
    let args = ["kernels", "--threads", "1", "--seconds", "0.0001", "--megabytes", "1", "--dtype"];
    let table = |dtype: &str| String::from_utf8(bench(&[&args[..], &[dtype]].concat(), &[]).stdout).unwrap();
    let bytes = table("int8");
    let floats = table("f32");
    let product = |text: &str| text.lines().find(|line| line.starts_with("matrix ")).unwrap().to_owned();
    assert!(
        product(&bytes).ends_with("  -") && bytes.lines().last().unwrap().starts_with("int8, int4: no peak, since")
    );
    assert!(!product(&floats).ends_with("  -") && !floats.contains("no peak"), "{floats}");
}
