//! Parts that several families share: a stack's dimensions, tensors and loading, costs, and helpers of steps and states. A
//! blueprint checks itself with [`Check`] and lists its tensors, with [`layer`] and [`position`] for instance; [`Tensors`] and
//! [`Loader`] take them by the same names.

use crate::{
    checkpoint::{Config, Init, TensorSpec, Weights},
    contract::{
        self, BoundaryOptions, Card, Document, DocumentEncoder, LayerTime, Model, PageUse, PoolingChoice, Scratch,
        SequenceRow, State, StepCost, StepStatus, SummaryLimits, Want, advance, state_mut, state_ref,
    },
    nn::{
        Activation, ConfigError, Position,
        attention::{Caches, Layer, NormOrder, Stack, StackWork},
        kv_cache::KvCache,
        mamba2::{HybridStack, Mixer},
        position::{Absolute, Buckets, PositionKind, PositionScheme, ROTARY_BASE, Rotary, SharedTerms, TransformerXl},
        sized,
        t5::T5Stack,
        window::Window,
    },
};
use std::{fmt::Display, ops::RangeInclusive, path::Path, sync::Arc};
use weir_kernels::{
    Compute, Dtype,
    attention::{POSITIONS, PageLayout},
    error::{Error, Result},
    linear::{Epilogue, Linear, QuantizedRows, WeightArena},
    rowwise::{LayerNorm, RmsNorm},
};

/// Dimensions that the layers of a model's stacks share. D = width, I = heads · head_dim, F = feed_forward.
#[derive(Debug, Clone, Copy)]
pub struct StackShape {
    /// Width D.
    pub dim: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Inner width F of the feed-forward.
    pub feed_forward: usize,
    /// Nonlinearity of the feed-forward.
    pub activation: Activation,
    /// Position scheme.
    pub position: PositionKind,
    /// True if there are norms inside the sub-layers.
    pub sub_norms: bool,
}

impl StackShape {
    /// Width I of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// Maximum layers of a stack, and maximum of any other dimension: far above any model, far below an overflow of a product.
pub const MAX_LAYERS: usize = 1024;

const MAX_DIM: usize = 1 << 20;

/// Maximum numbers in a table of distances: 256 MiB of f32, which the size of the file does not bound.
const MAX_TABLE: usize = 1 << 26;

/// Reports keys of `architecture` that are out of bounds.
#[derive(Clone, Copy)]
pub struct Check<'a> {
    /// The `config.json` to name in errors.
    pub file: &'a Path,
}

impl Check<'_> {
    /// Returns the error for `key`.
    pub fn fail(self, key: impl Display, expected: impl Into<String>, found: impl Display) -> Result<()> {
        Err(Error::checkpoint(self.file, format!("architecture.{key}"), expected.into(), found.to_string()))
    }

    /// Fails for `key` unless a condition holds.
    pub fn require(
        self,
        holds: bool,
        key: impl Display,
        expected: impl Into<String>,
        found: impl Display,
    ) -> Result<()> {
        if holds { Ok(()) } else { self.fail(key, expected, found) }
    }

    /// Checks that a value lies in a range.
    pub fn range(self, key: impl Display, value: usize, range: RangeInclusive<usize>) -> Result<()> {
        self.require(range.contains(&value), key, format!("{} to {}", range.start(), range.end()), value)
    }

    /// Checks a stack's layers. Fails if the value is 0 or exceeds the limit.
    pub fn layers(self, key: impl Display, layers: usize) -> Result<()> {
        self.range(key, layers, 1..=MAX_LAYERS)
    }

    /// Checks a dimension. Fails if the value is 0 or exceeds the limit.
    pub fn dim(self, key: impl Display, dim: usize) -> Result<()> {
        self.range(key, dim, 1..=MAX_DIM)
    }

    /// Checks dimensions as [`dim`](Self::dim) does.
    pub fn dims<const N: usize>(self, dims: [(&str, usize); N]) -> Result<()> {
        dims.into_iter().try_for_each(|(key, dim)| self.dim(key, dim))
    }

    /// Passes on the error of a part of the architecture, at `key`.
    pub fn part(self, key: &str, result: Result<(), ConfigError>) -> Result<()> {
        result.or_else(|error| self.fail(format!("{key}.{}", error.key), error.expected, error.found))
    }

    /// Checks the numbers in a table that is computed for all heads, and all distances up to the value of `key`.
    pub fn distance_table(self, key: impl Display, numbers: usize) -> Result<()> {
        let expected = format!("a table of at most {MAX_TABLE} numbers, one for each of `heads` and each distance");
        self.require(numbers <= MAX_TABLE, key, expected, numbers)
    }

    /// Checks a number that must lie strictly between 0 and 1.
    pub fn fraction(self, key: impl Display, value: f32) -> Result<()> {
        self.require(value > 0.0 && value < 1.0, key, "above 0, below 1", value)
    }

    /// Checks how many elements all tensors have; errors name `key`.
    pub fn tensors(self, key: &str, tensors: &[TensorSpec]) -> Result<()> {
        let count = tensors.iter().try_fold(0_usize, |sum, spec| {
            let numbers = spec.shape.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim))?;
            sum.checked_add(numbers)
        });
        self.parameters(key, count)
    }

    /// Checks the element count of all tensors, `None` if it overflows; errors name `key`.
    pub fn parameters(self, key: &str, count: Option<usize>) -> Result<()> {
        let found = count.map_or("a product beyond 64 bits".into(), |count| count.to_string());
        let fits = count.is_some_and(|count| count <= MAX_PARAMETERS);
        self.require(fits, key, format!("at most {MAX_PARAMETERS} numbers in all tensors"), found)
    }
}

