//! The inputs of attention: queries in the form in which they are multiplied with keys, the pages that each row attends to, tables
//! of distances, the runs of pages that rows share, and each thread's memory.

use crate::attention::layout::{POSITIONS, PageLayout, columns_bytes, scales_bytes, write_key, write_key_bytes};
use crate::dtype::{inverse_of, to_bf16};
use crate::error::Result;
use crate::isa::{Portable, Simd};
use crate::linear::QuantizedRows;
use crate::memory::{Aligned, Arena, Region, cast_mut};
use crate::pages::Page;
use crate::rowwise::scale_of;
use crate::{CacheDtype, Compute};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Query of one head for its keys, or for its distances.
#[derive(Clone, Copy, Default)]
pub struct Query<'a> {
    /// (head_dim)
    pub(super) numbers: &'a [f32],
    /// int8 values, (head_dim/4), padded with zeros; empty if keys are floats.
    pub(super) cells: &'a [[i8; 4]],
    pub(super) scale: f32,
    pub(super) sum: i32,
}

/// A query in one or more variants: rotary schemes rotate a key by its index in its block of positions, so a query needs one
/// variant per block of keys.
#[derive(Clone, Copy, Default)]
pub struct QueryVariants<'a> {
    buffer: Option<&'a QueryBuffer>,
    own: usize,
    /// Step from the index of a variant to that for the previous block.
    stride: usize,
    count: usize,
}

impl<'a> QueryVariants<'a> {
    /// Creates `count` variants: that for the query's own block at index `own`, each for an earlier block `stride` further.
    pub fn new(buffer: &'a QueryBuffer, own: usize, stride: usize, count: usize) -> Self {
        Self { buffer: Some(buffer), own, stride, count }
    }

    /// Creates a query with one variant for all keys.
    pub fn single(buffer: &'a QueryBuffer, index: usize) -> Self {
        Self::new(buffer, index, 0, 1)
    }

    /// Returns the variant for keys `blocks_back` blocks before the query. Unspecified for blocks outside its window.
    pub(super) fn get(&self, blocks_back: usize) -> Query<'a> {
        let variant = blocks_back.min(self.count.saturating_sub(1));
        self.buffer.map_or(Query::default(), |buffer| buffer.get(self.own + variant * self.stride))
    }
}

/// Queries of all rows and heads of a step. The memory is reused between steps.
#[derive(Default)]
pub struct QueryBuffer {
    numbers: Vec<f32>,
    bytes: QuantizedRows,
    sums: Vec<i32>,
    head_dim: usize,
}

impl QueryBuffer {
    /// Returns `len` unspecified values to be overwritten.
    pub fn values_mut(&mut self, len: usize) -> &mut [f32] {
        self.numbers.resize(len, 0.0);
        &mut self.numbers
    }

    /// Prepares the written values for keys of type `dtype`: quantizes them if keys are int8.
    pub fn finish(&mut self, compute: &Compute, dtype: CacheDtype, head_dim: usize) {
        self.head_dim = head_dim;
        let numbers = if dtype == CacheDtype::Int8 { &self.numbers[..] } else { &[] };
        self.bytes.fill(compute, numbers, head_dim);
        let sum = |query| self.bytes.row(query).as_flattened().iter().map(|&byte| i32::from(byte)).sum::<i32>();
        self.sums.clear();
        self.sums.extend((0..numbers.len() / head_dim).map(sum));
    }

    /// Returns the query at an index of (rows, heads), or an empty query if none was written.
    pub fn get(&self, index: usize) -> Query<'_> {
        let dim = self.head_dim;
        let numbers = self.numbers.get(index * dim..(index + 1) * dim).unwrap_or(&[]);
        let cells = self.bytes.row(index);
        let scale = self.bytes.scales().get(index).copied().unwrap_or(0.0);
        Query { numbers, cells, scale, sum: self.sums.get(index).copied().unwrap_or(0) }
    }
}

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

/// Distances in a block of a [`DistanceTable`].
pub(super) const BLOCK: usize = 512;

