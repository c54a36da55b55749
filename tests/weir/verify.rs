//! The second implementation: it agrees with weir on every shipped model, every golden checkpoint, and shapes that have every part
//! of every family.

use crate::{
    process::program,
    pyramidion::Shape,
    support::{GOLDEN, read_json, settings},
    *,
};
use safetensors::Dtype as Stored;
use weir::{
    models::{
        contract::{self, KeptVector},
        load::FAMILIES as ALL_FAMILIES,
    },
    verify::{
        Given, Input, Outputs, Reference, Report, Tolerance,
        load::FAMILIES,
        load::{load as reference, load_for},
        model_outputs, verify,
    },
};

/// Symbols of a text: the length up to which the smaller tolerance holds.
const SYMBOLS: usize = 160;

/// Returns a random input for a model, whose text has at most `limit` symbols. Documents leave room for padding.
fn limited_input(model: &dyn Model, limit: usize, seed: u64) -> Input {
    let mut rng = Random::new(seed);
    let card = model.card();
    let Some(encoder) = model.document_encoder() else {
        let length = SYMBOLS.min(card.max_symbols).min(limit);
        let symbols = text_symbols(model, &rng.text(length, card.vocabulary.len()));
        return Input { symbols, document: Vec::new() };
    };
    let limits = encoder.limits();
    let token = |rng: &mut Random| 4 + rng.below(card.vocabulary.len() - 4) as u32;
    let mut document: Vec<u32> = (0..(limits.tokens * 4 / 5).min(SYMBOLS - 1)).map(|_| token(&mut rng)).collect();
    document.push(limits.marks.end);
    let target = (1..limits.targets.min(40)).map(|_| token(&mut rng));
    Input { symbols: std::iter::once(limits.marks.start).chain(target).collect(), document }
}

fn input(model: &dyn Model, seed: u64) -> Input {
    limited_input(model, SYMBOLS, seed)
}

/// Verifies a model on an input of its own. The scores of some documents are closer than f32 resolves, and then the order of a
/// top-k pooling is not defined: of several documents, one must be verified.
fn compare(folder: &Path, model: &dyn Model, seed: u64) -> Report {
    let reference = load_for(&folder.into(), Dtype::parse(model.card().dtype).unwrap()).unwrap();
    let input = |seed| limited_input(model, reference.limit().symbols, seed);
    let mut report = verify(model, &*reference, &input(seed)).unwrap();
    for other in 1..8 {
        if (report.ok && report.boundaries_equal) || report.smallest_gap.is_none() {
            break;
        }
        report = verify(model, &*reference, &input(seed + 100 * other)).unwrap();
    }
    report
}

/// Both implementations of a checkpoint, an input and weir's outputs for it.
struct Both {
    model: Arc<dyn Model>,
    reference: Box<dyn Reference>,
    input: Input,
    weir: Outputs,
}

impl Both {
    fn new(folder: &Path, seed: u64) -> Self {
        Self::with_limit(folder, SYMBOLS, seed)
    }

    fn with_limit(folder: &Path, limit: usize, seed: u64) -> Self {
        let model = load(folder, &settings()).unwrap();
        let reference = reference(&folder.into()).unwrap();
        let input = limited_input(&*model, reference.limit().symbols.min(limit), seed);
        let weir = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
        Self { model, reference, input, weir }
    }

    /// Returns the reference's outputs with these boundaries.
    fn other(&self, ends: &[bool]) -> Outputs {
        self.reference.forward(&self.input, given(ends)).unwrap()
    }

    fn report(&self, weir: &Outputs, other: &Outputs) -> Report {
        Report::new(self.model.card(), &self.input, weir, other).unwrap()
    }
}

fn ends(outputs: &Outputs) -> Vec<bool> {
    outputs.boundaries.iter().map(|decision| decision.boundary).collect()
}

/// Asserts how the first difference of a report begins.
#[track_caller]
fn differs(report: &Report, start: &str) {
    assert!(report.first_difference.as_ref().is_some_and(|difference| difference.starts_with(start)), "{report:?}");
}

fn compare_with(folder: &Path, settings: &Settings, seed: u64) -> Report {
    compare(folder, &*load(folder, settings).unwrap(), seed)
}

