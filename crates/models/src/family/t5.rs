//! T5 and its relatives: T5 v1.0 and v1.1 (also flan-T5 and mT5), ByT5, LongT5, and MrT5.
//!
//! Papers: Raffel et al. 2020 (arXiv 1910.10683), ByT5 (2105.13626), LongT5 (2112.07916), MrT5 (2410.20771). Read from `t5` and
//! `longt5` of Hugging Face's transformers 5.23.0, and from jkallini/mrt5 at commit e79c3e7. Tensors keep the names of
//! transformers.
//!
//! The encoder looks both ways, over the whole document (T5, ByT5, MrT5) or over a band with or without global tokens (LongT5).
//! MrT5 pools: a gate in one block deletes tokens, and later blocks and the decoder read what is left. Kept tokens keep their
//! positions.
//!
//! In reading order: [`Architecture`] and its tensors; [`T5Encoding`], a document in progress; the gate; [`T5`], the weights and
//! the encoder's pass; the decoder's steps; the contract with the engine; loading.

use crate::{
    checkpoint::{self, Config, require},
    contract::{
        BoundaryOptions, Card, Cost, Document, DocumentEncoder, DocumentLimits, Encoding, EncodingProgress,
        EncodingStage, GenerationDefaults, KeptVector, KvMemory, LayerTime, Model, PoolingChoice, PoolingStep, Scratch,
        SequenceRow, SpecialIds, State, StepStatus, encoding_mut, state_ref,
    },
    family::{
        Blueprint, Parts, TensorSpec,
        decoder::{DecoderState, RowCaches, set_fed, set_finished, state, take_hidden},
        parts::{
            self, Batch, Check, EncoderHook, EncoderHookPoint, HeadWork, Tensors, TokenLimits, check_feed,
            check_generation, memory_document, needs_document, needs_scores, push_tokens, start_attention, with_status,
            work_mut,
        },
        settings::Bounds,
        t5_layers::{T5LayerShape, matrix, norm, transformers_name},
    },
    nn::{
        Activation,
        attention::{Caches, Hook, StackWork, add},
        kv_cache::{KvCache, PagedVectors},
        position::{Buckets, PositionScheme},
        sized,
        t5::{EncoderKeys, GlobalTokens, T5Encoder, T5EncoderWork, T5Layer, T5Stack},
    },
};
use serde::Deserialize;
use std::{path::Path, sync::Arc, time::Instant};
use weir_kernels::{
    Compute,
    attention::PageLayout,
    error::{Error, Result},
    linear::Linear,
    memory::{cast, cast_mut},
    pages::{Page, PagePool},
    rowwise::{RmsNorm, rms_norm},
};

/// Ids of the special symbols, in most published vocabularies. Padding also starts a text.
const SPECIALS: SpecialIds = SpecialIds { start: 0, pad: 0, end: 1, unknown: 2 };

/// Maximum tokens of a document and of a text: far above any model, and within 32 bits.
const MAX_LENGTH: usize = 1 << 24;

/// Maximum buckets, and maximum `max_distance`.
const MAX_BUCKETS: usize = 1 << 16;

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
    /// Attention heads H.
    pub heads: usize,
    /// Width of a head; not necessarily D/H.
    pub head_dim: usize,
    /// Inner width F of the feed-forward.
    pub feed_forward: usize,
    /// Nonlinearity of the feed-forward.
    pub activation: Activation,
    /// True if the feed-forward has a gate (v1.1).
    pub gated: bool,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Buckets of distances.
    pub buckets: usize,
    /// The first distance that may share the last bucket.
    pub max_distance: usize,
    /// Attention of the encoder.
    #[serde(default)]
    pub attention: EncoderAttention,
    /// The gate that deletes tokens (MrT5).
    pub deletion: Option<Deletion>,
    /// True if every softmax has one more key, of score zero and value zero ("softmax1").
    #[serde(default)]
    pub softmax1: bool,
    /// True if the head is the embedding.
    pub tied_head: bool,
    /// True if the head's input is multiplied by D^−½.
    pub scale_head: bool,
    /// Maximum tokens of a document, the end mark included.
    pub source_length: usize,
    /// Maximum symbols of a text, the start symbol included.
    pub target_length: usize,
    /// Id of the end mark, if it is not 1.
    pub end: Option<u32>,
}

/// Attention of the encoder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum EncoderAttention {
    /// Every token attends to all tokens.
    #[default]
    Full,
    /// Every token attends to those at a distance of at most `radius`.
    Local {
        /// Largest distance.
        radius: usize,
    },
    /// Like `local`, and every token attends to one global token for each `group` tokens.
    TransientGlobal {
        /// Largest distance.
        radius: usize,
        /// Tokens of a group.
        group: usize,
    },
}

impl EncoderAttention {
    /// Returns the largest distance between two tokens that attend to each other; none if there is no limit.
    pub fn radius(self) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Local { radius } | Self::TransientGlobal { radius, .. } => Some(radius),
        }
    }

    /// Returns the tokens of a group, if there are global tokens.
    pub fn group(self) -> Option<usize> {
        match self {
            Self::TransientGlobal { group, .. } => Some(group),
            _ => None,
        }
    }
}

/// The gate that deletes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deletion {
    /// The encoder layer whose input the gate reads, counted from 0.
    pub layer: usize,
    /// Function of the gate's logit.
    pub function: GateFunction,
    /// Tokens are kept if their gate value is above this.
    pub threshold: f32,
    /// True if the gate norms its input.
    pub norm: bool,
}

