//! Keys and values of one stack for one sequence, in pages; beside them, if wanted, the stack's output at each position.
//!
//! State is its pages and a length, nothing else: a fork clones references, a rollback shortens, and what is written next
//! into a shared page goes into a copy. Kept outputs are what pooling reads (full resolution) and what upsampling reads
//! (segments), so neither needs running sums that a rollback would have to restore.

use crate::{
    error::{Error, Result},
    kernels::{
        attention::POSITIONS,
        pages::{Page, PagePool},
    },
};
use std::sync::Arc;

/// What a page of one stack holds, and where.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Layers of the stack.
    pub layers: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the output kept for each position; 0 if none is.
    pub output: usize,
}

impl Layout {
    /// Floats of one layer's keys (or values) in a page.
    fn half_layer(&self) -> usize {
        self.heads * self.head_dim * POSITIONS
    }

    /// Where a head's keys start: (head_dim, POSITIONS).
    pub fn keys_at(&self, layer: usize, head: usize) -> usize {
        2 * layer * self.half_layer() + head * self.head_dim * POSITIONS
    }

    /// Where a head's values start: (POSITIONS, head_dim).
    pub fn values_at(&self, layer: usize, head: usize) -> usize {
        self.keys_at(layer, head) + self.half_layer()
    }

    /// Where a position's output starts.
    fn output_at(&self, slot: usize) -> usize {
        2 * self.layers * self.half_layer() + slot * self.output
    }

    /// Floats of a page.
    pub fn page_floats(&self) -> usize {
        self.output_at(POSITIONS)
    }

    /// Bytes that `positions` take.
    pub fn bytes_for(&self, positions: usize) -> usize {
        positions.div_ceil(POSITIONS) * self.page_floats() * size_of::<f32>()
    }
}

/// One sequence's keys and values of one stack.
#[derive(Clone)]
pub struct Cache {
    layout: Layout,
    pool: Arc<PagePool>,
    pages: Vec<Page>,
    len: usize,
}

impl Cache {
    /// An empty one.
    pub fn new(layout: Layout, pool: Arc<PagePool>) -> Self {
        Self { layout, pool, pages: Vec::new(), len: 0 }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its pages, the first at position 0.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// Bytes of its pages, shared ones included.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(Page::bytes).sum()
    }

    /// Makes room for `more` positions, so that writing them cannot fail for want of memory.
    ///
    /// # Errors
    /// [`Error::OutOfPages`]; the cache is as it was.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        let have = self.pages.len();
        if more > 0 && !self.len.is_multiple_of(POSITIONS) {
            // a shared page is copied now
            self.pages[self.len / POSITIONS].floats_mut()?;
        }
        while self.pages.len() < (self.len + more).div_ceil(POSITIONS) {
            match self.pool.take(self.layout.page_floats()) {
                Ok(page) => self.pages.push(page),
                Err(error) => {
                    self.pages.truncate(have);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Writes keys and values of a layer, each (heads, head_dim), at a reserved position.
    ///
    /// # Errors
    /// [`Error::Internal`] if the position was not reserved.
    pub fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) -> Result<()> {
        let layout = self.layout;
        let slot = position % POSITIONS;
        let floats = self.page_mut(position)?;
        for (number, &key) in keys.iter().enumerate() {
            floats[layout.keys_at(layer, 0) + number * POSITIONS + slot] = key;
        }
        for (head, values) in values.chunks_exact(layout.head_dim).enumerate() {
            let at = layout.values_at(layer, head) + slot * layout.head_dim;
            floats[at..at + layout.head_dim].copy_from_slice(values);
        }
        Ok(())
    }

    /// Writes the stack's output at a reserved position.
    ///
    /// # Errors
    /// [`Error::Internal`] if the position was not reserved.
    pub fn write_output(&mut self, position: usize, output: &[f32]) -> Result<()> {
        let at = self.layout.output_at(position % POSITIONS);
        self.page_mut(position)?[at..at + output.len()].copy_from_slice(output);
        Ok(())
    }

    /// The stack's output at a position that was written.
    pub fn output(&self, position: usize) -> &[f32] {
        let at = self.layout.output_at(position % POSITIONS);
        &self.pages[position / POSITIONS].floats()[at..at + self.layout.output]
    }

    /// Counts `more` positions as held: all layers have been written.
    pub fn advance(&mut self, more: usize) {
        self.len += more;
    }

    /// Forgets positions from `len` on; whole pages are given back.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.pages.truncate(self.len.div_ceil(POSITIONS));
    }

    fn page_mut(&mut self, position: usize) -> Result<&mut [f32]> {
        let missing = || Error::Internal(format!("no page was reserved for position {position}"));
        self.pages.get_mut(position / POSITIONS).ok_or_else(missing)?.floats_mut()
    }
}
