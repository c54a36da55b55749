//! States, deleted tokens and logits of the fixtures, and documents that arrive in parts.

use super::*;
use std::{collections::BTreeMap, sync::Mutex};
use weir::{
    decode::document::{EncodingStage, PoolingChoice},
    family::{
        load::{Settings, load},
        parts::{EncoderHookPoint, work_mut},
        t5::Work,
    },
    kernels::Isa,
    nn::{attention::HookPoint, position::Buckets},
};

/// FIXTURES.md: states, gate values, logits.
const STATES: f32 = 1e-4;
const GATES: f32 = 2e-4;
const LOGITS: f32 = 5e-5;

/// States by the name of their golden tensor.
type Recorded = Arc<Mutex<BTreeMap<String, Vec<f32>>>>;

fn watch(scratch: &mut Scratch) -> Recorded {
    let recorded = Recorded::default();
    let work: &mut Work = work_mut(scratch).unwrap();
    let record = recorded.clone();
    work.hook = Some(Box::new(move |seen, _, x| {
        let name = match seen {
            EncoderHookPoint::Embedded => "enc.state.0".to_owned(),
            EncoderHookPoint::Layer(layer) => format!("enc.state.{}", layer + 1),
            EncoderHookPoint::Encoded => "enc.out".to_owned(),
            other => panic!("{other:?}"),
        };
        record.lock().unwrap().entry(name).or_default().extend_from_slice(x);
    }));
    let record = recorded.clone();
    work.watch_decoder(Box::new(move |seen, layer, _, x| {
        assert_eq!(seen, HookPoint::Layer);
        record.lock().unwrap().entry(format!("dec.state.{}", layer + 1)).or_default().extend_from_slice(x);
    }));
    recorded
}

fn check_deletion(case: &Case, source: &str, choices: &[PoolingChoice]) {
    if !case.name.starts_with("mrt5") {
        assert!(choices.is_empty());
        return;
    }
    let kept = case.golden.ids(&format!("{source}.gate.kept"));
    let values = case.golden.get(&format!("{source}.gate.values"));
    assert_eq!(choices.len(), 1, "{}", case.name);
    assert_eq!(choices[0].layer, if case.name == "mrt5" { 3 } else { 1 });
    let actual: Vec<u32> = choices[0].kept.iter().map(|kept| kept.token as u32).collect();
    assert_eq!(actual, kept, "{} {source}", case.name);
    for kept in &choices[0].kept {
        assert!((kept.score - values[kept.token]).abs() <= GATES, "{} {source}: {kept:?}", case.name);
    }
}

/// Compares logits with the golden ones, which may be those of some rows only.
fn check_logits(case: &Case, source: &str, logits: &[f32]) {
    let name = |part: &str| format!("{source}.{part}");
    if case.golden.has(&name("logits")) {
        let max_error = difference(logits, case.golden.get(&name("logits")));
        assert!(max_error <= LOGITS, "{} {source} logits: {max_error}", case.name);
        return;
    }
    let symbols = case.golden.shape(&name("logits_rows"))[1];
    for (index, row) in case.golden.ids(&name("rows")).into_iter().enumerate() {
        let actual = &logits[row as usize * symbols..][..symbols];
        let max_error = difference(actual, case.golden.row(&name("logits_rows"), index));
        assert!(max_error <= LOGITS, "{} {source} logits after {row}: {max_error}", case.name);
    }
}

fn check(case: &Case, model: &dyn Model) {
    for source in case.sources() {
        let mut scratch = model.scratch();
        let recorded = watch(&mut scratch);
        let document = encode(model, &case.golden.ids(&format!("{source}.ids")), &mut scratch);
        check_deletion(case, &source, document.choices());
        let logits = forced(model, &*document, &case.golden.ids(&format!("{source}.dec_ids")), &mut scratch);
        let mut compared = 0;
        for (name, actual) in recorded.lock().unwrap().iter() {
            let golden = format!("{source}.{name}");
            if case.golden.has(&golden) {
                let max_error = difference(actual, case.golden.get(&golden));
                assert!(max_error <= STATES, "{} {golden}: {max_error}", case.name);
                compared += 1;
            }
        }
        assert!(compared > 0 && document.vectors() == case.golden.shape(&format!("{source}.enc.out"))[0]);
        check_logits(case, &source, &logits);
    }
}

