//! Caches for later requests: states of texts, by segment, and encoded documents.

mod documents;
mod segment;

pub use crate::cache::documents::DocumentCacheUsage;
pub(crate) use crate::cache::documents::{CachedDocument, DocumentCache};
pub(crate) use crate::cache::segment::SegmentCacheHandle;
pub use crate::cache::segment::{Capacity, Hit, Key, SegmentCache, SegmentCacheUsage};
