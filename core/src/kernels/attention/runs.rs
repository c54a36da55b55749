//! Spans of keys that are processed together, and the runs of pages within a span that rows share.

use super::{
    inputs::{QueryRow, ROW_TILE},
    layout::POSITIONS,
};
use crate::kernels::memory::Aligned;
use std::ops::Range;

/// Number of keys in a span. The scores of one span are held at a time, so that keys and values are read as two streams. Spans
/// start at multiples of it, so that the order of summation depends on positions alone.
pub(super) const SPAN: usize = 16 * POSITIONS;

/// Maximum columns of a span's keys, or of the distances to them, which need one column more.
pub(super) const MAX_COLUMNS: usize = SPAN / POSITIONS + 1;

/// Products of a row with the keys of a span, or with the distances to them.
pub(super) type Products = Aligned<[f32; MAX_COLUMNS * POSITIONS]>;

/// A set of rows of one call.
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

/// The rows of a set, in increasing order.
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
}

impl<'a> Span<'a> {
    /// Returns the span that begins at `first`.
    #[inline(always)]
    pub(super) fn new(rows: &'a [QueryRow<'a>], first: usize) -> Self {
        let mut span = Self { rows, first, from: [0; ROW_TILE], to: [0; ROW_TILE], active: RowSet::default() };
        for (index, row) in rows.iter().enumerate() {
            span.from[index] = row.first_key.saturating_sub(first).min(SPAN);
            span.to[index] = (row.position + 1).saturating_sub(first).min(SPAN);
            if span.from[index] < span.to[index] {
                span.active.insert(index);
            }
        }
        span
    }

    /// Returns the pages of the span that hold keys of a row, as indices.
    #[inline(always)]
    pub(super) fn pages(&self, row: usize) -> Range<usize> {
        self.from[row] / POSITIONS..self.to[row].div_ceil(POSITIONS)
    }

    /// Returns the bytes of a row's page.
    #[inline(always)]
    pub(super) fn bytes(&self, row: usize, page: usize) -> &'a [u8] {
        self.rows[row].keys.page(self.first + page * POSITIONS).bytes()
    }

    #[inline(always)]
    fn page_id(&self, row: usize, page: usize) -> usize {
        self.rows[row].keys.page(self.first + page * POSITIONS).id()
    }

    /// Splits the pages of all rows into runs. Each page of each row is in one run.
    #[inline(always)]
    pub(super) fn split(&self, runs: &mut Runs) {
        let Runs { found, pending } = runs;
        found.clear();
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
    /// Sets of rows that still need runs, each with its first page.
    pending: Vec<(RowSet, usize)>,
}

impl Runs {
    /// Returns memory for as many runs as a span can have, one for each page of each row.
    pub(super) fn new() -> Self {
        // pending sets have no row in common
        Self { found: Vec::with_capacity(ROW_TILE * MAX_COLUMNS), pending: Vec::with_capacity(ROW_TILE + 1) }
    }
}
