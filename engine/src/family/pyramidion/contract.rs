//! The model behind the contract: target rows, which the decoder family steps, and documents, which the encoder reads.

use super::{config::PAD, encoding::PyramidionEncoding, model::Pyramidion, work::Work};
use crate::{
    decode::{
        contract::{BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State},
        cost::Cost,
        document::{
            Document, DocumentEncoder, DocumentLimits, Encoding, EncodingProgress, PoolingChoice, document_ref,
            encoding_mut,
        },
    },
    error::{Error, Result},
    family::{
        cost,
        decoder::state::DecoderState,
        parts::{document::MemoryDocument, step::work_mut},
    },
    nn::{kv_cache::KvCache, paged_vectors::PagedVectors, topk::PoolerKind},
};
use std::sync::Arc;

impl Pyramidion {
    fn encoding(&self, hard: bool) -> PyramidionEncoding {
        let per_page = self.plan.groups[0].unit();
        let vectors = PagedVectors::new(self.decoder.pages.clone(), self.decoder.head.inputs(), per_page);
        let symbols = self.decoder.head.outputs();
        PyramidionEncoding::new(self.plan.clone(), symbols, vectors, self.encoder.layers.len(), hard)
    }
}

impl Model for Pyramidion {
    fn card(&self) -> &Card {
        &self.decoder.card
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        let Card { name, shape, .. } = &self.decoder.card;
        let found = format!("an encoder-decoder: {shape}");
        Err(Error::WrongKind { call: "text generation", model: name.clone(), wanted: "needs no document", found })
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
    }

    /// Decoder: embed → self-attention → cross-attention to the document's vectors → feed-forward.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.decoder.feed_symbols(rows, which, &mut work_mut::<Work>(scratch)?.decoder)
    }

    fn segment_step(&self, _: &mut [SequenceRow], _: &[usize], _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.decoder.finish(rows, which, &mut work_mut::<Work>(scratch)?.decoder)
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
        cost.symbol += cost::memory(&self.decoder.stack, self.plan.memory_length());
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
        if self.pooling.is_some_and(PoolerKind::uses_scores) {
            return Ok(Box::new(self.encoding(true)));
        }
        let Card { name, shape, .. } = &self.decoder.card;
        let wanted = "has a pooling that scores";
        Err(Error::WrongKind { call: "options.hard_topk", model: name.clone(), wanted, found: shape.clone() })
    }

    fn bytes_for(&self, tokens: usize) -> usize {
        let dim = self.decoder.head.inputs();
        let first = &self.plan.groups[0];
        let positions = if self.plan.padded { first.length } else { tokens.min(first.length) };
        let mut length = positions;
        let mut unpooled = 0;
        let mut max = 0;
        for (index, group) in self.plan.groups.iter().enumerate() {
            // One vector more for the padding.
            let vectors = PagedVectors::bytes_for(length + 1, dim, group.unit());
            let keys = match group.block {
                None => self.encoder.attention(group.first, length).floats() * size_of::<f32>() + vectors,
                Some(_) => 0,
            };
            let mut pooled = 0;
            if let Some(factor) = group.factor {
                length = length.div_ceil(factor);
                let unit = self.plan.groups[index + 1].unit();
                // The vectors of two consecutive rounds exist at the same time.
                pooled = PagedVectors::bytes_for(length * factor / 2, dim, unit);
                pooled += if factor > 2 { PagedVectors::bytes_for(length * factor / 4, dim, unit) } else { 0 };
            }
            max = max.max(unpooled + vectors + keys.max(pooled));
            if index == 0 && self.plan.upsamples {
                unpooled = vectors;
            }
            if index + 1 == self.plan.groups.len() {
                let memory = if self.plan.upsamples { positions } else { length };
                max = max.max(unpooled + vectors + self.decoder.stack.layout.bytes_for(memory));
            }
        }
        max
    }

    /// Counts matrix products and attention of the encoder, and the projection of the decoder's keys and values. Pooling is
    /// negligible; blocks of padding cost nothing. The lengths of all layers follow from `tokens`.
    fn multiply_adds(&self, tokens: usize, _: usize) -> usize {
        let first = &self.plan.groups[0];
        let mut vectors = match first.block {
            Some(_) if self.plan.padded => tokens.next_multiple_of(first.block_len()).min(first.length),
            _ => tokens.min(first.length),
        };
        let mut sum = 0;
        for group in &self.plan.groups {
            for layer in group.first..group.end {
                let attention = |count: usize| self.encoder.attention(layer, count).multiply_adds(count);
                sum += match group.block {
                    Some(block) => vectors / block * attention(block) + attention(vectors % block),
                    None => attention(vectors),
                };
                sum += vectors * self.encoder.products(layer);
            }
            if let Some(factor) = group.factor {
                vectors = if self.plan.padded { group.length / factor } else { vectors.div_ceil(factor) };
            }
        }
        let memory = if self.plan.upsamples { tokens.min(first.length) } else { vectors };
        let projections = self.decoder.stack.memory_projections();
        sum + memory * projections.map(|(_, matrix)| matrix.inputs() * matrix.outputs()).sum::<usize>()
    }

    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize> {
        self.encode(encoding_mut(encoding)?, blocks, work_mut(scratch)?)
    }

    fn begin(&self, document: &dyn Document) -> Result<Box<dyn State>> {
        let document: &MemoryDocument = document_ref(document)?;
        let stack = &self.decoder.stack;
        if *document.memory.layout() != stack.layout {
            return Err(Error::Internal("a document of another model".into()));
        }
        let cache = KvCache::new(stack.layout, self.decoder.pages.clone());
        Ok(Box::new(DecoderState::new(Arc::new(cache), stack.window, Some(document.memory.clone()))))
    }
}

