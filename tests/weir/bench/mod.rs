//! `weir bench`: its output formats and its counts. No test asserts a speed.

mod cost;
mod decode;
mod kernels;
mod options;
mod plots;
mod prefill;
mod speculate;
mod stream;

use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn bench(args: &[&str], dirs: &[PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("bench").args(args).args(dirs).env_clear();
    command.output().unwrap()
}

fn json(args: &[&str], dirs: &[PathBuf]) -> Vec<Value> {
    let output = bench(args, dirs);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn keys(entry: &Value) -> Vec<&str> {
    entry.as_object().unwrap().keys().map(String::as_str).collect()
}

fn number(entry: &Value, key: &str) -> f64 {
    entry[key].as_f64().unwrap_or_else(|| panic!("{key} of {entry}"))
}

/// Returns true if two numbers agree up to the last digits, which decimal output may lose.
fn equal(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-12
}

fn failure(args: &[&str], dirs: &[PathBuf]) -> String {
    let output = bench(args, dirs);
    assert!(!output.status.success() && output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the texts of an SVG picture, which must be well-formed XML.
fn texts(svg: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(svg).unwrap();
    let tree = roxmltree::Document::parse(&text).unwrap();
    let nodes = tree.descendants().filter(|node| node.has_tag_name("text"));
    nodes.filter_map(|node| Some(node.text()?.trim().to_owned())).collect()
}
