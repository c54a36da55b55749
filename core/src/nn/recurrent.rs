//! Memory of the recurrent layers of one stack for one sequence, in one page that counts towards key-value memory.
//!
//! A recurrent state cannot be rewound. A copy shares the page until one of both is written, so a snapshot costs memory only
//! when the sequence goes on.

use crate::{
    error::{Error, Result},
    kernels::{
        memory::cast_mut,
        pages::{Page, PagePool},
    },
};
use std::sync::Arc;

/// One sequence's states of the recurrent layers of a stack.
#[derive(Clone)]
pub struct RecurrentMemory {
    pool: Arc<PagePool>,
    /// Size of the page in bytes; 0 in a stack without recurrent layers.
    bytes: usize,
    /// `None` before the first position, where every number is zero.
    page: Option<Page>,
}

impl RecurrentMemory {
    /// Returns the memory of a sequence without positions; `numbers` are the numbers of all layers' states.
    pub fn new(pool: Arc<PagePool>, numbers: usize) -> Self {
        Self { pool, bytes: page_bytes(numbers), page: None }
    }

    /// Returns the page, if the sequence has one.
    pub fn page(&self) -> Option<&Page> {
        self.page.as_ref()
    }

    /// Returns the bytes of the page, shared or not.
    pub fn bytes(&self) -> usize {
        self.page.as_ref().map_or(0, |page| page.bytes().len())
    }

    /// Returns the bytes that the next write allocates: those of a first page, or of a copy of a shared one.
    pub fn growth(&self) -> usize {
        if self.page.as_ref().is_some_and(|page| !page.is_shared()) { 0 } else { self.bytes }
    }

    /// Moves the page out for writing: allocated and zeroed if there is none, copied if it is shared. Returns `None` in a stack
    /// without recurrent layers. Fails with [`Error::OutOfPages`].
    pub fn take(&mut self) -> Result<Option<Page>> {
        if self.bytes == 0 {
            return Ok(None);
        }
        let mut page = match self.page.take() {
            Some(page) => page,
            None => {
                let mut page = self.pool.allocate(self.bytes)?;
                page.bytes_mut()?.fill(0);
                page
            }
        };
        page.bytes_mut()?;
        Ok(Some(page))
    }

    /// Puts a page back that [`take`](Self::take) returned.
    pub fn put(&mut self, page: Option<Page>) {
        self.page = page;
    }

    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.page = None;
    }
}

/// Returns the bytes of a page for `numbers` numbers; 0 for none.
pub fn page_bytes(numbers: usize) -> usize {
    (numbers * size_of::<f32>()).next_multiple_of(64)
}

/// Returns a taken page's numbers for writing; none without a page. Fails with [`Error::OutOfPages`] if the page is shared.
pub fn numbers(page: &mut Option<Page>) -> Result<&mut [f32], Error> {
    match page {
        Some(page) => Ok(cast_mut(page.bytes_mut()?)),
        None => Ok(&mut []),
    }
}
