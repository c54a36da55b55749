//! Caches for later requests: states of texts, by segment, and encoded documents.

mod documents;
mod page_accounting;
mod segment;
mod segment_handle;

pub use documents::DocumentCacheUsage;
pub(crate) use documents::{CachedDocument, DocumentCache};
pub use segment::{Capacity, Hit, Key, SegmentCache, SegmentCacheUsage};
pub(crate) use segment_handle::SegmentCacheHandle;
