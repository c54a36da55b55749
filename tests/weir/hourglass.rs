//! Hourglasses in shapes that the official fixtures lack: d_head ≠ d_model / n_heads, a vocabulary with a newline and non-ASCII
//! letters whose space is not id 0, ReLU, last-token pooling, and boundaries at the entropy spikes of another model. The
//! tests of `verify` compare their logits and boundaries with a second implementation; these test entropy models and text.

use crate::{
    process::{weir, weir_json},
    support::{config_error, copied, edit_json, remove_card, settings},
    verify::{changed_copy, check, edit_tensors, run},
    *,
};
use safetensors::Dtype as Stored;
use weir::{
    models::load::{self},
    verify::{Input, load::load as reference, model_outputs, verify},
};

/// Returns the entropy of softmax(x).
fn entropy(x: &[f64]) -> f64 {
    let total: f64 = x.iter().map(|x| x.exp()).sum();
    -x.iter().map(|x| (x.exp() / total) * (x.exp() / total).ln()).sum::<f64>()
}

/// An entropy model with a shorter training length accepts texts as long as its model's, because a prefill feeds both.
#[test]
fn an_entropy_model_accepts_the_lengths_of_its_model() {
    let root = TempDir::new().unwrap();
    let folder = spikes(root.path(), &config(json!({"pre": 1}), json!({"kind": "none"}), &[]));
    edit_json(&folder.join("config.json"), |config| config["training_length"] = json!(2500));
    let model = load(&folder, &settings()).unwrap();
    assert_eq!(model.card().max_symbols, 10_000);
    let mut alone = Alone::new(&*model, BoundaryOptions::default());
    // The limit of the entropy model alone is 8,192.
    for chunk in Random::new(5).text(8_200, SYMBOLS.len()).chunks(512) {
        alone.rows[0].set(chunk, Want::Nothing);
        advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
    }
    assert_eq!(alone.rows[0].state.len(), 8_200);
}

/// Fixed boundaries of an entropy model count from the start of the whole stream.
#[test]
fn an_entropy_model_keeps_the_phase_of_the_stream() {
    let root = TempDir::new().unwrap();
    let folder = spikes(root.path(), &config(three_stacks(), json!({"kind": "fixed", "every": 5}), &[]));
    let model = load(&folder, &settings()).unwrap();
    let entropy_model = load(&folder.join("companion"), &settings()).unwrap();
    let text = Random::new(3).text(70, SYMBOLS.len());
    let closes = |offset| {
        let (_, marks) = full(&*model, &text, &BoundaryOptions { offset, ..Default::default() });
        marks.iter().map(|mark| mark.boundary).collect::<Vec<_>>()
    };
    let (logits, _) = full(&*entropy_model, &text, &BoundaryOptions { offset: 3, ..Default::default() });
    let wide = |logits: &[f32]| logits.iter().map(|&logit| f64::from(logit)).collect::<Vec<_>>();
    let entropies: Vec<f64> = logits.chunks(SYMBOLS.len()).map(|logits| entropy(&wide(logits))).collect();
    let spike = |t: usize| entropies[t.saturating_sub(2)..t].iter().all(|&before| entropies[t] > before);
    assert_eq!(closes(3), (0..text.len()).map(spike).collect::<Vec<_>>());
    assert_ne!(closes(3), closes(0));
}

