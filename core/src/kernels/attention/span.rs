//! The inputs of attention: one head's keys and values, the query rows, and spans of keys that are processed together.

use super::{
    distance::DistanceTable,
    layout::{POSITIONS, PageLayout},
    query::{Query, QueryVariants},
};
use crate::kernels::{
    isa::{Simd, WIDTH},
    pages::Page,
};

/// Query rows that share one pass over the pages.
pub const ROW_TILE: usize = 3;
/// Vectors of a page's scores.
pub(super) const VECTORS: usize = POSITIONS / WIDTH;
/// Keys of a span: scores of that many keys are held at a time, so that keys and values are read as two streams.
pub(super) const SPAN: usize = 16 * POSITIONS;
/// Bytes of a cache line.
const LINE: usize = 64;

/// One head of one layer of one sequence: its cached keys and values, and the terms of its scores.
pub struct AttentionHead<'a> {
    /// Consecutive pages of the sequence, from `start` on.
    pub pages: &'a [Page],
    /// Position of the first key of the first page, a multiple of [`POSITIONS`].
    pub start: usize,
    /// Layout of the pages.
    pub layout: &'a PageLayout,
    /// Index of the layer.
    pub layer: usize,
    /// Index of the head.
    pub head: usize,
    /// Positions for which one variant of a query is valid, a multiple of [`POSITIONS`]; `usize::MAX` for a single variant.
    pub block: usize,
    /// Encodings of relative distances, if the position scheme has any.
    pub distances: Option<&'a DistanceTable>,
    /// Bias that is added to every scaled score.
    pub bias: Bias<'a>,
    /// Factor of every score.
    pub scale: f32,
    /// True if the softmax has one more key, of score zero and value zero: weights then sum to less than one.
    pub sink: bool,
    /// True if the pages were read a moment ago, so that prefetching is unnecessary.
    pub recently_read: bool,
}

impl<'a> AttentionHead<'a> {
    /// Returns a head with scale 1/√head_dim and without distances, bias and query variants.
    pub fn new(pages: &'a [Page], start: usize, layout: &'a PageLayout, layer: usize, head: usize) -> Self {
        Self {
            pages,
            start,
            layout,
            layer,
            head,
            block: usize::MAX,
            distances: None,
            bias: Bias::None,
            scale: 1.0 / (layout.head_dim as f32).sqrt(),
            sink: false,
            recently_read: false,
        }
    }
}

/// Term that is added to the scaled scores of one head, a function of the distance between query and key.
#[derive(Debug, Clone, Copy, Default)]
pub enum Bias<'a> {
    /// No bias.
    #[default]
    None,
    /// −slope · distance (ALiBi).
    Slope(f32),
    /// Bias per distance (T5's buckets). Larger distances use the last entry. Never empty.
    Table(&'a [f32]),
}

impl Bias<'_> {
    /// Adds the bias to the `scores` of consecutive keys from position `first` on, for a query at `position`. The scores of
    /// keys after the query become unspecified.
    #[inline(always)]
    pub(super) fn add(self, scores: &mut [f32], position: usize, first: usize) {
        let distance = |lane: usize| position.saturating_sub(first + lane);
        match self {
            Self::None => {}
            Self::Slope(slope) => {
                for (lane, score) in scores.iter_mut().enumerate() {
                    *score -= slope * distance(lane) as f32;
                }
            }
            Self::Table(table) => {
                let last = table.len() - 1;
                for (lane, score) in scores.iter_mut().enumerate() {
                    *score += table[distance(lane).min(last)];
                }
            }
        }
    }
}

/// One query of attention.
#[derive(Clone, Copy, Default)]
pub struct QueryRow<'a> {
    /// Position of the first key that it attends to.
    pub first_key: usize,
    /// Position of the query, which is also the last key that it attends to.
    pub position: usize,
    /// Query for the keys, bias included.
    pub content: QueryVariants<'a>,
    /// Query for the distances, bias included; unused if the head has none.
    pub distance: Query<'a>,
}

/// Outputs of `B` query rows, (head_dim) each.
pub(super) type Outs<'a, const B: usize> = [&'a mut [f32]; B];

/// Consecutive pages of a head, and the keys of them that each query row attends to.
pub(super) struct Span<'a, const B: usize> {
    pub(super) head: &'a AttentionHead<'a>,
    pub(super) pages: &'a [Page],
    /// Position of its first key.
    pub(super) first: usize,
    /// Index of each row's first key in the span; never decreases from row to row.
    pub(super) from: [usize; B],
    /// Index after each row's last key in the span; never decreases from row to row.
    pub(super) to: [usize; B],
}

impl<'a, const B: usize> Span<'a, B> {
    /// Returns the span that begins at the first position of a page, and the start of the next span if there is one.
    #[inline(always)]
    pub(super) fn new(head: &'a AttentionHead<'a>, rows: &[QueryRow<'_>; B], first: usize) -> (Self, Option<usize>) {
        // spans end at fixed positions, so that the order of summation does not depend on the window
        let end = (first / SPAN + 1) * SPAN;
        let mut from = [0; B];
        let mut to = [0; B];
        for (row, (from, to)) in rows.iter().zip(from.iter_mut().zip(&mut to)) {
            *from = row.first_key.saturating_sub(first).min(end - first);
            *to = (row.position + 1).saturating_sub(first).min(end - first);
        }
        let pages = &head.pages[(first - head.start) / POSITIONS..][..to[B - 1].div_ceil(POSITIONS)];
        (Self { head, pages, first, from, to }, (end <= rows[B - 1].position).then_some(end))
    }

    /// Prefetches the keys of page `block`, or the values of page `block - pages` if `block` is beyond the last page. The
    /// processor does not prefetch them by itself, because they are blocks of a few KiB that lie far apart.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, simd: S, block: usize) {
        let AttentionHead { layout, layer, head, recently_read, .. } = *self.head;
        if recently_read || block >= 2 * self.pages.len() {
            return;
        }
        let is_values = block >= self.pages.len();
        let page = self.pages[block % self.pages.len()].bytes();
        let bytes = &page[layout.head_offset(layer, head)..][..layout.head_bytes()];
        let (keys, rest) = bytes.split_at(layout.keys_bytes());
        let (values, scales) = rest.split_at(layout.keys_bytes());
        // all scales are read before the first values
        let (numbers, scales) = if is_values { (values, &[][..]) } else { (keys, scales) };
        for line in numbers.chunks(LINE).chain(scales.chunks(LINE)) {
            simd.prefetch(line.as_ptr());
        }
    }
}
