//! Real key-value memory, so small that requests wait for one another.

use super::jobs::{generate, read};
use crate::support::{Dice, converted, settings};
use weir::{
    engine::{Handle, Job, Limits},
    error::{Code, Error},
    family::load::{Settings, load},
};

/// Admission counts the maximum that sequences can hold. If it counted less, a step would run out of pages and fail all
/// its rows. Only fixed boundaries allow an exact count of segments.
#[test]
fn tight_memory_delays_or_rejects_but_fails_no_request() {
    for case in ["fixed_sf2", "fixed_sf3", "fixed_sf4"] {
        let free = load(&converted(case), &settings()).unwrap();
        let null = settings().memory_bytes - free.memory().limit;
        // The memory has room for one sequence of 150 symbols: larger ones never fit, and small ones run together.
        let limit = free.bytes_for(150);
        let tight = Settings { memory_bytes: limit + null, ..settings() };
        let model = load(&converted(case), &tight).unwrap();
        assert_eq!(model.memory().limit, limit);
        let engine = Handle::start(model.clone(), Limits { rows: 16, queue: 128, ..Limits::default() }).unwrap();
        let mut dice = Dice::new(7);
        let mut accepted = Vec::new();
        let mut rejected = 0;
        for _ in 0..60 {
            let prompt = 1 + dice.below(90);
            let max_chars = 1 + dice.below(90);
            let request = generate(&dice.text(prompt, model.card().vocabulary.len()), max_chars);
            let needed = model.bytes_for(prompt + max_chars);
            match engine.submit(Job::Generate(request), None) {
                Ok(events) => {
                    assert!(needed <= limit);
                    accepted.push((events, max_chars));
                }
                Err(error @ Error::NeverFits { .. }) => {
                    assert_eq!(error.code(), Code::InvalidArgument);
                    assert!(needed > limit);
                    rejected += 1;
                }
                Err(error) => panic!("{case}: {error}"),
            }
        }
        assert!(rejected > 0 && accepted.len() > 30, "{case}: {rejected} rejected");
        assert!(engine.load().queued > 0, "{case}: memory suffices for all at once");
        for (events, max_chars) in accepted {
            let output = read(events).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(output.usage.generated_chars, max_chars, "{case}");
        }
        assert_eq!(model.memory().in_use, 0, "{case}");
    }
}