/// Pooling reads as many outputs as the window keeps, also directly after a rollback to the earliest length that is possible.
#[test]
fn hops_reach_as_far_as_the_window() {
    let root = TempDir::new().unwrap();
    // A segment ends with symbol `every`, the first one after the rollback.
    for (name, window, hops, every) in [
        ("sliding", json!({"sliding": {"keys": 8}}), 7, 519),
        ("blockwise", json!({"blockwise": {"length": 22}}), 11, 363),
    ] {
        let shape = |hops: usize| {
            let extra = [("window", window.clone()), ("pooling", json!({"hops": hops}))];
            config(three_stacks(), json!({"kind": "fixed", "every": every}), &extra)
        };
        let model = load(&write(root.path(), name, &shape(hops), 7), &settings()).unwrap();
        let text = Random::new(5).text(every + 41, SYMBOLS.len());
        let (logits, marks) = full(&*model, &text, &BoundaryOptions::default());
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        alone.feed(&text[..every + 36]);
        text[every + 36..].iter().for_each(|&symbol| drop(alone.feed(&[symbol])));
        assert_eq!(alone.rows[0].state.earliest(), every, "{name}");
        alone.rows[0].state.rollback(every).unwrap();
        let again = alone.feed(&text[every..]);
        assert!(again.1[0].boundary, "{name}");
        assert_eq!(again, (logits[every * SYMBOLS.len()..].to_vec(), marks[every..].to_vec()), "{name}");
        let message = config_error(&shape(hops + 1));
        let expected = format!("config.json: architecture.pooling.hops: expected at most {hops} (");
        assert!(message.starts_with(&expected) && message.ends_with(&format!("found {}", hops + 1)), "{message}");
    }
    let one_key = [("window", json!({"sliding": {"keys": 1}}))];
    let message = config_error(&config(three_stacks(), json!({"kind": "fixed", "every": 5}), &one_key));
    assert!(message.contains("architecture.window.sliding.keys: expected at least 2 ("), "{message}");
}

#[test]
fn text_of_an_unusual_vocabulary_round_trips() {
    let (_, model) = shapes().into_iter().find(|(name, _)| name == "odd-shape").unwrap();
    let vocabulary = &model.card().vocabulary;
    let text = "語 é\nł😀 שa";
    let ids = vocabulary.encode("text", text, usize::MAX).unwrap();
    assert_eq!(ids, [6, 3, 2, 1, 4, 8, 3, 5, 7]);
    assert_eq!(vocabulary.decode(&ids), text);
    // A newline closes no segment, a space does.
    let (_, marks) = full(&*model, &ids, &BoundaryOptions::default());
    let closes: Vec<bool> = marks.iter().map(|mark| mark.boundary).collect();
    assert_eq!(closes, [false, true, false, false, false, false, true, false, false]);
}

/// Vocabulary whose space has id 3.
const SYMBOLS: [&str; 9] = ["e", "\n", "é", " ", "ł", "ש", "語", "a", "😀"];

/// Returns a configuration with these layers and boundaries.
fn config(layers: Value, boundaries: Value, extra: &[(&str, Value)]) -> Value {
    let pooled = boundaries["kind"] != "none";
    let mut architecture = json!({
        "layers": layers, "dim": 24, "heads": 3, "head_dim": 10, "feed_forward": 40, "activation": "gelu",
        "layer_norm_eps": 1e-5, "position": "transformer-xl", "boundaries": boundaries,
    });
    if pooled {
        architecture["pooling"] = json!("mean");
    }
    for (key, value) in extra {
        architecture[*key] = value.clone();
    }
    json!({
        "format": "weir/1", "family": "hourglass", "vocabulary": {"symbols": SYMBOLS}, "normaliser": "none",
        "training_length": 64, "architecture": architecture,
    })
}

fn three_stacks() -> Value {
    json!({"pre": 2, "middle": 2, "post": 1})
}

/// Writes a checkpoint with random weights, large enough that every part shows in the logits.
pub(crate) fn write(root: &Path, name: &str, config: &Value, seed: u64) -> PathBuf {
    let file = root.join(format!("{name}.json"));
    let to = root.join(name);
    fs::write(&file, config.to_string()).unwrap();
    load::init(&file, &to, seed, false).unwrap();
    randomise(&to, seed);
    to
}

