//! Latent segment models in shapes that the fixtures lack: special symbols among the text symbols, byte vocabularies with specials
//! after the bytes, unusual head widths, a tied head with two embeddings, other buckets, thresholds and epsilons.

use super::super::support::*;
use serde_json::{Value, json};
use std::{fs, path::PathBuf, sync::LazyLock};
use tempfile::TempDir;
use weir::{
    decode::contract::{BoundaryOptions, Model},
    family::{init, load::load},
};

fn stack(layers: usize, dim: usize, heads: usize, head_dim: usize) -> Value {
    json!({
        "layers": layers, "dim": dim, "heads": heads, "head_dim": head_dim, "feed_forward": 2 * dim + 3, "buckets": 10,
        "max_distance": 23, "bidirectional_buckets": false,
    })
}

fn config(vocabulary: Value, token: Value, context: Value, decoder: Value, extra: &[(&str, Value)]) -> Value {
    let mut architecture = json!({
        "token": token, "context": context, "decoder": decoder, "norm_eps": 1e-3, "pooling": {"hops": 2},
        "boundaries": {"kind": "learned", "hidden": 13, "threshold": 0.4}, "widths": "equal",
        "shared_embedding": false, "tied_head": false, "driver": "predictor",
    });
    for (key, value) in extra {
        architecture[*key] = value.clone();
    }
    json!({
        "format": "weir/1", "family": "lslm", "vocabulary": vocabulary, "normaliser": "none", "training_length": 64,
        "architecture": architecture,
    })
}

fn letters() -> Value {
    json!({
        "symbols": ["a", "<nxt>", "b", "語", "<BoS>", "é", "\n", "<oov>", "c", "<eos>", " ", "<bos>"],
        "specials": {"start": 4, "end": 9, "segment_start": 11, "segment_end": 1, "unknown": 7},
    })
}

/// Returns the shapes and their checkpoints with random weights.
pub(in super::super) fn shapes() -> &'static [(&'static str, PathBuf)] {
    static ALL: LazyLock<(TempDir, Vec<(&str, PathBuf)>)> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        let bytes = json!({
            "bytes": true, "first_byte": 2,
            "specials": {"start": 260, "end": 0, "segment_start": 1, "segment_end": 259, "unknown": 258},
        });
        let mut both = stack(2, 20, 3, 5);
        both["bidirectional_buckets"] = json!(true);
        let configs = [
            (
                "scattered",
                config(
                    letters(),
                    stack(2, 20, 3, 5),
                    stack(1, 20, 2, 7),
                    stack(2, 12, 3, 6),
                    &[("tied_head", json!(true))],
                ),
            ),
            (
                "bytes",
                config(
                    bytes,
                    both,
                    stack(2, 28, 4, 6),
                    stack(1, 20, 3, 4),
                    &[("widths", json!("first-layer")), ("shared_embedding", json!(true)), ("pooling", json!("mean"))],
                ),
            ),
            (
                "projected",
                config(
                    letters(),
                    stack(1, 12, 1, 9),
                    stack(2, 20, 5, 3),
                    stack(2, 20, 2, 9),
                    &[("widths", json!("projection"))],
                ),
            ),
        ];
        let write = |(name, config): (&'static str, Value)| {
            let file = root.path().join(format!("{name}.json"));
            let to = root.path().join(name);
            fs::write(&file, config.to_string()).unwrap();
            // Some random predictors decide the same for every symbol.
            let mixed = |seed: &u64| {
                init::init(&file, &to, *seed, true).unwrap();
                let model = load(&to, &settings()).unwrap();
                let shares = (1..4).map(|seed| {
                    let (_, marks) = full(&*model, &text(&*model, seed), &BoundaryOptions::default());
                    marks.iter().filter(|mark| mark.boundary).count() * 100 / marks.len()
                });
                shares.into_iter().all(|share| (10..=80).contains(&share))
            };
            assert!((1..100).any(|seed| mixed(&seed)), "{name}");
            (name, to)
        };
        let folders = configs.into_iter().map(write).collect();
        (root, folders)
    });
    &ALL.1
}

/// Returns a random text of the model's symbols.
fn text(model: &dyn Model, seed: u64) -> Vec<u32> {
    text_symbols(model, &Dice::new(seed).text(60, model.card().vocabulary.len()))
}
