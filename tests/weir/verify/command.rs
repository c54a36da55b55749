//! The command `weir verify`.

use super::{changes::scaled_copy, *};
use serde_json::Value;
use std::process::Command;

/// Runs `weir verify`. Returns the exit code, stdout and stderr.
pub(in super::super) fn run(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("verify").args(args).env_clear().output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_prints_the_comparison() {
    let folder = converted("whitespaces");
    let model = folder.to_str().unwrap();
    let (code, out, error) = run(&["--model", model]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("160 symbols\n") && out.contains("boundaries          agree") && out.ends_with("verified\n"),
        "{out}"
    );
    let (code, out, _) = run(&["--model", model, "--ids", "1,2,0,3,4,0,5", "--isa", "portable", "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &json["ok"], &json["boundaries_equal"], &json["segments"]),
        (0, &true.into(), &true.into(), &2.into())
    );
    assert!(
        json["max_rel"].as_f64().unwrap() <= json["tolerance"].as_f64().unwrap() && json["max_abs"].is_number(),
        "{out}"
    );
    assert!(json["first_boundary_difference"].is_null(), "{out}");
    let document = pyramidion_converted("pyramidion");
    let args = ["--model", document.to_str().unwrap(), "--target-ids", "5,6,7", "--json"];
    let (code, out, error) = run(&args);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["symbols"], &json["document_tokens"]), (0, &4.into(), &64.into()), "{error}");
}

/// In int8 some decisions differ within the tolerance.
#[test]
fn the_command_prints_where_decisions_first_differ() {
    let texts = (converted("gumbel"), "boundaries  ", "symbol");
    let documents = (pyramidion_converted("pyramidion"), "kept vectors", "token");
    for (folder, unit, item) in [texts, documents] {
        let args = ["--model", folder.to_str().unwrap(), "--dtype", "int8", "--isa", "portable"];
        let (code, out, error) = run(&[&args[..], &["--json"]].concat());
        let json: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, json["boundary_differences"].as_u64() > Some(0)), (0, true), "{out}{error}");
        let (_, text, _) = run(&args);
        let count = &json["boundary_differences"];
        let expected =
            format!("\n{unit}        {count} differ, the first at {item} {}", json["first_boundary_difference"]);
        assert!(text.contains(&expected), "{expected}: {text}");
    }
}

/// Attention with scores of some thousands loses the differences between keys in f32.
#[test]
fn a_difference_ends_the_command_with_code_1() {
    let folder = scaled_copy(&converted("whitespaces"), "post.0.attention.qkv.weight", 30.0);
    let model = folder.path().to_str().unwrap();
    let (code, out, error) = run(&["--model", model, "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["ok"]), (1, &false.into()));
    let difference = json["first_difference"].as_str().unwrap();
    assert!(error.ends_with(&format!("is not verified: {difference}\n")) && error.starts_with("weir: "), "{error}");
    assert!(difference.contains("symbol "), "{difference}");
    let (code, out, _) = run(&["--model", model]);
    assert_eq!(code, 1);
    assert!(out.ends_with(&format!("not verified: {difference}\n")), "{out}");
}

#[test]
fn inputs_that_cannot_be_verified_are_refused() {
    let folder = converted("vanilla");
    let model = folder.to_str().unwrap();
    let refused = |args: &[&str], why: &str| {
        let (code, out, error) = run(args);
        assert!(code != 0 && out.is_empty() && error.contains(why), "{out}{error}");
    };
    let long = vec!["1"; 4097].join(",");
    refused(&["--model", model, "--ids", &long], "--ids: expected at most 4096 symbols (the reference");
    refused(&["--model", model, "--ids", "99"], "id 99");
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    refused(&["--model", model, "--file", empty.to_str().unwrap()], "--file: expected at least one symbol, found \"\"");
    refused(
        &["--model", model, "--ids", "1,2", "--target-ids", "1"],
        "--model: expected one that reads documents (for --target-ids), found ",
    );
    refused(&["--model", model, "--file", "missing.txt"], "missing.txt");
}
