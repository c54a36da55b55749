//! Golden data of transformers: logits in one step, in chunks and step by step; greedy continuations.

use super::*;
use crate::{
    golden::Golden,
    support::{Alone, difference, full},
};
use serde_json::{Map, Value as Json};
use weir::decode::contract::BoundaryOptions;

/// Largest difference, as a part of the largest logit.
const TOLERANCE: f32 = 1e-4;
/// Tokens of the prompt that the greedy ids continue.
const PROMPT: usize = 20;

/// Returns the index of the largest number, except 0, the end mark.
fn argmax(logits: &[f32]) -> u32 {
    let ids = (0_u32..).zip(logits).skip(1);
    ids.max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
}

#[test]
fn logits_equal_those_of_transformers_however_the_text_is_split() {
    for model_type in MODEL_TYPES {
        let golden = Golden::open(&folder(model_type));
        let model = model(model_type);
        let ids = golden.ids("ids");
        let expected = golden.get("logits");
        let largest = expected.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
        let check = |actual: &[f32], how: &str| {
            let worst = difference(actual, expected) / largest;
            assert!(worst <= TOLERANCE, "{model_type}, {how}: {worst}");
        };
        check(&full(&*model, &ids, &BoundaryOptions::default()).0, "one step");
        for size in [1, 7, 33] {
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let logits: Vec<f32> = ids.chunks(size).flat_map(|chunk| alone.feed(chunk).0).collect();
            check(&logits, &format!("{size} tokens a step"));
        }
    }
}

#[test]
fn greedy_continuations_equal_those_of_transformers() {
    for model_type in MODEL_TYPES {
        let golden = Golden::open(&folder(model_type));
        let model = model(model_type);
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let symbols = model.card().vocabulary.len();
        let mut logits = alone.feed(&golden.ids("ids")[..PROMPT]).0;
        let mut ids = Vec::new();
        while ids.len() < golden.ids("greedy").len() {
            ids.push(argmax(&logits[logits.len() - symbols..]));
            logits = alone.feed(&ids[ids.len() - 1..]).0;
        }
        assert_eq!(ids, golden.ids("greedy"), "{model_type}");
    }
}

/// Keys of transformers 4 instead of those of transformers 5, and weights in two files.
#[test]
fn older_keys_and_shards_give_the_same_logits() {
    for model_type in ["llama", "qwen2", "gemma2"] {
        let copy = copied(model_type);
        change_config(copy.path(), |keys| {
            keys.remove("rope_parameters");
            keys.remove("layer_types");
            keys.insert("rope_theta".into(), 10_000.0.into());
            keys.insert("rope_scaling".into(), Json::Null);
            if model_type == "llama" {
                keys.remove("head_dim");
            }
        });
        shard(copy.path());
        let golden = Golden::open(&folder(model_type));
        let ids = golden.ids("ids");
        let changed = load(copy.path(), &settings()).unwrap();
        let changed = full(&*changed, &ids, &BoundaryOptions::default()).0;
        assert_eq!(changed, full(&*model(model_type), &ids, &BoundaryOptions::default()).0, "{model_type}");
    }
}

/// An absent key has the value that transformers gives it; null stands for none.
#[test]
fn absent_keys_have_the_values_of_transformers() {
    let logits = |model_type: &str, change: &dyn Fn(&mut Map<String, Json>)| {
        let copy = copied(model_type);
        change_config(copy.path(), change);
        let model = load(copy.path(), &settings()).unwrap();
        full(&*model, &Golden::open(&folder(model_type)).ids("ids"), &BoundaryOptions::default()).0
    };
    let unchanged = |model_type: &str| logits(model_type, &|_| {});
    let caps = ["attn_logit_softcapping", "final_logit_softcapping"];
    // the caps of the golden checkpoint are the usual ones
    let without_caps = logits("gemma2", &|keys| keys.retain(|key, _| !caps.contains(&key.as_str())));
    assert_eq!(without_caps, unchanged("gemma2"));
    for cap in caps {
        let null = logits("gemma2", &|keys| drop(keys.insert(cap.into(), Json::Null)));
        assert_ne!(null, unchanged("gemma2"), "{cap}");
    }
    let with_window = |keys: &mut Map<String, Json>, layers: Option<usize>| {
        keys.remove("layer_types");
        keys.remove("max_window_layers");
        keys.insert("use_sliding_window".into(), true.into());
        keys.insert("sliding_window".into(), 4.into());
        keys.extend(layers.map(|layers| ("max_window_layers".into(), layers.into())));
    };
    // the first 28 layers have no window
    assert_eq!(logits("qwen2", &|keys| with_window(keys, None)), unchanged("qwen2"));
    assert_ne!(logits("qwen2", &|keys| with_window(keys, Some(1))), unchanged("qwen2"));
}

/// Changes the keys of a copy's `config.json`.
pub(super) fn change_config(dir: &Path, change: impl FnOnce(&mut Map<String, Json>)) {
    let file = dir.join("config.json");
    let mut keys = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut keys);
    fs::write(&file, serde_json::to_vec(&keys).unwrap()).unwrap();
}

/// Splits the weights into two files with an index, and adds a tensor that older versions of transformers wrote.
pub(super) fn shard(dir: &Path) {
    let single = dir.join("model.safetensors");
    let bytes = fs::read(&single).unwrap();
    let weights = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let frequencies = [0_u8; 8];
    let unused = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &frequencies).unwrap();
    let mut parts = [Vec::new(), Vec::new()];
    for (index, (name, view)) in weights.tensors().into_iter().enumerate() {
        parts[index % 2].push((name, view));
    }
    parts[0].push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), unused));
    let mut map = serde_json::Map::new();
    for (index, part) in parts.into_iter().enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", index + 1);
        map.extend(part.iter().map(|(name, _)| (name.clone(), file.clone().into())));
        safetensors::serialize_to_file(part, None, &dir.join(file)).unwrap();
    }
    let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    fs::remove_file(single).unwrap();
}

#[test]
fn the_tokenizer_gives_the_ids_and_the_text_of_transformers() {
    for model_type in MODEL_TYPES {
        let golden = Golden::open(&folder(model_type));
        let facts = fs::read(folder(model_type).join("golden.json")).unwrap();
        let facts: Json = serde_json::from_slice(&facts).unwrap();
        let model = model(model_type);
        let vocabulary = &model.card().vocabulary;
        let text = facts["text"].as_str().unwrap();
        assert_eq!(vocabulary.encode("prompt", text, usize::MAX).unwrap(), golden.ids("ids"));
        assert_eq!(vocabulary.decode(&golden.ids("ids")), text);
        assert_eq!(vocabulary.decode(&golden.ids("greedy")), facts["greedy_text"].as_str().unwrap());
    }
}
