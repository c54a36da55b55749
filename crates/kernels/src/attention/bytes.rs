//! Products and weighted sums of int8 keys and values. Integer sums are exact, so every instruction set gives the same bits.

use crate::{
    LANES,
    attention::{
        floats::{Columns, Int8Storage, Job, PageHead, Stored, VECTOR_ROWS, largest, multiply_vectors, run_values},
        layout::{POSITIONS, QUAD},
        queries::{
            Ahead, AttentionHead, LINE, MAX_COLUMNS, Products, Query, QueryRow, ROW_TILE, Run, SPAN, Span, TileSums,
            Work,
        },
    },
    dtype::{ROUND, inverse_of},
    isa::{ActiveTiles, Isa, Simd, TILE_BYTES, TILE_ROWS, TileShape, Tiles, WIDTH, pack_bytes},
    memory::Aligned,
    rowwise::add_up,
};
use std::arch::asm;

/// Integer that the largest weight of a span is rounded to. Sums of a span cannot overflow 32 bits.
const MAX_WEIGHT: f32 = 32767.0;

/// Lines that are prefetched while a page's weights are rounded: the scales of a page, and some to catch up.
const WEIGHT_LINES: usize = 8;

const _: () = assert!(QUAD * WIDTH == LINE);

const _: () = assert!(SPAN as i64 * 32767 * 127 <= i32::MAX as i64);

impl Stored for Int8Storage {
    type Number = i8;

    #[inline(always)]
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, i8>,
        mut next: *const u8,
    ) -> [[f32; POSITIONS]; B] {
        let cells = queries[0].cells.len();
        assert!(queries.iter().all(|query| query.cells.len() == cells));
        assert!(cells * 4 * POSITIONS <= columns.numbers.len());
        // start at minus the contribution of the offset
        let mut sums = [[simd.splat_int(0); POSITIONS / WIDTH]; B];
        for (query, sums) in queries.iter().zip(&mut sums) {
            sums.fill(simd.splat_int(query.sum.wrapping_mul(S::OFFSET).wrapping_neg()));
        }
        // each addition waits for the one before it, so one row alone has two sums
        let mut odd_sums = [[simd.splat_int(0); POSITIONS / WIDTH]; B];
        let column = |cell: usize| columns.numbers.as_ptr().wrapping_add(cell * 4 * POSITIONS);
        for cell in (1..cells).step_by(2) {
            for line in 0..2 * 4 * POSITIONS / LINE {
                simd.prefetch(next.wrapping_add(line * LINE));
            }
            next = next.wrapping_add(2 * 4 * POSITIONS);
            // SAFETY: the columns and each query have `cells` cells, as checked above.
            unsafe { add_cell(simd, queries, cell - 1, column(cell - 1), &mut sums) };
            let sums = if B == 1 { &mut odd_sums } else { &mut sums };
            // SAFETY: as above.
            unsafe { add_cell(simd, queries, cell, column(cell), sums) };
        }
        if !cells.is_multiple_of(2) {
            // SAFETY: as above.
            unsafe { add_cell(simd, queries, cells - 1, column(cells - 1), &mut sums) };
        }
        if B == 1 {
            for (sums, odd_sums) in sums.iter_mut().zip(&odd_sums) {
                for (sum, &odd_sum) in sums.iter_mut().zip(odd_sums) {
                    *sum = simd.add_product(*sum, odd_sum, simd.splat_int(1));
                }
            }
        }
        let mut products = [[0f32; POSITIONS]; B];
        for ((products, sums), query) in products.iter_mut().zip(&sums).zip(queries) {
            let scale = simd.splat(query.scale);
            for (v, &sum) in sums.iter().enumerate() {
                let scale = simd.mul(scale, simd.load(&columns.scales[v * WIDTH..]));
                simd.store(simd.mul(simd.to_floats(sum), scale), &mut products[v * WIDTH..]);
            }
        }
        products
    }

    #[inline(always)]
    fn prepare_weights<S: Simd>(self, simd: S, head: &AttentionHead<'_>, span: &Span<'_>, row: usize, work: &mut Work) {
        round_weights(simd, head, span, row, work);
        let dim = head.layout.head_dim;
        // for all rows at once, so that a later step with more rows allocates nothing
        work.sums.resize(work.sums.len().max(ROW_TILE * dim), 0);
        work.sums[row * dim..][..dim].fill(0);
    }

    #[inline(always)]
    fn add_run<S: Simd>(
        self,
        simd: S,
        head: &AttentionHead<'_>,
        span: &Span<'_>,
        run: &Run,
        work: &mut Work,
        _outs: &mut [&mut [f32]],
    ) {
        let list = run.rows.list();
        let (tiles, rest) = list.rows().as_chunks::<VECTOR_ROWS>();
        for rows in tiles {
            add_rows(simd, head, span, run, rows, work);
        }
        for row in rest {
            add_rows(simd, head, span, run, &[*row], work);
        }
    }

    #[inline(always)]
    fn finish_sums(self, row: usize, work: &Work, out: &mut [f32]) {
        let sums = &work.sums[row * out.len()..];
        let unit = work.units[row];
        out.iter_mut().zip(sums).for_each(|(out, &sum)| *out += sum as f32 * unit);
    }
}