// The official initialisation: weights normal with deviation 0.02, LayerNorm weights around one, biases zero.

/// Returns the spec of a matrix, or a table of vectors.
pub fn matrix(name: impl Into<String>, shape: Vec<usize>) -> TensorSpec {
    TensorSpec::normal(name, shape, 0.0, 0.02)
}

/// Appends a matrix with its bias.
pub fn linear(out: &mut Vec<TensorSpec>, name: &str, outputs: usize, inputs: usize) {
    out.push(matrix(format!("{name}.weight"), vec![outputs, inputs]));
    out.push(TensorSpec::zeros(format!("{name}.bias"), vec![outputs]));
}

/// Appends a LayerNorm.
pub fn norm(out: &mut Vec<TensorSpec>, name: &str, dim: usize) {
    out.push(TensorSpec::normal(format!("{name}.weight"), vec![dim], 1.0, 0.02));
    out.push(TensorSpec::zeros(format!("{name}.bias"), vec![dim]));
}

fn constant(name: &str, values: Vec<f32>) -> TensorSpec {
    let zeros = TensorSpec::zeros(name, vec![values.len()]);
    TensorSpec { init: Init::Values(values), trained: false, ..zeros }
}

/// Rejects a training window that is longer than the table of learned positions.
pub fn trained_within(position: PositionKind, config: &Config, file: &Path) -> Result<()> {
    match position {
        PositionKind::Learned { positions } if config.training_length > positions => {
            let expected = format!("at most {positions} (position.learned.positions): no more positions were learned");
            Err(Error::checkpoint(file, "training_length", expected, config.training_length.to_string()))
        }
        _ => Ok(()),
    }
}

/// Appends the tensors of a position scheme that all stacks share.
pub fn position(out: &mut Vec<TensorSpec>, shape: &StackShape) {
    let StackShape { dim, heads, head_dim, position, .. } = *shape;
    match position {
        PositionKind::TransformerXl => {
            out.push(constant("position.inverse_frequency", crate::nn::position::inverse_frequencies(dim)));
            for name in ["position.content_bias", "position.distance_bias"] {
                out.push(matrix(name, vec![heads, head_dim]));
            }
        }
        PositionKind::Alibi => out.push(constant("position.slopes", crate::nn::position::slopes(heads))),
        PositionKind::Buckets { count, .. } => out.push(matrix("position.bias", vec![count, heads])),
        PositionKind::Sinusoidal => out.push(constant("position.frequency", crate::nn::position::frequencies(dim))),
        PositionKind::Learned { positions } => out.push(matrix("position.table", vec![positions, dim])),
        PositionKind::Rotary | PositionKind::Xpos { .. } | PositionKind::None => {}
    }
}

/// Appends the tensors of one layer, whose names begin with `prefix`.
pub fn layer(out: &mut Vec<TensorSpec>, prefix: &str, shape: &StackShape) {
    let StackShape { dim, feed_forward, .. } = *shape;
    let inner = shape.inner();
    let key = |name: &str| format!("{prefix}.{name}");
    linear(out, &key("attention.qkv"), 3 * inner, dim);
    if shape.position == PositionKind::TransformerXl {
        out.push(matrix(key("attention.distance.weight"), vec![inner, dim]));
    }
    linear(out, &key("attention.output"), dim, inner);
    norm(out, &key("attention.norm"), dim);
    linear(out, &key("feed_forward.up"), feed_forward, dim);
    linear(out, &key("feed_forward.down"), dim, feed_forward);
    norm(out, &key("feed_forward.norm"), dim);
    if shape.sub_norms {
        norm(out, &key("attention.inner_norm"), inner);
        norm(out, &key("feed_forward.inner_norm"), feed_forward);
    }
}

