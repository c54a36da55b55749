//! Encoder-decoders that pool their document: the Pyramidion, the Transpooler, and the blockwise and vanilla baselines.
//!
//! Paper: Trainable Representation Pooling (Pietruszka et al., ACL 2022, arXiv 2009.05169). Read from applicaai/pyramidions at
//! commit fa9dddc, `fairseq/examples/deep_pyramidion/`: `pyramidion.py`, `pooler_utils.py` and `successive_halving_topk.py`,
//! which precede its older snapshot `deep_pyramidion.tar.xz` and pietruh/deep-pyramidion at commit ef0f2aa.
//!
//! The encoder's vectors attend within blocks. Between layers successive halving keeps those with the best scores, and the
//! decoder attends to what is left. Padding is part of the model: every document has the maximum length. Vectors of padding are
//! equal, so a block of padding is computed once per model and other padding once per document.

use crate::{
    checkpoint::{self, Config, require},
    contract::{
        BoundaryOptions, Card, Cost, Document, DocumentEncoder, DocumentLimits, Encoding, EncodingProgress,
        EncodingStage, GenerationDefaults, KeptVector, KvMemory, LayerTime, Model, PoolingChoice, PoolingStep, Scratch,
        SequenceRow, SpecialIds, State, encoding_mut,
    },
    family::{
        Blueprint, Parts, TensorSpec,
        decoder::{self, Decoder, DecoderState},
        parts::{
            self, Check, EncoderHook, EncoderHookPoint, FIRST_SINUSOID, Tensors, TokenLimits, check_generation, linear,
            memory_document, needs_document, needs_scores, norm, push_tokens, start_attention, work_mut,
        },
        settings::Bounds,
    },
    nn::{
        Activation, ConfigError, Position,
        attention::{Cross, Layer, NormOrder, Stack, project_memory},
        encoder::{AttentionPattern, EncoderStack, EncoderWork, Global, Hashing},
        kv_cache::{KvCache, PagedVectors},
        position::{Absolute, PositionScheme, frequencies},
        sized,
        topk::{EPSILON, PooledVectors, PoolerInput, PoolerKind},
        window::Window,
    },
    random::{Purpose, uniform},
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};
use weir_kernels::{
    attention::{PageLayout, attend_dense},
    distribution::sigmoid,
    error::{Error, Result},
    linear::Linear,
    memory::{cast, cast_mut},
    pages::{Page, PagePool},
    rowwise::{LayerNorm, layer_norm},
};

/// Ids of the special symbols with which all fairseq dictionaries begin: `<s>`, `<pad>`, `</s>`, `<unk>`.
const SPECIAL_IDS: [u32; 4] = [0, 1, 2, 3];

const PAD: u32 = 1;

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
    /// See [`Global::Efficient`].
    Efficient {
        /// Number of the first heads, which attend to blocks.
        local_heads: usize,
    },
    /// See [`Hashing`].
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
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Softmax => None,
            Self::Efficient { .. } => Some("efficient"),
            Self::Lsh { .. } => Some("lsh"),
        }
    }

    /// Returns the number of local heads, next to global ones.
    fn local_heads(self) -> usize {
        match self {
            Self::Softmax => 0,
            Self::Efficient { local_heads } | Self::Lsh { local_heads, .. } => local_heads,
        }
    }
}

/// Pooling between an encoder's layers. `lengths` maps layers, numbered from 0, to the vectors that are left after them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DocumentPooling {
    /// No pooling.
    None {},
    /// See [`Halving`](crate::nn::topk::Halving).
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
    /// See [`HardTopK`](crate::nn::topk::HardTopK).
    HardTopK {
        /// Vectors that are left after layers.
        lengths: BTreeMap<String, usize>,
        /// True if the remaining vectors return to the document's order.
        sort_back: bool,
        /// Source of the scores.
        #[serde(default)]
        scorer: ScorerKind,
    },
    /// Means of windows: see [`WindowPooler`](crate::nn::topk::WindowPooler).
    Mean {
        /// Vectors that are left after layers.
        lengths: BTreeMap<String, usize>,
    },
    /// Maxima of windows.
    Max {
        /// Vectors that are left after layers.
        lengths: BTreeMap<String, usize>,
    },
    /// Means of windows, upsampled after the last layer (Funnel, Dai et al. 2020): the decoder attends to all positions.
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
    /// Checks every bound except the bounds of pooled lengths. The error names the first key that is out of bounds.
    fn validate(&self, check: Check<'_>) -> Result<()> {
        check.layers("encoder_layers", self.encoder_layers)?;
        check.layers("decoder_layers", self.decoder_layers)?;
        check.dims([("dim", self.dim), ("heads", self.heads), ("feed_forward", self.feed_forward)])?;
        check.range("source_length", self.source_length, 1..=MAX_LENGTH)?;
        check.range("block", self.block.unwrap_or(1), 1..=MAX_LENGTH)?;
        check.range("target_length", self.target_length, 2..=MAX_LENGTH)?;
        let even = self.dim.is_multiple_of(2);
        check.require(even, "dim", "an even number (half sines, half cosines)", self.dim)?;
        let divides = self.dim.is_multiple_of(self.heads);
        check.require(divides, "heads", format!("a divisor of dim, {}", self.dim), self.heads)?;
        check.fraction("layer_norm_eps", self.layer_norm_eps)?;
        self.validate_attention(check)?;
        self.validate_scorer(check)
    }

    fn validate_attention(&self, check: Check<'_>) -> Result<()> {
        let Some(name) = self.attention.name() else { return Ok(()) };
        let key = |key: &str| format!("attention.{name}.{key}");
        let local = self.attention.local_heads();
        check.require(local < self.heads, key("local_heads"), format!("fewer than heads, {}", self.heads), local)?;
        if (local > 0) != self.block.is_some() {
            let expected = if local > 0 { "the block that local heads attend to" } else { "null: no head is local" };
            let found = self.block.map_or("null".into(), |block| block.to_string());
            return check.fail("block", expected, found);
        }
        check.require(!self.padded, "padded", format!("false, with {name} attention"), true)?;
        let expected = format!("another scorer: {name} attention has no weights to sum");
        let has_weights = self.pooling.scorer() != Some(ScorerKind::Attention);
        check.require(has_weights, "pooling.scorer", expected, "attention")?;
        let AttentionKind::Lsh { chunk, hashes, buckets, .. } = self.attention else { return Ok(()) };
        let expected = format!("1 to source_length, {}", self.source_length);
        check.require((1..=self.source_length).contains(&chunk), key("chunk"), expected, chunk)?;
        check.range(key("hashes"), hashes, 1..=MAX_HASH_ROUNDS)?;
        let valid = (2..=MAX_HASH_BUCKETS).contains(&buckets) && buckets.is_multiple_of(2);
        check.require(valid, key("buckets"), format!("an even number from 2 to {MAX_HASH_BUCKETS}"), buckets)
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
}

/// A validated encoder-decoder.
#[derive(Debug, Clone)]
pub struct PyramidionBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// The encoder's layer groups and poolings.
    plan: EncoderPlan,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Reads an encoder-decoder's architecture. Fails if a key is invalid, or if no pooling produces the lengths.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let expected = "`size`, and optionally `tokenizer`: this family's symbols are subwords";
    require(vocabulary.is_subword(), file, "vocabulary", expected, "characters or bytes")?;
    let expected = format!("more than {}: the first ids are special symbols", SPECIAL_IDS.len());
    require(vocabulary.len() > SPECIAL_IDS.len(), file, "vocabulary.size", expected, vocabulary.len())?;
    let invalid = |ConfigError { key, expected, found }: ConfigError| {
        Error::checkpoint(file, format!("architecture.{key}"), expected, found)
    };
    architecture.validate(Check { file })?;
    let plan = EncoderPlan::new(&architecture).map_err(invalid)?;
    check_generation(config, architecture.target_length, file)?;
    let blueprint = PyramidionBlueprint { architecture, plan, symbols: vocabulary.len() };
    Check { file }.tensors("dim", &blueprint.tensors())?;
    Ok(Box::new(blueprint))
}