/// Adds the products of cell `cell` of each query with the cells of [`POSITIONS`] columns at `column`.
///
/// # Safety
/// Each query has this cell, and `column` points to [`POSITIONS`] cells.
#[inline(always)]
unsafe fn add_cell<S: Simd, const B: usize>(
    simd: S,
    queries: &[Query<'_>; B],
    cell: usize,
    column: *const i8,
    sums: &mut [[S::I; POSITIONS / WIDTH]; B],
) {
    for v in 0..POSITIONS / WIDTH {
        // SAFETY: the caller guarantees the length.
        let column = simd.offset(unsafe { simd.load_bytes(column.wrapping_add(v * 4 * WIDTH)) });
        for (query, sums) in queries.iter().zip(&mut *sums) {
            // SAFETY: the caller guarantees that the query has the cell.
            let query = simd.splat_int(pack_bytes(*unsafe { query.cells.get_unchecked(cell) }));
            sums[v] = simd.dot_bytes(query, column, sums[v]);
        }
    }
}

#[inline(always)]
fn add_rows<S: Simd, const B: usize>(
    simd: S,
    head: &AttentionHead<'_>,
    span: &Span<'_>,
    run: &Run,
    rows: &[usize; B],
    work: &mut Work,
) {
    let values = run_values(head, span, run);
    let Work { weights, sums, ahead, .. } = work;
    let weights = weights.each_ref();
    let part = Part {
        values: &values[..run.pages.len()],
        weights: rows.map(|row| weights.map(|bytes| &bytes[row][run.pages.start * POSITIONS..])),
        head_dim: head.layout.head_dim,
    };
    let dim = part.head_dim;
    let mut done = 0;
    if B == 1 && S::ACROSS == 2 {
        while done + 4 * WIDTH <= dim {
            part.add_columns::<S, 4>(simd, rows, sums, done, ahead);
            done += 4 * WIDTH;
        }
    }
    while done + 2 * WIDTH <= dim {
        part.add_columns::<S, 2>(simd, rows, sums, done, ahead);
        done += 2 * WIDTH;
    }
    while done + WIDTH <= dim {
        part.add_columns::<S, 1>(simd, rows, sums, done, ahead);
        done += WIDTH;
    }
    if done < dim {
        part.add_rest(rows, sums, done);
    }
}

/// Multiplies a row's weights with the scales of their values and rounds them to integers. Stores their unit.
#[inline(always)]
fn round_weights<S: Simd>(simd: S, head: &AttentionHead<'_>, span: &Span<'_>, row: usize, work: &mut Work) {
    let weights = &mut work.scores[row];
    let pages = span.pages(row);
    let keys = span.from[row]..span.to[row];
    let mut maxima = simd.splat(0.0);
    let mut nans = simd.splat(0.0);
    let mut edge_max = 0f32;
    let mut edge_nan = 0f32;
    for index in pages.clone() {
        work.ahead.fetch(simd, WEIGHT_LINES);
        let scales = PageHead::<i8>::new(head.layout, span.bytes(row, index)).values.scales;
        for first in (0..POSITIONS).step_by(WIDTH) {
            let vector = index * POSITIONS + first;
            let weights = &mut weights[vector..][..WIDTH];
            let scales = &scales[first..][..WIDTH];
            if keys.start <= vector && vector + WIDTH <= keys.end {
                let products = simd.mul(simd.load(weights), simd.load(scales));
                simd.store(products, weights);
                maxima = simd.max(products, maxima);
                // NaN or infinity become NaN
                nans = simd.add(nans, simd.mul(products, simd.splat(0.0)));
            } else {
                // outside the window, weights are zero already and scales are unspecified
                for (key, (weight, scale)) in (vector..).zip(weights.iter_mut().zip(scales)) {
                    if keys.contains(&key) {
                        *weight *= scale;
                        edge_max = if *weight > edge_max { *weight } else { edge_max };
                        edge_nan += *weight * 0.0;
                    }
                }
            }
        }
    }
    let mut lanes = [0f32; LANES];
    simd.store(maxima, &mut lanes);
    let max = largest(&lanes).max(edge_max);
    simd.store(nans, &mut lanes);
    let unit = max / MAX_WEIGHT;
    let inverse = inverse_of(unit);
    let keys = pages.start * POSITIONS..pages.end * POSITIONS;
    let [upper, lower] = work.weights.each_mut().map(|bytes| &mut bytes[row][keys.clone()]);
    for ((upper, lower), weight) in upper.iter_mut().zip(lower).zip(&weights[keys]) {
        let int = (*weight * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits());
        *upper = (int >> 8) as u8;
        *lower = int as u8;
    }
    work.units[row] = unit + add_up(lanes) + edge_nan;
}

struct Part<'a, const B: usize> {
    /// (positions/4, head_dim, 4) for each page.
    values: &'a [Columns<'a, i8>],
    /// The upper and the lower bytes of each row's weights.
    weights: [[&'a [u8]; 2]; B],
    head_dim: usize,
}

impl<const B: usize> Part<'_, B> {
    /// Adds Σ weights · values to `W` vectors of the sums, from number `done` on.
    #[inline(always)]
    fn add_columns<S: Simd, const W: usize>(
        &self,
        simd: S,
        rows: &[usize; B],
        all_sums: &mut [i32],
        done: usize,
        ahead: &mut Ahead,
    ) {
        let dim = self.head_dim;
        assert!(done + W * WIDTH <= dim);
        let mut upper_sums = [[simd.splat_int(0); W]; B];
        let mut lower_sums = upper_sums;
        for (index, page) in self.values.iter().enumerate() {
            assert!(POSITIONS * dim <= page.numbers.len());
            let mut prefetched = ahead.take(POSITIONS / QUAD * W).unwrap_or(page.numbers.as_ptr().cast());
            let mut next = page.numbers.as_ptr().wrapping_add(QUAD * done);
            let page = index * POSITIONS..(index + 1) * POSITIONS;
            let weights = self.weights.map(|bytes| bytes.map(|bytes| bytes[page.clone()].as_chunks::<QUAD>().0));
            // weights are zero after a row's last key
            for quad in 0..POSITIONS / QUAD {
                for v in 0..W {
                    // as many bytes as are read
                    simd.prefetch(prefetched);
                    prefetched = prefetched.wrapping_add(LINE);
                    // SAFETY: the vector is within the numbers of four positions, as checked above.
                    let bytes = unsafe { simd.load_bytes(next.wrapping_add(QUAD * v * WIDTH)) };
                    let sums = upper_sums.iter_mut().zip(&mut lower_sums);
                    for ([upper, lower], (upper_sums, lower_sums)) in weights.iter().zip(sums) {
                        let weights = simd.splat_weights(upper[quad], lower[quad]);
                        [upper_sums[v], lower_sums[v]] =
                            simd.dot_weights(weights, bytes, [upper_sums[v], lower_sums[v]]);
                    }
                }
                next = next.wrapping_add(QUAD * dim);
            }
        }
        for ((upper, lower), row) in upper_sums.iter().zip(&lower_sums).zip(rows) {
            let outs = all_sums[row * dim + done..].chunks_exact_mut(WIDTH);
            for ((&upper, &lower), out) in upper.iter().zip(lower).zip(outs) {
                let mut ints = [0i32; WIDTH];
                let sum = simd.add_product(lower, upper, simd.splat_int(256));
                // SAFETY: `ints` has WIDTH elements.
                unsafe { simd.store_ints(sum, ints.as_mut_ptr()) };
                out.iter_mut().zip(ints).for_each(|(out, int)| *out = out.wrapping_add(int));
            }
        }
    }

    /// Adds Σ weights · values to the sums from number `done` on, which do not fill a vector.
    #[inline(always)]
    fn add_rest(&self, rows: &[usize; B], all_sums: &mut [i32], done: usize) {
        let dim = self.head_dim;
        for ([upper, lower], row) in self.weights.iter().zip(rows) {
            let sums = &mut all_sums[row * dim..][..dim];
            let mut weights =
                upper.iter().zip(*lower).map(|(&upper, &lower)| i32::from(u16::from_be_bytes([upper, lower])));
            for page in self.values {
                for (position, weight) in weights.by_ref().take(POSITIONS).enumerate() {
                    let values = &page.numbers[position / QUAD * QUAD * dim..][QUAD * done..QUAD * dim];
                    let (quads, _) = values.as_chunks::<QUAD>();
                    for (sum, quad) in sums[done..].iter_mut().zip(quads) {
                        // never wraps, as MAX_WEIGHT ensures: this only omits the check for an overflow
                        *sum = sum.wrapping_add(weight * i32::from(quad[position % QUAD]));
                    }
                }
            }
        }
    }
}