/// Function from the logit a of a gate to its value.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum GateFunction {
    /// scale · σ(−a), with a negative scale.
    ScaledSigmoid {
        /// The lowest value.
        scale: f32,
    },
    /// ln σ(a).
    LogSigmoid,
}

impl Architecture {
    /// Width I of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Maps distances to buckets, in the encoder (`bidirectional`) or in the decoder.
    pub fn buckets(&self, bidirectional: bool) -> Buckets {
        Buckets { count: self.buckets, max_distance: self.max_distance, bidirectional }
    }

    /// The numbers in all tables of distances, which are computed when the model is loaded; `usize::MAX` if that overflows.
    fn table_numbers(&self) -> usize {
        let encoder = self.buckets(true).two_sided_table_numbers(self.heads);
        let global = if self.attention.group().is_some() { encoder } else { 0 };
        self.buckets(false).table_numbers(self.heads).saturating_add(encoder).saturating_add(global)
    }

    fn validate(&self, check: Check<'_>) -> Result<()> {
        check.layers("encoder_layers", self.encoder_layers)?;
        check.layers("decoder_layers", self.decoder_layers)?;
        check.dims([
            ("dim", self.dim),
            ("heads", self.heads),
            ("head_dim", self.head_dim),
            ("feed_forward", self.feed_forward),
        ])?;
        check.fraction("norm_eps", self.norm_eps)?;
        check.range("buckets", self.buckets, 4..=MAX_BUCKETS)?;
        let fits = self.max_distance <= MAX_BUCKETS && [true, false].iter().all(|&both| self.buckets(both).is_valid());
        let expected = format!("more than half the buckets, at most {MAX_BUCKETS}");
        check.require(fits, "max_distance", expected, self.max_distance)?;
        // the encoder's table, the largest one
        check.distance_table("max_distance", self.buckets(true).two_sided_table_numbers(self.heads))?;
        check.range("source_length", self.source_length, 2..=MAX_LENGTH)?;
        check.range("target_length", self.target_length, 2..=MAX_LENGTH)?;
        check.range("attention.radius", self.attention.radius().unwrap_or(1), 1..=MAX_LENGTH)?;
        check.range("attention.group", self.attention.group().unwrap_or(1), 1..=MAX_LENGTH)?;
        self.deletion.as_ref().map_or(Ok(()), |deletion| self.validate_deletion(deletion, check))
    }

    fn validate_deletion(&self, deletion: &Deletion, check: Check<'_>) -> Result<()> {
        let expected = format!("0 to {}: a layer of the encoder", self.encoder_layers - 1);
        check.require(deletion.layer < self.encoder_layers, "deletion.layer", expected, deletion.layer)?;
        let full = self.attention == EncoderAttention::Full;
        check.require(full, "attention.kind", "full, next to `deletion`", "another kind")?;
        if let GateFunction::ScaledSigmoid { scale } = deletion.function
            && !(-1e4..0.0).contains(&scale)
        {
            return check.fail("deletion.function.scaled-sigmoid.scale", "-10000 to 0, 0 excluded", scale);
        }
        let within = (-1e4..=0.0).contains(&deletion.threshold);
        check.require(within, "deletion.threshold", "-10000 to 0", deletion.threshold)
    }
}

/// Embedding of both sides.
const EMBEDDING: &str = "shared";

/// A validated encoder-decoder.
#[derive(Debug, Clone)]
pub struct T5Blueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Reads an encoder-decoder's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let has_ids = vocabulary.is_subword() || vocabulary.is_sparse();
    let expected = "`size`, with `tokenizer`, or with `bytes` and `first_byte`: this family has ids without text";
    require(has_ids, file, "vocabulary", expected, "characters or bytes")?;
    let expected = format!("more than {}: the first ids are special symbols", SPECIALS.unknown + 1);
    require(vocabulary.len() > SPECIALS.unknown as usize, file, "vocabulary.size", expected, vocabulary.len())?;
    architecture.validate(Check { file })?;
    let end = architecture.end.unwrap_or(SPECIALS.end);
    require([1, 2].contains(&end), file, "architecture.end", "1 or 2", end)?;
    let blueprint = T5Blueprint { architecture, symbols: vocabulary.len() };
    Check { file }.tensors("dim", &blueprint.tensors())?;
    let architecture = &blueprint.architecture;
    check_generation(config, architecture.target_length, file)?;
    let prefix = config.generation.as_ref().map_or("", |generation| &generation.prefix);
    let prefix_len =
        if prefix.is_empty() { 0 } else { vocabulary.encode("generation.prefix", prefix, usize::MAX)?.len() };
    let longest = architecture.source_length - 2;
    let expected = format!("at most {longest} tokens: source_length less two");
    require(prefix_len <= longest, file, "generation.prefix", expected, format!("{prefix_len} tokens"))?;
    Ok(Box::new(blueprint))
}

const HEAD: &str = "lm_head";
const BIAS: &str = "SelfAttention.relative_attention_bias";
const GLOBAL_BIAS: &str = "SelfAttention.global_relative_attention_bias";
const GLOBAL_NORM: &str = "SelfAttention.global_input_layer_norm";

/// Names and sizes of one stack's tensors.
#[derive(Clone, Copy)]
struct StackTensors {
    /// `encoder` or `decoder`.
    name: &'static str,
    layers: usize,
    layer: T5LayerShape,
}

