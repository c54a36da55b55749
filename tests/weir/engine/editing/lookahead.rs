//! Requests that look ahead compute the same distributions as requests for each text alone.

use super::{engine, words};
use crate::{
    lex,
    support::{Dice, fixture_in, hnet_in, lslm_in},
};
use std::{slice, sync::Arc};
use weir::{
    decode::{
        contract::{BoundaryOptions, Model, SequenceRow, advance},
        next_symbol::{Distribution, Lookahead, NextDistributions, NextSymbol},
        session::{Session, SessionProgress},
    },
    engine::{Event, Handle, Job},
    kernels::Dtype,
};

fn models() -> [Arc<dyn Model>; 6] {
    [
        fixture_in("whitespaces", Dtype::Int8),
        fixture_in("gumbel", Dtype::F32),
        lslm_in("dp", Dtype::F32),
        hnet_in("two_stage", Dtype::F32),
        lex::model("xpos_sliding", Dtype::F32),
        lex::model("alibi_bca", Dtype::F32),
    ]
}

/// Returns a request that looks ahead by `ahead` symbols of texts.
fn next(model: &dyn Model, symbols: &[u32], ahead: usize) -> NextSymbol {
    let vocabulary = &model.card().vocabulary;
    let mut allowed = vec![false; vocabulary.len()];
    vocabulary.text_ids().for_each(|id| allowed[id as usize] = true);
    let min_logprob = f64::NEG_INFINITY;
    let lookahead = Lookahead { max_symbols: ahead, allowed: allowed.into(), min_logprob, stops_at_boundary: false };
    NextSymbol { symbols: symbols.to_vec().into(), boundaries: BoundaryOptions::default(), lookahead }
}

/// Runs a request. Returns its distributions, and the symbols that it found in the cache.
fn run(engine: &Handle, request: NextSymbol) -> (NextDistributions, usize) {
    let mut events = engine.submit(Job::Next(request), None).unwrap();
    let mut found = None;
    let mut cached = 0;
    while let Some(event) = events.blocking_recv() {
        match event.unwrap() {
            Event::Started { cached_chars } => cached = cached_chars,
            Event::Next(distributions) => found = Some(distributions),
            _ => {}
        }
    }
    (found.unwrap(), cached)
}

/// Returns the distribution after a text, computed by an engine of its own.
fn cold(model: &Arc<dyn Model>, symbols: &[u32]) -> Distribution {
    let (found, cached) = run(&engine(model), next(&**model, symbols, 0));
    assert_eq!((found.symbols.len(), found.distributions.len(), cached), (0, 1, 0));
    found.distributions.into_iter().next().unwrap()
}

#[test]
fn distributions_are_those_of_requests_for_each_text() {
    for (number, model) in models().into_iter().enumerate() {
        let name = model.card().name.clone();
        let mut most = 0;
        let mut dice = Dice::new(number as u64 + 1);
        let alphabet = super::alphabet(&*model);
        let warm = engine(&model);
        for length in [1, 9, 30] {
            let text = words(&mut dice, &alphabet, length);
            let text = model.card().encode("text", &text).unwrap();
            let other = model.card().encode("text", &words(&mut dice, &alphabet, 1)).unwrap();
            let (found, _) = run(&warm, next(&*model, &text, 4));
            assert_eq!(found.distributions.len(), found.symbols.len() + 1, "{name}");
            most = most.max(found.symbols.len());
            for (ahead, distribution) in found.distributions.iter().enumerate() {
                let text = [&text[..], &found.symbols[..ahead]].concat();
                assert_eq!(*distribution, cold(&model, &text), "{name}: {ahead} symbols after {length}");
                if let Some(&appended) = found.symbols.get(ahead) {
                    let best = distribution.logits.iter().fold(f32::NEG_INFINITY, |best, logit| best.max(*logit));
                    assert_eq!(distribution.logits[appended as usize], best, "{name}");
                }
                // another continuation begins from the state on the way
                let other = [&text[..], &other].concat();
                let (after, cached) = run(&warm, next(&*model, &other, 0));
                assert_eq!(after.distributions, [cold(&model, &other)], "{name}: after {ahead} symbols");
                assert_eq!(cached, text.len(), "{name}: after {ahead} symbols");
            }
        }
        assert_eq!(most, 4, "{name}");
        drop(warm);
        assert_eq!(model.memory().in_use, 0, "{name}");
    }
}

#[test]
fn a_request_that_loses_its_row_has_the_same_distributions() {
    let mut most = 0;
    for model in models() {
        let name = model.card().name.clone();
        let alphabet = super::alphabet(&*model);
        let text = words(&mut Dice::new(3), &alphabet, 10);
        let text = model.card().encode("text", &text).unwrap();
        let run = |loss: Option<usize>| {
            let mut session = Session::next_symbol(next(&*model, &text, 4), model.card()).unwrap();
            let begin = |session: &Session| {
                let mut state = model.begin(session.boundaries().clone()).unwrap();
                session.resume(&mut *state).unwrap();
                SequenceRow::new(state)
            };
            let mut row = begin(&session);
            let mut scratch = model.scratch();
            for steps in 1.. {
                session.feed(&mut row, 4);
                advance(&*model, slice::from_mut(&mut row), &[0], &mut scratch).unwrap();
                if matches!(session.absorb(&mut row).unwrap(), SessionProgress::Finished(_)) {
                    let prompt = session.usage().prompt_chars;
                    return (session.take_distributions().unwrap(), prompt, steps);
                }
                if loss == Some(steps) {
                    session.rewind();
                    row = begin(&session);
                }
            }
            unreachable!("a session ends")
        };
        let (expected, prompt, steps) = run(None);
        let ahead = expected.symbols.len();
        assert_eq!((expected.distributions.len(), prompt), (ahead + 1, text.len()), "{name}");
        assert_eq!(steps, text.len().div_ceil(4) + ahead, "{name}");
        most = most.max(ahead);
        for loss in 1..steps {
            let (found, prompt, _) = run(Some(loss));
            assert_eq!((&found, prompt), (&expected, text.len()), "{name}: lost after {loss} steps");
        }
    }
    assert_eq!(most, 4);
}
