//! Shapes of the hourglass that the official fixtures lack, with random weights.

use crate::support::{Dice, remove_card, settings};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};
use tempfile::TempDir;
use weir::{
    decode::contract::Model,
    family::{init, load::load},
};

/// Vocabulary whose space has id 3.
pub(super) const SYMBOLS: [&str; 9] = ["e", "\n", "é", " ", "ł", "ש", "語", "a", "😀"];

/// Returns a configuration with these layers and boundaries.
pub(super) fn config(layers: Value, boundaries: Value, extra: &[(&str, Value)]) -> Value {
    let pooled = boundaries["kind"] != "none";
    let mut architecture = json!({
        "layers": layers, "dim": 24, "heads": 3, "head_dim": 10, "feed_forward": 40, "activation": "gelu",
        "layer_norm_eps": 1e-5, "position": "transformer-xl", "boundaries": boundaries,
    });
    if pooled {
        architecture["pooling"] = json!("mean");
    }
    for (key, value) in extra {
        architecture[*key] = value.clone();
    }
    json!({
        "format": "weir/1", "family": "hourglass", "vocabulary": {"symbols": SYMBOLS}, "normaliser": "none",
        "training_length": 64, "architecture": architecture,
    })
}

pub(super) fn three_stacks() -> Value {
    json!({"pre": 2, "middle": 2, "post": 1})
}

/// Writes a checkpoint with random weights, large enough that every part shows in the logits.
pub(crate) fn write(root: &Path, name: &str, config: &Value, seed: u64) -> PathBuf {
    let file = root.join(format!("{name}.json"));
    let to = root.join(name);
    fs::write(&file, config.to_string()).unwrap();
    init::init(&file, &to, seed, false).unwrap();
    randomise(&to.join("model.safetensors"), seed);
    to
}

/// Replaces the weights of a checkpoint file.
fn randomise(path: &Path, seed: u64) {
    remove_card(path.parent().unwrap());
    let mut bytes = fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut dice = Dice::new(seed);
    let mut views: Vec<(String, usize, usize)> = {
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let start =
            |view: &safetensors::tensor::TensorView<'_>| view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        file.tensors().iter().map(|(name, view)| (name.clone(), start(view), view.data().len())).collect()
    };
    views.sort(); // the reader's order varies, and the weights must be the same in every run
    for (name, offset, len) in views {
        assert!(offset >= header);
        if ["position.inverse_frequency", "position.frequency", "position.slopes"].contains(&&*name) {
            continue;
        }
        let centre = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        // Weights are larger, so that the predictor's output varies between symbols.
        let width = if name.starts_with("boundary.") { 300.0 } else { 3000.0 };
        for number in bytes[offset..offset + len].chunks_exact_mut(4) {
            let value = centre + (dice.below(2001) as f32 - 1000.0) / width;
            number.copy_from_slice(&value.to_le_bytes());
        }
    }
    fs::write(path, bytes).unwrap();
}

/// Returns boundaries after every third ASCII character, so that random bytes and small ids close segments.
fn separators() -> Value {
    let symbols: String = (0..128u8).step_by(3).map(char::from).collect();
    json!({"kind": "whitespace", "symbol": symbols})
}