/// Replaces the weights of a checkpoint.
fn randomise(folder: &Path, seed: u64) {
    remove_card(folder);
    let mut rng = Random::new(seed);
    edit_tensors(folder, |tensors| {
        for (name, (.., data)) in tensors {
            if ["position.inverse_frequency", "position.frequency", "position.slopes"].contains(&&**name) {
                continue;
            }
            let centre = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
            // Weights are larger, so that the predictor's output varies between symbols.
            let width = if name.starts_with("boundary.") { 300.0 } else { 3000.0 };
            for number in data.as_chunks_mut().0 {
                let value = centre + (rng.below(2001) as f32 - 1000.0) / width;
                *number = value.to_le_bytes();
            }
        }
    });
}

/// Returns boundaries after every third ASCII character, so that random bytes and small ids close segments.
fn separators() -> Value {
    let symbols: String = (0..128u8).step_by(3).map(char::from).collect();
    json!({"kind": "whitespace", "symbol": symbols})
}

/// Returns name and folder of each shape.
fn folders() -> &'static [(String, PathBuf)] {
    static SHAPES: LazyLock<(TempDir, Vec<(String, PathBuf)>)> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        let whitespace = json!({"kind": "whitespace", "symbol": " "});
        let learned = json!({"kind": "learned", "hidden": 17, "threshold": 0.4});
        let last = ("pooling", json!("last"));
        let xpos = || ("position", json!({"xpos": {"scale_base": 40}}));
        let blocks = |length: usize| ("window", json!({"blockwise": {"length": length}}));
        let middle = |window: Value| ("middle_window", window);
        let list = [
            ("odd-shape", config(three_stacks(), whitespace.clone(), &[])),
            ("relu", config(three_stacks(), json!({"kind": "fixed", "every": 5}), &[("activation", json!("relu"))])),
            ("last", config(three_stacks(), whitespace.clone(), std::slice::from_ref(&last))),
            ("learned", config(three_stacks(), learned.clone(), &[])),
            ("every-symbol", config(three_stacks(), json!({"kind": "fixed", "every": 1}), &[])),
            ("plain", config(json!({"pre": 3}), json!({"kind": "none"}), &[])),
            (
                "windows",
                config(three_stacks(), whitespace.clone(), &[blocks(22), middle(json!({"sliding": {"keys": 6}}))]),
            ),
            ("xpos-windows", config(three_stacks(), whitespace.clone(), &[xpos(), blocks(64), middle(blocks(8).1)])),
            ("xpos-last", config(three_stacks(), whitespace, &[xpos(), blocks(32), middle(blocks(64).1), last])),
            ("plain-windows", config(json!({"pre": 3}), json!({"kind": "none"}), &[xpos(), blocks(64)])),
        ];
        let mut folders: Vec<_> = Vec::new();
        for (seed, (name, config)) in list.into_iter().enumerate() {
            folders.push((name.to_string(), write(root.path(), name, &config, seed as u64 + 1)));
        }
        // With this seed the predictor closes some segments.
        let windows = config(three_stacks(), learned, &[xpos(), blocks(22), middle(json!({"sliding": {"keys": 5}}))]);
        folders.push(("learned-windows".to_string(), write(root.path(), "learned-windows", &windows, 4)));
        let blocks_22 = blocks(22);
        for (name, mut config) in [
            ("ngrams-windows", config(three_stacks(), separators(), &[blocks_22.clone(), middle(blocks(6).1)])),
            ("ended-ngrams", config(three_stacks(), separators(), &[blocks_22.clone(), middle(blocks(6).1)])),
            ("plain-ngrams-windows", config(json!({"pre": 2}), json!({"kind": "none"}), &[blocks_22])),
        ] {
            let bytes = !name.starts_with("plain");
            let sizes = if bytes { json!([3, 4, 5]) } else { json!([2, 7]) };
            config["architecture"]["ngrams"] = json!({"sizes": sizes, "rows": 61});
            if name.starts_with("ended") {
                config["vocabulary"] = json!({"bytes": true, "end": 3});
            } else if bytes {
                config["vocabulary"] = json!({"bytes": true});
            }
            folders.push((name.to_string(), write(root.path(), name, &config, 13)));
        }
        let flat = config(json!({"pre": 2}), json!({"kind": "none"}), &[("dim", json!(16))]);
        folders.push(("spikes".to_string(), spikes(root.path(), &flat)));
        (root, folders)
    });
    &SHAPES.1
}

