//! Golden data of the official codes: logits, boundaries and greedy texts of every family that only reads what precedes a symbol,
//! and the output of every stage of an hourglass.

use crate::support::{read_json, settings};
use crate::*;
use safetensors::Dtype;
use weir::engine::score::{score_window, windows};
use weir::kernels::distribution::log_probability;
use weir::models::contract::{Exactness, state_ref};
use weir::models::family::hourglass::{HourglassStage, HourglassState, Work};

/// SPEC §11: logits up to T = 160, logits at 2,048, intermediate results.
const LOGITS: f32 = 2e-5;

const LOGITS_LONG: f32 = 1e-4;
const STAGES: f32 = 5e-5;

/// The golden tensors of a fixture.
pub(crate) struct Golden(BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Golden {
    /// Reads the golden tensors of a fixture's folder.
    pub(crate) fn open(folder: &Path) -> Self {
        Self::read_file(&folder.join("golden.safetensors"))
    }

    /// Reads the tensors of a file, such as one that `--logits` wrote.
    pub(crate) fn read_file(file: &Path) -> Self {
        let bytes = fs::read(file).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let numbers = |view: &safetensors::tensor::TensorView<'_>| -> Vec<f32> {
            let data = view.data();
            let four = |chunk: &[u8]| <[u8; 4]>::try_from(chunk).unwrap();
            match view.dtype() {
                Dtype::F32 => data.chunks(4).map(|chunk| f32::from_le_bytes(four(chunk))).collect(),
                Dtype::I32 => data.chunks(4).map(|chunk| i32::from_le_bytes(four(chunk)) as f32).collect(),
                Dtype::I64 => data.as_chunks().0.iter().map(|&eight| i64::from_le_bytes(eight) as f32).collect(),
                Dtype::U8 => data.iter().map(|&byte| f32::from(byte)).collect(),
                other => panic!("{other:?}"),
            }
        };
        let tensors = file.tensors();
        Self(tensors.into_iter().map(|(name, view)| (name, (view.shape().to_vec(), numbers(&view)))).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> &[f32] {
        &self.0.get(name).unwrap_or_else(|| panic!("no golden {name}")).1
    }

    /// Returns the part of a tensor at `index` of its first dimension.
    pub(crate) fn row(&self, name: &str, index: usize) -> &[f32] {
        let (shape, data) = &self.0[name];
        let size = data.len() / shape[0];
        &data[index * size..(index + 1) * size]
    }

    pub(crate) fn shape(&self, name: &str) -> &[usize] {
        &self.0[name].0
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).iter().map(|&id| id as u32).collect()
    }

    pub(crate) fn row_ids(&self, name: &str, index: usize) -> Vec<u32> {
        self.row(name, index).iter().map(|&id| id as u32).collect()
    }

    pub(crate) fn texts(&self, name: &str) -> Vec<Vec<u32>> {
        (0..self.shape(name)[0]).map(|row| self.row_ids(name, row)).collect()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }
}

fn bits(marks: &[SymbolBoundary]) -> Vec<f32> {
    marks.iter().map(|mark| f32::from(u8::from(mark.boundary))).collect()
}

/// The texts of every family: folder of tests/golden, cases, prefixes of the texts' tensors, the largest difference of a logit,
/// and whether the text's largest logit is its unit.
const TEXTS: [(&str, &[&str], &[&str], f32, bool); 7] = [
    ("dynamic-pooling", &CASES, &["", "edge0.", "edge1.", "edge2.", "edge3.", "edge4."], LOGITS, false),
    ("dynamic-pooling", &CASES, &["long."], LOGITS_LONG, false),
    ("ngrams", &["pooled", "vanilla"], &[""], 2e-5, false),
    ("torchscale", &decoder::CASES, &[""], decoder::LOGITS, false),
    ("hnet", &HNET_CASES, &["s0.", "s1.", "s2."], 5e-5, true),
    ("hugging-face", &hugging_face::MODEL_TYPES, &[""], 1e-4, true),
    ("blt", &BLT_CASES, &["s0.", "s1.", "s2.", "s3.", "s4."], 5e-5, true),
];

/// Symbols of a text that is also fed in steps: [`a_long_text_is_equal_in_steps_and_chunks`] feeds longer ones.
const STEPPED: usize = 160;

/// Compares a text with its golden data, which `text` returns by their names: logits at all or some positions, boundaries of the
/// outermost level, and their probabilities. The bits are the same in steps of any size, or the logits near where a card says so.
fn check_text<'a>(model: &dyn Model, text: &dyn Fn(&str) -> Option<&'a [f32]>, limit: f32, relative: bool, name: &str) {
    let ids: Vec<u32> = text("ids").or(text("tokens")).unwrap().iter().map(|&id| id as u32).collect();
    let symbols = model.card().vocabulary.len();
    let near = |logits: &[f32], expected: &str, how: &str| {
        let expected = text(expected).unwrap();
        let unit =
            if relative { expected.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs())) } else { 1.0 };
        let error = difference(logits, expected) / unit;
        assert!(error <= limit, "{name}, {how}: {error}");
    };
    let chosen = |logits: &[f32]| match text("positions").or(text("rows")) {
        Some(positions) => {
            positions.iter().flat_map(|&at| logits[at as usize * symbols..][..symbols].to_vec()).collect()
        }
        None => logits.to_vec(),
    };
    let whole = full(model, &ids, &BoundaryOptions::default());
    near(&chosen(&whole.0), "logits", "in one step");
    if let Some(expected) = text("incremental.logits") {
        near(&whole.0[whole.0.len() - expected.len()..], "incremental.logits", "the official steps");
    }
    match text("boundaries").or(text("level0.boundary")).or(text("boundary")) {
        Some(expected) => assert_eq!(bits(&whole.1), expected, "{name}"),
        None => assert_eq!(whole.1.iter().any(|mark| mark.boundary), model.card().pooled, "{name}"),
    }
    let sigmoid = |logits: &[f32]| logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect();
    let probabilities = text("level0.boundary_prob").map(<[f32]>::to_vec).or(text("boundary_logits").map(sigmoid));
    if let Some(expected) = probabilities {
        let actual: Vec<f32> = whole.1.iter().map(|mark| mark.probability.unwrap()).collect();
        assert!(difference(&actual, &expected) < 1e-5, "{name}");
    }
    if let Some(expected) = text("entropies") {
        let actual: Vec<f32> = whole.1.iter().map(|mark| mark.entropy.unwrap()).collect();
        assert!(difference(&actual, expected) < 5e-5, "{name}");
    }
    for size in [1, 7, 37].into_iter().filter(|_| ids.len() <= STEPPED) {
        let mut alone = Alone::new(model, BoundaryOptions::default());
        let (logits, marks): (Vec<_>, Vec<_>) = ids.chunks(size).map(|part| alone.feed(part)).unzip();
        match model.card().exactness {
            Exactness::Bitwise => {
                assert!((logits.concat(), marks.concat()) == whole, "{name}: other bits in steps of {size}")
            }
            _ => near(&chosen(&logits.concat()), "logits", &format!("in steps of {size}")),
        }
    }
}