/// Maximum elements of all tensors together: 64 GiB of f32.
pub const MAX_PARAMETERS: usize = 1 << 34;

/// The numbers in the tables that a position scheme computes for all stacks; `usize::MAX` if that overflows.
pub fn table_numbers(shape: &StackShape) -> usize {
    match shape.position {
        PositionKind::Buckets { count, max_distance } => {
            Buckets { count, max_distance, bidirectional: false }.table_numbers(shape.heads)
        }
        _ => 0,
    }
}

/// Index of the first position in fairseq's sinusoids, whose lower indices belong to padding.
pub const FIRST_SINUSOID: usize = 2;

/// Moves a checkpoint's tensors into the parts of a model. Names are without `.weight` and `.bias`. Every method fails if a tensor
/// is missing, or if memory runs out.
pub struct Tensors<'a> {
    /// The tensors not yet taken.
    pub weights: &'a mut Weights,
    /// Storage of the matrices.
    pub store: WeightArena,
    /// Added to the variance, or to the mean square, in every norm.
    eps: f32,
}

impl<'a> Tensors<'a> {
    /// Matrices are stored in `dtype`; norms add `eps`.
    pub fn new(weights: &'a mut Weights, eps: f32, dtype: Dtype) -> Self {
        Self { weights, store: WeightArena::new(dtype), eps }
    }

    /// Takes a weight.
    pub fn weight(&mut self, name: impl Display) -> Result<Vec<f32>> {
        self.weights.take(&format!("{name}.weight"))
    }

    /// Takes a weight and its bias.
    pub fn weight_and_bias(&mut self, name: impl Display) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok((self.weight(&name)?, self.weights.take(&format!("{name}.bias"))?))
    }

    /// Packs matrices of the same inputs as one, with their outputs, which have biases, concatenated.
    pub fn linear(&mut self, names: &[impl Display]) -> Result<Linear> {
        let mut weight = Vec::new();
        let mut bias = Vec::new();
        for name in names {
            let (own_weight, own_bias) = self.weight_and_bias(name)?;
            weight.extend(own_weight);
            bias.extend(own_bias);
        }
        self.pack(&weight, &bias, weight.len() / bias.len())
    }

    /// Packs matrices of the same `inputs`, without biases, as one, with their outputs concatenated.
    pub fn matrix(&mut self, names: &[impl Display], inputs: usize) -> Result<Linear> {
        let mut weight = Vec::new();
        for name in names {
            weight.extend(self.weight(name)?);
        }
        self.pack(&weight, &[], inputs)
    }

    /// Packs a matrix, (outputs, `inputs`), with its bias, (outputs), or without one.
    pub fn pack(&self, weight: &[f32], bias: &[f32], inputs: usize) -> Result<Linear> {
        Linear::pack(&self.store, weight, bias, weight.len() / inputs, inputs)
    }

    /// Packs the head, (V, `inputs`): the embedding, if it is `tied` to that, or a matrix of its own.
    pub fn head(&mut self, tied: Option<&[f32]>, name: &str, inputs: usize) -> Result<Linear> {
        match tied {
            Some(embedding) => self.pack(embedding, &[], inputs),
            None => self.matrix(&[name], inputs),
        }
    }

    /// Loads a LayerNorm.
    pub fn layer_norm(&mut self, name: impl Display) -> Result<LayerNorm> {
        let (weight, bias) = self.weight_and_bias(name)?;
        Ok(LayerNorm { weight, bias, eps: self.eps })
    }

    /// Loads an RMS norm.
    pub fn rms_norm(&mut self, name: impl Display) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.weight(name)?, eps: self.eps })
    }
}

/// Loads the stacks of a model whose layers have one shape.
pub struct Loader<'a> {
    /// The tensors not yet taken.
    pub tensors: Tensors<'a>,
    shape: StackShape,
    /// Storage of tables that are computed once.
    tables: WeightArena,
    shared: SharedPosition,
}

/// The tensors of a position scheme that all stacks share.
enum SharedPosition {
    TransformerXl(Arc<SharedTerms>),
    /// Rotary positions; with the scale base of xPos, if they have one.
    Rotary(Option<f64>),
    Slopes(Vec<f32>),
    Buckets(Arc<[Vec<f32>]>),
    Sinusoidal(Vec<f32>),
    Learned(Arc<[f32]>),
    None,
}

/// Names and describes one stack of a model.
#[derive(Debug, Clone, Copy)]
pub struct StackSpec<'a> {
    /// Prefix of its tensors' names.
    pub name: &'a str,
    /// Number of layers.
    pub layers: usize,
    /// Width of the output that the cache keeps for each position; 0 if it keeps none.
    pub output: usize,
    /// Keys that a position attends to.
    pub window: Window,
    /// Position of its norms.
    pub order: NormOrder,
    /// Maximum positions of a sequence.
    pub positions: usize,
}

