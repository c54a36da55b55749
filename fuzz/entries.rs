//! Fuzzing entry points: each accepts any bytes, must not panic, and must not allocate more than its input justifies.
//!
//! The fuzz targets and a property test of the main crate share this file.

use std::path::Path;
use weir::{
    config::file::{ValueKind, parse},
    family::{
        Blueprint,
        checkpoint::{Config, read_from},
        convert::pickle::Pickle,
        load::blueprint,
    },
    text::SubwordTokenizer,
};

/// Configuration of a model so small that a mutated weight file often passes the checks of shapes.
pub(crate) const SMALL_CONFIG: &str = r#"{"format": "weir/1", "family": "hourglass", "vocabulary": {"symbols": ["a", " "]},
    "normaliser": "none", "training_length": 8, "architecture": {"layers": {"pre": 1}, "dim": 2, "heads": 1,
    "head_dim": 2, "feed_forward": 2, "activation": "relu", "layer_norm_eps": 1e-5, "position": "transformer-xl",
    "boundaries": {"kind": "none"}}}"#;

/// Parses a `config.json` and its architecture.
pub(crate) fn config(data: &[u8]) {
    let file = Path::new("config.json");
    if let Ok(config) = Config::parse(data, file)
        && let Ok(blueprint) = blueprint(&config, file)
    {
        blueprint.shape();
        config.to_json().map(|text| Config::parse(text.as_bytes(), file).map(|_| ())).ok();
    }
}

/// Reads a `model.safetensors` for [`SMALL_CONFIG`].
pub(crate) fn weights(data: &[u8]) {
    if let Some(blueprint) = small() {
        read_from(data, data.len() as u64, Path::new("model.safetensors"), &blueprint.tensors()).map(|_| ()).ok();
    }
}

/// Reads a pickle.
pub(crate) fn pickle(data: &[u8]) {
    if let Ok(pickle) = Pickle::read(data) {
        pickle.describe(&pickle.root);
        pickle.item(&pickle.root, "model_state");
    }
}

/// Text for tokenizers: words, an accent, an emoji, a special token spelt out, invalid combinations.
const TEXT: &str = "A naïve test,  of 12 words\n\n👩‍👩‍👧 </s> a\u{301}\u{301} ﷺ x";

/// Reads a `tokenizer.json`, and encodes and decodes a text with it.
pub(crate) fn tokenizer(data: &[u8]) {
    if let Ok(tokenizer) = SubwordTokenizer::parse(data)
        && let Ok(subwords) = tokenizer.encode(TEXT)
    {
        assert!(subwords.iter().all(|subword| subword.start <= subword.end && subword.end <= TEXT.len()));
        tokenizer.decode(&subwords.iter().map(|subword| subword.id).collect::<Vec<_>>());
    }
}

/// Reads a settings file.
pub(crate) fn settings(data: &[u8]) {
    let kind = |key: &str| match key {
        "listen" => Some(ValueKind::Text),
        "rows" => Some(ValueKind::Number),
        "kv-memory" => Some(ValueKind::Size),
        "late-headers" => Some(ValueKind::Switch),
        "model" => Some(ValueKind::List),
        _ => None,
    };
    if let Ok(text) = std::str::from_utf8(data) {
        let (settings, problems) = parse("weir.toml", text, kind);
        assert!(settings.iter().all(|setting| kind(&setting.key).is_some()));
        assert!(problems.iter().all(|problem| problem.starts_with("weir.toml, line ")), "{problems:?}");
    }
}

/// Returns the blueprint of [`SMALL_CONFIG`].
pub(crate) fn small() -> Option<Box<dyn Blueprint>> {
    let file = Path::new("config.json");
    Config::parse(SMALL_CONFIG.as_bytes(), file).and_then(|config| blueprint(&config, file)).ok()
}
