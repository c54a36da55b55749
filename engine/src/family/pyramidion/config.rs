//! The `architecture` of a checkpoint of this family, and its bounds.

use crate::{
    error::Result,
    family::parts::check::Check,
    nn::{Activation, topk::PoolerKind},
};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Ids of the special symbols with which all fairseq dictionaries begin: `<s>`, `<pad>`, `</s>`, `<unk>`.
pub(super) const SPECIAL_IDS: [u32; 4] = [0, 1, 2, 3];
/// Id of padding.
pub(super) const PAD: u32 = 1;

/// Bounds far above any model, and far below an overflow of their products.
const MAX_LENGTH: usize = 1 << 24;
const MAX_HASH_ROUNDS: usize = 64;
const MAX_HASH_BUCKETS: usize = 1 << 16;

/// `architecture` of a checkpoint.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Layers of the encoder.
    pub encoder_layers: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Width D of the residual stream.
    pub dim: usize,
    /// Attention heads H, of D/H numbers each.
    pub heads: usize,
    /// Inner width F of the feed-forward.
    pub feed_forward: usize,
    /// Nonlinearity of the feed-forward.
    pub activation: Activation,
    /// Added to the variance in every LayerNorm.
    pub layer_norm_eps: f32,
    /// True if norms precede the sub-layers, with one more norm at the end of each stack.
    pub pre_norm: bool,
    /// Maximum tokens of a document; shorter ones are padded to this length if `padded`.
    pub source_length: usize,
    /// Maximum symbols of a target, the start symbol included.
    pub target_length: usize,
    /// Attention of the encoder.
    #[serde(default)]
    pub attention: AttentionKind,
    /// Vectors of an attention block of the encoder, or of its local heads; `None` if every vector attends to all.
    pub block: Option<usize>,
    /// Pooling between the encoder's layers.
    pub pooling: DocumentPooling,
    /// True if the decoder's input has positions.
    pub decoder_positions: bool,
    /// True if embeddings are multiplied by √D before positions are added.
    #[serde(default = "always")]
    pub scale_embedding: bool,
    /// True if short documents are padded: padding is then part of the model, and every document has the same length.
    #[serde(default = "always")]
    pub padded: bool,
}

fn always() -> bool {
    true
}

/// Attention of an encoder (arXiv 2009.05169, §5 and appendix C).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AttentionKind {
    /// Softmax over a block or over all vectors.
    #[default]
    Softmax,
    /// See [`efficient`](crate::nn::attention::encoder_attention::efficient).
    Efficient {
        /// Number of the first heads, which attend to blocks.
        local_heads: usize,
    },
    /// See [`hashed`](crate::nn::attention::encoder_attention::hashed).
    Lsh {
        /// Number of the first heads, which attend to blocks.
        local_heads: usize,
        /// Vectors of a chunk.
        chunk: usize,
        /// Hash rounds.
        hashes: usize,
        /// Buckets of a round.
        buckets: usize,
    },
}

impl AttentionKind {
    /// Returns the kind's name, unless it is softmax.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Self::Softmax => None,
            Self::Efficient { .. } => Some("efficient"),
            Self::Lsh { .. } => Some("lsh"),
        }
    }

    /// Returns the number of local heads, next to global ones.
    pub(super) fn local_heads(self) -> usize {
        match self {
            Self::Softmax => 0,
            Self::Efficient { local_heads } | Self::Lsh { local_heads, .. } => local_heads,
        }
    }

    /// Returns the numbers of a layer's random rotations; `None` if they overflow.
    fn rotation_numbers(self, dim: usize) -> Option<usize> {
        match self {
            Self::Lsh { hashes, buckets, .. } => dim.checked_mul(hashes)?.checked_mul(buckets / 2),
            _ => Some(0),
        }
    }
}

