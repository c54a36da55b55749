//! An encoder-decoder's weights, and both sides of the contract: rows, which the decoder family steps, and documents.

use super::{
    config::{MARKS, PyramidionBlueprint},
    document::PyramidionDocument,
    encode::positions,
    encoding::{Cursor, PyramidionEncoding},
    load::Loader,
    plan::Plan,
    score::Scores,
};
use crate::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State},
        cost::Cost,
        document::{
            Document, DocumentEncoder, DocumentLimits, Encoding, GenerationDefaults, LayerTime, PoolingStep,
            SpecialIds, document_ref, encoding_mut,
        },
    },
    error::{Error, Result},
    family::{
        Blueprint, Parts, checkpoint, cost,
        decoder::{model::Decoder, state::DecoderState, work},
    },
    kernels::{Compute, ThreadPool, pages::PagePool, rowwise::LayerNorm},
    nn::{
        Position,
        attention::encoder::{Encoder, EncoderWork},
        kv_cache::KvCache,
        paged_vectors::PagedVectors,
        position::{PositionScheme, absolute::frequencies},
        topk::PoolerKind,
    },
};
use std::{
    path::Path,
    sync::{Arc, Mutex},
};

/// What a checkpoint without settings of its own gets; fairseq's defaults, and as many tokens as there may be.
const DEFAULT_BEAM: usize = 5;

/// A loaded encoder-decoder. D = width, V = symbols.
pub struct Pyramidion {
    /// PagedVectors, and what both sides use: embedding, threads, pages.
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    /// Of the encoder's input.
    pub(super) positions: PositionScheme,
    /// Behind the encoder's last layer, where layers do not end with one.
    pub(super) encoder_norm: Option<LayerNorm>,
    /// One for each pooling that chooses, in order.
    pub(super) scorers: Vec<Scores>,
    /// What its poolings are, if it has any.
    pub(super) pooling: Option<PoolerKind>,
    pub(super) plan: Arc<Plan>,
    /// What is all padding, behind the first segment: (D), once somebody needed it.
    pub(super) padding: Mutex<Option<Arc<[f32]>>>,
    limits: DocumentLimits,
}

/// What an encoder shows to who watches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Tokens' vectors, positions added.
    Embedded,
    /// Vectors behind this layer.
    Layer(usize),
    /// The same of a block of nothing but padding, which has vectors all alike; without a layer, those that go in.
    Padding(Option<usize>),
    /// What the pooling behind this layer left.
    Pooled(usize),
    /// What keys and values are made of.
    Encoded,
}

/// Is shown vectors, (rows, D), with the first one's index.
pub type Watcher = Box<dyn FnMut(Seen, usize, &[f32]) + Send>;

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Of rows.
    pub(super) decoder: work::Work,
    /// Of documents.
    pub(super) encoder: EncoderWork,
    pub(super) x: Vec<f32>,
    /// Keys and values of a memory.
    pub(super) both: Vec<f32>,
    pub(super) positions: Vec<Position>,
    pub(super) taken: Vec<u32>,
    /// Sees what the encoder does, if somebody wants to know; servers do not.
    pub watcher: Option<Watcher>,
}

impl Work {
    /// The working memory behind the contract.
    ///
    /// # Errors
    /// [`Error::Internal`] if another model made it.
    pub fn of(scratch: &mut Scratch) -> Result<&mut Self> {
        scratch.0.downcast_mut().ok_or_else(|| Error::Internal("another model's scratch".into()))
    }

    pub(super) fn show(&mut self, seen: Seen, first: usize, x: &[f32]) {
        if let Some(watcher) = &mut self.watcher {
            watcher(seen, first, x);
        }
    }
}

impl Pyramidion {
    /// Builds the model from checked weights.
    ///
    /// # Errors
    /// A weight that is missing, which the checkpoint reader has excluded; more tokens asked for than it can write.
    pub fn load(blueprint: &PyramidionBlueprint, parts: Parts) -> Result<Self> {
        let Parts { config, name, mut weights, sha256, settings, .. } = parts;
        let a = &blueprint.architecture;
        let (max_symbols, max_symbols_why) = settings.longest(config.training_length, blueprint.bounds())?;
        let pool = settings.pool.clone().unwrap_or_else(|| Arc::new(ThreadPool::new(settings.threads)));
        let mut loader = Loader::new(blueprint, &mut weights, settings.dtype);
        let (embedding, head) = loader.embedding()?;
        let (encoder, stack) = (loader.encoder()?, loader.decoder()?);
        let (encoder_norm, norm) = (loader.last_norm("encoder")?, loader.last_norm("decoder")?);
        let scorers = loader.scorers()?;
        let card = Card {
            name,
            family: "pyramidion",
            shape: blueprint.shape(),
            parameters: blueprint.tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum(),
            vocabulary: config.vocabulary(Path::new("config.json"))?,
            training_length: config.training_length,
            max_symbols,
            max_symbols_why,
            boundary_modes: vec![BoundaryMode::Given],
            first_logits: None,
            pooled: false,
            dtype: settings.dtype.name(),
            sha256,
        };
        let (compute, pages) = (Compute { isa: settings.isa, pool }, PagePool::new(settings.memory_bytes));
        Ok(Self {
            limits: limits(blueprint, config.generation, max_symbols),
            decoder: Decoder { card, compute, embedding, stack, norm, head, start: None, pages, own_bytes: 0 },
            encoder,
            positions: positions(frequencies(a.dim)),
            encoder_norm,
            scorers,
            pooling: a.pooling.kind(),
            plan: Arc::new(blueprint.plan.clone()),
            padding: Mutex::new(None),
        })
    }

