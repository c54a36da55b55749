//! An encoded document that several families share: keys and values for all layers of the decoder.

use crate::{
    decode::document::{Document, LayerTime, PoolingChoice},
    nn::kv_cache::KvCache,
};

/// An encoded document: keys and values for all layers of the decoder.
pub(in crate::family) struct MemoryDocument {
    pub(in crate::family) tokens: usize,
    /// Keys and values, one position for each vector.
    pub(in crate::family) memory: KvCache,
    pub(in crate::family) unpooled_bytes: usize,
    pub(in crate::family) choices: Vec<PoolingChoice>,
    pub(in crate::family) timings: Vec<LayerTime>,
    pub(in crate::family) memory_ns: u64,
}

impl Document for MemoryDocument {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn vectors(&self) -> usize {
        self.memory.len()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn unpooled_bytes(&self) -> usize {
        self.unpooled_bytes
    }

    fn own_bytes(&self) -> usize {
        let choices: usize = self.choices.iter().map(|choice| size_of_val(&*choice.kept)).sum();
        size_of::<Self>() + self.memory.own_bytes() + choices + size_of_val(&*self.timings)
    }

    fn choices(&self) -> &[PoolingChoice] {
        &self.choices
    }

    fn timings(&self) -> &[LayerTime] {
        &self.timings
    }

    fn memory_ns(&self) -> u64 {
        self.memory_ns
    }
}