impl StackTensors {
    fn is_decoder(&self) -> bool {
        self.layer.memory.is_some()
    }

    /// The name of a layer's part in the block of that index.
    fn part(&self, block: usize, part: &str) -> String {
        let part = transformers_name(part, self.is_decoder(), self.layer.gated);
        format!("{}.block.{block}.{part}", self.name)
    }

    /// The name of a tensor of self-attention that only T5 has.
    fn attention(&self, block: usize, name: &str) -> String {
        format!("{}.block.{block}.layer.0.{name}", self.name)
    }

    fn norm(&self) -> String {
        format!("{}.final_layer_norm", self.name)
    }

    fn load(&self, tensors: &mut Tensors<'_>) -> Result<Vec<T5Layer>> {
        (0..self.layers).map(|block| self.layer.load(tensors, &|part| self.part(block, part))).collect()
    }
}

impl T5Blueprint {
    fn stacks(&self) -> [StackTensors; 2] {
        let Architecture { dim, heads, head_dim, feed_forward, activation, gated, .. } = self.architecture;
        let stack = |name, layers, memory| {
            let small_queries = true;
            let layer = T5LayerShape {
                inputs: dim,
                dim,
                heads,
                head_dim,
                memory,
                feed_forward,
                activation,
                gated,
                small_queries,
            };
            StackTensors { name, layers, layer }
        };
        let Architecture { encoder_layers, decoder_layers, .. } = self.architecture;
        [stack("encoder", encoder_layers, None), stack("decoder", decoder_layers, Some(dim))]
    }

    fn stack(&self, out: &mut Vec<TensorSpec>, stack: &StackTensors) {
        let Architecture { dim, buckets, heads, attention, .. } = self.architecture;
        let bias = |name: &str| {
            let name = format!("{}.weight", stack.attention(0, name));
            TensorSpec::normal(name, vec![buckets, heads], 0.0, 1.0 / (dim as f32).sqrt())
        };
        for block in 0..stack.layers {
            let mut more = Vec::new();
            if block == 0 {
                more.push(bias(BIAS));
            }
            if !stack.is_decoder() && attention.group().is_some() {
                more.push(norm(stack.attention(block, GLOBAL_NORM), dim));
                if block == 0 {
                    more.push(bias(GLOBAL_BIAS));
                }
            }
            stack.layer.tensors(out, &|part| stack.part(block, part), more);
        }
        out.push(norm(stack.norm(), dim));
    }
}

/// Vectors of a unit of work, and of a page.
const UNIT: usize = 512;

/// A document that is being encoded.
pub struct T5Encoding {
    /// Vocabulary size V.
    symbols: usize,
    /// Maximum tokens.
    limit: usize,
    layers: usize,
    tokens: Vec<u32>,
    closed: bool,
    cursor: Cursor,
    /// (vectors, D): empty before the first layer; those that are left after the deletion.
    vectors: PagedVectors,
    /// Position of each vector in the document, once tokens were deleted.
    positions: Option<Vec<u32>>,
    keys: Option<LayerKeys>,
    memory: Option<KvCache>,
    blocks: usize,
    choices: Vec<PoolingChoice>,
    timings: Vec<LayerTime>,
    memory_ns: u64,
    document: Option<Arc<Document>>,
}

/// Place of a unit of work.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    /// Layer of the encoder; their number while the decoder's keys and values are projected.
    layer: usize,
    page: usize,
    /// True if all keys of the layer are written.
    attending: bool,
}

/// Next unit of work: a page of vectors through one step.
enum WorkUnit {
    /// First half of a layer: queries, keys and values.
    Keys { layer: usize },
    /// Second half of a layer.
    Layer { layer: usize },
    /// The decoder's keys and values.
    Memory,
}

/// Keys and values of one layer, and the queries that read them.
struct LayerKeys {
    store: Page,
    /// Keys and values of the global tokens.
    side: Option<Page>,
    side_count: usize,
    /// Sum of each group's vectors: (global tokens, D)
    sums: Vec<f32>,
    queries: PagedVectors,
}

impl T5Encoding {
    /// Returns true if a unit of work can run: no token is missing, and the document is not done.
    fn can_run(&self) -> bool {
        self.closed && self.document.is_none()
    }

    fn unit(&self) -> WorkUnit {
        match self.cursor {
            Cursor { layer, .. } if layer == self.layers => WorkUnit::Memory,
            Cursor { layer, attending: false, .. } => WorkUnit::Keys { layer },
            Cursor { layer, attending: true, .. } => WorkUnit::Layer { layer },
        }
    }

    fn is_last_page(&self) -> bool {
        self.cursor.page + 1 == self.vectors.pages()
    }

    /// Keeps only the vectors of the `kept` tokens, before `layer`. `values` are the gate values of all tokens.
    fn keep(&mut self, layer: usize, kept: &[usize], values: &[f32], vectors: PagedVectors) {
        self.vectors = vectors;
        self.positions = Some(kept.iter().map(|&token| token as u32).collect());
        let kept = kept.iter().map(|&token| KeptVector { token, score: values[token] }).collect();
        self.choices.push(PoolingChoice { layer, kept });
    }

