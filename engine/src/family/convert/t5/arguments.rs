//! `config.json` of Hugging Face's T5 family: its keys, their defaults, and the architecture that follows.

use crate::{
    error::{Error, Result},
    family::checkpoint::{Config, VocabularyConfig, json::parse},
    text::TextNormaliser,
};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::path::Path;

/// Maximum tokens of a document, and maximum symbols of a text: distances beyond the last bucket share it, so the model itself has
/// no limit. `config.json` may state others.
const SOURCE_LENGTH: usize = 16_384;
const TARGET_LENGTH: usize = 4096;
/// Training window of a model that does not state it.
const TRAINING_LENGTH: usize = 512;

/// The keys that matter for inference.
#[derive(Debug, Deserialize)]
pub(super) struct Arguments {
    model_type: String,
    pub(super) vocab_size: usize,
    d_model: usize,
    d_kv: usize,
    d_ff: usize,
    num_layers: usize,
    num_decoder_layers: Option<usize>,
    num_heads: usize,
    relative_attention_num_buckets: usize,
    relative_attention_max_distance: usize,
    feed_forward_proj: String,
    /// Overrides the nonlinearity of `feed_forward_proj`.
    dense_act_fn: Option<String>,
    /// Overrides whether `feed_forward_proj` has a gate.
    is_gated_act: Option<bool>,
    layer_norm_epsilon: f64,
    tie_word_embeddings: bool,
    scale_decoder_outputs: Option<bool>,
    transformers_version: Option<String>,
    n_positions: Option<usize>,
    encoder_attention_type: String,
    local_radius: usize,
    global_block_size: usize,
    deletion_type: Option<String>,
    sigmoid_mask_scale: f64,
    deletion_threshold: Option<f64>,
    delete_gate_layer: usize,
    gate_layer_norm: bool,
    use_softmax1: bool,
}