/// Writes a model whose boundaries are the entropy spikes of another one.
fn spikes(root: &Path, entropy_model: &Value) -> PathBuf {
    fs::write(root.join("companion.json"), entropy_model.to_string()).unwrap();
    let kind = json!({"kind": "entropy-spikes", "window": 2, "companion": "companion"});
    let to = write(root, "spikes", &config(three_stacks(), kind, &[]), 11);
    randomise(&to.join("companion"), 12);
    to
}

/// Loads all shapes.
pub(crate) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    folders().iter().map(|(name, folder)| (name.clone(), load(folder, &settings()).unwrap())).collect()
}

/// Returns the folder of a shape.
pub(crate) fn folder(name: &str) -> &'static Path {
    &folders().iter().find(|(own, _)| own == name).unwrap().1
}

#[test]
fn bf16_matrices_are_the_rounded_matrices() {
    let root = TempDir::new().unwrap();
    let folders = ["f32", "bf16"].map(|format| created(root.path(), format));
    let files = folders.each_ref().map(|folder| fs::read(folder.join("model.safetensors")).unwrap());
    let [whole, half] = files.each_ref().map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    assert_eq!(whole.len(), half.len());
    for (name, tensor) in whole.tensors() {
        let stored = half.tensor(&name).unwrap();
        if tensor.shape().len() == 1 {
            assert_eq!(stored, tensor, "{name}");
            continue;
        }
        let rounded = tensor
            .data()
            .as_chunks()
            .0
            .iter()
            .flat_map(|&number| half::bf16::from_f32(f32::from_le_bytes(number)).to_le_bytes());
        assert_eq!((stored.dtype(), stored.shape()), (safetensors::Dtype::BF16, tensor.shape()), "{name}");
        assert!(stored.data().iter().copied().eq(rounded), "{name}");
    }
    load(&folders[1], &settings()).unwrap();
}

/// Creates a checkpoint with `weir init` in this format.
fn created(root: &Path, format: &str) -> PathBuf {
    let file = root.join("shape.json");
    let extra = [("ngrams", json!({"sizes": [2, 3], "rows": 31}))];
    let boundaries = json!({"kind": "whitespace", "symbol": " "});
    fs::write(&file, config(three_stacks(), boundaries, &extra).to_string()).unwrap();
    let to = root.join(format);
    weir(&["init", "--dtype", format, "--config", file.to_str().unwrap(), to.to_str().unwrap()]).unwrap();
    to
}

/// Copies an int8 checkpoint with f32 matrices of the same numbers. Returns the folder and the number of int8 matrices.
fn widened(folder: &Path) -> (TempDir, usize) {
    let mut matrices = 0;
    let copy = changed_copy(folder, |tensors| {
        let names: Vec<String> = tensors.keys().filter(|name| name.ends_with("_scale")).cloned().collect();
        for name in names {
            matrices += 1;
            let (.., scales) = tensors.remove(&name).unwrap();
            let (dtype, shape, data) = tensors.get_mut(name.trim_end_matches("_scale")).unwrap();
            assert_eq!(*dtype, Stored::I8);
            let rows = data.chunks(shape[1]).zip(scales.as_chunks().0);
            let widen = |byte: &u8, scale: [u8; 4]| f32::from(byte.cast_signed()) * f32::from_le_bytes(scale);
            let wide = rows.flat_map(|(row, &scale)| row.iter().flat_map(move |byte| widen(byte, scale).to_le_bytes()));
            (*dtype, *data) = (Stored::F32, wide.collect());
        }
    });
    (copy, matrices)
}

