//! Blocks of nothing but padding, which are the same in every document.

use super::{
    model::{Pyramidion, Seen, Work},
    plan::Segment,
};
use crate::{error::Result, kernels::attention::attend_dense, nn::sized};
use std::sync::{Arc, PoisonError};

impl Pyramidion {
    /// The vector of a block of nothing but padding, behind the first segment's layers: the same in every document and at every
    /// place, since all its keys are alike. Computed once.
    pub(super) fn padding(&self, segment: &Segment, work: &mut Work) -> Result<Arc<[f32]>> {
        let mut known = self.padding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(padding) = &*known {
            return Ok(padding.clone());
        }
        let block = segment.block.unwrap_or(segment.length).min(segment.length);
        let (layout, compute) = (self.encoder.store(block), &self.decoder.compute);
        let mut x = vec![0.0; self.decoder.head.inputs()];
        let mut store = vec![0.0; layout.floats()];
        work.show(Seen::Padding(None), 0, &x);
        for layer in segment.first..segment.end {
            self.encoder.project(compute, layer, &x, &mut work.encoder, |_, keys, values| {
                (0..block).for_each(|at| layout.write(&mut store, at, keys, values));
            });
            let mixed = sized(&mut work.encoder.head_outputs, work.encoder.queries.len());
            attend_dense(compute, layout, &store, block, &work.encoder.queries, mixed);
            self.encoder.finish(compute, layer, &mut x, &mut work.encoder);
            work.show(Seen::Padding(Some(layer)), 0, &x);
        }
        let padding: Arc<[f32]> = x.into();
        *known = Some(padding.clone());
        Ok(padding)
    }
}