/// Values of absent keys.
fn defaults(model_type: &str) -> Json {
    let mut all = json!({
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6, "tie_word_embeddings": true, "encoder_attention_type": "local", "local_radius": 127,
        "global_block_size": 16, "sigmoid_mask_scale": -10.0, "delete_gate_layer": 2, "gate_layer_norm": true,
        "use_softmax1": false,
    });
    if model_type == "mt5" {
        let own = json!({ "vocab_size": 250_112, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
            "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false });
        if let (Some(all), Some(own)) = (all.as_object_mut(), own.as_object()) {
            all.extend(own.clone());
        }
    }
    all
}

impl Arguments {
    /// Reads the keys of `config.json`. Fails if the model's type is none of `types`, a key has a wrong type, a special id is not
    /// the usual one, or the model has absolute positions.
    pub(super) fn read(config: &Json, types: &[&str], file: &Path) -> Result<Self> {
        let wrong = |key: &str, expected: String, found: &Json| {
            Err(Error::checkpoint(
                file,
                key,
                expected,
                if found.is_null() { "nothing".into() } else { found.to_string() },
            ))
        };
        let found = &config["model_type"];
        let Some(model_type) = found.as_str().filter(|own| types.contains(own)) else {
            let hint =
                if types.contains(&"mrt5") { "--from t5 reads t5, mt5 and longt5" } else { "--from mrt5 reads mrt5" };
            return wrong("model_type", format!("one of {} ({hint})", types.join(", ")), found);
        };
        let generation = super::generation::config(file.parent().unwrap_or(Path::new(".")))?;
        for (key, usual) in [("pad_token_id", 0), ("eos_token_id", 1), ("decoder_start_token_id", 0)] {
            for found in [&config[key], &generation[key]] {
                let list = found.as_array().filter(|all| all.len() == 1).map(|all| &all[0]);
                if !found.is_null() && list.unwrap_or(found) != &json!(usual) {
                    return wrong(key, format!("{usual}, as in all published models"), found);
                }
            }
        }
        if config["has_absolute_position_embeddings"] == json!(true) {
            let expected = "false: absolute positions are not supported".into();
            return wrong("has_absolute_position_embeddings", expected, &json!(true));
        }
        let mut keys = defaults(model_type);
        if let (Some(keys), Some(own)) = (keys.as_object_mut(), config.as_object()) {
            keys.extend(
                own.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())),
            );
        }
        parse(keys.to_string().as_bytes(), file, "")
    }

    /// Returns true if the head must be the embedding.
    pub(super) fn is_tied(&self) -> bool {
        // Version 5 writes `tie_word_embeddings` for every model, and `scale_decoder_outputs` for all types but mT5. It reads the head
        // of the file.
        let version = self.transformers_version.as_deref().and_then(|version| version.split('.').next()?.parse().ok());
        let own_head = self.model_type == "mt5" && version >= Some(5_u32);
        self.tie_word_embeddings && self.scale_decoder_outputs.is_none() && !own_head
    }

    /// Returns the source's name of a tensor.
    pub(super) fn official_name(&self, name: &str) -> String {
        let attention = match (self.model_type.as_str(), self.encoder_attention_type.as_str()) {
            ("longt5", "transient-global") => ".TransientGlobalSelfAttention.",
            ("longt5", _) => ".LocalSelfAttention.",
            _ => return name.to_owned(),
        };
        if name.starts_with("encoder.") { name.replace(".SelfAttention.", attention) } else { name.to_owned() }
    }

    /// Returns the configuration in weir's terms. Fails if a key is out of bounds.
    pub(super) fn config(&self, vocabulary: VocabularyConfig, tied_head: bool, file: &Path) -> Result<Config> {
        let (gated, activation) = self.activation(file)?;
        let scale_head = match self.scale_decoder_outputs {
            _ if self.model_type == "mt5" => false,
            Some(scaled) => scaled,
            None => self.tie_word_embeddings,
        };
        let mut architecture = json!({
            "encoder_layers": self.num_layers,
            "decoder_layers": self.num_decoder_layers.unwrap_or(self.num_layers),
            "dim": self.d_model,
            "heads": self.num_heads,
            "head_dim": self.d_kv,
            "feed_forward": self.d_ff,
            "activation": activation,
            "gated": gated,
            "norm_eps": self.layer_norm_epsilon,
            "buckets": self.relative_attention_num_buckets,
            "max_distance": self.relative_attention_max_distance,
            "tied_head": tied_head,
            "scale_head": scale_head,
            "source_length": SOURCE_LENGTH,
            "target_length": TARGET_LENGTH,
        });
        if let Some(keys) = architecture.as_object_mut() {
            match self.model_type.as_str() {
                "longt5" => {
                    keys.insert("attention".into(), self.attention(file)?);
                }
                "mrt5" => self.deletion(keys, file)?,
                _ => {}
            }
        }
        let training_length = self.n_positions.unwrap_or(TRAINING_LENGTH).max(1);
        Config::new("t5", vocabulary, TextNormaliser::None, training_length, &architecture, file)
    }

    /// Returns whether the feed-forward has a gate, and its nonlinearity in weir's terms.
    fn activation(&self, file: &Path) -> Result<(bool, &'static str)> {
        let projection = self.feed_forward_proj.as_str();
        let (gate, last) = match projection.split_once('-') {
            Some((gate, _)) => (gate, projection.rsplit('-').next()),
            None => ("", Some(projection)),
        };
        // only this exact name means the approximation by tanh
        let derived = if projection == "gated-gelu" { Some("gelu_new") } else { last };
        let function = match self.dense_act_fn.as_deref().or(derived) {
            Some("gelu_new" | "gelu_pytorch_tanh") => "gelu-tanh",
            Some("relu") => "relu",
            Some("gelu") => "gelu",
            Some("silu" | "swish") => "silu",
            _ => {
                let names = "relu, gelu, gelu_new, gelu_pytorch_tanh, silu or swish";
                return match &self.dense_act_fn {
                    Some(name) => Err(Error::checkpoint(file, "dense_act_fn", names, format!("{name:?}"))),
                    None => {
                        let expected = format!("{names}, alone or after `gated-`");
                        Err(Error::checkpoint(file, "feed_forward_proj", expected, format!("{projection:?}")))
                    }
                };
            }
        };
        Ok((self.is_gated_act.unwrap_or(gate == "gated"), function))
    }

    fn attention(&self, file: &Path) -> Result<Json> {
        let radius = self.local_radius;
        match self.encoder_attention_type.as_str() {
            "local" => Ok(json!({ "kind": "local", "radius": radius })),
            "transient-global" => {
                Ok(json!({ "kind": "transient-global", "radius": radius, "group": self.global_block_size }))
            }
            other => {
                let found = format!("{other:?}");
                Err(Error::checkpoint(file, "encoder_attention_type", "local or transient-global", found))
            }
        }
    }

    fn deletion(&self, keys: &mut Map<String, Json>, file: &Path) -> Result<()> {
        let kind = self.deletion_type.as_deref();
        let function = match kind {
            Some("scaled_sigmoid") => json!({ "scaled-sigmoid": { "scale": self.sigmoid_mask_scale } }),
            Some("log_sigmoid") => json!("log-sigmoid"),
            other => {
                let found = other.map_or("nothing".into(), |other| format!("{other:?}"));
                let expected = "scaled_sigmoid or log_sigmoid: others were baselines in training";
                return Err(Error::checkpoint(file, "deletion_type", expected, found));
            }
        };
        let Some(threshold) = self.deletion_threshold else {
            return Err(Error::checkpoint(file, "deletion_threshold", "a number", "nothing"));
        };
        let layer = self.delete_gate_layer;
        let deletion =
            json!({ "layer": layer, "function": function, "threshold": threshold, "norm": self.gate_layer_norm });
        keys.insert("deletion".into(), deletion);
        keys.insert("softmax1".into(), self.use_softmax1.into());
        Ok(())
    }
}
