//! Caches for later requests: states of texts, by segment, and encoded documents.

mod documents;
mod segment;

pub use crate::cache::{
    documents::DocumentCacheUsage,
    segment::{Capacity, Hit, Key, SegmentCache, SegmentCacheUsage},
};
pub(crate) use crate::cache::{
    documents::{CachedDocument, DocumentCache},
    segment::SegmentCacheHandle,
};