impl PyramidionBlueprint {
    fn encoder_layer(&self, out: &mut Vec<TensorSpec>, prefix: &str) {
        let a = &self.architecture;
        // Global heads that hash have no keys of their own: a key is the query.
        let keys = match a.attention {
            AttentionKind::Lsh { local_heads, .. } => local_heads * (a.dim / a.heads),
            _ => a.dim,
        };
        for (part, outputs) in [("q_proj", a.dim), ("k_proj", keys), ("v_proj", a.dim)] {
            if outputs > 0 {
                linear(out, &format!("{prefix}.self_attn.{part}"), outputs, a.dim);
            }
        }
        if let AttentionKind::Lsh { local_heads, hashes, buckets, .. } = a.attention {
            let shape = vec![a.heads - local_heads, hashes, a.dim / a.heads, buckets / 2];
            let name = format!("{prefix}.self_attn.rotations");
            out.push(TensorSpec { trained: false, ..TensorSpec::normal(name, shape, 0.0, 1.0) });
        }
        linear(out, &format!("{prefix}.self_attn.out_proj"), a.dim, a.dim);
        norm(out, &format!("{prefix}.self_attn_layer_norm"), a.dim);
        self.feed_forward(out, prefix);
    }

    fn decoder_layer(&self, out: &mut Vec<TensorSpec>, prefix: &str) {
        let dim = self.architecture.dim;
        for attention in ["self_attn", "encoder_attn"] {
            for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                linear(out, &format!("{prefix}.{attention}.{part}"), dim, dim);
            }
            norm(out, &format!("{prefix}.{attention}_layer_norm"), dim);
        }
        self.feed_forward(out, prefix);
    }

    fn feed_forward(&self, out: &mut Vec<TensorSpec>, prefix: &str) {
        let Architecture { dim, feed_forward, .. } = self.architecture;
        linear(out, &format!("{prefix}.fc1"), feed_forward, dim);
        linear(out, &format!("{prefix}.fc2"), dim, feed_forward);
        norm(out, &format!("{prefix}.final_layer_norm"), dim);
    }
}

// The encoder's work on a document, derived from the architecture: groups of layers and the poolings between them.

/// Maximum vectors of one block of work, unless an attention block has more.
const MAX_UNIT: usize = 512;

/// Layers between two poolings, and the pooling after them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LayerGroup {
    first: usize,
    /// One past the last layer.
    end: usize,
    /// Input vectors of the longest document.
    length: usize,
    /// Vectors of an attention block; `None` if every vector attends to all.
    block: Option<usize>,
    /// Factor by which the pooling after the last layer shrinks the document; `None` without pooling.
    factor: Option<usize>,
}

/// The encoder's work on a document.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EncoderPlan {
    /// Groups in order; the last one has no layers if the encoder ends with a pooling.
    groups: Vec<LayerGroup>,
    /// True if every document is padded to the maximum length.
    padded: bool,
    /// True if attention masks padding: in encoders without blocks and pooling.
    masks_padding: bool,
    rejects_padding: bool,
    /// True if the decoder attends to as many vectors as there are tokens, despite pooling.
    upsamples: bool,
}

impl EncoderPlan {
    /// Derives the plan from a checked architecture. Fails if no pooling produces a length.
    fn new(a: &Architecture) -> Result<Self, ConfigError> {
        let mut groups = Vec::new();
        let mut first = 0;
        let mut length = a.source_length;
        // With local and global heads a layer needs the whole document.
        let block = a.block.filter(|_| a.attention == AttentionKind::Softmax);
        for (layer, kept) in pooled_lengths(a)? {
            let key = || format!("pooling.lengths.{layer}");
            if kept == length {
                return Err(ConfigError::new(key(), format!("fewer than the {length} vectors that come in"), kept));
            }
            if let Some(kind) = a.pooling.kind() {
                kind.pooler(length, kept).map_err(|rule| ConfigError::new(key(), rule, kept))?;
            }
            groups.push(LayerGroup { first, end: layer + 1, length, block, factor: Some(length / kept) });
            first = layer + 1;
            length = kept;
        }
        groups.push(LayerGroup { first, end: a.encoder_layers, length, block, factor: None });
        let upsamples = matches!(a.pooling, DocumentPooling::Funnel { .. });
        // Cutting to whole blocks must not drop vectors of the last group, nor any that upsampling reads.
        let drops = |group: &&LayerGroup| {
            let whole = group.block.is_none_or(|block| group.length.is_multiple_of(block.min(group.length)));
            (upsamples || group.factor.is_none()) && a.padded && group.first < group.end && !whole
        };
        if let Some(group) = groups.iter().find(drops) {
            let expected = format!("a divisor of {}: whole blocks drop the remainder", group.length);
            return Err(ConfigError::new("block", expected, block.unwrap_or(0)));
        }
        Ok(Self {
            groups,
            padded: a.padded,
            masks_padding: block.is_none() && a.pooling == DocumentPooling::None {},
            rejects_padding: a.attention != AttentionKind::Softmax,
            upsamples,
        })
    }

    fn pooled_layers(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().filter(|group| group.factor.is_some()).map(|group| group.end - 1)
    }

    /// Returns the vectors of the longest document, before and after each pooling.
    fn lengths(&self) -> Vec<usize> {
        self.groups.iter().map(|group| group.length).collect()
    }

    /// Returns the vectors of the longest document that the decoder attends to.
    fn memory_length(&self) -> usize {
        let group = if self.upsamples { self.groups.first() } else { self.groups.last() };
        group.map_or(0, |group| group.length)
    }
}

impl LayerGroup {
    /// Returns the vectors of an attention block; all of the longest document if every vector attends to all.
    fn block_len(&self) -> usize {
        self.block.unwrap_or(self.length).min(self.length)
    }

    /// Returns the vectors that go through a layer at a time: a multiple of the attention block, and a page of vectors.
    fn unit(&self) -> usize {
        match self.block {
            Some(_) => self.block_len() * (MAX_UNIT / self.block_len()).max(1),
            None => MAX_UNIT,
        }
    }
}

/// Returns the layers that a pooling follows, in order, each with the vectors that are left.
fn pooled_lengths(a: &Architecture) -> Result<Vec<(usize, usize)>, ConfigError> {
    let Some(lengths) = a.pooling.lengths() else { return Ok(Vec::new()) };
    if lengths.is_empty() {
        return Err(ConfigError::new("pooling.lengths", "at least one layer", "none"));
    }
    let layer = |key: &String| {
        let number: Option<usize> = key.parse().ok().filter(|layer| *layer < a.encoder_layers);
        number.filter(|number| number.to_string() == *key).ok_or_else(|| {
            ConfigError::new(
                "pooling.lengths",
                format!("layers from 0 to {}", a.encoder_layers - 1),
                format!("{key:?}"),
            )
        })
    };
    let all: Result<Vec<_>, _> = lengths.iter().map(|(key, &kept)| Ok((layer(key)?, kept))).collect();
    let mut all = all?;
    all.sort_unstable();
    Ok(all)
}

/// A document that is being encoded.
pub struct PyramidionEncoding {
    plan: Arc<EncoderPlan>,
    /// Vocabulary size V.
    symbols: usize,
    tokens: Vec<u32>,
    closed: bool,
    /// True if poolings keep vectors unchanged instead of mixing them.
    hard: bool,
    /// Index of the layer group that runs; one past the last while the decoder's keys and values are projected.
    group: usize,
    /// Next unit of work in the group.
    cursor: Cursor,
    /// Distinct vectors of the group; in the first group, of the tokens embedded so far.
    vectors: PagedVectors,
    /// Index of each position's vector; in the first group filled when the group ends.
    vector_index: Vec<u32>,
    /// The token that each position's vector came from.
    origins: Vec<usize>,
    /// Embedded tokens that are not padding: the next token's position.
    next_position: usize,
    /// Keys, values and queries of the layer that runs, if every vector attends to all.
    keys: Option<LayerKeys>,
    /// Attention weight that each vector received in the group's last layer, if the pooling scores by it.
    mass: Vec<f32>,
    /// Vectors before the first pooling, if the decoder attends to all positions.
    unpooled: Option<UnpooledVectors>,
    memory: Option<KvCache>,
    blocks: usize,
    choices: Vec<PoolingChoice>,
    timings: Vec<LayerTime>,
    memory_ns: u64,
    document: Option<Arc<Document>>,
}

/// Place of a unit of work in its layer group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cursor {
    /// Page of the group's vectors.
    page: usize,
    /// Layer, counted from the group's first.
    layer: usize,
    /// True if all keys of the layer are written, where every vector attends to all.
    attending: bool,
}

/// Next unit of work: a page of vectors through one step.
enum WorkUnit {
    /// A layer with attention within blocks of this many vectors.
    BlockwiseLayer { layer: usize, block: usize },
    /// First half of a layer with full attention: queries, keys and values.
    Keys { layer: usize },
    /// Second half of a layer with full attention.
    FullLayer { layer: usize },
    /// The decoder's keys and values.
    Memory,
}

