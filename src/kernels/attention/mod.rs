//! Attention of queries over pages of keys and values, with a relative-distance term; softmax included.
//!
//! A page holds [`POSITIONS`] positions of all layers of one stack ([`Layout`]); a head's keys lie as (head_dim, positions),
//! so that one vector instruction meets as many keys as it has lanes. The softmax runs over spans of pages with a running
//! maximum. Spans start at fixed positions, so the order of every sum is a function of the query's position alone. Rows at
//! neighbouring positions of one sequence, as a prompt's are, read keys, distances and values together, each in its own
//! chains.
//!
//! Sums are f32, whatever keys and values are stored in; of bytes, a product of query and key is an exact integer before its
//! scales, and so is a span's sum of weighted values, the weights rounded to 15 bits of the largest one.

mod bytes;
mod distance;
mod floats;
mod layout;
mod probe;
mod softmax;
mod stored;

pub use distance::DistanceTable;
pub use layout::Layout;
pub use probe::{Probe, Probes};
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
pub const TOGETHER: usize = 3;

/// Vectors of a page's scores.
const VECTORS: usize = POSITIONS / WIDTH;
/// Keys whose scores are held at a time: keys, then values, are read as streams of that many.
const SPAN: usize = 16 * POSITIONS;
/// Bytes of a cache line.
const LINE: usize = 64;

/// One head of one layer of one sequence: where its keys and values are.
pub struct Source<'a> {
    /// The sequence's pages, from position 0.
    pub pages: &'a [Page],
    /// What they hold.
    pub layout: &'a Layout,
    /// The layer.
    pub layer: usize,
    /// The head.
    pub head: usize,
    /// The distances, if the position scheme has any.
    pub distances: Option<&'a DistanceTable>,
    /// Multiplies every score.
    pub scale: f32,
    /// Whether the pages were read a moment ago, so that nothing has to be asked for.
    pub near: bool,
}

/// One query.
#[derive(Clone, Copy, Default)]
pub struct Row<'a> {
    /// It attends to positions 0…position.
    pub position: usize,
    /// The query for the keys, bias included.
    pub content: Probe<'a>,
    /// The query for the distances, bias included; unused where there are none.
    pub distance: Probe<'a>,
}

/// Where rows' outcomes go, (head_dim) each.
type Outs<'a, const B: usize> = [&'a mut [f32]; B];

/// Some pages of a source, and how many of their keys each row attends to.
struct Span<'a, const B: usize> {
    source: &'a Source<'a>,
    pages: &'a [Page],
    first: usize,
    /// Never falling from row to row.
    keys: [usize; B],
}

impl<const B: usize> Span<'_, B> {
    /// Asks for a page's keys, or, counting on behind the last page's, values: blocks of a few KiB, far apart, are too short
    /// for the processor to foresee.
    #[inline(always)]
    fn ask_for<S: Simd>(&self, simd: S, block: usize) {
        let Source { layout, layer, head, near, .. } = *self.source;
        let (values, page) = (block >= self.pages.len(), block % self.pages.len());
        if near || block >= 2 * self.pages.len() {
            return;
        }
        let start = layout.head_at(layer, head) + if values { layout.half() } else { 0 };
        for line in self.pages[page].bytes()[start..start + layout.half()].chunks(LINE) {
            simd.prefetch(line.as_ptr());
        }
    }
}

/// Each of `outs`, (head_dim) = Σ softmax(scores) · values of a row; not numbers, if a score is none or all are infinite. The
/// rows' positions rise by one.
///
/// # Panics
/// If they do not, or if there are not as many outcomes.
pub fn attend(isa: Isa, source: &Source<'_>, rows: &[Row<'_>], outs: &mut [&mut [f32]]) {
    assert!(rows.windows(2).all(|pair| pair[0].position + 1 == pair[1].position) && rows.len() == outs.len());
    match source.layout.dtype {
        Dtype::F32 => full(isa, source, rows, outs),
        Dtype::Bf16 => half(isa, source, rows, outs),
        Dtype::Int8 => bytes(isa, source, rows, outs),
    }
}

multiversion! { fn full(source: &Source<'_>, rows: &[Row<'_>], outs: &mut [&mut [f32]]) = full_body }
multiversion! { fn half(source: &Source<'_>, rows: &[Row<'_>], outs: &mut [&mut [f32]]) = half_body }
multiversion! { fn bytes(source: &Source<'_>, rows: &[Row<'_>], outs: &mut [&mut [f32]]) = bytes_body }