/// Returns the folders of all shipped models.
fn shipped() -> Vec<PathBuf> {
    let folders = ["models", "models/compared"].map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    let entries = folders.into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let folders = entries.map(|entry| entry.unwrap().path());
    folders.filter(|folder| folder.join("model.safetensors").exists()).collect()
}

/// Returns the folders of all golden checkpoints, converted unless weir reads them as they are.
fn golden_checkpoints() -> Vec<PathBuf> {
    let cases = GOLDEN.into_iter().flat_map(|(folder, cases)| cases.iter().map(move |case| (folder, *case)));
    cases.chain([("lslm", "gpt2")]).map(|(folder, case)| checkpoint(folder, case)).collect()
}

pub(crate) fn check(folder: &Path, report: &Report) {
    let name = folder.display();
    assert_eq!(report.first_difference, None, "{name}: {report:?}");
    assert!(report.ok && report.boundaries_equal && report.max_rel <= report.tolerance, "{name}: {report:?}");
    let bits = [report.bits_per_char, report.bits_per_char_reference].map(Option::unwrap);
    assert!((bits[0] - bits[1]).abs() < 1e-4, "{name}: {report:?}");
}

/// Verifies a checkpoint and returns its family.
fn verified(folder: &Path) -> &'static str {
    let model = load(folder, &settings()).unwrap();
    let report = compare(folder, &*model, 1);
    check(folder, &report);
    // a padded document counts as the vectors that the decoder attends to
    let is_long = model.document_encoder().is_some_and(|encoder| {
        let limits = encoder.limits();
        limits.padded && limits.poolings.last().map_or(limits.tokens, |pooling| pooling.to) > SYMBOLS
    });
    assert_eq!(report.tolerance, if is_long { 1e-4 } else { 2e-5 }, "{}", folder.display());
    model.card().family
}

#[test]
fn every_shipped_model_is_verified() {
    let folders = shipped();
    assert!(folders.len() > 6, "{folders:?}");
    folders.iter().for_each(|folder| _ = verified(folder));
}

