//! The hourglass's weights, how they are loaded, and what the contract asks beside the three steps (those are in `step`).

use super::{
    config::HourglassBlueprint,
    ends::Ends,
    state::{CompanionState, HourglassState, PooledState, SYMBOLS_ROOM},
    step::Work,
};
use crate::{
    decode::{
        contract::{
            BoundaryMode, BoundaryOptions, Card, KvMemory, Model, Noise, Scratch, SequenceRow, State, state_ref,
        },
        cost::{Cost, StepCost},
        options::check_mode,
    },
    error::{Error, Result},
    family::{
        Blueprint, Parts, cost,
        parts::loader::{Loader, StackPlan},
    },
    kernels::{Compute, ThreadPool, linear::Linear, pages::PagePool, rowwise::LayerNorm},
    nn::{
        Position,
        attention::{
            layer::{Caches, Order, StackWork},
            stack::Stack,
        },
        boundary::{
            Boundaries, BoundaryConfig,
            learned::Learned,
            rules::{Fixed, Spikes, Whitespace},
        },
        kv_cache::KvCache,
        pooling::Pooling,
    },
    text::Vocabulary,
};
use std::{path::Path, sync::Arc};

/// A loaded hourglass. D = width, V = symbols.
pub struct Hourglass {
    pub(super) card: Card,
    pub(super) compute: Compute,
    /// (V, D)
    pub(super) embedding: Vec<f32>,
    pub(super) pre: Stack,
    pub(super) boundaries: Boundaries,
    pub(super) companion: Option<Arc<dyn Model>>,
    /// None in a vanilla model.
    pub(super) pooled: Option<Pooled>,
    /// (V, D)
    pub(super) head: Linear,
    pages: Arc<PagePool>,
    /// Bytes in pages that the model itself holds: the null group's.
    own_bytes: usize,
}

/// What there is beyond the pre stack.
pub(super) struct Pooled {
    pub(super) pooling: Pooling,
    /// Between pooling and middle stack; the null group passes it too.
    pub(super) norm: LayerNorm,
    pub(super) middle: Stack,
    pub(super) post: Stack,
    /// The null group's keys, values and output: the first page of every sequence's middle cache, computed once.
    null: KvCache,
}

impl Hourglass {
    /// Builds the model from checked weights.
    ///
    /// # Errors
    /// A weight that is missing, which the checkpoint reader has excluded; memory too small for the null group.
    pub fn load(blueprint: &HourglassBlueprint, parts: Parts) -> Result<Self> {
        let Parts { config, name, mut weights, sha256, companions, settings } = parts;
        let (max_symbols, max_symbols_why) = settings.longest(config.training_length, blueprint.bounds())?;
        let pool = settings.pool.clone().unwrap_or_else(|| Arc::new(ThreadPool::new(settings.threads)));
        let pages = PagePool::new(settings.memory_bytes);
        let vocabulary = config.vocabulary(Path::new("config.json"))?;
        let compute = Compute { isa: settings.isa, pool };
        let eps = blueprint.architecture.layer_norm_eps;
        let loader = Loader::new(&mut weights, blueprint.stack_shape(), eps, settings.dtype)?;
        let mut builder = Builder { blueprint, loader, max_symbols };
        let pre = builder.stack("pre", blueprint.architecture.layers.pre)?;
        let pooled = builder.pooled(&compute, &pages)?;
        let boundaries = builder.boundaries(&vocabulary)?;
        let head = builder.loader.linear("head")?;
        let embedding = builder.loader.weights.take("embedding.weight")?;
        let tensors = blueprint.tensors();
        let trained = tensors.iter().filter(|tensor| tensor.trained);
        let card = Card {
            name,
            family: "hourglass",
            shape: blueprint.shape(),
            parameters: trained.map(|tensor| tensor.shape.iter().product::<usize>()).sum(),
            vocabulary,
            training_length: config.training_length,
            max_symbols,
            max_symbols_why,
            boundary_modes: modes(&boundaries),
            first_logits: None,
            pooled: pooled.is_some(),
            dtype: settings.dtype.name(),
            sha256,
        };
        let (companion, own_bytes) = (companions.into_iter().next(), pages.in_use());
        Ok(Self { card, compute, embedding, pre, boundaries, companion, pooled, head, pages, own_bytes })
    }
}

