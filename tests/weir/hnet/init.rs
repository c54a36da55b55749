//! Random H-Nets: their chunks are as long as those of trained ones.

use super::*;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::{
    decode::{boundary::levels, contract::Want},
    family::{checkpoint::Config, init::init, load::blueprint},
    report::sample::Sample,
};

/// Returns the mean length of each level's chunks, in units of the level around it, on English.
fn chunk_lengths(stages: &Value, dtype: Dtype) -> Vec<f64> {
    let shape = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/hnet-41m.json")).unwrap();
    let mut shape: Value = serde_json::from_str(&shape).unwrap();
    shape["architecture"]["stages"] = stages.clone();
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("shape.json");
    fs::write(&config, shape.to_string()).unwrap();
    let to = dir.path().join("model");
    init(&config, &to, 5, false).unwrap();
    let model = load(&to, &Settings { dtype, ..settings() }).unwrap();
    let symbols = model.card().encode("text", &Sample::text()[..1000]).unwrap();
    let mut row = SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap());
    row.set(&symbols, Want::Nothing);
    weir::decode::contract::advance(&*model, std::slice::from_mut(&mut row), &[0], &mut model.scratch()).unwrap();
    let levels = levels(row.decisions.iter().map(|mark| mark.depth));
    let mean = |level: &Vec<u8>| level.len() as f64 / level.iter().filter(|&&bit| bit == 1).count() as f64;
    levels.iter().map(mean).collect()
}

fn stage(dim: usize, layers: Value) -> Value {
    let mut stage = json!({
        "dim": dim, "feed_forward": 128, "heads": 2, "rotary_dim": 8, "window": "full", "state_dim": 16, "conv_width": 4,
        "expand": 2,
    });
    stage.as_object_mut().unwrap().extend(layers.as_object().unwrap().clone());
    stage
}

#[test]
fn random_chunks_are_as_long_as_trained_ones() {
    let outer = stage(64, json!({ "encoder": "m4", "decoder": "m1" }));
    let nested = stage(64, json!({ "encoder": "T1m4", "decoder": "m1" }));
    let main = stage(96, json!({ "main": "T1" }));
    for dtype in [Dtype::F32, Dtype::Int8] {
        let lengths = chunk_lengths(&json!([outer, main]), dtype);
        assert!(lengths.len() == 1 && (5.0..7.0).contains(&lengths[0]), "{lengths:?}");
        let lengths = chunk_lengths(&json!([outer, nested, main]), dtype);
        assert!(lengths.len() == 2 && lengths.iter().all(|length| (2.5..3.5).contains(length)), "{lengths:?}");
    }
}

/// Memory and cost depend on a stage's window, and the parameter count on its convolution, even if the stage has no such layer.
#[test]
fn keys_that_no_layer_needs_are_bounded() {
    let shape = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/hnet-41m.json")).unwrap();
    let refusal = |key: &str, value: Value| {
        let mut outer = stage(1, json!({ "encoder": "", "decoder": "", "state_dim": 0, "expand": 0 }));
        outer[key] = value;
        let mut shape: Value = serde_json::from_str(&shape).unwrap();
        shape["architecture"]["stages"] = json!([outer, stage(2, json!({ "main": "" }))]);
        let file = Path::new("config.json");
        let config = Config::parse(shape.to_string().as_bytes(), file).unwrap();
        blueprint(&config, file).unwrap_err().to_string()
    };
    for (key, value, expected) in [
        (
            "window",
            json!({ "sliding": { "keys": u64::MAX } }),
            "architecture.stages[0].window.sliding.keys: expected 1 to 16777216, found 18446744073709551615",
        ),
        (
            "window",
            json!({ "blockwise": { "length": 0 } }),
            "architecture.stages[0].window.blockwise.length: expected an even number from 2",
        ),
        (
            "conv_width",
            json!(u64::MAX),
            "architecture.stages: expected at most 17179869184 numbers in all tensors, found a product beyond 64 bits",
        ),
    ] {
        let message = refusal(key, value);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn an_end_byte_without_a_start_mark_is_refused() {
    let shape = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/hnet-41m.json")).unwrap();
    let mut shape: Value = serde_json::from_str(&shape).unwrap();
    shape["vocabulary"] = json!({ "bytes": true, "end": 3 });
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("shape.json");
    fs::write(&config, shape.to_string()).unwrap();
    let error = init(&config, &dir.path().join("model"), 5, false).unwrap_err().to_string();
    let expected = "vocabulary.start: expected the mark before a text, as there is an `end`, found nothing";
    assert!(error.contains(expected), "{error}");
}
