//! Golden data of the official code for each fixture: logits, boundaries, and the output of every stage.

use crate::{
    support::{golden, read_json, settings},
    *,
};
use safetensors::Dtype;
use weir::{
    engine::score::{score_window, windows},
    models::{
        contract::state_ref,
        family::hourglass::{HourglassStage, HourglassState, Work},
    },
};

/// SPEC §11: logits up to T = 160, logits at 2,048, intermediate results.
const LOGITS: f32 = 2e-5;

const LOGITS_LONG: f32 = 1e-4;

const STAGES: f32 = 5e-5;

/// The golden tensors of a fixture.
pub(crate) struct Golden(BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Golden {
    fn read(case: &str) -> Self {
        Self::open(&golden(case))
    }

    /// Reads the golden tensors of a fixture's folder.
    pub(crate) fn open(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("golden.safetensors")).unwrap();
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

#[test]
fn logits_and_boundaries_equal_the_golden_data() {
    for case in CASES {
        let golden = Golden::read(case);
        let models = Isa::all().into_iter().map(|isa| load(&converted(case), &Settings { isa, ..settings() }).unwrap());
        let all = models.flat_map(|model| (0..golden.shape("ids")[0]).map(move |row| (model.clone(), row)));
        for (model, row) in all {
            let ids = golden.row_ids("ids", row);
            let (logits, marks) = full(&*model, &ids, &BoundaryOptions::default());
            let max_error = difference(&logits, golden.row("logits", row));
            assert!(max_error <= LOGITS, "{case} row {row}: {max_error}");
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let stepped: Vec<f32> = ids.iter().flat_map(|&id| alone.feed(&[id]).0).collect();
            assert_eq!(stepped, logits, "{case} row {row}: single steps differ from one pass");
            if golden.has("boundaries") {
                assert_eq!(bits(&marks), golden.row("boundaries", row), "{case} row {row}");
            } else {
                assert!(marks.iter().all(|mark| !mark.boundary));
            }
            if golden.has("boundary_logits") {
                for (mark, logit) in marks.iter().zip(golden.row("boundary_logits", row)) {
                    let expected = 1.0 / (1.0 + (-logit).exp());
                    assert!((mark.probability.unwrap() - expected).abs() < 1e-5, "{case}");
                }
            }
        }
    }
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
            let golden = Golden::read(case);
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
        let golden = Golden::read(case);
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

#[test]
fn edge_prompts_equal_the_golden_data() {
    for case in CASES {
        let golden = Golden::read(case);
        let model = fixture(case);
        for edge in 0..5 {
            let ids = golden.ids(&format!("edge{edge}.ids"));
            let (logits, marks) = full(&*model, &ids, &BoundaryOptions::default());
            let max_error = difference(&logits, golden.get(&format!("edge{edge}.logits")));
            assert!(max_error <= LOGITS, "{case} edge {edge}: {max_error}");
            if golden.has("boundaries") {
                assert_eq!(bits(&marks), golden.get(&format!("edge{edge}.boundaries")), "{case} edge {edge}");
            }
        }
    }
}

#[test]
fn two_thousand_symbols_equal_the_golden_data() {
    for case in CASES {
        let golden = Golden::read(case);
        let model = fixture(case);
        let symbols = model.card().vocabulary.len();
        let (logits, marks) = full(&*model, &golden.ids("long.ids"), &BoundaryOptions::default());
        if golden.has("long.boundaries") {
            assert_eq!(bits(&marks), golden.get("long.boundaries"), "{case}");
        }
        for (index, position) in golden.ids("long.positions").into_iter().enumerate() {
            let actual = &logits[position as usize * symbols..][..symbols];
            let max_error = difference(actual, golden.row("long.logits", index));
            assert!(max_error <= LOGITS_LONG, "{case} at {position}: {max_error}");
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
        let golden = Golden::read(case);
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
    let golden = Golden::read("gumbel");
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
        let eval = read_json(&golden(case).join("eval.json"));
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
                let score =
                    score_window(&*model, text, window, &BoundaryOptions::default(), &mut |_, _, _| Ok(())).unwrap();
                window_nats += score.nats;
                window_scored += score.scored;
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
