//! Keys and values of one stack for one sequence, in pages; beside them, if wanted, the stack's output at each position.
//!
//! State is its pages and a length, nothing else: a fork clones references, a rollback shortens, and what is written next
//! into a shared page goes into a copy. What a window has left behind is forgotten in whole pages, from the front; so a cache
//! can also begin at any position, as if all before it had been forgotten. Kept outputs are what pooling reads (full
//! resolution) and what upsampling reads (segments), so neither needs running sums that a rollback would have to restore.

use crate::{
    error::{Error, Result},
    kernels::{
        attention::{self, POSITIONS, PageLayout},
        memory::{cast, cast_mut},
        pages::{Page, PagePool},
    },
};
use std::sync::Arc;

/// Pages that a cache has room to list from the start, so that no step of a usual sequence has to make room.
const ROOM: usize = 256;

/// One sequence's keys and values of one stack.
pub struct KvCache {
    layout: PageLayout,
    pool: Arc<PagePool>,
    pages: Vec<Page>,
    /// Pages forgotten before the first of these.
    forgotten: usize,
    /// The first position ever written: what comes before it was never there.
    first: usize,
    len: usize,
}

impl Clone for KvCache {
    fn clone(&self) -> Self {
        // with the same room as a new one, which a derived clone would not have
        let mut pages = Vec::with_capacity(self.pages.len().max(ROOM));
        pages.extend_from_slice(&self.pages);
        let Self { layout, forgotten, first, len, .. } = *self;
        Self { layout, pool: self.pool.clone(), pages, forgotten, first, len }
    }
}

impl KvCache {
    /// An empty one.
    pub fn new(layout: PageLayout, pool: Arc<PagePool>) -> Self {
        Self { layout, pool, pages: Vec::with_capacity(ROOM), forgotten: 0, first: 0, len: 0 }
    }

    /// An empty one like this whose next position is that one: none before it is held, nor attended to.
    pub fn from_position(&self, position: usize) -> Self {
        let empty = Self::new(self.layout, self.pool.clone());
        Self { forgotten: position / POSITIONS, first: position, len: position, ..empty }
    }

    /// Positions written, forgotten ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its layout.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Its pages, the first at [`start`](Self::start).
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// The first position held: a multiple of a page's positions.
    pub fn start(&self) -> usize {
        self.forgotten * POSITIONS
    }

    /// The first position that may be attended to.
    pub fn first(&self) -> usize {
        self.first.max(self.start())
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
        let pages = len.div_ceil(POSITIONS).saturating_sub(self.forgotten + self.pages.len());
        (pages + usize::from(self.copies())) * self.layout.page_bytes()
    }

    /// Whether the next position lies in a page that is shared, and so is copied first.
    pub fn copies(&self) -> bool {
        let page = self.pages.get((self.len / POSITIONS).wrapping_sub(self.forgotten));
        !self.len.is_multiple_of(POSITIONS) && page.is_some_and(Page::is_shared)
    }

    /// Makes room for `more` positions, so that writing them cannot fail for want of memory.
    ///
    /// # Errors
    /// [`Error::OutOfPages`]; the cache is as it was.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        let have = self.pages.len();
        let begun = self.forgotten + have > self.len / POSITIONS;
        if more > 0 && begun && !self.len.is_multiple_of(POSITIONS) {
            // a shared page is copied now
            self.page_mut(self.len)?;
        }
        while self.forgotten + self.pages.len() < (self.len + more).div_ceil(POSITIONS) {
            match self.pool.allocate(self.layout.page_bytes()) {
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
        attention::write(&layout, self.page_mut(position)?, layer, position % POSITIONS, keys, values);
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

    /// Writes at a reserved position, in the output's position, the sum of `output` and what stands there at the position before;
    /// `output` alone where a sum starts.
    ///
    /// # Errors
    /// [`Error::Internal`] if the position was not reserved, or the one before is forgotten.
    pub fn add_output(&mut self, position: usize, output: &[f32], goes_on: bool) -> Result<()> {
        let (at, len) = (self.output_at(position), size_of_val(output));
        let sum = |before: Option<&[u8]>, to: &mut [u8]| {
            let to: &mut [f32] = cast_mut(&mut to[..len]);
            match before {
                Some(before) => {
                    let before: &[f32] = cast(&before[..len]);
                    for ((to, before), x) in to.iter_mut().zip(before).zip(output) {
                        *to = before + x;
                    }
                }
                None => to.copy_from_slice(output),
            }
        };
        if goes_on && position.is_multiple_of(POSITIONS) {
            let before = self.output_at(position - 1);
            let index = (position / POSITIONS).checked_sub(self.forgotten + 1);
            let pages = index.and_then(|index| self.pages.get_mut(index..index + 2));
            let Some([earlier, page]) = pages else {
                return Err(Error::Internal(format!("no pages are held on both sides of position {position}")));
            };
            sum(Some(&earlier.bytes()[before..]), &mut page.bytes_mut()?[at..]);
        } else {
            let (earlier, page) = self.page_mut(position)?.split_at_mut(at);
            // within a page the one before lies right in front
            sum(goes_on.then(|| &earlier[at - len..]), page);
        }
        Ok(())
    }

    /// The stack's output at a position that was written and not forgotten.
    pub fn output(&self, position: usize) -> &[f32] {
        let bytes = self.layout.output * size_of::<f32>();
        let page = &self.pages[position / POSITIONS - self.forgotten];
        cast(&page.bytes()[self.output_at(position)..][..bytes])
    }

    fn output_at(&self, position: usize) -> usize {
        self.layout.outputs_offset() + position % POSITIONS * self.layout.output * size_of::<f32>()
    }

    /// Counts `more` positions as held: all layers have been written.
    pub fn advance(&mut self, more: usize) {
        self.len += more;
    }

    /// Forgets positions from `len` on; whole pages are given back. Those before must still be held, unless all are to go.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        if self.len == 0 {
            (self.forgotten, self.first) = (0, 0);
        }
        self.pages.truncate(self.len.div_ceil(POSITIONS).saturating_sub(self.forgotten));
    }

    /// Forgets the pages that lie wholly before `position`.
    pub fn forget_before(&mut self, position: usize) {
        let pages = (position.min(self.len) / POSITIONS).saturating_sub(self.forgotten);
        self.pages.drain(..pages.min(self.pages.len()));
        self.forgotten += pages;
    }

    fn page_mut(&mut self, position: usize) -> Result<&mut [u8]> {
        let missing = || Error::Internal(format!("no page was reserved for position {position}"));
        let page = (position / POSITIONS).checked_sub(self.forgotten).and_then(|index| self.pages.get_mut(index));
        page.ok_or_else(missing)?.bytes_mut()
    }
}