#[test]
fn every_golden_checkpoint_is_verified() {
    let families: BTreeSet<_> = golden_checkpoints().iter().map(|folder| verified(folder)).collect();
    let names = |list: &[(&'static str, _)]| list.iter().map(|(family, _)| *family).collect::<BTreeSet<_>>();
    assert_eq!(families, names(FAMILIES));
    assert_eq!(ALL_FAMILIES.iter().map(|(family, _)| *family).collect::<BTreeSet<_>>(), names(FAMILIES));
}

/// Shapes with random weights, which have every position scheme, window, pooling, scorer and kind of attention. Those of hourglasses
/// are verified by `hourglass::shapes_with_segments_and_large_logits_are_verified`.
#[test]
fn every_part_of_every_family_is_verified() {
    for (_, folder) in decoder::folders() {
        check(folder, &compare_with(folder, &settings(), 3));
    }
    for (_, folder) in lslm::shapes() {
        check(folder, &compare_with(folder, &settings(), 4));
    }
    for shape in Shape::with_length(320) {
        check(Path::new(shape.name), &compare(&shape.folder(), &*shape.model(Dtype::F32), 5));
    }
}

/// Each scheme and each window changes the logits of the reference.
#[test]
fn schemes_and_windows_give_different_logits() {
    let input = Input { symbols: Random::new(5).text(100, decoder::SYMBOLS.len()), document: Vec::new() };
    let logits = |folder: &Path| reference(&folder.into()).unwrap().forward(&input, Given::default()).unwrap().logits;
    for (name, folder) in decoder::folders() {
        let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        let own = logits(folder);
        for (key, plain) in [("window", "full"), ("position", "none")] {
            let copy = TempDir::new().unwrap();
            let mut changed = config.clone();
            changed["architecture"][key] = plain.into();
            fs::write(copy.path().join("config.json"), changed.to_string()).unwrap();
            fs::copy(folder.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
            let differ = own.iter().zip(logits(copy.path())).any(|(a, b)| (a - b).abs() > 1e-3);
            assert_eq!(differ, config["architecture"][key] != plain, "{name}: {key}");
        }
    }
}

/// A document of one token, and one that leaves no room.
#[test]
fn documents_of_extreme_lengths_are_verified() {
    for shape in Shape::with_length(160) {
        let model = shape.model(Dtype::F32);
        let folder = shape.folder();
        let reference = reference(&folder.as_path().into()).unwrap();
        for length in [1, 160] {
            let verified = (30..36).any(|seed| {
                let mut rng = Random::new(seed);
                let document = (0..length).map(|_| 4 + rng.below(model.card().vocabulary.len() - 4) as u32).collect();
                let input = Input { document, ..input(&*model, seed) };
                let report = verify(&*model, &*reference, &input).unwrap();
                assert!(report.ok || report.smallest_gap.is_some(), "{} {length}: {report:?}", shape.name);
                report.ok && report.boundaries_equal
            });
            assert!(verified, "{} {length}", shape.name);
        }
    }
}

/// The segments of generated text need not be the predictor's: weir replays a trace, and the reference gets its ends.
#[test]
fn segments_of_a_trace_are_verified() {
    for (name, folder) in lslm::shapes() {
        let model = load(folder, &settings()).unwrap();
        let input = input(&*model, 6);
        let mut rng = Random::new(6);
        let ends: Vec<bool> = input.symbols.iter().map(|_| rng.below(4) == 0).collect();
        let items = input.symbols.iter().zip(&ends).map(|(&symbol, &end)| contract::item(symbol, end)).collect();
        let traced = Input { symbols: items, document: Vec::new() };
        let weir = model_outputs(&*model, &traced, BoundaryOptions::default()).unwrap();
        let mut other = reference(&folder.as_path().into()).unwrap().forward(&input, given(&ends)).unwrap();
        assert!(other.boundaries.iter().zip(&ends).any(|(own, &end)| own.boundary != end), "{name}");
        for (decision, &end) in other.boundaries.iter_mut().zip(&ends) {
            decision.boundary = end;
        }
        let report = Report::new(model.card(), &input, &weir, &other).unwrap();
        assert!(report.ok && report.segments > 10, "{name}: {report:?}");
    }
}

fn given(boundaries: &[bool]) -> Given<'_> {
    Given { boundaries: Some(boundaries), ..Given::default() }
}

#[test]
fn every_instruction_set_and_number_format_is_verified() {
    for isa in Isa::all() {
        let texts = [
            converted("unigram"),
            checkpoint("torchscale", "xpos_bca"),
            checkpoint("lslm", "dp"),
            checkpoint("hnet", "two_stage"),
        ];
        let documents =
            [checkpoint("pyramidion", "deep"), checkpoint("t5", "mrt5"), checkpoint("t5", "longt5_tglobal")];
        for folder in texts.into_iter().chain(documents) {
            check(&folder, &compare_with(&folder, &Settings { isa, ..settings() }, 7));
        }
    }
    // The shipped models take a minute.
    let shipped = if long_runs() { shipped() } else { Vec::new() };
    let tokens = hugging_face::MODEL_TYPES.map(hugging_face::folder);
    let folders: Vec<PathBuf> = shipped.into_iter().chain(golden_checkpoints()).collect();
    // Models of tokens compute in f32.
    let folders: Vec<_> = folders.iter().filter(|folder| !tokens.contains(folder)).collect();
    // The outputs of four random H-Nets depend on single boundaries of inner stages and on single attention weights: rounding the
    // reference's own weights to int8 changes its logits by up to 0.78 of the largest.
    let unstable =
        ["one_stage_padded", "two_stage", "two_stage_padded", "mixed_letters"].map(|case| checkpoint("hnet", case));
    for dtype in [Dtype::Bf16, Dtype::Int8] {
        let fits = |folder: &PathBuf| dtype != Dtype::Int8 || !unstable.contains(folder);
        for folder in folders.iter().filter(|folder| fits(folder)) {
            let report = compare_with(folder, &Settings { dtype, ..settings() }, 8);
            assert!(report.ok && report.max_rel > 2e-5, "{} {}: {report:?}", dtype.name(), folder.display());
        }
    }
}

#[test]
fn models_in_int4_agree_within_its_tolerance() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let shipped = ["hourglass-english", "compared/hourglass-gumbel-6m"].map(|name| models.join(name));
    for folder in shipped.into_iter().chain(BLT_CASES.map(|case| checkpoint("blt", case))) {
        let report = compare_with(&folder, &Settings { dtype: Dtype::Int4, ..settings() }, 8);
        assert!(report.ok && report.max_rel > 0.01, "{}: {report:?}", folder.display());
    }
}

#[test]
fn tolerances_grow_with_length_and_fewer_bits() {
    let of = |dtype, symbols| Tolerance::new(dtype, symbols).logits;
    assert_eq!((of("f32", 160), of("f32", 161)), (2e-5, 1e-4));
    assert!(of("f32", 4096) < of("bf16", 10) && of("bf16", 10) < of("int8", 10));
    assert!(of("int8", 10) < of("int4", 10));
}

/// Type, shape and bytes of each tensor, by name.
pub(crate) type Tensors = BTreeMap<String, (Stored, Vec<usize>, Vec<u8>)>;

pub(crate) fn read_tensors(folder: &Path) -> Tensors {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let all = file.tensors().into_iter();
    all.map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))).collect()
}