fn modes(boundaries: &Boundaries) -> Vec<BoundaryMode> {
    match boundaries {
        Boundaries::Learned(_) => vec![BoundaryMode::Threshold, BoundaryMode::Sampled],
        _ => vec![BoundaryMode::Given],
    }
}

impl Model for Hourglass {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let mode = boundaries.mode.unwrap_or(self.card.boundary_modes[0]);
        let noise: Option<Noise> = (mode == BoundaryMode::Sampled).then_some(boundaries.noise);
        let cache = |layout| KvCache::new(layout, self.pages.clone());
        let pooled = self.pooled.as_ref().map(|pooled| PooledState {
            null: pooled.null.clone(),
            middle: pooled.null.clone(),
            middle_window: pooled.middle.window,
            post: cache(pooled.post.layout),
            ends: Ends::new(),
            // of a decode step, so that no step has to make room
            closed: Vec::with_capacity(self.head.inputs()),
            above: Vec::with_capacity(2 * self.head.inputs()),
            above_from: 0,
        });
        let companion = match &self.companion {
            Some(model) => {
                let row =
                    SequenceRow::new(model.begin(BoundaryOptions { offset: boundaries.offset, ..Default::default() })?);
                Some(CompanionState { row: Some(row), entropies: Vec::with_capacity(SYMBOLS_ROOM) })
            }
            None => None,
        };
        let (pre, window, offset) = (cache(self.pre.layout), self.pre.window, boundaries.offset);
        let (finished, hidden, resumed) = (0, Vec::new(), None);
        Ok(Box::new(HourglassState { pre, window, pooled, finished, hidden, noise, offset, companion, resumed }))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
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
        let pooled = self.pooled.as_ref().map_or(0, |pooled| {
            let segments = self.boundaries.max_segments(symbols);
            pooled.post.bytes_for(symbols) + pooled.middle.bytes_for(segments + 1)
        });
        let companion = self.companion.as_ref().map_or(0, |model| model.bytes_for(symbols));
        self.pre.bytes_for(symbols) + pooled + companion
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // one that is another model's is refused by the step
        let Ok(state) = state_ref::<HourglassState>(state) else { return 0 };
        let len = state.len() + more;
        let pooled = self.pooled.as_ref().zip(state.pooled.as_ref()).map_or(0, |(model, pooled)| {
            let segments = self.boundaries.max_segments(len).min(pooled.ends.len() + more);
            model.post.growth(&pooled.post, len) + model.middle.growth(&pooled.middle, segments + 1)
        });
        let companion = self.companion.as_ref().zip(state.companion_state());
        self.pre.growth(&state.pre, len) + pooled + companion.map_or(0, |(model, state)| model.growth(state, more))
    }

    fn memory(&self) -> KvMemory {
        let companion = self.companion.as_ref().map_or(0, |model| model.memory().in_use);
        // the null group's page is out of what sequences may have: admission counts on getting all of the limit
        let limit = self.pages.limit() - self.own_bytes;
        KvMemory { in_use: self.pages.in_use() - self.own_bytes + companion, limit }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        if let Some(companion) = &self.companion {
            // all of its logits are wanted: their entropies decide
            let Cost { symbol, segment, logits } = companion.cost(symbols, segments);
            cost = Cost { symbol, segment, logits: StepCost::default() };
            cost.symbol += logits;
        }
        cost.symbol += cost::stack(&self.pre, symbols);
        for matrix in self.boundaries.matrices() {
            cost.symbol += cost::linear(matrix);
        }
        if let Some(pooled) = &self.pooled {
            cost.symbol += cost::stack(&pooled.post, symbols);
            cost.segment += cost::norm(&pooled.norm);
            // the null group is a key too
            cost.segment += cost::stack(&pooled.middle, segments + 1);
        }
        cost.logits += cost::linear(&self.head);
        cost
    }
}

