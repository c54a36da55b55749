//! Documents in pieces, in company, in little memory.

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

/// Pushes in random pieces, works on it in random numbers of blocks meanwhile; what it holds is within the bound all the time.
fn read_in_pieces(model: &dyn Model, document: &[u32], dice: &mut Dice, scratch: &mut Scratch) -> Arc<dyn Document> {
    let reader = reader(model);
    let (before, bound) = (model.memory().in_use, reader.bytes_for(document.len()));
    let (mut encoding, mut rest, mut blocks) = (reader.open(), document, 0);
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
        let asked = 1 + dice.below(3);
        let ran = reader.advance(&mut *encoding, asked, scratch).unwrap();
        blocks += ran;
        let progress = encoding.progress();
        assert_eq!(progress.blocks, blocks);
        assert!(ran == asked || matches!(progress.stage, EncodingStage::Waiting | EncodingStage::Done), "{progress:?}");
        assert!(progress.total.is_none_or(|total| blocks <= total), "{progress:?}");
        assert_eq!(progress.total.is_some(), rest.is_empty());
        let held = model.memory().in_use - before;
        assert!(held <= bound && encoding.bytes() == held, "{} {held} {bound}", encoding.bytes());
    }
    let progress = encoding.progress();
    assert_eq!((progress.stage, progress.total), (EncodingStage::Done, Some(blocks)));
    encoding.document().unwrap()
}

#[test]
fn however_a_document_arrives_its_bits_are_the_same() {
    for shape in Shape::all() {
        for dtype in Dtype::ALL {
            let model = shape.model(dtype);
            let (mut scratch, mut dice) = (model.scratch(), Dice::new(3));
            for length in [1, 39, 500, 961, SOURCE] {
                let document = tokens(&mut dice, length);
                let whole = read(&*model, &document, &mut scratch);
                let pieces = read_in_pieces(&*model, &document, &mut dice, &mut scratch);
                assert_eq!(whole.choices(), pieces.choices(), "{} {length}", shape.name);
                assert_eq!((whole.vectors(), whole.bytes()), (pieces.vectors(), pieces.bytes()));
                let symbols = tokens(&mut dice, 9);
                let [a, b] = [&whole, &pieces].map(|document| forced(&*model, &**document, &symbols, &mut scratch));
                assert!(a == b && a.iter().all(|x| x.is_finite()), "{} {dtype:?} {length}", shape.name);
            }
            drop(scratch);
            assert_eq!(model.memory().in_use, 0, "{}", shape.name);
        }
    }
}

#[test]
fn most_of_the_reading_is_done_while_the_document_arrives() {
    let shape = Shape::all().find(|shape| shape.name == "blockwise").unwrap();
    let model = shape.model(Dtype::F32);
    let (mut scratch, mut encoding) = (model.scratch(), reader(&*model).open());
    let document = tokens(&mut Dice::new(1), SOURCE);
    for piece in document.chunks(100) {
        encoding.push(piece).unwrap();
        reader(&*model).advance(&mut *encoding, usize::MAX, &mut scratch).unwrap();
    }
    // two pages of 480 through three layers each
    assert_eq!((encoding.progress().blocks, encoding.progress().stage), (6, EncodingStage::Waiting));
    encoding.close().unwrap();
    assert_eq!(encoding.progress().total, Some(12));
    // where all attend to all nothing can begin
    let shape = Shape::all().find(|shape| shape.name == "vanilla").unwrap();
    let model = shape.model(Dtype::F32);
    let (mut scratch, mut encoding) = (model.scratch(), reader(&*model).open());
    encoding.push(&document).unwrap();
    assert_eq!(reader(&*model).advance(&mut *encoding, 5, &mut scratch).unwrap(), 0);
    assert_eq!(encoding.progress().stage, EncodingStage::Waiting);
}

