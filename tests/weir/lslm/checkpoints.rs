//! Invalid sources and configurations. Each error names the key.

use super::super::support::*;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::family::{checkpoint::Config, convert, load::blueprint};

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Converts a fixture with a changed configuration. Returns the error message, or "converted".
fn converted(case: &str, change: impl Fn(&mut Value)) -> String {
    let root = TempDir::new().unwrap();
    let from = root.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::copy(lslm_golden(case).join("model.safetensors"), from.join("model.safetensors")).unwrap();
    let mut config = read(&lslm_golden(case).join("config.json"));
    change(&mut config);
    fs::write(from.join("config.json"), config.to_string()).unwrap();
    let result = convert::convert(convert::Source::Lslm, &from, &root.path().join("to"), false);
    result.map_or_else(|error| error.to_string(), |_| "converted".into())
}

#[test]
fn invalid_sources_are_rejected_by_key() {
    let cases: &[(&str, &dyn Fn(&mut Value), &str)] = &[
        ("dp", &|c| c["model_type"] = json!("t5"), "model_type: expected \"lslm\", found \"t5\""),
        ("dp", &|c| c["feed_forward_proj"] = json!("gated-gelu"), "feed_forward_proj: expected \"relu\""),
        ("dp", &|c| c["vocab_size"] = json!(29), "vocab_size: expected 28"),
        ("byte_vocab", &|c| c["vocab_size"] = json!(256), "vocab_size: expected 261"),
        ("byte_vocab", &|c| c["byte_offset"] = json!(6), "byte_offset: expected 0 to 5, found 6"),
        ("byte_vocab", &|c| c["byte_offset"] = json!(5), "bos_token_id: expected an id that is not a text symbol"),
        ("dp", &|c| c["next_token_id"] = json!(2), "next_token_id: expected a distinct id"),
        ("dp", &|c| c["unk_token_id"] = json!(28), "unk_token_id: expected an id below 28"),
        ("dp", &|c| c["vocab"] = json!(null), "vocab: expected a list of symbols"),
        ("dp", &|c| c["pooling"] = json!({"type": "max"}), "pooling"),
        ("dp", &|c| c["width_matching"] = json!("projection"), "width_matching: expected none, as both widths are"),
        (
            "small_encoder",
            &|c| c["width_matching"] = json!("none"),
            "width_matching: expected projection or first_layer, as widths differ (token encoder 16, context encoder 32), found none",
        ),
        ("small_encoder", &|c| c["share_embeddings"] = json!(true), "share_embeddings: expected false"),
        ("dp", &|c| c["decoder"]["num_heads"] = json!(0), "decoder.num_heads: expected 1 to"),
        ("dp", &|c| c["decoder"]["d_kv"] = json!(15), "decoder.block.0.layer.0.SelfAttention."),
        ("dp", &|c| c["token_encoder"]["num_layers"] = json!(3), "token_encoder.block.2"),
        ("dp", &|c| c["tie_word_embeddings"] = json!(true), "lm_head.weight"),
        (
            "dp",
            &|c| c["context_encoder"]["relative_attention_max_distance"] = json!(16),
            "context_encoder.relative_attention_max_distance: expected more than",
        ),
        (
            "dp",
            &|c| c["boundary_predictor"]["threshold"] = json!(1.0),
            "boundary_predictor.threshold: expected above 0",
        ),
        ("dp", &|c| c["layer_norm_epsilon"] = json!(0.0), "layer_norm_epsilon: expected above 0"),
        ("dp", &|c| c["n_hops"] = json!(3), "config.json: n_hops: expected one of model_type, token_encoder"),
        ("dp", &|c| c["dropout_rate"] = json!(0.1), "converted"),
        ("dp", &|c| c["golden_info"] = json!(null), "converted"),
        // Absent keys have the defaults of stock T5 and of the paper.
        (
            "dp",
            &|c| {
                ["feed_forward_proj", "layer_norm_epsilon", "width_matching", "generation_boundary_source"]
                    .iter()
                    .for_each(|key| drop(c.as_object_mut().unwrap().remove(*key)))
            },
            "converted",
        ),
        ("dp", &|c| drop(c["decoder"].as_object_mut().unwrap().remove("d_kv")), "converted"),
    ];
    for (index, (case, change, expected)) in cases.iter().enumerate() {
        let message = converted(case, change);
        assert!(message.contains(expected), "{index}: {message}, not {expected}");
    }
}

#[test]
fn invalid_configurations_are_rejected_by_key() {
    let shape = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/lslm-41m.json");
    let outcome = |change: &dyn Fn(&mut Value)| {
        let mut config = read(&shape);
        change(&mut config);
        let file = Path::new("config.json");
        let read = Config::parse(config.to_string().as_bytes(), file).and_then(|config| blueprint(&config, file));
        read.map_or_else(|error| error.to_string(), |blueprint| blueprint.shape())
    };
    assert_eq!(
        outcome(&|_| {}),
        "token encoder 2 × 512, context encoder 8 × 512, segment decoder 2 × 512, mean pooling, learned boundaries"
    );
    let cases: &[(&dyn Fn(&mut Value), &str)] = &[
        (
            &|c| c["vocabulary"] = json!({"bytes": true}),
            "vocabulary.specials: expected the ids of the model's special symbols",
        ),
        (
            &|c| c["vocabulary"]["first_byte"] = json!(1),
            "vocabulary.specials.start: expected an id that is not a text symbol",
        ),
        (&|c| c["vocabulary"]["specials"]["pad"] = json!(1), "vocabulary.specials.pad"),
        (
            &|c| c["architecture"]["token"]["layers"] = json!(0),
            "architecture.token.layers: expected 1 to 1024, found 0",
        ),
        (
            &|c| c["architecture"]["context"]["dim"] = json!(256),
            "architecture.widths: expected projection or first-layer, as widths differ (token encoder 512, context encoder 256), found equal",
        ),
        (&|c| c["architecture"]["decoder"]["buckets"] = json!(1), "architecture.decoder.buckets: expected at least 2"),
        (
            &|c| {
                c["architecture"]["decoder"]["heads"] = json!(64);
                c["architecture"]["decoder"]["max_distance"] = json!(1 << 20);
            },
            "architecture.decoder.max_distance: expected a table of at most 67108864 numbers",
        ),
        (&|c| c["architecture"]["pooling"] = json!({"hops": -1}), "architecture.pooling"),
        (&|c| c["architecture"]["driver"] = json!("both"), "architecture.driver"),
        (&|c| c["architecture"]["token"]["head_dim"] = json!(1 << 20), "architecture.token.dim: expected at most"),
        (&|c| c["family"] = json!("hourglass"), "architecture"),
    ];
    for (change, expected) in cases {
        let message = outcome(change);
        assert!(message.contains(expected), "{message}, not {expected}");
    }
}
