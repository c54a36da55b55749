//! What a symbol costs at least: bytes that must be read and multiplications that must be done, from the model's shape alone.
//!
//! Three kinds of work: at full resolution, at that of segments, and the logits of one symbol. In each, *shared* bytes are read once
//! however many rows the step has; *own* bytes and multiply-adds come once a row. Activations, the embedding's one row and the
//! few kept outputs that pooling and upsampling read are left out: they are a few vectors a symbol and stay in the nearest
//! cache.

use std::ops::AddAssign;

/// What the work on a symbol costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Symbol and finish step: everything at full resolution, whether it runs before or after the segment step.
    pub symbol: StepCost,
    /// A segment step: everything at segment resolution; nothing in a model that never waits.
    pub segment: StepCost,
    /// The logits after one symbol, where they are wanted.
    pub logits: StepCost,
}

/// What one kind of work costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Bytes that all rows of a step share: weights as they are stored, and tables made of weights.
    pub shared_bytes: usize,
    /// Bytes of one row: the keys and values that it attends to.
    pub own_bytes: usize,
    /// Multiply-adds of one row: matrix products and attention.
    pub multiply_adds: usize,
}

impl AddAssign for StepCost {
    fn add_assign(&mut self, other: Self) {
        self.shared_bytes += other.shared_bytes;
        self.own_bytes += other.own_bytes;
        self.multiply_adds += other.multiply_adds;
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.symbol += other.symbol;
        self.segment += other.segment;
        self.logits += other.logits;
    }
}