    /// Moves on to the next unit, after one that began at `started`. After the last one, creates the document.
    fn advance(&mut self, started: Instant) {
        self.blocks += 1;
        let ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let Cursor { layer, page, attending } = self.cursor;
        let is_last_page = self.is_last_page();
        match self.timings.get_mut(layer) {
            Some(time) => *time = LayerTime { length: self.vectors.len(), ns: time.ns + ns },
            None => self.memory_ns += ns,
        }
        self.cursor = match is_last_page {
            false => Cursor { page: page + 1, ..self.cursor },
            true if layer == self.layers => return self.finish(),
            true if !attending => Cursor { layer, page: 0, attending: true },
            true => {
                self.keys = None;
                Cursor { layer: layer + 1, ..Cursor::default() }
            }
        };
    }

    /// Creates the document from its complete memory, and frees everything else.
    fn finish(&mut self) {
        let Some(mut memory) = self.memory.take() else { return };
        memory.advance(self.vectors.len());
        self.vectors.truncate(0);
        self.positions = None;
        let choices = std::mem::take(&mut self.choices);
        let timings = std::mem::take(&mut self.timings);
        let tokens = self.tokens.len();
        self.document = Some(memory_document(tokens, memory, self.tokens.len(), choices, timings, self.memory_ns));
    }

    /// Returns the blocks of the complete document. Before tokens are deleted, counts them in every layer.
    fn total_blocks(&self) -> usize {
        let Cursor { layer, page, attending } = self.cursor;
        if self.document.is_some() {
            return self.blocks;
        }
        let vectors = if self.vectors.is_empty() { self.tokens.len() } else { self.vectors.len() };
        let pages = vectors.div_ceil(UNIT);
        let all = (2 * self.layers + 1) * pages;
        let passed = (2 * layer + usize::from(attending)) * pages + page;
        self.blocks + all.saturating_sub(passed)
    }
}

impl Encoding for T5Encoding {
    fn push(&mut self, tokens: &[u32]) -> Result<()> {
        let limits = TokenLimits { tokens: self.limit, symbols: self.symbols, padding: None };
        push_tokens(&mut self.tokens, tokens, self.closed, &limits)
    }

    fn close(&mut self) -> Result<()> {
        if self.tokens.is_empty() {
            return Err(Error::bad_option("document", "none", "at least one token"));
        }
        self.closed = true;
        Ok(())
    }

    fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn progress(&self) -> EncodingProgress {
        let stage = match self.unit() {
            _ if self.document.is_some() => EncodingStage::Done,
            _ if !self.closed => EncodingStage::Waiting,
            WorkUnit::Keys { layer } | WorkUnit::Layer { layer } => EncodingStage::Layer(layer),
            WorkUnit::Memory => EncodingStage::Memory,
        };
        let total = self.closed.then(|| self.total_blocks());
        EncodingProgress { stage, blocks: self.blocks, total }
    }

    fn choices(&self) -> &[PoolingChoice] {
        &self.choices
    }

    fn document(&self) -> Option<Arc<Document>> {
        self.document.clone()
    }

    fn bytes(&self) -> usize {
        let keys = self.keys.as_ref().map_or(0, |keys| {
            let side = keys.side.as_ref().map_or(0, |side| side.bytes().len());
            keys.store.bytes().len() + side + keys.queries.bytes()
        });
        let memory = self.memory.as_ref().map_or(0, KvCache::bytes);
        self.vectors.bytes() + keys + memory + self.document.as_ref().map_or(0, |document| document.bytes)
    }
}

// The gate that deletes tokens (Kallini et al. 2024, "hard deletion"). Logits are summed in f64 from f32 weights, for all types
// of weights: a rounding error at the threshold would flip a token.

/// The gate's weights. D = width.
pub struct DeletionGate {
    /// The encoder layer whose input it reads, counted from 0.
    pub layer: usize,
    function: GateFunction,
    threshold: f32,
    norm: Option<RmsNorm>,
    /// (D)
    weight: Vec<f32>,
    bias: f32,
}

impl DeletionGate {
    /// Appends the gate value of each of `x`, (vectors, D), to `values`.
    fn values(&self, compute: &Compute, x: &[f32], normed: &mut Vec<f32>, values: &mut Vec<f32>) {
        normed.clear();
        normed.extend_from_slice(x);
        if let Some(norm) = &self.norm {
            rms_norm(compute, x, norm, normed);
        }
        values.extend(normed.chunks_exact(self.weight.len()).map(|x| self.value(x)));
    }

    fn value(&self, x: &[f32]) -> f32 {
        let products = x.iter().zip(&self.weight).map(|(x, weight)| f64::from(*x) * f64::from(*weight));
        let logit = products.sum::<f64>() + f64::from(self.bias);
        match self.function {
            GateFunction::ScaledSigmoid { scale } => (f64::from(scale) / (1.0 + logit.exp())) as f32,
            // ln σ(a) = −ln(1 + e^−a), without overflow for very negative a
            GateFunction::LogSigmoid => (logit.min(0.0) - (-logit.abs()).exp().ln_1p()) as f32,
        }
    }

    /// Returns the indices of the values that are kept, in order. Keeps the first token if all would be deleted.
    fn kept(&self, values: &[f32]) -> Vec<usize> {
        let kept: Vec<usize> = (0..values.len()).filter(|&index| values[index] > self.threshold).collect();
        if kept.is_empty() { vec![0] } else { kept }
    }
}

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    decoder: StackWork,
    encoder: T5EncoderWork,
    chosen: Vec<usize>,
    /// The decoder's vectors; or one page of the encoder's output, (vectors, D).
    batch: Batch,
    head: HeadWork,
    /// Receives the encoder's intermediate results in golden tests; `None` in servers.
    pub hook: Option<EncoderHook>,
}

