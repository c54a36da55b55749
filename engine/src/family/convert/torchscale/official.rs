//! Arguments under the code's own names: those of torchscale's `DecoderConfig`, and fairseq's.

use super::arguments::{self, Arguments};
use crate::{
    error::{Error, Result},
    family::{checkpoint::json::parse, convert::converted::rename_key},
};
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};

/// The argument that only the code's own names have.
const OWN_ARGUMENT: &str = "decoder_embed_dim";
/// Positions of a learned table that fairseq reserves for padding.
const PADDING: usize = 2;

pub(super) type Shapes = BTreeMap<String, Vec<usize>>;

/// Reads arguments under either names; the tensors' shapes complete the code's own. Fails if an argument is missing, of
/// the wrong type, or of another architecture.
pub(super) fn read_arguments(arguments: &Value, shapes: &Shapes, file: &Path) -> Result<Arguments> {
    let text = arguments.to_string();
    if arguments.get(OWN_ARGUMENT).is_none() {
        return parse(text.as_bytes(), file, "");
    }
    let arguments: OwnArguments = parse(text.as_bytes(), file, "")?;
    arguments.translate(shapes, file)
}

/// The arguments that shape a decoder. A missing one has `DecoderConfig`'s default, as in the code.
#[derive(Debug, Deserialize)]
struct OwnArguments {
    decoder_embed_dim: usize,
    decoder_attention_heads: usize,
    decoder_ffn_embed_dim: usize,
    decoder_layers: usize,
    activation_fn: Option<String>,
    no_scale_embedding: Option<bool>,
    subln: Option<bool>,
    share_decoder_input_output_embed: Option<bool>,
    xpos_rel_pos: Option<bool>,
    xpos_scale_base: Option<f64>,
    rel_pos_buckets: Option<usize>,
    max_rel_pos: Option<usize>,
    layernorm_eps: Option<f64>,
    /// The fork's: two blocks.
    block_size: Option<i64>,
    /// fairseq's: symbols of a training window.
    tokens_per_sample: Option<usize>,
    max_target_positions: Option<usize>,
    /// fairseq's: true if there is no table of positions next to the embedding.
    no_token_positional_embeddings: Option<bool>,
    decoder_normalize_before: Option<bool>,
    deepnorm: Option<bool>,
    layernorm_embedding: Option<bool>,
    multiway: Option<bool>,
    moe_freq: Option<usize>,
}

impl OwnArguments {
    /// Translates the arguments to the other names. Fails for another architecture, for two position schemes, and
    /// without an embedding, whose rows are the vocabulary.
    fn translate(self, shapes: &Shapes, file: &Path) -> Result<Arguments> {
        self.check_architecture(file)?;
        let shape = |name: &str| shapes.get(&format!("decoder.{name}")).or_else(|| shapes.get(name));
        let missing = || Error::checkpoint(file, "embed_tokens.weight", "a tensor with the vocabulary's size", "none");
        let vocab_size = shape("embed_tokens.weight").and_then(|shape| shape.first()).ok_or_else(missing)?;
        let table = shape("embed_positions.weight").and_then(|shape| shape.first());
        let has_positions = table.is_some() || shape("embed_positions._float_tensor").is_some();
        let absolute = self.no_token_positional_embeddings.map_or(has_positions, |none| !none);
        let buckets = self.rel_pos_buckets.unwrap_or(0) > 0 && self.max_rel_pos.unwrap_or(0) > 0;
        let schemes = [
            (self.xpos_rel_pos == Some(true), "xpos"),
            (buckets, "bucket"),
            (absolute, if table.is_some() { "learned" } else { "sinusoidal" }),
        ];
        let chosen: Vec<_> = schemes.into_iter().filter(|(present, _)| *present).map(|(_, name)| name).collect();
        let position = match chosen[..] {
            [] => "none",
            [scheme] => scheme,
            _ => return Err(Error::checkpoint(file, "xpos_rel_pos", "one position scheme", chosen.join(" and "))),
        };
        Ok(Arguments {
            vocab_size: *vocab_size,
            d_model: self.decoder_embed_dim,
            heads: self.decoder_attention_heads,
            ffn_dim: self.decoder_ffn_embed_dim,
            layers: self.decoder_layers,
            train_length: self.tokens_per_sample.or(self.max_target_positions).unwrap_or(1024),
            position: position.into(),
            block_size: self.block_size.unwrap_or_else(arguments::none),
            window: None,
            mask: None,
            xpos_scale_base: self.xpos_scale_base.unwrap_or_else(arguments::scale_base),
            subln: self.subln.unwrap_or(true),
            activation: self.activation_fn.unwrap_or_else(|| "gelu".into()),
            scale_embedding: self.no_scale_embedding == Some(false),
            tied: self.share_decoder_input_output_embed == Some(true),
            layer_norm_eps: self.layernorm_eps,
            gamma: None,
            rotary_base: None,
            rel_pos_buckets: self.rel_pos_buckets,
            max_rel_pos: self.max_rel_pos,
            max_positions: table.map(|rows| rows.saturating_sub(PADDING)),
            alibi_slopes: None,
            vocab: None,
            own_names: true,
        })
    }

    /// Checks that the arguments describe a pre-norm decoder.
    fn check_architecture(&self, file: &Path) -> Result<()> {
        let post_norm = self.decoder_normalize_before == Some(false);
        let switches = [
            ("decoder_normalize_before", post_norm, "true: norms before the sub-layers"),
            ("deepnorm", self.deepnorm == Some(true), "false: norms before the sub-layers"),
            ("layernorm_embedding", self.layernorm_embedding == Some(true), "false: no norm behind the embedding"),
            ("multiway", self.multiway == Some(true), "false: one set of weights"),
            ("moe_freq", self.moe_freq.unwrap_or(0) > 0, "0: no mixture of experts"),
        ];
        match switches.into_iter().find(|(_, wrong, _)| *wrong) {
            None => Ok(()),
            Some((key, _, expected)) => Err(Error::checkpoint(file, key, expected, "another architecture")),
        }
    }
}

/// Replaces an argument in an error by the code's own name, if `arguments` had those.
pub(super) fn in_own_names(arguments: &Arguments, error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("layers", "decoder_layers"),
        ("d_model", "decoder_embed_dim"),
        ("heads", "decoder_attention_heads"),
        ("d_model / heads", "decoder_embed_dim / decoder_attention_heads"),
        ("ffn_dim", "decoder_ffn_embed_dim"),
        ("activation", "activation_fn"),
        ("layer_norm_eps", "layernorm_eps"),
        ("train_length", "tokens_per_sample"),
    ];
    if arguments.own_names { rename_key(error, KEYS, str::to_owned) } else { error }
}
