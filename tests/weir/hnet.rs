//! H-Net: boundaries of every level, conversion, and states that cannot be rewound.

use crate::{
    process::{scored_in_each_mode, weir_json},
    support::{published_shape, settings},
    *,
};
use std::ops::ControlFlow;
use weir::{
    engine::calibration::measure,
    models::{contract::levels, convert::convert, load::init},
    report::sample::Sample,
};

/// A sequence is rolled back to every length that it offers, long after it was there, and continues with the same bits.
#[test]
fn a_long_sequence_is_rewound_to_the_bit() {
    for case in ["two_stage_padded", "mixed_letters"] {
        let golden = Golden::open(&golden_data("hnet").join(case));
        let model = model_of("hnet", case, Dtype::F32);
        let text: Vec<u32> = golden.ids("s2.ids").into_iter().cycle().take(700).collect();
        let complete = full(&*model, &text, &BoundaryOptions::default());
        // a feed beyond 512 symbols gives up all snapshots before it
        for prefill in [1, 20, 100, 600] {
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            text[..prefill].iter().take(1).for_each(|&symbol| drop(alone.feed(&[symbol])));
            if prefill > 1 {
                alone.feed(&text[1..prefill]);
            }
            text[prefill..650].iter().for_each(|&symbol| drop(alone.feed(&[symbol])));
            let state = &alone.rows[0].state;
            let earliest = state.earliest();
            assert!((450..=618).contains(&earliest), "{case}: {earliest}");
            assert!(state.bytes() <= model.bytes_for(650), "{case}");
            for back in [earliest, earliest + 1, 633, 650] {
                let mut fork = Alone::from(&*model, SequenceRow::new(state.fork()));
                fork.rows[0].state.rollback(back).unwrap();
                let (logits, marks) = fork.feed(&text[back..]);
                assert!(difference(&logits, &complete.0[back * 256..]) == 0.0, "{case}: back to {back}");
                assert_eq!(marks, complete.1[back..], "{case}: back to {back}");
            }
            let end = state.boundary_before(650);
            assert!(end == 0 || complete.1[end - 1].boundary, "{case}: {end}");
        }
        assert_eq!(model.memory().in_use, 0, "{case}");
    }
}

#[test]
fn memory_does_not_grow_where_every_window_is_bounded() {
    let model: Arc<dyn Model> = model_of("hnet", "mixed_letters", Dtype::F32);
    let golden = Golden::open(&golden_data("hnet/mixed_letters"));
    let text: Vec<u32> = golden.ids("s2.ids").into_iter().cycle().take(4000).collect();
    let mut alone = Alone::new(&*model, BoundaryOptions::default());
    let mut bytes = Vec::new();
    for part in text.chunks(40) {
        alone.feed(part);
        bytes.push(model.memory().in_use);
    }
    let early = bytes[20..60].iter().max().unwrap();
    assert!(bytes[60..].iter().all(|later| later <= early), "{bytes:?}");
    assert!(bytes.iter().all(|&bytes| bytes <= model.bytes_for(4000)));
}

#[test]
fn measured_steps_begin_a_chunk_or_none() {
    for case in HNET_CASES {
        let model = load(&checkpoint("hnet", case), &settings()).unwrap();
        let go_on = &mut || ControlFlow::Continue(());
        let table = measure(&*model, 2, Duration::from_secs(20), go_on).unwrap();
        let short = table.timings.iter().filter(|timing| timing.shape.symbols == 1 && timing.shape.context < 100);
        // a step that does not do what it was chosen for has no samples
        let rows: Vec<_> = short.map(|timing| (timing.shape.rows, timing.plain.is_some())).collect();
        assert_eq!(rows, [(1, true), (2, true)], "{case}");
    }
}

fn folder(case: &str) -> String {
    checkpoint("hnet", case).to_str().unwrap().to_owned()
}

