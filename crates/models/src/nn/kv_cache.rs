//! Keys and values of one stack for one sequence, in pages; optionally also the stack's output at each position. A fork clones
//! references to pages, a rollback shortens the list, and a write to a shared page copies it first. Pages that a window has left
//! behind are freed from the front.

use std::sync::Arc;
use weir_kernels::Isa;
use weir_kernels::attention::{self, KeyPages, POSITIONS, PageLayout};
use weir_kernels::error::{Error, Result};
use weir_kernels::memory::{cast, cast_mut};
use weir_kernels::pages::{Page, PagePool};

/// Initial capacity of the page list, so that steps of a usual sequence never reallocate it.
const PAGE_LIST_CAPACITY: usize = 256;

/// One sequence's keys and values of one stack.
pub struct KvCache {
    layout: PageLayout,
    pool: Arc<PagePool>,
    pages: Vec<Page>,
    /// Number of pages freed before the first of `pages`.
    freed: usize,
    /// The first position ever written; the sequence was resumed there.
    first: usize,
    len: usize,
}

impl Clone for KvCache {
    fn clone(&self) -> Self {
        // A derived clone would not keep the list's spare capacity.
        let mut pages = Vec::with_capacity(self.pages.len().max(PAGE_LIST_CAPACITY));
        pages.extend_from_slice(&self.pages);
        let Self { layout, freed, first, len, .. } = *self;
        Self { layout, pool: self.pool.clone(), pages, freed, first, len }
    }
}

impl KvCache {
    /// Creates an empty cache.
    pub fn new(layout: PageLayout, pool: Arc<PagePool>) -> Self {
        Self { layout, pool, pages: Vec::with_capacity(PAGE_LIST_CAPACITY), freed: 0, first: 0, len: 0 }
    }

    /// Creates an empty cache of the same layout and pool whose next position is `position`; it holds none before.
    pub fn from_position(&self, position: usize) -> Self {
        let empty = Self::new(self.layout, self.pool.clone());
        Self { freed: position / POSITIONS, first: position, len: position, ..empty }
    }

    /// Returns the number of positions written, freed ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no position was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the layout of the pages.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Returns the pages, the first of which begins at [`start`](Self::start).
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// Returns the first position of the first page: a multiple of [`POSITIONS`].
    pub fn start(&self) -> usize {
        self.freed * POSITIONS
    }

    /// Returns the first position that a query may attend to.
    pub fn first(&self) -> usize {
        self.first.max(self.start())
    }

    /// Returns the keys and values as the kernel takes them.
    pub(super) fn key_pages(&self) -> KeyPages<'_> {
        KeyPages { pages: &self.pages, start: self.start(), recently_read: false }
    }

    /// Returns the bytes of all pages, shared ones included.
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.layout.page_bytes()
    }

    /// Returns the bytes of the page list.
    pub fn own_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>()
    }

    /// Returns the bytes of pages that reserving positions up to `len` allocates.
    pub fn growth(&self, len: usize) -> usize {
        if len <= self.len {
            return 0;
        }
        let pages = len.div_ceil(POSITIONS).saturating_sub(self.freed + self.pages.len());
        (pages + usize::from(self.copies())) * self.layout.page_bytes()
    }

    /// Returns true if the next position lies in a shared page, which a write copies first.
    pub fn copies(&self) -> bool {
        let page = self.pages.get((self.len / POSITIONS).wrapping_sub(self.freed));
        !self.len.is_multiple_of(POSITIONS) && page.is_some_and(Page::is_shared)
    }

    /// Reserves pages for `more` positions, so that writing them cannot fail. On failure, the cache is unchanged.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        let page_exists = self.freed + self.pages.len() > self.len / POSITIONS;
        if more > 0 && page_exists && !self.len.is_multiple_of(POSITIONS) {
            // Copies the page now if it is shared.
            self.page_mut(self.len)?;
        }
        let count = (self.len + more).div_ceil(POSITIONS).saturating_sub(self.freed);
        self.pool.grow(&mut self.pages, count, self.layout.page_bytes())
    }

    /// Writes a layer's keys and values, (heads, head_dim) each, at a reserved position. Fails at other positions.
    pub fn write(&mut self, isa: Isa, layer: usize, position: usize, keys: &[f32], values: &[f32]) -> Result<()> {
        let layout = self.layout;
        attention::write(isa, &layout, self.page_mut(position)?, layer, position % POSITIONS, keys, values);
        Ok(())
    }

    /// Writes the stack's output at a reserved position. Fails with [`Error::Internal`] if the position was not reserved.
    pub fn write_output(&mut self, position: usize, output: &[f32]) -> Result<()> {
        let offset = self.output_offset(position);
        cast_mut(&mut self.page_mut(position)?[offset..offset + size_of_val(output)]).copy_from_slice(output);
        Ok(())
    }

    /// Writes a running sum of outputs at a reserved position: `output` plus the sum before it if `continues`.
    pub fn add_output(&mut self, position: usize, output: &[f32], continues: bool) -> Result<()> {
        let offset = self.output_offset(position);
        let len = size_of_val(output);
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
        if continues && position.is_multiple_of(POSITIONS) {
            let before = self.output_offset(position - 1);
            let index = (position / POSITIONS).checked_sub(self.freed + 1);
            let pages = index.and_then(|index| self.pages.get_mut(index..index + 2));
            let Some([earlier, page]) = pages else {
                return Err(Error::Internal(format!("no pages are held on both sides of position {position}")));
            };
            sum(Some(&earlier.bytes()[before..]), &mut page.bytes_mut()?[offset..]);
        } else {
            let (earlier, page) = self.page_mut(position)?.split_at_mut(offset);
            // Within a page the position before lies directly in front.
            sum(continues.then(|| &earlier[offset - len..]), page);
        }
        Ok(())
    }

    /// Returns the stack's output at a position that was written and not freed.
    pub fn output(&self, position: usize) -> &[f32] {
        let bytes = self.layout.output * size_of::<f32>();
        let page = &self.pages[position / POSITIONS - self.freed];
        cast(&page.bytes()[self.output_offset(position)..][..bytes])
    }

    fn output_offset(&self, position: usize) -> usize {
        self.layout.outputs_offset() + position % POSITIONS * self.layout.output * size_of::<f32>()
    }

    /// Counts `more` positions as written, after all layers wrote them.
    pub fn advance(&mut self, more: usize) {
        self.len += more;
    }

    /// Removes the positions from `len` on and frees their pages. Positions before `len` must still be held, unless `len` is 0.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        if self.len == 0 {
            self.freed = 0;
            self.first = 0;
        }
        self.pages.truncate(self.len.div_ceil(POSITIONS).saturating_sub(self.freed));
    }

    /// Frees the pages that lie entirely before `position`.
    pub fn free_before(&mut self, position: usize) {
        let pages = (position.min(self.len) / POSITIONS).saturating_sub(self.freed);
        self.pages.drain(..pages.min(self.pages.len()));
        self.freed += pages;
    }

    fn page_mut(&mut self, position: usize) -> Result<&mut [u8]> {
        let missing = || Error::Internal(format!("no page was reserved for position {position}"));
        let page = (position / POSITIONS).checked_sub(self.freed).and_then(|index| self.pages.get_mut(index));
        page.ok_or_else(missing)?.bytes_mut()
    }
}