impl Work {
    /// Sends the output of every decoder layer to `hook` from now on.
    pub fn watch_decoder(&mut self, hook: Hook) {
        self.decoder.hook = Some(hook);
    }

    fn show(&mut self, point: EncoderHookPoint, first: usize, x: &[f32]) {
        if let Some(hook) = &mut self.hook {
            hook(point, first, x);
        }
    }
}

// The weights and the encoder's pass. Hot path: buffers are kept in `Work`, and pages are allocated where a layer begins. A unit
// of work is one page of vectors through one half of a layer: all pages write keys, then all pages attend.

/// A loaded encoder-decoder. D = width, V = vocabulary size, I = heads · head_dim.
pub struct T5 {
    card: Card,
    compute: Compute,
    /// (V, D), of both sides.
    embedding: Vec<f32>,
    encoder: T5Encoder,
    /// Deletes tokens, in MrT5.
    gate: Option<DeletionGate>,
    decoder: T5Stack,
    /// (V, D)
    head: Linear,
    /// Factor of the head's input.
    head_scale: f32,
    pages: Arc<PagePool>,
    limits: DocumentLimits,
}

impl T5 {
    /// Encoder: embed → layers, with deletion → norm → keys and values for the decoder. Returns how many units of work ran.
    fn encode(&self, e: &mut T5Encoding, max_blocks: usize, work: &mut Work) -> Result<usize> {
        let mut ran = 0;
        while ran < max_blocks && e.can_run() {
            let started = Instant::now();
            match e.unit() {
                WorkUnit::Keys { layer } => {
                    if e.cursor.page == 0 {
                        self.begin_layer(e, layer, work)?;
                    }
                    self.write_keys(e, layer, work)?; // (vectors, I) each
                }
                WorkUnit::Layer { layer } => self.finish_layer(e, layer, work)?, // (vectors, D)
                WorkUnit::Memory => self.project_memory(e, work)?, // (vectors, D) → (vectors, 2·I) for each decoder layer
            }
            e.advance(started);
            ran += 1;
        }
        Ok(ran)
    }

    /// Embeds the document before the first layer, deletes tokens before the gate's layer, and allocates the layer's keys.
    fn begin_layer(&self, e: &mut T5Encoding, layer: usize, work: &mut Work) -> Result<()> {
        if layer == 0 {
            let dim = self.head.inputs();
            let T5Encoding { tokens, vectors, .. } = e;
            vectors.fill(tokens.len(), |index, x| {
                x.copy_from_slice(&self.embedding[tokens[index] as usize * dim..][..dim]);
            })?;
            (0..e.vectors.pages())
                .for_each(|page| work.show(EncoderHookPoint::Embedded, page * UNIT, e.vectors.page(page)));
        }
        if let Some(gate) = self.gate.as_ref().filter(|gate| gate.layer == layer) {
            self.delete_tokens(e, gate, work)?; // (n, D) → (n', D)
        }
        let count = e.vectors.len();
        let floats = self.encoder.store(count).floats();
        let side_count = self.encoder.global_tokens(count);
        let side = match side_count {
            0 => None,
            count => Some(self.pages.allocate(self.encoder.store(count).floats() * size_of::<f32>())?),
        };
        e.keys = Some(LayerKeys {
            store: self.pages.allocate(floats * size_of::<f32>())?,
            side,
            side_count,
            sums: vec![0.0; side_count * self.head.inputs()],
            queries: PagedVectors::new(self.pages.clone(), self.encoder.heads * self.encoder.head_dim, UNIT),
        });
        Ok(())
    }

    /// Replaces the vectors by those that the gate keeps.
    fn delete_tokens(&self, e: &mut T5Encoding, gate: &DeletionGate, work: &mut Work) -> Result<()> {
        let mut values = Vec::with_capacity(e.vectors.len());
        for page in 0..e.vectors.pages() {
            gate.values(&self.compute, e.vectors.page(page), &mut work.batch.x, &mut values); // (vectors)
        }
        let kept = gate.kept(&values);
        let mut vectors = PagedVectors::new(self.pages.clone(), self.head.inputs(), UNIT);
        vectors.fill(kept.len(), |index, x| x.copy_from_slice(e.vectors.vector(kept[index])))?;
        e.keep(gate.layer, &kept, &values, vectors);
        Ok(())
    }

    /// Writes a page's keys and values to the layer's store, and keeps its queries. After the last page, the global tokens'.
    fn write_keys(&self, e: &mut T5Encoding, layer: usize, work: &mut Work) -> Result<()> {
        let compute = &self.compute;
        let encoder = &self.encoder;
        let dim = self.head.inputs();
        let page = e.cursor.page;
        let count = e.vectors.len();
        let is_last_page = e.is_last_page();
        let T5Encoding { keys, vectors, .. } = e;
        let keys = keys.as_mut().ok_or_else(|| Error::Internal("no store for keys".into()))?;
        let layout = encoder.store(count);
        let store = &mut cast_mut(keys.store.bytes_mut()?)[..layout.floats()];
        encoder.project(compute, layer, vectors.page(page), &mut work.encoder, |index, key, value| {
            layout.write(store, page * UNIT + index, key, value);
        });
        let queries = &work.encoder.queries;
        keys.queries.extend(queries.len() / (encoder.heads * encoder.head_dim))?;
        keys.queries.page_mut(page)?.copy_from_slice(queries);
        let (Some(global), Some(side)) = (&encoder.global, &mut keys.side) else { return Ok(()) };
        for (index, normed) in work.encoder.normed().chunks_exact(dim).enumerate() {
            let group = ((page * UNIT + index) / global.group).min(keys.side_count - 1);
            add(&mut keys.sums[group * dim..][..dim], normed);
        }
        if is_last_page {
            let layout = encoder.store(keys.side_count);
            let side = &mut cast_mut(side.bytes_mut()?)[..layout.floats()];
            encoder.project_global(compute, layer, &keys.sums, &mut work.encoder, |index, key, value| {
                layout.write(side, index, key, value);
            });
        }
        Ok(())
    }