impl<'a> Loader<'a> {
    /// Returns a loader for layers of that shape, whose norms add `eps` to the variance. Fails if a tensor is missing.
    pub fn new(weights: &'a mut Weights, shape: StackShape, eps: f32, dtype: Dtype) -> Result<Self> {
        let mut take = |name: &str| weights.take(&format!("position.{name}"));
        let shared = match shape.position {
            PositionKind::TransformerXl => SharedPosition::TransformerXl(Arc::new(SharedTerms {
                inverse_frequency: take("inverse_frequency")?,
                content_bias: take("content_bias")?,
                distance_bias: take("distance_bias")?,
            })),
            PositionKind::Rotary => SharedPosition::Rotary(None),
            PositionKind::Xpos { scale_base } => SharedPosition::Rotary(Some(scale_base)),
            PositionKind::Alibi => SharedPosition::Slopes(take("slopes")?),
            PositionKind::Buckets { count, max_distance } => {
                let buckets = Buckets { count, max_distance, bidirectional: false };
                SharedPosition::Buckets(buckets.tables(&take("bias")?).into())
            }
            PositionKind::Sinusoidal => SharedPosition::Sinusoidal(take("frequency")?),
            PositionKind::Learned { .. } => SharedPosition::Learned(take("table")?.into()),
            PositionKind::None => SharedPosition::None,
        };
        let tensors = Tensors::new(weights, eps, dtype);
        Ok(Self { tensors, shape, tables: WeightArena::new(Dtype::F32), shared })
    }

    /// Loads a stack. Fails if a tensor is missing, or if memory runs out.
    pub fn stack(&mut self, spec: &StackSpec<'_>) -> Result<Stack> {
        let StackShape { dim, heads, head_dim, activation, .. } = self.shape;
        let StackSpec { layers: count, output, window, order, .. } = *spec;
        let dtype = self.tensors.store.dtype().cache_dtype();
        let layout = PageLayout { dtype, layers: count, heads, head_dim, output };
        let mut layers = Vec::with_capacity(count);
        let mut distances = Vec::new();
        for index in 0..count {
            let prefix = format!("{}.{index}", spec.name);
            if let SharedPosition::TransformerXl(_) = self.shared {
                let weight = self.tensors.weight(format_args!("{prefix}.attention.distance"))?;
                distances.push(Linear::pack(&self.tables, &weight, &[], heads * head_dim, dim)?);
            }
            layers.push(self.layer(&prefix)?);
        }
        let position = self.position(distances, &layout, spec);
        Ok(Stack { layers, position, window, order, layout, activation })
    }

    fn layer(&mut self, prefix: &str) -> Result<Layer> {
        let Self { tensors, shape: StackShape { sub_norms, .. }, .. } = self;
        let key = |name: &str| format!("{prefix}.{name}");
        let mut sub_norm = |name: &str| sub_norms.then(|| tensors.layer_norm(key(name))).transpose();
        let context_norm = sub_norm("attention.inner_norm")?;
        let hidden_norm = sub_norm("feed_forward.inner_norm")?;
        Ok(Layer {
            qkv: tensors.linear(&[key("attention.qkv")])?,
            output: tensors.linear(&[key("attention.output")])?,
            attention_norm: tensors.layer_norm(key("attention.norm"))?,
            context_norm,
            up: tensors.linear(&[key("feed_forward.up")])?,
            down: tensors.linear(&[key("feed_forward.down")])?,
            feed_forward_norm: tensors.layer_norm(key("feed_forward.norm"))?,
            hidden_norm,
            cross: None,
        })
    }

    fn position(&self, distances: Vec<Linear>, layout: &PageLayout, spec: &StackSpec<'_>) -> PositionScheme {
        let StackSpec { window, positions, .. } = *spec;
        match &self.shared {
            SharedPosition::TransformerXl(shared) => {
                // attention reads complete pages of keys
                let reach = window.max_keys().map_or(positions, |reach| reach + POSITIONS);
                PositionScheme::TransformerXl(TransformerXl::new(shared.clone(), distances, layout, reach))
            }
            SharedPosition::Rotary(scale_base) => PositionScheme::Rotary(Rotary::new(
                layout.head_dim,
                ROTARY_BASE,
                *scale_base,
                window.max_keys(),
                positions,
            )),
            SharedPosition::Slopes(slopes) => PositionScheme::Alibi(slopes.clone()),
            SharedPosition::Buckets(tables) => PositionScheme::Buckets(tables.clone()),
            SharedPosition::Sinusoidal(frequencies) => PositionScheme::Absolute(Absolute::Sinusoidal {
                frequencies: frequencies.clone(),
                first: FIRST_SINUSOID,
            }),
            SharedPosition::Learned(table) => PositionScheme::Absolute(Absolute::Learned { table: table.clone() }),
            SharedPosition::None => PositionScheme::None,
        }
    }
}

