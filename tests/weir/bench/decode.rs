//! `bench decode` and `bench compare`: output keys, counts and costs of the rounds.

use super::{bench, equal, json, keys, number};
use crate::{
    hourglass::folder,
    support::{converted, fixture, settings},
};
use serde_json::Value;
use weir::{
    decode::{boundary_wait::BOUNDARY_WAIT, contract::Model, cost::Cost},
    family::load::load,
    kernels::{Compute, Isa, ThreadPool},
    report::{decode, machine::Machine, sample::Sample},
};

/// First keys of each entry, in order. Other programs rely on them.
const PROMISED: [&str; 13] = [
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
const OPTIONS: [&str; 6] = ["--context", "40", "--steps", "30", "--threads", "2"];

fn check_entry(entry: &Value, model: &dyn Model, batch: usize, wait: usize) {
    assert_eq!(keys(entry)[..PROMISED.len()], PROMISED);
    assert_eq!((&entry["family"], &entry["dtype"]), (&"hourglass".into(), &"f32".into()));
    assert_eq!(entry["model"], *model.card().name);
    let expected = Expected::simulate(model, batch, wait);
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
fn compare_prints_both_models_and_their_ratio() {
    let args = [&["compare", "--json", "--pairs", "4"], &OPTIONS[..]].concat();
    let entries = json(&args, &[converted("whitespaces"), converted("vanilla")]);
    assert_eq!(entries.len(), 1);
    assert_eq!(keys(&entries[0]), ["batch", "context", "boundary_wait", "pairs", "a", "b", "ratio"]);
    assert_eq!(keys(&entries[0]["ratio"]), ["median", "p10", "p90"]);
    let [median, p10, p90] = ["median", "p10", "p90"].map(|key| number(&entries[0]["ratio"], key));
    assert!(0.0 < p10 && p10 <= median && median <= p90);
    for (key, case) in [("a", "whitespaces"), ("b", "vanilla")] {
        let mut entry = entries[0][key].clone();
        assert_eq!(number(&entry, "steps") as usize, 4 * STEPS);
        // Every run feeds the same text, so bytes per symbol equal those of one run.
        entry["steps"] = STEPS.into();
        entry["middle_steps"] = (number(&entry, "middle_steps") as usize / 4).into();
        check_entry(&entry, &*fixture(case), 1, BOUNDARY_WAIT);
    }
}

#[test]
fn letters_outside_the_vocabulary_are_reported() {
    let args = [&["decode", "--json"], &OPTIONS[..], &["--model"]].concat();
    let entries = json(&args, &[folder("odd-shape").to_path_buf()]);
    let sample = Sample::new(&load(folder("odd-shape"), &settings()).unwrap().card().vocabulary);
    assert!(sample.foreign > sample.len() / 2);
    assert_eq!(number(&entries[0], "foreign_letters") as usize, sample.foreign);
    let args = [&["decode"], &OPTIONS[..], &["--model"]].concat();
    let output = bench(&args, &[folder("odd-shape").to_path_buf()]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("its vocabulary lacks"));
}

#[test]
fn the_default_output_is_a_table() {
    let args = [&["decode", "--batch", "2"], &OPTIONS[..], &["--model"]].concat();
    let output = bench(&args, &[converted("whitespaces")]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("chars/s") && lines[1].starts_with("whitespaces"), "{text}");
}

#[test]
fn a_run_leaves_the_rows_as_they_were() {
    let model = fixture("gumbel");
    let machine = Machine { compute: Compute { isa: Isa::detect(), pool: ThreadPool::new(1).into() } };
    let sample = Sample::new(&model.card().vocabulary);
    for (boundary_wait, symbols) in [(0, 100), (3, 50)] {
        let plan = decode::DecodePlan { batch: 2, context: 33, steps: 50, boundary_wait };
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
    let plan = decode::DecodePlan { batch: 2, context: 33, steps: 50, boundary_wait: 2 };
    let mut decoding = decode::DecodeBench::start(&*model, &sample, plan).unwrap();
    let first = decoding.run().unwrap();
    let entry = decode::DecodeMeasurement::new(&decoding, first, &machine).unwrap();
    assert_eq!((entry.measured.threads, entry.steps, entry.batch), (1, 50, 2));
}
