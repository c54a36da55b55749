//! The shapes on texts that show a mistake.

use super::{
    super::support::Dice,
    shapes::{SYMBOLS, folder, shapes},
};
use weir::{
    decode::contract::BoundaryOptions,
    verify::{Input, load::load as reference, model_outputs::model_outputs, report::verify},
};

/// Verifies each shape on texts in which some but not all symbols end segments, and whose logits are large enough to show a mistake.
#[test]
fn shapes_with_segments_and_large_logits_are_verified() {
    for (name, model) in shapes() {
        let reference = reference(&folder(&name).into()).unwrap();
        for seed in 1..4 {
            let mut symbols = Dice::new(seed).text(70, SYMBOLS.len());
            symbols.iter_mut().step_by(6).for_each(|symbol| *symbol = 3); // spaces
            let input = Input { symbols, ..Input::default() };
            let outputs = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
            let ends = outputs.boundaries.iter().filter(|decision| decision.boundary).count();
            match &*name {
                "plain" | "plain-windows" | "plain-ngrams-windows" => assert!(outputs.boundaries.is_empty(), "{name}"),
                "every-symbol" => assert_eq!(ends, 70),
                _ => assert!(0 < ends && ends < 70, "{name} {seed}: {ends} of 70 symbols end a segment"),
            }
            let spread = outputs.logits.iter().fold(0f64, |top, logit| top.max(logit.abs()));
            assert!(spread > 0.5, "{name} {seed}: logits too small to show a mistake");
            let report = verify(&*model, &*reference, &input).unwrap();
            assert!(report.ok && report.boundaries_equal && report.segments == ends, "{name} {seed}: {report:?}");
        }
    }
}