#[test]
fn logits_and_boundaries_equal_the_golden_data_in_steps_of_any_size() {
    for (folder, cases, prefixes, limit, relative) in TEXTS {
        for (case, isa) in cases.iter().flat_map(|case| Isa::all().into_iter().map(move |isa| (case, isa))) {
            let golden = Golden::open(&golden_data(folder).join(case));
            let model = load(&checkpoint(folder, case), &Settings { isa, ..settings() }).unwrap();
            for prefix in prefixes {
                let named = |name: &str| format!("{prefix}{name}");
                // The cases of one family have different numbers of texts.
                let Some(ids) = [named("ids"), named("tokens")].into_iter().find(|name| golden.has(name)) else {
                    assert!(folder == "blt" && ["s3.", "s4."].contains(prefix), "{folder} {case} has no {prefix}");
                    continue;
                };
                // Some tensors have a text in each row.
                let rows = if let [rows, _] = *golden.shape(&ids) { Some(rows) } else { None };
                for row in 0..rows.unwrap_or(1) {
                    let text = |name: &str| match rows {
                        _ if !golden.has(&named(name)) => None,
                        Some(_) => Some(golden.row(&named(name), row)),
                        None => Some(golden.get(&named(name))),
                    };
                    check_text(
                        &*model,
                        &text,
                        limit,
                        relative,
                        &format!("{folder} {case}, {prefix}{row}, {}", isa.name()),
                    );
                }
            }
        }
    }
}

/// Returns the most probable symbols after a prompt, of those from `first`.
fn greedy(model: &dyn Model, prompt: &[u32], count: usize, first: usize) -> Vec<u32> {
    let mut alone = Alone::new(model, BoundaryOptions::default());
    let symbols = model.card().vocabulary.len();
    let mut logits = alone.feed(prompt).0;
    let mut written = Vec::new();
    while written.len() < count {
        let last = &logits[logits.len() - symbols..];
        written.push((first..symbols).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap() as u32);
        logits = alone.feed(&written[written.len() - 1..]).0;
    }
    written
}

