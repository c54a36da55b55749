//! Sequences of tokens: memory that is taken and given back, and rows that are lost.

use super::*;
use crate::support::Dice;
use weir::decode::{
    contract::{BoundaryOptions, SequenceRow, Want, advance},
    options::{Details, EmittedSymbol, Generate, Sampling, Stopping},
    session::{Session, SessionProgress},
};

/// A step takes no more memory than announced, whatever forks share, and everything is given back.
#[test]
fn growth_bounds_the_memory_that_a_step_takes() {
    for model_type in MODEL_TYPES {
        let model = model(model_type);
        let mut dice = Dice::new(7);
        let mut scratch = model.scratch();
        let mut rows = vec![SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap())];
        for _ in 0..40 {
            let index = dice.below(rows.len());
            let len = rows[index].state.len();
            match dice.below(4) {
                0 if rows.len() < 6 => {
                    let fork = rows[index].state.fork();
                    rows.push(SequenceRow::new(fork));
                }
                1 => {
                    let earliest = rows[index].state.earliest();
                    let back = earliest + dice.below(len + 1 - earliest);
                    rows[index].state.rollback(back).unwrap();
                }
                _ => {
                    let count = 1 + dice.below(90);
                    if len + count > model.card().max_symbols.min(256) {
                        rows[index].state.restart(0);
                        continue;
                    }
                    let text = dice.text(count, 384);
                    let before = model.memory().in_use;
                    let announced = model.growth(&*rows[index].state, count);
                    rows[index].set(&text, [Want::Nothing, Want::Last, Want::All][dice.below(3)]);
                    advance(&*model, &mut rows, &[index], &mut scratch).unwrap();
                    let taken = model.memory().in_use.saturating_sub(before);
                    assert!(taken <= announced, "{model_type}: {taken} bytes, announced {announced}");
                    let state = &rows[index].state;
                    assert!(state.bytes() <= model.bytes_for(state.len()), "{model_type}");
                }
            }
        }
        drop(rows);
        assert_eq!(model.memory().in_use, 0, "{model_type}");
    }
}

/// Runs a request whose row is lost after each of `losses` steps.
fn generate(model: &dyn Model, prompt: &[u32], chunk: usize, losses: &[usize]) -> Vec<EmittedSymbol> {
    let stopping = Stopping {
        max_chars: 40,
        min_chars: 0,
        max_segments: None,
        stop: Vec::new(),
        include_stop: false,
        ignore_end: true,
    };
    let request = Generate {
        prompt: prompt.to_vec(),
        sampling: Sampling { seed: 5, ..Sampling::default() },
        stopping,
        details: Details { logprobs: true, top_logprobs: 2, ..Details::default() },
        boundaries: BoundaryOptions::default(),
        resumed: Vec::new(),
        speculation: None,
    };
    let mut session = Session::generate(request, model.card()).unwrap();
    let mut row = SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap());
    let mut scratch = model.scratch();
    let mut output = Vec::new();
    for step in 0.. {
        if losses.contains(&step) {
            session.rewind();
            row = SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap());
        }
        session.feed(&mut row, chunk);
        advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch).unwrap();
        let progress = session.absorb(&mut row).unwrap();
        output.extend(session.take_output());
        if let SessionProgress::Finished(_) = progress {
            return output;
        }
    }
    unreachable!("a generation ends");
}

/// The bits of all probabilities are equal, although candle's products depend on how many rows they have.
#[test]
fn a_lost_row_and_other_chunks_change_no_bit() {
    for model_type in MODEL_TYPES {
        let model = model(model_type);
        let prompt = Dice::new(3).text(150, 384);
        let expected = generate(&*model, &prompt, 512, &[]);
        assert_eq!(expected.len(), 40);
        for chunk in [1, 17, 64, 100] {
            let prefill = prompt.len().div_ceil(chunk);
            let losses = [1, prefill + 5, prefill * 3 + 40];
            assert_eq!(generate(&*model, &prompt, chunk, &[]), expected, "{model_type}, chunks of {chunk}");
            assert_eq!(
                generate(&*model, &prompt, chunk, &losses),
                expected,
                "{model_type}, chunks of {chunk}, lost rows"
            );
        }
    }
}
