//! Checkpoints of Latent Segment Language Models. The authors released no code, so the source is the layout of the paper's parts
//! in Hugging Face's T5: a folder with `config.json` (`model_type` "lslm") and `model.safetensors`. The paper's baseline is
//! Hugging Face's GPT-2 (`model_type` "gpt2") with the same vocabulary.

mod arguments;

use super::{
    converted::{Converted, read_config, source_name},
    gpt2,
    vocabulary::SpecialVocabulary,
};
use crate::{
    error::Result,
    family::{
        checkpoint::{
            CONFIG_FILE, TensorSpec, Weights,
            json::{UniqueMap, parse},
            read_weights_with_progress,
        },
        families::blueprint,
    },
};
use arguments::Arguments;
use serde::de::IgnoredAny;
use std::path::Path;

/// Complete names.
const MODEL: &[(&str, &str)] = &[
    ("embedding.weight", "shared.weight"),
    ("token.embedding.weight", "token_encoder.embed_tokens.weight"),
    ("decoder.embedding.weight", "decoder.embed_tokens.weight"),
    ("token.distance_bias.weight", "token_encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    ("context.distance_bias.weight", "context_encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    ("decoder.distance_bias.weight", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    ("token.norm.weight", "token_encoder.final_layer_norm.weight"),
    ("context.norm.weight", "context_encoder.final_layer_norm.weight"),
    ("decoder.norm.weight", "decoder.final_layer_norm.weight"),
    ("boundary.hidden.weight", "boundary_predictor.wi.weight"),
    ("boundary.output.weight", "boundary_predictor.wo.weight"),
    ("context.projection.weight", "context_encoder.input_projection.weight"),
    ("head.weight", "lm_head.weight"),
    ("head.bias", "lm_head.bias"),
];

/// Names within a layer, except the feed-forward's, which comes after the decoder's cross-attention.
const LAYER: &[(&str, &str)] = &[
    ("attention.query.weight", "layer.0.SelfAttention.q.weight"),
    ("attention.key.weight", "layer.0.SelfAttention.k.weight"),
    ("attention.value.weight", "layer.0.SelfAttention.v.weight"),
    ("attention.output.weight", "layer.0.SelfAttention.o.weight"),
    ("attention.norm.weight", "layer.0.layer_norm.weight"),
    ("memory.query.weight", "layer.1.EncDecAttention.q.weight"),
    ("memory.key.weight", "layer.1.EncDecAttention.k.weight"),
    ("memory.value.weight", "layer.1.EncDecAttention.v.weight"),
    ("memory.output.weight", "layer.1.EncDecAttention.o.weight"),
    ("memory.norm.weight", "layer.1.layer_norm.weight"),
];
const FEED_FORWARD: &[(&str, &str)] = &[
    ("feed_forward.up.weight", "DenseReluDense.wi.weight"),
    ("feed_forward.down.weight", "DenseReluDense.wo.weight"),
    ("feed_forward.norm.weight", "layer_norm.weight"),
];

/// The stacks, and the index of the feed-forward in their layers.
const STACKS: &[(&str, &str, usize)] =
    &[("token", "token_encoder", 1), ("context", "context_encoder", 1), ("decoder", "decoder", 2)];

/// Reads a folder in that layout, or GPT-2's. Fails if arguments are missing, unknown, out of bounds or of another
/// architecture, or if tensors are missing, superfluous or of another shape.
pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let text = read_config(&file)?;
    if gpt2::is_gpt2(&text) {
        return gpt2::read(dir, progress);
    }
    let UniqueMap(keys): UniqueMap<IgnoredAny> = parse(&text, &file, "")?;
    arguments::check_keys(keys.keys().map(String::as_str), &file)?;
    let arguments: Arguments = parse(&text, &file, "")?;
    let vocabulary: SpecialVocabulary = parse(&text, &file, "")?;
    let config = arguments.config(&vocabulary, &file)?;
    let specs = blueprint(&config, &file).map_err(arguments::in_official_terms)?.tensors();
    let official: Vec<_> = specs.iter().map(official_tensor).collect();
    let (mut tensors, _) = read_weights_with_progress(dir, &official, progress)?;
    Ok(Converted { config, weights: Weights::collect(specs, |spec| tensors.take(&official_tensor(spec).name))? })
}

/// Returns the tensor under the source's name; under its own if there is none, so that it is reported as missing.
fn official_tensor(spec: &TensorSpec) -> TensorSpec {
    let in_layer = || {
        let (stack, rest) = spec.name.split_once('.')?;
        let (index, part) = rest.split_once('.')?;
        let (_, stack, feed_forward) = STACKS.iter().find(|(weir, ..)| *weir == stack)?;
        let part = match source_name(LAYER, part) {
            Some(official) => official.to_owned(),
            None => format!("layer.{feed_forward}.{}", source_name(FEED_FORWARD, part)?),
        };
        Some(format!("{stack}.block.{index}.{part}"))
    };
    let name = source_name(MODEL, &spec.name).map(str::to_owned).or_else(in_layer);
    TensorSpec { name: name.unwrap_or_else(|| spec.name.clone()), ..spec.clone() }
}
