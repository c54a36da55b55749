//! One causal stack: LeX (Sun et al. 2023, arXiv 2212.10554) and its baselines, GPT-2 among them.
//!
//! Read from microsoft/torchscale at commit 4d1e0e8: `xpos_relative_position.py` (xPos). Blockwise causal attention is `block_size`
//! in `multihead_attention.py` and `decoder.py` of the first author's fork, sunyt32/torchscale at commit 4ad9dfd. GPT-2 is
//! `GPT2LMHeadModel` of Hugging Face transformers 4.33.3, `modeling_gpt2.py`.
//!
//! embed → pre-norm stack → norm → logits. Nothing is pooled, so a row never waits. The configuration names position scheme
//! and window; keys that the window has left behind are dropped, so a stream of any length takes the memory of a window.
//!
//! In reading order: [`Architecture`]; [`DecoderState`], one sequence; [`Work`], a thread's buffers; [`Decoder`], the weights and
//! the steps; loading.

use crate::{
    checkpoint::{self, Config},
    contract::{
        self, BoundaryOptions, Card, Cost, Document, KvMemory, Model, PageUse, ReplayStart, Scratch, SequenceRow,
        State, StepStatus, SymbolBoundary, Want, check_mode, state_mut, state_ref,
    },
    family::{
        Blueprint, Parts, TensorSpec,
        parts::{
            self, Batch, Check, HeadWork, Loader, StackShape, StackSpec, check_feed, check_rollback, first_logits,
            matrix, norm, with_status, work_mut,
        },
        settings::Bounds,
    },
    nn::{
        Activation, ConfigError,
        attention::{Caches, Hook, MemoryPart, NormOrder, Stack, StackWork},
        kv_cache::KvCache,
        position::PositionKind,
        window::Window,
    },
};
use serde::Deserialize;
use std::{path::Path, sync::Arc};
use weir_kernels::{
    Compute,
    attention::PageLayout,
    error::{Error, Result},
    linear::Linear,
    pages::PagePool,
    rowwise::{LayerNorm, layer_norm},
};

/// The decoder's `architecture` in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Layers.
    pub layers: usize,
    /// Width D of the residual stream.
    pub dim: usize,
    /// Attention heads H.
    pub heads: usize,
    /// Width h of a head; not necessarily D/H.
    pub head_dim: usize,
    /// Width F of the feed-forward's inner layer.
    pub feed_forward: usize,
    /// Nonlinearity between the feed-forward's two products.
    pub activation: Activation,
    /// Added to the variance in every LayerNorm.
    pub layer_norm_eps: f32,
    /// The position scheme.
    pub position: PositionKind,
    /// Keys that a position attends to.
    pub window: Window,
    /// True if there are norms inside the sub-layers: before attention's output matrix and before the feed-forward's.
    pub sub_norms: bool,
    /// True if embeddings are multiplied by √D.
    pub scale_embedding: bool,
    /// True if the head is the embedding.
    pub tied: bool,
}

impl Architecture {
    /// The dimensions of its layers.
    pub fn stack_shape(&self) -> StackShape {
        let Self { dim, heads, head_dim, feed_forward, activation, position, sub_norms, .. } = *self;
        StackShape { dim, heads, head_dim, feed_forward, activation, position, sub_norms }
    }
}

/// A validated decoder.
#[derive(Debug, Clone)]
pub struct DecoderBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
    /// True if a text begins with a start symbol, which takes a position.
    pub has_start: bool,
}

impl DecoderBlueprint {
    /// Checks every bound of the architecture. The error names the first key that is out of bounds, and the bound.
    fn validate(&self, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let check = Check { file };
        check.layers("layers", a.layers)?;
        check.dims([("dim", a.dim), ("heads", a.heads), ("head_dim", a.head_dim), ("feed_forward", a.feed_forward)])?;
        check.fraction("layer_norm_eps", a.layer_norm_eps)?;
        check.part("window", a.window.validate())?;
        if let Err(ConfigError { key, expected, found }) = a.position.validate(a.dim, a.head_dim, a.window) {
            return check.fail(key, expected, found);
        }
        check.distance_table("position.buckets.max_distance", parts::table_numbers(&a.stack_shape()))?;
        match a.position.max_length(a.head_dim, a.window) {
            Some((positions, _)) if positions <= self.lead() => {
                let expected = format!("room for {} positions: the start symbol's and a symbol's", self.lead() + 1);
                check.fail("position", expected, positions)
            }
            _ => check.tensors("dim", &self.tensors()),
        }
    }