/// Pooling between an encoder's layers. `lengths` maps layers, numbered from 0, to the vectors that are left after them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DocumentPooling {
    /// No pooling.
    None {},
    /// See [`halving`](crate::nn::topk::halving).
    SuccessiveHalving {
        /// Vectors that are left after layers.
        lengths: BTreeMap<String, usize>,
        /// True if the best vector is paired with the worst.
        flip_right: bool,
        /// True if the remaining vectors return to the document's order.
        sort_back: bool,
        /// Source of the scores.
        #[serde(default)]
        scorer: ScorerKind,
    },
    /// See [`HardTopK`](crate::nn::topk::simple::HardTopK).
    HardTopK {
        /// Vectors that are left after layers.
        lengths: BTreeMap<String, usize>,
        /// True if the remaining vectors return to the document's order.
        sort_back: bool,
        /// Source of the scores.
        #[serde(default)]
        scorer: ScorerKind,
    },
    /// Means of windows: see [`WindowPooler`](crate::nn::topk::simple::WindowPooler).
    Mean {
        /// Vectors that are left after layers.
        lengths: BTreeMap<String, usize>,
    },
    /// Maxima of windows.
    Max {
        /// Vectors that are left after layers.
        lengths: BTreeMap<String, usize>,
    },
    /// Means of windows, upsampled after the last layer (Funnel, Dai et al. 2020). Each position's vector is its window's plus its
    /// own before the first pooling, so the decoder attends to as many vectors as without pooling.
    Funnel {
        /// Vectors that are left after layers.
        lengths: BTreeMap<String, usize>,
    },
}

/// Source of the scores by which a pooling selects (arXiv 2009.05169, appendix A).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScorerKind {
    /// σ(w·x + b)
    #[default]
    Linear,
    /// σ(w·tanh(W·x + c) + b)
    Ffn,
    /// σ(x_j)
    Embedding {
        /// j, from 0.
        dimension: usize,
    },
    /// 1 at positions 0, k, 2k …, else 0.
    Index {
        /// k
        every: usize,
    },
    /// The attention weight that the vector received in the layer before, summed over heads and queries (PoWER, Goyal et al.
    /// 2020).
    Attention,
    /// Uniform noise, a function of the seed, the layer and the position.
    Random {
        /// Seed of the noise.
        seed: u64,
    },
}

impl DocumentPooling {
    /// Returns the kind of pooling, if there is any.
    pub fn kind(&self) -> Option<PoolerKind> {
        match *self {
            Self::None {} => None,
            Self::SuccessiveHalving { flip_right, sort_back, .. } => {
                Some(PoolerKind::Halving { flip_right, sort_back })
            }
            Self::HardTopK { sort_back, .. } => Some(PoolerKind::HardTopK { sort_back }),
            Self::Mean { .. } | Self::Funnel { .. } => Some(PoolerKind::Mean),
            Self::Max { .. } => Some(PoolerKind::Max),
        }
    }

    /// Returns the vectors that are left after layers.
    pub fn lengths(&self) -> Option<&BTreeMap<String, usize>> {
        match self {
            Self::None {} => None,
            Self::SuccessiveHalving { lengths, .. }
            | Self::HardTopK { lengths, .. }
            | Self::Mean { lengths }
            | Self::Max { lengths }
            | Self::Funnel { lengths } => Some(lengths),
        }
    }

    /// Returns the source of the scores, if the pooling selects by scores.
    pub fn scorer(&self) -> Option<ScorerKind> {
        match self {
            Self::SuccessiveHalving { scorer, .. } | Self::HardTopK { scorer, .. } => Some(*scorer),
            _ => None,
        }
    }
}

