//! torchscale's arguments, and weir's configuration from them.

use crate::{
    error::{Error, Result},
    family::{
        Init, TensorSpec,
        checkpoint::Config,
        convert::{converted::rename_key, vocabulary},
    },
    nn::position::rotary::zeta,
    text::TextNormaliser,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

const LAYER_NORM_EPS: f64 = 1e-5;

/// The arguments that shape the model.
#[derive(Debug, Deserialize)]
pub(super) struct Arguments {
    pub(super) vocab_size: usize,
    pub(super) d_model: usize,
    pub(super) heads: usize,
    pub(super) ffn_dim: usize,
    pub(super) layers: usize,
    pub(super) train_length: usize,
    pub(super) position: String,
    /// Two blocks; −1: no window.
    #[serde(default = "none")]
    pub(super) block_size: i64,
    /// Keys of a sliding window.
    pub(super) window: Option<usize>,
    /// Description of the mask; "sliding" means the fork's incremental decoding, anything else its blockwise attention.
    pub(super) mask: Option<String>,
    #[serde(default = "scale_base")]
    pub(super) xpos_scale_base: f64,
    pub(super) subln: bool,
    pub(super) activation: String,
    #[serde(default)]
    pub(super) scale_embedding: bool,
    #[serde(default)]
    pub(super) tied: bool,
    pub(super) layer_norm_eps: Option<f64>,
    pub(super) gamma: Option<f64>,
    pub(super) rotary_base: Option<f64>,
    pub(super) rel_pos_buckets: Option<usize>,
    pub(super) max_rel_pos: Option<usize>,
    pub(super) max_positions: Option<usize>,
    pub(super) alibi_slopes: Option<Vec<f32>>,
    /// The symbols, one character each.
    pub(super) vocab: Option<Vec<String>>,
    /// True if the arguments have the code's own names: then only xPos's scales distinguish xPos from rotary positions.
    #[serde(skip)]
    pub(super) own_names: bool,
}

pub(super) fn none() -> i64 {
    -1
}

pub(super) fn scale_base() -> f64 {
    512.0
}

impl Arguments {
    /// Switches to rotary positions if xPos's scales are all ones, which only rotate.
    pub(super) fn apply_scales(&mut self, scales: Option<&[f32]>) {
        if self.own_names && scales.is_some_and(|scales| scales.iter().all(|&scale| scale == 1.0)) {
            self.position = "rope".into();
        }
    }

    /// Returns the configuration; errors name `file`. Fails if an argument is missing, out of bounds, or contradicts another.
    pub(super) fn config(&self, file: &Path) -> Result<Config> {
        let wrong = |key: &str, expected: String, found: String| Err(Error::checkpoint(file, key, expected, found));
        if self.heads == 0 || !self.d_model.is_multiple_of(self.heads) {
            return wrong("heads", format!("a divisor of d_model, {}", self.d_model), self.heads.to_string());
        }
        for (key, found, only) in [("gamma", self.gamma, 0.4), ("rotary_base", self.rotary_base, 10_000.0)] {
            if let Some(found) = found.filter(|found| *found != only) {
                return wrong(key, only.to_string(), found.to_string());
            }
        }
        if let Some(slopes) = self.alibi_slopes.as_ref().filter(|slopes| slopes.len() != self.heads) {
            return wrong("alibi_slopes", format!("{} slopes, one a head", self.heads), slopes.len().to_string());
        }
        let architecture = json!({
            "layers": self.layers,
            "dim": self.d_model,
            "heads": self.heads,
            "head_dim": self.d_model / self.heads,
            "feed_forward": self.ffn_dim,
            "activation": if self.activation == "swish" { "silu" } else { self.activation.as_str() },
            "layer_norm_eps": self.layer_norm_eps.unwrap_or(LAYER_NORM_EPS),
            "position": self.position(file)?,
            "window": self.window(file)?,
            "sub_norms": self.subln,
            "scale_embedding": self.scale_embedding,
            "tied": self.tied,
        });
        let vocabulary = vocabulary::listed(self.vocab.as_deref(), self.vocab_size, file)?;
        Config::new("decoder", vocabulary, TextNormaliser::None, self.train_length, &architecture, file)
            .map_err(in_official_terms)
    }

    fn position(&self, file: &Path) -> Result<Value> {
        let needed = |key: &str, value: Option<usize>| {
            let expected = format!("a number: position is {}", self.position);
            value.ok_or_else(|| Error::checkpoint(file, key, expected, "nothing"))
        };
        Ok(match self.position.as_str() {
            "xpos" => json!({ "xpos": { "scale_base": self.xpos_scale_base } }),
            "rope" => json!("rotary"),
            "alibi" => json!("alibi"),
            "sinusoidal" => json!("sinusoidal"),
            "none" => json!("none"),
            // half of the official buckets are for keys after the query, which a decoder never sees
            "bucket" => {
                let count = needed("rel_pos_buckets", self.rel_pos_buckets)? / 2;
                let max_distance = needed("max_rel_pos", self.max_rel_pos)?;
                json!({ "buckets": { "count": count, "max_distance": max_distance } })
            }
            "learned" => json!({ "learned": { "positions": needed("max_positions", self.max_positions)? } }),
            other => {
                let expected = "xpos, rope, alibi, bucket, sinusoidal, learned or none";
                return Err(Error::checkpoint(file, "position", expected, format!("{other:?}")));
            }
        })
    }

    fn window(&self, file: &Path) -> Result<Value> {
        let sliding = self.mask.as_ref().is_some_and(|mask| mask.starts_with("sliding"));
        Ok(match (self.window, usize::try_from(self.block_size)) {
            (Some(keys), _) => json!({ "sliding": { "keys": keys } }),
            // the fork's incremental code keeps `block_size` keys in addition to the new one
            (None, Ok(length)) if sliding => json!({ "sliding": { "keys": length + 1 } }),
            (None, Ok(length)) => json!({ "blockwise": { "length": length } }),
            (None, Err(_)) if self.block_size == none() => json!("full"),
            (None, Err(_)) => {
                let expected = "a length, or -1 for no window";
                return Err(Error::checkpoint(file, "block_size", expected, self.block_size.to_string()));
            }
        })
    }

    /// xPos's scale buffer: all ones for rotary positions.
    pub(super) fn scales(&self) -> Vec<f32> {
        let dim = self.d_model / self.heads;
        let scale = |pair| if self.position == "xpos" { zeta(dim, pair) as f32 } else { 1.0 };
        (0..dim / 2).map(scale).collect()
    }

    /// Returns a tensor that no checkpoint holds: from the arguments, or from the shape.
    pub(super) fn derived(&self, name: &str, spec: &TensorSpec) -> Vec<f32> {
        match (&self.alibi_slopes, &spec.init) {
            (Some(slopes), _) if name == "position.slopes" => slopes.clone(),
            (_, Init::Values(values)) => values.clone(),
            (_, Init::Normal(..) | Init::Columns(..)) => Vec::new(),
        }
    }
}

/// Replaces a key of weir's configuration in an error by the argument that it came from.
pub(super) fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("architecture.layers", "layers"),
        ("architecture.dim", "d_model"),
        ("architecture.heads", "heads"),
        ("architecture.head_dim", "d_model / heads"),
        ("architecture.feed_forward", "ffn_dim"),
        ("architecture.activation", "activation"),
        ("architecture.layer_norm_eps", "layer_norm_eps"),
        ("architecture.window", "block_size"),
        ("architecture.window.blockwise.length", "block_size"),
        ("architecture.window.sliding.keys", "window"),
        ("architecture.position.xpos.scale_base", "xpos_scale_base"),
        ("architecture.position.buckets.count", "rel_pos_buckets / 2"),
        ("architecture.position.buckets.max_distance", "max_rel_pos"),
        ("architecture.position.learned.positions", "max_positions"),
        ("training_length", "train_length"),
    ];
    rename_key(error, KEYS, vocabulary::official_key)
}
