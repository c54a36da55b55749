//! A change in either implementation is noticed: a scaled tensor, a moved boundary, a moved vector, a deleted token.

use super::*;
use safetensors::{Dtype as Stored, SafeTensors, tensor::TensorView};
use weir::decode::{
    contract::{BoundaryMode, Noise},
    document::KeptVector,
};

/// Type, shape and bytes of each tensor, by name.
pub(in super::super) type Tensors = BTreeMap<String, (Stored, Vec<usize>, Vec<u8>)>;

fn read_tensors(folder: &Path) -> Tensors {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let all = file.tensors().into_iter();
    all.map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))).collect()
}

/// Copies a checkpoint with one tensor multiplied by `factor`.
pub(super) fn scaled_copy(folder: &Path, tensor: &str, factor: f32) -> TempDir {
    changed_copy(folder, |tensors| {
        let (dtype, _, data) = tensors.get_mut(tensor).unwrap();
        assert_eq!(*dtype, Stored::F32);
        for number in data.as_chunks_mut().0 {
            *number = (f32::from_le_bytes(*number) * factor).to_le_bytes();
        }
    })
}

/// Copies a checkpoint with changed tensors.
pub(in super::super) fn changed_copy(folder: &Path, change: impl FnOnce(&mut Tensors)) -> TempDir {
    let copy = TempDir::new().unwrap();
    for file in ["config.json", "tokenizer.json"].into_iter().filter(|file| folder.join(file).exists()) {
        fs::copy(folder.join(file), copy.path().join(file)).unwrap();
    }
    let mut tensors = read_tensors(folder);
    change(&mut tensors);
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(copy.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    copy
}

/// Returns true if two outputs of weir differ clearly: by twice the tolerance.
fn differ_clearly(model: &dyn Model, input: &Input, outputs: [&Outputs; 2]) -> bool {
    let report = Report::new(model.card(), input, outputs[0], outputs[1]).unwrap();
    let decisions = report.max_abs_decision.unwrap_or(0.0) > 2.0 * report.tolerance_parts.decisions;
    decisions || !report.boundaries_equal || report.max_rel > 2.0 * report.tolerance
}

/// One tensor is scaled by 1.01 in the reference's copy only, or in weir's copy only; the long storms do both with every tensor.
/// A change is noticed if it shows in the outputs. That of some tensors does not: norms and softmax remove it.
#[test]
fn one_scaled_tensor_in_either_implementation_is_noticed() {
    let hourglass = converted("unigram");
    let segments = lslm_converted("small_encoder");
    let stages = hnet_converted("mixed_letters");
    let encoders = [pyramidion_converted("pyramidion"), t5_converted("mrt5")];
    let tokens = hugging_face::MODEL_TYPES.map(hugging_face::folder);
    let texts = [hourglass, lex::converted("xpos_bca"), segments, stages];
    for folder in texts.into_iter().chain(encoders).chain(tokens) {
        let model = load(&folder, &settings()).unwrap();
        let limit = reference(&folder.as_path().into()).unwrap().limit();
        let input = limited_input(&*model, limit.symbols.min(80), 9);
        let plain = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
        let zero = |data: &[u8]| data.as_chunks().0.iter().all(|&number| f32::from_le_bytes(number) == 0.0);
        let tensors = read_tensors(&folder).into_iter().filter(|(_, (_, _, data))| !zero(data));
        let tensors: Vec<String> = tensors.map(|(name, _)| name).collect();
        let mut noticed = 0;
        for (index, name) in tensors.iter().enumerate() {
            let copy = scaled_copy(&folder, name, 1.01);
            let changed = load(copy.path(), &settings()).unwrap();
            let outputs = model_outputs(&*changed, &input, BoundaryOptions::default()).unwrap();
            if !differ_clearly(&*model, &input, [&plain, &outputs]) {
                continue;
            }
            let sides = [(&plain, copy.path()), (&outputs, &*folder)];
            let chosen = if storms() { &sides[..] } else { &sides[index % 2..][..1] };
            for (weir, other) in chosen {
                let ends: Vec<bool> = weir.boundaries.iter().map(|decision| decision.boundary).collect();
                let cut = if ends.is_empty() { Given::default() } else { given(&ends) };
                let expected = reference(&(*other).into()).unwrap().forward(&input, cut).unwrap();
                let report = Report::new(model.card(), &input, weir, &expected).unwrap();
                assert!(!report.ok && report.first_difference.is_some(), "{} {name}: {report:?}", folder.display());
            }
            noticed += 1;
        }
        // The norms after Gemma's layers, and those of Qwen's heads, remove the scale of many tensors.
        let most = if model.card().family == "hugging-face" { tensors.len() / 3 } else { tensors.len() * 8 / 10 };
        assert!(noticed > most, "{}: {noticed} of {} tensors", folder.display(), tensors.len());
    }
}

/// Moves the boundary at `symbol`, and returns both sides' report. The decision is moved in the reference if `in_reference`, else
/// in weir, whose sampled boundaries follow the noise.
fn moved(symbol: usize, in_reference: bool) -> (Report, Outputs) {
    let folder = converted("gumbel");
    let model = load(&folder, &settings()).unwrap();
    let reference = reference(&folder.as_path().into()).unwrap();
    let input = input(&*model, 10);
    let mut noise = vec![0.5f32; input.symbols.len()];
    let thresholds = |noise: Vec<f32>| BoundaryOptions {
        mode: Some(BoundaryMode::Sampled),
        noise: Noise::Given(noise.into()),
        ..BoundaryOptions::default()
    };
    let plain = model_outputs(&*model, &input, thresholds(noise.clone())).unwrap();
    let cuts = |outputs: &Outputs| outputs.boundaries.iter().map(|decision| decision.boundary).collect::<Vec<_>>();
    if in_reference {
        let mut ends = cuts(&plain);
        ends[symbol] = !ends[symbol];
        let mut other = reference.forward(&input, given(&ends)).unwrap();
        other.boundaries[symbol].boundary = ends[symbol];
        return (Report::new(model.card(), &input, &plain, &other).unwrap(), plain);
    }
    noise[symbol] = if plain.boundaries[symbol].boundary { 1e-6 } else { 1.0 - 1e-6 };
    let weir = model_outputs(&*model, &input, thresholds(noise)).unwrap();
    let other = reference.forward(&input, given(&cuts(&weir))).unwrap();
    (Report::new(model.card(), &input, &weir, &other).unwrap(), plain)
}

#[test]
fn one_moved_boundary_in_either_implementation_is_noticed() {
    const SYMBOL: usize = 70;
    for in_reference in [true, false] {
        let (report, plain) = moved(SYMBOL, in_reference);
        let ends_in_weir = plain.boundaries[SYMBOL].boundary == in_reference;
        let (yes, no) = if ends_in_weir { ("weir", "the reference") } else { ("the reference", "weir") };
        let expected = format!("symbol {SYMBOL} is a boundary in {yes}, not in {no}, decided by ");
        let difference = report.first_difference.clone().unwrap();
        assert!(difference.starts_with(&expected), "{difference}");
        assert_eq!((report.ok, report.boundaries_equal, report.boundary_differences), (false, false, 1));
        assert_eq!(report.first_boundary_difference, Some(SYMBOL));
        // A reference that moved its boundary has other logits from there on; one that follows weir has the same.
        assert_eq!(report.max_rel > report.tolerance, in_reference, "{report:?}");
    }
}

/// Boundaries of an H-Net and of a latent segment model have no hook on weir's side: there the recorded decision is negated.
#[test]
fn a_moved_boundary_of_a_learned_predictor_is_noticed() {
    for folder in [hnet_converted("two_stage"), lslm_converted("dp")] {
        a_moved_boundary_is_noticed(&folder);
    }
}

fn a_moved_boundary_is_noticed(folder: &Path) {
    let model = load(folder, &settings()).unwrap();
    let reference = reference(&folder.into()).unwrap();
    let input = input(&*model, 11);
    let weir = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
    let mut ends: Vec<bool> = weir.boundaries.iter().map(|decision| decision.boundary).collect();
    let plain = reference.forward(&input, given(&ends)).unwrap();
    assert!(Report::new(model.card(), &input, &weir, &plain).unwrap().ok);
    for symbol in [1, 70] {
        ends[symbol] = !ends[symbol];
        let mut moved = reference.forward(&input, given(&ends)).unwrap();
        moved.boundaries[symbol].boundary = ends[symbol];
        let mut recorded = weir.clone();
        recorded.boundaries[symbol].boundary = ends[symbol];
        for (weir, reference) in [(&weir, &moved), (&recorded, &plain)] {
            let report = Report::new(model.card(), &input, weir, reference).unwrap();
            let difference = report.first_difference.unwrap();
            assert!(difference.starts_with(&format!("symbol {symbol} is a boundary in ")), "{difference}");
        }
        assert!(Report::new(model.card(), &input, &weir, &moved).unwrap().max_rel > 1e-3);
        ends[symbol] = !ends[symbol];
    }
}

/// A vector that only one of the implementations keeps, or keeps at another place.
#[test]
fn a_moved_vector_of_a_pooling_is_noticed() {
    let folder = pyramidion_converted("pyramidion");
    let model = load(&folder, &settings()).unwrap();
    let reference = reference(&folder.as_path().into()).unwrap();
    // Scores that are closer than f32 resolves have no order.
    let compared = (13..20).find_map(|seed| {
        let input = input(&*model, seed);
        let weir = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
        let other = reference.forward(&input, Given::default()).unwrap();
        let report = Report::new(model.card(), &input, &weir, &other).unwrap();
        (report.ok && report.smallest_gap.unwrap() > 3.0 * report.tolerance_parts.decisions)
            .then_some((input, weir, other))
    });
    let (input, weir, other) = compared.unwrap();
    let moved = |outputs: &Outputs| {
        let mut moved = outputs.clone();
        let kept = &mut moved.choices[0].kept;
        let last = kept.len() - 1;
        kept.swap(0, last);
        moved
    };
    for (weir, other) in [(&moved(&weir), &other), (&weir, &moved(&other))] {
        let report = Report::new(model.card(), &input, weir, other).unwrap();
        let difference = report.first_difference.clone().unwrap();
        let expected = format!("the pooling after layer {} keeps token ", weir.choices[0].layer);
        assert!(difference.starts_with(&expected), "{difference}");
        assert_eq!((report.ok, report.boundary_differences), (false, 2), "{report:?}");
        let ends = [&other.choices[0].kept[0], other.choices[0].kept.last().unwrap()].map(|kept| kept.token);
        assert_eq!(report.first_boundary_difference, ends.into_iter().min());
    }
}

/// A token that only one of the implementations deletes. The reference's vectors follow weir's decisions, as its boundaries do.
#[test]
fn a_deleted_token_in_one_implementation_is_noticed() {
    let folder = t5_converted("mrt5");
    let model = load(&folder, &settings()).unwrap();
    let reference = reference(&folder.as_path().into()).unwrap();
    let input = input(&*model, 12);
    let weir = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
    let kept: Vec<usize> = weir.choices[0].kept.iter().map(|kept| kept.token).collect();
    assert!(kept.len() > 2 && kept.len() < input.document.len(), "{kept:?}");
    let deleted = (0..input.document.len()).rfind(|token| !kept.contains(token)).unwrap();
    let follow = |weir: &Outputs| {
        let given = Given { choices: &weir.choices, ..Given::default() };
        let other = reference.forward(&input, given).unwrap();
        Report::new(model.card(), &input, weir, &other).unwrap()
    };
    assert!(follow(&weir).ok);
    for token in [kept[1], *kept.last().unwrap(), deleted] {
        let mut moved = weir.clone();
        let choice = &mut moved.choices[0].kept;
        match choice.iter().position(|kept| kept.token == token) {
            Some(index) => drop(choice.remove(index)),
            None => choice.push(KeptVector { token, score: -15.0 }),
        }
        choice.sort_by_key(|kept| kept.token);
        let (yes, no) = if token == deleted { ("weir", "the reference") } else { ("the reference", "weir") };
        let report = follow(&moved);
        let difference = report.first_difference.clone().unwrap();
        assert_eq!((report.ok, report.boundary_differences), (false, 1), "{report:?}");
        assert_eq!(report.first_boundary_difference, Some(token));
        // The reference kept what weir's record says, so its logits differ from weir's.
        assert!(report.max_rel > 1e-3, "{report:?}");
        // The decoder's symbols come first.
        let expected = format!("layer 3 keeps token {token} in {yes}, not in {no}, decided by ");
        assert!(difference.starts_with(&expected) || difference.starts_with("the logit of id "), "{difference}");
        // Logits of the model's own decisions, and the moved token only in its record.
        let own = reference.forward(&input, Given { choices: &weir.choices, ..Given::default() }).unwrap();
        let report = Report::new(model.card(), &input, &moved, &own).unwrap();
        assert!(report.first_difference.clone().unwrap().starts_with(&expected), "{report:?}");
    }
}

/// A row of the head overflows on both sides, as candle-transformers computes in f32, too.
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
    let folder = hugging_face::folder("llama");
    let model = load(&folder, &settings()).unwrap();
    let input = limited_input(&*model, 12, 14);
    let plain = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
    assert!(Report::new(model.card(), &input, &plain, &plain).unwrap().ok);
    let vocabulary = model.card().vocabulary.len();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut changed = plain.clone();
        changed.logits[4 * vocabulary + 7] = value;
        changed.logits[9 * vocabulary] = value;
        for (weir, other) in [(&changed, &plain), (&plain, &changed), (&changed, &changed)] {
            let report = Report::new(model.card(), &input, weir, other).unwrap();
            let difference = report.first_difference.clone().unwrap();
            let expected = "the logit of id 7 for symbol 5 is not a finite number: ";
            assert!(!report.ok && difference.starts_with(expected), "{difference}");
            assert_eq!((report.max_abs, report.max_abs_symbol), (f64::INFINITY, 5));
        }
    }
}

/// A decision within the tolerance may differ, and its symbol is reported. A probability or margin that is not a number fails.
#[test]
fn the_first_boundary_that_differs_is_reported() {
    let folder = converted("gumbel");
    let model = load(&folder, &settings()).unwrap();
    let input = input(&*model, 10);
    let weir = model_outputs(&*model, &input, BoundaryOptions::default()).unwrap();
    let ends: Vec<bool> = weir.boundaries.iter().map(|decision| decision.boundary).collect();
    let other = reference(&folder.as_path().into()).unwrap().forward(&input, given(&ends)).unwrap();
    let report = |other: &Outputs| Report::new(model.card(), &input, &weir, other).unwrap();
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
    let unknown = with_margins(f64::NAN);
    assert!(unknown.first_difference.unwrap().starts_with("symbol 30 is a boundary in "));
    let mut unknown = other.clone();
    unknown.boundaries[5].probability = Some(f32::NAN);
    assert!(report(&unknown).first_difference.unwrap().starts_with("the boundary's probability at symbol 5 is "));
}