#[test]
fn greedy_texts_equal_the_golden_data() {
    let mut compared = 0;
    for (folder, cases, ..) in TEXTS {
        for case in cases {
            let from = golden_data(folder).join(case);
            let golden = Golden::open(&from);
            let (prompt, expected, first) = match folder {
                "torchscale" if golden.has("greedy.tokens") => {
                    let mut prompt = golden.row_ids("greedy.tokens", 0);
                    let length = read_json(&from.join("config.json"))["greedy_prompt_len"].as_u64().unwrap();
                    let expected = prompt.split_off(length as usize);
                    (prompt, expected, 0)
                }
                "hnet" | "blt" => (golden.ids("greedy.prompt_ids"), golden.ids("greedy.ids"), 0),
                // The end mark has id 0.
                "hugging-face" => (golden.ids("ids")[..20].to_vec(), golden.ids("greedy"), 1),
                _ => continue,
            };
            let model = load(&checkpoint(folder, case), &settings()).unwrap();
            assert_eq!(greedy(&*model, &prompt, expected.len(), first), expected, "{folder} {case}");
            compared += 1;
        }
    }
    assert_eq!(compared, 14 + HNET_CASES.len() + hugging_face::MODEL_TYPES.len() + BLT_CASES.len());
}

/// Weights in fewer bits change the logits slightly. The largest logit is about 3; the limits are twice the measured
/// differences.
#[test]
fn fewer_bits_stay_near() {
    for (dtype, max, mean) in [(weir::kernels::Dtype::Bf16, 0.05, 0.008), (weir::kernels::Dtype::Int8, 0.2, 0.03)] {
        let mut worst = 0f32;
        let mut sum = 0f64;
        let mut count = 0;
        // These fixtures have boundaries that do not depend on weights.
        for case in ["whitespaces", "fixed_sf2", "fixed_sf3", "vanilla"] {
            let golden = Golden::open(&golden_data("dynamic-pooling").join(case));
            let model = fixture_in(case, dtype);
            for (row, ids) in golden.texts("ids").iter().enumerate() {
                let (logits, marks) = full(&*model, ids, &BoundaryOptions::default());
                if golden.has("boundaries") {
                    assert_eq!(bits(&marks), golden.row("boundaries", row), "{case} row {row}");
                }
                for (actual, expected) in logits.iter().zip(golden.row("logits", row)) {
                    worst = worst.max((actual - expected).abs());
                    sum += f64::from((actual - expected).abs());
                    count += 1;
                }
            }
        }
        let average = sum / f64::from(count);
        assert!(worst <= max && average <= mean, "{dtype:?}: at most {worst}, {average} on average");
        assert!(worst > LOGITS, "{dtype:?}: nothing was stored in fewer bits");
    }
}

#[test]
fn every_stage_equals_the_golden_data() {
    for case in CASES {
        let golden = Golden::open(&golden_data("dynamic-pooling").join(case));
        let model = fixture(case);
        for row in 0..2 {
            let ids = golden.row_ids("ids", row);
            let seen: Arc<Mutex<Vec<(HourglassStage, usize, Vec<f32>)>>> = Arc::default();
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let record = seen.clone();
            work_mut::<Work>(&mut alone.scratch).unwrap().watcher = Some(Box::new(move |stage, position, numbers| {
                record.lock().unwrap().push((stage, position.index, numbers.to_vec()));
            }));
            // The text is fed in two chunks, so that some segments straddle both.
            alone.feed(&ids[..41]);
            alone.feed(&ids[41..]);
            let check = |stage: HourglassStage, name: &str, skip: usize| {
                let name = format!("row{row}.{name}");
                let mut actual: Vec<_> =
                    seen.lock().unwrap().iter().filter(|entry| entry.0 == stage).cloned().collect();
                actual.sort_by_key(|entry| entry.1);
                let flat: Vec<f32> = actual.into_iter().flat_map(|entry| entry.2).collect();
                let expected = golden.get(&name);
                let max_error = difference(&flat, &expected[skip..]);
                assert!(max_error <= STAGES, "{case} {name}: {max_error}");
            };
            check(HourglassStage::PreOutput, "stack0_out", 0);
            if case == "vanilla" {
                continue;
            }
            let state: &HourglassState = state_ref(&*alone.rows[0].state).unwrap();
            let null = state.pooled().unwrap().middle.output(0);
            let dim = null.len();
            // Index 0 of the shortened sequence is the null group, which is computed when the model is loaded.
            check(HourglassStage::Pooled, "pooled_raw", dim);
            check(HourglassStage::PooledNormed, "pooled_ln", dim);
            check(HourglassStage::MiddleOutput, "stack1_out", dim);
            check(HourglassStage::PostInput, "stack2_in", 0);
            check(HourglassStage::PostOutput, "stack2_out", 0);
            assert!(difference(null, &golden.get(&format!("row{row}.stack1_out"))[..dim]) <= STAGES);
        }
    }
}

