//! `weir ngrams`, and generations that draft from the n-grams of their checkpoint.

use super::{
    hostile_checkpoints::entries::SMALL_CONFIG,
    support::{converted, hnet_converted},
};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};
use tempfile::TempDir;

fn weir(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(args).env_clear().output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = weir(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn failure(args: &[&str]) -> String {
    let output = weir(args);
    assert!(!output.status.success() && output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// Copies the files of a checkpoint.
fn copied(from: &Path) -> TempDir {
    let to = TempDir::new().unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

fn english() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/english.txt").to_str().unwrap().to_owned()
}

#[test]
fn a_trained_model_guesses_from_ngrams_and_writes_the_same_text() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    let checkpoint = copied(&shipped);
    let dir = checkpoint.path().to_str().unwrap();
    let generate = |speculate: &str| {
        let args = ["generate", "--json", "--model", dir, "--prompt", "the history of ", "--max-chars", "100"];
        json(&[&args[..], &["--temperature", "0.5", "--seed", "3", "--speculate", speculate]].concat())
    };
    let plain = generate("off");
    let written = json(&["ngrams", "--json", "--slots", "65536", &english(), dir]);
    assert_eq!((written["slots"].as_u64(), written["bytes"].as_u64()), (Some(65536), Some(24 + 8 * 65536)));
    assert!(written["contexts"].as_u64().unwrap() > 500 && written["symbols"].as_u64().unwrap() > 1000, "{written}");
    let drafted = generate("8");
    assert_eq!(drafted["text"], plain["text"]);
    assert_eq!(drafted["boundaries"], plain["boundaries"]);
    let count = |key: &str| drafted["usage"][key].as_u64().unwrap();
    assert!(count("drafted_chars") > count("accepted_chars") && count("accepted_chars") > 5, "{}", drafted["usage"]);
    assert_eq!(plain["usage"]["drafted_chars"], 0);
    let steps = |output: &Value| output["timing"]["steps"].as_u64().unwrap();
    assert_eq!(steps(&drafted) + count("accepted_chars"), steps(&plain));
    let inspected = json(&["inspect", "--json", dir]);
    assert_eq!(inspected["speculates"], true);
}

#[test]
fn errors_name_the_file_and_the_limit() {
    let checkpoint = copied(&converted("vanilla"));
    let dir = checkpoint.path().to_str().unwrap();
    for slots in ["1000", "128", "8388608"] {
        let error = failure(&["ngrams", &english(), dir, "--slots", slots]);
        assert!(error.contains("a power of two from 256 to 4194304"), "{error}");
    }
    let error = failure(&["ngrams", "/nowhere/text", dir]);
    assert!(error.contains("/nowhere/text"), "{error}");
    let text = checkpoint.path().join("latin1.txt");
    fs::write(&text, b"caf\xe9 au lait").unwrap();
    let error = failure(&["ngrams", text.to_str().unwrap(), dir]);
    assert!(error.contains("latin1.txt: expected UTF-8, found other bytes at position 3"), "{error}");
    let other = hnet_converted("one_stage");
    let error = failure(&["ngrams", &english(), other.to_str().unwrap()]);
    assert!(error.contains("a family that speculates"), "{error}");
    // a damaged table is refused when the model is loaded
    fs::write(checkpoint.path().join("ngrams.bin"), [7; 100]).unwrap();
    let error = failure(&["generate", "--model", dir, "--ids", "1,2"]);
    assert!(error.contains("ngrams.bin") && error.contains("a table of n-grams"), "{error}");
}

/// The text is read in blocks of 1 MiB; a position counts from the beginning of the file.
#[test]
fn positions_are_those_of_the_file() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, SMALL_CONFIG.replace("\" \"", "\"\u{20ac}\"")).unwrap();
    let model = folder.path().join("model");
    let dir = model.to_str().unwrap();
    assert!(weir(&["init", "--config", config.to_str().unwrap(), dir]).status.success());
    let text = folder.path().join("text");
    // A character of three bytes lies across the end of the first block.
    let long = "a".repeat((1 << 20) - 1);
    let count = long.len() + 5;
    fs::write(&text, format!("{long}\u{20ac}aaaa\u{e9}")).unwrap();
    let error = failure(&["ngrams", text.to_str().unwrap(), dir]);
    assert!(error.contains(&format!("at character {count}")), "{error}");
    fs::write(&text, [long.as_bytes(), "\u{20ac}".as_bytes(), b"aa\xff"].concat()).unwrap();
    let error = failure(&["ngrams", text.to_str().unwrap(), dir]);
    assert!(error.contains(&format!("found other bytes at position {}", long.len() + 5)), "{error}");
}

#[test]
fn a_text_without_ngrams_is_refused() {
    let checkpoint = copied(&converted("vanilla"));
    let text = checkpoint.path().join("text");
    fs::write(&text, "").unwrap();
    let error = failure(&["ngrams", text.to_str().unwrap(), checkpoint.path().to_str().unwrap()]);
    assert_eq!(error, "weir: TEXT: expected at least one symbol, found \"\"\n");
    fs::write(&text, "ab").unwrap();
    let error = failure(&["ngrams", text.to_str().unwrap(), checkpoint.path().to_str().unwrap()]);
    assert_eq!(error, "weir: TEXT: expected a text in which n-grams repeat, found 2 symbols\n");
    assert!(!checkpoint.path().join("ngrams.bin").exists());
}
