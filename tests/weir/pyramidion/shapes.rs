//! Small models with random weights and odd shapes: widths unaligned with vectors, blocks unaligned with pages.

use super::super::support::*;
use std::{fs, path::PathBuf, sync::Arc};
use tempfile::TempDir;
use weir::{
    decode::contract::Model,
    family::{
        init::init,
        load::{Settings, load},
    },
    kernels::Dtype,
};

/// A shape with the folder of its weights.
pub(in super::super) struct Shape {
    pub(in super::super) name: &'static str,
    pub(super) config: serde_json::Value,
    dir: TempDir,
}

const HALVING: &str =
    r#"{"kind": "successive-halving", "lengths": {"0": 4, "1": 8}, "flip_right": true, "sort_back": true}"#;
const UNSORTED: &str =
    r#"{"kind": "successive-halving", "lengths": {"2": 16}, "flip_right": false, "sort_back": false, "scorer": "ffn"}"#;

const EMBEDDING: &str =
    r#"{"kind": "hard-top-k", "lengths": {"1": 4}, "sort_back": true, "scorer": {"embedding": {"dimension": 3}}}"#;
const INDEX: &str = r#"{"kind": "successive-halving", "lengths": {"1": 4}, "flip_right": true, "sort_back": true, "scorer": {"index": {"every": 4}}}"#;
const RANDOM: &str =
    r#"{"kind": "hard-top-k", "lengths": {"0": 2, "2": 4}, "sort_back": false, "scorer": {"random": {"seed": 9}}}"#;
const MEAN: &str = r#"{"kind": "mean", "lengths": {"0": 4, "2": 20}}"#;
const MAX: &str = r#"{"kind": "max", "lengths": {"1": 5}}"#;
const POWER: &str = r#"{"kind": "hard-top-k", "lengths": {"0": 4, "1": 8}, "sort_back": true, "scorer": "attention"}"#;
const FUNNEL: &str = r#"{"kind": "funnel", "lengths": {"0": 4, "1": 8}}"#;

const NONE: &str = r#"{"kind": "none"}"#;

/// Shapes with other attention than softmax: name, attention, block of a local head, pooling, pre-norm.
const FAR: [(&str, &str, &str, &str, bool); 5] = [
    ("efficient", r#"{"efficient": {"local_heads": 1}}"#, "40", NONE, false),
    ("efficient alone", r#"{"efficient": {"local_heads": 0}}"#, "null", HALVING, true),
    ("lsh", r#"{"lsh": {"local_heads": 1, "chunk": 16, "hashes": 3, "buckets": 8}}"#, "600", NONE, true),
    ("lsh alone", r#"{"lsh": {"local_heads": 0, "chunk": 7, "hashes": 1, "buckets": 130}}"#, "null", NONE, false),
    ("pooled lsh", r#"{"lsh": {"local_heads": 1, "chunk": 64, "hashes": 2, "buckets": 4}}"#, "33", HALVING, false),
];

/// Shapes with softmax attention: name, block, pooling, pre-norm, decoder positions, padded.
const SHAPES: [(&str, &str, &str, bool, bool, bool); 17] = [
    ("pyramidion", "40", HALVING, false, false, true),
    ("transpooler", "64", UNSORTED, true, true, true),
    ("blockwise", "40", r#"{"kind": "none"}"#, false, true, true),
    ("vanilla", "null", r#"{"kind": "none"}"#, false, false, true),
    ("no blocks", "null", HALVING, true, false, true),
    ("dropped", "33", UNSORTED, false, false, true),
    ("embedding", "40", EMBEDDING, false, false, true),
    ("index", "40", INDEX, true, false, true),
    ("random", "null", RANDOM, false, false, true),
    ("mean", "40", MEAN, false, false, false),
    ("max", "32", MAX, true, true, true),
    ("power", "40", POWER, false, false, true),
    ("power over all", "null", POWER, true, false, true),
    ("funnel", "40", FUNNEL, false, false, true),
    ("unpadded funnel", "null", FUNNEL, true, false, false),
    ("unpadded", "40", HALVING, false, false, false),
    ("unpadded vanilla", "null", r#"{"kind": "none"}"#, true, true, false),
];

/// Maximum length of a document.
pub(super) const SOURCE: usize = 1280;
/// Size of the vocabulary.
pub(super) const SYMBOLS: usize = 37;

impl Shape {
    /// Returns all shapes for documents of up to [`SOURCE`] tokens.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::with_length(SOURCE)
    }

    /// Returns all shapes for documents of up to `source` tokens.
    pub(in super::super) fn with_length(source: usize) -> impl Iterator<Item = Self> {
        let softmax = SHAPES.into_iter().map(|(name, block, pooling, pre_norm, positions, padded)| {
            (name, r#""softmax""#, block, pooling, pre_norm, (positions, padded))
        });
        let far = FAR.into_iter().map(|(name, attention, block, pooling, pre_norm)| {
            (name, attention, block, pooling, pre_norm, (false, false))
        });
        softmax.chain(far).map(move |(name, attention, block, pooling, pre_norm, (positions, padded))| {
            let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            let mut pooling = parsed(pooling);
            let lengths = pooling.get_mut("lengths").and_then(|lengths| lengths.as_object_mut());
            for share in lengths.into_iter().flat_map(|lengths| lengths.values_mut()) {
                *share = (source as u64 / share.as_u64().unwrap()).into();
            }
            let config = serde_json::json!({
                "format": "weir/1", "family": "pyramidion", "vocabulary": {"size": SYMBOLS}, "normaliser": "none",
                "training_length": source,
                "architecture": {
                    "encoder_layers": 3, "decoder_layers": 2, "dim": 22, "heads": 2, "feed_forward": 37, "activation": "relu",
                    "layer_norm_eps": 1e-5, "pre_norm": pre_norm, "source_length": source, "target_length": 400,
                    "attention": parsed(attention), "block": parsed(block), "pooling": pooling, "decoder_positions": positions, "padded": padded,
                },
            });
            let dir = TempDir::new().unwrap();
            let file = dir.path().join("shape.json");
            fs::write(&file, config.to_string()).unwrap();
            init(&file, &dir.path().join("model"), 7, false).unwrap();
            let shape = Self { name, config, dir };
            shape.spread_scores();
            shape
        })
    }

    /// Scales the weights of scorers and queries, because random ones give almost equal scores.
    fn spread_scores(&self) {
        let file = self.folder().join("model.safetensors");
        remove_card(&self.folder());
        let mut bytes = fs::read(&file).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
        let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
        for (name, tensor) in tensors.as_object().unwrap() {
            let factor = if name.contains("scorer") { 40.0 } else { 10.0 };
            if (name.contains("scorer") || name.contains("q_proj")) && name.ends_with("weight") {
                let [from, to] = [0, 1].map(|end| header + tensor["data_offsets"][end].as_u64().unwrap() as usize);
                for number in bytes[from..to].chunks_exact_mut(4) {
                    let large = factor * f32::from_le_bytes(number.try_into().unwrap());
                    number.copy_from_slice(&large.to_le_bytes());
                }
            }
        }
        fs::write(file, bytes).unwrap();
    }

    pub(in super::super) fn folder(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    pub(in super::super) fn model(&self, dtype: Dtype) -> Arc<dyn Model> {
        load(&self.folder(), &Settings { dtype, ..settings() }).unwrap()
    }
}

/// Returns random tokens without special ids.
pub(super) fn tokens(dice: &mut Dice, count: usize) -> Vec<u32> {
    (0..count).map(|_| 4 + dice.below(SYMBOLS - 4) as u32).collect()
}
