//! Builds an hourglass from a checkpoint's tensors, in the names of docs/checkpoints.md.

use super::{
    config::HourglassBlueprint,
    model::{Hourglass, Pooled},
};
use crate::{
    decode::contract::BoundaryMode,
    error::{Error, Result},
    family::{
        Parts,
        parts::loader::{Loader, StackSpec},
    },
    kernels::{
        Compute,
        pages::PagePool,
        rowwise::{LayerNorm, layer_norm},
    },
    nn::{
        Position,
        attention::{
            layer::{Caches, NormOrder, StackWork},
            stack::Stack,
        },
        boundary::{
            Boundaries, BoundaryConfig,
            learned::Learned,
            rules::{Fixed, Spikes, Whitespace},
        },
        kv_cache::KvCache,
    },
    text::Vocabulary,
};
use std::sync::Arc;

impl Hourglass {
    /// Builds the model from checked weights. Fails if key-value memory is too small for the null group.
    pub fn load(blueprint: &HourglassBlueprint, mut parts: Parts) -> Result<Self> {
        let mut card = parts.card("hourglass", blueprint)?;
        let compute = parts.settings.compute();
        let pages = PagePool::new(parts.settings.memory_bytes);
        let eps = blueprint.architecture.layer_norm_eps;
        let loader = Loader::new(&mut parts.weights, blueprint.stack_shape(), eps, parts.settings.dtype)?;
        let mut builder = Builder { blueprint, loader, max_symbols: card.max_symbols };
        let pre = builder.stack("pre", blueprint.architecture.layers.pre)?;
        let pooled = builder.pooled(&compute, &pages)?;
        let boundaries = builder.boundaries(&card.vocabulary)?;
        if let Boundaries::Learned(_) = boundaries {
            card.boundary_modes = vec![BoundaryMode::Threshold, BoundaryMode::Sampled];
        }
        card.pooled = pooled.is_some();
        Ok(Self {
            card,
            compute,
            embedding: builder.loader.weights.take("embedding.weight")?,
            pre,
            boundaries,
            companion: parts.companions.into_iter().next(),
            pooled,
            head: builder.loader.linear("head")?,
            own_bytes: pages.in_use(),
            pages,
        })
    }
}

/// Builds the hourglass's parts.
struct Builder<'a> {
    blueprint: &'a HourglassBlueprint,
    loader: Loader<'a>,
    max_symbols: usize,
}

impl Builder<'_> {
    fn stack(&mut self, name: &str, layers: usize) -> Result<Stack> {
        let a = &self.blueprint.architecture;
        // pooling reads the pre stack's outputs or their sums, upsampling the middle stack's; the post stack's are not kept
        let keeps_output = a.layers.middle.is_some() && name != "post";
        self.loader.stack(&StackSpec {
            name,
            layers,
            output: if keeps_output { a.dim } else { 0 },
            window: if name == "middle" { a.middle_window } else { a.window },
            order: NormOrder::Post,
            // the middle stack's null group takes one more position
            positions: self.max_symbols + 1,
        })
    }

    fn pooled(&mut self, compute: &Compute, pages: &Arc<PagePool>) -> Result<Option<Pooled>> {
        let a = &self.blueprint.architecture;
        let (Some(middle), Some(post), Some(pooling)) = (a.layers.middle, a.layers.post, a.pooling) else {
            return Ok(None);
        };
        let middle = self.stack("middle", middle)?;
        let post = self.stack("post", post)?;
        let norm = self.loader.norm("pool_norm")?;
        let vector = self.loader.weights.take("null_group")?;
        let null_group = null_group(compute, &norm, &middle, vector, pages)?;
        Ok(Some(Pooled { pooling, norm, middle, post, null_group }))
    }

    fn boundaries(&mut self, vocabulary: &Vocabulary) -> Result<Boundaries> {
        let activation = self.blueprint.architecture.activation;
        Ok(match &self.blueprint.architecture.boundaries {
            BoundaryConfig::None {} => Boundaries::None,
            BoundaryConfig::Fixed { every } => Boundaries::Fixed(Fixed { every: *every }),
            BoundaryConfig::Whitespace { symbol } => {
                let missing = || Error::Internal(format!("boundary symbol {symbol:?} is not in the vocabulary"));
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

/// Computes the middle cache of a sequence without closed segments: position 0 is the null group's `vector`, (D), normed like
/// any pooled vector.
fn null_group(
    compute: &Compute,
    pool_norm: &LayerNorm,
    middle: &Stack,
    mut vector: Vec<f32>,
    pages: &Arc<PagePool>,
) -> Result<KvCache> {
    struct OneCache(KvCache);
    impl Caches for OneCache {
        fn cache(&self, _: usize) -> Result<&KvCache> {
            Ok(&self.0)
        }
        fn cache_mut(&mut self, _: usize) -> Result<&mut KvCache> {
            Ok(&mut self.0)
        }
    }
    let mut caches = OneCache(KvCache::new(middle.layout, pages.clone()));
    caches.0.reserve(1)?;
    layer_norm(compute, &mut vector, pool_norm);
    let positions = [Position { sequence: 0, index: 0 }];
    middle.forward(compute, &mut vector, &positions, &mut caches, &mut StackWork::default())?;
    caches.0.write_output(0, &vector)?;
    caches.0.advance(1);
    Ok(caches.0)
}
