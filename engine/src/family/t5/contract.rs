//! The model behind the contract: target rows, which the decoder steps, and documents, which the encoder reads.

use super::{
    encoding::{T5Encoding, UNIT},
    model::T5,
    work::Work,
};
use crate::{
    decode::{
        contract::{BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, state_ref},
        cost::Cost,
        document::{Document, DocumentEncoder, DocumentLimits, Encoding, document_ref, encoding_mut},
    },
    error::{Error, Result},
    family::{
        cost,
        decoder::state::DecoderState,
        parts::{document::MemoryDocument, step::work_mut},
    },
    nn::{kv_cache::KvCache, paged_vectors::PagedVectors, window::Window},
};
use std::sync::Arc;

impl Model for T5 {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        let Card { name, shape, .. } = &self.card;
        let found = format!("an encoder-decoder: {shape}");
        Err(Error::WrongKind { call: "text generation", model: name.clone(), wanted: "needs no document", found })
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.feed_symbols(rows, which, work_mut(scratch)?)
    }

    fn segment_step(&self, _: &mut [SequenceRow], _: &[usize], _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.finish(rows, which, work_mut(scratch)?)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.decoder.layout.bytes_for(symbols)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let state = state_ref::<DecoderState>(state);
        state.map_or(0, |state| state.cache.growth(state.cache.len() + more))
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.pages.in_use(), limit: self.pages.limit() }
    }

    /// Counts a document of one training window.
    fn cost(&self, symbols: usize, _: usize) -> Cost {
        let document = self.card.training_length.min(self.limits.tokens);
        let mut cost = Cost { symbol: cost::t5_stack(&self.decoder, symbols, document), ..Cost::default() };
        cost.logits += cost::linear(&self.head);
        cost
    }

    fn document_encoder(&self) -> Option<&dyn DocumentEncoder> {
        Some(self)
    }
}

impl DocumentEncoder for T5 {
    fn limits(&self) -> &DocumentLimits {
        &self.limits
    }

    fn open(&self) -> Box<dyn Encoding> {
        let vectors = PagedVectors::new(self.pages.clone(), self.head.inputs(), UNIT);
        Box::new(T5Encoding::new(self.head.outputs(), self.limits.tokens, self.encoder.layers.len(), vectors))
    }

    /// Deletion keeps vectors as they are, so it is hard already.
    fn open_hard(&self) -> Result<Box<dyn Encoding>> {
        if self.gate.is_some() {
            return Ok(self.open());
        }
        let Card { name, shape, .. } = &self.card;
        let wanted = "has a pooling that scores";
        Err(Error::WrongKind { call: "options.hard_topk", model: name.clone(), wanted, found: shape.clone() })
    }

    fn bytes_for(&self, tokens: usize) -> usize {
        let inner = self.encoder.heads * self.encoder.head_dim;
        let vectors = PagedVectors::bytes_for(tokens, self.head.inputs(), UNIT);
        let store = |count: usize| if count == 0 { 0 } else { self.encoder.store(count).floats() * size_of::<f32>() };
        let side = store(self.encoder.global_tokens(tokens));
        let keys = store(tokens) + side + PagedVectors::bytes_for(tokens, inner, UNIT);
        // while tokens are deleted, the vectors that are left exist twice
        let deleted = if self.gate.is_some() { vectors } else { 0 };
        vectors + keys.max(deleted).max(self.decoder.layout.bytes_for(tokens))
    }

    /// Counts matrix products and attention of the encoder, and the projection of the decoder's keys and values.
    fn multiply_adds(&self, tokens: usize, vectors: usize) -> usize {
        let first = self.gate.as_ref().map_or(usize::MAX, |gate| gate.layer); // the first layer without the deleted tokens
        let count = |layer: usize| if layer < first { tokens } else { vectors };
        let layers = (0..self.encoder.layers.len()).map(|layer| self.encoder.multiply_adds(layer, count(layer)));
        let memories = self.decoder.layers.iter().filter_map(|layer| layer.cross.as_ref());
        layers.sum::<usize>()
            + vectors * memories.map(|cross| cross.memory.inputs() * cross.memory.outputs()).sum::<usize>()
    }

    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize> {
        self.encode(encoding_mut(encoding)?, blocks, work_mut(scratch)?)
    }

    fn begin(&self, document: &dyn Document) -> Result<Box<dyn State>> {
        let document: &MemoryDocument = document_ref(document)?;
        if *document.memory.layout() != self.decoder.layout {
            return Err(Error::Internal("a document of another model".into()));
        }
        let cache = KvCache::new(self.decoder.layout, self.pages.clone());
        Ok(Box::new(DecoderState::new(Arc::new(cache), Window::Full, Some(document.memory.clone()))))
    }
}