const CHUNKS: usize = BLOCK / POSITIONS;

/// Encodings R_d of every distance d ≥ 0 of one layer, computed in blocks when a sequence first needs them. Stored like keys, in
/// chunks of [`POSITIONS`] distances that a query reads as one stream.
pub struct DistanceTable {
    dtype: CacheDtype,
    heads: usize,
    head_dim: usize,
    arena: Arc<Arena>,
    /// Each block: (heads, chunks), a chunk like the keys of one head of a page. Distances decrease as positions increase.
    blocks: Vec<OnceLock<Region>>,
}

impl DistanceTable {
    /// Creates an empty table for sequences of up to `positions` positions and keys of type `dtype`.
    pub fn new(dtype: CacheDtype, heads: usize, head_dim: usize, positions: usize, arena: Arc<Arena>) -> Self {
        let blocks = (0..positions.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect();
        Self { dtype, heads, head_dim, arena, blocks }
    }

    /// Computes the blocks that a query at `position` needs. `fill` returns R_d, (distances, heads, head_dim), for a
    /// range of distances. Fails if memory runs out.
    pub fn cover(&self, position: usize, fill: impl Fn(std::ops::Range<usize>) -> Vec<f32>) -> Result<()> {
        for (index, block) in self.blocks.iter().enumerate().take(position / BLOCK + 1) {
            if block.get().is_none() {
                // if two threads compute it at the same time, one of the equal blocks is dropped
                let _ = block.set(self.block(index, &fill)?);
            }
        }
        Ok(())
    }

    fn block(&self, index: usize, fill: &impl Fn(std::ops::Range<usize>) -> Vec<f32>) -> Result<Region> {
        let rows = fill(index * BLOCK..(index + 1) * BLOCK);
        let columns_bytes = columns_bytes(self.dtype, self.head_dim);
        let chunk_bytes = self.chunk_bytes();
        let mut region = self.arena.allocate(self.heads * CHUNKS * chunk_bytes)?;
        for (distance, row) in rows.chunks_exact(self.heads * self.head_dim).enumerate() {
            let chunk = CHUNKS - 1 - distance / POSITIONS;
            let slot = POSITIONS - 1 - distance % POSITIONS;
            for (head, row) in row.chunks_exact(self.head_dim).enumerate() {
                let bytes = &mut region.bytes_mut()[(head * CHUNKS + chunk) * chunk_bytes..][..chunk_bytes];
                let (columns, scales) = bytes.split_at_mut(columns_bytes);
                match self.dtype {
                    CacheDtype::F32 => write_key::<_, _, 1>(cast_mut(columns), slot, row, |x| x),
                    CacheDtype::Bf16 => write_key::<_, _, 1>(cast_mut(columns), slot, row, to_bf16),
                    CacheDtype::Int8 => {
                        let scale = scale_of(Portable, row);
                        write_key_bytes(cast_mut(columns), slot, row, inverse_of(scale));
                        cast_mut(scales)[slot] = scale;
                    }
                }
            }
        }
        Ok(region)
    }

    fn chunk_bytes(&self) -> usize {
        columns_bytes(self.dtype, self.head_dim) + scales_bytes(self.dtype)
    }

    /// Returns one head's encodings of distances from `chunk` · POSITIONS on, in decreasing order, and their scales.
    #[inline(always)]
    pub(super) fn chunk(&self, head: usize, chunk: usize) -> (&[u8], &[u8]) {
        let block = self.blocks.get(chunk / CHUNKS).and_then(OnceLock::get).map_or(&[][..], Region::bytes);
        let size = self.chunk_bytes();
        let bytes = &block[(head * CHUNKS + CHUNKS - 1 - chunk % CHUNKS) * size..][..size];
        bytes.split_at(columns_bytes(self.dtype, self.head_dim))
    }
}

/// Keys in a span. Spans start at multiples of it, so that the order of summation depends on positions alone.
pub(super) const SPAN: usize = 16 * POSITIONS;

/// Maximum columns of a span's keys, or of the distances to them, which need one column more.
pub(super) const MAX_COLUMNS: usize = SPAN / POSITIONS + 1;

/// Products of a row with the keys of a span, or with the distances to them.
pub(super) type Products = Aligned<[f32; MAX_COLUMNS * POSITIONS]>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RowSet(u16);

const _: () = assert!(ROW_TILE <= u16::BITS as usize);

impl RowSet {
    #[inline(always)]
    pub(super) fn insert(&mut self, row: usize) {
        self.0 |= 1 << row;
    }

    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    #[inline(always)]
    fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let row = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(row)
        })
    }

    /// Returns the rows in increasing order.
    #[inline(always)]
    pub(super) fn list(self) -> RowList {
        let mut list = RowList { rows: [0; ROW_TILE], len: 0 };
        for row in self.iter() {
            list.rows[list.len] = row;
            list.len += 1;
        }
        list
    }
}

