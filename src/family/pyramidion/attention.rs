//! The `attention` of an encoder: softmax over blocks or over all, or one of the cheaper kinds of the paper's comparison
//! (arXiv 2009.05169, §5 and appendix C), with some heads that attend to blocks beside them.

use super::{
    config::{Architecture, Scorer},
    load::Loader,
    plan::PlanError,
};
use crate::{
    error::Result,
    family::{Init, TensorSpec, parts::specs::linear},
    kernels::linear::Linear,
    nn::attention::encoder_attention::{AttentionPattern, Global, hashed::Hashing},
};
use serde::Deserialize;

const MAX_ROUNDS: usize = 64;
const MAX_BUCKETS: usize = 1 << 16;

/// How an encoder's vectors attend to each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Attention {
    /// By softmax of products: to a block, or to all.
    #[default]
    Softmax,
    /// See [`Global::Efficient`].
    Efficient {
        /// The first heads, which attend to blocks.
        local_heads: usize,
    },
    /// See [`Global::Hashed`].
    Lsh {
        /// As above.
        local_heads: usize,
        /// Vectors of a chunk.
        chunk: usize,
        /// Rounds of rotations.
        hashes: usize,
        /// Buckets of a round.
        buckets: usize,
    },
}

impl Attention {
    /// Its name, unless it is softmax.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Self::Softmax => None,
            Self::Efficient { .. } => Some("efficient"),
            Self::Lsh { .. } => Some("lsh"),
        }
    }

    /// The heads that attend to blocks, where the others do not.
    fn local_heads(self) -> usize {
        match self {
            Self::Softmax => 0,
            Self::Efficient { local_heads } | Self::Lsh { local_heads, .. } => local_heads,
        }
    }

    /// Numbers of a layer's rotations.
    pub(super) fn rotations(self, dim: usize) -> Option<usize> {
        match self {
            Self::Lsh { hashes, buckets, .. } => dim.checked_mul(hashes)?.checked_mul(buckets / 2),
            _ => Some(0),
        }
    }
}

/// # Errors
/// What does not go with the kind of attention, with the rule.
pub(super) fn check(a: &Architecture) -> Result<(), PlanError> {
    let Some(name) = a.attention.name() else { return Ok(()) };
    let key = |key: &str| format!("attention.{name}.{key}");
    let local = a.attention.local_heads();
    if local >= a.heads {
        return Err(PlanError::new(key("local_heads"), format!("fewer than heads, {}", a.heads), local));
    }
    if (local > 0) != a.block.is_some() {
        let expected = if local > 0 { "what local heads attend to" } else { "null: no head is local" };
        return Err(PlanError::new("block", expected, a.block.map_or("null".into(), |block| block.to_string())));
    }
    if a.padded {
        return Err(PlanError::new("padded", format!("false, with {name} attention"), true));
    }
    if a.pooling.scorer() == Some(Scorer::Attention) {
        let expected = format!("something else with {name} attention, which has no weights to sum up");
        return Err(PlanError::new("pooling.scorer", expected, "attention"));
    }
    let Attention::Lsh { chunk, hashes, buckets, .. } = a.attention else { return Ok(()) };
    if !(1..=a.source_length).contains(&chunk) {
        return Err(PlanError::new(key("chunk"), format!("1 to source_length, {}", a.source_length), chunk));
    }
    if !(1..=MAX_ROUNDS).contains(&hashes) {
        return Err(PlanError::new(key("hashes"), format!("1 to {MAX_ROUNDS}"), hashes));
    }
    if !(2..=MAX_BUCKETS).contains(&buckets) || !buckets.is_multiple_of(2) {
        return Err(PlanError::new(key("buckets"), format!("an even number from 2 to {MAX_BUCKETS}"), buckets));
    }
    Ok(())
}

/// The tensors of an encoder layer's projections before the output's: keys only of heads that have some of their own, and rotations.
pub(super) fn tensors(a: &Architecture, out: &mut Vec<TensorSpec>, prefix: &str) {
    let keys = match a.attention {
        Attention::Lsh { local_heads, .. } => local_heads * (a.dim / a.heads),
        _ => a.dim,
    };
    for (part, outputs) in [("q_proj", a.dim), ("k_proj", keys), ("v_proj", a.dim)] {
        if outputs > 0 {
            linear(out, &format!("{prefix}.self_attn.{part}"), outputs, a.dim);
        }
    }
    if let Attention::Lsh { local_heads, hashes, buckets, .. } = a.attention {
        let shape = vec![a.heads - local_heads, hashes, a.dim / a.heads, buckets / 2];
        let (name, init) = (format!("{prefix}.self_attn.rotations"), Init::Normal(0.0, 1.0));
        out.push(TensorSpec { name, shape, init, trained: false });
    }
}

impl Loader<'_> {
    /// Of all layers.
    pub(super) fn attending(&mut self) -> Result<AttentionPattern> {
        let a = self.architecture();
        let (local, block) = (a.attention.local_heads(), a.block.unwrap_or(a.source_length));
        let global = match a.attention {
            Attention::Softmax => return Ok(AttentionPattern::Full),
            Attention::Efficient { .. } => Global::Efficient,
            Attention::Lsh { chunk, hashes, buckets, .. } => {
                let name = |layer| format!("encoder.layers.{layer}.self_attn.rotations");
                let rotations = (0..a.encoder_layers).map(|layer| self.take(&name(layer))).collect::<Result<_>>()?;
                Global::Hashed(Hashing { chunk, rounds: hashes, buckets, rotations })
            }
        };
        Ok(AttentionPattern::Hybrid { local, block, global })
    }

    /// An encoder layer's queries, keys and values. The keys of heads that hash are their queries.
    pub(super) fn projections(&mut self, prefix: &str) -> Result<Linear> {
        let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{prefix}.self_attn.{part}"));
        let Attention::Lsh { local_heads, .. } = self.architecture().attention else { return self.joined(&names) };
        let (dim, own) = (self.architecture().dim, local_heads * (self.architecture().dim / self.architecture().heads));
        let mut both = (self.take(&format!("{}.weight", names[0]))?, self.take(&format!("{}.bias", names[0]))?);
        let shared = (both.0[own * dim..].to_vec(), both.1[own..].to_vec());
        if own > 0 {
            both.0.extend(self.take(&format!("{}.weight", names[1]))?);
            both.1.extend(self.take(&format!("{}.bias", names[1]))?);
        }
        both.0.extend(shared.0);
        both.1.extend(shared.1);
        both.0.extend(self.take(&format!("{}.weight", names[2]))?);
        both.1.extend(self.take(&format!("{}.bias", names[2]))?);
        self.pack(&both.0, &both.1)
    }
}