/// Makes the hourglass's own parts.
struct Builder<'a> {
    blueprint: &'a HourglassBlueprint,
    loader: Loader<'a>,
    max_symbols: usize,
}

impl Builder<'_> {
    fn stack(&mut self, name: &str, count: usize) -> Result<Stack> {
        let a = &self.blueprint.architecture;
        // pooling reads the pre stack's outputs or their sums, upsampling the middle's; nobody looks back at the post stack's
        let keeps_output = a.layers.middle.is_some() && name != "post";
        self.loader.stack(&StackPlan {
            name,
            count,
            output: if keeps_output { a.dim } else { 0 },
            window: if name == "middle" { a.middle_window } else { a.window },
            order: Order::Post,
            // the middle stack's null group takes one position more
            positions: self.max_symbols + 1,
        })
    }

    fn pooled(&mut self, compute: &Compute, pages: &Arc<PagePool>) -> Result<Option<Pooled>> {
        let layers = self.blueprint.architecture.layers;
        let (Some(middle), Some(post), Some(pooling)) =
            (layers.middle, layers.post, self.blueprint.architecture.pooling)
        else {
            return Ok(None);
        };
        let (middle, post) = (self.stack("middle", middle)?, self.stack("post", post)?);
        let norm = self.loader.norm("pool_norm")?;
        let null = null_group(compute, &norm, &middle, self.loader.weights.take("null_group")?, pages)?;
        Ok(Some(Pooled { pooling, norm, middle, post, null }))
    }

    fn boundaries(&mut self, vocabulary: &Vocabulary) -> Result<Boundaries> {
        let activation = self.blueprint.architecture.activation;
        Ok(match &self.blueprint.architecture.boundaries {
            BoundaryConfig::None {} => Boundaries::None,
            BoundaryConfig::Fixed { every } => Boundaries::Fixed(Fixed { every: *every }),
            BoundaryConfig::Whitespace { symbol } => {
                let missing = || Error::Internal(format!("the boundary symbol {symbol:?} was not checked"));
                let source = Whitespace::new(symbol, &|character| vocabulary.id_of(character));
                Boundaries::Whitespace(source.ok_or_else(missing)?)
            }
            BoundaryConfig::Learned { threshold, .. } => Boundaries::Learned(Learned {
                hidden: self.loader.linear("boundary.hidden")?,
                output: self.loader.linear("boundary.output")?,
                activation,
                threshold: *threshold,
            }),
            BoundaryConfig::EntropySpikes { window, .. } => Boundaries::Spikes(Spikes { window: *window }),
        })
    }
}

/// The middle cache of a sequence that has closed no segment: position 0 is the null group, normed like any pooled vector.
fn null_group(
    compute: &Compute,
    norm: &LayerNorm,
    middle: &Stack,
    mut null: Vec<f32>,
    pages: &Arc<PagePool>,
) -> Result<KvCache> {
    struct Only(KvCache);
    impl Caches for Only {
        fn cache(&self, _: usize) -> Result<&KvCache> {
            Ok(&self.0)
        }
        fn cache_mut(&mut self, _: usize) -> Result<&mut KvCache> {
            Ok(&mut self.0)
        }
    }
    let mut only = Only(KvCache::new(middle.layout, pages.clone()));
    only.0.reserve(1)?;
    crate::kernels::rowwise::layer_norm(compute, &mut null, norm);
    let place = [Position { sequence: 0, index: 0 }];
    middle.forward(compute, &mut null, &place, &mut only, &mut StackWork::default())?;
    only.0.write_output(0, &null)?;
    only.0.advance(1);
    Ok(only.0)
}
