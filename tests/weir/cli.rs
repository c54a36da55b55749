//! The commands of the program: accepted and refused arguments, and their output.

use super::support::{converted, settings};
use safetensors::SafeTensors;
use serde_json::Value;
use std::{fs, process::Command};
use tempfile::TempDir;
use weir::family::load::{Settings, load};

/// Runs a command. Returns stdout if it succeeds, otherwise stderr.
pub(super) fn weir(environment: &[(&str, &str)], args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.args(args).env_clear().envs(environment.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

pub(super) fn json(args: &[&str]) -> Value {
    serde_json::from_str(&weir(&[], args).unwrap()).unwrap()
}

fn model(case: &str) -> String {
    converted(case).to_str().unwrap().to_owned()
}

/// Returns `count` symbol ids; every sixth is a space.
fn ids(count: usize) -> String {
    (0..count)
        .map(|position| if position % 6 == 5 { "0".into() } else { (1 + position * 7 % 26).to_string() })
        .collect::<Vec<_>>()
        .join(",")
}

#[test]
fn segment_needs_a_model_that_pools() {
    let error = weir(&[], &["segment", "--model", &model("vanilla"), "--text", "a b"]).unwrap_err();
    assert!(error.contains("--model: expected one that pools its input (for `weir segment`), found "), "{error}");
    let args = ["segment", "--model", &model("whitespaces"), "--max-symbols", "10", "--ids", &ids(11)];
    let error = weir(&[], &args).unwrap_err();
    assert!(error.contains("--ids: expected at most 10 characters, found 11"), "{error}");
    let output = json(&["segment", "--json", "--model", &model("whitespaces"), "--text", "ab c"]);
    assert_eq!((&output["closed"], &output["segments"][1]["text"]), (&1.into(), &"c".into()));
}

#[test]
fn generation_stops_at_the_symbol_limit() {
    let generated = |prompt: usize| {
        let model = model("whitespaces");
        let output = json(&["generate", "--json", "--model", &model, "--max-symbols", "40", "--ids", &ids(prompt)]);
        (output["usage"]["generated_chars"].as_u64().unwrap(), output["reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(generated(30), (10, "max_chars".into()));
    assert_eq!(generated(39), (1, "max_chars".into()));
    assert_eq!(generated(40), (0, "max_context".into()));
}

#[test]
fn notes_report_what_the_model_does_not_read_as_given() {
    let notes = |prompt: &str, stop: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let model = model("whitespaces");
        command.args(["generate", "--json", "--max-chars", "3", "--model", &model, "--prompt", prompt, "--stop", stop]);
        let output = command.env_clear().output().unwrap();
        let usage = serde_json::from_slice::<Value>(&output.stdout).unwrap()["usage"].clone();
        let printed = String::from_utf8(output.stderr).unwrap();
        // The other line states where the model runs.
        let lines = printed.lines().filter(|line| !line.starts_with("weir: running "));
        (usage["normalized_chars"].as_u64().unwrap(), lines.collect::<Vec<_>>().join("\n"))
    };
    let (changed, note) = notes("The  City", "\n\n");
    assert_eq!(changed, 3);
    for part in ["--prompt: the normaliser text8 changed 3 of 9", "\"the city\"", r#"--stop: "\n\n" never matches"#] {
        assert!(note.contains(part), "{part} is not in {note}");
    }
    assert_eq!(notes("the city", "zq"), (0, String::new()));
}

#[test]
fn windowed_scores_equal_those_of_one_pass() {
    let model = model("fixed_sf3");
    let ids = ids(50);
    let out = TempDir::new().unwrap();
    let file = |name: &str| out.path().join(name).to_str().unwrap().to_owned();
    let score = |more: &[&str]| json(&[&["score", "--json", "--model", &model, "--ids", &ids], more].concat());
    let complete = score(&["--logits", &file("whole")]);
    // One window equals one pass, except that the last symbol is scored but not fed.
    let window = score(&["--windowed", "50,50", "--logits", &file("window")]);
    assert_eq!(complete["logprobs"], window["logprobs"]);
    assert_eq!(complete["boundaries"].as_array().unwrap()[..49], window["boundaries"].as_array().unwrap()[..]);
    let [complete, window] = ["whole", "window"].map(|name| fs::read(file(name)).unwrap());
    let [complete, window] = [&complete, &window].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let [complete, window] = [&complete, &window].map(|tensors| tensors.tensor("logits").unwrap());
    assert_eq!((complete.shape(), window.shape()), (&[50, 27][..], &[49, 27][..]));
    assert_eq!(complete.data()[..window.data().len()], *window.data());
    // With several windows, each symbol except the last is reported once, and fixed boundaries keep their phase in the
    // text.
    let several = score(&["--windowed", "20,7"]);
    let expected: Vec<u8> = (0..49).map(|position| u8::from(position % 3 == 0)).collect();
    assert_eq!(several["boundaries"], serde_json::json!(expected));
    let logprobs: Vec<f64> = serde_json::from_value(several["logprobs"].clone()).unwrap();
    let bits = -logprobs.iter().sum::<f64>() / 49.0 / std::f64::consts::LN_2;
    assert!((bits - several["bits_per_char"].as_f64().unwrap()).abs() < 1e-9);
}

#[test]
fn flags_can_come_from_the_environment() {
    let model = model("whitespaces");
    let environment = [("WEIR_MODEL", &*model), ("WEIR_JSON", "1"), ("WEIR_DTYPE", "bf16")];
    let output: Value = serde_json::from_str(&weir(&environment, &["score", "--text", "a word"]).unwrap()).unwrap();
    assert_eq!(output["symbols"], 6);
}

#[test]
fn memory_too_small_for_the_model_is_refused() {
    let folder = converted("whitespaces");
    let error = load(&folder, &Settings { memory_bytes: 16, ..settings() }).err().unwrap().to_string();
    let start = format!("{}: --kv-memory: expected at least ", folder.display());
    assert!(error.starts_with(&start) && error.ends_with(" bytes, found 16"), "{error}");
}