/// Keys and values of one layer, and the queries that read them.
struct LayerKeys {
    store: Page,
    /// Keys written.
    count: usize,
    queries: PagedVectors,
}

struct UnpooledVectors {
    vectors: PagedVectors,
    /// Index of each position's vector.
    index: Vec<u32>,
}

impl PyramidionEncoding {
    /// Returns the layer group that runs; `None` while the decoder's keys and values are projected.
    fn group(&self) -> Option<&LayerGroup> {
        self.plan.groups.get(self.group)
    }

    /// Returns the document's positions in the first group: padded, and cut to whole blocks.
    fn first_length(&self) -> usize {
        let Some(first) = self.plan.groups.first() else { return 0 };
        self.whole_blocks(first, if self.plan.padded { first.length } else { self.tokens.len() })
    }

    /// Returns how many of `length` positions lie in whole blocks.
    fn whole_blocks(&self, group: &LayerGroup, length: usize) -> usize {
        match group.block {
            Some(block) if self.plan.padded => length / block.min(length).max(1) * block.min(length),
            _ => length,
        }
    }

    /// Returns how many of the first group's positions have a vector of their own; all others share the padding's.
    fn distinct_vectors(&self) -> usize {
        match self.plan.groups.first() {
            Some(first) if first.block.is_none() => self.tokens.iter().filter(|&&token| token != PAD).count(),
            Some(first) if self.plan.padded => {
                self.tokens.len().next_multiple_of(first.block_len()).min(self.first_length())
            }
            _ => self.tokens.len(),
        }
    }

    /// Returns how many positions share the padding vector: in the first group, with full attention.
    fn padding_positions(&self) -> usize {
        if self.group == 0 { self.first_length() - self.distinct_vectors() } else { 0 }
    }

    /// Returns the keys of a layer with full attention.
    fn key_count(&self) -> usize {
        match self.group {
            0 if self.plan.masks_padding => self.distinct_vectors(),
            0 => self.first_length(),
            _ => self.vectors.len(),
        }
    }

    /// Returns the pages of vectors that go through each layer of the group.
    fn pages(&self, group: &LayerGroup) -> usize {
        if self.group > 0 {
            return self.vectors.pages();
        }
        let padding = usize::from(group.block.is_none() && self.padding_positions() > 0);
        (self.distinct_vectors() + padding).div_ceil(group.unit())
    }

    /// Returns true if the current page is the last one of the group's vectors.
    fn is_last_page(&self) -> bool {
        self.group().is_some_and(|group| self.cursor.page + 1 == self.pages(group))
    }

    /// Returns how many vectors must be embedded before the first layer takes the current page.
    fn embedded_length(&self, group: &LayerGroup) -> usize {
        let available = match group.block {
            Some(_) if !self.closed => self.tokens.len(),
            Some(_) => self.distinct_vectors(),
            None => self.distinct_vectors() + usize::from(self.padding_positions() > 0),
        };
        available.min((self.cursor.page + 1) * group.unit())
    }

    /// Returns true if all units of the group ran and no more tokens come.
    fn group_done(&self) -> bool {
        let Some(group) = self.group().filter(|_| self.closed) else { return false };
        let layers = group.end - group.first;
        let done =
            if group.block.is_some() { self.cursor.page == self.pages(group) } else { self.cursor.layer == layers };
        layers == 0 || done
    }

    /// Returns true if the tokens of the next unit have arrived.
    fn can_run(&self) -> bool {
        match self.plan.groups.first() {
            Some(first) if self.group == 0 && !self.closed => {
                // Blocks run before the document ends once all their tokens have arrived.
                first.block.is_some() && self.tokens.len() >= (self.cursor.page + 1) * first.unit()
            }
            _ => self.document.is_none(),
        }
    }

    fn unit(&self) -> WorkUnit {
        let Some(group) = self.group() else { return WorkUnit::Memory };
        let layer = group.first + self.cursor.layer;
        match group.block {
            Some(_) => WorkUnit::BlockwiseLayer { layer, block: group.block_len() },
            None if self.cursor.attending => WorkUnit::FullLayer { layer },
            None => WorkUnit::Keys { layer },
        }
    }

    /// Moves on to the next unit, or creates the document. In blockwise attention, a page passes through all layers of the group
    /// before the next page does; in full attention, all pages pass through a layer twice.
    fn advance(&mut self, started: Instant) {
        self.blocks += 1;
        let Cursor { page, layer, attending } = self.cursor;
        let Some(group) = self.group() else {
            self.memory_ns += elapsed(started);
            self.cursor.page += 1;
            let (vectors, distinct) = self.memory_vectors();
            if self.cursor.page == distinct.div_ceil(self.vectors.per_page()) {
                self.finish(vectors);
            }
            return;
        };
        let absolute = group.first + layer;
        self.cursor = match group.block {
            Some(_) if absolute + 1 == group.end => Cursor { page: page + 1, ..Cursor::default() },
            Some(_) => Cursor { layer: layer + 1, ..self.cursor },
            None if page + 1 < self.pages(group) => Cursor { page: page + 1, ..self.cursor },
            None if !attending => Cursor { page: 0, layer, attending: true },
            None => {
                self.keys = None;
                Cursor { layer: layer + 1, ..Cursor::default() }
            }
        };
        self.timings[absolute].ns += elapsed(started);
    }

    /// Ends the group that `group` is: the next one begins, or the projection of the decoder's keys and values.
    fn end_group(&mut self, group: &LayerGroup) {
        for time in &mut self.timings[group.first..group.end] {
            time.length = self.vector_index.len();
        }
        self.cursor = Cursor::default();
        self.group += 1;
    }

    /// Sets the vector of each position at the end of the first group; `padding` is the index of the padding vector.
    fn index_positions(&mut self, blockwise: bool, padding: u32) {
        let length = self.first_length();
        if blockwise {
            self.vector_index = (0..length as u32).map(|position| position.min(padding)).collect();
        } else {
            let mut next = 0..padding;
            let mut vector = |position: usize| match self.tokens.get(position) {
                Some(&token) if token != PAD => next.next().unwrap_or(padding),
                _ => padding,
            };
            self.vector_index = (0..length).map(&mut vector).collect();
        }
        self.origins = (0..length).collect();
    }

    /// Replaces the vectors with the output of the pooling after `group`, cut to whole blocks of the next group.
    fn take_pooled(&mut self, group: &LayerGroup, factor: usize, pooled: PooledVectors, started: Instant) {
        // Zero vectors that pad the pooling's input have origins after all tokens.
        let origin = |position: usize| self.origins.get(position).copied().unwrap_or(self.tokens.len() + position);
        let origins: Vec<usize> = match pooled.winners.is_empty() {
            true => (0..pooled.vectors.len()).map(|window| origin(window * factor)).collect(),
            false => pooled.winners.iter().map(|&winner| origin(winner)).collect(),
        };
        if !pooled.winners.is_empty() {
            let kept = origins.iter().zip(&pooled.scores).map(|(&token, &score)| KeptVector { token, score }).collect();
            self.choices.push(PoolingChoice { layer: group.end - 1, kept });
        }
        self.origins = origins;
        let vectors = std::mem::replace(&mut self.vectors, pooled.vectors);
        let index = std::mem::take(&mut self.vector_index);
        if self.plan.upsamples && self.unpooled.is_none() {
            self.unpooled = Some(UnpooledVectors { vectors, index });
        }
        if let Some(next) = self.group().filter(|next| next.end > next.first) {
            let whole = self.whole_blocks(next, self.vectors.len());
            self.vectors.truncate(whole);
            self.origins.truncate(whole);
        }
        self.vector_index = (0..self.vectors.len() as u32).collect();
        self.timings[group.end - 1].ns += elapsed(started);
    }

    /// Returns how many vectors the decoder attends to, and how many of them are distinct.
    fn memory_vectors(&self) -> (usize, usize) {
        match &self.unpooled {
            Some(UnpooledVectors { index, .. }) => (index.len(), index.len()),
            None => (self.vector_index.len(), self.vectors.len()),
        }
    }

    /// Creates the document from its complete memory of `vectors`, and frees everything else.
    fn finish(&mut self, vectors: usize) {
        let Some(mut memory) = self.memory.take() else { return };
        memory.advance(vectors);
        let unpooled = if self.plan.padded { self.plan.groups[0].length } else { self.tokens.len() };
        self.vectors.truncate(0);
        self.unpooled = None;
        self.vector_index = Vec::new();
        self.origins = Vec::new();
        let choices = std::mem::take(&mut self.choices);
        let timings = std::mem::take(&mut self.timings);
        let tokens = self.tokens.len();
        self.document = Some(memory_document(tokens, memory, unpooled, choices, timings, self.memory_ns));
    }

