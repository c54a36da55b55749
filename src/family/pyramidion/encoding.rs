//! A document that is being read: its tokens, and how far which layer has come.

use super::{
    config::PAD,
    plan::{Plan, Segment},
};
use crate::{
    decode::document::{Document, Encoding, EncodingProgress, EncodingStage, LayerTime, PoolingChoice},
    error::{Error, Result},
    kernels::pages::Page,
    nn::{kv_cache::KvCache, paged_vectors::PagedVectors},
};
use std::sync::Arc;

/// A document that is being read.
pub struct PyramidionEncoding {
    pub(super) plan: Arc<Plan>,
    /// Vocabulary size V.
    pub(super) symbols: usize,
    /// As they were pushed.
    pub(super) tokens: Vec<u32>,
    pub(super) closed: bool,
    /// Whether vectors are chosen as they are, rather than mixed.
    pub(super) hard: bool,
    /// Which segment of the plan it is in; one past the last while keys and values are made.
    pub(super) segment: usize,
    /// What comes next within it.
    pub(super) cursor: Cursor,
    /// The segment's vectors. Of the first segment those whose tokens have been taken up.
    pub(super) rows: PagedVectors,
    /// Which of them stands at each place; of the first segment known once it is over.
    pub(super) positions: Vec<u32>,
    /// The token that the vector at each place was at first.
    pub(super) origins: Vec<usize>,
    /// Tokens taken up that are no padding.
    pub(super) counted: usize,
    /// Where all vectors attend to all: a layer's keys, values and queries.
    pub(super) met: Option<Met>,
    /// The attention that vectors got in the segment's last layer, where a pooling asks for it.
    pub(super) mass: Vec<f32>,
    /// What stood at each place before the first pooling, where the decoder attends to all of them.
    pub(super) before: Option<(PagedVectors, Vec<u32>)>,
    /// Keys and values for the decoder.
    pub(super) memory: Option<KvCache>,
    pub(super) blocks: usize,
    pub(super) choices: Vec<PoolingChoice>,
    pub(super) timings: Vec<LayerTime>,
    pub(super) memory_ns: u64,
    pub(super) document: Option<Arc<dyn Document>>,
}

/// A block of work within a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Of the segment's pages of vectors.
    pub(super) page: usize,
    /// Of its layers.
    pub(super) layer: usize,
    /// Whether keys are all there and what attends to them comes: where all attend to all.
    pub(super) asking: bool,
}

/// A layer's keys and values, and the queries that are to meet them.
pub(super) struct Met {
    pub(super) store: Page,
    /// Keys written.
    pub(super) count: usize,
    pub(super) queries: PagedVectors,
}

impl PyramidionEncoding {
    pub(super) fn segment(&self) -> Option<&Segment> {
        self.plan.segments.get(self.segment)
    }

    /// Places of the document in the first segment: padded, and without what whole blocks leave over.
    pub(super) fn first_length(&self) -> usize {
        let Some(first) = self.plan.segments.first() else { return 0 };
        let length = if self.plan.padded { first.length } else { self.tokens.len() };
        self.whole(first, length)
    }

    /// Of `length` positions, those that lie in whole blocks.
    pub(super) fn whole(&self, segment: &Segment, length: usize) -> usize {
        match segment.block {
            Some(block) if self.plan.padded => length / block.min(length).max(1) * block.min(length),
            _ => length,
        }
    }

    /// Vectors of the first segment that have rows of their own, the tokens being known: those of blocks with a token in them,
    /// or where all attend to all those that are no padding. What is left is alike: one more row.
    pub(super) fn own_rows(&self) -> usize {
        match self.plan.segments.first().and_then(|first| first.block.map(|block| block.min(first.length))) {
            Some(block) if self.plan.padded => self.tokens.len().next_multiple_of(block).min(self.first_length()),
            Some(_) => self.tokens.len(),
            None => self.tokens.iter().filter(|&&token| token != PAD).count(),
        }
    }