/// Copies a checkpoint with one tensor multiplied by `factor`.
fn scaled_copy(folder: &Path, tensor: &str, factor: f32) -> TempDir {
    changed_copy(folder, |tensors| {
        let (dtype, _, data) = tensors.get_mut(tensor).unwrap();
        assert_eq!(*dtype, Stored::F32);
        for number in data.as_chunks_mut().0 {
            *number = (f32::from_le_bytes(*number) * factor).to_le_bytes();
        }
    })
}

/// Copies a checkpoint with changed tensors.
pub(crate) fn changed_copy(folder: &Path, change: impl FnOnce(&mut Tensors)) -> TempDir {
    let copy = TempDir::new().unwrap();
    let files = ["config.json", "tokenizer.json", "model.safetensors"];
    for file in files.into_iter().filter(|file| folder.join(file).exists()) {
        fs::copy(folder.join(file), copy.path().join(file)).unwrap();
    }
    edit_tensors(copy.path(), change);
    copy
}

/// Copies a checkpoint with changed tensors and a changed configuration.
pub(crate) fn changed_source(folder: &Path, change: impl FnOnce(&mut Value, &mut Tensors)) -> TempDir {
    let mut config = read_json(&folder.join("config.json"));
    let copy = changed_copy(folder, |tensors| change(&mut config, tensors));
    fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    copy
}