// int8 attention of several rows on AMX tiles. A page's keys have the layout of tiles: sixteen cells of 64 bytes for every
// sixteen keys, and eight for every sixteen numbers of the values. Weights have 15 bits, which are multiplied as two bytes.

/// Minimum rows that share a run of pages. Fewer rows are multiplied with vectors.
const MIN_ROWS: usize = 4;

const CELL: usize = 4;

/// Maximum tiles along the numbers of a query.
const MAX_TILES: usize = 4;

const TILE_LANES: usize = TILE_BYTES / CELL;
const _: () = assert!(ROW_TILE == TILE_ROWS && POSITIONS == 2 * TILE_LANES);

/// int8 keys and values, which tiles multiply if enough rows share them.
#[derive(Clone, Copy)]
pub(super) struct Int8Tiles(Tiles);

impl Int8Tiles {
    /// Returns the storage if the processor has tiles, they fit the head's width, and there are enough rows.
    pub(super) fn new(isa: Isa, head: &AttentionHead<'_>, rows: &[QueryRow<'_>]) -> Option<Self> {
        let dim = head.layout.head_dim;
        let fits = if dim <= TILE_BYTES { dim.is_multiple_of(TILE_LANES) } else { dim.is_multiple_of(TILE_BYTES) };
        let tiles = isa.tiles()?;
        (rows.len() >= MIN_ROWS && fits && (1..=MAX_TILES * TILE_BYTES).contains(&dim)).then_some(Self(tiles))
    }
}

