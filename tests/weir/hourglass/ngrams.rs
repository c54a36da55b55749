//! Hourglasses with n-grams: golden data of the training code, and memory of long sequences.

use crate::{
    golden::Golden,
    support::{Alone, Dice, difference, full, settings},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use weir::{
    decode::contract::{BoundaryOptions, Model, SequenceRow, Want, advance},
    family::load::load,
};

/// Largest difference of a logit.
const LOGITS: f32 = 2e-5;

/// Returns the fixture of `models/training/tests/ngrams_golden.py`.
fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ngrams").join(case)
}

fn model(case: &str) -> Arc<dyn Model> {
    load(&folder(case), &settings()).unwrap()
}

#[test]
fn logits_equal_those_of_the_training_code() {
    for (case, parameters, shape) in [
        ("pooled", 17_888, "1+1+1 layers × 16, 2 heads × 8, boundaries after \" \\n\", n-grams of 3, 4, 5 × 40 rows"),
        (
            "vanilla",
            6_481,
            "2 layers × 16, 2 heads × 8, no boundaries (vanilla), n-grams of 2, 7 × 29 rows, blocks of 16",
        ),
    ] {
        let golden = Golden::open(&folder(case));
        let model = model(case);
        let symbols = model.card().vocabulary.len();
        assert!(model.card().shape.starts_with(shape), "{}", model.card().shape);
        assert_eq!(model.card().parameters, parameters, "{case}");
        let ids = golden.ids("ids");
        let (logits, marks) = full(&*model, &ids, &BoundaryOptions::default());
        assert_eq!(marks.iter().any(|mark| mark.boundary), case == "pooled");
        for (index, position) in golden.ids("positions").into_iter().enumerate() {
            let actual = &logits[position as usize * symbols..][..symbols];
            let max_error = difference(actual, golden.row("logits", index));
            assert!(max_error <= LOGITS, "{case} at {position}: {max_error}");
        }
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let stepped: Vec<f32> = ids.iter().flat_map(|&id| alone.feed(&[id]).0).collect();
        assert_eq!(stepped, logits, "{case}: single steps differ from one pass");
    }
}

/// The list of recent symbols is shortened as windows move on. A fork and a rollback of a long sequence still find the symbols of
/// their n-grams.
#[test]
fn a_long_sequence_keeps_few_symbols() {
    for case in ["pooled", "vanilla"] {
        let model = model(case);
        let text = Dice::new(5).text(13_000, model.card().vocabulary.len());
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let mut own_bytes = Vec::new();
        for chunk in text[..12_000].chunks(500) {
            alone.rows[0].set(chunk, Want::Nothing);
            advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
            own_bytes.push(alone.rows[0].state.own_bytes());
        }
        assert_eq!(own_bytes[5], own_bytes[23], "{case}: {own_bytes:?}");
        let mut fork = Alone::from(&*model, SequenceRow::new(alone.rows[0].state.fork()));
        let (logits, marks) = alone.feed(&text[12_000..12_040]);
        assert_eq!(fork.feed(&text[12_000..12_040]), (logits.clone(), marks), "{case}");
        alone.rows[0].state.rollback(12_020).unwrap();
        let again = alone.feed(&text[12_020..12_040]).0;
        assert_eq!(again[..], logits[logits.len() / 2..], "{case}");
    }
}
