//! Real key-value memory, so tight that requests wait for one another.

use super::jobs::{generate, read};
use crate::support::{Dice, converted, settings};
use weir::{
    engine::{Handle, Job, Limits},
    error::{Code, Error},
    family::load::{Settings, load},
};

/// What admission counts with is what sequences come to hold at most: were it less, a step would run out of pages and fail
/// everybody in it. Fixed boundaries are the ones whose segments are counted exactly.
#[test]
fn tight_memory_delays_and_refuses_but_fails_nobody() {
    for case in ["fixed_sf2", "fixed_sf3", "fixed_sf4"] {
        let free = load(&converted(case), &settings()).unwrap();
        let null = settings().memory_bytes - free.memory().limit;
        // room for one sequence of 150 symbols: larger ones never fit, small ones run together
        let limit = free.bytes_for(150);
        let tight = Settings { memory_bytes: limit + null, ..settings() };
        let model = load(&converted(case), &tight).unwrap();
        assert_eq!(model.memory().limit, limit);
        let engine = Handle::start(model.clone(), Limits { rows: 16, queue: 64, ..Limits::default() }).unwrap();
        let mut dice = Dice::new(7);
        let (mut taken, mut refused) = (Vec::new(), 0);
        for _ in 0..60 {
            let (prompt, max_chars) = (1 + dice.below(90), 1 + dice.below(90));
            let request = generate(&dice.text(prompt, model.card().vocabulary.len()), max_chars);
            let needed = model.bytes_for(prompt + max_chars);
            match engine.submit(Job::Generate(request), None) {
                Ok(events) => {
                    assert!(needed <= limit);
                    taken.push((events, max_chars));
                }
                Err(error @ Error::NeverFits { .. }) => {
                    assert_eq!(error.code(), Code::InvalidArgument);
                    assert!(needed > limit);
                    refused += 1;
                }
                Err(error) => panic!("{case}: {error}"),
            }
        }
        assert!(refused > 0 && taken.len() > 30, "{case}: {refused} refused");
        assert!(engine.load().queued > 0, "{case}: memory is to be too tight for all at once");
        for (events, max_chars) in taken {
            let said = read(events).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(said.usage.generated_chars, max_chars, "{case}");
        }
        assert_eq!(model.memory().in_use, 0, "{case}");
    }
}