/// The boundaries of every level equal the official ones, whatever the steps are.
#[test]
fn scores_list_the_boundaries_of_every_level() {
    for case in HNET_CASES {
        let golden = Golden::open(&golden_data("hnet").join(case));
        for text in ["s0", "s1", "s2"] {
            let ids = golden.ids(&format!("{text}.ids"));
            let level = |level: usize| -> Option<Vec<u32>> {
                let name = format!("{text}.level{level}.boundary");
                golden.has(&name).then(|| golden.ids(&name))
            };
            let levels: Vec<_> = (0..).map_while(level).collect();
            for output in scored_in_each_mode(&checkpoint("hnet", case), &ids).0 {
                assert_eq!(output["boundaries"], json!(levels[0]), "{case}, {text}");
                let expected = if levels.len() > 1 { json!(levels) } else { Value::Null };
                assert_eq!(output["boundary_levels"], expected, "{case}, {text}");
                assert_eq!(output["logprobs"].as_array().unwrap().len(), ids.len() - 1);
            }
        }
    }
}

/// Chunks, their lengths and the steps of each level, as the boundaries of a score with the same symbols have them.
#[test]
fn levels_are_counted_in_generations_and_benchmarks() {
    let model = folder("two_stage");
    let args =
        ["generate", "--json", "--model", &model, "--max-chars", "30", "--seed", "4", "--ignore-eos", "--prompt"];
    let output = weir_json(&[&args[..], &["levels of chunks"]].concat());
    let ids = output["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
    let all: Vec<u64> = std::iter::once(254).chain(b"levels of chunks".iter().map(|&b| b.into())).chain(ids).collect();
    let list = all.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let score = weir_json(&["score", "--json", "--model", &model, "--ids", &list]);
    let levels = output["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 2, "{output}");
    assert_eq!(levels[0]["middle_steps"], output["timing"]["middle_steps"]);
    let mut around = all.len() as f64;
    for (level, boundaries) in levels.iter().zip(score["boundary_levels"].as_array().unwrap()) {
        let chunks = boundaries.as_array().unwrap().iter().filter(|bit| **bit == 1).count();
        assert_eq!(level["chunks"], chunks, "{output}");
        assert_eq!(level["shortening_factor"], around / chunks as f64);
        let steps = level["middle_steps"].as_u64().unwrap() as usize;
        assert!(steps > 0 && steps <= chunks, "{output}");
        around = chunks as f64;
    }
    // a model with one level has no list
    let one = folder("one_stage");
    let args = ["generate", "--json", "--model", &one, "--max-chars", "3", "--prompt", "levels"];
    assert_eq!(weir_json(&args)["levels"], Value::Null);
    let args =
        ["bench", "decode", "--json", "--batch", "1", "--context", "8", "--steps", "150", "--threads", "1", "--model"];
    for (model, count) in [(&model, 2), (&one, 0)] {
        let output = weir_json(&[&args[..], &[model]].concat());
        let levels = output[0]["levels"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(levels.len(), count, "{output}");
        if let [outer, inner] = levels {
            assert_eq!(outer["shortening_factor"], output[0]["shortening_factor"]);
            assert_eq!(outer["middle_steps"], output[0]["middle_steps"]);
            let steps = [outer, inner].map(|level| level["middle_steps"].as_u64().unwrap());
            assert!(steps[0] >= steps[1] && steps[1] > 0, "{output}");
            assert_eq!(inner["shortening_factor"].as_f64().unwrap(), steps[0] as f64 / steps[1] as f64);
        }
    }
}

#[test]
fn a_torch_file_gives_the_weights_of_safetensors() {
    let to = TempDir::new().unwrap();
    let written = convert(Source::Hnet, &golden_data("hnet-pt/two_stage"), to.path(), false).unwrap();
    let bytes = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(bytes(to.path()), bytes(&checkpoint("hnet", "two_stage")));
    assert!(written.parameters > 0 && written.shape.contains("2 levels"), "{}", written.shape);
}

/// Returns the mean length of each level's chunks, in units of the level around it, on English.
fn chunk_lengths(stages: &Value, dtype: Dtype) -> Vec<f64> {
    let mut shape = published_shape("hnet-41m.json");
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
    advance(&*model, std::slice::from_mut(&mut row), &[0], &mut model.scratch()).unwrap();
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
