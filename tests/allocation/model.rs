//! The model's own steps, from the start and after a fork.

use super::allocations;
use weir::decode::contract::{BoundaryOptions, Model, Scratch, SequenceRow, Want, advance};

/// Symbols of a sequence: pages are taken on the way, segments close.
const SYMBOLS: usize = 700;
/// Where sequences are forked: in the middle of a page.
const FORK: usize = 333;
const ROWS: usize = 3;
const ALL: [usize; ROWS] = [0, 1, 2];

/// A first generation of sequences makes buffers, tables and pages; the second finds all of them.
pub(super) fn check(model: &dyn Model) {
    let mut scratch = model.scratch();
    generation(model, &mut scratch);
    let [fresh, forked] = generation(model, &mut scratch);
    let card = model.card();
    assert_eq!((fresh, forked), (0, 0), "{}, {}: from the start, after a fork", card.shape, card.dtype);
}

/// Sequences from the start to a fork, and their forks to the end: what the steps of each allocated.
fn generation(model: &dyn Model, scratch: &mut Scratch) -> [usize; 2] {
    let mut rows: Vec<_> =
        ALL.iter().map(|_| SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap())).collect();
    // the first step of a row makes its own buffers
    steps(model, &mut rows, 0..1, scratch);
    let fresh = steps(model, &mut rows, 1..FORK, scratch);
    let mut forks: Vec<_> = rows.iter().map(|row| SequenceRow::new(row.state.fork())).collect();
    // the first step after a fork makes buffers too, and copies the pages that it shares and writes to; the first segment
    // that closes does the same in the middle stack
    steps(model, &mut forks, FORK..FORK + 20, scratch);
    let forked = steps(model, &mut forks, FORK + 20..SYMBOLS, scratch);
    [fresh, forked]
}

/// Feeds symbols, one a step and row, each row a text of its own, with a space every few letters: the allocations meanwhile.
fn steps(model: &dyn Model, rows: &mut [SequenceRow], range: std::ops::Range<usize>, scratch: &mut Scratch) -> usize {
    let symbols = model.card().vocabulary.len();
    let before = allocations();
    for step in range {
        for (index, row) in rows.iter_mut().enumerate() {
            let letter = (step * 7 + index * 3) % symbols;
            row.set(&[if (step + index).is_multiple_of(5) { 0 } else { letter as u32 }], Want::Last);
        }
        advance(model, rows, &ALL, scratch).unwrap();
    }
    allocations() - before
}
