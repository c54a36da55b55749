//! Attention of queries over pages of keys and values, with a relative-distance term or bias, over all keys or those of a
//! window; softmax included.
//!
//! A page holds [`POSITIONS`] positions of all layers of one stack ([`PageLayout`]); a head's keys lie as (head_dim, positions),
//! so that one vector instruction meets as many keys as it has lanes. The softmax runs over spans of pages with a running
//! maximum. Spans start at fixed positions, so the order of every sum is a function of the query's position alone; a key that a
//! row's window leaves out is never multiplied with anything that is kept. Rows at
//! neighbouring positions of one sequence, as a prompt's are, read keys, distances and values together, each in its own
//! chains.
//!
//! Sums are f32, whatever keys and values are stored in; of bytes, a product of query and key is an exact integer before its
//! scales, and so is a span's sum of weighted values, the weights rounded to 15 bits of the largest one.

mod bias;
mod bytes;
mod dense;
mod distance;
mod floats;
mod layout;
mod query;
mod selected;
mod softmax;
mod stored;

pub use bias::Bias;
pub use dense::{DenseLayout, attend_dense};
pub use distance::DistanceTable;
pub use layout::PageLayout;
pub use query::{Query, QueryBuffer, QueryVariants};
pub use selected::{HeadKeyValues, attend_selected};
pub use stored::write;

use super::{
    Dtype, Isa, LANES,
    isa::{Simd, WIDTH, multiversion},
    pages::Page,
};
use softmax::Softmax;
use stored::{Head, Stored};

/// Positions in a page.
pub const POSITIONS: usize = 2 * LANES;
/// Rows that read the same pages side by side.
pub const ROW_TILE: usize = 3;

/// Vectors of a page's scores.
const VECTORS: usize = POSITIONS / WIDTH;
/// Keys whose scores are held at a time: keys, then values, are read as streams of that many.
const SPAN: usize = 16 * POSITIONS;
/// Bytes of a cache line.
const LINE: usize = 64;

/// One head of one layer of one sequence: where its keys and values are.
pub struct AttentionHead<'a> {
    /// The sequence's pages, one behind the other, as far back as any row attends.
    pub pages: &'a [Page],
    /// The first page's first position: a multiple of [`POSITIONS`].
    pub start: usize,
    /// What they hold.
    pub layout: &'a PageLayout,
    /// The layer.
    pub layer: usize,
    /// The head.
    pub head: usize,
    /// Positions of a block, of which each query has a form of its own: a multiple of [`POSITIONS`]; `usize::MAX` if queries
    /// have one form only.
    pub block: usize,
    /// The distances, if the position scheme has any.
    pub distances: Option<&'a DistanceTable>,
    /// Added to every scaled score.
    pub bias: Bias<'a>,
    /// Multiplies every score.
    pub scale: f32,
    /// Whether the pages were read a moment ago, so that nothing has to be asked for.
    pub recently_read: bool,
}

/// One query.
#[derive(Clone, Copy, Default)]
pub struct QueryRow<'a> {
    /// The first position that it attends to.
    pub first_key: usize,
    /// The last one: its own.
    pub position: usize,
    /// The query for the keys, bias included.
    pub content: QueryVariants<'a>,
    /// The query for the distances, bias included; unused where there are none.
    pub distance: Query<'a>,
}

/// Where rows' outcomes go, (head_dim) each.
type Outs<'a, const B: usize> = [&'a mut [f32]; B];

/// Some pages of a source, and which of their keys each row attends to.
struct Span<'a, const B: usize> {
    source: &'a AttentionHead<'a>,
    pages: &'a [Page],
    /// The position of its first key.
    first: usize,
    /// Each row's first key of the span; never falling from row to row.
    from: [usize; B],
    /// One past each row's last; never falling either.
    to: [usize; B],
}

