//! Documents in chunks, in a batch, and with little memory.

use super::{
    super::support::*,
    shapes::{SOURCE, Shape, tokens},
    *,
};
use weir::{
    decode::document::{Encoding, EncodingStage},
    error::Error,
    family::load::{Settings, load},
    kernels::Dtype,
};

/// Encodes a document that is pushed in random chunks, some blocks at a time. Checks that its memory stays within the limit.
fn encode_in_chunks(model: &dyn Model, document: &[u32], dice: &mut Dice, scratch: &mut Scratch) -> Arc<dyn Document> {
    let encoder = encoder(model);
    let before = model.memory().in_use;
    let limit = encoder.bytes_for(document.len());
    let mut encoding = encoder.open();
    let mut rest = document;
    let mut blocks = 0;
    while encoding.document().is_none() {
        if dice.below(2) == 0 && !rest.is_empty() {
            let (piece, later) = rest.split_at(dice.below(300).min(rest.len()));
            encoding.push(piece).unwrap();
            rest = later;
            if rest.is_empty() {
                encoding.close().unwrap();
            }
            continue;
        }
        let requested = 1 + dice.below(3);
        let ran = encoder.advance(&mut *encoding, requested, scratch).unwrap();
        blocks += ran;
        let progress = encoding.progress();
        assert_eq!(progress.blocks, blocks);
        assert!(
            ran == requested || matches!(progress.stage, EncodingStage::Waiting | EncodingStage::Done),
            "{progress:?}"
        );
        assert!(progress.total.is_none_or(|total| blocks <= total), "{progress:?}");
        assert_eq!(progress.total.is_some(), rest.is_empty());
        let held = model.memory().in_use - before;
        assert!(held <= limit && encoding.bytes() == held, "{} {held} {limit}", encoding.bytes());
    }
    let progress = encoding.progress();
    assert_eq!((progress.stage, progress.total), (EncodingStage::Done, Some(blocks)));
    encoding.document().unwrap()
}

#[test]
fn the_chunks_of_a_document_do_not_change_its_bits() {
    for shape in Shape::all() {
        for dtype in Dtype::ALL {
            let model = shape.model(dtype);
            let mut scratch = model.scratch();
            let mut dice = Dice::new(3);
            for length in [1, 39, 500, 961, SOURCE] {
                let document = tokens(&mut dice, length);
                let complete = encode(&*model, &document, &mut scratch);
                let chunked = encode_in_chunks(&*model, &document, &mut dice, &mut scratch);
                assert_eq!(complete.choices(), chunked.choices(), "{} {length}", shape.name);
                assert_eq!((complete.vectors(), complete.bytes()), (chunked.vectors(), chunked.bytes()));
                let symbols = tokens(&mut dice, 9);
                let [a, b] = [&complete, &chunked].map(|document| forced(&*model, &**document, &symbols, &mut scratch));
                assert!(a == b && a.iter().all(|x| x.is_finite()), "{} {dtype:?} {length}", shape.name);
            }
            drop(scratch);
            assert_eq!(model.memory().in_use, 0, "{}", shape.name);
        }
    }
}

#[test]
fn most_blocks_are_encoded_while_the_document_arrives() {
    let shape = Shape::all().find(|shape| shape.name == "blockwise").unwrap();
    let model = shape.model(Dtype::F32);
    let mut scratch = model.scratch();
    let mut encoding = encoder(&*model).open();
    let document = tokens(&mut Dice::new(1), SOURCE);
    for piece in document.chunks(100) {
        encoding.push(piece).unwrap();
        encoder(&*model).advance(&mut *encoding, usize::MAX, &mut scratch).unwrap();
    }
    // Two pages of 480 run through three layers each.
    assert_eq!((encoding.progress().blocks, encoding.progress().stage), (6, EncodingStage::Waiting));
    encoding.close().unwrap();
    assert_eq!(encoding.progress().total, Some(12));
    // With full attention no block can be encoded early.
    let shape = Shape::all().find(|shape| shape.name == "vanilla").unwrap();
    let model = shape.model(Dtype::F32);
    let mut scratch = model.scratch();
    let mut encoding = encoder(&*model).open();
    encoding.push(&document).unwrap();
    assert_eq!(encoder(&*model).advance(&mut *encoding, 5, &mut scratch).unwrap(), 0);
    assert_eq!(encoding.progress().stage, EncodingStage::Waiting);
}