#[test]
fn rows_of_several_documents_are_what_they_are_alone() {
    for shape in Shape::all() {
        for dtype in Dtype::ALL {
            let model = shape.model(dtype);
            let (mut scratch, mut dice) = (model.scratch(), Dice::new(11));
            let documents: Vec<_> =
                [700, 1, 300].map(|length| read(&*model, &tokens(&mut dice, length), &mut scratch)).into();
            let texts: Vec<Vec<u32>> = (0..7).map(|index| tokens(&mut dice, 3 + 4 * index)).collect();
            let of = |index: usize| &*documents[[0, 0, 0, 1, 2, 0, 2][index]];
            let alone: Vec<_> =
                texts.iter().enumerate().map(|(index, text)| forced(&*model, of(index), text, &mut scratch)).collect();
            let mut rows: Vec<SequenceRow> =
                (0..7).map(|index| SequenceRow::new(reader(&*model).begin(of(index)).unwrap())).collect();
            let (mut fed, mut together) = ([0; 7], vec![Vec::new(); 7]);
            while (0..7).any(|index| fed[index] < texts[index].len()) {
                let which: Vec<usize> =
                    (0..7).filter(|&index| fed[index] < texts[index].len() && dice.below(3) > 0).collect();
                for &index in &which {
                    let more = (1 + dice.below(3)).min(texts[index].len() - fed[index]);
                    rows[index].set(&texts[index][fed[index]..fed[index] + more], Want::All);
                    fed[index] += more;
                }
                advance(&*model, &mut rows, &which, &mut scratch).unwrap();
                which.iter().for_each(|&index| together[index].extend_from_slice(&rows[index].logits));
            }
            assert!(together == alone, "{} {dtype:?}", shape.name);
        }
    }
}

#[test]
fn forks_share_their_document_and_go_their_own_way() {
    let shape = Shape::all().next().unwrap();
    let model = shape.model(Dtype::F32);
    let (mut scratch, mut dice) = (model.scratch(), Dice::new(5));
    let document = read(&*model, &tokens(&mut dice, 600), &mut scratch);
    let texts = [tokens(&mut dice, 34), tokens(&mut dice, 34)];
    let want = texts.each_ref().map(|text| forced(&*model, &*document, text, &mut scratch));
    let mut rows = vec![SequenceRow::new(reader(&*model).begin(&*document).unwrap())];
    rows[0].set(&texts[0][..20], Want::Nothing);
    advance(&*model, &mut rows, &[0], &mut scratch).unwrap();
    let before = model.memory().in_use;
    rows.push(SequenceRow::new(rows[0].state.fork()));
    assert_eq!(model.memory().in_use, before, "a fork takes no pages");
    rows[1].state.rollback(0).unwrap();
    rows[0].set(&texts[0][20..], Want::Last);
    rows[1].set(&texts[1], Want::Last);
    advance(&*model, &mut rows, &[0, 1], &mut scratch).unwrap();
    for (row, want) in rows.iter().zip(&want) {
        assert!(row.logits == want[want.len() - row.logits.len()..]);
    }
    // the document may go: rows keep what they read
    drop(document);
    let mut shared = 0;
    rows[0].state.pages(&mut |page| shared += usize::from(page.references == 2));
    assert!(shared > 0 && rows[0].state.bytes() > 0);
    rows[0].state.rollback(20).unwrap();
    rows[0].set(&texts[0][20..], Want::Last);
    advance(&*model, &mut rows, &[0], &mut scratch).unwrap();
    assert!(rows[0].logits == want[0][want[0].len() - rows[0].logits.len()..]);
    drop(rows);
    assert_eq!(model.memory().in_use, 0);
}

