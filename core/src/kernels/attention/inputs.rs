//! The inputs of attention: a head, the query rows, and the pages of keys and values that each row attends to.

use super::{
    distance::DistanceTable,
    layout::{POSITIONS, PageLayout},
    query::{Query, QueryVariants},
};
use crate::kernels::pages::Page;

/// Maximum query rows of one call. They share their passes over pages and distances.
pub const ROW_TILE: usize = 16;

/// One head of one layer: where its keys and values lie in a page, and the terms of its scores.
#[derive(Clone, Copy)]
pub struct AttentionHead<'a> {
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
}

impl<'a> AttentionHead<'a> {
    /// Returns a head with scale 1/√head_dim and without distances, bias and query variants.
    pub fn new(layout: &'a PageLayout, layer: usize, head: usize) -> Self {
        Self {
            layout,
            layer,
            head,
            block: usize::MAX,
            distances: None,
            bias: Bias::None,
            scale: 1.0 / (layout.head_dim as f32).sqrt(),
            sink: false,
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

/// Cached keys and values of a sequence.
#[derive(Clone, Copy, Default)]
pub struct KeyPages<'a> {
    /// Consecutive pages, from position `start` on.
    pub pages: &'a [Page],
    /// Position of the first key of the first page, a multiple of [`POSITIONS`].
    pub start: usize,
    /// True if the pages were read a moment ago, so that prefetching is unnecessary.
    pub recently_read: bool,
}

impl<'a> KeyPages<'a> {
    /// Returns the page that begins at `position`, a multiple of [`POSITIONS`]. Panics if it is missing.
    #[inline(always)]
    pub(super) fn page(&self, position: usize) -> &'a Page {
        &self.pages[(position - self.start) / POSITIONS]
    }

    /// Returns true if both have the same page at the later of their two start positions.
    pub fn share_with(&self, other: &Self) -> bool {
        let position = self.start.max(other.start);
        let id = |keys: &Self| keys.pages.get((position - keys.start) / POSITIONS).map(Page::id);
        id(self).is_some_and(|page| Some(page) == id(other))
    }
}

/// One query of attention.
#[derive(Clone, Copy, Default)]
pub struct QueryRow<'a> {
    /// Keys and values of its sequence.
    pub keys: KeyPages<'a>,
    /// Position of the first key that it attends to.
    pub first_key: usize,
    /// Position of the query, which is also the last key that it attends to.
    pub position: usize,
    /// Query for the keys, bias included.
    pub content: QueryVariants<'a>,
    /// Query for the distances, bias included; unused if the head has none.
    pub distance: Query<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::pages::PagePool;

    /// Returns keys from position `start` on, a page for each of `pages`.
    fn keys(pages: &[Page], start: usize) -> KeyPages<'_> {
        KeyPages { pages, start, recently_read: false }
    }

    fn share(first: KeyPages<'_>, second: KeyPages<'_>) -> bool {
        let shared = first.share_with(&second);
        assert_eq!(second.share_with(&first), shared, "the order changes the answer");
        shared
    }

    #[test]
    fn sequences_share_pages_if_they_have_the_same_first_common_page() {
        let pool = PagePool::new(1 << 20);
        let page = || pool.allocate(64).unwrap();
        let [common, second, third, other] = [page(), page(), page(), page()];
        let list = |pages: &[&Page]| pages.iter().map(|&page| page.clone()).collect::<Vec<_>>();
        // A fork has its parent's pages up to where it continued on its own, and any length.
        let long = list(&[&common, &second, &third]);
        assert!(share(keys(&long, 0), keys(&long, 0)));
        assert!(share(keys(&long, 0), keys(&list(&[&common]), 0)));
        assert!(share(keys(&long, 0), keys(&list(&[&common, &other]), 0)));
        // Sequences of different texts.
        assert!(!share(keys(&long, 0), keys(&list(&[&other, &second, &third]), 0)));
        // A page at another position has other keys.
        assert!(!share(keys(&long, 0), keys(&long, POSITIONS)));
    }

    #[test]
    fn a_window_that_has_moved_on_shares_the_pages_that_both_still_have() {
        let pool = PagePool::new(1 << 20);
        let page = || pool.allocate(64).unwrap();
        let pages = [page(), page(), page()];
        assert!(share(keys(&pages, 0), keys(&pages[1..], POSITIONS)));
        assert!(share(keys(&pages[1..], POSITIONS), keys(&pages[2..], 2 * POSITIONS)));
        assert!(!share(keys(&pages, 0), keys(&[page(), page()], POSITIONS)), "other pages at the same positions");
        // The first ends before the second begins, or has no keys at all.
        assert!(!share(keys(&pages[..1], 0), keys(&pages[1..], POSITIONS)));
        assert!(!share(keys(&pages, 0), KeyPages::default()));
        assert!(!share(KeyPages::default(), KeyPages::default()));
    }
}
