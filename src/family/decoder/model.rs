//! A decoder's weights, how they are loaded, and what the contract asks beside the steps (those are in `step`).

use super::{config::DecoderBlueprint, state::DecoderState, step::Work};
use crate::{
    decode::{
        contract::{
            BoundaryMode, BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, Want, advance, state_ref,
        },
        cost::Cost,
        options::check_mode,
        trace,
    },
    error::Result,
    family::{
        Blueprint, Parts, cost,
        parts::loader::{Loader, StackPlan},
    },
    kernels::{Compute, ThreadPool, linear::Linear, pages::PagePool, rowwise::LayerNorm},
    nn::{
        attention::{layer::Order, stack::Stack},
        kv_cache::KvCache,
    },
};
use std::{path::Path, sync::Arc};

/// A loaded decoder. D = width, V = symbols.
pub struct Decoder {
    /// What clients may know of it.
    pub card: Card,
    /// What it runs on.
    pub compute: Compute,
    /// (V, D), multiplied by √D where the configuration says so.
    pub embedding: Vec<f32>,
    /// Its layers.
    pub stack: Stack,
    /// After the last layer, where layers do not end with one.
    pub norm: Option<LayerNorm>,
    /// (V, D)
    pub head: Linear,
    /// Where a text begins with a mark, what that leaves behind, computed once.
    pub start: Option<Start>,
    /// Where keys and values are.
    pub pages: Arc<PagePool>,
    /// Bytes in pages that the model itself holds: the start's.
    pub own_bytes: usize,
}

/// What the start's mark leaves behind.
pub struct Start {
    /// Its keys and values.
    cache: Arc<KvCache>,
    /// What the logits before a text's first symbol are made of: (D).
    pub hidden: Vec<f32>,
}

impl Decoder {
    /// Builds the model from checked weights.
    ///
    /// # Errors
    /// A weight that is missing, which the checkpoint reader has excluded; more symbols asked for than it can hold; memory too
    /// small for the start's mark.
    pub fn load(blueprint: &DecoderBlueprint, parts: Parts) -> Result<Self> {
        let Parts { config, name, mut weights, sha256, settings, .. } = parts;
        let a = &blueprint.architecture;
        let (max_symbols, max_symbols_why) = settings.longest(config.training_length, blueprint.bounds())?;
        let pool = settings.pool.clone().unwrap_or_else(|| Arc::new(ThreadPool::new(settings.threads)));
        let mut loader = Loader::new(&mut weights, blueprint.stack_shape(), a.layer_norm_eps, settings.dtype)?;
        let (window, order, positions) = (a.window, Order::Pre, max_symbols + blueprint.lead());
        let plan = StackPlan { name: "layers", count: a.layers, output: 0, window, order, positions };
        let stack = loader.stack(&plan)?;
        let norm = Some(loader.norm("norm")?);
        let mut embedding = loader.weights.take("embedding.weight")?;
        let head = match a.tied {
            true => loader.pack(&embedding, blueprint.symbols)?,
            false => {
                let weight = loader.weights.take("head.weight")?;
                loader.pack(&weight, blueprint.symbols)?
            }
        };
        if a.scale_embedding {
            let scale = (a.dim as f64).sqrt() as f32;
            embedding.iter_mut().for_each(|x| *x *= scale);
        }
        let tensors = blueprint.tensors();
        let trained = tensors.iter().filter(|tensor| tensor.trained);
        let card = Card {
            name,
            family: "decoder",
            shape: blueprint.shape(),
            parameters: trained.map(|tensor| tensor.shape.iter().product::<usize>()).sum(),
            vocabulary: config.vocabulary(Path::new("config.json"))?,
            training_length: config.training_length,
            max_symbols,
            max_symbols_why,
            boundary_modes: vec![BoundaryMode::Given],
            pooled: false,
            dtype: settings.dtype.name(),
            sha256,
            first_logits: None,
        };
        let (compute, pages) = (Compute { isa: settings.isa, pool }, PagePool::new(settings.memory_bytes));
        let (start, own_bytes) = (None, 0);
        let mut model = Self { card, compute, embedding, stack, norm, head, start, pages, own_bytes };
        if let Some(specials) = model.card.vocabulary.specials() {
            model.start = Some(model.begun(specials.start)?);
            model.own_bytes = model.pages.in_use();
            model.card.first_logits = Some(model.first_logits()?);
        }
        Ok(model)
    }

    /// What the mark leaves behind, as the first symbol of all.
    fn begun(&self, mark: u32) -> Result<Start> {
        let mut rows = [SequenceRow::new(self.begin(BoundaryOptions::default())?)];
        rows[0].set(&[mark], Want::Last);
        self.feed_symbols(&mut rows, &[0], &mut Work::default())?;
        let state: &DecoderState = state_ref(&*rows[0].state)?;
        Ok(Start { cache: Arc::new(state.cache.clone()), hidden: state.hidden.clone() })
    }

    /// The logits before a text's first symbol: (V).
    fn first_logits(&self) -> Result<Arc<[f32]>> {
        let mut rows = [SequenceRow::new(self.begin(BoundaryOptions::default())?)];
        rows[0].set(&[trace::BEGIN], Want::Last);
        advance(self, &mut rows, &[0], &mut self.scratch())?;
        Ok(rows[0].logits.as_slice().into())
    }

    /// Positions of a sequence of so many symbols.
    fn positions(&self, symbols: usize) -> usize {
        symbols + self.start.as_ref().map_or(0, |start| start.cache.len())
    }
}

impl Model for Decoder {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let empty = || Arc::new(KvCache::new(self.stack.layout, self.pages.clone()));
        let begun = self.start.as_ref().map_or_else(empty, |start| start.cache.clone());
        Ok(Box::new(DecoderState::new(begun, self.stack.window, None)))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.feed_symbols(rows, which, Work::of(scratch)?)
    }

    fn segment_step(&self, _: &mut [SequenceRow], _: &[usize], _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.finish(rows, which, Work::of(scratch)?)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.stack.bytes_for(self.positions(symbols))
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // one that is another model's is refused by the step
        let state = state_ref::<DecoderState>(state);
        state.map_or(0, |state| self.stack.growth(&state.cache, state.cache.len() + more))
    }

    fn memory(&self) -> KvMemory {
        // the start's pages are out of what sequences may have: admission counts on getting all of the limit
        KvMemory { in_use: self.pages.in_use() - self.own_bytes, limit: self.pages.limit() - self.own_bytes }
    }

    fn cost(&self, symbols: usize, _: usize) -> Cost {
        let mut cost = Cost { symbol: cost::stack(&self.stack, self.positions(symbols)), ..Cost::default() };
        if let Some(norm) = &self.norm {
            cost.logits += cost::norm(norm);
        }
        cost.logits += cost::linear(&self.head);
        cost
    }
}