    /// Positions before a text's first symbol: the start symbol's, if there is one.
    pub fn lead(&self) -> usize {
        usize::from(self.has_start)
    }
}

/// One sequence of a decoder.
pub struct DecoderState {
    /// Keys and values: the start symbol's, if there is one, then the fed symbols'.
    pub cache: KvCache,
    /// The cache of a sequence without symbols: empty, or with the start symbol.
    pub start: Arc<KvCache>,
    /// Positions that a position attends to.
    pub window: Window,
    /// Symbols that have had their finish step; later ones are in flight.
    pub finished: usize,
    /// The head's input: (wanted, D)
    pub hidden: Vec<f32>,
    /// Keys and values of an encoded document, if rows attend to one: shared, never written.
    pub memory: Option<KvCache>,
    /// Start of a resumed sequence; `None` if it starts with the text.
    pub resumed: Option<ReplayStart>,
}

impl DecoderState {
    /// Returns a sequence without symbols.
    pub fn new(start: Arc<KvCache>, window: Window, memory: Option<KvCache>) -> Self {
        Self { cache: (*start).clone(), start, window, finished: 0, hidden: Vec::new(), memory, resumed: None }
    }

    /// Returns a sequence without symbols that attends to a document. Fails for a document of another model.
    pub(crate) fn of_document(document: &Document, layout: PageLayout, pages: &Arc<PagePool>) -> Result<Self> {
        let memory = document.memory.downcast_ref().filter(|memory: &&KvCache| *memory.layout() == layout);
        let memory = memory.ok_or_else(|| Error::Internal("a document of another model".into()))?;
        let cache = KvCache::new(layout, pages.clone());
        Ok(Self::new(Arc::new(cache), Window::Full, Some(memory.clone())))
    }

    /// True if no symbol is in flight.
    pub fn is_ready(&self) -> bool {
        self.finished == self.len()
    }

    fn truncate(&mut self, len: usize) {
        if len == 0 && self.cache.first() > 0 {
            // the window dropped the start symbol, or the sequence was resumed after it
            self.cache = (*self.start).clone();
            self.resumed = None;
        }
        self.cache.truncate(self.start.len() + len);
        self.finished = self.finished.min(len);
    }
}

impl State for DecoderState {
    fn len(&self) -> usize {
        self.cache.len() - self.start.len()
    }

    fn fork(&self) -> Box<dyn State> {
        let mut fork = Self {
            cache: self.cache.clone(),
            start: self.start.clone(),
            hidden: Vec::new(),
            memory: self.memory.clone(),
            ..*self
        };
        // if the window has moved past the start of the feed, only an empty sequence is left
        fork.truncate(if self.finished < self.earliest() { 0 } else { self.finished });
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        self.truncate(len);
        Ok(())
    }

    fn earliest(&self) -> usize {
        let held = self.window.earliest_rollback(self.cache.start()).saturating_sub(self.start.len());
        held.max(self.resumed.map_or(0, |start| start.valid_from))
    }

    fn replay_start(&self) -> Option<ReplayStart> {
        let valid_from = self.earliest();
        let lead = self.start.len();
        let can_resume = self.memory.is_none() && self.is_ready() && (1..=self.len()).contains(&valid_from);
        // each layer's window reaches further back: from the next symbol through all layers down to the first fed symbol
        let low = self.window.first_key_through(lead + valid_from, self.cache.layout().layers);
        let symbol = low.checked_sub(lead).filter(|&symbol| can_resume && symbol > 0)?;
        Some(ReplayStart { symbol, valid_from, skipped: None })
    }

    fn resume(&mut self, start: ReplayStart) -> Result<()> {
        if !(self.is_empty() && self.memory.is_none() && start.skipped.is_none()) {
            return Err(Error::Internal(format!("cannot resume a sequence of {} symbols from {start:?}", self.len())));
        }
        self.cache = self.cache.from_position(self.start.len() + start.symbol);
        self.finished = start.symbol;
        self.resumed = Some(start);
        Ok(())
    }