/// The least and the largest values of generation defaults that do not depend on the model.
pub const GENERATION_BOUNDS: [(&str, f64, f64); 4] = [
    ("repetition_penalty", 0.01, 100.0),
    ("beam", 1.0, 64.0),
    ("no_repeat_ngram", 0.0, SummaryLimits::NGRAM as f64),
    ("length_penalty", -10.0, 10.0),
];

/// Checks the checkpoint's generation defaults, for texts of at most `target_length` symbols with the start symbol.
pub fn check_generation(config: &Config, target_length: usize, file: &Path) -> Result<()> {
    let Some(generation) = &config.generation else { return Ok(()) };
    let fail = |key: &str, expected: String, found: String| {
        Err(Error::checkpoint(file, format!("generation.{key}"), expected, found))
    };
    // The last position is the end symbol's.
    let max = target_length - 1;
    let g = generation;
    let values =
        [f64::from(g.repetition_penalty), g.beam as f64, g.no_repeat_ngram as f64, f64::from(g.length_penalty)];
    for ((key, min, max), value) in GENERATION_BOUNDS.into_iter().zip(values) {
        if !(min as f32..=max as f32).contains(&(value as f32)) {
            return fail(key, format!("{min} to {max}"), (value as f32).to_string());
        }
    }
    match g {
        g if !(1..=max).contains(&g.max_tokens) => {
            fail("max_tokens", format!("1 to {max}: target_length less one"), g.max_tokens.to_string())
        }
        g if g.min_tokens > g.max_tokens => {
            fail("min_tokens", format!("at most max_tokens, {}", g.max_tokens), g.min_tokens.to_string())
        }
        g if g.no_repeat_ngram == 1 => {
            let expected = format!("0 to disable the rule, or 2 to {}", SummaryLimits::NGRAM);
            fail("no_repeat_ngram", expected, g.no_repeat_ngram.to_string())
        }
        _ => Ok(()),
    }
}

// Steps and states.

/// Receives each intermediate vector of a stage, with its sequence and position. Set by golden tests, never by servers.
pub type Watcher<Stage> = Box<dyn FnMut(Stage, Position, &[f32]) + Send>;

/// Sends `numbers`, which holds one vector for each of `positions`, to the watcher if there is one.
pub fn watch<S: Copy>(watcher: &mut Option<Watcher<S>>, stage: S, positions: &[Position], numbers: &[f32]) {
    let Some(watcher) = watcher else { return };
    let width = numbers.len() / positions.len().max(1);
    for (position, vector) in positions.iter().zip(numbers.chunks_exact(width.max(1))) {
        watcher(stage, *position, vector);
    }
}

/// Returns a model's working memory behind the contract; creates it at the first use. Fails if another model created it.
pub fn work_mut<W: Default + Send + 'static>(scratch: &mut Scratch) -> Result<&mut W> {
    if scratch.0.is::<()>() {
        scratch.0 = Box::new(W::default());
    }
    scratch.0.downcast_mut().ok_or_else(|| Error::Internal("another model's scratch".into()))
}

/// Checks that a row may be fed: it and its state are ready, the feed is not empty, and the sequence has room.
pub fn check_feed(card: &Card, row: &SequenceRow, ready: bool) -> Result<()> {
    if row.status != StepStatus::Ready || !ready || row.feed.is_empty() {
        return Err(Error::Internal("a row was fed no symbols, or before it was ready".into()));
    }
    let length = row.state.len() + row.positions();
    let limit = card.max_symbols;
    if length > limit {
        return Err(Error::TooLong { field: "sequence", length, limit, unit: "symbols", why: None });
    }
    Ok(())
}

/// Starts a feed of symbols: checks the row as [`check_feed`] does, checks its symbols, and clears the decisions on earlier symbols.
pub fn start_feed(card: &Card, row: &mut SequenceRow, ready: bool) -> Result<()> {
    check_feed(card, row, ready)?;
    card.vocabulary.check_ids("feed", &row.feed)?;
    row.decisions.clear();
    Ok(())
}

/// Reports the pages of caches. The state holds each page once.
pub fn own_pages<'a>(caches: impl IntoIterator<Item = &'a KvCache>, each: &mut dyn FnMut(PageUse)) {
    for page in caches.into_iter().flat_map(KvCache::pages) {
        each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references(), own: 1 });
    }
}

