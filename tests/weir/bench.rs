//! `weir bench`: its output formats and its counts. No test asserts a speed.

use crate::{
    hourglass::folder,
    process::{outcome, program},
    support::settings,
    *,
};
use weir::{
    kernels::{Compute, ThreadPool},
    models::contract::{BOUNDARY_WAIT, StepCost},
    report::{decode, kernels, machine::Machine, prefill, sample::Sample},
};

/// Runs a benchmark. `args` are separated by spaces; `paths` follow them. Returns stdout if it succeeds, otherwise stderr.
fn bench(args: &str, paths: &[&Path]) -> Result<String, String> {
    outcome(program(&["bench"]).args(args.split_whitespace()).args(paths))
}

fn json(args: &str, paths: &[&Path]) -> Vec<Value> {
    serde_json::from_str(&bench(args, paths).unwrap()).unwrap()
}

/// Asserts that a benchmark is refused with this in its error.
#[track_caller]
fn refused(args: &str, paths: &[&Path], part: &str) {
    let error = bench(args, paths).unwrap_err();
    assert!(error.contains(part) && !error.contains('\u{1b}'), "{args}: {error}");
}

fn keys(entry: &Value) -> Vec<&str> {
    entry.as_object().unwrap().keys().map(String::as_str).collect()
}

fn number(entry: &Value, key: &str) -> f64 {
    entry[key].as_f64().unwrap_or_else(|| panic!("{key} of {entry}"))
}

fn numbers<const N: usize>(entry: &Value, keys: [&str; N]) -> [f64; N] {
    keys.map(|key| number(entry, key))
}

/// Asserts that the values of these keys are above zero and increase.
fn increase<const N: usize>(entry: &Value, keys: [&str; N]) {
    let numbers = numbers(entry, keys);
    assert!(numbers[0] > 0.0 && numbers.is_sorted(), "{entry}");
}

/// Asserts the keys of a ratio and the order of its values.
fn check_ratio(ratio: &Value) {
    assert_eq!(keys(ratio), ["median", "p10", "p90"]);
    let [p10, median, p90] = numbers(ratio, ["p10", "median", "p90"]);
    assert!(-1.0 < p10 && p10 <= median && median <= p90, "{ratio}");
}

/// Returns true if two numbers agree up to the last digits, which decimal output may lose.
fn equal(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-12
}

/// Returns the bytes of a matrix in its layout: outputs padded to groups of 16, also in biases and in int8's
/// scales and sums; for int8 inputs padded to groups of 4, for int4 to 32.
fn matrix_bytes(dtype: Dtype, outputs: usize, inputs: usize) -> usize {
    let padded = outputs.next_multiple_of(16);
    match dtype {
        Dtype::F32 => padded * inputs * 4 + padded * 4,
        Dtype::Bf16 => padded * inputs * 2 + padded * 4,
        // Each output has a bias, a scale and a sum of bytes.
        Dtype::Int8 => padded * inputs.next_multiple_of(4) + 3 * padded * 4,
        // 32 inputs have half a byte each and one multiplier. Each output has a bias and a scale.
        Dtype::Int4 => padded * inputs.div_ceil(32) * (16 + 1) + 2 * padded * 4,
    }
}

/// Layers (1, 2, 1), D = 32, 4 heads of 8, F = 64, V = 27; the head is padded to 32 outputs.
#[test]
fn the_cost_of_a_fixture_follows_from_its_shape() {
    const F32: usize = 4;
    let shapes = [(96, 32), (32, 32), (64, 32), (32, 64)];
    let products: usize = shapes.iter().map(|(outputs, inputs)| outputs * inputs).sum();
    // Bytes per distance (R) and per key-value pair of all heads. int8 adds one and two scales per head; int4 has the same.
    for (dtype, distance, pair, by_hand) in [
        (Dtype::F32, 32 * 4, 2 * 32 * 4, [79_104, 20_480, 70_912, 4_096, 4_224]),
        (Dtype::Bf16, 32 * 2, 2 * 32 * 2, [41_216, 10_240, 37_120, 2_048, 2_176]),
        (Dtype::Int8, 32 + 4 * F32, 2 * 32 + 4 * 2 * F32, [27_136, 7_680, 24_064, 1_536, 1_408]),
        (Dtype::Int4, 32 + 4 * F32, 2 * 32 + 4 * 2 * F32, [17_664, 7_680, 14_592, 1_536, 800]),
    ] {
        let matrices: usize = shapes.iter().map(|&(outputs, inputs)| matrix_bytes(dtype, outputs, inputs)).sum();
        let layer = matrices + 2 * 2 * 32 * F32;
        // 40 keys need R of 40 distances, u and v, keys and values. Each score takes two products, and each value takes
        // one.
        let symbol = StepCost {
            shared_bytes: 2 * (layer + 40 * distance + 2 * 32 * F32),
            own_bytes: 2 * 40 * pair,
            multiply_adds: 2 * (products + 3 * 40 * 32),
        };
        // The two middle layers read seven segments and the null group, after the norm of the pooled vectors.
        let segment = StepCost {
            shared_bytes: 2 * layer + 2 * 8 * distance + 2 * 32 * F32 + 2 * 32 * F32,
            own_bytes: 2 * 8 * pair,
            multiply_adds: 2 * (products + 3 * 8 * 32),
        };
        let head = matrix_bytes(dtype, 27, 32);
        let logits = StepCost { shared_bytes: head, own_bytes: 0, multiply_adds: 27 * 32 };
        let model = load(&converted("whitespaces"), &Settings { dtype, ..settings() }).unwrap();
        assert_eq!(model.cost(40, 7), Cost { symbol, segment, logits, ..Cost::default() }, "{dtype:?}");
        let counted = [symbol.shared_bytes, symbol.own_bytes, segment.shared_bytes, segment.own_bytes, head];
        assert_eq!(counted, by_hand, "{dtype:?}");
    }
}