// Vectors of a document between two encoder layers, in pages that count towards the model's memory like keys and values.

/// Vectors, (len, dim), with `per_page` of them in each page.
pub struct PagedVectors {
    pool: Arc<PagePool>,
    pages: Vec<Page>,
    dim: usize,
    per_page: usize,
    len: usize,
}

impl PagedVectors {
    /// Creates an empty list with `per_page` vectors a page.
    pub fn new(pool: Arc<PagePool>, dim: usize, per_page: usize) -> Self {
        Self { pool, pages: Vec::new(), dim, per_page, len: 0 }
    }

    /// Returns the number of vectors.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no vectors.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the vectors of a full page.
    pub fn per_page(&self) -> usize {
        self.per_page
    }

    /// Returns the bytes of all pages.
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.page_bytes()
    }

    /// Returns the bytes of pages that `len` vectors take.
    pub fn bytes_for(len: usize, dim: usize, per_page: usize) -> usize {
        len.div_ceil(per_page) * per_page * dim * size_of::<f32>()
    }

    fn page_bytes(&self) -> usize {
        self.per_page * self.dim * size_of::<f32>()
    }

    /// Appends `more` vectors of unspecified content. Fails with [`Error::OutOfPages`]; the list is then unchanged.
    pub fn extend(&mut self, more: usize) -> Result<()> {
        let count = (self.len + more).div_ceil(self.per_page);
        let page_bytes = self.page_bytes();
        self.pool.grow(&mut self.pages, count, page_bytes)?;
        self.len += more;
        Ok(())
    }

    /// Appends `count` vectors to an empty list. Calls `write` with each index and vector, (dim). Fails as `extend` does.
    pub fn fill(&mut self, count: usize, mut write: impl FnMut(usize, &mut [f32])) -> Result<()> {
        self.extend(count)?;
        let Self { dim, per_page, .. } = *self;
        for page in 0..self.pages() {
            for (index, vector) in (page * per_page..).zip(self.page_mut(page)?.chunks_exact_mut(dim)) {
                write(index, vector);
            }
        }
        Ok(())
    }

    /// Removes the vectors from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.pages.truncate(self.pages());
    }

    /// Returns the vector at `index`: (dim).
    pub fn vector(&self, index: usize) -> &[f32] {
        let floats: &[f32] = cast(self.pages[index / self.per_page].bytes());
        &floats[index % self.per_page * self.dim..][..self.dim]
    }

    /// Returns a page's vectors for writing: (vectors, dim). Fails with [`Error::Internal`] if the page does not exist.
    pub fn page_mut(&mut self, page: usize) -> Result<&mut [f32]> {
        let vectors = self.len.saturating_sub(page * self.per_page).min(self.per_page);
        let bytes = self.pages.get_mut(page).ok_or_else(|| Error::Internal(format!("no page {page} of vectors")))?;
        Ok(&mut cast_mut(bytes.bytes_mut()?)[..vectors * self.dim])
    }

    /// Returns a page's vectors, (vectors, dim); empty if the page does not exist.
    pub fn page(&self, page: usize) -> &[f32] {
        let vectors = self.len.saturating_sub(page * self.per_page).min(self.per_page);
        self.pages.get(page).map_or(&[], |page| &cast(page.bytes())[..vectors * self.dim])
    }

    /// Returns the number of pages in use.
    pub fn pages(&self) -> usize {
        self.len.div_ceil(self.per_page)
    }
}
