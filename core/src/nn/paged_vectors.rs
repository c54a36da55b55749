//! Vectors of a document between two encoder layers, in pages that count towards the model's memory like keys and values.

use crate::{
    error::{Error, Result},
    kernels::{
        memory::{cast, cast_mut},
        pages::{Page, PagePool},
    },
};
use std::sync::Arc;

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