pub(super) struct RowList {
    rows: [usize; ROW_TILE],
    len: usize,
}

impl RowList {
    #[inline(always)]
    pub(super) fn rows(&self) -> &[usize] {
        &self.rows[..self.len]
    }
}

/// The keys of a span that each row of a call attends to.
pub(super) struct Span<'a> {
    pub(super) rows: &'a [QueryRow<'a>],
    /// Position of its first key.
    pub(super) first: usize,
    /// Index of each row's first key in the span.
    pub(super) from: [usize; ROW_TILE],
    /// Index after each row's last key in the span. Not larger than `from` if the row has no keys in the span.
    pub(super) to: [usize; ROW_TILE],
    /// Rows with keys in the span.
    pub(super) active: RowSet,
    /// The keys and values of the head in each row's pages.
    heads: [[&'a [u8]; SPAN / POSITIONS]; ROW_TILE],
}

impl<'a> Span<'a> {
    #[inline(always)]
    pub(super) fn new(head: &AttentionHead<'_>, rows: &'a [QueryRow<'a>], first: usize) -> Self {
        let mut span = Self {
            rows,
            first,
            from: [0; ROW_TILE],
            to: [0; ROW_TILE],
            active: RowSet::default(),
            heads: [[&[]; SPAN / POSITIONS]; ROW_TILE],
        };
        let start = head.layout.head_offset(head.layer, head.head);
        let bytes = start..start + head.layout.head_bytes();
        for (index, row) in rows.iter().enumerate() {
            span.from[index] = row.first_key.saturating_sub(first).min(SPAN);
            span.to[index] = (row.position + 1).saturating_sub(first).min(SPAN);
            if span.from[index] < span.to[index] {
                span.active.insert(index);
                for page in span.pages(index) {
                    span.heads[index][page] = &row.keys.page(first + page * POSITIONS).bytes()[bytes.clone()];
                }
            }
        }
        span
    }

    /// Returns the pages of the span that hold keys of a row, as indices.
    #[inline(always)]
    pub(super) fn pages(&self, row: usize) -> Range<usize> {
        self.from[row] / POSITIONS..self.to[row].div_ceil(POSITIONS)
    }

    /// Returns the keys and values of the head in a row's page.
    #[inline(always)]
    pub(super) fn bytes(&self, row: usize, page: usize) -> &'a [u8] {
        self.heads[row][page]
    }

    #[inline(always)]
    fn page_id(&self, row: usize, page: usize) -> *const u8 {
        self.heads[row][page].as_ptr()
    }

    /// Lists the pages of all runs, except those that a cache still has.
    #[inline(always)]
    pub(super) fn list_pages(&self, layout: &PageLayout, runs: &Runs, ahead: &mut Ahead) {
        *ahead = Ahead {
            pages: std::mem::take(&mut ahead.pages),
            page_lines: layout.head_bytes().div_ceil(LINE),
            ..Ahead::default()
        };
        ahead.pages.clear();
        for run in runs.groups.iter().flat_map(|&group| runs.of(group)) {
            let leader = run.rows.0.trailing_zeros() as usize;
            if !self.rows[leader].keys.recently_read {
                ahead.pages.extend(run.pages.clone().map(|page| self.page_id(leader, page)));
            }
        }
    }

    /// Splits the pages of all rows into runs. Each page of each row is in one run.
    #[inline(always)]
    pub(super) fn split(&self, runs: &mut Runs) {
        let Runs { found, groups, pending } = runs;
        found.clear();
        groups.clear();
        pending.clear();
        pending.push((self.active, 0));
        while let Some((rows, from)) = pending.pop() {
            let mut start = usize::MAX;
            let mut left = RowSet::default();
            for row in rows.iter().filter(|&row| self.pages(row).end > from) {
                left.insert(row);
                start = start.min(self.pages(row).start.max(from));
            }
            if left.is_empty() {
                continue;
            }
            let begins_later = |row: usize| self.pages(row).start > start;
            let Some(leader) = left.iter().find(|&row| !begins_later(row)) else { continue };
            let mut same = RowSet::default();
            let mut later = RowSet::default();
            // the run ends where one of its rows ends or differs, and where another row may join
            let mut end = usize::MAX;
            for row in left.iter() {
                if begins_later(row) {
                    later.insert(row);
                    end = end.min(self.pages(row).start);
                } else if self.page_id(row, start) == self.page_id(leader, start) {
                    same.insert(row);
                    end = end.min(self.pages(row).end);
                }
            }
            let is_shared =
                |page: &usize| same.iter().all(|row| self.page_id(row, *page) == self.page_id(leader, *page));
            let end = start + 1 + (start + 1..end).take_while(is_shared).count();
            found.push(Run { rows: same, pages: start..end });
            let others = left.without(same).without(later);
            if !others.is_empty() {
                pending.push((others, start));
            }
            // processed next, so that a sequence's pages are read one after another
            pending.push((same.union(later), end));
        }
        for run in &*found {
            let mut group = run.rows;
            groups.retain(|&other| {
                let is_apart = other.without(run.rows) == other;
                group = if is_apart { group } else { group.union(other) };
                is_apart
            });
            groups.push(group);
        }
    }
}

/// Consecutive pages of a span that some rows share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) rows: RowSet,
    /// Indices of pages in the span.
    pub(super) pages: Range<usize>,
}