/// Changes the tensors of a checkpoint.
pub(crate) fn edit_tensors(folder: &Path, change: impl FnOnce(&mut Tensors)) {
    let mut tensors = read_tensors(folder);
    change(&mut tensors);
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// One tensor is scaled by 1.01 in the reference's copy only, or in weir's copy only. Short runs scale every other tensor; long runs do
/// both with every tensor.
#[test]
fn one_scaled_tensor_in_either_implementation_is_noticed() {
    let cases = [("dynamic-pooling", "unigram"), ("torchscale", "xpos_bca"), ("lslm", "small_encoder")];
    let encoders = [("hnet", "mixed_letters"), ("pyramidion", "pyramidion"), ("t5", "mrt5")];
    scaled_tensors_are_noticed(cases.into_iter().chain(encoders).map(|(folder, case)| checkpoint(folder, case)));
}

#[test]
fn one_scaled_tensor_of_a_hugging_face_model_is_noticed() {
    scaled_tensors_are_noticed(hugging_face::MODEL_TYPES.map(hugging_face::folder));
}

/// A change is noticed if it shows in the outputs. That of some tensors does not: norms and softmax remove it.
fn scaled_tensors_are_noticed(folders: impl IntoIterator<Item = PathBuf>) {
    for (number, folder) in folders.into_iter().enumerate() {
        let both = Both::with_limit(&folder, 80, 9);
        let zero = |data: &[u8]| data.as_chunks().0.iter().all(|&number| f32::from_le_bytes(number) == 0.0);
        let tensors = read_tensors(&folder).into_iter().filter(|(_, (_, _, data))| !zero(data));
        let stride = if long_runs() { 1 } else { 2 };
        let tensors: Vec<String> = tensors.map(|(name, _)| name).skip(number % stride).step_by(stride).collect();
        let mut noticed = 0;
        for (index, name) in tensors.iter().enumerate() {
            let copy = scaled_copy(&folder, name, 1.01);
            let changed = load(copy.path(), &settings()).unwrap();
            let outputs = model_outputs(&*changed, &both.input, BoundaryOptions::default()).unwrap();
            // twice the tolerance
            let report = both.report(&both.weir, &outputs);
            let decisions = report.max_abs_decision.unwrap_or(0.0) > 2.0 * report.tolerance_parts.decisions;
            if !decisions && report.boundaries_equal && report.max_rel <= 2.0 * report.tolerance {
                continue;
            }
            let sides = [true, false].into_iter().filter(|&first| long_runs() || first == (index % 2 == 0));
            for in_reference in sides {
                let weir = if in_reference { &both.weir } else { &outputs };
                let changed = in_reference.then(|| reference(&copy.path().into()).unwrap());
                let ends = ends(weir);
                let cut = if ends.is_empty() { Given::default() } else { given(&ends) };
                let expected = changed.as_ref().unwrap_or(&both.reference).forward(&both.input, cut).unwrap();
                let report = both.report(weir, &expected);
                assert!(!report.ok && report.first_difference.is_some(), "{} {name}: {report:?}", folder.display());
            }
            noticed += 1;
        }
        // The norms after Gemma's layers, and of Qwen's heads, remove the scale of many tensors.
        let most = if both.model.card().family == "hugging-face" { tensors.len() / 3 } else { tensors.len() * 8 / 10 };
        assert!(noticed > most, "{}: {noticed} of {} tensors", folder.display(), tensors.len());
    }
}

/// The sampled boundaries of weir follow the noise. The reference follows weir, so only the decision differs.
#[test]
fn a_boundary_that_noise_moves_is_noticed() {
    const SYMBOL: usize = 70;
    let both = Both::new(&converted("gumbel"), 10);
    let sampled = |noise: Vec<f32>| {
        let options = BoundaryOptions {
            mode: Some(BoundaryMode::Sampled),
            noise: Noise::Given(noise.into()),
            ..BoundaryOptions::default()
        };
        model_outputs(&*both.model, &both.input, options).unwrap()
    };
    let mut noise = vec![0.5; both.input.symbols.len()];
    let is_end = sampled(noise.clone()).boundaries[SYMBOL].boundary;
    noise[SYMBOL] = if is_end { 1e-6 } else { 1.0 - 1e-6 };
    let weir = sampled(noise);
    let report = both.report(&weir, &both.other(&ends(&weir)));
    let (yes, no) = if is_end { ("the reference", "weir") } else { ("weir", "the reference") };
    differs(&report, &format!("symbol {SYMBOL} is a boundary in {yes}, not in {no}, decided by "));
    assert_eq!((report.ok, report.boundaries_equal, report.boundary_differences), (false, false, 1));
    assert_eq!(report.first_boundary_difference, Some(SYMBOL));
    assert!(report.max_rel <= report.tolerance, "{report:?}");
}

/// A boundary is moved in the reference, whose logits differ from there on, or in weir's record only.
#[test]
fn a_moved_boundary_is_noticed() {
    for folder in [converted("gumbel"), checkpoint("hnet", "two_stage"), checkpoint("lslm", "dp")] {
        let both = Both::new(&folder, 11);
        let mut ends = ends(&both.weir);
        let plain = both.other(&ends);
        assert!(both.report(&both.weir, &plain).ok);
        for symbol in [1, 70] {
            ends[symbol] = !ends[symbol];
            let mut moved = both.other(&ends);
            moved.boundaries[symbol].boundary = ends[symbol];
            let mut recorded = both.weir.clone();
            recorded.boundaries[symbol].boundary = ends[symbol];
            for (weir, reference) in [(&both.weir, &moved), (&recorded, &plain)] {
                let report = both.report(weir, reference);
                differs(&report, &format!("symbol {symbol} is a boundary in "));
                assert_eq!((report.ok, report.first_boundary_difference), (false, Some(symbol)));
            }
            assert!(both.report(&both.weir, &moved).max_rel > 1e-3);
            ends[symbol] = !ends[symbol];
        }
    }
}

/// A vector that only one of the implementations keeps, or keeps at another place.
#[test]
fn a_moved_vector_of_a_pooling_is_noticed() {
    // Scores that are closer than f32 resolves have no order.
    let compared = (13..20).find_map(|seed| {
        let both = Both::new(&checkpoint("pyramidion", "pyramidion"), seed);
        let other = both.reference.forward(&both.input, Given::default()).unwrap();
        let report = both.report(&both.weir, &other);
        let is_clear = report.ok && report.smallest_gap.unwrap() > 3.0 * report.tolerance_parts.decisions;
        is_clear.then_some((both, other))
    });
    let (both, other) = compared.unwrap();
    let moved = |outputs: &Outputs| {
        let mut moved = outputs.clone();
        let kept = &mut moved.choices[0].kept;
        let last = kept.len() - 1;
        kept.swap(0, last);
        moved
    };
    for (weir, other) in [(&moved(&both.weir), &other), (&both.weir, &moved(&other))] {
        let report = both.report(weir, other);
        differs(&report, &format!("the pooling after layer {} keeps token ", weir.choices[0].layer));
        assert_eq!((report.ok, report.boundary_differences), (false, 2), "{report:?}");
        let ends = [&other.choices[0].kept[0], other.choices[0].kept.last().unwrap()].map(|kept| kept.token);
        assert_eq!(report.first_boundary_difference, ends.into_iter().min());
    }
}

/// A token that only one of the implementations deletes. The reference's vectors follow weir's decisions, as its boundaries do.
#[test]
fn a_deleted_token_in_one_implementation_is_noticed() {
    let both = Both::new(&checkpoint("t5", "mrt5"), 12);
    let Both { input, weir, .. } = &both;
    let kept: Vec<usize> = weir.choices[0].kept.iter().map(|kept| kept.token).collect();
    assert!(kept.len() > 2 && kept.len() < input.document.len(), "{kept:?}");
    let deleted = (0..input.document.len()).rfind(|token| !kept.contains(token)).unwrap();
    let other =
        |weir: &Outputs| both.reference.forward(input, Given { choices: &weir.choices, ..Given::default() }).unwrap();
    assert!(both.report(weir, &other(weir)).ok);
    for token in [kept[1], *kept.last().unwrap(), deleted] {
        let mut moved = weir.clone();
        let choice = &mut moved.choices[0].kept;
        match choice.iter().position(|kept| kept.token == token) {
            Some(index) => drop(choice.remove(index)),
            None => choice.push(KeptVector { token, score: -15.0 }),
        }
        choice.sort_by_key(|kept| kept.token);
        let (yes, no) = if token == deleted { ("weir", "the reference") } else { ("the reference", "weir") };
        let report = both.report(&moved, &other(&moved));
        let difference = report.first_difference.clone().unwrap();
        assert_eq!((report.ok, report.boundary_differences), (false, 1), "{report:?}");
        assert_eq!(report.first_boundary_difference, Some(token));
        // The reference kept what weir's record says, so its logits differ from weir's.
        assert!(report.max_rel > 1e-3, "{report:?}");
        // The decoder's symbols come first.
        let expected = format!("layer 3 keeps token {token} in {yes}, not in {no}, decided by ");
        assert!(difference.starts_with(&expected) || difference.starts_with("the logit of id "), "{difference}");
        // Logits of the model's own decisions, and the moved token only in its record.
        differs(&both.report(&moved, &other(weir)), &expected);
    }
}

/// A row of the head overflows on both sides, because candle-transformers also computes in f32.
#[test]
fn infinite_logits_are_not_verified() {
    let folder = hugging_face::folder("llama");
    let copy = changed_copy(&folder, |tensors| {
        let (_, shape, data) = tensors.get_mut("lm_head.weight").unwrap();
        let row = 4 * shape[1];
        for number in data[7 * row..8 * row].as_chunks_mut().0 {
            *number = 3e38f32.to_le_bytes();
        }
    });
    let (code, out, error) = run(&["--model", copy.path().to_str().unwrap(), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["ok"], json["max_rel"].is_null()), (1, &false.into(), true), "{out}");
    let difference = json["first_difference"].as_str().unwrap();
    assert!(difference.starts_with("the logit of id 7 for symbol "), "{difference}");
    assert!(difference.contains(" is not a finite number: ") && error.ends_with(&format!("{difference}\n")), "{error}");
}

#[test]
fn the_first_logit_that_is_not_finite_is_named() {
    let both = Both::with_limit(&hugging_face::folder("llama"), 12, 14);
    let plain = &both.weir;
    assert!(both.report(plain, plain).ok);
    let vocabulary = both.model.card().vocabulary.len();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut changed = plain.clone();
        changed.logits[4 * vocabulary + 7] = value;
        changed.logits[9 * vocabulary] = value;
        for (weir, other) in [(&changed, plain), (plain, &changed), (&changed, &changed)] {
            let report = both.report(weir, other);
            differs(&report, "the logit of id 7 for symbol 5 is not a finite number: ");
            assert_eq!((report.ok, report.max_abs, report.max_abs_symbol), (false, f64::INFINITY, 5));
        }
    }
}

