//! Options of `weir bench`: lists of values, and values out of bounds.

use super::{bench, failure, json, number};
use crate::support::{converted, fixture};
use weir::{
    error::Error,
    kernels::{Dtype, Isa},
    report::{compare, decode, kernels, prefill},
};

#[test]
fn every_combination_of_dtypes_and_threads_is_measured() {
    let args =
        ["decode", "--json", "--dtype", "int8,bf16", "--threads", "1,2", "--batch", "1,2", "--steps", "4", "--context"];
    let entries = json(&[&args[..], &["8", "--model"]].concat(), &[converted("whitespaces")]);
    for (entries, dtype) in entries.chunks(4).zip(["int8", "bf16"]) {
        let combinations: Vec<_> =
            entries.iter().map(|entry| (number(entry, "threads"), number(entry, "batch"))).collect();
        assert_eq!(combinations, [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)]);
        assert!(entries.iter().all(|entry| entry["dtype"] == dtype));
    }
    assert_eq!(entries.len(), 8);
    assert!(failure(&["decode", "--dtype", "f32,f64", "--model"], &[converted("vanilla")]).contains("f32, bf16, int8"));
    let args = ["prefill", "--json", "--threads", "2,1", "--symbols", "20", "--runs", "1", "--model"];
    let entries = json(&args, &[converted("vanilla")]);
    assert_eq!(entries.iter().map(|entry| number(entry, "threads")).collect::<Vec<_>>(), [2.0, 1.0]);
}

#[test]
fn every_instruction_set_can_be_measured_and_another_is_refused() {
    for isa in Isa::all() {
        let args =
            ["decode", "--json", "--isa", isa.name(), "--steps", "4", "--batch", "1", "--context", "8", "--model"];
        let entries = json(&args, &[converted("whitespaces")]);
        assert!(entries.iter().all(|entry| entry["isa"] == isa.name()) && entries.len() == 1);
        let args = ["prefill", "--isa", isa.name(), "--symbols", "8", "--runs", "1", "--model"];
        let printed = String::from_utf8(bench(&args, &[converted("whitespaces")]).stdout).unwrap();
        let column = printed.lines().map(|line| line.split_whitespace().nth(3));
        assert_eq!(column.take(2).collect::<Vec<_>>(), [Some("isa"), Some(isa.name())], "{printed}");
    }
    let entries = json(&["kernels", "--json", "--isa", "portable", "--seconds", "0.001", "--megabytes", "1"], &[]);
    assert!(entries.iter().all(|entry| entry["isa"] == "portable"));
    let error = failure(&["decode", "--isa", "sse9", "--model"], &[converted("vanilla")]);
    assert!(error.contains("this processor supports") && error.contains("portable"), "{error}");
}

#[test]
fn options_out_of_bounds_are_named_with_the_bound() {
    let model = fixture("whitespaces");
    let limit = model.card().max_symbols;
    let refusal = |batch, context, steps| {
        let plan = decode::DecodePlan { batch, context, steps, boundary_wait: 64 };
        plan.check(model.card()).err().map(|e: Error| e.to_string()).unwrap_or_default()
    };
    assert_eq!(refusal(1, limit - 1, 1), "");
    assert_eq!(refusal(1, 0, limit), "");
    assert_eq!(refusal(0, 8, 8), "--batch: expected 1 to 1024, found 0");
    assert_eq!(refusal(1025, 8, 8), "--batch: expected 1 to 1024, found 1025");
    assert_eq!(refusal(1, 8, 0), "--steps: expected 1 to 1048576, found 0");
    let max_value = limit - 1;
    let over = limit + 1;
    assert_eq!(refusal(1, limit, 1), format!("--context: expected at most {max_value} characters, found {limit}"));
    let both = format!("--context and --steps together: expected at most {limit} characters, found {over}");
    assert_eq!(refusal(1, limit - 4, 5), both);
    let plan = decode::DecodePlan { batch: 1, context: 8, steps: 8, boundary_wait: 65 };
    assert_eq!(plan.check(model.card()).unwrap_err().to_string(), "--boundary-wait: expected 0 to 64, found 65");

    let refusal = |symbols, chunk, runs| {
        let plan = prefill::PrefillPlan { symbols, chunk, runs };
        plan.check(model.card()).err().map(|e: Error| e.to_string()).unwrap_or_default()
    };
    assert_eq!(refusal(limit, limit, 1), "");
    assert_eq!(refusal(0, 1, 1), format!("--symbols: expected 1 to {limit}, found 0"));
    assert_eq!(refusal(over, 1, 1), format!("--symbols: expected at most {limit} characters, found {over}"));
    assert_eq!(refusal(1, 0, 1), format!("--chunk: expected 1 to {limit}, found 0"));
    assert_eq!(refusal(1, 1, 0), "--runs: expected 1 to 10000, found 0");
    assert!(compare::check(0).unwrap_err().to_string().starts_with("--pairs: expected "));
}

