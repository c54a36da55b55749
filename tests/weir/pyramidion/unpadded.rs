//! Shapes that do not pad documents to whole blocks, verified at lengths that leave parts of blocks, buckets and poolings.

use super::{
    super::support::*,
    shapes::{Shape, tokens},
};
use weir::{
    kernels::Dtype,
    verify::{Input, load::load as reference, report::verify},
};

#[test]
fn short_documents_without_padding_are_verified() {
    for shape in Shape::with_length(160).filter(|shape| shape.config["architecture"]["padded"] == false) {
        let model = shape.model(Dtype::F32);
        let reference = reference(&shape.folder().as_path().into()).unwrap();
        let mut dice = Dice::new(21);
        for length in [7, 41, 70] {
            let document = tokens(&mut dice, length);
            let input = Input { symbols: tokens(&mut dice, 6), document };
            let report = verify(&*model, &*reference, &input).unwrap();
            assert!(report.ok && report.boundaries_equal, "{} {length}: {report:?}", shape.name);
        }
    }
}
