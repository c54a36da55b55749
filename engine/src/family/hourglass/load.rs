//! The hourglass as a [`Blueprint`]: its tensors, in the names of docs/checkpoints.md, its limits, and how the model is built.

use super::{
    config::{Architecture, HourglassBlueprint, NULL_GROUP},
    model::{Hourglass, PooledWeights},
    ngrams::{NgramConfig, Ngrams},
};
use crate::{
    decode::contract::{BoundaryMode, Model},
    error::{Error, Result},
    family::{
        Blueprint, Parts, TensorSpec,
        checkpoint::{self, Config},
        parts::{
            loader::{Loader, StackSpec},
            specs::{self, linear, matrix, norm},
        },
        settings::Bounds,
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
        position::PositionKind,
        window::Window,
    },
    text::Vocabulary,
};
use std::{path::Path, sync::Arc};

/// Reads an hourglass's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if vocabulary.specials().is_some() {
        let expected = "nothing: an hourglass has no special symbols";
        return Err(Error::checkpoint(file, "vocabulary.specials", expected, "special symbols"));
    }
    let blueprint = HourglassBlueprint { architecture, symbols: vocabulary.len() };
    blueprint.validate(&vocabulary, file)?;
    specs::trained_within(blueprint.architecture.position, config, file)?;
    Ok(Box::new(blueprint))
}

impl Blueprint for HourglassBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let mut out = vec![matrix("embedding.weight", vec![self.symbols, a.dim])];
        let tables = a.ngrams.iter().flat_map(|ngrams| ngrams.tensors().map(|name| (name, vec![ngrams.rows, a.dim])));
        out.extend(tables.map(|(name, shape)| TensorSpec::normal(name, shape, 0.0, 0.01)));
        let shape = self.stack_shape();
        specs::position(&mut out, &shape);
        for (stack, layers) in self.stacks() {
            (0..layers).for_each(|index| specs::layer(&mut out, &format!("{stack}.{index}"), &shape));
        }
        if a.layers.middle.is_some() {
            out.push(TensorSpec::normal("null_group", vec![a.dim], 0.0, 1.0));
            norm(&mut out, "pool_norm", a.dim);
        }
        if let BoundaryConfig::Learned { hidden, .. } = a.boundaries {
            linear(&mut out, "boundary.hidden", hidden, a.dim);
            linear(&mut out, "boundary.output", 1, hidden);
        }
        linear(&mut out, "head", self.symbols, a.dim);
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let layers: Vec<_> = self.stacks().map(|(_, count)| count.to_string()).collect();
        let layers = layers.join("+");
        let boundaries = a.boundaries.describe();
        let mut shape = format!("{layers} layers × {}, {} heads × {}, {boundaries}", a.dim, a.heads, a.head_dim);
        if a.position != PositionKind::TransformerXl {
            shape += &format!(", {}", a.position.name());
        }
        if let Some(ngrams) = &a.ngrams {
            shape += &format!(", {}", ngrams.describe());
        }
        if a.window != Window::Full {
            shape += &format!(", {}", a.window.describe());
        }
        if a.middle_window != Window::Full {
            shape += &format!(", middle stack: {}", a.middle_window.describe());
        }
        shape
    }

    fn bounds(&self) -> Bounds {
        let a = &self.architecture;
        let middle = a.layers.middle.map(|_| a.middle_window);
        let longest = |window, lead| {
            let (positions, why) = a.position.max_length(a.head_dim, window)?;
            Some((positions - lead, why))
        };
        // every symbol may close a segment, and the null group takes the middle stack's first position
        let stacks = [longest(a.window, 0), middle.and_then(|window| longest(window, NULL_GROUP))];
        let longest = stacks.into_iter().flatten().min_by_key(|(symbols, _)| *symbols);
        let mut windows = std::iter::once(a.window).chain(middle);
        // a companion's state keeps the entropy of every symbol
        let endless = windows.all(|window| window.max_keys().is_some()) && a.boundaries.companion().is_none();
        Bounds { longest, endless }
    }

    fn companions(&self) -> Vec<&str> {
        self.architecture.boundaries.companion().into_iter().collect()
    }

    fn speculates(&self) -> bool {
        true
    }

    fn computed_numbers(&self) -> usize {
        specs::table_numbers(&self.stack_shape())
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Hourglass::load(self, parts)?))
    }
}

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
        let load_ngrams = |ngrams: &NgramConfig| Ngrams::load(ngrams, builder.loader.weights);
        let ngrams = blueprint.architecture.ngrams.as_ref().map(load_ngrams).transpose()?;
        Ok(Self {
            card,
            compute,
            embedding: builder.loader.weights.take("embedding.weight")?,
            ngrams,
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

    fn pooled(&mut self, compute: &Compute, pages: &Arc<PagePool>) -> Result<Option<PooledWeights>> {
        let a = &self.blueprint.architecture;
        let (Some(middle), Some(post), Some(pooling)) = (a.layers.middle, a.layers.post, a.pooling) else {
            return Ok(None);
        };
        let middle = self.stack("middle", middle)?;
        let post = self.stack("post", post)?;
        let norm = self.loader.norm("pool_norm")?;
        let vector = self.loader.weights.take("null_group")?;
        let null_group = null_group(compute, &norm, &middle, vector, pages)?;
        Ok(Some(PooledWeights { pooling, norm, middle, post, null_group }))
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
