//! Hugging Face folders that are read without conversion: the same model as after one, the commands, and what is refused.

use super::{conversion::changed, *};
use crate::process::Server;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use weir::family::load::{Settings, load};

#[test]
fn a_folder_gives_the_model_of_its_conversion() {
    for case in Case::all() {
        let [direct, converted] =
            [t5_golden(case.name), t5_converted(case.name)].map(|dir| load(&dir, &settings()).unwrap());
        assert_eq!(direct.card().shape, converted.card().shape, "{}", case.name);
        assert_eq!(encoder(&*direct).limits(), encoder(&*converted).limits(), "{}", case.name);
        assert_eq!(direct.card().name, case.name);
        assert_eq!(direct.card().sha256.len(), 64);
        let symbols = case.golden.ids("s0.dec_ids");
        let logits = [&direct, &converted].map(|model| {
            let mut scratch = model.scratch();
            let document = encode(&**model, &case.golden.ids("s0.ids"), &mut scratch);
            forced(&**model, &*document, &symbols, &mut scratch)
        });
        assert!(logits[0] == logits[1], "{}: other logits", case.name);
    }
    let int8 = load(&t5_golden("mrt5"), &Settings { dtype: Dtype::Int8, ..settings() }).unwrap();
    assert_eq!(int8.card().dtype, "int8");
}

#[test]
fn commands_take_a_folder() {
    let folder = t5_golden("t5_v10");
    let folder = folder.to_str().unwrap();
    let contents = parsed(&["inspect", "--json", folder]);
    assert_eq!(contents["family"], "t5");
    let digest = contents["sha256"].as_str().unwrap().to_owned();
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("document");
    fs::write(&file, "also known").unwrap();
    let golden = Golden::open(&t5_golden("t5_v10"));
    let length = golden.ids("s0.beam4_es_never.lengths")[0] as usize;
    let expected: Vec<u32> = golden.row("s0.beam4_es_never.ids", 0)[..length].iter().map(|&id| id as u32).collect();
    let flags = [
        "--beam",
        "4",
        "--max-new-tokens",
        "30",
        "--min-new-tokens",
        "6",
        "--length-penalty",
        "2",
        "--no-repeat-ngram-size",
        "3",
        "--early-stopping",
        "never",
        "--repetition-penalty",
        "1",
    ];
    let summarize = ["summarize", "--json", "--file", file.to_str().unwrap(), "--model"];
    let found = parsed(&[&summarize[..], &[folder], &flags].concat());
    assert_eq!(found["hypotheses"][0]["ids"], json!(expected), "{found}");
    // the same over a server, which serves the folder
    let server = Server::start(&["--threads", "1", "--calibration-milliseconds", "0", "--model", folder]);
    let address = server.address.to_string();
    let served = parsed(&[&summarize[..], &["t5_v10", "--server", &address], &flags].concat());
    assert_eq!(served["hypotheses"][0]["ids"], json!(expected), "{served}");
    let (ok, _, refused) =
        weir(&[&summarize[..], &["t5_v10", "--server", &address, "--repetition-penalty", "0"]].concat());
    assert!(!ok && refused.contains("--repetition-penalty: expected 0.01 to 100, found 0"), "{refused}");
    let (ok, _, refused) = weir(&[&summarize[..], &[folder, "--early-stopping", "sometimes"]].concat());
    assert!(!ok && refused.contains("one of true, false, never"), "{refused}");
    // a digest in a card is compared
    let copy = changed("t5_v10", |_| {});
    let card =
        |sha256: &str| fs::write(copy.path().join("card.json"), json!({ "sha256": sha256 }).to_string()).unwrap();
    card(&digest);
    assert!(load(copy.path(), &Settings { require_sha256: true, ..settings() }).is_ok());
    card(&"0".repeat(64));
    let error = load(copy.path(), &settings()).err().unwrap().to_string();
    assert!(error.contains("sha256"), "{error}");
    let (ok, _, refused) = weir(&["generate", "--model", folder, "--prompt", "a"]);
    assert!(!ok && refused.contains("model: expected one that"), "{refused}");
}