/// Finds the cache of one stack in a state.
pub struct StackOf<S>(pub fn(&S) -> Result<&KvCache>, pub fn(&mut S) -> Result<&mut KvCache>);

/// The caches of one stack, in the states of a step's rows.
pub struct StackCaches<'a, S>(pub &'a mut [SequenceRow], pub StackOf<S>);

impl<S: State> Caches for StackCaches<'_, S> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        (self.1.0)(state_ref(&*self.0[sequence].state)?)
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        (self.1.1)(state_mut(&mut *self.0[sequence].state)?)
    }
}

/// Fills `buffer` with the rows among `which` that have this status, and takes it if there are any. The caller puts it back after its step.
pub fn with_status(
    status: StepStatus,
    rows: &[SequenceRow],
    which: &[usize],
    buffer: &mut Vec<usize>,
) -> Option<Vec<usize>> {
    buffer.clear();
    buffer.extend(which.iter().filter(|&&index| rows[index].status == status));
    if buffer.is_empty() { None } else { Some(std::mem::take(buffer)) }
}

/// Returns the error for a text that an encoder-decoder is asked to continue.
pub fn needs_document(card: &Card) -> Error {
    Error::wrong_kind("text generation", &card.name, "needs no document", format!("an encoder-decoder: {}", card.shape))
}

/// Returns the error for a hard selection by a model without scores.
pub fn needs_scores(card: &Card) -> Error {
    Error::wrong_kind("options.hard_topk", &card.name, "has a pooling that scores", &card.shape)
}

/// Limits of a document's tokens.
pub struct TokenLimits {
    /// Maximum tokens.
    pub tokens: usize,
    /// Vocabulary size V.
    pub symbols: usize,
    /// The padding token, if documents may not contain it.
    pub padding: Option<u32>,
}

/// Appends `more` tokens to a document. Fails if it was closed, becomes too long, or a token is not allowed.
pub fn push_tokens(tokens: &mut Vec<u32>, more: &[u32], closed: bool, limits: &TokenLimits) -> Result<()> {
    let TokenLimits { tokens: limit, symbols, padding } = *limits;
    if closed {
        return Err(Error::Internal("tokens for a document that was closed".into()));
    }
    let length = tokens.len().saturating_add(more.len());
    if length > limit {
        return Err(Error::TooLong { field: "document", length, limit, unit: "tokens", why: None });
    }
    if let Some(offset) = more.iter().position(|&token| token as usize >= symbols) {
        let found = format!("id {} (the vocabulary has {symbols} symbols)", more[offset]);
        let offset = tokens.len() + offset;
        return Err(Error::UnknownSymbol { field: "document", found, offset, unit: "token" });
    }
    if let Some(offset) = more.iter().position(|&token| Some(token) == padding) {
        let found = format!("id {} at token {}", more[offset], tokens.len() + offset);
        return Err(Error::bad_option("document", found, "tokens other than padding"));
    }
    tokens.extend_from_slice(more);
    Ok(())
}

/// The vectors that flow through a stack in a step, gathered from the rows' states and scattered to them. Hot path: its buffers keep
/// their memory.
#[derive(Default)]
pub struct Batch {
    /// Sequence and position of each vector.
    pub positions: Vec<Position>,
    /// (positions, D)
    pub x: Vec<f32>,
}

impl Batch {
    /// Removes all vectors.
    pub fn clear(&mut self) {
        self.positions.clear();
        self.x.clear();
    }

    /// Appends the `count` positions of a row that follow those in `cache`; [`fill`](Self::fill) provides their vectors.
    pub fn extend(&mut self, row: usize, cache: &KvCache, count: usize) {
        self.positions.extend(Position::run(row, cache.len()..cache.len() + count));
    }

    /// Appends the vectors of `symbols` in `embedding`, (V, D), with D = `dim`.
    pub fn embed(&mut self, embedding: &[f32], dim: usize, symbols: &[u32]) {
        symbols.iter().for_each(|&symbol| self.x.extend_from_slice(&embedding[symbol as usize * dim..][..dim]));
    }

    /// Writes the vector of each position, (D), with D = `dim`.
    pub fn fill(&mut self, dim: usize, mut write: impl FnMut(Position, &mut [f32]) -> Result<()>) -> Result<()> {
        let x = sized(&mut self.x, self.positions.len() * dim);
        self.positions.iter().zip(x.chunks_exact_mut(dim)).try_for_each(|(&position, x)| write(position, x))
    }