#[inline(always)]
fn full_body<S: Simd>(simd: S, source: &Source<'_>, rows: &[Row<'_>], outs: &mut [&mut [f32]]) {
    attend_all::<S, stored::Floats<f32>>(simd, source, rows, outs);
}

#[inline(always)]
fn half_body<S: Simd>(simd: S, source: &Source<'_>, rows: &[Row<'_>], outs: &mut [&mut [f32]]) {
    attend_all::<S, stored::Floats<u16>>(simd, source, rows, outs);
}

#[inline(always)]
fn bytes_body<S: Simd>(simd: S, source: &Source<'_>, rows: &[Row<'_>], outs: &mut [&mut [f32]]) {
    attend_all::<S, stored::Bytes>(simd, source, rows, outs);
}

#[inline(always)]
fn attend_all<S: Simd, N: Stored>(simd: S, source: &Source<'_>, rows: &[Row<'_>], outs: &mut [&mut [f32]]) {
    let (together, rest) = rows.as_chunks::<TOGETHER>();
    let (outs, rest_outs) = outs.as_chunks_mut::<TOGETHER>();
    for (rows, outs) in together.iter().zip(outs) {
        attend_some::<S, N, TOGETHER>(simd, source, rows, outs);
    }
    for (row, out) in rest.iter().zip(rest_outs) {
        attend_some::<S, N, 1>(simd, source, &[*row], std::array::from_mut(out));
    }
}

#[inline(always)]
fn attend_some<S: Simd, N: Stored, const B: usize>(
    simd: S,
    source: &Source<'_>,
    rows: &[Row<'_>; B],
    outs: &mut Outs<'_, B>,
) {
    let mut scores = [[0f32; SPAN]; B];
    let mut softmax = [Softmax::NEW; B];
    outs.iter_mut().for_each(|out| out.fill(0.0));
    let last = rows[B - 1].position;
    for first in (0..=last).step_by(SPAN) {
        let mut keys = [0; B];
        for (keys, row) in keys.iter_mut().zip(rows) {
            *keys = (row.position + 1).saturating_sub(first).min(SPAN);
        }
        let pages = &source.pages[first / POSITIONS..][..keys[B - 1].div_ceil(POSITIONS)];
        let span = Span { source, pages, first, keys };
        score::<S, N, B>(simd, &span, rows, &mut scores);
        for row in 0..B {
            let scores = &mut scores[row][..pages.len() * POSITIONS];
            scores[keys[row]..].fill(f32::NEG_INFINITY);
            softmax[row].take::<S>(scores, outs[row]);
        }
        N::weigh::<S, B>(simd, &span, &mut scores, outs);
    }
    for (softmax, out) in softmax.iter().zip(outs) {
        softmax.end(out);
    }
}

/// The scores of a span's keys; those of keys behind a row are unspecified.
#[inline(always)]
fn score<S: Simd, N: Stored, const B: usize>(
    simd: S,
    span: &Span<'_, B>,
    rows: &[Row<'_>; B],
    scores: &mut [[f32; SPAN]; B],
) {
    let source = span.source;
    let mut far = [[0f32; SPAN + POSITIONS]; B];
    let places = far_products::<S, N, B>(simd, span, rows, &mut far);
    let contents = rows.map(|row| row.content);
    let at = source.layout.head_at(source.layer, source.head);
    (1..N::AHEAD).for_each(|block| span.ask_for(simd, block));
    for (index, page) in span.pages.iter().enumerate() {
        span.ask_for(simd, index + N::AHEAD);
        let near = N::products::<S, B>(simd, &contents, Head::<N>::of(source.layout, page.bytes(), at).keys);
        for row in 0..B {
            let far = &far[row][index * POSITIONS + places[row]..][..POSITIONS];
            let scores = &mut scores[row][index * POSITIONS..][..POSITIONS];
            for (lane, score) in scores.iter_mut().enumerate() {
                *score = (near[row][lane] + far[lane]) * source.scale;
            }
        }
    }
}

/// The queries' products with the distances to a span's keys, by falling distance, each from its returned place on: chunks
/// of distances are aligned to the query's own position, keys to the sequence's start. Zeros, where a scheme has none.
#[inline(always)]
fn far_products<S: Simd, N: Stored, const B: usize>(
    simd: S,
    span: &Span<'_, B>,
    rows: &[Row<'_>; B],
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