/// Returns name and folder of each shape.
fn folders() -> &'static [(String, PathBuf)] {
    static SHAPES: LazyLock<(TempDir, Vec<(String, PathBuf)>)> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        let whitespace = json!({"kind": "whitespace", "symbol": " "});
        let learned = json!({"kind": "learned", "hidden": 17, "threshold": 0.4});
        let last = ("pooling", json!("last"));
        let xpos = || ("position", json!({"xpos": {"scale_base": 40}}));
        let blocks = |length: usize| ("window", json!({"blockwise": {"length": length}}));
        let middle = |window: Value| ("middle_window", window);
        let list = [
            ("odd-shape", config(three_stacks(), whitespace.clone(), &[])),
            ("relu", config(three_stacks(), json!({"kind": "fixed", "every": 5}), &[("activation", json!("relu"))])),
            ("last", config(three_stacks(), whitespace.clone(), std::slice::from_ref(&last))),
            ("learned", config(three_stacks(), learned.clone(), &[])),
            ("every-symbol", config(three_stacks(), json!({"kind": "fixed", "every": 1}), &[])),
            ("plain", config(json!({"pre": 3}), json!({"kind": "none"}), &[])),
            (
                "windows",
                config(three_stacks(), whitespace.clone(), &[blocks(22), middle(json!({"sliding": {"keys": 6}}))]),
            ),
            ("xpos-windows", config(three_stacks(), whitespace.clone(), &[xpos(), blocks(64), middle(blocks(8).1)])),
            ("xpos-last", config(three_stacks(), whitespace, &[xpos(), blocks(32), middle(blocks(64).1), last])),
            ("plain-windows", config(json!({"pre": 3}), json!({"kind": "none"}), &[xpos(), blocks(64)])),
        ];
        let mut folders: Vec<_> = Vec::new();
        for (seed, (name, config)) in list.into_iter().enumerate() {
            folders.push((name.to_string(), write(root.path(), name, &config, seed as u64 + 1)));
        }
        // With this seed the predictor closes some segments.
        let windows = config(three_stacks(), learned, &[xpos(), blocks(22), middle(json!({"sliding": {"keys": 5}}))]);
        folders.push(("learned-windows".to_string(), write(root.path(), "learned-windows", &windows, 4)));
        let blocks_22 = blocks(22);
        for (name, mut config) in [
            ("ngrams-windows", config(three_stacks(), separators(), &[blocks_22.clone(), middle(blocks(6).1)])),
            ("ended-ngrams", config(three_stacks(), separators(), &[blocks_22.clone(), middle(blocks(6).1)])),
            ("plain-ngrams-windows", config(json!({"pre": 2}), json!({"kind": "none"}), &[blocks_22])),
        ] {
            let bytes = !name.starts_with("plain");
            let sizes = if bytes { json!([3, 4, 5]) } else { json!([2, 7]) };
            config["architecture"]["ngrams"] = json!({"sizes": sizes, "rows": 61});
            if name.starts_with("ended") {
                config["vocabulary"] = json!({"bytes": true, "end": 3});
            } else if bytes {
                config["vocabulary"] = json!({"bytes": true});
            }
            folders.push((name.to_string(), write(root.path(), name, &config, 13)));
        }
        let flat = config(json!({"pre": 2}), json!({"kind": "none"}), &[("dim", json!(16))]);
        folders.push(("spikes".to_string(), spikes(root.path(), &flat)));
        (root, folders)
    });
    &SHAPES.1
}

/// Writes a model whose boundaries are the entropy spikes of a companion.
pub(super) fn spikes(root: &Path, companion: &Value) -> PathBuf {
    fs::write(root.join("companion.json"), companion.to_string()).unwrap();
    let kind = json!({"kind": "entropy-spikes", "window": 2, "companion": "companion"});
    let to = write(root, "spikes", &config(three_stacks(), kind, &[]), 11);
    randomise(&to.join("companion/model.safetensors"), 12);
    to
}

/// Loads all shapes.
pub(crate) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    folders().iter().map(|(name, folder)| (name.clone(), load(folder, &settings()).unwrap())).collect()
}

/// Returns the folder of a shape.
pub(crate) fn folder(name: &str) -> &'static Path {
    &folders().iter().find(|(own, _)| own == name).unwrap().1
}

#[test]
fn bf16_matrices_are_the_rounded_matrices() {
    let root = TempDir::new().unwrap();
    let file = root.path().join("shape.json");
    fs::write(&file, config(three_stacks(), json!({"kind": "whitespace", "symbol": " "}), &[]).to_string()).unwrap();
    let folders = ["f32", "bf16"].map(|dtype| {
        let to = root.path().join(dtype);
        let args = ["init", "--dtype", dtype, "--config", file.to_str().unwrap(), to.to_str().unwrap()];
        crate::cli::weir(&[], &args).unwrap();
        to
    });
    let files = folders.each_ref().map(|folder| fs::read(folder.join("model.safetensors")).unwrap());
    let [whole, half] = files.each_ref().map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    assert_eq!(whole.len(), half.len());
    for (name, tensor) in whole.tensors() {
        let stored = half.tensor(&name).unwrap();
        if tensor.shape().len() == 1 {
            assert_eq!(stored, tensor, "{name}");
            continue;
        }
        let rounded = tensor
            .data()
            .as_chunks()
            .0
            .iter()
            .flat_map(|&number| half::bf16::from_f32(f32::from_le_bytes(number)).to_le_bytes());
        assert_eq!((stored.dtype(), stored.shape()), (safetensors::Dtype::BF16, tensor.shape()), "{name}");
        assert!(stored.data().iter().copied().eq(rounded), "{name}");
    }
    load(&folders[1], &settings()).unwrap();
}