    fn restart(&mut self, _: usize) {
        self.truncate(0);
        self.hidden.clear();
    }

    fn boundary_before(&self, len: usize) -> usize {
        let len = len.min(self.len());
        if len < self.earliest() { 0 } else { len }
    }

    fn bytes(&self) -> usize {
        self.cache.bytes() + self.memory.as_ref().map_or(0, KvCache::bytes)
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        parts::own_pages(std::iter::once(&self.cache).chain(&self.memory), each);
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>() + self.cache.own_bytes() + self.memory.as_ref().map_or(0, KvCache::own_bytes)
    }
}

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    pub(crate) stack: StackWork,
    batch: Batch,
    /// Symbols of each row's feed that the stack has processed.
    processed: Vec<usize>,
    chosen: Vec<usize>,
    head: HeadWork,
}

impl Work {
    /// Sends every layer's intermediate results to `hook` from now on.
    pub fn watch(&mut self, hook: Hook) {
        self.stack.hook = Some(hook);
    }
}

/// The caches in the states of a step's rows.
pub(crate) struct RowCaches<'a>(pub(crate) &'a mut [SequenceRow]);

impl Caches for RowCaches<'_> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        Ok(&state_ref::<DecoderState>(&*self.0[sequence].state)?.cache)
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        Ok(&mut state(self.0, sequence)?.cache)
    }

    fn memory(&self, sequence: usize) -> Result<MemoryPart<'_>> {
        let memory = state_ref::<DecoderState>(&*self.0[sequence].state)?.memory.as_ref();
        let part = memory.and_then(|cache| Some(MemoryPart { cache, last: cache.len().checked_sub(1)? }));
        part.ok_or_else(|| Error::Internal(format!("sequence {sequence} of a decoder has no memory")))
    }
}

pub(crate) fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut DecoderState> {
    state_mut(&mut *rows[index].state)
}

/// Records that a row's feed has had its symbol step, in a model without segments.
pub(crate) fn set_fed(row: &mut SequenceRow) {
    row.decisions.clear();
    row.decisions.resize(row.feed.len(), SymbolBoundary::default());
    row.status = StepStatus::Unfinished;
}

/// Moves the vectors whose logits are wanted, (wanted, D), out of the rows `which`.
pub(crate) fn take_hidden(rows: &mut [SequenceRow], which: &[usize], wanted: &mut Vec<f32>) -> Result<()> {
    wanted.clear();
    which.iter().try_for_each(|&index| {
        wanted.append(&mut state(rows, index)?.hidden);
        Ok(())
    })
}

/// Records that no symbol of the rows `which` is in flight any more.
pub(crate) fn set_finished(rows: &mut [SequenceRow], which: &[usize]) -> Result<()> {
    which.iter().try_for_each(|&index| {
        let state = state(rows, index)?;
        state.finished = state.len();
        Ok(())
    })
}

// The weights and the two steps. Hot path: no allocation once the buffers in `Work` have grown, no locks, no logging.

/// A loaded decoder. D = width, V = vocabulary size.
pub struct Decoder {
    /// The model's description for clients.
    pub card: Card,
    /// Threads and instruction set.
    pub compute: Compute,
    /// (V, D), multiplied by √D if the configuration has `scale_embedding`.
    pub embedding: Vec<f32>,
    /// The layers.
    pub stack: Stack,
    /// After the last layer, where layers do not end with a norm.
    pub norm: Option<LayerNorm>,
    /// (V, D)
    pub head: Linear,
    /// The state after the start symbol, computed once, in a model that has one.
    pub start: Option<StartState>,
    /// Memory of keys and values.
    pub pages: Arc<PagePool>,
    /// Bytes of pages that the model itself holds: the start symbol's.
    pub own_bytes: usize,
}

/// The state after the start symbol.
pub struct StartState {
    cache: Arc<KvCache>,
    /// The head's input before a text's first symbol: (D)
    pub hidden: Vec<f32>,
}

