//! Caches for later requests: states of texts, by segment, and encoded documents.

mod documents;
mod segment;

pub use documents::DocumentCacheUsage;
pub(crate) use documents::{CachedDocument, DocumentCache};
pub(crate) use segment::SegmentCacheHandle;
pub use segment::{Capacity, Hit, Key, SegmentCache, SegmentCacheUsage};
