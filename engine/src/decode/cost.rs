//! The minimum cost of a symbol, computed from the model's shape: bytes to read and multiplications to do.
//!
//! Work has three kinds: at full resolution, at segment resolution, and the logits of one symbol. In each, *shared* bytes
//! are read once for all rows of a step; *own* bytes and multiply-adds count once a row. The cost excludes activations, the
//! embedding's row, and the kept outputs that pooling and upsampling read: a few vectors a symbol, in the nearest cache.

use std::ops::AddAssign;

/// Minimum cost of one symbol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Symbol and finish step: all layers at full resolution, before and after the segment step.
    pub symbol: StepCost,
    /// Segment step: all layers at segment resolution; zero in a model that never waits.
    pub segment: StepCost,
    /// The rest of a segment step in which chunks of deeper levels begin: all layers inside these; zero in a model with one level.
    pub deeper: StepCost,
    /// The logits after one symbol, where they are wanted.
    pub logits: StepCost,
}

/// Minimum cost of one kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Bytes that all rows of a step share: weights as stored, and tables derived from weights.
    pub shared_bytes: usize,
    /// Bytes of one row: the keys and values that it attends to.
    pub own_bytes: usize,
    /// Multiply-adds of one row: matrix products and attention.
    pub multiply_adds: usize,
}

impl Cost {
    /// Returns the cost of a segment step in which chunks of the first `levels` levels begin.
    pub fn segment_step(&self, levels: usize) -> StepCost {
        let mut cost = StepCost::default();
        if levels > 0 {
            cost += self.segment;
        }
        if levels > 1 {
            cost += self.deeper;
        }
        cost
    }
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
        self.deeper += other.deeper;
        self.logits += other.logits;
    }
}