type QueryTile = Aligned<[[i8; TILE_BYTES]; TILE_ROWS]>;

impl Stored for Int8Tiles {
    type Number = i8;

    #[inline(always)]
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, i8>,
        next: *const u8,
    ) -> [[f32; POSITIONS]; B] {
        Int8Storage::products(simd, queries, columns, next)
    }

    #[inline(always)]
    fn multiply<S: Simd>(
        self,
        simd: S,
        job: &Job<'_, i8>,
        out: &mut [Products],
        sums: &mut TileSums,
        ahead: &mut Ahead,
    ) {
        let count = job.rows.len();
        if count < MIN_ROWS {
            return multiply_vectors::<S, Int8Storage>(simd, job, out, ahead);
        }
        let bytes = job.queries[0].cells.len() * CELL;
        for _ in job.columns {
            ahead.read_if(job.is_ahead);
            ahead.fetch(simd, bytes * POSITIONS / LINE);
        }
        let mut x = [Aligned([[0; TILE_BYTES]; TILE_ROWS]); MAX_TILES];
        for (row, query) in job.queries.iter().enumerate() {
            assert_eq!(query.cells.len() * CELL, bytes);
            for (tile, cells) in x.iter_mut().zip(query.cells.as_flattened().chunks(TILE_BYTES)) {
                tile.0[row][..cells.len()].copy_from_slice(cells);
            }
        }
        let mut columns = [std::ptr::null(); MAX_COLUMNS];
        for (pointer, columns) in columns.iter_mut().zip(job.columns) {
            assert!(columns.numbers.len() >= bytes * POSITIONS);
            *pointer = columns.numbers.as_ptr();
        }
        assert!((1..=MAX_TILES * TILE_BYTES).contains(&bytes));
        let width = bytes.min(TILE_BYTES);
        assert!(bytes.is_multiple_of(width) && (1..=sums.len()).contains(&job.columns.len()));
        let shape = KeyShape { rows: count, width, tiles: bytes / width };
        // SAFETY: there are `count` rows of `bytes` numbers, as many columns and sums as pointers, and columns have `bytes` rows.
        unsafe { shape.multiply(self.0, &x, &columns[..job.columns.len()], sums) };
        for (index, (columns, sums)) in job.columns.iter().zip(&*sums).enumerate() {
            for ((&row, query), ints) in job.rows.iter().zip(job.queries).zip(&**sums) {
                let products = &mut out[row][job.first[row] + index * POSITIONS..][..POSITIONS];
                let scale = simd.splat(query.scale);
                for (vector, ints) in ints.as_chunks::<WIDTH>().0.iter().enumerate() {
                    let scale = simd.mul(scale, simd.load(&columns.scales[vector * WIDTH..]));
                    // SAFETY: `ints` has WIDTH integers.
                    let ints = unsafe { simd.load_ints(ints.as_ptr()) };
                    simd.store(simd.mul(simd.to_floats(ints), scale), &mut products[vector * WIDTH..]);
                }
            }
        }
    }

    #[inline(always)]
    fn prepare_weights<S: Simd>(self, simd: S, head: &AttentionHead<'_>, span: &Span<'_>, row: usize, work: &mut Work) {
        Int8Storage.prepare_weights(simd, head, span, row, work);
    }

    #[inline(always)]
    fn add_run<S: Simd>(
        self,
        simd: S,
        head: &AttentionHead<'_>,
        span: &Span<'_>,
        run: &Run,
        work: &mut Work,
        outs: &mut [&mut [f32]],
    ) {
        let list = run.rows.list();
        let rows = list.rows();
        if rows.len() < MIN_ROWS {
            return Int8Storage.add_run(simd, head, span, run, work, outs);
        }
        let dim = head.layout.head_dim;
        let values = run_values(head, span, run);
        let values = &values[..run.pages.len()];
        values.iter().for_each(|_| work.ahead.fetch(simd, dim * POSITIONS / LINE));
        let mut pointers = [std::ptr::null(); MAX_COLUMNS];
        for (pointer, columns) in pointers.iter_mut().zip(values) {
            assert!(columns.numbers.len() >= POSITIONS * dim);
            *pointer = columns.numbers.as_ptr();
        }
        assert!(!values.is_empty());
        let keys = run.pages.start * POSITIONS..run.pages.end * POSITIONS;
        let Work { weights, run_weights, sums, .. } = work;
        for (from, to) in weights.iter().zip(&mut *run_weights) {
            for (to, &row) in to.iter_mut().zip(rows) {
                to[..keys.len()].copy_from_slice(&from[row][keys.clone()]);
            }
        }
        let [high, low] = &*run_weights;
        let shape = ValueShape { rows: rows.len(), head_dim: dim };
        for number in (0..dim).step_by(2 * TILE_LANES) {
            let mut parts = Aligned([[[0; TILE_LANES]; TILE_ROWS]; 4]);
            // SAFETY: each page has `head_dim` values of each position, and there are as many weights as positions.
            unsafe { shape.multiply(self.0, high, low, &pointers[..values.len()], number, &mut parts) };
            for (index, &row) in rows.iter().enumerate() {
                let sums = &mut sums[row * dim + number..(row + 1) * dim];
                for (pair, sums) in parts.0.chunks_exact(2).zip(sums.chunks_exact_mut(TILE_LANES)) {
                    for ((sum, high), low) in sums.iter_mut().zip(pair[0][index]).zip(pair[1][index]) {
                        *sum = sum.wrapping_add(high.wrapping_mul(256).wrapping_add(low));
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn finish_sums(self, row: usize, work: &Work, out: &mut [f32]) {
        Int8Storage.finish_sums(row, work, out);
    }
}

struct KeyShape {
    rows: usize,
    width: usize,
    /// Tiles along the numbers of a query.
    tiles: usize,
}

impl KeyShape {
    /// Sets `sums` to the products of all rows with each of `columns`.
    ///
    /// # Safety
    /// `x` has `rows` rows in each of `tiles` tiles. Each of `columns` points to [`POSITIONS`] columns of `width` · `tiles` numbers.
    /// `tiles` is from 1 to [`MAX_TILES`]. There is at least one column, and there are as many sums as columns.
    unsafe fn multiply(&self, tiles: Tiles, x: &[QueryTile; MAX_TILES], columns: &[*const i8], sums: &mut TileSums) {
        let [rows, steps] = [self.rows, self.width / CELL].map(|rows| rows as u8);
        let sum = TileShape::full(rows);
        let cells = TileShape::full(steps);
        let unused = TileShape::full(0);
        let queries = TileShape { rows, bytes: self.width as u16 };
        let _active = ActiveTiles::new(tiles, [sum, sum, queries, cells, cells, unused, unused, unused]);
        // SAFETY: the caller guarantees the lengths. The tiles have their shapes.
        unsafe {
            asm!(
                "2:",
                "mov {keys}, [{columns}]",
                "mov {x}, {first_x}",
                "mov {tile:e}, {tiles:e}",
                "tilezero tmm0",
                "tilezero tmm1",
                "3:",
                "tileloadd tmm2, [{x} + {line}]",
                "tileloadd tmm3, [{keys} + {stride}]",
                "tdpbssd tmm0, tmm2, tmm3",
                "tileloadd tmm4, [{keys} + {stride} + 64]",
                "tdpbssd tmm1, tmm2, tmm4",
                "add {x}, {tile_bytes}",
                "add {keys}, {key_bytes}",
                "dec {tile:e}",
                "jnz 3b",
                "tilestored [{sums} + {stride}], tmm0",
                "tilestored [{sums} + {stride} + 64], tmm1",
                "add {columns}, 8",
                "add {sums}, {sum_bytes}",
                "dec {count}",
                "jnz 2b",
                keys = out(reg) _,
                columns = inout(reg) columns.as_ptr() => _,
                count = inout(reg) columns.len() => _,
                x = out(reg) _,
                first_x = in(reg) x.as_ptr(),
                tile = out(reg) _,
                tiles = in(reg) self.tiles as u32,
                line = in(reg) TILE_BYTES,
                stride = in(reg) CELL * POSITIONS,
                sums = inout(reg) sums.as_mut_ptr() => _,
                tile_bytes = const size_of::<QueryTile>(),
                key_bytes = const TILE_ROWS * CELL * POSITIONS,
                sum_bytes = const ROW_TILE * POSITIONS * size_of::<i32>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                options(nostack),
            );
        }
    }
}

type PartialSums = Aligned<[[[i32; TILE_LANES]; TILE_ROWS]; 4]>;

struct ValueShape {
    rows: usize,
    head_dim: usize,
}

impl ValueShape {
    /// Sets `sums` to the products of the weights' bytes with the values of the numbers from `number` on.
    ///
    /// # Safety
    /// Each of `pages` points to [`POSITIONS`] values of `head_dim` numbers, and `number` + [`TILE_LANES`] is at most `head_dim`. There are
    /// `rows` rows of weights, with [`POSITIONS`] of them for each page, and at least one page.
    unsafe fn multiply(
        &self,
        tiles: Tiles,
        high: &[Aligned<[u8; SPAN]>],
        low: &[Aligned<[u8; SPAN]>],
        pages: &[*const i8],
        number: usize,
        sums: &mut PartialSums,
    ) {
        let rows = self.rows as u8;
        let sum = TileShape::full(rows);
        let weights = TileShape { rows, bytes: POSITIONS as u16 };
        let cells = TileShape::full((POSITIONS / CELL) as u8);
        let _active = ActiveTiles::new(tiles, [sum, sum, sum, sum, weights, weights, cells, cells]);
        /// `$right` precedes instructions for the second sixteen numbers. It is empty, or `#`, which turns them into comments.
        macro_rules! assembly {
            ($right:literal) => {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    concat!($right, "tilezero tmm2"),
                    concat!($right, "tilezero tmm3"),
                    "2:",
                    "mov {values}, [{pages}]",
                    "add {values}, {offset}",
                    "tileloadd tmm4, [{high} + {weight_stride}]",
                    "tileloadd tmm6, [{values} + {stride}]",
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{low} + {weight_stride}]",
                    "tdpbusd tmm1, tmm5, tmm6",
                    concat!($right, "tileloadd tmm7, [{values} + {stride} + 64]"),
                    concat!($right, "tdpbssd tmm2, tmm4, tmm7"),
                    concat!($right, "tdpbusd tmm3, tmm5, tmm7"),
                    "add {pages}, 8",
                    "add {high}, {positions}",
                    "add {low}, {positions}",
                    "dec {count}",
                    "jnz 2b",
                    "tilestored [{sums} + {line}], tmm0",
                    "tilestored [{sums} + {line} + 1024], tmm1",
                    concat!($right, "tilestored [{sums} + {line} + 2048], tmm2"),
                    concat!($right, "tilestored [{sums} + {line} + 3072], tmm3"),
                    values = out(reg) _,
                    pages = inout(reg) pages.as_ptr() => _,
                    count = inout(reg) pages.len() => _,
                    offset = in(reg) number * CELL,
                    high = inout(reg) high.as_ptr() => _,
                    low = inout(reg) low.as_ptr() => _,
                    weight_stride = in(reg) SPAN,
                    stride = in(reg) CELL * self.head_dim,
                    line = in(reg) TILE_BYTES,
                    sums = in(reg) sums.0.as_mut_ptr(),
                    positions = const POSITIONS,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                )
            };
        }
        if number + 2 * TILE_LANES <= self.head_dim {
            // SAFETY: the caller guarantees the lengths. The tiles have their shapes.
            unsafe { assembly!("") }
        } else {
            // SAFETY: as above.
            unsafe { assembly!("#") }
        }
    }
}