/// The runs of a span. The memory is reused, and never grows.
#[derive(Default)]
pub(super) struct Runs {
    pub(super) found: Vec<Run>,
    /// Sets of rows: the rows of a run are in one set. A set's values are read before the next set's keys, as they lie in memory.
    pub(super) groups: Vec<RowSet>,
    /// Sets of rows that still need runs, each with its first page.
    pending: Vec<(RowSet, usize)>,
}

impl Runs {
    /// Returns memory for as many runs as a span can have, one for each page of each row.
    pub(super) fn new() -> Self {
        // pending sets have no row in common
        Self {
            found: Vec::with_capacity(ROW_TILE * MAX_COLUMNS),
            groups: Vec::with_capacity(ROW_TILE),
            pending: Vec::with_capacity(ROW_TILE + 1),
        }
    }

    /// Returns the runs of a group.
    #[inline(always)]
    pub(super) fn of(&self, group: RowSet) -> impl Iterator<Item = &Run> {
        self.found.iter().filter(move |run| run.rows.without(group).is_empty())
    }
}

/// Maximum bytes that are prefetched before the keys of their page are read: a part of the second-level cache.
const MAX_AHEAD: usize = 64 << 10;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// The pages of a span in the order in which their keys are read. They lie apart, so the processor does not foresee the next. A core
/// waits for few lines at a time: a page that is prefetched at once keeps it from computing, so each computation prefetches some lines.
#[derive(Default)]
pub(super) struct Ahead {
    /// Start of the head's keys and values in each page.
    pages: Vec<*const u8>,
    /// Cache lines of the head in a page.
    page_lines: usize,
    /// Number of pages whose keys were read.
    read: usize,
    /// Number of pages whose prefetching has begun.
    begun: usize,
    /// Next line of the last of them.
    next: *const u8,
    /// Lines from there to the end of its values.
    left: usize,
}

