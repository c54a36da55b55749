//! Conversion from Hugging Face's layout: tokenizers, defaults, storage, and what is refused.

use super::*;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::{
    decode::search_rules::EarlyStopping,
    family::{
        convert::{Source, convert},
        load::load,
    },
    text::{StreamTokenizer, Vocabulary},
};

fn cases(name: &str) -> Value {
    serde_json::from_slice(&fs::read(t5_golden(name).join("tokenizer_cases.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Encodes a text that arrives in chunks of `size` characters.
fn streamed(vocabulary: &Arc<Vocabulary>, text: &str, size: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut reading = StreamTokenizer::new(vocabulary.clone(), "document", 1000);
    let characters: Vec<char> = text.chars().collect();
    for chunk in characters.chunks(size) {
        reading.push(&chunk.iter().collect::<String>(), &mut tokens).unwrap();
    }
    reading.finish(&mut tokens).unwrap();
    tokens.iter().map(|token| token.id).collect()
}

#[test]
fn tokenizers_agree_with_the_golden_cases() {
    // the same pieces from tokenizer.json and from spiece.model
    for (model, file) in [("t5_v10", "t5_v10"), ("t5_v11", "t5_v10"), ("byt5", "byt5")] {
        let vocabulary = t5_in(model, Dtype::F32).card().vocabulary.clone();
        let mut compared = 0;
        let file = cases(file);
        for case in file["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let mut expected = ids(&case["ids"]);
            assert_eq!(vocabulary.decode(&expected), case["decoded"].as_str().unwrap(), "{model}: {text:?}");
            assert_eq!(expected.pop(), Some(1));
            // text that spells out a special token stays text here
            if ["<pad>", "</s>", "<unk>", "<extra_id_"].iter().any(|special| text.contains(special)) {
                continue;
            }
            for size in [1, 5, 1000] {
                assert_eq!(streamed(&vocabulary, text, size), expected, "{model}: {text:?} in chunks of {size}");
            }
            compared += 1;
        }
        for case in file["decode_only"].as_array().into_iter().flatten() {
            assert_eq!(vocabulary.decode(&ids(&case["ids"])), case["decoded"].as_str().unwrap(), "{model}: {case}");
        }
        assert!(compared > 3, "{model}: {compared}");
    }
}

#[test]
fn the_prefix_precedes_a_text_and_has_no_bytes() {
    let model = t5_in("t5_v10", Dtype::F32);
    let vocabulary = model.card().vocabulary.clone();
    let mut tokens = Vec::new();
    let mut reading = encoder(&*model).limits().tokenizer(vocabulary, "document");
    reading.push("also known", &mut tokens).unwrap();
    reading.finish(&mut tokens).unwrap();
    let golden = Golden::open(&t5_golden("t5_v10"));
    let mut read: Vec<u32> = tokens.iter().map(|token| token.id).collect();
    read.push(1);
    assert_eq!(read, golden.ids("s0.ids"));
    assert_eq!((tokens[0].start, tokens[0].end), (0, 0));
    assert_eq!((tokens.last().unwrap().end, reading.bytes()), (10, 10));
}

#[test]
fn generation_settings_become_defaults() {
    let generation = encoder(&*t5_in("t5_v10", Dtype::F32)).limits().generation.clone();
    assert_eq!((generation.beam, generation.length_penalty, generation.no_repeat_ngram), (4, 2.0, 3));
    // max_length and min_length count the start symbol
    assert_eq!((generation.min_tokens, generation.max_tokens), (29, 199));
    assert_eq!((generation.early_stopping, generation.prefix.as_str()), (EarlyStopping::True, "summarize: "));
    let generation = encoder(&*t5_in("byt5", Dtype::F32)).limits().generation.clone();
    assert_eq!((generation.beam, generation.max_tokens), (1, 20));
    assert_eq!((generation.early_stopping, generation.prefix.as_str()), (EarlyStopping::Never, ""));
    // the minimum in one file, the maximum in the other
    let split = changed("t5_v11", |config| config["min_length"] = json!(30));
    fs::write(split.path().join("generation_config.json"), json!({ "max_length": 200 }).to_string()).unwrap();
    let model = load(split.path(), &settings()).unwrap();
    let generation = &encoder(&*model).limits().generation;
    assert_eq!((generation.min_tokens, generation.max_tokens), (29, 199));
}

/// Two keys win over `feed_forward_proj`, as in transformers.
#[test]
fn the_nonlinearity_may_have_its_own_keys() {
    let architecture = |keys: &[(&str, Value)]| {
        let source = changed("t5_v11", |config| {
            keys.iter().for_each(|(key, value)| config[key] = value.clone());
        });
        let dest = TempDir::new().unwrap();
        convert(Source::T5, source.path(), dest.path(), false).unwrap();
        let config = fs::read(dest.path().join("config.json")).unwrap();
        serde_json::from_slice::<Value>(&config).unwrap()["architecture"].clone()
    };
    let [derived, stated, exact] = [
        architecture(&[]),
        architecture(&[
            ("feed_forward_proj", json!("relu")),
            ("dense_act_fn", json!("gelu_new")),
            ("is_gated_act", json!(true)),
        ]),
        architecture(&[("dense_act_fn", json!("gelu"))]),
    ];
    assert_eq!((&derived["activation"], &derived["gated"]), (&json!("gelu-tanh"), &json!(true)));
    assert_eq!(stated, derived);
    assert_eq!(exact["activation"], "gelu");
}

/// Copies a fixture and changes its `config.json`.
pub(super) fn changed(case: &str, change: impl Fn(&mut Value)) -> TempDir {
    let dir = TempDir::new().unwrap();
    for entry in fs::read_dir(t5_golden(case)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let file = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut config);
    fs::write(file, config.to_string()).unwrap();
    dir
}

fn error(source: Source, from: &Path) -> String {
    let dest = TempDir::new().unwrap();
    convert(source, from, &dest.path().join("model"), false).unwrap_err().to_string()
}

#[test]
fn what_is_not_of_the_family_is_refused_by_its_key() {
    let with = |case: &str, key: &str, value: Value| changed(case, |config| config[key] = value.clone());
    for (case, key, value, expected) in [
        ("t5_v11", "model_type", json!("umt5"), "model_type: expected one of t5, mt5, longt5"),
        ("t5_v11", "feed_forward_proj", json!("gated-tanh"), "feed_forward_proj: expected relu, gelu"),
        (
            "t5_v11",
            "dense_act_fn",
            json!("tanh"),
            "dense_act_fn: expected relu, gelu, gelu_new, gelu_pytorch_tanh, silu or swish, found",
        ),
        ("longt5_local", "encoder_attention_type", json!("sparse"), "encoder_attention_type: expected local or"),
        ("t5_v11", "eos_token_id", json!(2), "eos_token_id: expected 1"),
        ("t5_v11", "vocab_size", json!(600), "expected at most 600 ids (vocab_size), found 640"),
        ("t5_v11", "d_ff", json!(32), "shape"),
        ("t5_v11", "suppress_tokens", json!([3]), "suppress_tokens: expected nothing (weir has no such setting)"),
        (
            "t5_v11",
            "encoder_repetition_penalty",
            json!(1.5),
            "encoder_repetition_penalty: expected 1 or nothing (weir has no such setting)",
        ),
        (
            "t5_v11",
            "exponential_decay_length_penalty",
            json!([9, 1.5]),
            "exponential_decay_length_penalty: expected nothing (weir has no such setting)",
        ),
        (
            "t5_v11",
            "no_repeat_ngram_size",
            json!(1),
            "no_repeat_ngram: expected 0 to disable the rule, or 2 to 64, found 1",
        ),
        ("t5_v11", "num_beam_groups", json!(2), "num_beam_groups: expected 1 or nothing (weir has no such setting)"),
        ("t5_v11", "tie_word_embeddings", json!(true), "lm_head.weight: expected the numbers of shared.weight"),
    ] {
        let message = error(Source::T5, with(case, key, value).path());
        assert!(message.contains(expected), "{key}: {message}");
    }
    for (key, value, expected) in [
        ("deletion_type", json!("random"), "deletion_type: expected scaled_sigmoid or log_sigmoid"),
        ("deletion_threshold", Value::Null, "deletion_threshold: expected a number, found nothing"),
        ("has_absolute_position_embeddings", json!(true), "has_absolute_position_embeddings: expected false"),
        ("delete_gate_layer", json!(9), "deletion.layer: expected 0 to 4"),
        ("model_type", json!("t5"), "--from t5 reads"),
    ] {
        let message = error(Source::MrT5, with("mrt5", key, value).path());
        assert!(message.contains(expected), "{key}: {message}");
    }
}

#[test]
fn defaults_of_version_5_decide_the_scale_of_the_head() {
    let dest = TempDir::new().unwrap();
    let folder = dest.path().join("model");
    // mT5 has no such key: it never scales
    for (key, value) in [("scale_decoder_outputs", json!(false)), ("model_type", json!("mt5"))] {
        let source = changed("t5_v11", |config| {
            config["tie_word_embeddings"] = json!(true);
            config["transformers_version"] = json!("5.24.0");
            config[key] = value.clone();
        });
        convert(Source::T5, source.path(), &folder, true).unwrap();
        let model = load(&folder, &settings()).unwrap();
        let golden = Golden::open(&t5_golden("t5_v11"));
        let mut scratch = model.scratch();
        let document = encode(&*model, &golden.ids("s0.ids"), &mut scratch);
        let logits = forced(&*model, &*document, &golden.ids("s0.dec_ids"), &mut scratch);
        assert!(difference(&logits, golden.get("s0.logits")) <= 5e-5, "{key}");
    }
}