    /// Takes one page of vectors through the second half of a layer, after all keys were written.
    fn finish_layer(&self, e: &mut T5Encoding, layer: usize, work: &mut Work) -> Result<()> {
        let compute = &self.compute;
        let page = e.cursor.page;
        let count = e.vectors.len();
        let T5Encoding { keys, vectors, positions, .. } = e;
        let keys = keys.as_ref().ok_or_else(|| Error::Internal("queries without keys".into()))?;
        let side_store: &[f32] = match &keys.side {
            None => &[],
            Some(side) => &cast(side.bytes())[..self.encoder.store(keys.side_count).floats()],
        };
        let attended = EncoderKeys {
            store: &cast(keys.store.bytes())[..self.encoder.store(count).floats()],
            count,
            positions: positions.as_deref(),
            side_store,
            side_count: keys.side_count,
        };
        self.encoder.attend(compute, &attended, page * UNIT, keys.queries.page(page), &mut work.encoder); // (vectors, I)
        self.encoder.finish(compute, layer, vectors.page_mut(page)?, &mut work.encoder); // (vectors, D)
        work.show(EncoderHookPoint::Layer(layer), page * UNIT, vectors.page(page));
        Ok(())
    }

    /// Norms one page of the encoder's output, and projects it to the decoder's keys and values.
    fn project_memory(&self, e: &mut T5Encoding, work: &mut Work) -> Result<()> {
        let page = e.cursor.page;
        let vectors = e.vectors.page(page);
        let mut x = std::mem::take(&mut work.batch.x);
        rms_norm(&self.compute, vectors, &self.encoder.norm, sized(&mut x, vectors.len())); // (vectors, D)
        work.show(EncoderHookPoint::Encoded, page * UNIT, &x);
        if e.memory.is_none() {
            let mut memory = KvCache::new(self.decoder.layout, self.pages.clone());
            memory.reserve(e.vectors.len())?;
            e.memory = Some(memory);
        }
        let memory = e.memory.as_mut().ok_or_else(|| Error::Internal("no memory for the decoder".into()))?;
        let write = |layer: usize, index: usize, keys: &[f32], values: &[f32]| {
            memory.write(self.compute.isa, layer, page * UNIT + index, keys, values)
        };
        let result = self.decoder.project_memory(&self.compute, &x, &mut work.decoder, write);
        work.batch.x = x;
        result
    }
}

impl T5 {
    /// Symbol step: embed → self-attention → cross-attention to the document's vectors → feed-forward.
    fn feed_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let dim = self.head.inputs();
        work.batch.clear();
        for &index in which {
            let row = &rows[index];
            check_feed(&self.card, row, state_ref::<DecoderState>(&*row.state)?.is_ready())?;
            self.card.vocabulary.check_ids("feed", &row.feed)?;
            let fed = row.feed.len();
            work.batch.embed(&self.embedding, dim, &row.feed);
            RowCaches(rows).memory(index)?;
            let state = state(rows, index)?;
            state.hidden.clear();
            state.cache.reserve(fed)?;
            work.batch.extend(index, &state.cache, fed);
        }
        let Work { batch: Batch { positions, x }, decoder, .. } = work;
        self.decoder.forward(&self.compute, x, positions, &mut RowCaches(rows), decoder)?; // (symbols, D)
        let mut rest = &x[..];
        for &index in which {
            let fed = rows[index].feed.len();
            let unwanted = fed - rows[index].wanted();
            let (own, others) = rest.split_at(fed * dim);
            let state = state(rows, index)?;
            state.hidden.extend_from_slice(&own[unwanted * dim..]);
            state.cache.advance(fed);
            rest = others;
            set_fed(&mut rows[index]);
        }
        Ok(())
    }

    /// Finish step: the logits of the symbols whose logits are wanted.
    fn finish(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let Some(unfinished) = with_status(StepStatus::Unfinished, rows, which, &mut work.chosen) else {
            return Ok(());
        };
        take_hidden(rows, &unfinished, &mut work.head.wanted)?; // (wanted, D)
        if self.head_scale != 1.0 {
            work.head.wanted.iter_mut().for_each(|x| *x *= self.head_scale);
        }
        work.head.deliver(&self.head, &self.compute, &mut work.decoder.quantized, rows, &unfinished)?;
        set_finished(rows, &unfinished)?;
        work.chosen = unfinished;
        Ok(())
    }
}

// The model behind the contract: target rows, which the decoder steps, and documents, which the encoder reads.