/// A decision within the tolerance may differ, and its symbol is reported. A probability or margin that is not a number fails.
#[test]
fn the_first_boundary_that_differs_is_reported() {
    let both = Both::new(&converted("gumbel"), 10);
    let other = both.other(&ends(&both.weir));
    let report = |other: &Outputs| both.report(&both.weir, other);
    assert_eq!((report(&other).ok, report(&other).first_boundary_difference), (true, None));
    let with_margins = |margin: f64| {
        let mut moved = other.clone();
        for symbol in [70, 30, 90] {
            moved.boundaries[symbol].boundary = !moved.boundaries[symbol].boundary;
            moved.margins[symbol] = margin;
        }
        report(&moved)
    };
    let close = with_margins(1e-6);
    assert_eq!((close.ok, close.first_difference), (true, None));
    assert_eq!((close.boundary_differences, close.first_boundary_difference), (3, Some(30)));
    differs(&with_margins(f64::NAN), "symbol 30 is a boundary in ");
    let mut unknown = other.clone();
    unknown.boundaries[5].probability = Some(f32::NAN);
    differs(&report(&unknown), "the boundary's probability at symbol 5 is ");
}

/// Runs `weir verify`. Returns the exit code, stdout and stderr.
pub(crate) fn run(args: &[&str]) -> (i32, String, String) {
    let output = program(&["verify"]).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_prints_the_comparison() {
    let folder = converted("whitespaces");
    let model = folder.to_str().unwrap();
    let (code, out, error) = run(&["--model", model]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("160 symbols\n") && out.contains("boundaries          agree") && out.ends_with("verified\n"),
        "{out}"
    );
    let (code, out, _) = run(&["--model", model, "--ids", "1,2,0,3,4,0,5", "--isa", "portable", "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &json["ok"], &json["boundaries_equal"], &json["segments"]),
        (0, &true.into(), &true.into(), &2.into())
    );
    assert!(
        json["max_rel"].as_f64().unwrap() <= json["tolerance"].as_f64().unwrap() && json["max_abs"].is_number(),
        "{out}"
    );
    assert!(json["first_boundary_difference"].is_null(), "{out}");
    let document = checkpoint("pyramidion", "pyramidion");
    let args = ["--model", document.to_str().unwrap(), "--target-ids", "5,6,7", "--json"];
    let (code, out, error) = run(&args);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["symbols"], &json["document_tokens"]), (0, &4.into(), &64.into()), "{error}");
}

