//! `weir verify` on models of tokens, and what its second implementation does not compute.

use super::*;
use crate::verify::{changed_copy, run};
use serde_json::Value;
use weir::verify::{LengthLimit, load::load as reference};

#[test]
fn the_command_verifies_each_architecture() {
    for model_type in MODEL_TYPES {
        let folder = folder(model_type);
        let (code, out, error) = run(&["--model", folder.to_str().unwrap()]);
        // A window of 16 tokens limits the sample.
        let tokens = if model_type == "gemma2" { 16 } else { 160 };
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        assert!(
            out.starts_with(&format!("{model_type}: hugging-face, f32, {tokens} symbols\nbits per token ")),
            "{out}"
        );
        assert!(out.ends_with("verified\n"), "{out}");
    }
    let folder = folder("gemma2");
    let ids = ["7"; 17].join(",");
    let (code, out, error) = run(&["--model", folder.to_str().unwrap(), "--ids", &ids]);
    let expected = "--ids: expected at most 16 symbols (candle-transformers and transformers compute longer texts \
                    differently), found 17";
    assert!(code == 1 && out.is_empty() && error.contains(expected), "{error}");
}

/// Both layouts of positions, Llama 3's scaling, an untied Mamba, and shards.
#[test]
fn other_layouts_are_verified() {
    let verified = |copy: &Path, why: &str| {
        let (code, out, error) = run(&["--model", copy.to_str().unwrap(), "--json"]);
        let json: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{why}: {error}"));
        assert_eq!((code, &json["ok"], &json["symbols"]), (0, &true.into(), &160.into()), "{why}: {out}{error}");
    };
    let llama3 = r#""rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, "rope_scaling": null"#;
    let older = r#""rope_theta": 300.0, "rope_scaling": null"#;
    for (model_type, positions) in [("llama", llama3), ("llama", older), ("qwen2", older), ("qwen3", older)] {
        let copy = copied(model_type);
        let file = copy.path().join("config.json");
        let mut keys: serde_json::Map<String, Value> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        keys.remove("rope_parameters");
        let changed: serde_json::Map<String, Value> = serde_json::from_str(&format!("{{{positions}}}")).unwrap();
        keys.extend(changed);
        fs::write(&file, Value::from(keys).to_string()).unwrap();
        golden::shard(copy.path());
        verified(copy.path(), model_type);
    }
    let untied = changed_copy(&folder("mamba"), |tensors| {
        let (dtype, shape, data) = tensors["backbone.embeddings.weight"].clone();
        // The rows of the embedding in reverse order.
        let rows: Vec<u8> = data.chunks_exact(4 * shape[1]).rev().flatten().copied().collect();
        tensors.insert("lm_head.weight".into(), (dtype, shape, rows));
    });
    edit(&untied.path().join("config.json"), r#""tie_word_embeddings": true"#, r#""tie_word_embeddings": false"#);
    verified(untied.path(), "untied mamba");
}

/// The recurrence of Mamba compares no pairs of symbols.
#[test]
fn the_limit_of_a_text_has_the_reason_of_its_architecture() {
    let limit = |model_type: &str| reference(&folder(model_type).as_path().into()).unwrap().limit();
    assert_eq!(limit("llama"), LengthLimit::PAIRS);
    let why = "the reference implementation has the vectors of all symbols in memory";
    assert_eq!(limit("mamba"), LengthLimit { symbols: 4096, why });
}

/// Each refusal names the key, the value that the second implementation computes, and the value found.
#[test]
fn what_the_second_implementation_does_not_compute_is_refused() {
    let refused = |model_type: &str, from: &str, to: &str| {
        let copy = copied(model_type);
        edit(&copy.path().join("config.json"), from, to);
        let error = reference(&copy.path().into()).err().expect("it is refused").to_string();
        error.replace(&format!("{}/", copy.path().display()), "")
    };
    let only = "(candle-transformers, the reference, computes no other)";
    for (model_type, from, to, expected) in [
        (
            "llama",
            r#""attention_bias": false"#,
            r#""attention_bias": true"#,
            "attention_bias: expected false ONLY, found true",
        ),
        ("llama", r#""head_dim": 12"#, r#""head_dim": 16"#, "head_dim: expected 12 ONLY, found 16"),
        (
            "llama",
            r#""hidden_act": "silu""#,
            r#""hidden_act": "gelu_new""#,
            "hidden_act: expected silu ONLY, found gelu_new",
        ),
        (
            "llama",
            r#""rope_type": "default""#,
            r#""rope_type": "linear""#,
            "rope_type: expected default or llama3, the only ones that the reference, candle-transformers, computes, found linear",
        ),
        (
            "qwen2",
            r#""rope_type": "default""#,
            r#""rope_type": "linear""#,
            "rope_type: expected default ONLY, found linear",
        ),
        (
            "gemma2",
            r#""query_pre_attn_scalar": 16"#,
            r#""query_pre_attn_scalar": 24"#,
            "query_pre_attn_scalar: expected 16 ONLY, found 24",
        ),
        (
            "gpt_bigcode",
            r#""tie_word_embeddings": true"#,
            r#""tie_word_embeddings": false"#,
            "tie_word_embeddings: expected true ONLY, found false",
        ),
    ] {
        assert_eq!(refused(model_type, from, to), format!("config.json: {}", expected.replace("ONLY", only)));
    }
}