    /// Returns the blocks of the complete document.
    fn total_blocks(&self) -> usize {
        let mut length = self.first_length();
        let mut vectors = self.distinct_vectors();
        let padding = usize::from(vectors < length);
        let mut blocks = 0;
        for (index, group) in self.plan.groups.iter().enumerate() {
            if index > 0 {
                length = self.whole_blocks(group, length);
                vectors = length;
            }
            let pages = match group.block {
                Some(_) => vectors.div_ceil(group.unit()),
                None => 2 * (vectors + if index == 0 { padding } else { 0 }).div_ceil(group.unit()),
            };
            blocks += pages * (group.end - group.first);
            if let Some(factor) = group.factor {
                length = if self.plan.padded { group.length / factor } else { length.div_ceil(factor) };
                vectors = length;
            }
        }
        let Some(last) = self.plan.groups.last() else { return 0 };
        if self.plan.upsamples {
            return blocks + self.first_length().div_ceil(last.unit());
        }
        blocks + (vectors + if self.plan.groups.len() > 1 { 0 } else { padding }).div_ceil(last.unit())
    }

    fn stage(&self) -> EncodingStage {
        if self.document.is_some() {
            return EncodingStage::Done;
        }
        match self.group() {
            Some(_) if !self.can_run() => EncodingStage::Waiting,
            Some(group) if group.first + self.cursor.layer < group.end => {
                EncodingStage::Layer(group.first + self.cursor.layer)
            }
            _ => EncodingStage::Memory,
        }
    }
}

fn elapsed(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

// Scores of vectors, by which poolings select. Logits are summed in f64 and scores are f32, for all types of weights.

/// Source of one pooling's scores, with its weights. D = width.
enum Scorer {
    /// w·x + b, w of (D)
    Linear(Vec<f32>, f32),
    /// w·tanh(W·x + c) + b: W (D, D), c (D), w (D)
    Ffn { dense: Vec<f32>, shift: Vec<f32>, weight: Vec<f32>, bias: f32 },
    /// One number of each vector.
    Embedding(usize),
    /// 1 at every k-th position.
    Index(usize),
    /// The attention weight that each vector received.
    Attention,
    /// Noise by position, from a seed of the layer's own.
    Random(u64),
}

impl Scorer {
    /// Returns a score for each position: σ(logit) + 1e-5 of its vector, a function of the position, or the attention weight of
    /// `mass`, by vector; vectors beyond it received `padding_mass`.
    fn scores(&self, input: &PoolerInput<'_>, mass: &[f32], padding_mass: f32) -> Vec<f32> {
        let positions = 0..input.index.len();
        match *self {
            Self::Attention => {
                let vectors = input.index.iter();
                vectors.map(|&vector| mass.get(vector as usize).copied().unwrap_or(padding_mass)).collect()
            }
            Self::Index(every) => {
                positions.map(|position| f32::from(u8::from(position.is_multiple_of(every)))).collect()
            }
            Self::Random(seed) => positions.map(|position| uniform(seed, Purpose::Scores, position)).collect(),
            Self::Linear(..) | Self::Ffn { .. } | Self::Embedding(_) => {
                let vectors = (0..input.vectors.len()).map(|index| input.vectors.vector(index));
                let scores: Vec<f32> = vectors.map(|x| sigmoid(self.logit(x)) + EPSILON).collect();
                input.index.iter().map(|&vector| scores[vector as usize]).collect()
            }
        }
    }

    fn logit(&self, x: &[f32]) -> f32 {
        match self {
            Self::Embedding(dimension) => x[*dimension],
            // These score positions, not vectors.
            Self::Index(_) | Self::Random(_) | Self::Attention => 0.0,
            Self::Linear(weight, bias) => (dot(weight, x) + f64::from(*bias)) as f32,
            Self::Ffn { dense, shift, weight, bias } => {
                let hidden = dense.chunks_exact(x.len()).zip(shift).map(|(row, shift)| dot(row, x) + f64::from(*shift));
                let sum: f64 = hidden.zip(weight).map(|(hidden, weight)| hidden.tanh() * f64::from(*weight)).sum();
                (sum + f64::from(*bias)) as f32
            }
        }
    }
}

/// Returns Σ a·b, in eight chains that are added up in order.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(*a) * f64::from(*b);
        }
    }
    sums.iter().sum()
}

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    decoder: decoder::Work,
    encoder: EncoderWork,
    /// One page of the encoder's output: (vectors, D)
    x: Vec<f32>,
    /// Keys and values of that page in one decoder layer: (vectors, 2·I)
    projected: Vec<f32>,
    /// Tokens that are embedded, and their positions.
    tokens: Vec<u32>,
    positions: Vec<Position>,
    /// Receives intermediate results in golden tests; `None` in servers.
    pub hook: Option<EncoderHook>,
}

impl Work {
    fn show(&mut self, point: EncoderHookPoint, first: usize, x: &[f32]) {
        if let Some(hook) = &mut self.hook {
            hook(point, first, x);
        }
    }
}

// The weights and the encoder's pass. Hot path: buffers are kept in `Work`, and pages are allocated where a layer begins. With
// attention within blocks, a page goes through all layers up to the first pooling before the next page does. With full attention
// a layer takes two passes: all pages write keys, then all of them attend.

/// A loaded encoder-decoder. D = width, V = vocabulary size, I = heads · head_dim.
pub struct Pyramidion {
    /// The decoder, and what both sides share: embedding, head, threads, pages.
    decoder: Decoder,
    encoder: EncoderStack,
    /// Position scheme of the encoder's input.
    positions: PositionScheme,
    /// Norm after the encoder's last layer, if layers do not end with one.
    encoder_norm: Option<LayerNorm>,
    /// One for each pooling that selects by scores, in order.
    scorers: Vec<Scorer>,
    /// Kind of all poolings, if there are any.
    pooling: Option<PoolerKind>,
    plan: Arc<EncoderPlan>,
    /// Vector of a block of padding after the first group: (D). Computed on first use.
    padding: Mutex<Option<Arc<[f32]>>>,
    limits: DocumentLimits,
}

impl Pyramidion {
    /// Encoder: embed → layers → score → top-k pooling → layers … → keys and values for the decoder. Runs at most `max_blocks`
    /// units of work, as far as tokens have arrived; returns how many ran.
    fn encode(&self, e: &mut PyramidionEncoding, max_blocks: usize, work: &mut Work) -> Result<usize> {
        let mut ran = 0;
        loop {
            while e.group_done() {
                self.pool(e, work)?; // (n, D) → (k, D)
            }
            if ran == max_blocks || !e.can_run() {
                return Ok(ran);
            }
            let started = Instant::now();
            if e.group == 0 && e.cursor.layer == 0 && !e.cursor.attending {
                self.embed_tokens(e, work)?; // tokens → (vectors, D)
            }
            match e.unit() {
                WorkUnit::BlockwiseLayer { layer, block } => self.blockwise_layer(e, layer, block, work)?, // (vectors, D)
                WorkUnit::Keys { layer } => self.write_keys(e, layer, work)?, // (vectors, I) each
                WorkUnit::FullLayer { layer } => self.full_layer(e, layer, work)?, // (vectors, D)
                WorkUnit::Memory => self.project_memory(e, work)?, // (k, D) → (k, 2·I) for each decoder layer
            }
            e.advance(started);
            ran += 1;
        }
    }

    /// One page of vectors through a layer with attention within blocks of `block` vectors.
    fn blockwise_layer(&self, e: &mut PyramidionEncoding, layer: usize, block: usize, work: &mut Work) -> Result<()> {
        let page = e.cursor.page;
        let x = e.vectors.page_mut(page)?;
        self.encoder.blocks(&self.decoder.compute, layer, x, block, &mut work.encoder); // (vectors, D)
        if self.scores_attention(e.group, layer) {
            self.encoder.block_mass(&self.decoder.compute, block, &work.encoder, &mut e.mass);
        }
        let first = page * e.vectors.per_page();
        work.show(EncoderHookPoint::Layer(layer), first, e.vectors.page(page));
        Ok(())
    }