#[test]
fn states_deleted_tokens_and_logits_equal_the_golden_data() {
    for case in Case::all() {
        check(&case, &*t5_in(case.name, Dtype::F32));
    }
}

#[test]
fn the_portable_kernels_agree() {
    for case in Case::all() {
        let portable = Settings { isa: Isa::portable(), ..settings() };
        check(&case, &*load(&t5_converted(case.name), &portable).unwrap());
    }
}

#[test]
fn buckets_equal_the_golden_data() {
    let golden = Golden::open(&t5_golden("buckets"));
    for (count, max_distance) in [(32, 128), (20, 48)] {
        for (name, bidirectional) in [("bidirectional", true), ("unidirectional", false)] {
            let expected = golden.get(&format!("{name}.{count}.{max_distance}"));
            let buckets = Buckets { count, max_distance, bidirectional };
            // a table of one head whose numbers are the buckets
            let bias: Vec<f32> = (0..count).map(|bucket| bucket as f32).collect();
            let two_sided = bidirectional.then(|| buckets.two_sided_tables(&bias).remove(0));
            for (&distance, &expected) in golden.get("relative_position").iter().zip(expected) {
                let distance = distance as i64;
                let actual = match &two_sided {
                    Some(table) => {
                        let last = max_distance as i64;
                        table[(distance.clamp(-last, last) + last) as usize] as usize
                    }
                    None => buckets.bucket(usize::try_from(-distance).unwrap_or(0)),
                };
                assert_eq!(actual, expected as usize, "{name} {count} {max_distance}: {distance}");
            }
        }
    }
}

#[test]
fn pushes_and_blocks_do_not_change_a_bit() {
    for case in Case::all() {
        let model = t5_in(case.name, Dtype::F32);
        let encoder = encoder(&*model);
        // more vectors than a page of the encoder, and a partly filled last page
        let tokens: Vec<u32> = (0..530).map(|index| 3 + index * index % 251).collect();
        let mut scratch = model.scratch();
        let whole = encode(&*model, &tokens, &mut scratch);
        let expected = forced(&*model, &*whole, &[0, 9, 5], &mut scratch);
        let mut encoding = encoder.open();
        for part in tokens.chunks(177) {
            encoding.push(part).unwrap();
            assert_eq!(encoder.advance(&mut *encoding, 3, &mut scratch).unwrap(), 0, "the encoder looks both ways");
            assert_eq!(encoding.progress().stage, EncodingStage::Waiting);
        }
        encoding.close().unwrap();
        let planned = encoder.bytes_for(tokens.len());
        while encoding.document().is_none() {
            assert_eq!(encoder.advance(&mut *encoding, 1, &mut scratch).unwrap(), 1);
            assert!(encoding.bytes() <= planned, "{}: {} of {planned}", case.name, encoding.bytes());
        }
        let progress = encoding.progress();
        assert_eq!(progress.total, Some(progress.blocks), "{}", case.name);
        let document = encoding.document().unwrap();
        assert_eq!(forced(&*model, &*document, &[0, 9, 5], &mut scratch), expected, "{}", case.name);
        assert_eq!((document.choices(), document.tokens()), (whole.choices(), tokens.len()));
        drop((encoding, document, whole));
        assert_eq!(model.memory().in_use, 0, "{}: pages leaked", case.name);
    }
}

#[test]
fn bad_documents_are_reported() {
    let model = t5_in("byt5", Dtype::F32);
    let encoder = encoder(&*model);
    let limit = encoder.limits().tokens;
    let message = |tokens: &[u32]| {
        let mut encoding = encoder.open();
        encoding.push(tokens).and_then(|()| encoding.close()).unwrap_err().to_string()
    };
    assert_eq!(message(&[]), "document: expected at least one token, found none");
    assert_eq!(message(&[9, 0]), "document: expected tokens other than padding, found id 0 at token 1");
    assert!(message(&[384]).contains("id 384 (the vocabulary has 384 symbols)"), "{}", message(&[384]));
    assert!(message(&vec![9; limit + 1]).contains(&format!("at most {limit} tokens")));
}