#[test]
fn batched_rows_of_several_documents_equal_single_rows() {
    for shape in Shape::all() {
        for dtype in Dtype::ALL {
            let model = shape.model(dtype);
            let mut scratch = model.scratch();
            let mut dice = Dice::new(11);
            let documents: Vec<_> =
                [700, 1, 300].map(|length| encode(&*model, &tokens(&mut dice, length), &mut scratch)).into();
            let texts: Vec<Vec<u32>> = (0..7).map(|index| tokens(&mut dice, 3 + 4 * index)).collect();
            let document_of = |index: usize| &*documents[[0, 0, 0, 1, 2, 0, 2][index]];
            let alone: Vec<_> = texts
                .iter()
                .enumerate()
                .map(|(index, text)| forced(&*model, document_of(index), text, &mut scratch))
                .collect();
            let mut rows: Vec<SequenceRow> =
                (0..7).map(|index| SequenceRow::new(encoder(&*model).begin(document_of(index)).unwrap())).collect();
            let mut fed = [0; 7];
            let mut together = vec![Vec::new(); 7];
            while (0..7).any(|index| fed[index] < texts[index].len()) {
                let selected: Vec<usize> =
                    (0..7).filter(|&index| fed[index] < texts[index].len() && dice.below(3) > 0).collect();
                for &index in &selected {
                    let more = (1 + dice.below(3)).min(texts[index].len() - fed[index]);
                    rows[index].set(&texts[index][fed[index]..fed[index] + more], Want::All);
                    fed[index] += more;
                }
                advance(&*model, &mut rows, &selected, &mut scratch).unwrap();
                selected.iter().for_each(|&index| together[index].extend_from_slice(&rows[index].logits));
            }
            assert!(together == alone, "{} {dtype:?}", shape.name);
        }
    }
}

#[test]
fn forks_share_their_document_and_diverge() {
    let shape = Shape::all().next().unwrap();
    let model = shape.model(Dtype::F32);
    let mut scratch = model.scratch();
    let mut dice = Dice::new(5);
    let document = encode(&*model, &tokens(&mut dice, 600), &mut scratch);
    let texts = [tokens(&mut dice, 34), tokens(&mut dice, 34)];
    let expected = texts.each_ref().map(|text| forced(&*model, &*document, text, &mut scratch));
    let mut rows = vec![SequenceRow::new(encoder(&*model).begin(&*document).unwrap())];
    rows[0].set(&texts[0][..20], Want::Nothing);
    advance(&*model, &mut rows, &[0], &mut scratch).unwrap();
    let before = model.memory().in_use;
    rows.push(SequenceRow::new(rows[0].state.fork()));
    assert_eq!(model.memory().in_use, before, "a fork takes no pages");
    rows[1].state.rollback(0).unwrap();
    rows[0].set(&texts[0][20..], Want::Last);
    rows[1].set(&texts[1], Want::Last);
    advance(&*model, &mut rows, &[0, 1], &mut scratch).unwrap();
    for (row, expected) in rows.iter().zip(&expected) {
        assert!(row.logits == expected[expected.len() - row.logits.len()..]);
    }
    // Rows keep the document's memory after it is dropped.
    drop(document);
    let mut shared = 0;
    rows[0].state.pages(&mut |page| shared += usize::from(page.references == 2));
    assert!(shared > 0 && rows[0].state.bytes() > 0);
    rows[0].state.rollback(20).unwrap();
    rows[0].set(&texts[0][20..], Want::Last);
    advance(&*model, &mut rows, &[0], &mut scratch).unwrap();
    assert!(rows[0].logits == expected[0][expected[0].len() - rows[0].logits.len()..]);
    drop(rows);
    assert_eq!(model.memory().in_use, 0);
}