    /// One page of vectors through the second half of a layer with full attention, after all keys were written.
    fn full_layer(&self, e: &mut PyramidionEncoding, layer: usize, work: &mut Work) -> Result<()> {
        let page = e.cursor.page;
        self.attend_to_keys(e, layer, &mut work.encoder)?; // (vectors, I)
        let x = e.vectors.page_mut(page)?;
        self.encoder.finish(&self.decoder.compute, layer, x, &mut work.encoder); // (vectors, D)
        let first = page * e.vectors.per_page();
        work.show(EncoderHookPoint::Layer(layer), first, e.vectors.page(page));
        Ok(())
    }

    /// Score → pooling, after the last layer of a group. The pooled vectors are the input of the next group.
    fn pool(&self, e: &mut PyramidionEncoding, work: &mut Work) -> Result<()> {
        let Some(group) = e.group().cloned() else { return Ok(()) };
        self.index_positions(e, &group, work)?;
        e.end_group(&group);
        let Some(factor) = group.factor else { return Ok(()) };
        let started = Instant::now();
        let input = PoolerInput { vectors: &e.vectors, index: &e.vector_index };
        // In a block of padding every key receives an attention weight of 1 from each head.
        let padding_mass = self.encoder.heads as f32;
        let scorer = self.scorers.get(e.group - 1);
        let scores = scorer.map_or_else(Vec::new, |scorer| scorer.scores(&input, &e.mass, padding_mass)); // (n)
        let n = if e.plan.padded { group.length } else { e.vector_index.len().next_multiple_of(factor) };
        let kind = self.pooling.map(|kind| if e.hard { kind.hardened() } else { kind });
        let pooler = kind.ok_or_else(|| "no kind of pooling".into()).and_then(|kind| kind.pooler(n, n / factor));
        let new_vectors = || self.new_vectors(e.plan.groups[e.group].unit());
        let pooled = pooler.map_err(Error::Internal)?.pool(&input, scores, &new_vectors)?; // (n, D) → (k, D)
        for page in 0..pooled.vectors.pages() {
            let first = page * pooled.vectors.per_page();
            work.show(EncoderHookPoint::Pooled(group.end - 1), first, pooled.vectors.page(page));
        }
        e.mass = Vec::new();
        e.take_pooled(&group, factor, pooled, started);
        Ok(())
    }

    /// Projects one page of the encoder's output to the decoder's keys and values.
    fn project_memory(&self, e: &mut PyramidionEncoding, work: &mut Work) -> Result<()> {
        self.gather_encoded(e, work); // (vectors, D)
        let (vectors, distinct) = e.memory_vectors();
        let first = e.cursor.page * e.vectors.per_page();
        let projections = self.decoder.stack.memory_projections();
        let memory = self.reserve_memory(&mut e.memory, vectors)?;
        let isa = self.decoder.compute.isa;
        let write = |layer: usize, index: usize, keys: &[f32], values: &[f32]| {
            // The last distinct vector may be the padding's, which stands at all positions that are left.
            let position = first + index;
            let end = if position + 1 == distinct { vectors } else { position + 1 };
            (position..end).try_for_each(|position| memory.write(isa, layer, position, keys, values))
        };
        let Work { x, projected, encoder, .. } = work;
        project_memory(&self.decoder.compute, projections, x, projected, &mut encoder.quantized, write)
    }
}

// Between an encoding's pages and the encoder's buffers: embedding, keys of full attention, padding, output.

impl Pyramidion {
    /// Embeds tokens until the current page is full: √D · embedding + position. Padding is zero.
    fn embed_tokens(&self, e: &mut PyramidionEncoding, work: &mut Work) -> Result<()> {
        let Some(group) = e.group().cloned() else { return Ok(()) };
        let before = e.vectors.len();
        let more = e.embedded_length(&group) - before;
        let dim = self.decoder.head.inputs();
        e.vectors.extend(more)?;
        work.positions.clear();
        work.tokens.clear();
        // With full attention all padding shares one vector, which comes last.
        let has_vector = |&&token: &&u32| group.block.is_some() || token != PAD;
        for &token in e.tokens.iter().filter(has_vector).skip(before).take(more) {
            work.positions.push(Position { sequence: 0, index: e.next_position });
            work.tokens.push(token);
            e.next_position += usize::from(token != PAD);
        }
        work.tokens.resize(more, PAD);
        work.positions.resize(more, Position { sequence: 0, index: 0 });
        let per_page = e.vectors.per_page();
        let x = &mut e.vectors.page_mut(before / per_page)?[before % per_page * dim..]; // (more, D)
        let Work { tokens, positions, .. } = &*work;
        self.decoder.compute.pool.for_chunks(x, dim, true, &|index, x| match tokens[index] {
            PAD => x.fill(0.0),
            token => {
                x.copy_from_slice(&self.decoder.embedding[token as usize * dim..][..dim]);
                self.positions.embed(x, &positions[index..=index]);
            }
        });
        work.show(EncoderHookPoint::Embedded, before, x);
        Ok(())
    }

    /// Writes a page's keys and values to the layer's store, and keeps its queries.
    fn write_keys(&self, e: &mut PyramidionEncoding, layer: usize, work: &mut Work) -> Result<()> {
        let attention = self.encoder.attention(layer, e.key_count());
        let inner = self.encoder.heads * self.encoder.head_dim;
        let page = e.cursor.page;
        let per_page = e.vectors.per_page();
        let is_last_page = e.is_last_page();
        // Index of the padding vector, and the positions at which its key is written.
        let padding = if e.group == 0 { e.distinct_vectors() } else { usize::MAX };
        let padding_keys = if e.plan.masks_padding { 0 } else { e.padding_positions() };
        if e.keys.is_none() {
            let mut store = self.decoder.pages.allocate(attention.floats() * size_of::<f32>())?;
            attention.reset(&mut cast_mut(store.bytes_mut()?)[..attention.floats()]);
            let queries = PagedVectors::new(self.decoder.pages.clone(), inner, per_page);
            e.keys = Some(LayerKeys { store, count: 0, queries });
        }
        let LayerKeys { store, count, queries } =
            e.keys.as_mut().ok_or_else(|| Error::Internal("no store for keys".into()))?;
        let store = &mut cast_mut(store.bytes_mut()?)[..attention.floats()];
        let x = e.vectors.page(page);
        self.encoder.project(&self.decoder.compute, layer, x, &mut work.encoder, |index, keys, values| {
            let copies = if page * per_page + index == padding { padding_keys } else { 1 };
            for _ in 0..copies {
                attention.write(store, *count, keys, values);
                *count += 1;
            }
        });
        if is_last_page {
            attention.finish_keys(&self.decoder.compute, store, *count);
        }
        let page_queries = &work.encoder.queries;
        queries.extend(page_queries.len() / inner)?;
        queries.page_mut(page)?.copy_from_slice(page_queries);
        Ok(())
    }

    /// Writes the attention of a page's queries over the layer's keys, (vectors, I), to `work.head_outputs`.
    fn attend_to_keys(&self, e: &mut PyramidionEncoding, layer: usize, work: &mut EncoderWork) -> Result<()> {
        let compute = &self.decoder.compute;
        let attention = self.encoder.attention(layer, e.key_count());
        let layout = self.encoder.store(e.key_count());
        let padding_positions = e.padding_positions();
        let has_padding = padding_positions > 0 && e.is_last_page();
        let keys = e.keys.as_ref().ok_or_else(|| Error::Internal("queries without keys".into()))?;
        let queries = keys.queries.page(e.cursor.page);
        let store = &cast(keys.store.bytes())[..attention.floats()];
        let outputs = sized(&mut work.head_outputs, queries.len());
        attention.attend(compute, store, keys.count, e.cursor.page * e.vectors.per_page(), queries, outputs);
        if self.scores_attention(e.group, layer) {
            e.mass.resize(keys.count, 0.0);
            // The padding vector, which comes last, queries once for each of its positions.
            let padding_query = if has_padding { layout.heads * layout.head_dim } else { 0 };
            let (own, padding) = queries.split_at(queries.len() - padding_query);
            let mut padding_mass = vec![0.0; keys.count];
            self.encoder.add_mass(compute, layout, store, own, &mut e.mass);
            self.encoder.add_mass(compute, layout, store, padding, &mut padding_mass);
            e.mass.iter_mut().zip(padding_mass).for_each(|(mass, padding)| *mass += padding_positions as f32 * padding);
        }
        Ok(())
    }

    /// Returns true if the pooling after `layer` scores vectors by the attention weight that they receive there.
    fn scores_attention(&self, group: usize, layer: usize) -> bool {
        let group = &self.plan.groups[group];
        let by_attention = matches!(self.scorers.first(), Some(Scorer::Attention));
        by_attention && group.factor.is_some() && layer + 1 == group.end
    }

