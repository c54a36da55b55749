//! Checks that steps of the model do not allocate, from the start and after a fork.

use super::{ATTEMPTS, allocations};
use weir::decode::contract::{BoundaryOptions, Model, Scratch, SequenceRow, Want, advance};

/// Symbols of a sequence, enough to allocate pages and close segments.
const SYMBOLS: usize = 700;
/// Position at which sequences are forked: in the middle of a page.
const FORK: usize = 333;
const ROWS: usize = 3;
const ALL: [usize; ROWS] = [0, 1, 2];

/// The first generation of sequences allocates buffers, tables and pages. A later one must reuse them.
pub(super) fn check(model: &dyn Model) {
    let mut scratch = model.scratch();
    generation(model, &mut scratch);
    let mut allocations = [0; 2];
    let no_allocations = (0..ATTEMPTS).any(|_| {
        allocations = generation(model, &mut scratch);
        allocations == [0; 2]
    });
    let card = model.card();
    assert!(no_allocations, "{}, {}: {allocations:?} from the start and after a fork", card.shape, card.dtype);
}

/// Runs sequences from the start to a fork, and their forks to the end. Returns the allocations of both.
fn generation(model: &dyn Model, scratch: &mut Scratch) -> [usize; 2] {
    let mut rows: Vec<_> =
        ALL.iter().map(|_| SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap())).collect();
    // the first step of a row allocates its buffers
    steps(model, &mut rows, 0..1, scratch);
    let fresh = steps(model, &mut rows, 1..FORK, scratch);
    let mut forks: Vec<_> = rows.iter().map(|row| SequenceRow::new(row.state.fork())).collect();
    // the first step after a fork also allocates buffers and copies shared pages; the first closed segment does the same in
    // the middle stack
    steps(model, &mut forks, FORK..FORK + 20, scratch);
    let forked = steps(model, &mut forks, FORK + 20..SYMBOLS, scratch);
    [fresh, forked]
}

/// Feeds each row one symbol per step, from a different text with a space every few letters. Returns the allocations.
fn steps(model: &dyn Model, rows: &mut [SequenceRow], range: std::ops::Range<usize>, scratch: &mut Scratch) -> usize {
    let symbols = model.card().vocabulary.len();
    let space = model.card().encode("the text", " ").unwrap()[0];
    let before = allocations();
    for step in range {
        for (index, row) in rows.iter_mut().enumerate() {
            let letter = (step * 7 + index * 3) % symbols;
            row.set(&[if (step + index).is_multiple_of(5) { space } else { letter as u32 }], Want::Last);
        }
        advance(model, rows, &ALL, scratch).unwrap();
    }
    allocations() - before
}
