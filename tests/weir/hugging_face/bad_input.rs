//! Folders that cannot be served: each error names file, key, expected and found value.

use super::*;
use crate::verify::changed_copy;
use std::process::Command;
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
            "generation_config.json: eos_token_id: expected ids below vocab_size, 384, found 400",
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

/// Returns a copy with one more tensor, of zeros.
fn with_tensor(model_type: &str, name: &str, shape: &[usize]) -> TempDir {
    changed_copy(&folder(model_type), |tensors| {
        let bytes = vec![0; size_of::<f32>() * shape.iter().product::<usize>()];
        tensors.insert(name.into(), (safetensors::Dtype::F32, shape.to_vec(), bytes));
    })
}

/// Returns a copy with one more tensor, whose numbers are a hole in the file.
fn with_hole(model_type: &str, name: &str, shape: &[u64]) -> TempDir {
    let copy = copied(model_type);
    let file = copy.path().join("model.safetensors");
    let stored = fs::read(&file).unwrap();
    let start = 8 + usize::try_from(u64::from_le_bytes(*stored.first_chunk().unwrap())).unwrap();
    let mut header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&stored[8..start]).unwrap();
    let end = (stored.len() - start) as u64;
    let offsets = [end, end + 4 * shape.iter().product::<u64>()];
    header.insert(name.into(), serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }));
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&file, [&length[..], &header, &stored[start..]].concat()).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_len(8 + header.len() as u64 + offsets[1]).unwrap();
    copy
}

/// Tensors that the model does not use are read too, so their numbers are bounded.
#[test]
fn unused_tensors_are_bounded() {
    let head = with_tensor("qwen2", "lm_head.weight", &[384, 49]);
    let expected = "model.safetensors: lm_head.weight: expected shape [384, 48], found shape [384, 49]";
    assert_eq!(message(head.path(), &settings()), expected);
    let mask = "transformer.h.0.attn.bias";
    let large = with_hole("gpt_bigcode", mask, &[1, 1, 9000, 9000]);
    let expected = format!(
        "{}: {mask}: expected at most 67189168 numbers in all unused tensors, found 81000000",
        large.path().display()
    );
    assert_eq!(message(large.path(), &settings()), expected);
    for copy in
        [with_tensor("qwen2", "lm_head.weight", &[384, 48]), with_tensor("gpt_bigcode", mask, &[1, 1, 280, 280])]
    {
        load(copy.path(), &settings()).unwrap();
    }
    let booleans = changed_copy(&folder("gpt_bigcode"), |tensors| {
        tensors.insert(mask.into(), (safetensors::Dtype::BOOL, vec![1, 1, 8, 8], vec![1; 64]));
    });
    load(booleans.path(), &settings()).unwrap();
    let verified = Command::new(env!("CARGO_BIN_EXE_weir")).args(["verify", "--model"]).arg(booleans.path()).status();
    assert!(verified.unwrap().success());
}

/// Without `layer_types`, as transformers 4 wrote the configuration.
#[test]
fn an_empty_window_is_rejected() {
    for model_type in ["qwen2", "gemma2"] {
        let copy = copied(model_type);
        golden::change_config(copy.path(), |keys| {
            keys.remove("layer_types");
            keys.insert("use_sliding_window".into(), true.into());
            keys.insert("sliding_window".into(), 0.into());
        });
        let expected = "config.json: sliding_window: expected at least 1, or null, found 0";
        assert_eq!(message(copy.path(), &settings()), expected, "{model_type}");
    }
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