impl Architecture {
    /// Checks every bound except those of the pooled lengths. The error names the first key that is out of bounds.
    pub(super) fn validate(&self, symbols: usize, check: Check<'_>) -> Result<()> {
        check.layers("encoder_layers", self.encoder_layers)?;
        check.layers("decoder_layers", self.decoder_layers)?;
        check.dim("dim", self.dim)?;
        check.dim("heads", self.heads)?;
        check.dim("feed_forward", self.feed_forward)?;
        for (key, length) in [("source_length", self.source_length), ("block", self.block.unwrap_or(1))] {
            if !(1..=MAX_LENGTH).contains(&length) {
                return check.fail(key, format!("1 to {MAX_LENGTH}"), length);
            }
        }
        if !(2..=MAX_LENGTH).contains(&self.target_length) {
            return check.fail("target_length", format!("2 to {MAX_LENGTH}"), self.target_length);
        }
        if !self.dim.is_multiple_of(2) {
            return check.fail("dim", "an even number (half sines, half cosines)", self.dim);
        }
        if !self.dim.is_multiple_of(self.heads) {
            return check.fail("heads", format!("a divisor of dim, {}", self.dim), self.heads);
        }
        check.fraction("layer_norm_eps", self.layer_norm_eps)?;
        self.validate_attention(check)?;
        self.validate_scorer(check)?;
        check.parameters("dim", self.max_parameters(symbols))
    }

    fn validate_attention(&self, check: Check<'_>) -> Result<()> {
        let Some(name) = self.attention.name() else { return Ok(()) };
        let key = |key: &str| format!("attention.{name}.{key}");
        let local = self.attention.local_heads();
        if local >= self.heads {
            return check.fail(key("local_heads"), format!("fewer than heads, {}", self.heads), local);
        }
        if (local > 0) != self.block.is_some() {
            let expected = if local > 0 { "the block that local heads attend to" } else { "null: no head is local" };
            let found = self.block.map_or("null".into(), |block| block.to_string());
            return check.fail("block", expected, found);
        }
        if self.padded {
            return check.fail("padded", format!("false, with {name} attention"), true);
        }
        if self.pooling.scorer() == Some(ScorerKind::Attention) {
            let expected = format!("another scorer: {name} attention has no weights to sum");
            return check.fail("pooling.scorer", expected, "attention");
        }
        let AttentionKind::Lsh { chunk, hashes, buckets, .. } = self.attention else { return Ok(()) };
        if !(1..=self.source_length).contains(&chunk) {
            let expected = format!("1 to source_length, {}", self.source_length);
            return check.fail(key("chunk"), expected, chunk);
        }
        if !(1..=MAX_HASH_ROUNDS).contains(&hashes) {
            return check.fail(key("hashes"), format!("1 to {MAX_HASH_ROUNDS}"), hashes);
        }
        if !(2..=MAX_HASH_BUCKETS).contains(&buckets) || !buckets.is_multiple_of(2) {
            let expected = format!("an even number from 2 to {MAX_HASH_BUCKETS}");
            return check.fail(key("buckets"), expected, buckets);
        }
        Ok(())
    }

    fn validate_scorer(&self, check: Check<'_>) -> Result<()> {
        match self.pooling.scorer() {
            Some(ScorerKind::Embedding { dimension }) if dimension >= self.dim => {
                let expected = format!("0 to {}: one of dim", self.dim - 1);
                check.fail("pooling.scorer.embedding.dimension", expected, dimension)
            }
            Some(ScorerKind::Attention) if matches!(self.pooling, DocumentPooling::SuccessiveHalving { .. }) => {
                let expected = "scores near 1, which weights are powers of, or hard-top-k";
                check.fail("pooling.scorer", expected, "attention")
            }
            Some(ScorerKind::Index { every: 0 }) => check.fail("pooling.scorer.index.every", "at least 1", 0),
            _ => Ok(()),
        }
    }

    /// Returns an upper bound on the numbers in all tensors; `None` if it overflows.
    fn max_parameters(&self, symbols: usize) -> Option<usize> {
        // A decoder layer has two attentions, a pooled encoder layer a scorer of up to one matrix.
        let rows = self.dim.checked_mul(10)?.checked_add(self.feed_forward.checked_mul(2)?)?;
        let matrices = rows.checked_mul(self.dim.checked_add(2)?)?;
        let layer = matrices.checked_add(self.attention.rotation_numbers(self.dim)?)?;
        layer.checked_mul(self.encoder_layers + self.decoder_layers)?.checked_add(symbols.checked_mul(self.dim)?)
    }
}