/// In int8 some decisions differ within the tolerance.
#[test]
fn the_command_prints_where_decisions_first_differ() {
    let texts = (converted("gumbel"), "boundaries  ", "symbol");
    let documents = (checkpoint("pyramidion", "pyramidion"), "kept vectors", "token");
    for (folder, unit, item) in [texts, documents] {
        let args = ["--model", folder.to_str().unwrap(), "--dtype", "int8", "--isa", "portable"];
        let (code, out, error) = run(&[&args[..], &["--json"]].concat());
        let json: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, json["boundary_differences"].as_u64() > Some(0)), (0, true), "{out}{error}");
        let (_, text, _) = run(&args);
        let count = &json["boundary_differences"];
        let expected =
            format!("\n{unit}        {count} differ, the first at {item} {}", json["first_boundary_difference"]);
        assert!(text.contains(&expected), "{expected}: {text}");
    }
}

/// Attention with scores of some thousands loses the differences between keys in f32.
#[test]
fn a_difference_ends_the_command_with_code_1() {
    let folder = scaled_copy(&converted("whitespaces"), "post.0.attention.qkv.weight", 30.0);
    let model = folder.path().to_str().unwrap();
    let (code, out, error) = run(&["--model", model, "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["ok"]), (1, &false.into()));
    let difference = json["first_difference"].as_str().unwrap();
    assert!(error.ends_with(&format!("is not verified: {difference}\n")) && error.starts_with("weir: "), "{error}");
    assert!(difference.contains("symbol "), "{difference}");
    let (code, out, _) = run(&["--model", model]);
    assert_eq!(code, 1);
    assert!(out.ends_with(&format!("not verified: {difference}\n")), "{out}");
}
