//! All golden tensors of the fixtures, except those of generation.

use super::{super::support::*, *};
use std::sync::Mutex;
use weir::{
    decode::{
        contract::{BoundaryOptions, state_ref},
        trace,
    },
    family::{
        load::{Settings, load},
        lslm::{LslmStage, LslmState, Work},
        parts::work_mut,
    },
    kernels::Isa,
    kernels::distribution::log_probability,
};

/// Compares all steps of a text with the golden ones.
fn compare(case: &Case, steps: &[Step<'_>], name: &str, targets: &[f32]) {
    let context = |index: usize| format!("{}: {name}, step {index}", case.name);
    for (index, step) in steps.iter().enumerate() {
        match step {
            Step::Logits(logits) => {
                let max_error = difference(logits, case.golden.row(name, index));
                assert!(max_error <= LOGITS, "{}: {max_error}", context(index));
            }
            Step::Ends(logprob) => {
                let error = (logprob - targets[index]).abs();
                assert!(error <= LOGITS, "{}: {error}", context(index));
            }
        }
    }
}

/// Returns ln p of the symbol that ends segments, computed from golden logits.
fn nxt_logprobs(case: &Case, name: &str, count: usize) -> Vec<f32> {
    let nxt = case.specials().segment_end;
    (0..count).map(|index| log_probability(case.golden.row(name, index), nxt).unwrap() as f32).collect()
}

/// Returns the boundaries as numbers, including the one of the start symbol.
fn cuts(marks: &[SymbolBoundary]) -> Vec<f32> {
    std::iter::once(1.0).chain(marks.iter().map(|mark| f32::from(u8::from(mark.boundary)))).collect()
}

/// Returns a golden text without its special symbols.
fn text(case: &Case, name: &str) -> Vec<u32> {
    let ids = case.golden.ids(name);
    let specials = case.specials();
    assert_eq!(ids[0], specials.start);
    ids.into_iter().skip(1).filter(|&id| id != specials.end).collect()
}

#[test]
fn logits_boundaries_and_end_logprobs() {
    for case in Case::all() {
        let text = text(&case, "ids");
        let (logits, marks) = full(&*case.model, &text, &BoundaryOptions::default());
        assert_eq!(cuts(&marks), case.golden.get("z"), "{}", case.name);
        let steps = case.steps(&logits, &marks);
        let targets = case.golden.ids("dec.target_ids");
        assert_eq!(steps.len(), targets.len(), "{}", case.name);
        let nxt = case.specials().segment_end;
        for (step, target) in steps.iter().zip(targets) {
            assert_eq!(matches!(step, Step::Ends(_)), target == nxt);
        }
        compare(&case, &steps, "dec.logits", case.golden.get("dec.target_logprobs"));
        for (mark, expected) in marks.iter().zip(&case.golden.get("boundary_probs")[1..]) {
            assert!((mark.probability.unwrap() - expected).abs() < STAGES, "{}", case.name);
        }
    }
}

#[test]
fn the_portable_kernels_agree_and_single_steps_equal_one_pass() {
    for case in Case::all() {
        let portable = Settings { isa: Isa::portable(), ..settings() };
        let case = Case { model: load(&lslm_converted(case.name), &portable).unwrap(), ..case };
        let text = text(&case, "ids");
        let (logits, marks) = full(&*case.model, &text, &BoundaryOptions::default());
        compare(&case, &case.steps(&logits, &marks), "dec.logits", case.golden.get("dec.target_logprobs"));
        let mut alone = Alone::new(&*case.model, BoundaryOptions::default());
        let (stepped, stepped_marks): (Vec<_>, Vec<_>) = text.iter().map(|&id| alone.feed(&[id])).unzip();
        assert!(stepped.concat() == logits && stepped_marks.concat() == marks, "{}", case.name);
    }
}

#[test]
fn every_stage_between() {
    for case in Case::all() {
        let text = text(&case, "ids");
        let seen: Arc<Mutex<Vec<(LslmStage, usize, Vec<f32>)>>> = Arc::default();
        let mut alone = Alone::new(&*case.model, BoundaryOptions::default());
        let record = seen.clone();
        work_mut::<Work>(&mut alone.scratch).unwrap().watcher = Some(Box::new(move |stage, position, numbers| {
            record.lock().unwrap().push((stage, position.index, numbers.to_vec()));
        }));
        // The text is fed in chunks, so that some segments straddle two chunks.
        text.chunks(41).for_each(|piece| drop(alone.feed(piece)));
        let check = |stage: LslmStage, name: &str| {
            let mut actual: Vec<_> = seen.lock().unwrap().iter().filter(|entry| entry.0 == stage).cloned().collect();
            actual.sort_by_key(|entry| entry.1);
            let flat: Vec<f32> = actual.iter().flat_map(|entry| entry.2.clone()).collect();
            // Position 0 is the start symbol, which is computed when the model is loaded.
            let width = flat.len() / actual.len();
            let max_error = difference(&flat, &case.golden.get(name)[width..]);
            assert!(max_error <= STAGES, "{} {name}: {max_error}", case.name);
        };
        check(LslmStage::Token, "h");
        check(LslmStage::Boundary, "boundary_logits");
        check(LslmStage::Pooled, "s");
        check(LslmStage::Context, "s_ctx");
        let state: &LslmState = state_ref(&*alone.rows[0].state).unwrap();
        let start = state.token.output(0);
        assert!(difference(start, &case.golden.get("h")[..start.len()]) <= STAGES);
    }
}

#[test]
fn longer_than_the_largest_distance() {
    for case in Case::all() {
        let text = text(&case, "long.ids");
        let (logits, marks) = full(&*case.model, &text, &BoundaryOptions::default());
        assert_eq!(cuts(&marks), case.golden.get("long.z"), "{}", case.name);
        let steps = case.steps(&logits, &marks);
        let targets = case.golden.get("long.target_logprobs");
        assert_eq!(steps.len(), targets.len());
        let mut symbols = text.iter();
        for (index, (step, target)) in steps.iter().zip(targets).enumerate().take(targets.len() - 1) {
            let logprob = match step {
                Step::Ends(logprob) => *logprob,
                Step::Logits(logits) => log_probability(logits, *symbols.next().unwrap()).unwrap() as f32,
            };
            assert!((logprob - target).abs() <= LOGITS, "{} step {index}: {logprob} {target}", case.name);
        }
        for (row, index) in case.golden.ids("long.rows").into_iter().enumerate() {
            if let Step::Logits(logits) = steps[index as usize] {
                assert!(difference(logits, case.golden.row("long.logits", row)) <= LOGITS, "{} {index}", case.name);
            }
        }
    }
}

/// Boundaries from a trace: one segment per symbol, and one segment that stays open.
#[test]
fn given_boundaries() {
    for case in Case::all() {
        for name in ["forced_ones", "forced_zeros"] {
            let z = case.golden.get(&format!("{name}.z"));
            let text = text(&case, &format!("{name}.ids"));
            let items: Vec<u32> = text.iter().zip(&z[1..]).map(|(&id, &z)| trace::item(id, z == 1.0)).collect();
            let (logits, marks) = full(&*case.model, &items, &BoundaryOptions::default());
            assert_eq!(cuts(&marks), z, "{} {name}", case.name);
            let steps = case.steps(&logits, &marks);
            let name = format!("{name}.logits");
            compare(&case, &steps, &name, &nxt_logprobs(&case, &name, steps.len()));
        }
    }
}

/// Weights in fewer bits change the logits slightly when the boundaries are fixed. The limits are twice the measured
/// differences.
#[test]
fn fewer_bits_stay_near() {
    for (dtype, limit) in [(Dtype::Bf16, 0.36), (Dtype::Int8, 1.6)] {
        let mut worst = 0f32;
        for case in Case::all() {
            let model = lslm_in(case.name, dtype);
            let z = case.golden.get("z");
            let text = text(&case, "ids");
            let items: Vec<u32> = text.iter().zip(&z[1..]).map(|(&id, &z)| trace::item(id, z == 1.0)).collect();
            let (exact, _) = full(&*case.model, &items, &BoundaryOptions::default());
            let (near, _) = full(&*model, &items, &BoundaryOptions::default());
            worst = worst.max(difference(&exact, &near));
        }
        assert!(worst <= limit && worst > LOGITS, "{dtype:?}: {worst}");
    }
}