    /// At the end of the first group, sets the vector of each position, and appends the padding's if it has one.
    fn index_positions(&self, e: &mut PyramidionEncoding, group: &LayerGroup, work: &mut Work) -> Result<()> {
        if e.group > 0 {
            return Ok(());
        }
        let distinct = e.distinct_vectors();
        e.index_positions(group.block.is_some(), distinct as u32);
        if group.block.is_some() && distinct < e.first_length() {
            let padding = self.padding_vector(group, work)?;
            e.vectors.extend(1)?;
            let per_page = e.vectors.per_page();
            let page = e.vectors.page_mut(distinct / per_page)?;
            page[distinct % per_page * padding.len()..].copy_from_slice(&padding);
        }
        Ok(())
    }

    /// Returns the vector of a block of padding after the first group, (D): the same in every document, so computed once.
    fn padding_vector(&self, group: &LayerGroup, work: &mut Work) -> Result<Arc<[f32]>> {
        let mut cached = self.padding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(padding) = &*cached {
            return Ok(padding.clone());
        }
        let block = group.block_len();
        let layout = self.encoder.store(block);
        let compute = &self.decoder.compute;
        let mut x = vec![0.0; self.decoder.head.inputs()];
        let mut store = vec![0.0; layout.floats()];
        work.show(EncoderHookPoint::Padding(None), 0, &x);
        for layer in group.first..group.end {
            self.encoder.project(compute, layer, &x, &mut work.encoder, |_, keys, values| {
                (0..block).for_each(|index| layout.write(&mut store, index, keys, values));
            });
            let outputs = sized(&mut work.encoder.head_outputs, work.encoder.queries.len());
            attend_dense(compute, layout, &store, block, &work.encoder.queries, outputs);
            self.encoder.finish(compute, layer, &mut x, &mut work.encoder);
            work.show(EncoderHookPoint::Padding(Some(layer)), 0, &x);
        }
        let padding: Arc<[f32]> = x.into();
        *cached = Some(padding.clone());
        Ok(padding)
    }

    /// Writes a page of the encoder's output to `work.x`: (vectors, D).
    fn gather_encoded(&self, e: &PyramidionEncoding, work: &mut Work) {
        let page = e.cursor.page;
        let per_page = e.vectors.per_page();
        work.x.clear();
        match &e.unpooled {
            None => work.x.extend_from_slice(e.vectors.page(page)),
            Some(UnpooledVectors { vectors, index }) => {
                let factor: usize = e.plan.groups.iter().filter_map(|group| group.factor).product();
                for (position, &vector) in index.iter().enumerate().skip(page * per_page).take(per_page) {
                    let pooled = e.vectors.vector(position / factor);
                    work.x.extend(vectors.vector(vector as usize).iter().zip(pooled).map(|(a, b)| a + b));
                }
            }
        }
        if let Some(norm) = &self.encoder_norm {
            layer_norm(&self.decoder.compute, &mut work.x, norm);
        }
        let Work { hook, x, .. } = work;
        if let Some(hook) = hook {
            hook(EncoderHookPoint::Encoded, page * per_page, x);
        }
    }

    /// Returns the document's memory, with `vectors` positions reserved.
    fn reserve_memory<'a>(&self, memory: &'a mut Option<KvCache>, vectors: usize) -> Result<&'a mut KvCache> {
        match memory {
            Some(memory) => Ok(memory),
            empty => {
                let mut memory = KvCache::new(self.decoder.stack.layout, self.decoder.pages.clone());
                memory.reserve(vectors)?;
                Ok(empty.insert(memory))
            }
        }
    }

    /// Creates an empty list of vectors, with `per_page` of them a page.
    fn new_vectors(&self, per_page: usize) -> PagedVectors {
        PagedVectors::new(self.decoder.pages.clone(), self.decoder.head.inputs(), per_page)
    }
}

// The model behind the contract: target rows, which the decoder family steps, and documents, which the encoder reads.

impl Model for Pyramidion {
    fn card(&self) -> &Card {
        &self.decoder.card
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        Err(needs_document(&self.decoder.card))
    }

    /// Decoder: embed → self-attention → cross-attention to the document's vectors → feed-forward.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.decoder.feed_symbols(rows, which, &mut work_mut::<Work>(scratch)?.decoder)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.decoder.finish(rows, which, &mut work_mut::<Work>(scratch)?.decoder)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.decoder.bytes_for(symbols)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        self.decoder.growth(state, more)
    }

    fn memory(&self) -> KvMemory {
        self.decoder.memory()
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = self.decoder.cost(symbols, segments);
        cost.symbol += parts::attention_cost(&self.decoder.stack.layout, self.plan.memory_length(), 2);
        cost
    }

    fn document_encoder(&self) -> Option<&dyn DocumentEncoder> {
        Some(self)
    }
}

impl DocumentEncoder for Pyramidion {
    fn limits(&self) -> &DocumentLimits {
        &self.limits
    }

    fn open(&self, hard: bool) -> Result<Box<dyn Encoding>> {
        if hard && !matches!(self.pooling, Some(PoolerKind::Halving { .. } | PoolerKind::HardTopK { .. })) {
            return Err(needs_scores(&self.decoder.card));
        }
        let Decoder { head, pages, .. } = &self.decoder;
        Ok(Box::new(PyramidionEncoding {
            plan: self.plan.clone(),
            symbols: head.outputs(),
            tokens: Vec::new(),
            closed: false,
            hard,
            group: 0,
            cursor: Cursor::default(),
            vectors: PagedVectors::new(pages.clone(), head.inputs(), self.plan.groups[0].unit()),
            vector_index: Vec::new(),
            origins: Vec::new(),
            next_position: 0,
            keys: None,
            mass: Vec::new(),
            unpooled: None,
            memory: None,
            blocks: 0,
            choices: Vec::new(),
            timings: vec![LayerTime { length: 0, ns: 0 }; self.encoder.layers.len()],
            memory_ns: 0,
            document: None,
        }))
    }

    fn bytes_for(&self, tokens: usize) -> usize {
        let dim = self.decoder.head.inputs();
        let first = &self.plan.groups[0];
        let positions = if self.plan.padded { first.length } else { tokens.min(first.length) };
        let mut length = positions;
        let mut unpooled = 0;
        let mut max = 0;
        for (index, group) in self.plan.groups.iter().enumerate() {
            // One vector more for the padding.
            let vectors = PagedVectors::bytes_for(length + 1, dim, group.unit());
            let keys = match group.block {
                None => self.encoder.attention(group.first, length).floats() * size_of::<f32>() + vectors,
                Some(_) => 0,
            };
            let mut pooled = 0;
            if let Some(factor) = group.factor {
                length = length.div_ceil(factor);
                let unit = self.plan.groups[index + 1].unit();
                // The vectors of two consecutive rounds exist at the same time.
                pooled = PagedVectors::bytes_for(length * factor / 2, dim, unit);
                pooled += if factor > 2 { PagedVectors::bytes_for(length * factor / 4, dim, unit) } else { 0 };
            }
            max = max.max(unpooled + vectors + keys.max(pooled));
            if index == 0 && self.plan.upsamples {
                unpooled = vectors;
            }
            if index + 1 == self.plan.groups.len() {
                let memory = if self.plan.upsamples { positions } else { length };
                max = max.max(unpooled + vectors + self.decoder.stack.layout.bytes_for(memory));
            }
        }
        max
    }

    /// Counts matrix products and attention of the encoder, and the projection for the decoder. Blocks of padding cost nothing.
    fn multiply_adds(&self, tokens: usize, _: usize) -> usize {
        let first = &self.plan.groups[0];
        let mut vectors = match first.block {
            Some(_) if self.plan.padded => tokens.next_multiple_of(first.block_len()).min(first.length),
            _ => tokens.min(first.length),
        };
        let mut sum = 0;
        for group in &self.plan.groups {
            for layer in group.first..group.end {
                let attention = |count: usize| self.encoder.attention(layer, count).multiply_adds(count);
                sum += match group.block {
                    Some(block) => vectors / block * attention(block) + attention(vectors % block),
                    None => attention(vectors),
                };
                sum += vectors * self.encoder.products(layer);
            }
            if let Some(factor) = group.factor {
                vectors = if self.plan.padded { group.length / factor } else { vectors.div_ceil(factor) };
            }
        }
        let memory = if self.plan.upsamples { tokens.min(first.length) } else { vectors };
        let projections = self.decoder.stack.memory_projections();
        sum + memory * projections.map(|(_, matrix)| matrix.inputs() * matrix.outputs()).sum::<usize>()
    }

    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize> {
        self.encode(encoding_mut(encoding)?, blocks, work_mut(scratch)?)
    }

