//! Conversion of official training checkpoints and their vocabularies, and invalid configurations.

use super::super::support::*;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::family::{
    checkpoint::{Config, json::read_limited},
    convert::{Source, convert},
    load::{blueprint, load},
};

/// Converts a source. Returns its architecture and its weights.
fn converted(from: &Path, dest: &Path) -> (Value, Vec<u8>) {
    convert(Source::Pyramidions, from, dest, false).unwrap();
    let config = Config::read(dest).unwrap();
    (serde_json::from_str(config.architecture()).unwrap(), fs::read(dest.join("model.safetensors")).unwrap())
}

#[test]
fn a_training_checkpoint_converts_as_the_folder_with_its_tensors() {
    let dir = TempDir::new().unwrap();
    let source = pyramidion_golden("../pyramidion-pt");
    let path_of = |name: &str| dir.path().join(name);
    let folder = converted(&pyramidion_golden("transpooler"), &path_of("folder"));
    // One source has command-line arguments in a file of the usual name; the other has nested settings in its only
    // file.
    assert_eq!(converted(&source.join("arguments"), &path_of("arguments")), folder);
    assert_eq!(converted(&source.join("settings"), &path_of("settings")), folder);
    assert_eq!(converted(&source.join("settings/last.pt"), &path_of("file")), folder);
    // The settings are those of the fixture with the most hypotheses.
    let config = Config::read(&path_of("folder")).unwrap();
    let generation = config.generation.clone().unwrap();
    assert_eq!((generation.beam, generation.min_tokens, generation.max_tokens), (2, 4, 14));
    assert!(config.subwords().is_none());
    let model = load(&path_of("folder"), &settings()).unwrap();
    assert!(model.card().vocabulary.encode("document", "text", 9).unwrap_err().to_string().contains("ids"));
    // The characters come from the dictionary next to the file.
    let vocabulary = load(&path_of("arguments"), &settings()).unwrap().card().vocabulary.clone();
    let ids = vocabulary.encode("document", "ta e?", 9).unwrap();
    assert_eq!(ids, [6, 7, 4, 5, 3]);
    assert_eq!((vocabulary.decode(&[6, 7, 4, 5, 2]), vocabulary.len()), ("ta e".into(), 64));
    assert_eq!(read_limited(&path_of("arguments/tokenizer.json"), 1 << 20).unwrap()[0], b'{');
}

fn changed(case: &str, change: impl Fn(&mut Value)) -> String {
    let dir = TempDir::new().unwrap();
    let golden = pyramidion_golden(case);
    let mut config: Value = serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(golden.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let dest = dir.path().join("made");
    convert(Source::Pyramidions, dir.path(), &dest, false).map(drop).unwrap_err().to_string()
}

#[test]
fn invalid_arguments_are_named() {
    let set = |key: &'static str, value: Value| changed("pyramidion", move |config| config[key] = value.clone());
    for (message, expected) in [
        (
            set("enc_layers_and_token_width", "{1: 24}".into()),
            "enc_layers_and_token_width.1: expected 64 halved some times",
        ),
        (
            set("enc_layers_and_token_width", "{9: 16}".into()),
            "enc_layers_and_token_width: expected layers from 0 to 2, found \"9\"",
        ),
        (set("enc_layers_and_token_width", "[16]".into()), "enc_layers_and_token_width: expected lengths after layers"),
        (set("encoder_pooling", "max".into()), "encoder_pooling: expected topk or lambda, found \"max\""),
        (set("use_sparse_attn", "some".into()), "use_sparse_attn: expected pooler, only_blockwise or pooler_no_block"),
        (
            set("encoder_pooling_arch", "ffn".into()),
            "encoder_pooling_arch: expected linear: the official code builds no other",
        ),
        (set("heads", 5.into()), "heads: expected a divisor of dim, 32, found 5"),
        (set("chunk_size", 0.into()), "chunk_size: expected 1 to"),
        (set("decoder_embed_dim", 48.into()), "decoder_embed_dim: expected 32, as in the encoder, found 48"),
        (set("d_model", 48.into()), "shape"),
        (set("encoder_layers", 4.into()), "encoder.layers.3"),
        (set("no_token_positional_embeddings", 1.into()), "no_token_positional_embeddings: expected false"),
        (
            changed("blockwise", |config| config["chunk_size"] = 24.into()),
            "chunk_size: expected a divisor of 64: whole blocks drop the remainder",
        ),
        (
            changed("no_block", |config| config["enc_layers_and_token_width"] = "{0: 64}".into()),
            "enc_layers_and_token_width: expected a decreasing length, since full attention",
        ),
    ] {
        assert!(message.contains(expected), "{message}\n  {expected}");
    }
}

/// Returns the error for a changed configuration of the published deep model.
fn error_for(change: impl Fn(&mut Value)) -> String {
    let shape = "models/shapes/pyramidion-124m.json";
    let file = Path::new("config.json");
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(shape)).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(&mut config);
    let config = Config::parse(config.to_string().as_bytes(), file);
    config.and_then(|config| blueprint(&config, file)).map(drop).unwrap_err().to_string()
}

