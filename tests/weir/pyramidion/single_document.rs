//! An encoder-decoder bound to one document: a model whose rows begin from nothing, for the suite that every family passes.

use super::{
    super::support::*,
    read, reader,
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

/// Each row reads the document anew, so that its pages are the rows' alone.
struct Bound {
    model: Arc<dyn Model>,
    document: Vec<u32>,
    bytes: usize,
}

impl Model for Bound {
    fn card(&self) -> &Card {
        self.model.card()
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        reader(&*self.model).begin(&*read(&*self.model, &self.document, &mut self.model.scratch()))
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

/// Shapes with norms behind and in front of sub-layers, with positions and without, in each type of numbers.
pub(in super::super) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    let mut all: Vec<(String, Arc<dyn Model>)> = Vec::new();
    for shape in Shape::of_length(160).filter(|shape| ["pyramidion", "transpooler"].contains(&shape.name)) {
        for dtype in Dtype::ALL {
            let (model, document) = (shape.model(dtype), tokens(&mut Dice::new(4), 90));
            let bytes = read(&*model, &document, &mut model.scratch()).bytes();
            all.push((format!("{}, {}", shape.name, dtype.name()), Arc::new(Bound { model, document, bytes })));
        }
    }
    all
}