    /// Blocks in all, from the first to the document.
    fn total(&self) -> usize {
        let mut length = self.first_length();
        let mut rows = self.own_rows();
        let alike = usize::from(rows < length);
        let mut sum = 0;
        for (index, segment) in self.plan.segments.iter().enumerate() {
            if index > 0 {
                (length, rows) = (self.whole(segment, length), self.whole(segment, length));
            }
            let pages = match segment.block {
                Some(_) => rows.div_ceil(segment.span()),
                None => 2 * (rows + if index == 0 { alike } else { 0 }).div_ceil(segment.span()),
            };
            sum += pages * (segment.end - segment.first);
            if let Some(factor) = segment.factor {
                length = if self.plan.padded { segment.length / factor } else { length.div_ceil(factor) };
                rows = length;
            }
        }
        let Some(last) = self.plan.segments.last() else { return 0 };
        if self.plan.upsamples {
            return sum + self.first_length().div_ceil(last.span());
        }
        sum + (rows + if self.plan.segments.len() > 1 { 0 } else { alike }).div_ceil(last.span())
    }

    fn stage(&self) -> EncodingStage {
        if self.document.is_some() {
            return EncodingStage::Done;
        }
        match self.segment() {
            Some(_) if !self.can_run() => EncodingStage::Waiting,
            Some(segment) if segment.first + self.cursor.layer < segment.end => {
                EncodingStage::Layer(segment.first + self.cursor.layer)
            }
            _ => EncodingStage::Memory,
        }
    }

    /// Whether the next block's tokens are there.
    pub(super) fn can_run(&self) -> bool {
        match self.plan.segments.first() {
            Some(first) if self.segment == 0 && !self.closed => {
                // a block that no token is to come for
                first.block.is_some() && self.tokens.len() >= (self.cursor.page + 1) * first.span()
            }
            _ => true,
        }
    }
}

impl Encoding for PyramidionEncoding {
    fn push(&mut self, tokens: &[u32]) -> Result<()> {
        if self.closed {
            return Err(Error::Internal("tokens for a document that was closed".into()));
        }
        let limit = self.plan.segments.first().map_or(0, |first| first.length);
        let length = self.tokens.len().saturating_add(tokens.len());
        if length > limit {
            return Err(Error::TooLong { field: "document", length, limit, unit: "tokens", why: None });
        }
        if let Some(offset) = tokens.iter().position(|&token| token as usize >= self.symbols) {
            let found = format!("id {} (the vocabulary has {} symbols)", tokens[offset], self.symbols);
            return Err(Error::UnknownSymbol { field: "document", found, offset: self.tokens.len() + offset });
        }
        if self.plan.needs_tokens
            && let Some(offset) = tokens.iter().position(|&token| token == PAD)
        {
            let found = format!("padding (id {PAD}) at token {}", self.tokens.len() + offset);
            return Err(Error::BadOption {
                field: "document",
                found,
                bound: "any other: this model knows none".into(),
            });
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if self.tokens.is_empty() {
            let (found, bound) = ("no tokens".into(), "at least one".into());
            return Err(Error::BadOption { field: "document", found, bound });
        }
        if self.plan.hides_padding && self.tokens.iter().all(|&token| token == PAD) {
            let (found, bound) = ("nothing but padding".into(), "at least one token that is none".into());
            return Err(Error::BadOption { field: "document", found, bound });
        }
        self.closed = true;
        Ok(())
    }

    fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn progress(&self) -> EncodingProgress {
        let total = self.closed.then(|| self.total());
        EncodingProgress { stage: self.stage(), blocks: self.blocks, total }
    }

    fn choices(&self) -> &[PoolingChoice] {
        &self.choices
    }

    fn document(&self) -> Option<Arc<dyn Document>> {
        self.document.clone()
    }

    fn bytes(&self) -> usize {
        let met = self.met.as_ref().map_or(0, |met| met.store.bytes().len() + met.queries.bytes());
        let memory = self.memory.as_ref().map_or(0, KvCache::bytes);
        let before = self.before.as_ref().map_or(0, |(rows, _)| rows.bytes());
        self.rows.bytes() + before + met + memory + self.document.as_ref().map_or(0, |document| document.bytes())
    }
}
