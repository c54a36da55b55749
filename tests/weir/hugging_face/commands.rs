//! The commands on models of tokens: scores per byte and character, and comparisons with a model of characters.

use super::*;
use crate::{process::Server, support::converted};
use serde_json::{Value, json};
use std::process::Command;

fn weir(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(args).env_clear().output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn parsed(args: &[&str]) -> Value {
    serde_json::from_str(&weir(args)).unwrap()
}

#[test]
fn a_score_has_bits_per_byte_character_and_token() {
    let folder = folder("qwen2");
    let folder = folder.to_str().unwrap();
    let text = "Zürich's café, 1.5 million – naïve";
    let score = parsed(&["score", "--json", "--model", folder, "--text", text]);
    let logprobs: Vec<f64> =
        score["logprobs"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    let bits = -logprobs.iter().sum::<f64>() / std::f64::consts::LN_2;
    // the first token is Z, which is not scored
    let per = |key: &str, count: usize| {
        let value = score[key].as_f64().unwrap();
        assert!((value - bits / count as f64).abs() < 1e-9, "{key}: {value}");
    };
    per("bits_per_byte", text.len() - 1);
    per("bits_per_char", text.chars().count() - 1);
    per("bits_per_token", logprobs.len());
    let windowed = parsed(&["score", "--json", "--model", folder, "--text", text, "--windowed", "16,8"]);
    assert!(windowed["bits_per_byte"].as_f64().unwrap() < windowed["bits_per_char"].as_f64().unwrap());
    // in a model of characters a-z both are the same
    let characters = converted("whitespaces");
    let score = parsed(&["score", "--json", "--model", characters.to_str().unwrap(), "--text", "the city"]);
    assert!((score["bits_per_byte"].as_f64().unwrap() - score["bits_per_char"].as_f64().unwrap()).abs() < 1e-9);
}

/// Windows and pieces of each length, in this process and on a server.
#[test]
fn scores_by_length_are_per_character_of_the_text() {
    let folder = folder("qwen2");
    let folder = folder.to_str().unwrap();
    let text = "Zürich's café, 1.5 million – naïve";
    let server = Server::start(&["--threads", "1", "--calibration-milliseconds", "0", "--model", folder]);
    let address = server.address.to_string();
    let score = |source: [&str; 2], size: [&str; 2], more: &[&str]| {
        weir(&[&["score", "--text", text][..], &source, &size, more].concat())
    };
    let close = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4;
    for source in [["--model", folder], ["--server", &address]] {
        let scored: Value = serde_json::from_str(&score(source, ["--lengths", "4,9"], &["--json"])).unwrap();
        let mut cells = Vec::new();
        for entry in scored["lengths"].as_array().unwrap() {
            let bits = entry["bits_per_token"].as_f64().unwrap() * entry["scored"].as_f64().unwrap();
            // The first token is Z, which is not scored.
            for (key, count) in [("bits_per_char", text.chars().count() - 1), ("bits_per_byte", text.len() - 1)] {
                assert!(close(&entry[key], &json!(bits / count as f64)), "{source:?} {key}: {entry}");
            }
            let size = format!("{0},{0}", entry["length"]);
            let windowed: Value = serde_json::from_str(&score(source, ["--windowed", &size], &["--json"])).unwrap();
            for key in ["bits_per_char", "bits_per_byte", "bits_per_token"] {
                assert!(close(&entry[key], &windowed[key]), "{source:?} {key}: {entry} {windowed}");
            }
            assert_eq!(windowed["window_nats_per_token"].as_array().unwrap().len(), windowed["windows"]);
            assert!(windowed.get("window_nats_per_char").is_none(), "{windowed}");
            cells.push(format!("{:.4}", entry["bits_per_char"].as_f64().unwrap()));
        }
        let table = score(source, ["--lengths", "4,9"], &[]);
        let line = table.lines().nth(2).unwrap();
        let found: Vec<&str> = line.split_whitespace().skip(3).collect();
        assert!(line.starts_with("bits per character ") && found == cells, "{table}");
    }
}

#[test]
fn generate_and_score_count_tokens_and_characters() {
    let folder = folder("qwen2");
    let folder = folder.to_str().unwrap();
    let text = "Zürich's café, 1.5 million – naïve";
    let score = parsed(&["score", "--json", "--model", folder, "--text", text]);
    let tokens = score["symbols"].as_u64().unwrap();
    assert_eq!(score["text_chars"], text.chars().count());
    assert!(tokens > 1 && tokens as usize != text.chars().count());
    let windowed = parsed(&["score", "--json", "--model", folder, "--text", text, "--windowed", "16,8"]);
    assert_eq!((&windowed["symbols"], &windowed["text_chars"]), (&score["symbols"], &score["text_chars"]));
    let generate = |source: &[&str]| {
        let options = ["generate", "--json", "--model", folder, "--max-chars", "12", "--ignore-eos"];
        parsed(&[&options[..], source].concat())
    };
    let generated = generate(&["--prompt", text]);
    let usage = &generated["usage"];
    assert_eq!((usage["prompt_chars"].as_u64(), &usage["generated_chars"]), (Some(tokens), &json!(12)));
    assert_eq!(usage["prompt_text_chars"], text.chars().count());
    assert_eq!(usage["generated_text_chars"], generated["text"].as_str().unwrap().chars().count());
    // Ids have the characters of their text.
    let ids = generated["ids"].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(",");
    let usage = &generate(&["--ids", &ids])["usage"];
    assert_eq!(usage["prompt_chars"], 12);
    assert_eq!(usage["prompt_text_chars"], generated["usage"]["generated_text_chars"]);
    // A model of characters counts the same number twice.
    let characters = converted("whitespaces");
    let score = parsed(&["score", "--json", "--model", characters.to_str().unwrap(), "--text", "the city"]);
    assert_eq!((&score["symbols"], &score["text_chars"]), (&json!(8), &json!(8)));
}

#[test]
fn models_of_tokens_and_of_characters_are_compared_per_character() {
    let tokens = folder("llama");
    let characters = converted("whitespaces");
    let folders = [tokens.to_str().unwrap(), characters.to_str().unwrap()];
    let options = ["--pairs", "2", "--context", "16", "--steps", "8", "--batch", "2", "--threads", "1"];
    let table = weir(&[&["bench", "compare"], &options[..], &folders[..]].concat());
    assert!(table.contains(" per character (p10"), "{table}");
    assert!(table.contains("llama: a symbol is a token of "), "{table}");
    let json = parsed(&[&["bench", "compare", "--json"], &options[..], &folders[..]].concat());
    let comparison = if json.is_array() { json[0].clone() } else { json };
    let found = comparison.to_string();
    assert!(found.contains("\"chars_per_symbol\":1.0") && found.contains("\"chars_per_symbol\":"), "{found}");
}

#[test]
fn a_folder_is_inspected_as_it_is() {
    let copy = copied("llama");
    golden::shard(copy.path());
    let inspected = parsed(&["inspect", "--json", copy.path().to_str().unwrap()]);
    assert_eq!((&inspected["family"], &inspected["exactness"]), (&json!("hugging-face"), &json!("within")));
    assert_eq!(
        inspected["vocabulary"],
        json!({ "size": 384, "tokenizer": "tokenizer.json", "start": [], "ends": [0] })
    );
    assert_eq!(inspected["architecture"]["model_type"], "llama");
    // 384 · 48 twice, 2 layers, and the last norm; without the tensor that is not used
    let layer = 48 * 48 * 2 + 24 * 48 * 2 + 3 * 96 * 48 + 2 * 48;
    assert_eq!(inspected["parameters"], json!(2 * 384 * 48 + 2 * layer + 48));
}
