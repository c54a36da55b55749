//! Forks of a row's state, and rollbacks.

use super::{SYMBOLS, on_each};
use crate::support::{Alone, difference, full};
use weir::{
    decode::contract::{SequenceRow, StepStatus, Want},
    nn::window::ROLLBACK,
};

#[test]
fn a_fork_excludes_symbols_in_flight() {
    on_each(|configuration, dice| {
        let model = &*configuration.model;
        let text = configuration.text(dice);
        let complete = full(model, &text, &configuration.boundaries).0;
        let symbols = model.card().vocabulary.len();
        for _ in 0..4 {
            let cut = dice.below(100);
            let more = 1 + dice.below(40);
            let mut main = configuration.alone();
            if cut > 0 {
                main.feed(&text[..cut]);
            }
            main.rows[0].set(&text[cut..cut + more], Want::All);
            model.symbol_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            let mut steps = 0;
            // The rollback happens once before the segment step and once before the finish step.
            while main.rows[0].status != StepStatus::Ready {
                assert!(main.rows[0].state.rollback(cut).is_err(), "{}: rolled back in flight", configuration.name);
                let mut fork = Alone::from(model, SequenceRow::new(main.rows[0].state.fork()));
                assert_eq!(
                    fork.rows[0].state.len(),
                    cut,
                    "{}: the fork includes symbols in flight",
                    configuration.name
                );
                let actual: Vec<f32> = text[cut..].iter().flat_map(|&symbol| fork.feed(&[symbol]).0).collect();
                assert!(
                    difference(&actual, &complete[cut * symbols..]) <= configuration.tolerance(),
                    "{}: fork",
                    configuration.name
                );
                if steps == 0 {
                    model.segment_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
                } else {
                    model.finish_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
                }
                steps += 1;
            }
            let actual = &main.rows[0].logits;
            assert!(
                difference(actual, &complete[cut * symbols..(cut + more) * symbols]) <= configuration.tolerance(),
                "{}",
                configuration.name
            );
        }
    });
}

#[test]
fn forks_and_rollbacks_equal_a_fresh_run() {
    on_each(|configuration, dice| {
        let text = configuration.text(dice);
        let model = &*configuration.model;
        let mut main = configuration.alone();
        let mut history: Vec<u32> = Vec::new();
        let mut furthest = 0;
        for _ in 0..12 {
            // Rolls back to any available position, then feeds other text in one chunk or symbol by symbol.
            let len = history.len();
            let earliest = main.rows[0].state.earliest();
            furthest = furthest.max(len);
            assert!(earliest == 0 || earliest + ROLLBACK <= furthest, "{}: {earliest} of {len}", configuration.name);
            let back = match dice.below(len + 1) {
                back if back >= earliest => back,
                // A rollback to the start is always possible.
                0 => 0,
                dropped => {
                    let is_rejected = main.rows[0].state.rollback(dropped).is_err();
                    assert!(is_rejected, "{}: back to {dropped}, before {earliest}", configuration.name);
                    earliest
                }
            };
            furthest = if back == 0 { 0 } else { furthest };
            main.rows[0].state.rollback(back).unwrap();
            history.truncate(back);
            assert_eq!(main.rows[0].state.len(), back);
            let more = &text[dice.below(40)..][..1 + dice.below(50)];
            let mut fork = Alone::from(model, SequenceRow::new(main.rows[0].state.fork()));
            let actual = if dice.below(2) == 0 {
                main.feed(more)
            } else {
                let steps: Vec<_> = more.iter().map(|&symbol| main.feed(&[symbol])).collect();
                let (logits, marks): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
                (logits.concat(), marks.concat())
            };
            // The fork is fed other symbols first, which must not change the main row.
            fork.feed(&text[60..60 + dice.below(30) + 1]);
            fork.rows[0].state.rollback(back).unwrap();
            let fork_logits: Vec<f32> = more.iter().flat_map(|&symbol| fork.feed(&[symbol]).0).collect();
            history.extend_from_slice(more);
            let fresh = full(model, &history, &configuration.boundaries);
            let tail = fresh.0.len() - actual.0.len();
            assert!(difference(&actual.0, &fresh.0[tail..]) <= configuration.tolerance(), "{}", configuration.name);
            assert!(
                difference(&fork_logits, &fresh.0[tail..]) <= configuration.tolerance(),
                "{}: fork",
                configuration.name
            );
            assert_eq!(actual.1, fresh.1[back..], "{}", configuration.name);
            let closed = fresh.1.iter().filter(|mark| mark.boundary).count();
            assert_eq!(main.rows[0].state.segments(), if model.card().pooled { closed } else { 0 });
        }
    });
}

#[test]
fn a_fork_with_an_open_segment_continues() {
    on_each(|configuration, dice| {
        let text = configuration.text(dice);
        let model = &*configuration.model;
        let (_, marks) = full(model, &text, &configuration.boundaries);
        // The position is in an open segment: the symbol before it closed no segment.
        let Some(cut) = (20..SYMBOLS - 20).find(|&t| !marks[t - 1].boundary) else { return };
        let mut first = configuration.alone();
        first.feed(&text[..cut]);
        let kept = first.rows[0].state.fork();
        first.feed(&text[..30]);
        drop(first);
        let mut again = Alone::from(model, SequenceRow::new(kept));
        let actual = again.feed(&text[cut..]);
        let fresh = full(model, &text, &configuration.boundaries);
        let tail = fresh.0.len() - actual.0.len();
        assert!(difference(&actual.0, &fresh.0[tail..]) <= configuration.tolerance(), "{}", configuration.name);
    });
}