impl Model for T5 {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        Err(needs_document(&self.card))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.feed_symbols(rows, which, work_mut(scratch)?)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.finish(rows, which, work_mut(scratch)?)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.decoder.layout.bytes_for(symbols)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let state = state_ref::<DecoderState>(state);
        state.map_or(0, |state| state.cache.growth(state.cache.len() + more))
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.pages.in_use(), limit: self.pages.limit() }
    }

    /// Counts a document of one training window.
    fn cost(&self, symbols: usize, _: usize) -> Cost {
        let document = self.card.training_length.min(self.limits.tokens);
        let mut cost = Cost { symbol: parts::t5_stack_cost(&self.decoder, symbols, document), ..Cost::default() };
        cost.logits += parts::linear_cost(&self.head);
        cost
    }

    fn document_encoder(&self) -> Option<&dyn DocumentEncoder> {
        Some(self)
    }
}

impl DocumentEncoder for T5 {
    fn limits(&self) -> &DocumentLimits {
        &self.limits
    }

    /// Deletion keeps vectors as they are, so it is hard already.
    fn open(&self, hard: bool) -> Result<Box<dyn Encoding>> {
        if hard && self.gate.is_none() {
            return Err(needs_scores(&self.card));
        }
        let layers = self.encoder.layers.len();
        Ok(Box::new(T5Encoding {
            symbols: self.head.outputs(),
            limit: self.limits.tokens,
            layers,
            tokens: Vec::new(),
            closed: false,
            cursor: Cursor::default(),
            vectors: PagedVectors::new(self.pages.clone(), self.head.inputs(), UNIT),
            positions: None,
            keys: None,
            memory: None,
            blocks: 0,
            choices: Vec::new(),
            timings: vec![LayerTime { length: 0, ns: 0 }; layers],
            memory_ns: 0,
            document: None,
        }))
    }

    fn bytes_for(&self, tokens: usize) -> usize {
        let inner = self.encoder.heads * self.encoder.head_dim;
        let vectors = PagedVectors::bytes_for(tokens, self.head.inputs(), UNIT);
        let store = |count: usize| if count == 0 { 0 } else { self.encoder.store(count).floats() * size_of::<f32>() };
        let side = store(self.encoder.global_tokens(tokens));
        let keys = store(tokens) + side + PagedVectors::bytes_for(tokens, inner, UNIT);
        // while tokens are deleted, the vectors that are left exist twice
        let deleted = if self.gate.is_some() { vectors } else { 0 };
        vectors + keys.max(deleted).max(self.decoder.layout.bytes_for(tokens))
    }

    /// Counts matrix products and attention of the encoder, and the projection of the decoder's keys and values.
    fn multiply_adds(&self, tokens: usize, vectors: usize) -> usize {
        let first = self.gate.as_ref().map_or(usize::MAX, |gate| gate.layer); // the first layer without the deleted tokens
        let count = |layer: usize| if layer < first { tokens } else { vectors };
        let layers = (0..self.encoder.layers.len()).map(|layer| self.encoder.multiply_adds(layer, count(layer)));
        let memories = self.decoder.layers.iter().filter_map(|layer| layer.cross.as_ref());
        layers.sum::<usize>()
            + vectors * memories.map(|cross| cross.memory.inputs() * cross.memory.outputs()).sum::<usize>()
    }

    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize> {
        self.encode(encoding_mut(encoding)?, blocks, work_mut(scratch)?)
    }

    fn begin(&self, document: &Document) -> Result<Box<dyn State>> {
        Ok(Box::new(DecoderState::of_document(document, self.decoder.layout, &self.pages)?))
    }

    fn attention(&self, document: &Document, scratch: &mut Scratch) -> Result<Vec<f32>> {
        start_attention(self, document, scratch, |scratch| Ok(&mut work_mut::<Work>(scratch)?.decoder))
    }
}

// Loading. Tensors have the names of Hugging Face's transformers.

impl Blueprint for T5Blueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let mut out = vec![TensorSpec::normal(format!("{EMBEDDING}.weight"), vec![self.symbols, a.dim], 0.0, 1.0)];
        self.stacks().iter().for_each(|stack| self.stack(&mut out, stack));
        if let Some(deletion) = &a.deletion {
            let key = |name: &str| format!("encoder.block.{}.delete_gate.{name}", deletion.layer);
            out.push(matrix(key("feed_forward"), 1, a.dim));
            out.push(TensorSpec::zeros(key("feed_forward.bias"), vec![1]));
            if deletion.norm {
                out.push(norm(key("layer_norm"), a.dim));
            }
        }
        if !a.tied_head {
            out.push(matrix(HEAD, self.symbols, a.dim));
        }
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let attention = match a.attention {
            EncoderAttention::Full => "full attention".into(),
            EncoderAttention::Local { radius } => format!("attention within {radius} tokens"),
            EncoderAttention::TransientGlobal { radius, group } => {
                format!("attention within {radius} tokens and to groups of {group}")
            }
        };
        let deletion =
            a.deletion.map_or_else(String::new, |gate| format!(", tokens deleted before layer {}", gate.layer));
        let stacks = format!("encoder {} × {}, decoder {} × {}", a.encoder_layers, a.dim, a.decoder_layers, a.dim);
        format!("{stacks}, {attention}{deletion}")
    }

    fn reads_documents(&self) -> bool {
        true
    }

    fn has_unpooled_baseline(&self) -> bool {
        self.architecture.deletion.is_some()
    }

    fn bounds(&self) -> Bounds {
        Bounds { longest: Some((self.architecture.target_length, "the checkpoint's target_length")), endless: false }
    }

    fn computed_numbers(&self) -> usize {
        self.architecture.table_numbers()
    }

    fn build(&self, mut parts: Parts) -> Result<Arc<dyn Model>> {
        let mut card = parts.card("t5", self)?;
        let a = &self.architecture;
        let deletion = a.deletion.filter(|_| !parts.settings.unpooled);
        if a.deletion.is_some() && deletion.is_none() {
            card.unpooled_baseline = true;
            card.shape.push_str(", gate off");
        }
        let tensors = &mut Tensors::new(&mut parts.weights, a.norm_eps, parts.settings.dtype);
        let [encoder, decoder] = self.stacks();
        let embedding = tensors.weight(EMBEDDING)?;
        let head = tensors.head(a.tied_head.then_some(&embedding), HEAD, a.dim)?;
        let head_scale = if a.scale_head { (1.0 / (a.dim as f64).sqrt()) as f32 } else { 1.0 };
        Ok(Arc::new(T5 {
            compute: parts.settings.compute(),
            embedding,
            encoder: load_encoder(a, &encoder, tensors)?,
            gate: deletion.map(|deletion| DeletionGate::load(&deletion, tensors)).transpose()?,
            decoder: load_decoder(a, &decoder, tensors)?,
            head,
            head_scale,
            pages: PagePool::new(parts.settings.memory_bytes),
            limits: limits(a, deletion, parts.config.generation, card.max_symbols),
            card,
        }))
    }
}

