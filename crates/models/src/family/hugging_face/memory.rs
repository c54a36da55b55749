//! The memory of a sequence, as candle's tensors: keys and values in blocks, or a recurrent state.
//!
//! Tensors never change, so forks share them. The bytes are taken from a [`Budget`], one reservation for each block or state.

use crate::contract::{PageUse, State};
use crate::family::parts::check_rollback;
use candle_core::Tensor;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use weir_kernels::error::{Error, Result};

pub(super) fn failed(error: candle_core::Error) -> Error {
    Error::Internal(format!("candle: {error}"))
}

/// Positions of a block. A step computes the tokens of one block at a time, so the numbers of a prompt's whole blocks do not depend
/// on how the prompt was split into steps.
pub const BLOCK: usize = 64;

/// Maximum snapshots of a recurrent state. One is taken at the end of each block.
const MAX_SNAPSHOTS: usize = 3;

/// Bytes of a model's sequences, and their limit.
#[derive(Debug)]
pub struct Budget {
    pub(super) limit: usize,
    in_use: AtomicUsize,
}

impl Budget {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, in_use: AtomicUsize::new(0) })
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }

    /// Reserves bytes. Fails with [`Error::OutOfPages`] if the limit is reached.
    fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation> {
        let increased = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        match self.in_use.fetch_update(Relaxed, Relaxed, increased) {
            Ok(_) => Ok(Reservation { bytes, budget: self.clone() }),
            Err(used) => Err(Error::OutOfPages { needed: used.saturating_add(bytes), limit: self.limit }),
        }
    }
}

/// Reserved bytes, which are given back on drop.
struct Reservation {
    bytes: usize,
    budget: Arc<Budget>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.in_use.fetch_sub(self.bytes, Relaxed);
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum MemoryShape {
    /// Keys and values of each position.
    Keys { layers: usize, heads: usize, head_dim: usize },
    /// A state of `numbers` numbers in each layer.
    Recurrent { layers: usize, numbers: usize },
}

impl MemoryShape {
    /// Bytes of one reservation: of a block, or of a state.
    pub(super) fn unit_bytes(self) -> usize {
        let numbers = match self {
            Self::Keys { layers, heads, head_dim } => 2 * layers * heads * head_dim * BLOCK,
            Self::Recurrent { layers, numbers } => layers * numbers,
        };
        numbers.saturating_mul(size_of::<f32>())
    }

    /// Maximum bytes of a sequence of `symbols` tokens.
    pub(super) fn bytes_for(self, symbols: usize) -> usize {
        let units = match self {
            Self::Keys { .. } => symbols.div_ceil(BLOCK),
            Self::Recurrent { .. } => MAX_SNAPSHOTS + 1,
        };
        units.saturating_mul(self.unit_bytes())
    }

    /// Bytes that a step reads of a sequence of `symbols` tokens, and writes back if the state is recurrent.
    pub(super) fn step_bytes(self, symbols: usize) -> usize {
        match self {
            Self::Keys { .. } => self.unit_bytes() / BLOCK * symbols,
            Self::Recurrent { .. } => 2 * self.unit_bytes(),
        }
    }
}

#[derive(Clone)]
pub(super) struct LayerMemory {
    /// Keys (heads, positions, head_dim), or the first tensor of a recurrent state.
    pub(super) first: Tensor,
    /// Values (heads, positions, head_dim), or the second tensor of a recurrent state.
    pub(super) second: Tensor,
}

#[derive(Default)]
pub(super) struct LayerBlocks {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
}

impl LayerBlocks {
    fn push(&mut self, block: &LayerMemory, used: usize) -> candle_core::Result<()> {
        self.keys.push(block.first.narrow(1, 0, used)?);
        self.values.push(block.second.narrow(1, 0, used)?);
        Ok(())
    }