#[test]
fn an_int8_checkpoint_computes_what_its_widened_copy_computes() {
    let root = TempDir::new().unwrap();
    let folder = created(root.path(), "int8");
    let (copy, matrices) = widened(&folder);
    assert!(matrices > 20, "{matrices}");
    let text = Random::new(3).text(60, SYMBOLS.len());
    for dtype in Dtype::ALL {
        let settings = Settings { dtype, ..settings() };
        let [own, wide] = [&*folder, copy.path()].map(|folder| {
            let model = load(folder, &settings).unwrap();
            full(&*model, &text, &BoundaryOptions::default())
        });
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&own.0), bits(&wide.0), "{}", dtype.name());
        assert_eq!(own.1, wide.1);
    }
}

#[test]
fn the_stored_type_is_inspected() {
    let root = TempDir::new().unwrap();
    let [whole, short] = ["f32", "int8"].map(|format| created(root.path(), format));
    let inspected = weir_json(&["inspect", "--json", short.to_str().unwrap()]);
    let tensors = inspected["tensors"].as_array().unwrap();
    for tensor in tensors {
        let shape: Vec<usize> = serde_json::from_value(tensor["shape"].clone()).unwrap();
        let expected = match shape[..] {
            [rows, columns] => ("I8", rows * columns + 4 * rows),
            _ => ("F32", 4 * shape.iter().product::<usize>()),
        };
        assert_eq!(
            (tensor["dtype"].as_str().unwrap(), tensor["bytes"].as_u64().unwrap() as usize),
            expected,
            "{tensor}"
        );
    }
    let names: Vec<_> = tensors.iter().map(|tensor| tensor["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"ngrams.3.weight") && !names.iter().any(|name| name.ends_with("_scale")), "{names:?}");
    let size = |folder: &Path| fs::metadata(folder.join("model.safetensors")).unwrap().len();
    assert!(2 * size(&short) < size(&whole), "{} of {}", size(&short), size(&whole));
    let text = weir(&["inspect", short.to_str().unwrap()]).unwrap();
    assert!(text.lines().any(|line| line.starts_with("ngrams.3.weight ") && line.contains("  I8  ")), "{text}");
}

#[test]
fn the_second_implementation_reads_int8() {
    let root = TempDir::new().unwrap();
    let folder = created(root.path(), "int8");
    let text = root.path().join("text");
    fs::write(&text, "ea eał e語 a😀e\nשe").unwrap();
    for dtype in ["f32", "int8"] {
        let args = ["--model", folder.to_str().unwrap(), "--dtype", dtype, "--file", text.to_str().unwrap()];
        let (code, out, error) = run(&args);
        assert_eq!(code, 0, "{out}{error}");
    }
}

/// Loads a fixture of `models/training/tests/ngrams_golden.py`.
fn model(case: &str) -> Arc<dyn Model> {
    load(&golden_data("ngrams").join(case), &settings()).unwrap()
}

#[test]
fn the_card_of_a_model_with_ngrams_states_them() {
    for (case, parameters, shape) in [
        ("pooled", 17_888, "1+1+1 layers × 16, 2 heads × 8, boundaries after \" \\n\", n-grams of 3, 4, 5 × 40 rows"),
        (
            "vanilla",
            6_481,
            "2 layers × 16, 2 heads × 8, no boundaries (vanilla), n-grams of 2, 7 × 29 rows, blocks of 16",
        ),
    ] {
        let model = model(case);
        assert!(model.card().shape.starts_with(shape), "{}", model.card().shape);
        assert_eq!(model.card().parameters, parameters, "{case}");
    }
}

/// The list of recent symbols is shortened as windows move on. A fork and a rollback of a long sequence still find the symbols of
/// their n-grams.
#[test]
fn a_long_sequence_keeps_few_symbols() {
    for case in ["pooled", "vanilla"] {
        let model = model(case);
        let text = Random::new(5).text(13_000, model.card().vocabulary.len());
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let mut own_bytes = Vec::new();
        for chunk in text[..12_000].chunks(500) {
            alone.rows[0].set(chunk, Want::Nothing);
            advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
            own_bytes.push(alone.rows[0].state.own_bytes());
        }
        assert_eq!(own_bytes[5], own_bytes[23], "{case}: {own_bytes:?}");
        let mut fork = Alone::from(&*model, SequenceRow::new(alone.rows[0].state.fork()));
        let (logits, marks) = alone.feed(&text[12_000..12_040]);
        assert_eq!(fork.feed(&text[12_000..12_040]), (logits.clone(), marks), "{case}");
        alone.rows[0].state.rollback(12_020).unwrap();
        let again = alone.feed(&text[12_020..12_040]).0;
        assert_eq!(again[..], logits[logits.len() / 2..], "{case}");
    }
}

/// Verifies each shape on texts in which some but not all symbols end segments, and whose logits are large enough to show a mistake.
#[test]
fn shapes_with_segments_and_large_logits_are_verified() {
    for (name, model) in shapes() {
        let reference = reference(&folder(&name).into()).unwrap();
        for seed in 1..4 {
            let mut symbols = Random::new(seed).text(160, SYMBOLS.len());
            symbols.iter_mut().step_by(6).for_each(|symbol| *symbol = 3); // spaces
            let input = Input { symbols, ..Input::default() };
            let outputs = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
            let ends = outputs.boundaries.iter().filter(|decision| decision.boundary).count();
            match &*name {
                "plain" | "plain-windows" | "plain-ngrams-windows" => assert!(outputs.boundaries.is_empty(), "{name}"),
                "every-symbol" => assert_eq!(ends, 160),
                _ => assert!(0 < ends && ends < 160, "{name} {seed}: {ends} of 160 symbols end a segment"),
            }
            let spread = outputs.logits.iter().fold(0f64, |top, logit| top.max(logit.abs()));
            assert!(spread > 0.5, "{name} {seed}: logits too small to show a mistake");
            let report = verify(&*model, &*reference, &input).unwrap();
            check(folder(&name), &report);
            assert_eq!(report.segments, ends, "{name} {seed}: {report:?}");
        }
    }
}

fn english() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/english.txt").to_str().unwrap().to_owned()
}

#[test]
fn a_trained_model_guesses_from_ngrams_and_writes_the_same_text() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    let checkpoint = copied(&shipped);
    let dir = checkpoint.path().to_str().unwrap();
    let generate = |speculate: &str| {
        let args = ["generate", "--json", "--model", dir, "--prompt", "the history of ", "--max-chars", "100"];
        weir_json(&[&args[..], &["--temperature", "0.5", "--seed", "3", "--speculate", speculate]].concat())
    };
    let plain = generate("off");
    let written = weir_json(&["ngrams", "--json", "--slots", "65536", &english(), dir]);
    assert_eq!((written["slots"].as_u64(), written["bytes"].as_u64()), (Some(65536), Some(24 + 8 * 65536)));
    assert!(written["contexts"].as_u64().unwrap() > 500 && written["symbols"].as_u64().unwrap() > 1000, "{written}");
    let drafted = generate("8");
    assert_eq!(drafted["text"], plain["text"]);
    assert_eq!(drafted["boundaries"], plain["boundaries"]);
    let count = |key: &str| drafted["usage"][key].as_u64().unwrap();
    assert!(count("drafted_chars") > count("accepted_chars") && count("accepted_chars") > 5, "{}", drafted["usage"]);
    assert_eq!(plain["usage"]["drafted_chars"], 0);
    let steps = |output: &Value| output["timing"]["steps"].as_u64().unwrap();
    assert_eq!(steps(&drafted) + count("accepted_chars"), steps(&plain));
    let inspected = weir_json(&["inspect", "--json", dir]);
    assert_eq!(inspected["speculates"], true);
}
