//! H-Net: golden data of the official code, conversion, and states that cannot be rewound.

mod calibration;
mod cli;
mod conversion;
mod init;
mod refusals;

use super::{
    golden::Golden,
    support::{Alone, HNET_CASES, difference, full, hnet_converted, hnet_golden, hnet_in, settings},
};
use std::sync::Arc;
use weir::{
    decode::contract::{BoundaryOptions, Model, SequenceRow},
    family::load::{Settings, load},
    kernels::{Dtype, Isa},
};

/// Largest difference between logits, relative to the largest logit of the text.
const LOGITS: f32 = 5e-5;
const PROBABILITIES: f32 = 1e-5;

fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(0.0, |largest, logit| largest.max(logit.abs()))
}

/// Feeds `ids` in steps of at most `size` symbols. Returns logits, boundaries and their probabilities.
fn fed(model: &dyn Model, ids: &[u32], size: usize) -> (Vec<f32>, Vec<bool>, Vec<f32>) {
    let mut alone = Alone::new(model, BoundaryOptions::default());
    let mut logits = Vec::new();
    let mut marks = Vec::new();
    for part in ids.chunks(size) {
        let step = alone.feed(part);
        logits.extend(step.0);
        marks.extend(step.1);
    }
    let boundaries = marks.iter().map(|mark| mark.boundary).collect();
    (logits, boundaries, marks.iter().map(|mark| mark.probability.unwrap()).collect())
}

#[test]
fn logits_and_boundaries_equal_the_official_ones() {
    for case in HNET_CASES {
        let golden = Golden::open(&hnet_golden(case));
        for isa in Isa::all() {
            let model = load(&hnet_converted(case), &Settings { isa, ..settings() }).unwrap();
            for text in ["s0", "s1", "s2"] {
                let ids = golden.ids(&format!("{text}.ids"));
                let expected = golden.get(&format!("{text}.logits"));
                for size in [ids.len(), 1, 7, 33] {
                    let (logits, boundaries, probabilities) = fed(&*model, &ids, size);
                    let error = difference(&logits, expected) / largest(expected);
                    assert!(error <= LOGITS, "{case}, {text}, {}, steps of {size}: {error}", isa.name());
                    let official = golden.get(&format!("{text}.level0.boundary"));
                    assert!(boundaries.iter().zip(official).all(|(&own, &official)| own == (official == 1.0)));
                    let error = difference(&probabilities, golden.get(&format!("{text}.level0.boundary_prob")));
                    assert!(error <= PROBABILITIES, "{case}, {text}: {error}");
                }
                let name = format!("{text}.incremental.logits");
                if golden.has(&name) {
                    let official = golden.get(&name);
                    let (logits, ..) = fed(&*model, &ids, 1);
                    let error = difference(&logits[logits.len() - official.len()..], official) / largest(official);
                    assert!(error <= LOGITS, "{case}, {text}, {name}: {error}");
                }
            }
        }
    }
}

#[test]
fn greedy_continuations_equal_the_official_ones() {
    for case in HNET_CASES {
        let golden = Golden::open(&hnet_golden(case));
        let model = hnet_in(case, Dtype::F32);
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let (mut logits, _) = alone.feed(&golden.ids("greedy.prompt_ids"));
        let mut generated = Vec::new();
        for _ in 0..60 {
            let last = &logits[logits.len() - 256..];
            let best = (0..256).fold(0, |best, id| if last[id] > last[best] { id } else { best }) as u32;
            generated.push(best);
            logits = alone.feed(&[best]).0;
        }
        assert_eq!(generated, golden.ids("greedy.ids"), "{case}");
    }
}

/// A sequence is rolled back to every length that it offers, long after it was there, and continues with the same bits.
#[test]
fn a_long_sequence_is_rewound_to_the_bit() {
    for case in ["two_stage_padded", "mixed_letters"] {
        let golden = Golden::open(&hnet_golden(case));
        let model = hnet_in(case, Dtype::F32);
        let text: Vec<u32> = golden.ids("s2.ids").into_iter().cycle().take(700).collect();
        let complete = full(&*model, &text, &BoundaryOptions::default());
        // a feed beyond 512 symbols gives up all snapshots before it
        for prefill in [1, 20, 100, 600] {
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            text[..prefill].iter().take(1).for_each(|&symbol| drop(alone.feed(&[symbol])));
            if prefill > 1 {
                alone.feed(&text[1..prefill]);
            }
            text[prefill..650].iter().for_each(|&symbol| drop(alone.feed(&[symbol])));
            let state = &alone.rows[0].state;
            let earliest = state.earliest();
            assert!((450..=618).contains(&earliest), "{case}: {earliest}");
            assert!(state.bytes() <= model.bytes_for(650), "{case}");
            for back in [earliest, earliest + 1, 633, 650] {
                let mut fork = Alone::from(&*model, SequenceRow::new(state.fork()));
                fork.rows[0].state.rollback(back).unwrap();
                let (logits, marks) = fork.feed(&text[back..]);
                assert!(difference(&logits, &complete.0[back * 256..]) == 0.0, "{case}: back to {back}");
                assert_eq!(marks, complete.1[back..], "{case}: back to {back}");
            }
            let end = state.boundary_before(650);
            assert!(end == 0 || complete.1[end - 1].boundary, "{case}: {end}");
        }
        assert_eq!(model.memory().in_use, 0, "{case}");
    }
}

#[test]
fn memory_does_not_grow_where_every_window_is_bounded() {
    let model: Arc<dyn Model> = hnet_in("mixed_letters", Dtype::F32);
    let golden = Golden::open(&hnet_golden("mixed_letters"));
    let text: Vec<u32> = golden.ids("s2.ids").into_iter().cycle().take(4000).collect();
    let mut alone = Alone::new(&*model, BoundaryOptions::default());
    let mut bytes = Vec::new();
    for part in text.chunks(40) {
        alone.feed(part);
        bytes.push(model.memory().in_use);
    }
    let early = bytes[20..60].iter().max().unwrap();
    assert!(bytes[60..].iter().all(|later| later <= early), "{bytes:?}");
    assert!(bytes.iter().all(|&bytes| bytes <= model.bytes_for(4000)));
}