impl<'a, const B: usize> Span<'a, B> {
    /// The span that begins at a page's first position, and where the next one does, if there is one.
    #[inline(always)]
    fn at(source: &'a AttentionHead<'a>, rows: &[QueryRow<'_>; B], first: usize) -> (Self, Option<usize>) {
        // whatever the window, spans end where they would without one
        let end = (first / SPAN + 1) * SPAN;
        let (mut from, mut to) = ([0; B], [0; B]);
        for (row, (from, to)) in rows.iter().zip(from.iter_mut().zip(&mut to)) {
            *from = row.first_key.saturating_sub(first).min(end - first);
            *to = (row.position + 1).saturating_sub(first).min(end - first);
        }
        let pages = &source.pages[(first - source.start) / POSITIONS..][..to[B - 1].div_ceil(POSITIONS)];
        (Self { source, pages, first, from, to }, (end <= rows[B - 1].position).then_some(end))
    }

    /// Asks for a page's keys, or, counting on behind the last page's, values: blocks of a few KiB, far apart, are too short
    /// for the processor to foresee.
    #[inline(always)]
    fn ask_for<S: Simd>(&self, simd: S, block: usize) {
        let AttentionHead { layout, layer, head, recently_read, .. } = *self.source;
        let (values, page) = (block >= self.pages.len(), block % self.pages.len());
        if recently_read || block >= 2 * self.pages.len() {
            return;
        }
        let head = &self.pages[page].bytes()[layout.head_offset(layer, head)..][..layout.head_bytes()];
        let (keys, rest) = head.split_at(layout.keys_bytes());
        let (of_values, scales) = rest.split_at(layout.keys_bytes());
        // all scales are read before the first values
        let (numbers, scales) = if values { (of_values, &[][..]) } else { (keys, scales) };
        for line in numbers.chunks(LINE).chain(scales.chunks(LINE)) {
            simd.prefetch(line.as_ptr());
        }
    }
}

/// Each of `outs`, (head_dim) = Σ softmax(scores) · values of a row; not numbers, if a score is none or all are infinite. The
/// rows' positions rise by one, and their windows' starts never fall; without distances and bias they may also stand still.
///
/// # Panics
/// If they do not, if there are not as many outcomes, or if a page is missing.
pub fn attend(isa: Isa, source: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) {
    // where nothing depends on the distance, rows may stand at one position, as those that ask the same memory do
    let level = source.distances.is_none() && matches!(source.bias, Bias::None);
    let rises = |from: usize, to: usize| from + 1 == to || (level && from == to);
    let rise =
        |pair: &[QueryRow<'_>]| rises(pair[0].position, pair[1].position) && pair[0].first_key <= pair[1].first_key;
    assert!(rows.windows(2).all(rise) && rows.len() == outs.len());
    assert!(rows.iter().all(|row| source.start <= row.first_key && row.first_key <= row.position));
    match source.layout.dtype {
        Dtype::F32 => full(isa, source, rows, outs),
        Dtype::Bf16 => half(isa, source, rows, outs),
        Dtype::Int8 => bytes(isa, source, rows, outs),
    }
}

/// The scores of one row, of its first key to its own, as the softmax would take them.
///
/// # Panics
/// If a page is missing.
pub fn scores(isa: Isa, source: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) {
    assert!(source.start <= row.first_key && row.first_key <= row.position);
    out.clear();
    match source.layout.dtype {
        Dtype::F32 => full_scores(isa, source, row, out),
        Dtype::Bf16 => half_scores(isa, source, row, out),
        Dtype::Int8 => bytes_scores(isa, source, row, out),
    }
}

multiversion! { fn full_scores(source: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) = full_scores_body }
multiversion! { fn half_scores(source: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) = half_scores_body }
multiversion! { fn bytes_scores(source: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) = bytes_scores_body }

#[inline(always)]
fn full_scores_body<S: Simd>(simd: S, source: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) {
    scores_of::<S, stored::Floats<f32>>(simd, source, row, out);
}

#[inline(always)]
fn half_scores_body<S: Simd>(simd: S, source: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) {
    scores_of::<S, stored::Floats<u16>>(simd, source, row, out);
}

#[inline(always)]
fn bytes_scores_body<S: Simd>(simd: S, source: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) {
    scores_of::<S, stored::Bytes>(simd, source, row, out);
}

#[inline(always)]
fn scores_of<S: Simd, N: Stored>(simd: S, source: &AttentionHead<'_>, row: &QueryRow<'_>, out: &mut Vec<f32>) {
    let (rows, mut scores) = ([*row], [[0f32; SPAN]; 1]);
    let mut next = Some(row.first_key / POSITIONS * POSITIONS);
    while let Some(first) = next {
        let (span, after) = Span::at(source, &rows, first);
        score::<S, N, 1>(simd, &span, &rows, &mut scores);
        out.extend_from_slice(&scores[0][span.from[0]..span.to[0]]);
        next = after;
    }
}

multiversion! { fn full(source: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) = full_body }
multiversion! { fn half(source: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) = half_body }
multiversion! { fn bytes(source: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) = bytes_body }

#[inline(always)]
fn full_body<S: Simd>(simd: S, source: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) {
    attend_all::<S, stored::Floats<f32>>(simd, source, rows, outs);
}

#[inline(always)]
fn half_body<S: Simd>(simd: S, source: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) {
    attend_all::<S, stored::Floats<u16>>(simd, source, rows, outs);
}

#[inline(always)]
fn bytes_body<S: Simd>(simd: S, source: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) {
    attend_all::<S, stored::Bytes>(simd, source, rows, outs);
}

#[inline(always)]
fn attend_all<S: Simd, N: Stored>(simd: S, source: &AttentionHead<'_>, rows: &[QueryRow<'_>], outs: &mut [&mut [f32]]) {
    let (together, rest) = rows.as_chunks::<ROW_TILE>();
    let (outs, rest_outs) = outs.as_chunks_mut::<ROW_TILE>();
    for (rows, outs) in together.iter().zip(outs) {
        attend_some::<S, N, ROW_TILE>(simd, source, rows, outs);
    }
    for (row, out) in rest.iter().zip(rest_outs) {
        attend_some::<S, N, 1>(simd, source, &[*row], std::array::from_mut(out));
    }
}

#[inline(always)]
fn attend_some<S: Simd, N: Stored, const B: usize>(
    simd: S,
    source: &AttentionHead<'_>,
    rows: &[QueryRow<'_>; B],
    outs: &mut Outs<'_, B>,
) {
    let mut scores = [[0f32; SPAN]; B];
    let mut softmax = [Softmax::NEW; B];
    outs.iter_mut().for_each(|out| out.fill(0.0));
    let mut next = Some(rows[0].first_key / POSITIONS * POSITIONS);
    while let Some(first) = next {
        let (span, after) = Span::at(source, rows, first);
        score::<S, N, B>(simd, &span, rows, &mut scores);
        for row in 0..B {
            let scores = &mut scores[row][..span.pages.len() * POSITIONS];
            let (from, to) = (span.from[row], span.to[row]);
            scores[..from.min(to)].fill(f32::NEG_INFINITY);
            scores[to..].fill(f32::NEG_INFINITY);
            softmax[row].take::<S>(scores, outs[row]);
        }
        N::weigh::<S, B>(simd, &span, &mut scores, outs);
        next = after;
    }
    for (softmax, out) in softmax.iter().zip(outs) {
        softmax.end(out);
    }
}

/// The scores of a span's keys; those of keys outside a row's window are unspecified.
#[inline(always)]
fn score<S: Simd, N: Stored, const B: usize>(
    simd: S,
    span: &Span<'_, B>,
    rows: &[QueryRow<'_>; B],
    scores: &mut [[f32; SPAN]; B],
) {
    let source = span.source;
    let mut far = [[0f32; SPAN + POSITIONS]; B];
    let places = far_products::<S, N, B>(simd, span, rows, &mut far);
    let at = source.layout.head_offset(source.layer, source.head);
    (1..N::AHEAD).for_each(|block| span.ask_for(simd, block));
    for (index, page) in span.pages.iter().enumerate() {
        span.ask_for(simd, index + N::AHEAD);
        let position = span.first + index * POSITIONS;
        let block = position / source.block;
        let contents = rows.map(|row| row.content.get((row.position / source.block).saturating_sub(block)));
        let near = N::products::<S, B>(simd, &contents, Head::<N>::of(source.layout, page.bytes(), at).keys);
        for row in 0..B {
            let far = &far[row][index * POSITIONS + places[row]..][..POSITIONS];
            let scores = &mut scores[row][index * POSITIONS..][..POSITIONS];
            for (lane, score) in scores.iter_mut().enumerate() {
                *score = (near[row][lane] + far[lane]) * source.scale;
            }
            source.bias.add(scores, rows[row].position, position);
        }
    }
}

/// The queries' products with the distances to a span's keys, by falling distance, each from its returned place on: chunks
/// of distances are aligned to the query's own position, keys to the sequence's start. Zeros, where a scheme has none.
#[inline(always)]
fn far_products<S: Simd, N: Stored, const B: usize>(
    simd: S,
    span: &Span<'_, B>,
    rows: &[QueryRow<'_>; B],
    far: &mut [[f32; SPAN + POSITIONS]; B],
) -> [usize; B] {
    let (mut places, mut chunks) = ([0; B], [0; B]);
    let Some(table) = span.source.distances else { return places };
    let queries = rows.map(|row| row.distance);
    for (row, (place, chunks)) in rows.iter().zip(places.iter_mut().zip(&mut chunks)) {
        if let Some(offset) = row.position.checked_sub(span.first) {
            *place = POSITIONS - 1 - offset % POSITIONS;
            *chunks = offset / POSITIONS + 1;
        }
    }
    // a row's products with chunk c come at its index chunks − 1 − c, of which it needs one more than there are pages
    let needed = span.pages.len() + 1;
    let index = |row: usize, chunk: usize| (chunks[row] - 1).wrapping_sub(chunk);
    let lowest = chunks.map(|chunks| chunks.saturating_sub(needed));
    for chunk in (lowest[0]..chunks[B - 1]).rev() {
        let columns = table.chunk::<N>(span.source.head, chunk);
        let wanted = |row: usize| (lowest[row]..chunks[row]).contains(&chunk);
        if (0..B).all(wanted) {
            let products = N::products::<S, B>(simd, &queries, columns);
            for row in 0..B {
                far[row][index(row, chunk) * POSITIONS..][..POSITIONS].copy_from_slice(&products[row]);
            }
        } else {
            for row in (0..B).filter(|&row| wanted(row)) {
                let [products] = N::products::<S, 1>(simd, &[queries[row]], columns);
                far[row][index(row, chunk) * POSITIONS..][..POSITIONS].copy_from_slice(&products);
            }
        }
    }
    places
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod window_tests;