    /// Returns all keys and values followed by these. Copies each number once. Fails if candle fails.
    pub(super) fn joined(mut self, keys: &Tensor, values: &Tensor) -> candle_core::Result<LayerMemory> {
        if self.keys.is_empty() {
            return Ok(LayerMemory { first: keys.clone(), second: values.clone() });
        }
        self.keys.push(keys.clone());
        self.values.push(values.clone());
        Ok(LayerMemory { first: Tensor::cat(&self.keys, 1)?, second: Tensor::cat(&self.values, 1)? })
    }
}

/// A block of keys and values, or a recurrent state, of all layers.
struct Unit {
    layers: Vec<LayerMemory>,
    reservation: Reservation,
}

impl Unit {
    fn page(self: &Arc<Self>, own: usize) -> PageUse {
        let id = Arc::as_ptr(self).cast::<u8>() as usize;
        PageUse { id, bytes: self.reservation.bytes, references: Arc::strong_count(self), own }
    }
}

#[derive(Clone)]
pub(super) struct Memory {
    shape: MemoryShape,
    budget: Arc<Budget>,
    /// Tokens that it covers.
    len: usize,
    /// Blocks of keys and values; or the recurrent state, if there is one.
    units: Vec<Arc<Unit>>,
    /// Earlier recurrent states and the tokens that they cover, oldest first.
    snapshots: Vec<(usize, Arc<Unit>)>,
}

impl Memory {
    pub(super) fn new(shape: MemoryShape, budget: Arc<Budget>) -> Self {
        Self { shape, budget, len: 0, units: Vec::new(), snapshots: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn state(&self, layer: usize) -> Option<LayerMemory> {
        self.units.first().and_then(|unit| unit.layers.get(layer).cloned())
    }

    pub(super) fn blocks(&self, layer: usize) -> candle_core::Result<LayerBlocks> {
        let mut blocks = LayerBlocks::default();
        for (index, block) in self.units.iter().filter_map(|unit| unit.layers.get(layer)).enumerate() {
            // a block may hold positions that a rollback dropped
            blocks.push(block, (self.len - index * BLOCK).min(BLOCK))?;
        }
        Ok(blocks)
    }

    /// Adds the results of `count` tokens of one block. Fails with [`Error::OutOfPages`], or if candle fails.
    pub(super) fn store(&mut self, layers: Vec<LayerMemory>, count: usize) -> Result<()> {
        let used = self.len % BLOCK;
        match self.shape {
            MemoryShape::Keys { .. } if used == 0 => self.add(layers)?,
            MemoryShape::Keys { .. } => self.extend_block(layers, used)?,
            MemoryShape::Recurrent { .. } => self.replace(layers)?,
        }
        self.len += count;
        let MemoryShape::Recurrent { .. } = self.shape else { return Ok(()) };
        if let Some(unit) = self.units.first().filter(|_| self.len.is_multiple_of(BLOCK)) {
            if self.snapshots.len() == MAX_SNAPSHOTS {
                self.snapshots.remove(0);
            }
            self.snapshots.push((self.len, unit.clone()));
        }
        Ok(())
    }

    fn add(&mut self, layers: Vec<LayerMemory>) -> Result<()> {
        let reservation = self.budget.reserve(self.shape.unit_bytes())?;
        self.units.push(Arc::new(Unit { layers, reservation }));
        Ok(())
    }

    /// Replaces the last block with one that has more positions; a block that a fork shares stays as it is.
    fn extend_block(&mut self, added: Vec<LayerMemory>, used: usize) -> Result<()> {
        let Some(last) = self.units.pop() else {
            return Err(Error::Internal("a sequence without blocks has a partly filled block".into()));
        };
        let join = |(old, new): (&LayerMemory, &LayerMemory)| {
            let mut blocks = LayerBlocks::default();
            blocks.push(old, used)?;
            blocks.joined(&new.first, &new.second)
        };
        let layers = last.layers.iter().zip(&added).map(join).collect::<candle_core::Result<_>>().map_err(failed)?;
        self.put(last, layers)
    }

    /// Replaces the recurrent state; one that a fork or a snapshot shares stays as it is.
    fn replace(&mut self, layers: Vec<LayerMemory>) -> Result<()> {
        match self.units.pop() {
            Some(last) => self.put(last, layers),
            None => self.add(layers),
        }
    }

    /// Stores `layers` with the reservation of `old`, if nothing else refers to it.
    fn put(&mut self, old: Arc<Unit>, layers: Vec<LayerMemory>) -> Result<()> {
        match Arc::try_unwrap(old) {
            Ok(Unit { reservation, .. }) => {
                self.units.push(Arc::new(Unit { layers, reservation }));
                Ok(())
            }
            Err(_) => self.add(layers),
        }
    }

    /// Drops the tokens from `len` on, as far as possible: a recurrent state returns to a snapshot, and then covers fewer.
    pub(super) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        self.len = match self.shape {
            MemoryShape::Keys { .. } => {
                self.units.truncate(len.div_ceil(BLOCK));
                len
            }
            MemoryShape::Recurrent { .. } => {
                self.snapshots.retain(|(end, _)| *end <= len);
                self.units.clear();
                self.units.extend(self.snapshots.last().map(|(_, unit)| unit.clone()));
                self.snapshots.last().map_or(0, |(end, _)| *end)
            }
        };
    }

    /// The shortest length other than 0 to which it can return: 0 if any. A recurrent state forgets what precedes its snapshots.
    pub(super) fn earliest(&self) -> usize {
        match self.shape {
            MemoryShape::Keys { .. } => 0,
            MemoryShape::Recurrent { .. } if self.snapshots.len() < MAX_SNAPSHOTS => 0,
            MemoryShape::Recurrent { .. } => self.snapshots.first().map_or(0, |(end, _)| *end),
        }
    }

    /// True if it can continue from any of its positions; false if only from snapshots.
    pub(super) fn is_rewindable(&self) -> bool {
        matches!(self.shape, MemoryShape::Keys { .. })
    }

    /// Maximum bytes that are reserved until it covers `len` tokens.
    pub(super) fn growth(&self, len: usize) -> usize {
        if len <= self.len {
            return 0;
        }
        let copied = self.units.last().is_some_and(|last| Arc::strong_count(last) > 1);
        let units = match self.shape {
            MemoryShape::Keys { .. } => {
                len.div_ceil(BLOCK) - self.units.len() + usize::from(copied && !self.len.is_multiple_of(BLOCK))
            }
            MemoryShape::Recurrent { .. } => {
                let snapshots = (len / BLOCK - self.len / BLOCK).min(MAX_SNAPSHOTS);
                snapshots + usize::from(copied || self.units.is_empty() || snapshots > 0)
            }
        };
        units.saturating_mul(self.shape.unit_bytes())
    }

    /// Calls `each` once for each block or state.
    pub(super) fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        let is_same = |(_, snapshot): &&(usize, Arc<Unit>), unit: &Arc<Unit>| Arc::ptr_eq(snapshot, unit);
        for unit in &self.units {
            let own = 1 + self.snapshots.iter().filter(|snapshot| is_same(snapshot, unit)).count();
            each(unit.page(own));
        }
        for (_, unit) in &self.snapshots {
            if !self.units.iter().any(|current| Arc::ptr_eq(current, unit)) {
                each(unit.page(1));
            }
        }
    }

