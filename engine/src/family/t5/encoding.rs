//! State of a document that is being encoded: its tokens, its vectors, and the next unit of work.

use super::config::SPECIALS;
use crate::{
    decode::document::{Document, Encoding, EncodingProgress, EncodingStage, KeptVector, LayerTime, PoolingChoice},
    error::{Error, Result},
    family::parts::document::MemoryDocument,
    kernels::pages::Page,
    nn::{kv_cache::KvCache, paged_vectors::PagedVectors},
};
use std::{sync::Arc, time::Instant};

/// Vectors of a unit of work, and of a page.
pub(super) const UNIT: usize = 512;

/// A document that is being encoded.
pub struct T5Encoding {
    /// Vocabulary size V.
    symbols: usize,
    /// Maximum tokens.
    limit: usize,
    /// Layers of the encoder.
    layers: usize,
    /// All tokens pushed.
    pub(super) tokens: Vec<u32>,
    closed: bool,
    cursor: Cursor,
    /// (vectors, D): empty before the first layer; those that are left after the deletion.
    pub(super) vectors: PagedVectors,
    /// Position of each vector in the document, once tokens were deleted.
    pub(super) positions: Option<Vec<u32>>,
    /// Keys of the layer that runs.
    pub(super) keys: Option<LayerKeys>,
    /// Keys and values for the decoder.
    pub(super) memory: Option<KvCache>,
    blocks: usize,
    choices: Vec<PoolingChoice>,
    timings: Vec<LayerTime>,
    memory_ns: u64,
    document: Option<Arc<dyn Document>>,
}

/// Place of a unit of work.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    /// Layer of the encoder; their number while the decoder's keys and values are projected.
    layer: usize,
    /// Page of the vectors.
    page: usize,
    /// True if all keys of the layer are written.
    attending: bool,
}

/// Next unit of work: a page of vectors through one step.
pub(super) enum WorkUnit {
    /// First half of a layer: queries, keys and values.
    Keys { layer: usize },
    /// Second half of a layer.
    Layer { layer: usize },
    /// The decoder's keys and values.
    Memory,
}

/// Keys and values of one layer, and the queries that read them.
pub(super) struct LayerKeys {
    pub(super) store: Page,
    /// Keys and values of the global tokens.
    pub(super) side: Option<Page>,
    pub(super) side_count: usize,
    /// Sum of each group's vectors: (global tokens, D)
    pub(super) sums: Vec<f32>,
    pub(super) queries: PagedVectors,
}

impl T5Encoding {
    /// Creates an encoding without tokens, of an encoder of `layers` layers. `vectors` is empty, with [`UNIT`] vectors a page.
    pub(super) fn new(symbols: usize, limit: usize, layers: usize, vectors: PagedVectors) -> Self {
        Self {
            symbols,
            limit,
            layers,
            tokens: Vec::new(),
            closed: false,
            cursor: Cursor::default(),
            vectors,
            positions: None,
            keys: None,
            memory: None,
            blocks: 0,
            choices: Vec::new(),
            timings: vec![LayerTime { length: 0, ns: 0 }; layers],
            memory_ns: 0,
            document: None,
        }
    }

    /// Returns true if a unit of work can run: no token is missing, and the document is not done.
    pub(super) fn can_run(&self) -> bool {
        self.closed && self.document.is_none()
    }

    /// Returns the next unit of work.
    pub(super) fn unit(&self) -> WorkUnit {
        match self.cursor {
            Cursor { layer, .. } if layer == self.layers => WorkUnit::Memory,
            Cursor { layer, attending: false, .. } => WorkUnit::Keys { layer },
            Cursor { layer, attending: true, .. } => WorkUnit::Layer { layer },
        }
    }

    /// Returns the page of the next unit.
    pub(super) fn page(&self) -> usize {
        self.cursor.page
    }

    pub(super) fn at_first_page(&self) -> bool {
        self.cursor.page == 0
    }

    pub(super) fn is_last_page(&self) -> bool {
        self.cursor.page + 1 == self.vectors.pages()
    }

    /// Replaces the vectors by those of the `kept` tokens, before `layer`. `values` are the gate values of all tokens.
    pub(super) fn keep(&mut self, layer: usize, kept: &[usize], values: &[f32], vectors: PagedVectors) {
        self.vectors = vectors;
        self.positions = Some(kept.iter().map(|&token| token as u32).collect());
        let kept = kept.iter().map(|&token| KeptVector { token, score: values[token] }).collect();
        self.choices.push(PoolingChoice { layer, kept });
    }

    /// Moves on to the next unit, after one that began at `started`. After the last one, creates the document.
    pub(super) fn advance(&mut self, started: Instant) {
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
        self.document = Some(Arc::new(MemoryDocument {
            tokens: self.tokens.len(),
            unpooled_bytes: memory.layout().bytes_for(self.tokens.len()),
            memory,
            choices: std::mem::take(&mut self.choices),
            timings: std::mem::take(&mut self.timings),
            memory_ns: self.memory_ns,
        }));
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
        if self.closed {
            return Err(Error::Internal("tokens for a document that was closed".into()));
        }
        let length = self.tokens.len().saturating_add(tokens.len());
        if length > self.limit {
            return Err(Error::TooLong { field: "document", length, limit: self.limit, unit: "tokens", why: None });
        }
        if let Some(offset) = tokens.iter().position(|&token| token as usize >= self.symbols) {
            let found = format!("id {} (the vocabulary has {} symbols)", tokens[offset], self.symbols);
            let offset = self.tokens.len() + offset;
            return Err(Error::UnknownSymbol { field: "document", found, offset, unit: "token" });
        }
        if let Some(offset) = tokens.iter().position(|&token| token == SPECIALS.pad) {
            let found = format!("id {} at token {}", SPECIALS.pad, self.tokens.len() + offset);
            let bound = "tokens other than padding".into();
            return Err(Error::BadOption { field: "document", found, bound });
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
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

    fn document(&self) -> Option<Arc<dyn Document>> {
        self.document.clone()
    }

    fn bytes(&self) -> usize {
        let keys = self.keys.as_ref().map_or(0, |keys| {
            let side = keys.side.as_ref().map_or(0, |side| side.bytes().len());
            keys.store.bytes().len() + side + keys.queries.bytes()
        });
        let memory = self.memory.as_ref().map_or(0, KvCache::bytes);
        self.vectors.bytes() + keys + memory + self.document.as_ref().map_or(0, |document| document.bytes())
    }
}
