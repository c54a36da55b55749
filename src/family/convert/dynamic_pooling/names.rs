//! The official code's names of an hourglass's tensors.

use crate::family::{checkpoint::TensorSpec, convert::converted::source_name};

/// Complete names.
const MODEL: &[(&str, &str)] = &[
    ("embedding.weight", "word_emb.weight"),
    ("position.inverse_frequency", "pos_emb.inv_freq"),
    ("position.content_bias", "r_w_bias"),
    ("position.distance_bias", "r_r_bias"),
    (NULL_GROUP, "null_group"),
    ("pool_norm.weight", "down_ln.weight"),
    ("pool_norm.bias", "down_ln.bias"),
    ("boundary.hidden.weight", "boundary_predictor.boundary_predictor.0.weight"),
    ("boundary.hidden.bias", "boundary_predictor.boundary_predictor.0.bias"),
    ("boundary.output.weight", "boundary_predictor.boundary_predictor.2.weight"),
    ("boundary.output.bias", "boundary_predictor.boundary_predictor.2.bias"),
    ("head.weight", "final_cast.weight"),
    ("head.bias", "final_cast.bias"),
];

/// Names within a layer.
const LAYER: &[(&str, &str)] = &[
    ("attention.qkv.weight", "dec_attn.qkv_net.weight"),
    ("attention.qkv.bias", "dec_attn.qkv_net.bias"),
    (DISTANCE, "dec_attn.r_net.weight"),
    ("attention.output.weight", "dec_attn.o_net.weight"),
    ("attention.output.bias", "dec_attn.o_net.bias"),
    ("attention.norm.weight", "dec_attn.layer_norm.weight"),
    ("attention.norm.bias", "dec_attn.layer_norm.bias"),
    ("feed_forward.up.weight", "pos_ff.CoreNet.0.weight"),
    ("feed_forward.up.bias", "pos_ff.CoreNet.0.bias"),
    ("feed_forward.down.weight", "pos_ff.CoreNet.3.weight"),
    ("feed_forward.down.bias", "pos_ff.CoreNet.3.bias"),
    ("feed_forward.norm.weight", "pos_ff.layer_norm.weight"),
    ("feed_forward.norm.bias", "pos_ff.layer_norm.bias"),
];

const NULL_GROUP: &str = "null_group";
const DISTANCE: &str = "attention.distance.weight";
/// Bias of each [`DISTANCE`]. It must be in the checkpoint and is dropped: it shifts all scores of a query equally, which the
/// softmax cancels.
const DISTANCE_BIAS: &str = "dec_attn.r_net.bias";

const STACKS: &[(&str, &str)] = &[("pre", "layers.0"), ("middle", "layers.1"), ("post", "layers.2")];

/// The official name of one of weir's tensors; the name itself if there is none, so that it is reported as missing.
pub(super) fn official_name(name: &str) -> String {
    let layer = || {
        let (stack, index, part) = in_layer(name)?;
        Some(format!("{stack}.{index}.{}", source_name(LAYER, part)?))
    };
    source_name(MODEL, name).map(str::to_owned).or_else(layer).unwrap_or_else(|| name.to_owned())
}

/// Returns the official stack, the layer's index, and the name within the layer.
fn in_layer(name: &str) -> Option<(&'static str, &str, &str)> {
    let (stack, rest) = name.split_once('.')?;
    let (index, part) = rest.split_once('.')?;
    Some((source_name(STACKS, stack)?, index, part))
}

/// Every tensor that an official checkpoint must hold for a model of weir's tensors.
pub(super) fn official(specs: &[TensorSpec]) -> Vec<TensorSpec> {
    let mut official = Vec::with_capacity(specs.len());
    for spec in specs {
        let mut shape = spec.shape.clone();
        if spec.name == NULL_GROUP {
            shape.splice(0..0, [1, 1]);
        }
        if let Some((stack, index, DISTANCE)) = in_layer(&spec.name) {
            let name = format!("{stack}.{index}.{DISTANCE_BIAS}");
            official.push(TensorSpec::zeros(name, shape.iter().copied().take(1).collect()));
        }
        official.push(TensorSpec::zeros(official_name(&spec.name), shape));
    }
    official
}