impl Model for Decoder {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let empty = || Arc::new(KvCache::new(self.stack.layout, self.pages.clone()));
        let start = self.start.as_ref().map_or_else(empty, |start| start.cache.clone());
        Ok(Box::new(DecoderState::new(start, self.stack.window, None)))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.feed_symbols(rows, which, work_mut(scratch)?)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.finish(rows, which, work_mut(scratch)?)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.stack.bytes_for(self.positions(symbols))
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let state = state_ref::<DecoderState>(state);
        state.map_or(0, |state| self.stack.growth(&state.cache, state.cache.len() + more))
    }

    fn memory(&self) -> KvMemory {
        // admission counts on the complete limit, so the start symbol's pages are taken off it
        KvMemory { in_use: self.pages.in_use() - self.own_bytes, limit: self.pages.limit() - self.own_bytes }
    }

    fn cost(&self, symbols: usize, _: usize) -> Cost {
        let mut cost = Cost { symbol: parts::stack_cost(&self.stack, self.positions(symbols)), ..Cost::default() };
        if let Some(norm) = &self.norm {
            cost.logits += parts::norm_cost(norm);
        }
        cost.logits += parts::linear_cost(&self.head);
        cost
    }
}

impl Decoder {
    /// Symbol step: embed → stack. A chunk of each row's feed at a time, so that a windowed cache stays small.
    pub fn feed_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        for &index in which {
            self.start_feed(&mut rows[index])?;
        }
        work.processed.clear();
        work.processed.resize(which.len(), 0);
        while self.gather_symbols(rows, which, work)? {
            let Work { stack, batch: Batch { positions, x }, .. } = work;
            self.stack.forward(&self.compute, x, positions, &mut RowCaches(rows), stack)?; // (symbols, D)
            self.scatter(rows, which, work)?;
        }
        which.iter().for_each(|&index| set_fed(&mut rows[index]));
        Ok(())
    }

    /// Finish step: norm → logits, of the symbols whose logits are wanted. Fails as [`feed_symbols`](Self::feed_symbols) does.
    pub fn finish(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let Some(unfinished) = with_status(StepStatus::Unfinished, rows, which, &mut work.chosen) else {
            return Ok(());
        };
        take_hidden(rows, &unfinished, &mut work.head.wanted)?; // (wanted, D)
        if let Some(parameters) = &self.norm {
            layer_norm(&self.compute, &mut work.head.wanted, parameters);
        }
        work.head.deliver(&self.head, &self.compute, &mut work.stack.quantized, rows, &unfinished)?;
        set_finished(rows, &unfinished)?;
        work.chosen = unfinished;
        Ok(())
    }

    fn positions(&self, symbols: usize) -> usize {
        symbols + self.start.as_ref().map_or(0, |start| start.cache.len())
    }

    /// Checks a row's feed and clears the vectors of the last one.
    fn start_feed(&self, row: &mut SequenceRow) -> Result<()> {
        check_feed(&self.card, row, state_ref::<DecoderState>(&*row.state)?.is_ready())?;
        let wanted = row.wanted();
        let state: &mut DecoderState = state_mut(&mut *row.state)?;
        state.hidden.clear();
        match &self.start {
            _ if !contract::is_control(&row.feed) => self.card.vocabulary.check_ids("feed", &row.feed),
            Some(start) if row.feed[..] == [contract::BEGIN] && state.is_empty() => {
                state.hidden.extend_from_slice(if wanted > 0 { &start.hidden } else { &[] });
                Ok(())
            }
            _ => Err(Error::Internal("a row was fed a control item that the model lacks, or after a symbol".into())),
        }
    }

    /// `work.batch` = the embeddings of the next chunk of each row's feed; false if no row has any left.
    fn gather_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<bool> {
        if work.processed.iter().zip(which).all(|(&processed, &index)| processed == rows[index].positions()) {
            return Ok(false);
        }
        work.batch.clear();
        for (&index, &processed) in which.iter().zip(&work.processed) {
            let chunk = (rows[index].positions() - processed).min(self.stack.window.chunk());
            let cache = &mut state(rows, index)?.cache;
            self.stack.reserve(cache, chunk)?;
            work.batch.extend(index, cache, chunk);
            work.batch.embed(&self.embedding, self.head.inputs(), &rows[index].feed[processed..processed + chunk]);
        }
        Ok(true)
    }

    /// Stores the vectors whose logits are wanted, the last symbols', in the rows.
    fn scatter(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let dim = self.head.inputs();
        let mut rest = &work.batch.x[..];
        for (&index, processed) in which.iter().zip(&mut work.processed) {
            let fed = rows[index].positions();
            let wanted = rows[index].wanted();
            let chunk = (fed - *processed).min(self.stack.window.chunk());
            let (own, others) = rest.split_at(chunk * dim);
            let unwanted = fed.saturating_sub(wanted + *processed).min(chunk);
            let state = state(rows, index)?;
            state.hidden.extend_from_slice(&own[unwanted * dim..]);
            state.cache.advance(chunk);
            rest = others;
            *processed += chunk;
        }
        Ok(())
    }
}