    /// Iterates over the positions with their vectors, (D).
    pub fn iter(&self) -> impl Iterator<Item = (Position, &[f32])> {
        let dim = self.x.len() / self.positions.len().max(1);
        self.positions.iter().copied().zip(self.x.chunks_exact(dim.max(1)))
    }
}

/// Buffers of a finish step.
#[derive(Default)]
pub struct HeadWork {
    /// The head's input: (wanted, D)
    pub wanted: Vec<f32>,
    /// (wanted, V)
    logits: Vec<f32>,
}

impl HeadWork {
    /// Multiplies the wanted vectors by the head, (V, D), and delivers the logits as [`deliver_logits`] does.
    pub fn deliver(
        &mut self,
        head: &Linear,
        compute: &Compute,
        quantized: &mut QuantizedRows,
        rows: &mut [SequenceRow],
        which: &[usize],
    ) -> Result<()> {
        let logits = sized(&mut self.logits, self.wanted.len() / head.inputs() * head.outputs());
        head.apply(compute, &self.wanted, Epilogue::None, quantized, logits); // (wanted, V)
        deliver_logits(rows, which, logits, head.outputs())
    }
}

/// Splits `logits` (wanted, V), row after row, among the rows `which`, which are then ready; V = `symbols`.
pub fn deliver_logits(rows: &mut [SequenceRow], which: &[usize], logits: &[f32], symbols: usize) -> Result<()> {
    let wanted: usize = which.iter().map(|&index| rows[index].wanted()).sum();
    if wanted * symbols != logits.len() {
        return Err(Error::Internal("a row's feed or want was changed before the row was ready".into()));
    }
    let mut rest = logits;
    for &index in which {
        let row = &mut rows[index];
        let (own, others) = rest.split_at(row.wanted() * symbols);
        row.logits.clear();
        row.logits.extend_from_slice(own);
        rest = others;
        row.status = StepStatus::Ready;
    }
    Ok(())
}

/// Computes the logits before a text's first symbol, (V), of a model with a start symbol.
pub fn first_logits(model: &dyn Model) -> Result<Arc<[f32]>> {
    let mut rows = [SequenceRow::new(model.begin(BoundaryOptions::default())?)];
    rows[0].set(&[contract::BEGIN], Want::Last);
    advance(model, &mut rows, &[0], &mut model.scratch())?;
    Ok(rows[0].logits.as_slice().into())
}

/// Clones a list with at least `capacity`, so that the clone grows no sooner than a new list.
pub fn clone_with_capacity<T: Copy>(list: &[T], capacity: usize) -> Vec<T> {
    let mut clone = Vec::with_capacity(list.len().max(capacity));
    clone.extend_from_slice(list);
    clone
}

/// Checks that a `ready` row's state can be rolled back to `len` symbols.
pub fn check_rollback(state: &dyn State, ready: bool, len: usize) -> Result<()> {
    let earliest = state.earliest();
    let reason = match len {
        _ if !ready => "the row is not ready".to_owned(),
        _ if len > state.len() => format!("the sequence has {} symbols", state.len()),
        1.. if len < earliest => format!("its keys are dropped; 0 and lengths from {earliest} on are possible"),
        _ => return Ok(()),
    };
    Err(Error::Internal(format!("cannot roll back to {len} symbols: {reason}")))
}

/// Returns an encoded document of `tokens` tokens. `memory` has keys and values for all layers of the decoder, one position for each
/// vector; without pooling, it would have `unpooled` positions.
pub(crate) fn memory_document(
    tokens: usize,
    memory: KvCache,
    unpooled: usize,
    choices: Vec<PoolingChoice>,
    timings: Vec<LayerTime>,
    memory_ns: u64,
) -> Arc<Document> {
    let kept: usize = choices.iter().map(|choice| size_of_val(&*choice.kept)).sum();
    let own_bytes = size_of::<Document>() + size_of::<KvCache>() + memory.own_bytes() + kept + size_of_val(&*timings);
    Arc::new(Document {
        tokens,
        vectors: memory.len(),
        bytes: memory.bytes(),
        unpooled_bytes: memory.layout().bytes_for(unpooled),
        own_bytes,
        choices,
        timings,
        memory_ns,
        memory: Box::new(memory),
    })
}

/// Returns the attention of a text's start to a document, as [`DocumentEncoder::attention`] does; `stack` finds the decoder's buffers.
pub(crate) fn start_attention<M: Model + DocumentEncoder>(
    model: &M,
    document: &Document,
    scratch: &mut Scratch,
    stack: fn(&mut Scratch) -> Result<&mut StackWork>,
) -> Result<Vec<f32>> {
    let mut rows = [SequenceRow::new(DocumentEncoder::begin(model, document)?)];
    rows[0].set(&[model.limits().marks.start], Want::Nothing);
    stack(scratch)?.attended = Some(vec![0.0; document.vectors]);
    let fed = model.symbol_step(&mut rows, &[0], scratch);
    let attended = stack(scratch)?.attended.take();
    fed.map(|()| attended.unwrap_or_default())
}