/// The reference reads the same tensors as from a converted checkpoint.
#[cfg(feature = "candle")]
#[test]
fn a_folder_is_verified_without_conversion() {
    for case in ["t5_v10", "longt5_tglobal", "mrt5"] {
        let [direct, converted] = [t5_golden(case), t5_converted(case)].map(|folder| {
            let mut report = parsed(&["verify", "--json", "--model", folder.to_str().unwrap()]);
            report["model"] = Value::Null;
            report
        });
        assert_eq!((&direct["ok"], &direct), (&json!(true), &converted), "{case}");
    }
}

fn message(dir: &Path) -> String {
    load(dir, &settings()).err().expect("the folder is invalid").to_string().replace(&format!("{}/", dir.display()), "")
}

#[test]
fn what_cannot_be_read_is_refused_by_its_key() {
    let with = |case: &str, key: &str, value: Value| changed(case, |config| config[key] = value.clone());
    for (case, key, value, expected) in [
        ("t5_v11", "feed_forward_proj", json!("gated-tanh"), "config.json: feed_forward_proj: expected relu, gelu"),
        (
            "longt5_local",
            "encoder_attention_type",
            json!("sparse"),
            "config.json: encoder_attention_type: expected local or",
        ),
        ("mrt5", "deletion_type", json!("fixed"), "config.json: deletion_type: expected scaled_sigmoid or log_sigmoid"),
        (
            "t5_v11",
            "vocab_size",
            json!(600),
            "spiece.model: the file: expected at most 600 ids (vocab_size), found 640",
        ),
        ("t5_v11", "d_ff", json!(32), "model.safetensors: "),
        ("t5_v11", "tie_word_embeddings", json!(true), "lm_head.weight: expected the numbers of shared.weight"),
    ] {
        let dir = with(case, key, value);
        let message = message(dir.path());
        assert!(message.contains(expected), "{key}: {message}");
    }
    let tables = changed("t5_v11", |config| {
        config["num_heads"] = json!(1024);
        config["relative_attention_max_distance"] = json!(1 << 16);
    });
    let tables = message(tables.path());
    assert!(tables.contains("architecture.max_distance: expected a table of at most 67108864 numbers"), "{tables}");
    #[cfg(feature = "candle")]
    let umt5 = message(with("t5_v11", "model_type", json!("umt5")).path());
    #[cfg(feature = "candle")]
    assert!(umt5.contains("mt5, longt5, mrt5") && umt5.ends_with("of type \"umt5\""), "{umt5}");
}

#[test]
fn sentinels_beyond_the_ids_are_refused() {
    let dir = changed("t5_v11", |_| {});
    for count in [657_u64, 10_000_000_000_000, u64::MAX] {
        fs::write(dir.path().join("tokenizer_config.json"), json!({ "extra_ids": count }).to_string()).unwrap();
        let expected = "tokenizer_config.json: extra_ids: expected at most 656, the number of the model's ids, found ";
        assert_eq!(message(dir.path()), format!("{expected}{count}"));
    }
}

/// transformers ignores this setting of mT5's tokenizer.
#[test]
fn a_sentencepiece_model_may_fall_back_on_bytes() {
    let dir = changed("t5_v11", |_| {});
    let file = dir.path().join("spiece.model");
    let mut bytes = fs::read(&file).unwrap();
    let byte_fallback = [0x12, 3, 0x98, 2, 1]; // trainer_spec { byte_fallback: true }
    bytes.extend(byte_fallback);
    fs::write(&file, bytes).unwrap();
    let [plain, changed] = [t5_golden("t5_v11"), dir.path().to_owned()].map(|dir| load(&dir, &settings()).unwrap());
    let text = "A café, 3 words \u{1f600}.";
    let [plain, changed] = [plain, changed].map(|model| model.card().vocabulary.encode("text", text, 100).unwrap());
    assert_eq!(plain, changed);
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused() {
    let dir = changed("t5_v11", |_| {});
    let rename = |from: &str, to: &str| fs::rename(dir.path().join(from), dir.path().join(to)).unwrap();
    for name in ["spiece.model", "generation_config.json", "model.safetensors", "config.json"] {
        let outside: PathBuf = t5_golden("t5_v11").join(name);
        let kept = dir.path().join("kept");
        rename(name, "kept");
        std::os::unix::fs::symlink(&outside, dir.path().join(name)).unwrap();
        let found = message(dir.path());
        assert!(found.contains("a link out of it") || found.contains("regular file"), "{name}: {found}");
        fs::remove_file(dir.path().join(name)).unwrap();
        fs::rename(kept, dir.path().join(name)).unwrap();
    }
}
