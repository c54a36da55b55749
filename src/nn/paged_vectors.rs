//! Vectors of a document on their way through an encoder, in pages: counted in the model's memory like keys and values.

use crate::{
    error::{Error, Result},
    kernels::{
        memory::{cast, cast_mut},
        pages::{Page, PagePool},
    },
};
use std::sync::Arc;

/// Vectors, (len, dim), so many to a page.
pub struct PagedVectors {
    pool: Arc<PagePool>,
    pages: Vec<Page>,
    dim: usize,
    per_page: usize,
    len: usize,
}

impl PagedVectors {
    /// None yet, `per_page` to a page.
    pub fn new(pool: Arc<PagePool>, dim: usize, per_page: usize) -> Self {
        Self { pool, pages: Vec::new(), dim, per_page, len: 0 }
    }

    /// Vectors.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Vectors of a page.
    pub fn per_page(&self) -> usize {
        self.per_page
    }

    /// Bytes of its pages.
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.page_bytes()
    }

    /// The most bytes of pages that so many vectors take.
    pub fn bytes_for(len: usize, dim: usize, per_page: usize) -> usize {
        len.div_ceil(per_page) * per_page * dim * size_of::<f32>()
    }

    fn page_bytes(&self) -> usize {
        self.per_page * self.dim * size_of::<f32>()
    }

    /// Makes room for `more` vectors, which hold whatever.
    ///
    /// # Errors
    /// [`Error::OutOfPages`]; nothing has changed then.
    pub fn extend(&mut self, more: usize) -> Result<()> {
        let have = self.pages.len();
        while self.pages.len() * self.per_page < self.len + more {
            match self.pool.allocate(self.page_bytes()) {
                Ok(page) => self.pages.push(page),
                Err(error) => {
                    self.pages.truncate(have);
                    return Err(error);
                }
            }
        }
        self.len += more;
        Ok(())
    }

    /// Forgets vectors from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.pages.truncate(self.pages());
    }

    /// A vector.
    pub fn row(&self, index: usize) -> &[f32] {
        let floats: &[f32] = cast(self.pages[index / self.per_page].bytes());
        &floats[index % self.per_page * self.dim..][..self.dim]
    }

    /// The vectors of a page, (rows, dim).
    ///
    /// # Errors
    /// [`Error::Internal`] if there is no such page.
    pub fn page_mut(&mut self, page: usize) -> Result<&mut [f32]> {
        let rows = self.len.saturating_sub(page * self.per_page).min(self.per_page);
        let bytes = self.pages.get_mut(page).ok_or_else(|| Error::Internal(format!("no page {page} of vectors")))?;
        Ok(&mut cast_mut(bytes.bytes_mut()?)[..rows * self.dim])
    }

    /// The same, to read.
    pub fn page(&self, page: usize) -> &[f32] {
        let rows = self.len.saturating_sub(page * self.per_page).min(self.per_page);
        self.pages.get(page).map_or(&[], |page| &cast(page.bytes())[..rows * self.dim])
    }

    /// Pages in use.
    pub fn pages(&self) -> usize {
        self.len.div_ceil(self.per_page)
    }
}
