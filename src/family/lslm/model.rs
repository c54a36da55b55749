//! A latent segment model's weights, and what the contract asks beside the three steps (those are in `step` and `write`).

use super::{
    config::LslmBlueprint,
    load::Loader,
    state::{LslmState, Start},
    step::Work,
};
use crate::{
    decode::{
        contract::{BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, Want, advance, state_ref},
        cost::Cost,
        options::check_mode,
        trace,
    },
    error::{Error, Result},
    family::{Blueprint, Parts, cost},
    kernels::{Compute, ThreadPool, attention::PageLayout, linear::Linear, pages::PagePool},
    nn::{boundary::summed::Summed, kv_cache::KvCache, pooling::Pooling, t5::T5Stack},
    text::SpecialSymbols,
};
use std::{path::Path, sync::Arc};

/// A loaded latent segment model. V = symbols, marks included.
pub struct Lslm {
    pub(super) card: Card,
    pub(super) compute: Compute,
    pub(super) specials: SpecialSymbols,
    /// (V, width of the token encoder)
    pub(super) token_embedding: Arc<[f32]>,
    /// (V, width of the decoder)
    pub(super) decoder_embedding: Arc<[f32]>,
    pub(super) token: T5Stack,
    pub(super) predictor: Summed,
    pub(super) pooling: Pooling,
    /// Between pooling and context encoder, where their widths differ and the first layer takes no other.
    pub(super) projection: Option<Linear>,
    pub(super) context: T5Stack,
    pub(super) decoder: T5Stack,
    /// (V, width of the decoder)
    pub(super) head: Linear,
    /// What the head's vectors are multiplied with: 1, unless it is the embedding.
    pub(super) head_scale: f32,
    /// Of the decoder's keys of segments.
    memory: PageLayout,
    /// What every sequence begins with, computed once.
    start: Start,
    pages: Arc<PagePool>,
    /// Bytes in pages that the model itself holds: the start's.
    own_bytes: usize,
}

impl Lslm {
    /// Builds the model from checked weights.
    ///
    /// # Errors
    /// A weight that is missing, which the checkpoint reader has excluded; memory too small for the start's mark.
    pub fn load(blueprint: &LslmBlueprint, parts: Parts) -> Result<Self> {
        let Parts { config, name, mut weights, sha256, settings, .. } = parts;
        let max_symbols = settings.max_symbols(config.training_length);
        let pool = settings.pool.clone().unwrap_or_else(|| Arc::new(ThreadPool::new(settings.threads)));
        let pages = PagePool::new(settings.memory_bytes);
        let vocabulary = config.vocabulary(Path::new("config.json"))?;
        let specials = vocabulary.specials().ok_or_else(|| Error::Internal("a vocabulary without marks".into()))?;
        let mut loader = Loader::new(blueprint, &mut weights, settings.dtype);
        let [token_embedding, decoder_embedding] = loader.embeddings()?;
        let [token, context, decoder] = [loader.stack("token")?, loader.stack("context")?, loader.stack("decoder")?];
        let (head, head_scale) = loader.head(&decoder_embedding)?;
        let (predictor, projection) = (loader.predictor()?, loader.projection()?);
        // the keys of the memory are heads of the decoder's, kept as it keeps its own
        let memory = PageLayout { output: 0, ..decoder.layout };
        let cache = |layout| KvCache::new(layout, pages.clone());
        let start = Start { token: cache(token.layout), context: cache(context.layout), memory: cache(memory) };
        let tensors = blueprint.tensors();
        let card = Card {
            name,
            family: "lslm",
            shape: blueprint.shape(),
            parameters: tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum(),
            vocabulary,
            training_length: config.training_length,
            max_symbols,
            max_symbols_why: None,
            boundary_modes: blueprint.architecture.driver.modes(),
            first_logits: None,
            pooled: true,
            dtype: settings.dtype.name(),
            sha256,
        };
        let compute = Compute { isa: settings.isa, pool };
        let pooling = blueprint.architecture.pooling;
        let mut model = Self {
            card,
            compute,
            specials,
            token_embedding,
            decoder_embedding,
            token,
            predictor,
            pooling,
            projection,
            context,
            decoder,
            head,
            head_scale,
            memory,
            start,
            pages,
            own_bytes: 0,
        };
        model.start = model.begun()?;
        model.own_bytes = model.pages.in_use();
        model.card.first_logits = Some(model.first_logits()?);
        Ok(model)
    }

    /// What the start's mark leaves behind: it is read, and is a segment by itself.
    fn begun(&self) -> Result<Start> {
        let state = LslmState::new(self.start.clone(), KvCache::new(self.decoder.layout, self.pages.clone()));
        let mut rows = [SequenceRow::new(Box::new(state))];
        let mut work = Work::new();
        self.read_start(&mut rows, &mut work)?;
        let state: &LslmState = state_ref(&*rows[0].state)?;
        Ok(Start { token: state.token.clone(), context: state.context.clone(), memory: state.memory.clone() })
    }

    /// The logits before a text's first symbol: (V).
    fn first_logits(&self) -> Result<Arc<[f32]>> {
        let mut rows = [SequenceRow::new(self.begin(BoundaryOptions::default())?)];
        rows[0].set(&[trace::BEGIN], Want::Last);
        advance(self, &mut rows, &[0], &mut self.scratch())?;
        Ok(rows[0].logits.as_slice().into())
    }
}

impl Model for Lslm {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let open = KvCache::new(self.decoder.layout, self.pages.clone());
        Ok(Box::new(LslmState::new(self.start.clone(), open)))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::new()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.feed_symbols(rows, which, Work::of(scratch)?)
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.close_segments(rows, which, Work::of(scratch)?)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.finish(rows, which, Work::of(scratch)?)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        // every symbol may end a segment, or none
        let [token, context] = [&self.token, &self.context].map(|stack| stack.layout.bytes_for(symbols + 1));
        let [memory, open] = [&self.memory, &self.decoder.layout].map(|layout| layout.bytes_for(symbols + 1));
        token + context + memory + open
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // one that is another model's is refused by the step
        let Ok(state) = state_ref::<LslmState>(state) else { return 0 };
        let (symbols, segments) = (state.symbols.len() + more, state.ends.len() + more);
        let open = state.open_growth(state.open_len() + more + 1);
        let summaries = state.context.growth(segments + 1) + state.memory.growth(segments + 1);
        state.token.growth(symbols + 1) + summaries + open
    }

    fn memory(&self) -> KvMemory {
        // the start's pages are out of what sequences may have: admission counts on getting all of the limit
        KvMemory { in_use: self.pages.in_use() - self.own_bytes, limit: self.pages.limit() - self.own_bytes }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        cost.symbol += cost::t5_stack(&self.token, symbols + 1, 0);
        for matrix in self.predictor.matrices() {
            cost.symbol += cost::linear(matrix);
        }
        let open = symbols.div_ceil(segments.max(1)) + 1;
        cost.symbol += cost::t5_stack(&self.decoder, open, segments + 1);
        cost.segment += cost::t5_stack(&self.context, segments + 1, 0);
        for matrix in self
            .projection
            .iter()
            .chain(self.decoder.layers.iter().flat_map(|layer| layer.cross.as_ref().map(|cross| &cross.memory)))
        {
            cost.segment += cost::linear(matrix);
        }
        cost.logits += cost::linear(&self.head);
        cost
    }
}
