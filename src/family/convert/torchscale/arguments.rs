//! torchscale's arguments, and weir's configuration from them.

use super::{
    super::vocabulary,
    official::{self, Official, Shapes},
};
use crate::{
    error::{Error, Result},
    family::{
        Init, TensorSpec,
        checkpoint::{Config, json::parse},
    },
    nn::position::rotary::zeta,
    text::TextNormaliser,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

const LAYER_NORM_EPS: f64 = 1e-5;
/// Those arguments that shape the model.
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
    /// In words; "sliding" tells the fork's own incremental decoding from its blockwise attention.
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
    /// Whether they came under the code's own names: xPos's scales tell xPos from rotary positions then.
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
    /// From JSON, in either naming; what the code's own arguments leave open, the tensors' shapes tell.
    ///
    /// # Errors
    /// One that is missing, of the wrong type, or stands for another architecture.
    pub(super) fn of(arguments: Value, shapes: &Shapes, file: &Path) -> Result<Self> {
        let text = arguments.to_string();
        if arguments.get(official::TELLING).is_some() {
            let arguments: Official = parse(text.as_bytes(), file, "")?;
            return arguments.understood(shapes, file);
        }
        parse(text.as_bytes(), file, "")
    }

    /// Names the key of an error as the source does.
    pub(super) fn named(&self, error: Error) -> Error {
        if self.own_names { official::named(error) } else { error }
    }

    /// Learns from one of xPos's scale buffers, where that tells: all ones only turn.
    pub(super) fn see_scales(&mut self, scales: Option<&[f32]>) {
        if self.own_names && scales.is_some_and(|scales| scales.iter().all(|&scale| scale == 1.0)) {
            self.position = "rope".into();
        }
    }

    /// The configuration that these arguments stand for; `file` is the one to name.
    ///
    /// # Errors
    /// The argument that is out of bounds, missing, or in contradiction to another.
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
            "activation": match self.activation.as_str() {
                "swish" => "silu",
                other => other,
            },
            "layer_norm_eps": self.layer_norm_eps.unwrap_or(LAYER_NORM_EPS),
            "position": self.position(file)?,
            "window": self.window(file)?,
            "sub_norms": self.subln,
            "scale_embedding": self.scale_embedding,
            "tied": self.tied,
        });
        let vocabulary = (vocabulary::listed(self.vocab.as_deref(), self.vocab_size, file)?, TextNormaliser::None);
        Config::new("decoder", vocabulary, self.train_length, &architecture, file).map_err(in_official_terms)
    }

    fn position(&self, file: &Path) -> Result<Value> {
        let needed = |key: &str, value: Option<usize>| {
            value.ok_or_else(|| {
                Error::checkpoint(file, key, format!("a number: position is {}", self.position), "nothing")
            })
        };
        Ok(match self.position.as_str() {
            "xpos" => json!({ "xpos": { "scale_base": self.xpos_scale_base } }),
            "rope" => json!("rotary"),
            "alibi" => json!("alibi"),
            "sinusoidal" => json!("sinusoidal"),
            "none" => json!("none"),
            // half of the official buckets are for keys behind the query, which a decoder never meets
            "bucket" => {
                let (count, furthest) = (self.rel_pos_buckets, self.max_rel_pos);
                let (count, furthest) = (needed("rel_pos_buckets", count)?, needed("max_rel_pos", furthest)?);
                json!({ "buckets": { "count": count / 2, "max_distance": furthest } })
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
            // its incremental code keeps so many keys beside the new one
            (None, Ok(length)) if sliding => json!({ "sliding": { "keys": length + 1 } }),
            (None, Ok(length)) => json!({ "blockwise": { "length": length } }),
            (None, Err(_)) if self.block_size == none() => json!("full"),
            (None, Err(_)) => {
                let expected = "a length, or -1 for no window";
                return Err(Error::checkpoint(file, "block_size", expected, self.block_size.to_string()));
            }
        })
    }

    /// xPos's scale buffer: all ones if positions only turn.
    pub(super) fn scales(&self) -> Vec<f32> {
        let dim = self.d_model / self.heads;
        let scale = |pair| if self.position == "xpos" { zeta(dim, pair) as f32 } else { 1.0 };
        (0..dim / 2).map(scale).collect()
    }

    /// A tensor that no checkpoint holds: what the arguments say, or what follows from the shape.
    pub(super) fn given(&self, name: &str, spec: &TensorSpec) -> Vec<f32> {
        match (&self.alibi_slopes, &spec.init) {
            (Some(slopes), _) if name == "position.slopes" => slopes.clone(),
            (_, Init::Values(values)) => values.clone(),
            (_, Init::Normal(..)) => Vec::new(),
        }
    }
}

/// Puts an error about a key of weir's configuration in terms of the argument that it came from.
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
    match error {
        Error::Checkpoint { file, key, expected, found } => {
            let official = KEYS.iter().find(|(ours, _)| *ours == key).map(|(_, official)| (*official).to_owned());
            let key = official.unwrap_or_else(|| vocabulary::official_key(&key));
            Error::Checkpoint { file, key, expected, found }
        }
        other => other,
    }
}
