//! States, poolings, logits and greedy text of the fixtures.

use super::{super::support::*, *};
use std::{collections::BTreeMap, sync::Mutex};
use weir::{
    family::{
        load::{Settings, load},
        parts::work_mut,
        pyramidion::{EncoderHookPoint, Work},
    },
    kernels::Isa,
};

/// Outputs of the encoder for one document: the vectors of each stage in order, and those of padding.
type Recorded = Arc<Mutex<BTreeMap<String, Vec<f32>>>>;

fn watch(scratch: &mut Scratch) -> Recorded {
    let recorded = Recorded::default();
    let record = recorded.clone();
    work_mut::<Work>(scratch).unwrap().hook = Some(Box::new(move |seen, first, x| {
        let mut all = record.lock().unwrap();
        let name = match seen {
            EncoderHookPoint::Embedded => "0".into(),
            EncoderHookPoint::Layer(layer) => format!("{}", layer + 1),
            EncoderHookPoint::Pooled(layer) => format!("pooled {}", layer + 1),
            EncoderHookPoint::Padding(None) => "padding 0".into(),
            EncoderHookPoint::Padding(Some(layer)) => format!("padding {}", layer + 1),
            EncoderHookPoint::Encoded => "out".into(),
        };
        let entry = all.entry(name).or_default();
        assert!(first == 0 || !entry.is_empty());
        entry.extend_from_slice(x);
    }));
    recorded
}

/// Compares a recorded state with a golden one. Positions beyond it hold the padding vector, or zeros if dropped.
fn check_state(case: &Case, item: usize, layer: usize, recorded: &BTreeMap<String, Vec<f32>>) {
    let name = format!("encoder.state.{layer}");
    let expected = case.golden.row(&name, item);
    let shape = case.golden.shape(&name);
    let dim = shape[2];
    let pooled = recorded.get(&format!("pooled {layer}"));
    let mut actual = pooled.or(recorded.get(&layer.to_string())).unwrap().clone();
    if pooled.is_none() && actual.len() < expected.len() {
        let fill = match recorded.get(&format!("padding {layer}")) {
            Some(padding) => padding.clone(),
            // With full attention, all padding equals the last vector.
            None if case.name.starts_with("vanilla") => actual[actual.len() - dim..].to_vec(),
            // fairseq's pooler fills the remainder of the last block.
            None => vec![0.0; dim],
        };
        while actual.len() < expected.len() {
            actual.extend_from_slice(&fill);
        }
    }
    actual.truncate(expected.len());
    if case.name == "tail_dropped" && pooled.is_none() {
        let block = case.config["chunk_size"].as_u64().unwrap() as usize;
        let blocks_end = shape[1] / block * block * dim;
        // The first state is recorded before anything is dropped, so only complete blocks are compared.
        let max_error = difference(&actual[..blocks_end], &expected[..blocks_end]);
        assert!(max_error <= STATES, "{} {item} {name}: {max_error}", case.name);
        return;
    }
    let max_error = difference(&actual, expected);
    assert!(max_error <= STATES, "{} {item} {name}: {max_error}", case.name);
}

fn check(case: &Case) {
    let layers = case.config["encoder_layers"].as_u64().unwrap() as usize;
    for item in 0..case.count() {
        let mut scratch = case.model.scratch();
        let recorded = watch(&mut scratch);
        let source = case.source(item);
        // A new model has no cached padding yet, so its padding is recorded too.
        let model = load(&pyramidion_converted(case.name), &settings()).unwrap();
        let document = encode(&*model, &source, &mut scratch);
        for layer in 0..=layers {
            check_state(case, item, layer, &recorded.lock().unwrap());
        }
        let poolings = encoder(&*model).limits().poolings.clone();
        assert_eq!(document.choices().len(), poolings.len(), "{}", case.name);
        for (choice, pooling) in document.choices().iter().zip(poolings) {
            let tensor_name = |name: &str| format!("pool.{}.{name}", pooling.layer);
            assert_eq!(choice.layer, pooling.layer);
            let scores: Vec<f32> = choice.kept.iter().map(|kept| kept.score).collect();
            let max_error = difference(&scores, case.golden.row(&tensor_name("scores_out"), item));
            assert!(max_error <= STATES, "{} {item} {}: {max_error}", case.name, tensor_name("scores_out"));
            let pooled = recorded.lock().unwrap()[&format!("pooled {}", pooling.layer + 1)].clone();
            let max_error = difference(&pooled, case.golden.row(&tensor_name("output"), item));
            assert!(max_error <= STATES, "{} {item} {}: {max_error}", case.name, tensor_name("output"));
        }
        let out = case.golden.row("encoder.out", item);
        let shape = case.golden.shape("encoder.out");
        assert_eq!(document.vectors(), shape[1], "{}", case.name);
        let actual = &recorded.lock().unwrap()["out"];
        let same = actual.len().min(out.len());
        assert!(difference(&actual[..same], &out[..same]) <= STATES || case.name == "vanilla_padded", "{}", case.name);
        work_mut::<Work>(&mut scratch).unwrap().hook = None;
        let previous = case.ids("prev_output_tokens", item);
        let logits = forced(&*model, &*document, &previous, &mut scratch);
        let max_error = difference(&logits, case.golden.row("decoder.logits", item));
        assert!(max_error <= LOGITS, "{} {item} logits: {max_error}", case.name);
        let settings = &case.config["generation"]["greedy"];
        let lengths = ["min_len", "max_len_b"].map(|key| settings[key].as_u64().unwrap() as usize);
        let written = greedy(&*model, &*document, lengths[0], lengths[1], &mut scratch);
        let expected: Vec<u32> = case.ids("greedy.tokens", item).into_iter().take(written.len()).collect();
        assert_eq!(written, expected, "{} {item}", case.name);
        assert_eq!(case.golden.row("greedy.lengths", item)[0] as usize, written.len());
    }
}

#[test]
fn states_poolings_logits_and_greedy_text_equal_the_golden_data() {
    for case in Case::all() {
        check(&case);
    }
}

#[test]
fn the_portable_kernels_agree() {
    for case in Case::all() {
        let portable = Settings { isa: Isa::portable(), ..settings() };
        let model = load(&pyramidion_converted(case.name), &portable).unwrap();
        let mut scratch = model.scratch();
        for item in 0..case.count() {
            let document = encode(&*model, &case.source(item), &mut scratch);
            let logits = forced(&*model, &*document, &case.ids("prev_output_tokens", item), &mut scratch);
            let max_error = difference(&logits, case.golden.row("decoder.logits", item));
            assert!(max_error <= LOGITS, "{} {item}: {max_error}", case.name);
        }
    }
}