    fn begin(&self, document: &Document) -> Result<Box<dyn State>> {
        let Decoder { stack, pages, .. } = &self.decoder;
        Ok(Box::new(DecoderState::of_document(document, stack.layout, pages)?))
    }

    fn attention(&self, document: &Document, scratch: &mut Scratch) -> Result<Vec<f32>> {
        start_attention(self, document, scratch, |scratch| Ok(&mut work_mut::<Work>(scratch)?.decoder.stack))
    }
}

impl Encoding for PyramidionEncoding {
    fn push(&mut self, tokens: &[u32]) -> Result<()> {
        let limits = TokenLimits {
            tokens: self.plan.groups.first().map_or(0, |first| first.length),
            symbols: self.symbols,
            padding: self.plan.rejects_padding.then_some(PAD),
        };
        push_tokens(&mut self.tokens, tokens, self.closed, &limits)
    }

    fn close(&mut self) -> Result<()> {
        if self.tokens.is_empty() {
            return Err(Error::bad_option("document", "none", "at least one token"));
        }
        if self.plan.masks_padding && self.tokens.iter().all(|&token| token == PAD) {
            return Err(Error::bad_option("document", "only padding", "at least one token other than padding"));
        }
        self.closed = true;
        Ok(())
    }

    fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn progress(&self) -> EncodingProgress {
        let total = self.closed.then(|| self.total_blocks());
        EncodingProgress { stage: self.stage(), blocks: self.blocks, total }
    }

    fn choices(&self) -> &[PoolingChoice] {
        &self.choices
    }

    fn document(&self) -> Option<Arc<Document>> {
        self.document.clone()
    }

    fn bytes(&self) -> usize {
        let keys = self.keys.as_ref().map_or(0, |keys| keys.store.bytes().len() + keys.queries.bytes());
        let memory = self.memory.as_ref().map_or(0, KvCache::bytes);
        let unpooled = self.unpooled.as_ref().map_or(0, |unpooled| unpooled.vectors.bytes());
        self.vectors.bytes() + unpooled + keys + memory + self.document.as_ref().map_or(0, |document| document.bytes)
    }
}

// Loading. Tensors have the names of the published code, as in docs/checkpoints.md.

impl Blueprint for PyramidionBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let deviation = (a.dim as f32).powf(-0.5);
        let mut out =
            vec![TensorSpec::normal("encoder.embed_tokens.weight", vec![self.symbols, a.dim], 0.0, deviation)];
        (0..a.encoder_layers).for_each(|index| self.encoder_layer(&mut out, &format!("encoder.layers.{index}")));
        for layer in self.plan.pooled_layers() {
            let prefix = format!("encoder.pooler.scorer.{layer}");
            match a.pooling.scorer() {
                Some(ScorerKind::Ffn) => {
                    linear(&mut out, &format!("{prefix}.dense"), a.dim, a.dim);
                    linear(&mut out, &format!("{prefix}.out_proj"), 1, a.dim);
                }
                Some(ScorerKind::Linear) => linear(&mut out, &prefix, 1, a.dim),
                _ => {}
            }
        }
        (0..a.decoder_layers).for_each(|index| self.decoder_layer(&mut out, &format!("decoder.layers.{index}")));
        if a.pre_norm {
            norm(&mut out, "encoder.layer_norm", a.dim);
            norm(&mut out, "decoder.layer_norm", a.dim);
        }
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let stacks = format!("encoder {} × {}, decoder {} × {}", a.encoder_layers, a.dim, a.decoder_layers, a.dim);
        let attention = match (a.attention.name(), a.block) {
            (None, None) => "full attention".into(),
            (None, Some(block)) => format!("blocks of {block}"),
            (Some(name), None) => format!("{name} attention"),
            (Some(name), Some(block)) => format!("{name} attention next to blocks of {block}"),
        };
        let lengths: Vec<String> = self.plan.lengths().iter().map(ToString::to_string).collect();
        format!("{stacks}, {attention}, {} vectors", lengths.join(" → "))
    }

    fn reads_documents(&self) -> bool {
        true
    }

    fn bounds(&self) -> Bounds {
        let why = "the model has no more positions (target_length)";
        Bounds { longest: Some((self.architecture.target_length, why)), endless: false }
    }

    fn build(&self, mut parts: Parts) -> Result<Arc<dyn Model>> {
        let a = &self.architecture;
        let parameters = self.tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
        let card = Card { parameters, ..parts.card("pyramidion", self)? };
        let tensors = Tensors::new(&mut parts.weights, a.layer_norm_eps, parts.settings.dtype);
        let mut loader = Loader { blueprint: self, tensors };
        let (embedding, head) = loader.embedding()?;
        Ok(Arc::new(Pyramidion {
            encoder: loader.encoder()?,
            positions: sinusoids(a.dim),
            encoder_norm: loader.final_norm("encoder")?,
            scorers: loader.scorers()?,
            pooling: a.pooling.kind(),
            plan: Arc::new(self.plan.clone()),
            padding: Mutex::new(None),
            limits: limits(self, parts.config.generation, card.max_symbols),
            decoder: Decoder {
                card,
                compute: parts.settings.compute(),
                embedding,
                stack: loader.decoder()?,
                norm: loader.final_norm("decoder")?,
                head,
                start: None,
                pages: PagePool::new(parts.settings.memory_bytes),
                own_bytes: 0,
            },
        }))
    }
}

/// fairseq's sinusoidal positions.
fn sinusoids(dim: usize) -> PositionScheme {
    PositionScheme::Absolute(Absolute::Sinusoidal { frequencies: frequencies(dim), first: FIRST_SINUSOID })
}

fn limits(blueprint: &PyramidionBlueprint, generation: Option<GenerationDefaults>, targets: usize) -> DocumentLimits {
    let [_, pad, end, unknown] = SPECIAL_IDS;
    let plan = &blueprint.plan;
    let steps = plan.groups.iter().zip(plan.lengths().into_iter().skip(1));
    let max = targets.saturating_sub(1);
    let generation = generation.unwrap_or_else(|| GenerationDefaults::fairseq(max));
    DocumentLimits {
        tokens: blueprint.architecture.source_length,
        targets,
        padded: blueprint.architecture.padded,
        block: plan.groups.iter().map(LayerGroup::unit).max().unwrap_or(MAX_UNIT),
        poolings: steps.map(|(group, to)| PoolingStep { layer: group.end - 1, from: group.length, to }).collect(),
        marks: SpecialIds { start: end, pad, end, unknown },
        generation: generation.within(max),
    }
}

struct Loader<'a> {
    blueprint: &'a PyramidionBlueprint,
    tensors: Tensors<'a>,
}