// Loading: tensors in the names of docs/checkpoints.md, and the model that they make.

/// Reads a decoder's architecture. Fails if a key is out of bounds, or the position scheme does not work with the window.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let blueprint =
        DecoderBlueprint { architecture, symbols: vocabulary.len(), has_start: vocabulary.specials().is_some() };
    blueprint.validate(file)?;
    parts::trained_within(blueprint.architecture.position, config, file)?;
    Ok(Box::new(blueprint))
}

impl Blueprint for DecoderBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let shape = a.stack_shape();
        let mut out = vec![matrix("embedding.weight", vec![self.symbols, a.dim])];
        parts::position(&mut out, &shape);
        (0..a.layers).for_each(|index| parts::layer(&mut out, &format!("layers.{index}"), &shape));
        norm(&mut out, "norm", a.dim);
        if !a.tied {
            out.push(matrix("head.weight", vec![self.symbols, a.dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let Architecture { layers, dim, heads, head_dim, position, window, .. } = &self.architecture;
        format!("{layers} layers × {dim}, {heads} heads × {head_dim}, {}, {}", position.name(), window.describe())
    }

    fn bounds(&self) -> Bounds {
        let a = &self.architecture;
        let longest =
            a.position.max_length(a.head_dim, a.window).map(|(positions, why)| (positions - self.lead(), why));
        Bounds { longest, endless: a.window.max_keys().is_some() }
    }

    fn speculates(&self) -> bool {
        true
    }

    fn computed_numbers(&self) -> usize {
        parts::table_numbers(&self.architecture.stack_shape())
    }

    fn build(&self, mut parts: Parts) -> Result<Arc<dyn Model>> {
        let card = parts.card("decoder", self)?;
        let a = &self.architecture;
        let dtype = parts.settings.dtype;
        let mut loader = Loader::new(&mut parts.weights, a.stack_shape(), a.layer_norm_eps, dtype)?;
        let stack = loader.stack(&StackSpec {
            name: "layers",
            layers: a.layers,
            output: 0,
            window: a.window,
            order: NormOrder::Pre,
            positions: card.max_symbols + self.lead(),
        })?;
        let mut tensors = loader.tensors;
        let norm = Some(tensors.layer_norm("norm")?);
        let mut embedding = tensors.weight("embedding")?;
        let head = tensors.head(a.tied.then_some(&embedding), "head", a.dim)?;
        if a.scale_embedding {
            let scale = (a.dim as f64).sqrt() as f32;
            embedding.iter_mut().for_each(|x| *x *= scale);
        }
        let compute = parts.settings.compute();
        let pages = PagePool::new(parts.settings.memory_bytes);
        let mut model = Decoder { card, compute, embedding, stack, norm, head, start: None, pages, own_bytes: 0 };
        if let Some(specials) = model.card.vocabulary.specials() {
            model.start = Some(model.feed_start(specials.start)?);
            model.own_bytes = model.pages.in_use();
            model.card.first_logits = Some(first_logits(&model)?);
        }
        Ok(Arc::new(model))
    }
}

impl Decoder {
    /// Feeds the start symbol to an empty sequence.
    fn feed_start(&self, symbol: u32) -> Result<StartState> {
        let mut rows = [SequenceRow::new(self.begin(BoundaryOptions::default())?)];
        rows[0].set(&[symbol], Want::Last);
        self.feed_symbols(&mut rows, &[0], &mut Work::default())?;
        let state: &DecoderState = state_ref(&*rows[0].state)?;
        Ok(StartState { cache: Arc::new(state.cache.clone()), hidden: state.hidden.clone() })
    }
}
