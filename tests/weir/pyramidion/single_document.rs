//! An encoder-decoder with one fixed document, so that the conformance suite can begin rows without one.

use super::{
    super::support::*,
    encode, encoder,
    shapes::{Shape, tokens},
};
use std::sync::Arc;
use weir::{
    decode::{
        contract::{BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State},
        cost::Cost,
    },
    error::Result,
    kernels::Dtype,
};

/// Model with a fixed document. Each row encodes it again, so that the row alone owns its pages.
struct SingleDocument {
    model: Arc<dyn Model>,
    document: Vec<u32>,
    bytes: usize,
}

impl Model for SingleDocument {
    fn card(&self) -> &Card {
        self.model.card()
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        encoder(&*self.model).begin(&*encode(&*self.model, &self.document, &mut self.model.scratch()))
    }

    fn scratch(&self) -> Scratch {
        self.model.scratch()
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.model.symbol_step(rows, which, scratch)
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.model.segment_step(rows, which, scratch)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.model.finish_step(rows, which, scratch)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.model.bytes_for(symbols) + self.bytes
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        self.model.growth(state, more)
    }

    fn memory(&self) -> KvMemory {
        self.model.memory()
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        self.model.cost(symbols, segments)
    }
}

/// Returns shapes with post-norm and pre-norm, with and without decoder positions, in each dtype.
pub(in super::super) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    let mut all: Vec<(String, Arc<dyn Model>)> = Vec::new();
    for shape in Shape::with_length(160).filter(|shape| ["pyramidion", "transpooler"].contains(&shape.name)) {
        for dtype in Dtype::ALL {
            let model = shape.model(dtype);
            let document = tokens(&mut Dice::new(4), 90);
            all.push((format!("{}, {}", shape.name, dtype.name()), with_document(model, document)));
        }
    }
    all
}

/// Returns a model that begins every row from `document`.
pub(in super::super) fn with_document(model: Arc<dyn Model>, document: Vec<u32>) -> Arc<dyn Model> {
    let bytes = encode(&*model, &document, &mut model.scratch()).bytes();
    Arc::new(SingleDocument { model, document, bytes })
}
