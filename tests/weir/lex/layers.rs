//! Inside the layers: what the golden data holds of them, in pieces that straddle blocks.

use super::{CASES, Golden, LOGITS, model};
use crate::support::{Alone, difference};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use weir::{decode::contract::BoundaryOptions, family::decoder::work::Work, kernels, nn::attention::layer::HookPoint};

#[test]
fn every_layer_is_the_official_one() {
    let mut compared = 0;
    for case in CASES {
        let (golden, model) = (Golden::read(case), model(case, kernels::Dtype::F32));
        for (row, text) in golden.texts().iter().enumerate() {
            let seen: Arc<Mutex<BTreeMap<String, Vec<f32>>>> = Arc::default();
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let record = seen.clone();
            Work::from_scratch(&mut alone.scratch).unwrap().watch(Box::new(move |stage, layer, places, numbers| {
                let name = match stage {
                    HookPoint::Heads => "attn_concat",
                    HookPoint::Attention => "self_attn_out",
                    HookPoint::Layer => "out",
                };
                assert!(numbers.len().is_multiple_of(places.len()));
                record.lock().unwrap().entry(format!("layer.{layer}.{name}")).or_default().extend(numbers);
            }));
            text.chunks(41).for_each(|piece| drop(alone.feed(piece)));
            let seen = seen.lock().unwrap();
            for name in golden.0.keys().filter(|name| name.starts_with("layer.")) {
                let off = difference(&seen[name], &golden.row(name, row));
                assert!(off <= LOGITS, "{case} {name} row {row}: {off}");
                compared += 1;
            }
        }
    }
    // two of each case but one, and of two texts both layers' outputs
    assert_eq!(compared, 15 * 2 + 2 + 2 * 2);
}