#[test]
fn a_vanilla_model_has_no_segment_step() {
    assert_eq!(fixture("vanilla").cost(40, 0).segment, StepCost::default());
}

/// The layers inside a level are read only where its chunks begin.
#[test]
fn deeper_levels_add_to_a_segment_step() {
    let one = model_of("hnet", "one_stage", Dtype::F32).cost(40, 7);
    assert_eq!((one.deeper, one.segment_step(2)), (StepCost::default(), one.segment));
    let two = model_of("hnet", "two_stage", Dtype::F32).cost(40, 7);
    assert_eq!((two.segment_step(0), two.segment_step(1)), (StepCost::default(), two.segment));
    let mut both = two.segment;
    both += two.deeper;
    assert_eq!((two.segment_step(2), two.segment_step(3)), (both, both));
    // the stack inside both levels, T2 × 64, has at least its matrices: four of 64 × 64 and three of 64 × 128, twice
    assert!(two.deeper.multiply_adds > 2 * (4 * 64 * 64 + 3 * 64 * 128) && two.deeper.own_bytes > 0);
}

#[test]
fn boundary_deciders_are_read_at_every_symbol() {
    for dtype in Dtype::ALL {
        let settings = Settings { dtype, ..settings() };
        let cost = |dir: &Path| load(dir, &settings).unwrap().cost(40, 7);
        let plain = cost(folder("odd-shape"));
        // The predictor has matrices (17, 24) and (1, 17).
        let mut learned = plain;
        let bytes = matrix_bytes(dtype, 17, 24) + matrix_bytes(dtype, 1, 17);
        learned.symbol += StepCost { shared_bytes: bytes, own_bytes: 0, multiply_adds: 17 * 24 + 17 };
        assert_eq!(cost(folder("learned")), learned, "{dtype:?}");
        // The logits of an entropy model decide the boundaries.
        let mut spikes = plain;
        let entropy_model = cost(&folder("spikes").join("companion"));
        spikes.symbol += entropy_model.symbol;
        spikes.symbol += entropy_model.logits;
        assert_eq!(cost(folder("spikes")), spikes, "{dtype:?}");
        assert_eq!(entropy_model.segment, StepCost::default());
    }
}