#[test]
fn hard_top_k_keeps_vectors_unchanged() {
    for shape in Shape::all() {
        let model = shape.model(Dtype::F32);
        let mut scratch = model.scratch();
        let document = tokens(&mut Dice::new(2), SOURCE);
        let Ok(mut encoding) = encoder(&*model).open_hard() else {
            assert!(
                ["none", "mean", "max", "funnel"]
                    .contains(&shape.config["architecture"]["pooling"]["kind"].as_str().unwrap())
            );
            continue;
        };
        encoding.push(&document).unwrap();
        encoding.close().unwrap();
        encoder(&*model).advance(&mut *encoding, usize::MAX, &mut scratch).unwrap();
        let hard = encoding.document().unwrap();
        let soft = encode(&*model, &document, &mut scratch);
        assert_eq!(hard.vectors(), soft.vectors(), "{}", shape.name);
        let tokens: Vec<usize> = hard.choices()[0].kept.iter().map(|kept| kept.token).collect();
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), tokens.len());
        let logits = [&hard, &soft].map(|document| forced(&*model, &**document, &[2, 9], &mut scratch));
        // In f32 a score of 1 outweighs a score of 0 completely.
        let is_hard = shape.config["architecture"]["pooling"]["kind"] == "hard-top-k" || shape.name == "index";
        assert_eq!(logits[0] == logits[1], is_hard, "{}", shape.name);
    }
}

#[test]
fn invalid_input_is_rejected_and_does_not_change_the_encoding() {
    let shape = Shape::all().find(|shape| shape.name == "vanilla").unwrap();
    let model = shape.model(Dtype::F32);
    let mut encoding = encoder(&*model).open();
    let message = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert_eq!(message(encoding.close()), "document: expected at least one token, found none");
    let long = vec![5; SOURCE + 1];
    assert_eq!(message(encoding.push(&long)), "document: expected at most 1280 tokens, found 1281");
    assert!(message(encoding.push(&[5, 37])).contains(", found id 37 (the vocabulary has 37 symbols) at"));
    assert_eq!(encoding.tokens(), 0);
    encoding.push(&[1, 1]).unwrap();
    assert!(
        message(encoding.close())
            .starts_with("document: expected at least one token other than padding, found only padding")
    );
    encoding.push(&long[..SOURCE - 2]).unwrap();
    assert!(encoding.push(&[5]).is_err());
    encoding.close().unwrap();
    encoding.close().unwrap();
    assert!(encoding.push(&[5]).is_err());
    let mut scratch = model.scratch();
    encoder(&*model).advance(&mut *encoding, usize::MAX, &mut scratch).unwrap();
    assert_eq!(encoding.document().unwrap().tokens(), SOURCE);
    assert!(model.begin(weir::decode::contract::BoundaryOptions::default()).is_err());
}

#[test]
fn too_little_memory_is_an_error_and_is_released() {
    for shape in Shape::all() {
        let model = shape.model(Dtype::F32);
        let document = tokens(&mut Dice::new(8), SOURCE);
        let limit = encoder(&*model).bytes_for(SOURCE);
        drop(model);
        let mut failed = 0;
        for share in 0..6 {
            let settings = Settings { memory_bytes: limit * share / 5, ..settings() };
            let model = load(&shape.folder(), &settings).unwrap();
            let mut scratch = model.scratch();
            let mut encoding = encoder(&*model).open();
            encoding.push(&document).unwrap();
            encoding.close().unwrap();
            let result = encoder(&*model).advance(&mut *encoding, usize::MAX, &mut scratch);
            match result {
                Ok(_) => assert!(encoding.document().is_some()),
                Err(error) => {
                    assert!(matches!(error, Error::OutOfPages { .. }), "{error}");
                    failed += 1;
                }
            }
            assert!(share < 5 || encoding.document().is_some(), "{}: the limit is too small", shape.name);
            drop(encoding);
            assert_eq!(model.memory().in_use, 0);
        }
        assert!(failed > 0, "{}", shape.name);
    }
}

#[test]
fn foreign_encodings_are_rejected() {
    let model = Shape::all().next().unwrap().model(Dtype::F32);
    let mut scratch = model.scratch();
    struct Foreign;
    impl Encoding for Foreign {
        fn push(&mut self, _: &[u32]) -> weir::error::Result<()> {
            Ok(())
        }
        fn close(&mut self) -> weir::error::Result<()> {
            Ok(())
        }
        fn tokens(&self) -> usize {
            0
        }
        fn progress(&self) -> weir::decode::document::EncodingProgress {
            weir::decode::document::EncodingProgress { stage: EncodingStage::Waiting, blocks: 0, total: None }
        }
        fn choices(&self) -> &[weir::decode::document::PoolingChoice] {
            &[]
        }
        fn document(&self) -> Option<Arc<dyn Document>> {
            None
        }
        fn bytes(&self) -> usize {
            0
        }
    }
    assert!(encoder(&*model).advance(&mut Foreign, 1, &mut scratch).is_err());
}
