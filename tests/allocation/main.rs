//! A steady decode step allocates nothing. A binary of its own, because the allocator that counts is the process's.

#![allow(unsafe_code, clippy::unwrap_used, reason = "an allocator is unsafe by nature; tests may unwrap")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use weir::{
    decode::contract::{BoundaryOptions, Model, Row, Want, advance},
    family::load::{Settings, load},
    kernels::Dtype,
};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's own doing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Symbols of a sequence: pages are taken on the way, segments close.
const SYMBOLS: usize = 700;
const ROWS: usize = 3;

fn begin(model: &dyn Model) -> Vec<Row> {
    (0..ROWS).map(|_| Row::new(model.begin(BoundaryOptions::default()).unwrap())).collect()
}

/// Feeds symbols from `from` on, one a step and row, each row a text of its own, with a space every few letters.
fn steps(model: &dyn Model, rows: &mut [Row], from: usize, scratch: &mut weir::decode::contract::Scratch) {
    let symbols = model.card().vocabulary.len();
    let which = [0, 1, 2];
    let before = ALLOCATIONS.load(Relaxed);
    for step in from..SYMBOLS {
        for (index, row) in rows.iter_mut().enumerate() {
            let letter = (step * 7 + index * 3) % symbols;
            row.set(&[if (step + index).is_multiple_of(5) { 0 } else { letter as u32 }], Want::Last);
        }
        advance(model, rows, &which, scratch).unwrap();
    }
    if from > 0 {
        assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0, "{}", model.card().shape);
    }
}

/// A first generation of sequences makes buffers, tables and pages; the second finds all of them.
#[test]
fn a_steady_decode_step_allocates_nothing() {
    let english = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-whitespace-english");
    for dtype in Dtype::ALL {
        for threads in [1, 2] {
            let settings = Settings { threads, dtype, memory_bytes: 1 << 30, ..Settings::default() };
            let model: Arc<dyn Model> = load(&english, &settings).unwrap();
            let mut scratch = model.scratch();
            let mut rows = begin(&*model);
            steps(&*model, &mut rows, 0, &mut scratch);
            drop(rows);
            let mut rows = begin(&*model);
            for (index, row) in rows.iter_mut().enumerate() {
                // the first step of a row makes its own buffers
                row.set(&[index as u32], Want::Last);
            }
            advance(&*model, &mut rows, &[0, 1, 2], &mut scratch).unwrap();
            steps(&*model, &mut rows, 1, &mut scratch);
        }
    }
}