    fn encoding(&self, hard: bool) -> PyramidionEncoding {
        let (plan, symbols) = (self.plan.clone(), self.decoder.head.outputs());
        let per_page = plan.segments.first().map_or(1, super::plan::Segment::span);
        let rows = PagedVectors::new(self.decoder.pages.clone(), self.decoder.head.inputs(), per_page);
        PyramidionEncoding {
            plan,
            symbols,
            tokens: Vec::new(),
            closed: false,
            hard,
            segment: 0,
            cursor: Cursor::default(),
            rows,
            positions: Vec::new(),
            origins: Vec::new(),
            counted: 0,
            met: None,
            mass: Vec::new(),
            before: None,
            memory: None,
            blocks: 0,
            choices: Vec::new(),
            timings: vec![LayerTime { length: 0, ns: 0 }; self.encoder.layers.len()],
            memory_ns: 0,
            document: None,
        }
    }
}

fn limits(
    blueprint: &PyramidionBlueprint,
    generation: Option<checkpoint::Generation>,
    targets: usize,
) -> DocumentLimits {
    let [_, pad, end, unknown] = MARKS;
    let steps = blueprint.plan.segments.iter().zip(blueprint.plan.lengths().into_iter().skip(1));
    let most = targets.saturating_sub(1);
    let default = GenerationDefaults {
        beam: DEFAULT_BEAM,
        length_penalty: 1.0,
        min_tokens: 1,
        max_tokens: most,
        no_repeat_ngram: 0,
    };
    let generation = generation.map_or(default, |g| GenerationDefaults {
        beam: g.beam,
        length_penalty: g.length_penalty,
        min_tokens: g.min_tokens,
        max_tokens: g.max_tokens.min(most),
        no_repeat_ngram: g.no_repeat_ngram,
    });
    DocumentLimits {
        tokens: blueprint.architecture.source_length,
        targets,
        padded: blueprint.architecture.padded,
        block: blueprint.plan.unit(),
        poolings: steps.map(|(segment, to)| PoolingStep { layer: segment.end - 1, from: segment.length, to }).collect(),
        marks: SpecialIds { start: end, pad, end, unknown },
        generation,
    }
}

impl Model for Pyramidion {
    fn card(&self) -> &Card {
        &self.decoder.card
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        let Card { name, shape, .. } = &self.decoder.card;
        let (call, wanted) = ("a text that goes on", "needs no document");
        Err(Error::WrongKind { call, model: name.clone(), wanted, found: format!("an encoder-decoder: {shape}") })
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.decoder.feed_symbols(rows, which, &mut Work::of(scratch)?.decoder)
    }

    fn segment_step(&self, _: &mut [SequenceRow], _: &[usize], _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.decoder.finish(rows, which, &mut Work::of(scratch)?.decoder)
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
        cost.symbol += cost::memory(&self.decoder.stack, self.plan.last_length());
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

    fn open(&self) -> Box<dyn Encoding> {
        Box::new(self.encoding(false))
    }

    fn open_hard(&self) -> Result<Box<dyn Encoding>> {
        if !self.pooling.is_some_and(PoolerKind::scores) {
            let Card { name, shape, .. } = &self.decoder.card;
            let (call, wanted) = ("hard top-k", "has a pooling that scores");
            return Err(Error::WrongKind { call, model: name.clone(), wanted, found: shape.clone() });
        }
        Ok(Box::new(self.encoding(true)))
    }

    fn bytes_for(&self, tokens: usize) -> usize {
        let (dim, first) = (self.decoder.head.inputs(), &self.plan.segments[0]);
        let longest = if self.plan.padded { first.length } else { tokens.min(first.length) };
        let (mut length, mut most, mut before) = (longest, 0, 0);
        for (index, segment) in self.plan.segments.iter().enumerate() {
            // one row more for what is alike
            let rows = PagedVectors::bytes_for(length + 1, dim, segment.span());
            let met = match segment.block {
                None => self.encoder.attention(segment.first, length).floats() * size_of::<f32>() + rows,
                Some(_) => 0,
            };
            let mut pooled = 0;
            if let Some(factor) = segment.factor {
                length = length.div_ceil(factor);
                let next = self.plan.segments[index + 1].span();
                // a round's vectors are there beside those of the round before
                let half = PagedVectors::bytes_for(length * factor / 2, dim, next);
                pooled = half + if factor > 2 { PagedVectors::bytes_for(length * factor / 4, dim, next) } else { 0 };
            }
            most = most.max(before + rows + met.max(pooled));
            if index == 0 && self.plan.upsamples {
                before = rows;
            }
            if index + 1 == self.plan.segments.len() {
                let vectors = if self.plan.upsamples { longest } else { length };
                most = most.max(before + rows + self.decoder.stack.layout.bytes_for(vectors));
            }
        }
        most
    }

    fn multiply_adds(&self, tokens: usize) -> usize {
        self.reading(tokens)
    }

    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize> {
        self.read(encoding_mut(encoding)?, blocks, Work::of(scratch)?)
    }

    fn begin(&self, document: &dyn Document) -> Result<Box<dyn State>> {
        let document: &PyramidionDocument = document_ref(document)?;
        let stack = &self.decoder.stack;
        if *document.memory.layout() != stack.layout {
            return Err(Error::Internal("a document of another model".into()));
        }
        let cache = KvCache::new(stack.layout, self.decoder.pages.clone());
        Ok(Box::new(DecoderState::new(Arc::new(cache), stack.window, Some(document.memory.clone()))))
    }
}
