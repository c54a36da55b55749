//! Folders that cannot be served: each error names file, key, expected and found value.

use super::*;
use weir::family::settings::{DeviceChoice, Settings};
use weir::kernels::Dtype;

fn message(dir: &Path, settings: &Settings) -> String {
    let error = load(dir, settings).err().expect("the folder is invalid").to_string();
    error.replace(&format!("{}/", dir.display()), "")
}

/// Returns the error after one change of one file.
fn after(model_type: &str, file: &str, from: &str, to: &str) -> String {
    let copy = copied(model_type);
    edit(&copy.path().join(file), from, to);
    message(copy.path(), &settings())
}

#[test]
fn a_key_of_the_configuration_is_named() {
    let config = |model_type: &str, from: &str, to: &str| after(model_type, "config.json", from, to);
    for (actual, expected) in [
        (
            config("llama", r#""model_type": "llama""#, r#""model_type": "falcon""#),
            "config.json: model_type: expected one of llama, qwen2, qwen3, gemma2, gpt_bigcode, mamba, t5, mt5, longt5, mrt5, \
             which weir reads as they are, or gpt2, which `weir convert` reads (docs/hugging-face.md), found a Hugging Face model of \
             type \"falcon\"",
        ),
        (
            config("llama", r#""hidden_size": 48"#, r#""hidden_size": "x""#),
            "config.json: hidden_size: expected a whole number of at least 0, found \"x\"",
        ),
        (
            config("llama", r#""rms_norm_eps": 1e-06,"#, ""),
            "config.json: rms_norm_eps: expected a value, found nothing",
        ),
        (
            config("llama", r#""num_key_value_heads": 2"#, r#""num_key_value_heads": 3"#),
            "config.json: num_key_value_heads: expected a divisor of num_attention_heads, 4, found 3",
        ),
        (
            config("llama", r#""use_cache": true"#, r#""quantization_config": {"quant_method": "gptq", "bits": 4}"#),
            "config.json: quantization_config: expected nothing: weights in f32, f16 or bf16, found gptq",
        ),
        (
            config("gemma2", r#""sliding_attention""#, r#""chunked_attention""#),
            "config.json: layer_types[0]: expected full_attention or sliding_attention, found chunked_attention",
        ),
        (
            config("gpt_bigcode", r#""n_embd": 48"#, r#""n_embd": 9223372036854775807"#),
            "config.json: n_embd: expected 1 to 4194304, found 9223372036854775807",
        ),
        (
            config("gpt_bigcode", r#""multi_query": true"#, r#""multi_query": false"#),
            "config.json: multi_query: expected true, the only one that weir computes, found false",
        ),
        (
            config("mamba", r#""conv_kernel": 4"#, r#""conv_kernel": 1"#),
            "config.json: conv_kernel: expected at least 2, found 1",
        ),
        (
            config("llama", r#""vocab_size": 384"#, r#""vocab_size": 300"#),
            "config.json: vocab_size: expected 384 to 1114112, at least the number of the tokenizer's pieces, found 300",
        ),
        (
            after("llama", "generation_config.json", r#""eos_token_id": 0"#, r#""eos_token_id": 400"#),
            "config.json: eos_token_id: expected an id below vocab_size, 384, found 400",
        ),
        (
            after("llama", "generation_config.json", r#""use_cache": true"#, r#""temperature": -1.0"#),
            "generation_config.json: temperature: expected 0 to 100, found -1",
        ),
    ] {
        assert_eq!(actual, expected);
    }
}

#[test]
fn a_wrong_tensor_or_file_is_named() {
    let shape = after("llama", "config.json", r#""intermediate_size": 96"#, r#""intermediate_size": 95"#);
    assert!(
        shape.starts_with("model.safetensors: model.layers.0.mlp.")
            && shape.contains("expected shape [")
            && shape.contains("found shape ["),
        "{shape}"
    );
    let missing = after("llama", "config.json", r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 3"#);
    assert!(
        missing.starts_with("model.safetensors: model.layers.2.")
            && missing.contains(": expected a tensor, found none"),
        "{missing}"
    );
    let superfluous = after("llama", "config.json", r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 1"#);
    assert!(
        superfluous.contains("model.layers.1.") && superfluous.contains("expected no tensor of this name"),
        "{superfluous}"
    );
    let untied = after("qwen2", "config.json", r#""tie_word_embeddings": true"#, r#""tie_word_embeddings": false"#);
    assert_eq!(untied, "model.safetensors: lm_head.weight: expected a tensor, found none");
    let copy = copied("llama");
    golden::shard(copy.path());
    fs::remove_file(copy.path().join("model-00002-of-00002.safetensors")).unwrap();
    let shard = message(copy.path(), &settings());
    assert!(
        shard.starts_with("model.safetensors.index.json: weight_map.")
            && shard.ends_with(r#"expected a file that the folder has, found "model-00002-of-00002.safetensors""#),
        "{shard}"
    );
    let copy = copied("llama");
    fs::remove_file(copy.path().join("tokenizer.json")).unwrap();
    let tokenizer = message(copy.path(), &settings());
    assert!(
        tokenizer.starts_with(
            "tokenizer.json: the file: expected a tokenizer in Hugging Face's format, found no file; the folder has "
        ),
        "{tokenizer}"
    );
}

#[test]
fn settings_that_do_not_suit_the_model_are_rejected() {
    let folder = folder("llama");
    let longer = Settings { max_symbols: Some(257), ..settings() };
    let expected = "--max-symbols: expected at most 256 (the checkpoint's max_position_embeddings), found 257";
    assert_eq!(message(&folder, &longer), expected);
    let int8 = message(&folder, &Settings { dtype: Dtype::Int8, ..settings() });
    assert_eq!(int8, "--dtype: expected f32 (a Hugging Face model computes in f32), found int8");
    if !cfg!(feature = "cuda") {
        let cuda = message(&folder, &Settings { device: DeviceChoice::Cuda(1), ..settings() });
        assert_eq!(cuda, "--device: expected cpu (this binary was built without the feature cuda), found cuda:1");
    }
}