/// Added to the mean square in the gate's norm, whatever the other norms add.
const GATE_NORM_EPS: f32 = 1e-6;

/// Vectors of one unit of the encoder's work.
const BLOCK: usize = UNIT;

fn limits(
    a: &Architecture,
    deletion: Option<Deletion>,
    generation: Option<GenerationDefaults>,
    targets: usize,
) -> DocumentLimits {
    let pooling =
        |deletion: &Deletion| PoolingStep { layer: deletion.layer, from: a.source_length, to: a.source_length };
    DocumentLimits {
        tokens: a.source_length,
        targets,
        padded: false,
        block: BLOCK,
        poolings: deletion.iter().map(pooling).collect(),
        marks: SpecialIds { end: a.end.unwrap_or(SPECIALS.end), ..SPECIALS },
        generation: generation.unwrap_or_else(GenerationDefaults::transformers).within(targets.saturating_sub(1)),
    }
}

fn load_encoder(a: &Architecture, stack: &StackTensors, tensors: &mut Tensors<'_>) -> Result<T5Encoder> {
    let buckets = a.buckets(true);
    let bias = buckets.two_sided_tables(&tensors.weight(stack.attention(0, BIAS))?);
    let mut global = |group: usize| {
        let mut norm = |block: usize| tensors.rms_norm(stack.attention(block, GLOBAL_NORM));
        Ok(GlobalTokens {
            group,
            norms: (0..stack.layers).map(&mut norm).collect::<Result<_>>()?,
            bias: buckets.two_sided_tables(&tensors.weight(stack.attention(0, GLOBAL_BIAS))?),
        })
    };
    Ok(T5Encoder {
        global: a.attention.group().map(&mut global).transpose()?,
        layers: stack.load(tensors)?,
        heads: a.heads,
        head_dim: a.head_dim,
        bias,
        radius: a.attention.radius(),
        sink: a.softmax1,
        norm: tensors.rms_norm(stack.norm())?,
    })
}

fn load_decoder(a: &Architecture, stack: &StackTensors, tensors: &mut Tensors<'_>) -> Result<T5Stack> {
    let Architecture { heads, head_dim, .. } = *a;
    let table = tensors.weight(stack.attention(0, BIAS))?;
    let dtype = tensors.store.dtype().cache_dtype();
    Ok(T5Stack {
        layers: stack.load(tensors)?,
        position: PositionScheme::Buckets(a.buckets(false).tables(&table).into()),
        layout: PageLayout { dtype, layers: stack.layers, heads, head_dim, output: 0 },
        sink: a.softmax1,
        norm: tensors.rms_norm(stack.norm())?,
    })
}

impl DeletionGate {
    fn load(deletion: &Deletion, tensors: &mut Tensors<'_>) -> Result<Self> {
        let Deletion { layer, function, threshold, norm } = *deletion;
        let key = |name: &str| format!("encoder.block.{layer}.delete_gate.{name}");
        let mut load_norm = || Ok(RmsNorm { weight: tensors.weight(key("layer_norm"))?, eps: GATE_NORM_EPS });
        let norm = norm.then(&mut load_norm).transpose()?;
        let (weight, bias) = tensors.weight_and_bias(key("feed_forward"))?;
        Ok(Self { layer, function, threshold, norm, weight, bias: bias.iter().sum() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(function: GateFunction, threshold: f32) -> DeletionGate {
        DeletionGate { layer: 0, function, threshold, norm: None, weight: vec![1.0], bias: 0.5 }
    }

    #[test]
    fn values_follow_their_definitions_and_the_threshold_is_exclusive() {
        let scaled = gate(GateFunction::ScaledSigmoid { scale: -30.0 }, -15.0);
        assert_eq!([scaled.value(&[-0.5]), scaled.value(&[1e3]), scaled.value(&[-1e3])], [-15.0, -0.0, -30.0]);
        assert_eq!(scaled.kept(&[-15.0, -14.9, -30.0, 0.0]), [1, 3]);
        assert_eq!(scaled.kept(&[-15.0, -20.0]), [0], "one token is left");
        let log = gate(GateFunction::LogSigmoid, -1.0);
        assert!((log.value(&[-0.5]) + std::f32::consts::LN_2).abs() < 1e-7);
        assert_eq!(log.value(&[-1e3]), -999.5);
    }
}