/// Intermediate result of the encoder that an [`EncoderHook`] receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncoderHookPoint {
    /// Embeddings of tokens, with positions.
    Embedded,
    /// Output of a layer.
    Layer(usize),
    /// Output of a layer for a block of padding, whose vectors are all equal; without a layer, its input.
    Padding(Option<usize>),
    /// Output of the pooling after a layer.
    Pooled(usize),
    /// Output of the encoder.
    Encoded,
}

/// Receives vectors, (vectors, D), with the index of the first one.
pub type EncoderHook = Box<dyn FnMut(EncoderHookPoint, usize, &[f32]) + Send>;

// Costs of model parts, from which families add up `Model::cost`.

/// Cost of a matrix product with one vector.
pub fn linear_cost(matrix: &Linear) -> StepCost {
    let multiply_adds = matrix.inputs() * matrix.outputs();
    StepCost { shared_bytes: matrix.bytes(), own_bytes: 0, multiply_adds }
}

/// Cost of a normalisation; its few multiplications are not counted.
pub fn norm_cost(norm: &LayerNorm) -> StepCost {
    StepCost { shared_bytes: size_of_val(&*norm.weight) + size_of_val(&*norm.bias), ..StepCost::default() }
}

/// Cost of attention to `keys` in all layers, with this many products of a head's width for each key.
pub fn attention_cost(layout: &PageLayout, keys: usize, products: usize) -> StepCost {
    let PageLayout { layers, heads, head_dim, .. } = *layout;
    let multiply_adds = products * layers * heads * head_dim * keys;
    StepCost { shared_bytes: 0, own_bytes: keys * layout.bytes_per_key(), multiply_adds }
}

/// Cost of a T5 stack for a row that attends to `keys` of its own positions in each layer, and in a decoder to `memory` vectors.
pub fn t5_stack_cost(stack: &T5Stack, keys: usize, memory: usize) -> StepCost {
    let mut cost = attention_cost(&stack.layout, keys + memory, 2);
    cost.shared_bytes += stack.position.bytes_for(&stack.layout, keys) + size_of_val(&*stack.norm.weight);
    for layer in &stack.layers {
        layer.matrices().for_each(|matrix| cost += linear_cost(matrix));
        let norms = [&layer.attention_norm, &layer.feed_forward.norm].into_iter();
        for norm in norms.chain(layer.cross.iter().map(|cross| &cross.norm)) {
            cost.shared_bytes += size_of_val(&*norm.weight);
        }
    }
    cost
}

/// Cost of a stack for the last of `positions`.
pub fn stack_cost(stack: &Stack, positions: usize) -> StepCost {
    let keys = stack.window.keys(positions);
    let mut cost = attention_cost(&stack.layout, keys, stack.position.products() + 1);
    cost.shared_bytes += stack.position.bytes_for(&stack.layout, keys);
    for Layer { qkv, output, up, down, attention_norm, feed_forward_norm, context_norm, hidden_norm, cross } in
        &stack.layers
    {
        let cross_matrices = cross.iter().flat_map(|cross| [&cross.query, &cross.output]);
        let matrices = [qkv, output, up, down].into_iter().chain(cross_matrices);
        matrices.for_each(|matrix| cost += linear_cost(matrix));
        let norms = [attention_norm, feed_forward_norm].into_iter().chain(context_norm).chain(hidden_norm);
        norms.chain(cross.iter().map(|cross| &cross.norm)).for_each(|norm| cost += norm_cost(norm));
    }
    cost
}

/// Cost of a hybrid stack for the last of `positions`. A recurrent layer reads and writes its state.
pub fn hybrid_stack_cost(stack: &HybridStack, positions: usize) -> StepCost {
    let mut cost = attention_cost(&stack.layout, stack.window.keys(positions.max(1)), 2);
    cost.shared_bytes += stack.norm.as_ref().map_or(0, |norm| size_of_val(&*norm.weight));
    cost.own_bytes += 2 * size_of::<f32>() * stack.recurrent_numbers();
    for layer in &stack.layers {
        layer.matrices().for_each(|matrix| cost += linear_cost(matrix));
        cost.shared_bytes += size_of_val(&*layer.norm.weight);
        if let Mixer::Mamba2(mixer) = &layer.mixer {
            cost.multiply_adds += mixer.recurrence_multiply_adds();
            cost.shared_bytes += size_of_val(&*mixer.taps.weight);
        }
    }
    cost
}
