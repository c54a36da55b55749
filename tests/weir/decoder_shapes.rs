//! Decoders in shapes that the official fixtures lack: every position scheme with every window, GPT-2, windows with and without
//! page alignment, and odd widths. The tests of `verify` compare them with a second implementation.

use super::{hourglass::write, support::settings};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};
use tempfile::TempDir;
use weir::{decode::contract::Model, family::load::load};

pub(super) const SYMBOLS: [&str; 7] = [" ", "a", "b", "é", "語", "e", "\n"];

fn config(position: &Value, window: &Value, extra: &[(&str, Value)]) -> Value {
    let mut architecture = json!({
        "layers": 2, "dim": 20, "heads": 3, "head_dim": 6, "feed_forward": 28, "activation": "gelu",
        "layer_norm_eps": 1e-5, "position": position, "window": window, "sub_norms": true, "scale_embedding": false,
        "tied": false,
    });
    for (key, value) in extra {
        architecture[*key] = value.clone();
    }
    json!({
        "format": "weir/1", "family": "decoder", "vocabulary": {"symbols": SYMBOLS}, "normaliser": "none",
        "training_length": 64, "architecture": architecture,
    })
}

fn list() -> Vec<(String, Value)> {
    let positions = [
        ("txl", json!("transformer-xl")),
        ("rotary", json!("rotary")),
        ("xpos", json!({"xpos": {"scale_base": 40}})),
        ("alibi", json!("alibi")),
        ("buckets", json!({"buckets": {"count": 6, "max_distance": 50}})),
        ("sinusoidal", json!("sinusoidal")),
        ("learned", json!({"learned": {"positions": 1000}})),
        ("none", json!("none")),
    ];
    let windows = [
        ("full", json!("full")),
        ("blocks of 32", json!({"blockwise": {"length": 64}})),
        ("blocks of 11", json!({"blockwise": {"length": 22}})),
        ("last 40", json!({"sliding": {"keys": 40}})),
    ];
    let mut all = Vec::new();
    for (position_name, position) in &positions {
        for (window_name, window) in &windows {
            all.push((format!("{position_name}, {window_name}"), config(position, window, &[])));
        }
    }
    let learned = json!({"learned": {"positions": 1000}});
    let gpt2 = [("sub_norms", json!(false)), ("activation", json!("gelu-tanh")), ("tied", json!(true))];
    all.push(("gpt-2".into(), config(&learned, &json!("full"), &gpt2)));
    let scaled = [("scale_embedding", json!(true)), ("activation", json!("relu"))];
    all.push(("scaled".into(), config(&json!("rotary"), &json!({"sliding": {"keys": 3}}), &scaled)));
    // Texts begin with a start symbol, which takes the first position and leaves the window like any other symbol.
    for (position_name, position) in &positions {
        for (window_name, window) in &windows {
            let mut marked = config(position, window, &[]);
            marked["vocabulary"] = WITH_SPECIALS.clone();
            all.push((format!("marked {position_name}, {window_name}"), marked));
        }
    }
    all
}

/// The same symbols with special symbols between them.
static WITH_SPECIALS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "symbols": [" ", "a", "<BoS>", "b", "<bos>", "é", "語", "<eos>", "e", "<nxt>", "\n", "<oov>"],
        "specials": {"start": 2, "end": 7, "segment_start": 4, "segment_end": 9, "unknown": 11},
    })
});

pub(super) fn folders() -> &'static [(String, PathBuf)] {
    static SHAPES: LazyLock<(TempDir, Vec<(String, PathBuf)>)> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        let folders = list()
            .into_iter()
            .enumerate()
            .map(|(seed, (name, config))| {
                (name, write(root.path(), &format!("decoder-{seed}"), &config, seed as u64 + 21))
            })
            .collect();
        (root, folders)
    });
    &SHAPES.1
}

/// Loads all shapes.
pub(super) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    folders().iter().map(|(name, folder)| (name.clone(), load(folder, &settings()).unwrap())).collect()
}

/// Returns the folder of a shape.
pub(super) fn folder(name: &str) -> &'static Path {
    &folders().iter().find(|(own, _)| own == name).unwrap().1
}