/// Numeric flags out of bounds are refused with flag, value and bounds, negative numbers included.
#[test]
fn flags_out_of_bounds_are_refused_with_value_and_bound() {
    let cases = [
        (["decode", "--boundary-wait"], "-1", "0 to 64"),
        (["decode", "--boundary-wait"], "65", "0 to 64"),
        (["decode", "--batch"], "0", "1 to 1024"),
        (["decode", "--batch"], "-3", "1 to 1024"),
        (["decode", "--batch"], "99999999999999999999", "1 to 1024"),
        (["decode", "--steps"], "many", "1 to 1048576"),
        (["compare", "--pairs"], "-1", "1 to 10000"),
        (["prefill", "--chunk"], "1.5", "1 to 16777216"),
        (["resume", "--runs"], "0", "1 to 10000"),
        (["stream", "--batch"], "257", "1 to 256"),
        (["speculate", "--pairs"], "0", "1 to 10000"),
        (["kernels", "--megabytes"], "-1", "1 to 65536"),
    ];
    for ([what, flag], value, bound) in cases {
        let error = failure(&[what, flag, value], &[]);
        let found = if value == "many" { "\"many\"" } else { value };
        let expected = format!("error: {flag}: expected a whole number from {bound}, found {found}\n");
        assert!(error.contains(&expected), "{error}");
    }
    let error = failure(&["decode", "--threads", "-1"], &[]);
    assert!(error.contains("--threads: expected a whole number from 1 to 1024, found -1"), "{error}");
    assert!(failure(&["kernels", "--seconds", "-1"], &[]).contains("--seconds: expected above 0, up to 60, found -1"));
    // The server checks all of its flags together.
    let serve = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["serve", "--boundary-wait", "-1", "--rows", "-2"])
        .env_clear()
        .output()
        .unwrap();
    let error = String::from_utf8(serve.stderr).unwrap();
    assert!(!serve.status.success());
    assert!(error.contains("--boundary-wait: expected a whole number from 0 to 64, found -1"), "{error}");
    assert!(error.contains("--rows: expected a whole number from 1 to 4096, found -2"), "{error}");
}

#[test]
fn kernel_benchmarks_that_exceed_memory_are_refused() {
    let refusal = |dtypes: &[Dtype], megabytes, free| {
        let plan = kernels::KernelPlan { seconds: 0.1, megabytes };
        plan.check_memory(dtypes, free).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let free = 1_000_000_000;
    assert_eq!(refusal(&[Dtype::F32], 500, free), "");
    let error = refusal(&[Dtype::F32, Dtype::Int8], 501, free);
    assert!(error.contains("--megabytes: expected at most 500 (") && error.contains("1000 MB"), "{error}");
    // --megabytes counts f32 weights: a narrower type needs less.
    assert_eq!(
        (refusal(&[Dtype::Int8], 2000, free), refusal(&[Dtype::Bf16, Dtype::Int8], 1000, free)),
        Default::default()
    );
    assert!(refusal(&[Dtype::Int8], 2001, free).contains("at most 2000 ("));
    assert!(refusal(&[Dtype::Bf16], 65_536, 0).contains("at most 0 ("));
}
