//! `weir bench`: what it tells, and what it counts. How fast anything is, is never asserted.

use super::{
    support::{converted, fixture, settings},
    twin::folder,
};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};
use weir::{
    decode::{
        contract::Model,
        cost::{Cost, StepCost},
        gather::BOUNDARY_WAIT,
    },
    error::Error,
    family::load::{Settings, load},
    kernels::{Compute, Dtype, Isa, Pool},
    report::{compare, decode, machine::Machine, prefill, sample::Sample},
};

fn bench(args: &[&str], dirs: &[PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("bench").args(args).args(dirs).env_clear();
    command.output().unwrap()
}

fn json(args: &[&str], dirs: &[PathBuf]) -> Vec<Value> {
    let output = bench(args, dirs);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.is_empty(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn keys(entry: &Value) -> Vec<&str> {
    entry.as_object().unwrap().keys().map(String::as_str).collect()
}

fn number(entry: &Value, key: &str) -> f64 {
    entry[key].as_f64().unwrap_or_else(|| panic!("{key} of {entry}"))
}

/// But for the last digits, which a reader of decimal numbers may lose.
fn equal(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-12
}

/// What other programs read: the first keys of each entry, in order.
const PROMISED: [&str; 12] = [
    "model",
    "family",
    "dtype",
    "threads",
    "batch",
    "context",
    "shortening_factor",
    "chars_per_second",
    "step_ns_p50",
    "bytes_per_char",
    "achieved_bytes_per_second",
    "ceiling_bytes_per_second",
];

const CONTEXT: usize = 40;
const STEPS: usize = 30;
const OPTIONS: [&str; 6] = ["--context", "40", "--steps", "30", "--threads", "2"];

fn check_entry(entry: &Value, model: &dyn Model, batch: usize, wait: usize) {
    assert_eq!(keys(entry)[..PROMISED.len()], PROMISED);
    assert_eq!((&entry["family"], &entry["dtype"]), (&"hourglass".into(), &"f32".into()));
    assert_eq!(entry["model"], *model.card().name);
    let expected = Expected::of(model, batch, wait);
    let names = ["threads", "batch", "context", "steps", "foreign_letters", "boundary_wait", "middle_steps"];
    let counts = names.map(|key| number(entry, key) as usize);
    assert_eq!(counts, [2, batch, CONTEXT, STEPS, 0, wait, expected.middle_steps]);
    let symbols = expected.symbols as f64;
    let gaps = ["p50", "p99"].map(|share| (format!("plain_gap_ns_{share}"), format!("boundary_gap_ns_{share}")));
    match expected.segments {
        0 => assert!(entry["shortening_factor"].is_null() && gaps.iter().all(|(_, gap)| entry[gap].is_null())),
        segments => {
            assert!(equal(number(entry, "shortening_factor"), symbols / segments as f64));
            assert!(number(entry, &gaps[0].1) <= number(entry, &gaps[1].1));
        }
    }
    assert!(0.0 < number(entry, &gaps[0].0) && number(entry, &gaps[0].0) <= number(entry, &gaps[1].0));
    let share = number(entry, "middle_share");
    assert!(share < 1.0 && (share > 0.0) == (expected.middle_steps > 0));
    assert!(equal(number(entry, "bytes_per_char"), expected.bytes as f64 / symbols));
    let achieved = number(entry, "bytes_per_char") * number(entry, "chars_per_second");
    assert!(equal(achieved, number(entry, "achieved_bytes_per_second")));
    let [p10, p50, p90] = ["step_ns_p10", "step_ns_p50", "step_ns_p90"].map(|key| number(entry, key));
    assert!(0.0 < p10 && p10 <= p50 && p50 <= p90);
    assert!(number(entry, "ceiling_bytes_per_second") > 1e6 && number(entry, "chars_per_second") > 0.0);
}

/// What the rounds of a fixture come to that pools at spaces, or not at all: played through on the text.
#[derive(Default)]
struct Expected {
    symbols: usize,
    segments: usize,
    middle_steps: usize,
    bytes: usize,
}

impl Expected {
    fn of(model: &dyn Model, batch: usize, wait: usize) -> Self {
        let sample = Sample::new(&model.card().vocabulary);
        let space = model.card().vocabulary.id_of(' ').unwrap();
        let closes =
            |row: usize, symbols: usize| model.card().pooled && sample.at(Sample::start(row) + symbols - 1) == space;
        let mut expected = Self::default();
        // of each row: its symbols, and for how many rounds it has waited
        let mut rows = vec![(CONTEXT, None); batch];
        for _ in 0..STEPS {
            for (row, (symbols, waited)) in rows.iter_mut().enumerate() {
                match waited {
                    Some(rounds) => *rounds += 1,
                    None => {
                        *symbols += 1;
                        *waited = closes(row, *symbols).then_some(0);
                    }
                }
            }
            let all_wait = rows.iter().all(|(_, waited)| waited.is_some());
            let due = all_wait || rows.iter().any(|(_, waited)| waited.is_some_and(|rounds| rounds >= wait));
            expected.middle_steps += usize::from(due);
            let (mut shared, mut middle) = (0, 0);
            for (row, (symbols, waited)) in rows.iter_mut().enumerate().filter(|(_, row)| due || row.1.is_none()) {
                let segments = (1..=*symbols).filter(|&symbols| closes(row, symbols)).count();
                let Cost { symbol, segment, logits } = model.cost(*symbols, segments);
                shared = (symbol.shared_bytes + logits.shared_bytes).max(shared);
                expected.bytes += symbol.own_bytes;
                expected.symbols += 1;
                if waited.take().is_some() {
                    middle = segment.shared_bytes.max(middle);
                    expected.bytes += segment.own_bytes;
                    expected.segments += 1;
                }
            }
            expected.bytes += shared + middle;
        }
        expected
    }
}

#[test]
fn decode_tells_what_was_promised() {
    for case in ["whitespaces", "vanilla"] {
        let args = ["decode", "--json", "--batch", "1,3", "--boundary-wait", "0,2"];
        let entries = json(&[&args, &OPTIONS[..], &["--model"]].concat(), &[converted(case)]);
        assert_eq!(entries.len(), 4);
        let model = fixture(case);
        for (entry, (batch, wait)) in entries.iter().zip([(1, 0), (1, 2), (3, 0), (3, 2)]) {
            check_entry(entry, &*model, batch, wait);
        }
    }
}

#[test]
fn compare_tells_both_and_their_ratio() {
    let args = [&["compare", "--json", "--pairs", "4"], &OPTIONS[..]].concat();
    let told = json(&args, &[converted("whitespaces"), converted("vanilla")]);
    assert_eq!(told.len(), 1);
    assert_eq!(keys(&told[0]), ["batch", "context", "boundary_wait", "pairs", "a", "b", "ratio"]);
    assert_eq!(keys(&told[0]["ratio"]), ["median", "p10", "p90"]);
    let [median, p10, p90] = ["median", "p10", "p90"].map(|key| number(&told[0]["ratio"], key));
    assert!(0.0 < p10 && p10 <= median && median <= p90);
    for (key, case) in [("a", "whitespaces"), ("b", "vanilla")] {
        let mut entry = told[0][key].clone();
        assert_eq!(number(&entry, "steps") as usize, 4 * STEPS);
        // every run feeds the same text, so all of them together need as many bytes a symbol as one
        entry["steps"] = STEPS.into();
        entry["middle_steps"] = (number(&entry, "middle_steps") as usize / 4).into();
        check_entry(&entry, &*fixture(case), 1, BOUNDARY_WAIT);
    }
}

#[test]
fn prefill_tells_speed_beside_the_machines_peak() {
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
fn a_text_that_is_foreign_to_the_model_is_said_to_be() {
    let args = [&["decode", "--json"], &OPTIONS[..], &["--model"]].concat();
    let entries = json(&args, &[folder("odd-shape").to_path_buf()]);
    let sample = Sample::new(&load(folder("odd-shape"), &settings()).unwrap().card().vocabulary);
    assert!(sample.foreign() > sample.len() / 2);
    assert_eq!(number(&entries[0], "foreign_letters") as usize, sample.foreign());
    let args = [&["decode"], &OPTIONS[..], &["--model"]].concat();
    let output = bench(&args, &[folder("odd-shape").to_path_buf()]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("not in its vocabulary"));
}

#[test]
fn people_get_a_table() {
    let args = [&["decode", "--batch", "2"], &OPTIONS[..], &["--model"]].concat();
    let output = bench(&args, &[converted("whitespaces")]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("chars/s") && lines[1].starts_with("whitespaces"), "{text}");
}

/// Bytes of a matrix as it is laid out: whole groups of sixteen outputs, for int8 whole groups of four inputs; biases, and the
/// scales of int8, of the outputs that there are.
fn matrix_bytes(dtype: Dtype, outputs: usize, inputs: usize) -> usize {
    let padded = outputs.next_multiple_of(16);
    match dtype {
        Dtype::F32 => padded * inputs * 4 + outputs * 4,
        Dtype::Bf16 => padded * inputs * 2 + outputs * 4,
        Dtype::Int8 => padded * inputs.next_multiple_of(4) + 2 * outputs * 4,
    }
}

/// Worked out by hand for layers (1, 2, 1), D = 32, 4 heads of 8, F = 64, V = 27, whose head is laid out for 32 outputs.
#[test]
fn a_fixtures_cost_is_that_of_its_shape() {
    const F32: usize = 4;
    let shapes = [(96, 32), (32, 32), (64, 32), (32, 64)];
    let products: usize = shapes.iter().map(|(outputs, inputs)| outputs * inputs).sum();
    // a number of R; a key with its value, of all heads: in int8 with two scales a head
    for (dtype, distance, pair, by_hand) in [
        (Dtype::F32, 4, 2 * 32 * 4, [79_104, 20_480, 70_912, 4_096, 4_204]),
        (Dtype::Bf16, 2, 2 * 32 * 2, [41_216, 10_240, 37_120, 2_048, 2_156]),
        (Dtype::Int8, 2, 2 * 32 + 4 * 2 * F32, [26_624, 7_680, 22_528, 1_536, 1_240]),
    ] {
        let matrices: usize = shapes.iter().map(|&(outputs, inputs)| matrix_bytes(dtype, outputs, inputs)).sum();
        let layer = matrices + 2 * 2 * 32 * F32;
        // 40 keys: R of as many distances, u and v; keys and values; two products for each score and one for each value
        let symbol = StepCost {
            shared_bytes: 2 * (layer + 40 * 32 * distance + 2 * 32 * F32),
            own_bytes: 2 * 40 * pair,
            multiply_adds: 2 * (products + 3 * 40 * 32),
        };
        // seven segments and the null group, in two layers, behind the norm of what was pooled
        let segment = StepCost {
            shared_bytes: 2 * layer + 2 * 8 * 32 * distance + 2 * 32 * F32 + 2 * 32 * F32,
            own_bytes: 2 * 8 * pair,
            multiply_adds: 2 * (products + 3 * 8 * 32),
        };
        let head = matrix_bytes(dtype, 27, 32);
        let logits = StepCost { shared_bytes: head, own_bytes: 0, multiply_adds: 27 * 32 };
        let model = load(&converted("whitespaces"), &Settings { dtype, ..settings() }).unwrap();
        assert_eq!(model.cost(40, 7), Cost { symbol, segment, logits }, "{dtype:?}");
        let counted = [symbol.shared_bytes, symbol.own_bytes, segment.shared_bytes, segment.own_bytes, head];
        assert_eq!(counted, by_hand, "{dtype:?}");
    }
}

#[test]
fn a_vanilla_model_has_no_segment_step() {
    assert_eq!(fixture("vanilla").cost(40, 0).segment, StepCost::default());
}

#[test]
fn what_decides_boundaries_is_read_at_every_symbol() {
    for dtype in Dtype::ALL {
        let settings = Settings { dtype, ..settings() };
        let cost = |dir: &Path| load(dir, &settings).unwrap().cost(40, 7);
        let plain = cost(folder("odd-shape"));
        // a predictor (17, 24), (1, 17)
        let mut learned = plain;
        let bytes = matrix_bytes(dtype, 17, 24) + matrix_bytes(dtype, 1, 17);
        learned.symbol += StepCost { shared_bytes: bytes, own_bytes: 0, multiply_adds: 17 * 24 + 17 };
        assert_eq!(cost(folder("learned")), learned, "{dtype:?}");
        // a companion, whose logits decide
        let (mut spikes, companion) = (plain, cost(&folder("spikes").join("companion")));
        spikes.symbol += companion.symbol;
        spikes.symbol += companion.logits;
        assert_eq!(cost(folder("spikes")), spikes, "{dtype:?}");
        assert_eq!(companion.segment, StepCost::default());
    }
}

#[test]
fn options_out_of_bounds_are_named_with_the_bound() {
    let model = fixture("whitespaces");
    let limit = model.card().max_symbols;
    let say = |batch, context, steps| {
        let plan = decode::Plan { batch, context, steps, boundary_wait: 64 };
        plan.check(model.card()).err().map(|error: Error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(say(1, limit - 1, 1), "");
    assert_eq!(say(1, 0, limit), "");
    assert_eq!(say(0, 8, 8), "--batch: 0 is out of bounds: 1 to 1024");
    assert_eq!(say(1025, 8, 8), "--batch: 1025 is out of bounds: 1 to 1024");
    assert_eq!(say(1, 8, 0), "--steps: 0 is out of bounds: 1 to 1048576");
    let (most, over) = (limit - 1, limit + 1);
    assert_eq!(say(1, limit, 1), format!("--context: {limit} characters is more than the limit of {most}"));
    let both = format!("--context and --steps together: {over} characters is more than the limit of {limit}");
    assert_eq!(say(1, limit - 4, 5), both);
    let plan = decode::Plan { batch: 1, context: 8, steps: 8, boundary_wait: 65 };
    let error = plan.check(model.card()).unwrap_err();
    assert_eq!(error.to_string(), "--boundary-wait: 65 is out of bounds: 0 to 64");

    let say = |symbols, chunk, runs| {
        let plan = prefill::Plan { symbols, chunk, runs };
        plan.check(model.card()).err().map(|error: Error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(say(limit, limit, 1), "");
    assert_eq!(say(0, 1, 1), format!("--symbols: 0 is out of bounds: 1 to {limit}"));
    assert_eq!(say(over, 1, 1), format!("--symbols: {over} characters is more than the limit of {limit}"));
    assert_eq!(say(1, 0, 1), format!("--chunk: 0 is out of bounds: 1 to {limit}"));
    assert_eq!(say(1, 1, 0), "--runs: 0 is out of bounds: 1 to 10000");
    assert!(compare::check(0).unwrap_err().to_string().contains("--pairs: 0"));

    let output = bench(&["decode", "--batch", "0", "--model"], &[converted("whitespaces")]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty());
    assert_eq!(told, "weir: --batch: 0 is out of bounds: 1 to 1024\n");
}

#[test]
fn a_run_leaves_the_rows_as_they_were() {
    let (model, machine) =
        (fixture("gumbel"), Machine { compute: Compute { isa: Isa::detect(), pool: Pool::new(1).into() } });
    let sample = Sample::new(&model.card().vocabulary);
    for (boundary_wait, symbols) in [(0, 100), (3, 50)] {
        let plan = decode::Plan { batch: 2, context: 33, steps: 50, boundary_wait };
        let mut decoding = decode::Decoding::begin(&*model, &sample, plan).unwrap();
        let (first, second) = (decoding.run().unwrap(), decoding.run().unwrap());
        assert_eq!((first.segments, first.bytes, first.symbols), (second.segments, second.bytes, second.symbols));
        assert!((symbols..=100).contains(&first.symbols));
        assert_eq!(first.plain_gap_ns.len() + first.boundary_gap_ns.len(), first.symbols);
        // a row's gaps follow one upon the other
        let gaps: f64 = first.plain_gap_ns.iter().chain(&first.boundary_gap_ns).sum();
        assert!(gaps <= 2.0 * first.step_ns.iter().sum::<f64>() * 1.000_001 && first.middle_steps <= 50);
    }
    let plan = decode::Plan { batch: 2, context: 33, steps: 50, boundary_wait: 2 };
    let mut decoding = decode::Decoding::begin(&*model, &sample, plan).unwrap();
    let first = decoding.run().unwrap();
    let entry = decode::Entry::new(&decoding, first, &machine).unwrap();
    assert_eq!((entry.threads, entry.steps, entry.batch), (1, 50, 2));
}

fn failure(args: &[&str], dirs: &[PathBuf]) -> String {
    let output = bench(args, dirs);
    assert!(!output.status.success() && output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// The texts of a picture, which must be well-formed.
fn texts(svg: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(svg).unwrap();
    let tree = roxmltree::Document::parse(&text).unwrap();
    let nodes = tree.descendants().filter(|node| node.has_tag_name("text"));
    nodes.filter_map(|node| Some(node.text()?.trim().to_owned())).collect()
}

#[test]
fn every_combination_of_dtypes_and_threads_is_measured() {
    let args =
        ["decode", "--json", "--dtype", "int8,bf16", "--threads", "1,2", "--batch", "1,2", "--steps", "4", "--context"];
    let entries = json(&[&args[..], &["8", "--model"]].concat(), &[converted("whitespaces")]);
    for (entries, dtype) in entries.chunks(4).zip(["int8", "bf16"]) {
        let met: Vec<_> = entries.iter().map(|entry| (number(entry, "threads"), number(entry, "batch"))).collect();
        assert_eq!(met, [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)]);
        assert!(entries.iter().all(|entry| entry["dtype"] == dtype));
    }
    assert_eq!(entries.len(), 8);
    assert!(failure(&["decode", "--dtype", "f32,f64", "--model"], &[converted("vanilla")]).contains("f32, bf16, int8"));
    let args = ["prefill", "--json", "--threads", "2,1", "--symbols", "20", "--runs", "1", "--model"];
    let entries = json(&args, &[converted("vanilla")]);
    assert_eq!(entries.iter().map(|entry| number(entry, "threads")).collect::<Vec<_>>(), [2.0, 1.0]);
}

#[test]
fn resume_tells_both_ways_and_their_ratio() {
    for case in ["whitespaces", "vanilla", "gumbel"] {
        let args = ["resume", "--json", "--context", "1,40,70", "--runs", "3", "--threads", "1", "--model"];
        let entries = json(&args, &[converted(case)]);
        let contexts: Vec<_> = entries.iter().map(|entry| number(entry, "context")).collect();
        assert_eq!(contexts, [1.0, 40.0, 70.0]);
        for entry in &entries {
            for way in ["cold_ns", "resumed_ns"] {
                let [p10, p50, p90] = ["p10", "p50", "p90"].map(|part| number(entry, &format!("{way}_{part}")));
                assert!(0.0 < p10 && p10 <= p50 && p50 <= p90);
            }
            assert_eq!(keys(&entry["ratio"]), ["median", "p10", "p90"]);
            assert!(number(entry, "state_bytes") > 0.0 && number(entry, "runs") == 3.0);
        }
    }
    let limit = fixture("whitespaces").card().max_symbols;
    let told = failure(&["resume", "--context", "40,999999", "--model"], &[converted("whitespaces")]);
    assert!(told.contains(&format!("--context: 999999 is out of bounds: 1 to {limit}")), "{told}");
    assert!(told.contains("--max-symbols"), "{told}");
}

/// Two for each multiply-add of a kernel's call.
fn operations(entry: &Value) -> f64 {
    let products = match entry["kernel"].as_str().unwrap() {
        "attention" => 2.0 * number(entry, "keys"),
        "attention+distances" => 3.0 * number(entry, "keys"),
        _ => number(entry, "rows") * number(entry, "inputs"),
    };
    2.0 * products * number(entry, "outputs")
}

#[test]
fn kernels_are_told_beside_ceilings_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("kernels.svg");
    let args = ["kernels", "--json", "--threads", "1", "--seconds", "0.0001", "--megabytes", "1"];
    let args = [&args[..], &["--dtype", "f32,bf16,int8", "--plot"]].concat();
    let entries = json(&args, std::slice::from_ref(&svg));
    let of = |kernel: &str| entries.iter().filter(|entry| entry["kernel"] == *kernel).collect::<Vec<_>>();
    let names = ["matrix", "matrix+gelu", "attention", "attention+distances", "norm", "dispatch"];
    // in each dtype: four shapes cold and hot, with six numbers of rows
    assert_eq!(names.map(|kernel| of(kernel).len()), [3 * 4 * 2 * 6, 3 * 6, 3 * 3, 3 * 3, 2, 1]);
    let mut dtypes: Vec<_> = entries.iter().filter_map(|entry| entry["dtype"].as_str()).collect();
    dtypes.dedup();
    assert_eq!(dtypes, ["f32", "bf16", "int8", "f32", "bf16", "int8"]);
    for entry in &entries {
        let [p10, p50, p90] = ["ns_p10", "ns_p50", "ns_p90"].map(|key| number(entry, key));
        assert!(0.0 < p10 && p10 <= p50 && p50 <= p90);
    }
    for entry in [of("matrix"), of("matrix+gelu"), of("attention"), of("attention+distances")].concat() {
        assert!(equal(number(entry, "gflops") * number(entry, "ns_p50"), operations(entry)), "{entry}");
        let achieved = number(entry, "bytes") / number(entry, "ns_p50") * 1e9;
        assert!(equal(achieved, number(entry, "bytes_per_second")));
        assert!(number(entry, "ceiling_bytes_per_second") > 0.0 && number(entry, "peak_gflops") > 0.0);
    }
    // in each dtype: four shapes, cold and hot, reading and arithmetic, each in its own panel; attention in one
    let drawn = texts(&svg);
    let count = |part: &str| drawn.iter().filter(|text| text.contains(part)).count();
    assert_eq!([count(" -> "), count("weights, threads 1"), count("attention")], [3 * 4 * 4, 3 * 4, 3 * 2]);
    assert!(failure(&["kernels", "--seconds", "0"], &[]).contains("--seconds: 0 is out of bounds"));
    assert!(failure(&["kernels", "--megabytes", "0"], &[]).contains("--megabytes: 0 is out of bounds"));
}

#[test]
fn pictures_have_a_line_for_each_series() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two, both] = ["one.svg", "two.svg", "both.svg"].map(|name| folder.path().join(name));
    let drawn = |svg: &Path| texts(svg).into_iter().filter(|text| text.contains(", f32, threads")).count();
    let options = ["--steps", "4", "--threads", "1", "--batch", "1,2", "--context", "8,16", "--json", "--plot"];
    let args = [&["decode"], &options[..], &[one.to_str().unwrap(), "--model"]].concat();
    let decoded = json(&args, &[converted("whitespaces")]);
    // two contexts in two panels
    assert_eq!(drawn(&one), 4);
    let args = [&["compare", "--pairs", "1"], &options[..], &[two.to_str().unwrap()]].concat();
    let compared = json(&args, &[converted("whitespaces"), converted("vanilla")]);
    // and of both models, and a ratio for each context
    assert_eq!(drawn(&two), 8 + 2);
    let saved = [("a.json", decoded), ("b.json", compared)].map(|(name, entries)| {
        let mut entries = entries;
        if let Some(model) = entries[0].get_mut("model") {
            *model = "a <odd> & \"named\" model".into();
        }
        let path = folder.path().join(name);
        std::fs::write(&path, Value::from(entries).to_string()).unwrap();
        path
    });
    let output = bench(&["plot", "--out", both.to_str().unwrap()], &saved);
    assert!(output.status.success() && output.stdout.is_empty());
    // the renamed entry is a line of its own in two panels
    assert_eq!(drawn(&both), 10 + 2);
    assert!(texts(&both).iter().any(|text| text.starts_with("a <odd> & \"named\" model")));
}

#[test]
fn pictures_that_cannot_be_made_are_refused_by_name() {
    let told = failure(&["decode", "--plot", "/nowhere/at/all.svg", "--model"], &[converted("whitespaces")]);
    assert!(told.contains("/nowhere/at/all.svg"), "{told}");
    let folder = tempfile::tempdir().unwrap();
    let (svg, saved) = (folder.path().join("x.svg"), folder.path().join("x.json"));
    let out = ["plot", "--out", svg.to_str().unwrap()];
    for (text, expected) in [("{", "x.json"), ("[]", "1 to 10000 measurements"), ("[{\"model\":1}]", "entry 0")] {
        std::fs::write(&saved, text).unwrap();
        let told = failure(&out, std::slice::from_ref(&saved));
        assert!(told.contains(expected), "{told}");
        assert!(!svg.exists());
    }
    assert!(failure(&out, &[folder.path().join("missing.json")]).contains("missing.json"));
    std::fs::File::create(&saved).unwrap().set_len((64 << 20) + 1).unwrap();
    assert!(failure(&out, std::slice::from_ref(&saved)).contains("a file of at most 67108864 bytes"));
    // a picture that is there is left alone by what cannot be drawn
    std::fs::write(&svg, "before").unwrap();
    failure(&["decode", "--batch", "0", "--plot", svg.to_str().unwrap(), "--model"], &[converted("vanilla")]);
    assert_eq!(std::fs::read_to_string(&svg).unwrap(), "before");
}