/// A text longer than two blocks of distances and many pages has the same logits symbol by symbol, in chunks that straddle
/// the blocks, and with any number of threads.
#[test]
fn a_long_text_is_equal_in_steps_and_chunks() {
    const SYMBOLS: usize = 1_150;
    let cases = ["vanilla", "fixed_sf2", "whitespaces"];
    for (case, dtype) in cases.into_iter().flat_map(|case| weir::kernels::Dtype::ALL.map(|dtype| (case, dtype))) {
        let golden = Golden::open(&golden_data("dynamic-pooling").join(case));
        let model = fixture_in(case, dtype);
        let ids = &golden.ids("long.ids")[..SYMBOLS];
        let options = BoundaryOptions::default();
        let complete = full(&*model, ids, &options);
        for threads in [1, 3] {
            let other = load(&converted(case), &Settings { dtype, threads, ..settings() }).unwrap();
            assert!(full(&*other, ids, &options) == complete, "{case} on {threads} threads");
        }
        for chunk in [1, 37, 500] {
            let mut alone = Alone::new(&*model, options.clone());
            let mut logits = Vec::new();
            let mut marks = Vec::new();
            for part in ids.chunks(chunk) {
                let step = alone.feed(part);
                logits.extend(step.0);
                marks.extend(step.1);
            }
            assert!(logits == complete.0 && marks == complete.1, "{case} in chunks of {chunk}");
        }
    }
}

#[test]
fn sampled_boundaries_with_the_official_noise_equal_the_golden_data() {
    let golden = Golden::open(&golden_data("dynamic-pooling/gumbel"));
    let model = fixture("gumbel");
    for (row, ids) in golden.texts("ids").iter().enumerate() {
        let noise = Noise::Given(golden.row("sampled.u", row).into());
        let options = BoundaryOptions { mode: Some(BoundaryMode::Sampled), noise, ..BoundaryOptions::default() };
        let (logits, marks) = full(&*model, ids, &options);
        assert_eq!(bits(&marks), golden.row("sampled.boundaries", row));
        let max_error = difference(&logits, golden.row("sampled.logits", row));
        assert!(max_error <= LOGITS, "{max_error}");
    }
}

#[test]
fn windowed_evaluation_equals_the_official_figures() {
    for case in CASES {
        let model = fixture(case);
        let eval = read_json(&golden_data("dynamic-pooling").join(case).join("eval.json"));
        let number = |key: &str| eval[key].as_u64().unwrap() as usize;
        let rows = number("bsz");
        let stride = number("eval_tgt_len");
        let length = number("eval_total_len");
        let text: Vec<char> = eval["text"].as_str().unwrap().chars().collect();
        let per_row = text.len() / rows;
        let encode = |row: usize| {
            let text: String = text[row * per_row..(row + 1) * per_row].iter().collect();
            model.card().vocabulary.encode("text", &text, usize::MAX).unwrap()
        };
        let texts: Vec<Vec<u32>> = (0..rows).map(encode).collect();
        let expected = eval["windows"].as_array().unwrap();
        let mut nats = 0.0;
        let mut scored = 0;
        for (window, expected) in windows(per_row, WindowOptions { length, stride }).zip(expected) {
            assert_eq!(window.start as u64, expected["context_start"].as_u64().unwrap());
            let mut window_nats = 0.0;
            let mut window_scored = 0;
            for text in &texts {
                let mut score = |position: usize, logits: &[f32], _| {
                    window_nats -= log_probability(logits, text[position + 1])?;
                    window_scored += 1;
                    Ok(())
                };
                score_window(&*model, text, window, &BoundaryOptions::default(), &mut score).unwrap();
            }
            let error = window_nats / window_scored as f64 - expected["loss_nats"].as_f64().unwrap();
            assert!(error.abs() < 1e-5, "{case} window {}: {error}", window.start);
            nats += window_nats;
            scored += window_scored;
        }
        assert_eq!(windows(per_row, WindowOptions { length, stride }).count(), expected.len());
        let bpc = nats / scored as f64 / std::f64::consts::LN_2;
        assert!((bpc - eval["bpc"].as_f64().unwrap()).abs() < 1e-5, "{case}: {bpc}");
    }
}
