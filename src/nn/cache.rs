//! Keys and values of one stack for one sequence, in pages; beside them, if wanted, the stack's output at each position.
//!
//! State is its pages and a length, nothing else: a fork clones references, a rollback shortens, and what is written next
//! into a shared page goes into a copy. Kept outputs are what pooling reads (full resolution) and what upsampling reads
//! (segments), so neither needs running sums that a rollback would have to restore.

use crate::{
    error::{Error, Result},
    kernels::{
        attention::{self, Layout, POSITIONS},
        memory::{cast, cast_mut},
        pages::{Page, PagePool},
    },
};
use std::sync::Arc;

/// Pages that a cache has room to list from the start, so that no step of a usual sequence has to make room.
const ROOM: usize = 256;

/// One sequence's keys and values of one stack.
pub struct Cache {
    layout: Layout,
    pool: Arc<PagePool>,
    pages: Vec<Page>,
    len: usize,
}

impl Clone for Cache {
    fn clone(&self) -> Self {
        // with the same room as a new one, which a derived clone would not have
        let mut pages = Vec::with_capacity(self.pages.len().max(ROOM));
        pages.extend_from_slice(&self.pages);
        Self { layout: self.layout, pool: self.pool.clone(), pages, len: self.len }
    }
}

impl Cache {
    /// An empty one.
    pub fn new(layout: Layout, pool: Arc<PagePool>) -> Self {
        Self { layout, pool, pages: Vec::with_capacity(ROOM), len: 0 }
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
        self.pages.len() * self.layout.page_bytes()
    }

    /// Bytes that it occupies beside its pages: their list.
    pub fn own_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>()
    }

    /// Bytes of pages that making room for positions up to `len` takes.
    pub fn growth(&self, len: usize) -> usize {
        if len <= self.len {
            return 0;
        }
        let partial = !self.len.is_multiple_of(POSITIONS);
        // a shared page is copied
        let copied = partial && self.pages.get(self.len / POSITIONS).is_some_and(Page::is_shared);
        let pages = len.div_ceil(POSITIONS).saturating_sub(self.pages.len()) + usize::from(copied);
        pages * self.layout.page_bytes()
    }

    /// Makes room for `more` positions, so that writing them cannot fail for want of memory.
    ///
    /// # Errors
    /// [`Error::OutOfPages`]; the cache is as it was.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        let have = self.pages.len();
        if more > 0 && !self.len.is_multiple_of(POSITIONS) {
            // a shared page is copied now
            self.pages[self.len / POSITIONS].bytes_mut()?;
        }
        while self.pages.len() < (self.len + more).div_ceil(POSITIONS) {
            match self.pool.take(self.layout.page_bytes()) {
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
        attention::write(&layout, self.page_mut(position)?, (layer, position % POSITIONS), keys, values);
        Ok(())
    }

    /// Writes the stack's output at a reserved position.
    ///
    /// # Errors
    /// [`Error::Internal`] if the position was not reserved.
    pub fn write_output(&mut self, position: usize, output: &[f32]) -> Result<()> {
        let at = self.output_at(position);
        cast_mut(&mut self.page_mut(position)?[at..at + size_of_val(output)]).copy_from_slice(output);
        Ok(())
    }

    /// The stack's output at a position that was written.
    pub fn output(&self, position: usize) -> &[f32] {
        let bytes = self.layout.output * size_of::<f32>();
        cast(&self.pages[position / POSITIONS].bytes()[self.output_at(position)..][..bytes])
    }

    fn output_at(&self, position: usize) -> usize {
        self.layout.outputs_at() + position % POSITIONS * self.layout.output * size_of::<f32>()
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

    fn page_mut(&mut self, position: usize) -> Result<&mut [u8]> {
        let missing = || Error::Internal(format!("no page was reserved for position {position}"));
        self.pages.get_mut(position / POSITIONS).ok_or_else(missing)?.bytes_mut()
    }
}