    pub(super) fn own_bytes(&self) -> usize {
        let tensors: usize = self.units.iter().map(|unit| unit.layers.len() * size_of::<LayerMemory>()).sum();
        tensors + self.units.len() * size_of::<Unit>()
    }
}

// Tokens wait for the end of their block if no logits are wanted, so that a prompt's blocks are computed as a whole.

/// One sequence of a Hugging Face model.
pub struct TokenState {
    pub(super) memory: Memory,
    /// Tokens since the earliest position to which a rollback is possible, or since the memory's end.
    pub(super) history: Vec<u32>,
    /// Position of the first of them.
    pub(super) start: usize,
    /// Tokens in flight: fed, and not yet computed by their finish step.
    pub(super) flight: usize,
    /// Length of the prefix that was computed in whole blocks.
    pub(super) blockwise: usize,
}

impl TokenState {
    pub(super) fn new(memory: Memory) -> Self {
        Self { memory, history: Vec::new(), start: 0, flight: 0, blockwise: 0 }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.flight == 0
    }

    /// The tokens at positions `from..to`, which the history holds.
    pub(super) fn tokens(&self, from: usize, to: usize) -> &[u32] {
        self.history.get(from - self.start..to - self.start).unwrap_or_default()
    }

    /// Records that the memory covers the tokens in flight, up to those that wait for their block.
    pub(super) fn land(&mut self) {
        self.flight = 0;
        let start =
            if self.memory.is_rewindable() { self.memory.len() } else { self.memory.earliest().max(self.start) };
        self.history.drain(..start.saturating_sub(self.start).min(self.history.len()));
        self.start = start;
    }

    fn truncate(&mut self, len: usize) {
        self.memory.truncate(len);
        match len.checked_sub(self.start) {
            Some(kept) => self.history.truncate(kept),
            None => {
                self.history.clear();
                self.start = len;
            }
        }
        self.flight = 0;
        self.blockwise = self.blockwise.min(len / BLOCK * BLOCK);
    }
}

impl State for TokenState {
    fn len(&self) -> usize {
        self.start + self.history.len()
    }

    fn fork(&self) -> Box<dyn State> {
        let mut fork = Self { memory: self.memory.clone(), history: self.history.clone(), ..*self };
        fork.truncate(self.len() - self.flight);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        self.truncate(len);
        Ok(())
    }

    fn earliest(&self) -> usize {
        if self.memory.is_rewindable() { 0 } else { self.start }
    }

    fn restart(&mut self, _: usize) {
        self.truncate(0);
    }

    /// Whole blocks only: the numbers of a token depend slightly on the tokens that were computed with it.
    fn boundary_before(&self, len: usize) -> usize {
        let end = len.min(self.blockwise) / BLOCK * BLOCK;
        if end < self.earliest() { 0 } else { end }
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        self.memory.pages(each);
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>() + self.history.capacity() * size_of::<u32>() + self.memory.own_bytes()
    }
}