impl<'a> Loader<'a> {
    fn architecture(&self) -> &'a Architecture {
        &self.blueprint.architecture
    }

    fn order(&self) -> NormOrder {
        if self.architecture().pre_norm { NormOrder::Pre } else { NormOrder::Post }
    }

    /// Returns the embedding, (V, D), multiplied by √D if the model does so, and the head that shares its weights.
    fn embedding(&mut self) -> Result<(Vec<f32>, Linear)> {
        let dim = self.architecture().dim;
        let mut table = self.tensors.weight("encoder.embed_tokens")?;
        let head = self.tensors.pack(&table, &[], dim)?;
        let scale = if self.architecture().scale_embedding { (dim as f64).sqrt() as f32 } else { 1.0 };
        table.iter_mut().for_each(|x| *x *= scale);
        Ok((table, head))
    }

    fn encoder(&mut self) -> Result<EncoderStack> {
        let a = self.architecture();
        let mut layers = Vec::with_capacity(a.encoder_layers);
        for index in 0..a.encoder_layers {
            let prefix = format!("encoder.layers.{index}");
            let qkv = self.encoder_qkv(&prefix)?;
            layers.push(self.layer(&prefix, qkv, None)?);
        }
        let pattern = self.pattern()?;
        let head_dim = a.dim / a.heads;
        Ok(EncoderStack { layers, order: self.order(), activation: a.activation, heads: a.heads, head_dim, pattern })
    }

    fn pattern(&mut self) -> Result<AttentionPattern> {
        let a = self.architecture();
        let global = match a.attention {
            AttentionKind::Softmax => return Ok(AttentionPattern::Full),
            AttentionKind::Efficient { .. } => Global::Efficient,
            AttentionKind::Lsh { chunk, hashes, buckets, .. } => {
                let name = |layer| format!("encoder.layers.{layer}.self_attn.rotations");
                let rotations = (0..a.encoder_layers).map(|layer| self.tensors.weights.take(&name(layer)));
                let rotations = rotations.collect::<Result<_>>()?;
                Global::Hashed(Hashing { chunk, rounds: hashes, buckets, rotations })
            }
        };
        let block = a.block.unwrap_or(a.source_length);
        Ok(AttentionPattern::Hybrid { local: a.attention.local_heads(), block, global })
    }

    /// Returns an encoder layer's queries, keys and values. The keys of heads that hash are their queries.
    fn encoder_qkv(&mut self, prefix: &str) -> Result<Linear> {
        let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{prefix}.self_attn.{part}"));
        let a = self.architecture();
        let AttentionKind::Lsh { local_heads, .. } = a.attention else { return self.tensors.linear(&names) };
        let own = local_heads * (a.dim / a.heads);
        let (mut weight, mut bias) = self.tensors.weight_and_bias(&names[0])?;
        let shared_weight = weight[own * a.dim..].to_vec();
        let shared_bias = bias[own..].to_vec();
        if own > 0 {
            let (key_weight, key_bias) = self.tensors.weight_and_bias(&names[1])?;
            weight.extend(key_weight);
            bias.extend(key_bias);
        }
        let (value_weight, value_bias) = self.tensors.weight_and_bias(&names[2])?;
        weight.extend(shared_weight);
        weight.extend(value_weight);
        bias.extend(shared_bias);
        bias.extend(value_bias);
        self.tensors.pack(&weight, &bias, a.dim)
    }

    fn decoder(&mut self) -> Result<Stack> {
        let a = self.architecture();
        let mut layers = Vec::with_capacity(a.decoder_layers);
        for index in 0..a.decoder_layers {
            let prefix = format!("decoder.layers.{index}");
            let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{prefix}.self_attn.{part}"));
            let qkv = self.tensors.linear(&names)?;
            let cross = Some(self.cross(&prefix)?);
            layers.push(self.layer(&prefix, qkv, cross)?);
        }
        Ok(Stack {
            position: if a.decoder_positions { sinusoids(a.dim) } else { PositionScheme::None },
            window: Window::Full,
            order: self.order(),
            layout: PageLayout {
                dtype: self.tensors.store.dtype().cache_dtype(),
                layers: layers.len(),
                heads: a.heads,
                head_dim: a.dim / a.heads,
                output: 0,
            },
            activation: a.activation,
            layers,
        })
    }

    /// Returns the norm after a stack's last layer, if norms precede the sub-layers.
    fn final_norm(&mut self, stack: &str) -> Result<Option<LayerNorm>> {
        let name = format!("{stack}.layer_norm");
        self.architecture().pre_norm.then(|| self.tensors.layer_norm(name)).transpose()
    }

    /// Returns the scorer of each pooling that selects by scores, by rising layer.
    fn scorers(&mut self) -> Result<Vec<Scorer>> {
        let blueprint = self.blueprint;
        let Some(kind) = blueprint.architecture.pooling.scorer() else { return Ok(Vec::new()) };
        blueprint.plan.pooled_layers().map(|layer| self.scorer(kind, layer)).collect()
    }

    fn scorer(&mut self, kind: ScorerKind, layer: usize) -> Result<Scorer> {
        let prefix = format!("encoder.pooler.scorer.{layer}");
        match kind {
            ScorerKind::Linear => {
                let (weight, bias) = self.tensors.weight_and_bias(&prefix)?;
                Ok(Scorer::Linear(weight, bias.iter().sum()))
            }
            ScorerKind::Ffn => {
                let (dense, shift) = self.tensors.weight_and_bias(format_args!("{prefix}.dense"))?;
                let (weight, bias) = self.tensors.weight_and_bias(format_args!("{prefix}.out_proj"))?;
                Ok(Scorer::Ffn { dense, shift, weight, bias: bias.iter().sum() })
            }
            ScorerKind::Embedding { dimension } => Ok(Scorer::Embedding(dimension)),
            ScorerKind::Index { every } => Ok(Scorer::Index(every)),
            ScorerKind::Attention => Ok(Scorer::Attention),
            ScorerKind::Random { seed } => Ok(Scorer::Random(seed.wrapping_add(layer as u64))),
        }
    }

    fn layer(&mut self, prefix: &str, qkv: Linear, cross: Option<Cross<LayerNorm>>) -> Result<Layer> {
        let name = |name: &str| format!("{prefix}.{name}");
        Ok(Layer {
            qkv,
            output: self.tensors.linear(&[name("self_attn.out_proj")])?,
            attention_norm: self.tensors.layer_norm(name("self_attn_layer_norm"))?,
            context_norm: None,
            up: self.tensors.linear(&[name("fc1")])?,
            down: self.tensors.linear(&[name("fc2")])?,
            feed_forward_norm: self.tensors.layer_norm(name("final_layer_norm"))?,
            hidden_norm: None,
            cross,
        })
    }

    fn cross(&mut self, prefix: &str) -> Result<Cross<LayerNorm>> {
        let name = |part: &str| format!("{prefix}.encoder_attn.{part}");
        Ok(Cross {
            norm: self.tensors.layer_norm(format_args!("{prefix}.encoder_attn_layer_norm"))?,
            query: self.tensors.linear(&[name("q_proj")])?,
            memory: self.tensors.linear(&[name("k_proj"), name("v_proj")])?,
            output: self.tensors.linear(&[name("out_proj")])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn architecture(change: &str) -> Architecture {
        let base = r#"{"encoder_layers": 6, "decoder_layers": 1, "dim": 8, "heads": 2, "feed_forward": 8, "activation": "relu",
            "layer_norm_eps": 1e-5, "pre_norm": false, "source_length": 8192, "target_length": 64, "decoder_positions": false,"#;
        serde_json::from_str(&format!("{base} {change}}}")).unwrap()
    }

    fn halving(lengths: &str, block: &str) -> Result<EncoderPlan, ConfigError> {
        let pooling =
            format!(r#"{{"kind": "successive-halving", "lengths": {lengths}, "flip_right": true, "sort_back": true}}"#);
        EncoderPlan::new(&architecture(&format!(r#""block": {block}, "pooling": {pooling}"#)))
    }

    #[test]
    fn plans_the_published_deep_model() {
        let plan = halving(r#"{"2": 2048, "3": 512}"#, "512").unwrap();
        assert_eq!(plan.lengths(), [8192, 2048, 512]);
        let layers: Vec<_> = plan.groups.iter().map(|group| (group.first, group.end, group.factor)).collect();
        assert_eq!(layers, [(0, 3, Some(4)), (3, 4, Some(4)), (4, 6, None)]);
        assert!(plan.groups.iter().all(|group| group.unit() == 512) && !plan.masks_padding);
        // A pooling after the last layer leaves a group without layers.
        let plan = halving(r#"{"5": 512}"#, "100").unwrap();
        assert_eq!((plan.groups.len(), plan.groups[1].first, plan.groups[1].end), (2, 6, 6));
        assert_eq!(plan.groups[0].unit(), 500);
        let vanilla = EncoderPlan::new(&architecture(r#""block": null, "pooling": {"kind": "none"}"#)).unwrap();
        assert!(vanilla.masks_padding && vanilla.groups.len() == 1);
    }

    #[test]
    fn impossible_lengths_are_reported_with_the_rule() {
        for (lengths, block, key, found) in [
            (r#"{"2": 3000}"#, "512", "pooling.lengths.2", "3000"),
            (r#"{"2": 0}"#, "512", "pooling.lengths.2", "0"),
            (r#"{"2": 8192}"#, "512", "pooling.lengths.2", "8192"),
            (r#"{"2": 512, "4": 2048}"#, "512", "pooling.lengths.4", "2048"),
            (r#"{"6": 512}"#, "512", "pooling.lengths", "\"6\""),
            (r#"{"02": 512}"#, "512", "pooling.lengths", "\"02\""),
            ("{}", "512", "pooling.lengths", "none"),
            (r#"{"2": 512}"#, "100", "block", "100"),
        ] {
            let error = halving(lengths, block).unwrap_err();
            assert_eq!((error.key.as_str(), error.found.as_str()), (key, found), "{lengths}: {}", error.expected);
        }
    }
}