impl Encoding for PyramidionEncoding {
    fn push(&mut self, tokens: &[u32]) -> Result<()> {
        if self.closed {
            return Err(Error::Internal("tokens for a document that was closed".into()));
        }
        let limit = self.plan.groups.first().map_or(0, |first| first.length);
        let length = self.tokens.len().saturating_add(tokens.len());
        if length > limit {
            return Err(Error::TooLong { field: "document", length, limit, unit: "tokens", why: None });
        }
        if let Some(offset) = tokens.iter().position(|&token| token as usize >= self.symbols) {
            let found = format!("id {} (the vocabulary has {} symbols)", tokens[offset], self.symbols);
            let offset = self.tokens.len() + offset;
            return Err(Error::UnknownSymbol { field: "document", found, offset, unit: "token" });
        }
        if self.plan.rejects_padding
            && let Some(offset) = tokens.iter().position(|&token| token == PAD)
        {
            let found = format!("id {PAD} at token {}", self.tokens.len() + offset);
            let bound = "tokens other than padding".into();
            return Err(Error::BadOption { field: "document", found, bound });
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if self.tokens.is_empty() {
            return Err(Error::BadOption {
                field: "document",
                found: "none".into(),
                bound: "at least one token".into(),
            });
        }
        if self.plan.masks_padding && self.tokens.iter().all(|&token| token == PAD) {
            let found = "only padding".into();
            let bound = "at least one token other than padding".into();
            return Err(Error::BadOption { field: "document", found, bound });
        }
        self.closed = true;
        Ok(())
    }

    fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn progress(&self) -> EncodingProgress {
        let total = self.closed.then(|| self.total_blocks());
        EncodingProgress { stage: self.stage(), blocks: self.blocks, total }
    }

    fn choices(&self) -> &[PoolingChoice] {
        &self.choices
    }

    fn document(&self) -> Option<Arc<dyn Document>> {
        self.document.clone()
    }

    fn bytes(&self) -> usize {
        let keys = self.keys.as_ref().map_or(0, |keys| keys.store.bytes().len() + keys.queries.bytes());
        let memory = self.memory.as_ref().map_or(0, KvCache::bytes);
        let unpooled = self.unpooled.as_ref().map_or(0, |unpooled| unpooled.vectors.bytes());
        self.vectors.bytes() + unpooled + keys + memory + self.document.as_ref().map_or(0, |document| document.bytes())
    }
}