impl Ahead {
    /// Counts a page if the caller reads its keys next.
    #[inline(always)]
    pub(super) fn read_if(&mut self, reads: bool) {
        self.read += usize::from(reads);
        if self.begun < self.read {
            self.begun = self.read;
            self.left = 0;
        }
    }

    /// Returns the next `lines` lines for the caller to prefetch one by one while it computes.
    #[inline(always)]
    pub(super) fn take(&mut self, lines: usize) -> Option<*const u8> {
        if self.left == 0 {
            if (self.begun - self.read) * self.page_lines * LINE >= MAX_AHEAD {
                return None;
            }
            self.next = *self.pages.get(self.begun)?;
            self.begun += 1;
            self.left = self.page_lines;
        }
        let start = self.next;
        // what is beyond the head's end belongs to the next head, which is read soon, or to what follows the page
        self.next = start.wrapping_add(lines * LINE);
        self.left = self.left.saturating_sub(lines);
        Some(start)
    }

    /// Prefetches the next `lines` lines at once.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&mut self, simd: S, lines: usize) {
        if let Some(start) = self.take(lines) {
            (0..lines).for_each(|line| simd.prefetch(start.wrapping_add(line * LINE)));
        }
    }
}

/// Memory of one call. It has a fixed size, except for one sum for each number of a head.
pub(super) struct Work {
    /// Each row's scores of a span, then its weights: (rows, [`SPAN`]), and some unused numbers.
    pub(super) scores: Vec<Products>,
    /// Each row's products with distances: (rows, [`SPAN`] + [`POSITIONS`]).
    pub(super) distances: Vec<Products>,
    /// The upper and the lower bytes of each row's weights of a span as integers: (rows, [`SPAN`]) each.
    pub(super) weights: [WeightBytes; 2],
    /// Copies of the weights of a run's rows without gaps between the rows, as tiles load them.
    pub(super) run_weights: [WeightBytes; 2],
    /// The unit of each row's integer weights.
    pub(super) units: [f32; ROW_TILE],
    /// Each row's sums of weighted int8 values: (rows, head_dim).
    pub(super) sums: Vec<i32>,
    pub(super) tile_sums: TileSums,
    /// The runs of the span.
    pub(super) runs: Runs,
    /// The pages of the span.
    pub(super) ahead: Ahead,
}

/// One byte of each weight: (rows, [`SPAN`]).
type WeightBytes = Vec<Aligned<[u8; SPAN]>>;

/// Integer sums of tiles: (columns, rows, [`POSITIONS`]).
pub(super) type TileSums = Vec<Aligned<[[i32; POSITIONS]; ROW_TILE]>>;

impl Work {
    fn new() -> Self {
        Self {
            scores: vec![Aligned([0.0; MAX_COLUMNS * POSITIONS]); ROW_TILE],
            distances: vec![Aligned([0.0; MAX_COLUMNS * POSITIONS]); ROW_TILE],
            weights: [0, 1].map(|_| vec![Aligned([0; SPAN]); ROW_TILE]),
            run_weights: [0, 1].map(|_| vec![Aligned([0; SPAN]); ROW_TILE]),
            units: [0.0; ROW_TILE],
            sums: Vec::new(),
            tile_sums: vec![Aligned([[0; POSITIONS]; ROW_TILE]); MAX_COLUMNS],
            runs: Runs::new(),
            ahead: Ahead { pages: Vec::with_capacity(ROW_TILE * MAX_COLUMNS), ..Ahead::default() },
        }
    }

    /// Calls `body` with this thread's memory.
    pub(super) fn with(body: impl FnOnce(&mut Self)) {
        thread_local! {
            static WORK: RefCell<Work> = RefCell::new(Work::new());
        }
        WORK.with_borrow_mut(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::PagePool;

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