fn check_messages(cases: &[(String, &str)]) {
    for (message, expected) in cases {
        assert!(message.contains(expected), "{message}\n  {expected}");
    }
}

#[test]
fn invalid_architectures_are_named() {
    let error_with = |key: &str, value: Value| error_for(|config| config["architecture"][key] = value.clone());
    let pooling = |kind: &str, lengths: Value| json!({"kind": kind, "lengths": lengths});
    let scorer =
        |scorer: Value| json!({"kind": "hard-top-k", "lengths": {"2": 2048}, "sort_back": true, "scorer": scorer});
    check_messages(&[
        (error_with("heads", 7.into()), "architecture.heads: expected a divisor of dim, 768, found 7"),
        (error_with("dim", 7.into()), "architecture.dim: expected an even number"),
        (error_with("source_length", 0.into()), "architecture.source_length: expected 1 to"),
        (error_with("target_length", 1.into()), "architecture.target_length: expected 2 to"),
        (error_with("block", 0.into()), "architecture.block: expected 1 to"),
        (error_with("block", 500.into()), "architecture.block: expected a divisor of 512"),
        (error_with("layer_norm_eps", 2.into()), "architecture.layer_norm_eps: expected above 0, below 1"),
        (error_with("feed_forward", u64::MAX.into()), "architecture.feed_forward: expected 1 to"),
        (
            error_with("pooling", pooling("mean", json!({"2": 3000}))),
            "architecture.pooling.lengths.2: expected a divisor of 8192, found 3000",
        ),
        (error_with("pooling", pooling("max", json!({}))), "architecture.pooling.lengths: expected at least one layer"),
        (error_with("pooling", pooling("sieve", json!({"2": 2048}))), "sieve"),
        (
            error_with("pooling", scorer(json!({"embedding": {"dimension": 768}}))),
            "scorer.embedding.dimension: expected 0 to 767",
        ),
        (error_with("pooling", scorer(json!({"index": {"every": 0}}))), "scorer.index.every: expected at least 1"),
        (error_with("pooling", scorer("psychic".into())), "psychic"),
    ]);
}

#[test]
fn invalid_vocabularies_and_settings_are_named() {
    check_messages(&[
        (error_for(|config| config["vocabulary"] = json!({"bytes": true})), "vocabulary: expected `size`"),
        (error_for(|config| config["vocabulary"] = json!({"size": 4})), "vocabulary.size: expected more than 4"),
        (
            error_for(|config| config["vocabulary"] = json!({"tokenizer": "tokenizer.json"})),
            "vocabulary: expected `size` next to it",
        ),
        (
            error_for(|config| config["vocabulary"]["tokenizer"] = "../x.json".into()),
            "vocabulary.tokenizer: expected \"tokenizer.json\"",
        ),
        (
            error_for(|config| config["generation"]["max_tokens"] = 1024.into()),
            "generation.max_tokens: expected 1 to 1023",
        ),
        (
            error_for(|config| config["generation"]["min_tokens"] = 967.into()),
            "generation.min_tokens: expected at most max_tokens, 966",
        ),
        (error_for(|config| config["generation"]["beam"] = 0.into()), "generation.beam: expected 1 to 64"),
        (error_for(|config| config["generation"]["width"] = 0.into()), "generation.width"),
    ]);
}

#[test]
fn options_of_this_family_are_rejected_in_others() {
    let file = Path::new("config.json");
    let hourglass =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/vanilla-41m.json")).unwrap();
    for (key, value, expected) in [
        ("vocabulary", json!({"size": 27}), "vocabulary: expected `symbols` or `bytes`: this family's symbols"),
        (
            "generation",
            json!({"beam": 1, "length_penalty": 1.0, "min_tokens": 1, "max_tokens": 2}),
            "generation: expected nothing: this family writes no summaries",
        ),
    ] {
        let mut config: Value = serde_json::from_str(&hourglass).unwrap();
        config[key] = value;
        let config = Config::parse(config.to_string().as_bytes(), file).unwrap();
        let message = blueprint(&config, file).map(drop).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