/// First keys of each entry, in order. Other programs rely on them.
const DECODE_FIELDS: [&str; 13] = [
    "model",
    "family",
    "dtype",
    "threads",
    "isa",
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

fn check_entry(entry: &Value, model: &dyn Model, batch: usize, wait: usize) {
    assert_eq!(keys(entry)[..DECODE_FIELDS.len()], DECODE_FIELDS);
    assert_eq!((&entry["family"], &entry["dtype"]), (&"hourglass".into(), &"f32".into()));
    assert_eq!(entry["model"], *model.card().name);
    let expected = Expected::simulate(model, batch, wait);
    let names = ["threads", "batch", "context", "steps", "foreign_letters", "boundary_wait", "middle_steps"];
    let counts = numbers(entry, names).map(|count| count as usize);
    assert_eq!(counts, [2, batch, CONTEXT, STEPS, 0, wait, expected.middle_steps]);
    let symbols = expected.symbols as f64;
    let gaps = ["p50", "p99"].map(|share| (format!("plain_gap_ns_{share}"), format!("boundary_gap_ns_{share}")));
    match expected.segments {
        0 => assert!(entry["shortening_factor"].is_null() && gaps.iter().all(|(_, gap)| entry[gap].is_null())),
        segments => {
            assert!(equal(number(entry, "shortening_factor"), symbols / segments as f64));
            increase(entry, [&gaps[0].1, &gaps[1].1]);
        }
    }
    increase(entry, [&gaps[0].0, &gaps[1].0]);
    let share = number(entry, "middle_share");
    assert!(share < 1.0 && (share > 0.0) == (expected.middle_steps > 0));
    assert!(equal(number(entry, "bytes_per_char"), expected.bytes as f64 / symbols));
    let achieved = number(entry, "bytes_per_char") * number(entry, "chars_per_second");
    assert!(equal(achieved, number(entry, "achieved_bytes_per_second")));
    increase(entry, ["step_ns_p10", "step_ns_p50", "step_ns_p90"]);
    assert!(number(entry, "ceiling_bytes_per_second") > 1e6 && number(entry, "chars_per_second") > 0.0);
}

/// Expected counts of a fixture that pools at spaces or not at all, from a simulation of the rounds on the sample text.
#[derive(Default)]
struct Expected {
    symbols: usize,
    segments: usize,
    middle_steps: usize,
    bytes: usize,
}

impl Expected {
    fn simulate(model: &dyn Model, batch: usize, wait: usize) -> Self {
        let sample = Sample::new(&model.card().vocabulary);
        let space = model.card().vocabulary.id_of(' ').unwrap();
        let closes = |row: usize, symbols: usize| {
            model.card().pooled && sample.symbol(Sample::start(row) + symbols - 1) == space
        };
        let mut expected = Self::default();
        // Each row counts its symbols and the rounds that it has waited for a segment step.
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
            let mut shared = 0;
            let mut middle = 0;
            for (row, (symbols, waited)) in rows.iter_mut().enumerate().filter(|(_, row)| due || row.1.is_none()) {
                let segments = (1..=*symbols).filter(|&symbols| closes(row, symbols)).count();
                let Cost { symbol, segment, logits, .. } = model.cost(*symbols, segments);
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
fn decode_prints_the_promised_keys() {
    for case in ["whitespaces", "vanilla"] {
        let args = "decode --json --batch 1,3 --boundary-wait 0,2 --context 40 --steps 30 --threads 2 --model";
        let entries = json(args, &[&converted(case)]);
        assert_eq!(entries.len(), 4);
        let model = fixture(case);
        for (entry, (batch, wait)) in entries.iter().zip([(1, 0), (1, 2), (3, 0), (3, 2)]) {
            check_entry(entry, &*model, batch, wait);
        }
    }
}

#[test]
fn compare_prints_both_models_and_their_ratio() {
    let args = "compare --json --pairs 4 --context 40 --steps 30 --threads 2";
    let entries = json(args, &[&converted("whitespaces"), &converted("vanilla")]);
    assert_eq!(entries.len(), 1);
    assert_eq!(keys(&entries[0]), ["batch", "context", "boundary_wait", "pairs", "a", "b", "ratio"]);
    check_ratio(&entries[0]["ratio"]);
    for (key, case) in [("a", "whitespaces"), ("b", "vanilla")] {
        let mut entry = entries[0][key].clone();
        assert_eq!(number(&entry, "steps") as usize, 4 * STEPS);
        // Every run feeds the same text, so bytes per symbol are as in one run.
        entry["steps"] = STEPS.into();
        entry["middle_steps"] = (number(&entry, "middle_steps") as usize / 4).into();
        check_entry(&entry, &*fixture(case), 1, BOUNDARY_WAIT);
    }
}

#[test]
fn letters_outside_the_vocabulary_are_reported() {
    let args = "decode --context 40 --steps 30 --threads 2 --model";
    let sample = Sample::new(&load(folder("odd-shape"), &settings()).unwrap().card().vocabulary);
    assert!(sample.foreign > sample.len() / 2);
    let entries = json(&args.replace("decode", "decode --json"), &[folder("odd-shape")]);
    assert_eq!(number(&entries[0], "foreign_letters") as usize, sample.foreign);
    assert!(bench(args, &[folder("odd-shape")]).unwrap().contains("its vocabulary lacks"));
}

#[test]
fn a_run_leaves_the_rows_as_they_were() {
    let model = fixture("gumbel");
    let machine = Machine { compute: Compute { isa: Isa::detect(), pool: ThreadPool::new(1).into() } };
    let sample = Sample::new(&model.card().vocabulary);
    for (boundary_wait, symbols) in [(0, 100), (3, 50)] {
        let plan = decode::DecodePlan { batch: 2, context: 33, steps: 50, boundary_wait, threshold: None };
        let mut decoding = decode::DecodeBench::start(&*model, &sample, plan).unwrap();
        let first = decoding.run().unwrap();
        let second = decoding.run().unwrap();
        assert_eq!((first.segments, first.bytes, first.symbols), (second.segments, second.bytes, second.symbols));
        assert!((symbols..=100).contains(&first.symbols));
        assert_eq!(first.plain_gap_ns.len() + first.boundary_gap_ns.len(), first.symbols);
        // The gaps of a row do not overlap.
        let gaps: f64 = first.plain_gap_ns.iter().chain(&first.boundary_gap_ns).sum();
        assert!(gaps <= 2.0 * first.step_ns.iter().sum::<f64>() * 1.000_001 && first.middle_steps <= 50);
    }
    let plan = decode::DecodePlan { batch: 2, context: 33, steps: 50, boundary_wait: 2, threshold: None };
    let mut decoding = decode::DecodeBench::start(&*model, &sample, plan).unwrap();
    let first = decoding.run().unwrap();
    let entry = decode::DecodeMeasurement::new(&decoding, first, &machine).unwrap();
    assert_eq!((entry.measured.threads, entry.steps, entry.batch), (1, 50, 2));
}

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
fn kernels_are_reported_with_peaks() {
    let measured = if long_runs() { &["f32", "bf16", "int8"][..] } else { &["bf16", "int8"] };
    let args = format!("kernels --json --threads 1 --seconds 0.0001 --megabytes 1 --dtype {}", measured.join(","));
    let entries = json(&args, &[]);
    let entries_of = |kernel: &str| entries.iter().filter(|entry| entry["kernel"] == *kernel).collect::<Vec<_>>();
    let names = ["matrix", "matrix+gelu", "attention", "attention+distances", "norm", "dispatch"];
    // Each dtype has four shapes, cold and hot, with six row counts.
    let count = measured.len();
    assert_eq!(
        names.map(|kernel| entries_of(kernel).len()),
        [count * 4 * 2 * 6, count * 6, count * 3, count * 3, 2, 1]
    );
    let mut dtypes: Vec<_> = entries.iter().filter_map(|entry| entry["dtype"].as_str()).collect();
    dtypes.dedup();
    assert_eq!(dtypes, measured.repeat(2));
    for entry in &entries {
        increase(entry, ["ns_p10", "ns_p50", "ns_p90"]);
    }
    for entry in names[..4].iter().flat_map(|kernel| entries_of(kernel)) {
        assert!(equal(number(entry, "gflops") * number(entry, "ns_p50"), operations(entry)), "{entry}");
        let achieved = number(entry, "bytes") / number(entry, "ns_p50") * 1e9;
        assert!(equal(achieved, number(entry, "bytes_per_second")));
        assert!(number(entry, "ceiling_bytes_per_second") > 0.0);
        // int8 products have no float peak to compare with; int8 attention reads bytes but multiplies floats.
        let bytes = entry["dtype"] == "int8" && entry["kernel"].as_str().unwrap().starts_with("matrix");
        assert_eq!(entry["peak_gflops"].as_f64().is_some_and(|peak| peak > 0.0), !bytes, "{entry}");
    }
}

#[test]
fn the_table_explains_why_int8_has_no_peak() {
    let args = "kernels --threads 1 --seconds 0.0001 --megabytes 1 --dtype";
    let table = |dtype| bench(&format!("{args} {dtype}"), &[]).unwrap();
    let has_peak = |text: &str, kernel| !text.lines().find(|line| line.starts_with(kernel)).unwrap().ends_with("  -");
    let bytes = table("int8");
    assert!(!has_peak(&bytes, "matrix ") && bytes.lines().last().unwrap().contains("no peak"), "{bytes}");
    assert!(has_peak(&bytes, "attention "), "{bytes}");
    if long_runs() {
        let floats = table("f32");
        assert!(has_peak(&floats, "matrix ") && !floats.contains("no peak"), "{floats}");
    }
}

#[test]
fn every_combination_of_dtypes_and_threads_is_measured() {
    let args = "decode --json --dtype int8,bf16 --threads 1,2 --batch 1,2 --steps 4 --context 8 --model";
    let entries = json(args, &[&converted("whitespaces")]);
    for (entries, dtype) in entries.chunks(4).zip(["int8", "bf16"]) {
        let combinations: Vec<_> = entries.iter().map(|entry| numbers(entry, ["threads", "batch"])).collect();
        assert_eq!(combinations, [[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [2.0, 2.0]]);
        assert!(entries.iter().all(|entry| entry["dtype"] == dtype));
    }
    assert_eq!(entries.len(), 8);
    let args = "prefill --json --threads 2,1 --symbols 20 --runs 1 --model";
    let entries = json(args, &[&converted("vanilla")]);
    assert_eq!(entries.iter().map(|entry| number(entry, "threads")).collect::<Vec<_>>(), [2.0, 1.0]);
}

#[test]
fn every_instruction_set_can_be_measured_and_another_is_refused() {
    let model = converted("whitespaces");
    for isa in Isa::all().iter().map(|isa| isa.name()) {
        let args = format!("decode --json --isa {isa} --steps 4 --batch 1 --context 8 --model");
        let entries = json(&args, &[&model]);
        assert!(entries.iter().all(|entry| entry["isa"] == isa) && entries.len() == 1);
        let printed = bench(&format!("prefill --isa {isa} --symbols 8 --runs 1 --model"), &[&model]).unwrap();
        let column = printed.lines().map(|line| line.split_whitespace().nth(3));
        assert_eq!(column.take(2).collect::<Vec<_>>(), [Some("isa"), Some(isa)], "{printed}");
    }
    if long_runs() {
        let entries = json("kernels --json --isa portable --seconds 0.001 --megabytes 1", &[]);
        assert!(entries.iter().all(|entry| entry["isa"] == "portable"));
    }
    refused("decode --isa sse9 --model", &[&model], "this processor supports");
}

#[test]
fn options_out_of_bounds_are_named_with_the_bound() {
    let model = fixture("whitespaces");
    let limit = model.card().max_symbols;
    let over = limit + 1;
    let refusal = |result: Result<()>| result.err().map(|e| e.to_string()).unwrap_or_default();
    for (context, steps, expected) in [
        (limit - 1, 1, String::new()),
        (0, limit, String::new()),
        (limit, 1, format!("--context: expected at most {} symbols, found {limit}", limit - 1)),
        (limit - 4, 5, format!("--context and --steps together: expected at most {limit} symbols, found {over}")),
    ] {
        let plan = decode::DecodePlan { batch: 1, context, steps, boundary_wait: 64, threshold: None };
        assert_eq!(refusal(plan.check(model.card())), expected);
    }
    for (symbols, chunk, expected) in [
        (limit, limit, String::new()),
        (0, 1, format!("--symbols: expected 1 to {limit}, found 0")),
        (over, 1, format!("--symbols: expected at most {limit} symbols, found {over}")),
        (1, 0, format!("--chunk: expected 1 to {limit}, found 0")),
    ] {
        let plan = prefill::PrefillPlan { symbols, chunk, runs: 1 };
        assert_eq!(refusal(plan.check(model.card())), expected);
    }
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

#[test]
fn control_characters_in_names_are_replaced() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("m\u{1b}[2J\u{7}");
    fs::create_dir(&model).unwrap();
    for file in converted("vanilla").read_dir().unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let measured = bench("decode --context 4 --steps 2 --model", &[&model]).unwrap();
    assert!(measured.contains("\nm\u{fffd}[2J\u{fffd}  "), "{measured:?}");
    fs::remove_file(model.join("config.json")).unwrap();
    refused("decode --model", &[&model], "m\u{fffd}[2J\u{fffd}");
}

#[test]
fn prefill_reports_speed_and_peak() {
    let args = "prefill --json --symbols 50,70 --chunk 32 --runs 3 --threads 2 --dtype f32,int8 --model";
    let entries = json(args, &[&converted("whitespaces")]);
    let plans: Vec<_> = entries.iter().map(|e| (e["dtype"].as_str().unwrap(), number(e, "symbols"))).collect();
    assert_eq!(plans, [("f32", 50.0), ("f32", 70.0), ("int8", 50.0), ("int8", 70.0)]);
    for entry in &entries {
        increase(entry, ["run_ns_p10", "run_ns_p50", "run_ns_p90"]);
        let speed = number(entry, "symbols_per_second");
        assert!(equal(speed * number(entry, "run_ns_p50"), number(entry, "symbols") * 1e9));
        assert!(number(entry, "shortening_factor") > 1.0 && number(entry, "gflops") > 0.0);
        // The products of int8 have no float peak.
        assert_eq!(entry["peak_gflops"].as_f64().is_some_and(|peak| peak > 0.0), entry["dtype"] == "f32");
    }
}
