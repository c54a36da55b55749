//! Memory of attention, which each thread keeps between calls.

use super::{
    inputs::ROW_TILE,
    layout::POSITIONS,
    runs::{MAX_COLUMNS, Products, Runs, SPAN},
};
use crate::kernels::memory::Aligned;
use std::cell::RefCell;

/// Memory of one call. It has a fixed size, except for one sum for each number of a head.
pub(super) struct Work {
    /// Each row's scores of a span, then its weights: (rows, [`SPAN`]), and some unused numbers.
    pub(super) scores: Vec<Products>,
    /// Each row's products with distances: (rows, [`SPAN`] + [`POSITIONS`]).
    pub(super) distances: Vec<Products>,
    /// Each row's weights of a span as integers: (rows, [`SPAN`]).
    pub(super) weights: Vec<Aligned<[i16; SPAN]>>,
    /// The upper and the lower bytes of the weights of a run's rows: (rows, [`SPAN`]) each.
    pub(super) weight_bytes: [Vec<Aligned<[u8; SPAN]>>; 2],
    /// The unit of each row's integer weights.
    pub(super) units: [f32; ROW_TILE],
    /// Each row's sums of weighted int8 values: (rows, head_dim).
    pub(super) sums: Vec<i32>,
    /// Sums of products on tiles.
    pub(super) tile_sums: TileSums,
    /// The runs of the span.
    pub(super) runs: Runs,
}

/// Integer sums of tiles: (columns, rows, [`POSITIONS`]).
pub(super) type TileSums = Vec<Aligned<[[i32; POSITIONS]; ROW_TILE]>>;

impl Work {
    fn new() -> Self {
        Self {
            scores: vec![Aligned([0.0; MAX_COLUMNS * POSITIONS]); ROW_TILE],
            distances: vec![Aligned([0.0; MAX_COLUMNS * POSITIONS]); ROW_TILE],
            weights: vec![Aligned([0; SPAN]); ROW_TILE],
            weight_bytes: [0, 1].map(|_| vec![Aligned([0; SPAN]); ROW_TILE]),
            units: [0.0; ROW_TILE],
            sums: Vec::new(),
            tile_sums: vec![Aligned([[0; POSITIONS]; ROW_TILE]); MAX_COLUMNS],
            runs: Runs::new(),
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
