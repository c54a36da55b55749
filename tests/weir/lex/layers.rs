//! Outputs of each layer against the golden data, fed in chunks that straddle blocks.

use super::{CASES, Golden, LOGITS, model};
use crate::support::{Alone, difference};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use weir::{
    decode::contract::BoundaryOptions,
    family::{decoder::Work, parts::work_mut},
    kernels,
    nn::attention::HookPoint,
};

#[test]
fn every_layer_equals_the_golden_data() {
    let mut compared = 0;
    for case in CASES {
        let golden = Golden::read(case);
        let model = model(case, kernels::Dtype::F32);
        for (row, text) in golden.texts().iter().enumerate() {
            let seen: Arc<Mutex<BTreeMap<String, Vec<f32>>>> = Arc::default();
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let record = seen.clone();
            work_mut::<Work>(&mut alone.scratch).unwrap().watch(Box::new(move |stage, layer, positions, numbers| {
                let name = match stage {
                    HookPoint::Heads => "attn_concat",
                    HookPoint::Attention => "self_attn_out",
                    HookPoint::Layer => "out",
                };
                assert!(numbers.len().is_multiple_of(positions.len()));
                record.lock().unwrap().entry(format!("layer.{layer}.{name}")).or_default().extend(numbers);
            }));
            text.chunks(41).for_each(|piece| drop(alone.feed(piece)));
            let seen = seen.lock().unwrap();
            for name in golden.0.keys().filter(|name| name.starts_with("layer.")) {
                let max_error = difference(&seen[name], &golden.row(name, row));
                assert!(max_error <= LOGITS, "{case} {name} row {row}: {max_error}");
                compared += 1;
            }
        }
    }
    // The data has two tensors in each of 15 cases, and the outputs of both layers for two texts.
    assert_eq!(compared, 15 * 2 + 2 + 2 * 2);
}