#[test]
fn hard_top_k_keeps_vectors_as_they_are() {
    for shape in Shape::all() {
        let model = shape.model(Dtype::F32);
        let (mut scratch, document) = (model.scratch(), tokens(&mut Dice::new(2), SOURCE));
        let Ok(mut encoding) = reader(&*model).open_hard() else {
            assert!(
                ["none", "mean", "max", "funnel"]
                    .contains(&shape.config["architecture"]["pooling"]["kind"].as_str().unwrap())
            );
            continue;
        };
        encoding.push(&document).unwrap();
        encoding.close().unwrap();
        reader(&*model).advance(&mut *encoding, usize::MAX, &mut scratch).unwrap();
        let hard = encoding.document().unwrap();
        let soft = read(&*model, &document, &mut scratch);
        assert_eq!(hard.vectors(), soft.vectors(), "{}", shape.name);
        let tokens: Vec<usize> = hard.choices()[0].kept.iter().map(|kept| kept.token).collect();
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), tokens.len());
        let logits = [&hard, &soft].map(|document| forced(&*model, &**document, &[2, 9], &mut scratch));
        // a score of 1 against one of 0 has all of the weight that f32 can tell
        let hard_already = shape.config["architecture"]["pooling"]["kind"] == "hard-top-k" || shape.name == "index";
        assert_eq!(logits[0] == logits[1], hard_already, "{}", shape.name);
    }
}

#[test]
fn what_cannot_be_read_is_refused_and_leaves_the_encoding_as_it_was() {
    let shape = Shape::all().find(|shape| shape.name == "vanilla").unwrap();
    let model = shape.model(Dtype::F32);
    let mut encoding = reader(&*model).open();
    let message = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert_eq!(message(encoding.close()), "document: no tokens is out of bounds: at least one");
    let long = vec![5; SOURCE + 1];
    assert_eq!(message(encoding.push(&long)), "document: 1281 tokens is more than the limit of 1280");
    assert!(message(encoding.push(&[5, 37])).starts_with("document: id 37 (the vocabulary has 37 symbols) at"));
    assert_eq!(encoding.tokens(), 0);
    encoding.push(&[1, 1]).unwrap();
    assert!(message(encoding.close()).starts_with("document: nothing but padding"));
    encoding.push(&long[..SOURCE - 2]).unwrap();
    assert!(encoding.push(&[5]).is_err());
    encoding.close().unwrap();
    encoding.close().unwrap();
    assert!(encoding.push(&[5]).is_err());
    let mut scratch = model.scratch();
    reader(&*model).advance(&mut *encoding, usize::MAX, &mut scratch).unwrap();
    assert_eq!(encoding.document().unwrap().tokens(), SOURCE);
    assert!(model.begin(weir::decode::contract::BoundaryOptions::default()).is_err());
}

#[test]
fn too_little_memory_is_an_error_and_all_of_it_comes_back() {
    for shape in Shape::all() {
        let model = shape.model(Dtype::F32);
        let document = tokens(&mut Dice::new(8), SOURCE);
        let bound = reader(&*model).bytes_for(SOURCE);
        drop(model);
        let mut failed = 0;
        for share in 0..6 {
            let settings = Settings { memory_bytes: bound * share / 5, ..settings() };
            let model = load(&shape.folder(), &settings).unwrap();
            let (mut scratch, mut encoding) = (model.scratch(), reader(&*model).open());
            encoding.push(&document).unwrap();
            encoding.close().unwrap();
            let result = reader(&*model).advance(&mut *encoding, usize::MAX, &mut scratch);
            match result {
                Ok(_) => assert!(encoding.document().is_some()),
                Err(error) => {
                    assert!(matches!(error, Error::OutOfPages { .. }), "{error}");
                    failed += 1;
                }
            }
            assert!(share < 5 || encoding.document().is_some(), "{}: the bound is enough", shape.name);
            drop(encoding);
            assert_eq!(model.memory().in_use, 0);
        }
        assert!(failed > 0, "{}", shape.name);
    }
}

#[test]
fn others_documents_and_encodings_are_refused() {
    let [one, other] =
        [Shape::all().next().unwrap(), Shape::all().nth(1).unwrap()].map(|shape| shape.model(Dtype::F32));
    let mut scratch = one.scratch();
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
    assert!(reader(&*one).advance(&mut Foreign, 1, &mut scratch).is_err());
    drop(other);
}
