//! Checkpoints whose matrices are stored in int8.

use super::{
    shapes::{SYMBOLS, config, three_stacks},
    *,
};
use crate::cli::{json as printed, weir};
use safetensors::{Dtype as Stored, SafeTensors, tensor::TensorView};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use weir::{family::load::Settings, kernels::Dtype};

/// Creates a checkpoint with `weir init` in this format.
fn created(root: &Path, format: &str) -> PathBuf {
    let file = root.join("shape.json");
    let extra = [("ngrams", json!({"sizes": [2, 3], "rows": 31}))];
    let boundaries = json!({"kind": "whitespace", "symbol": " "});
    fs::write(&file, config(three_stacks(), boundaries, &extra).to_string()).unwrap();
    let to = root.join(format);
    weir(&[], &["init", "--dtype", format, "--config", file.to_str().unwrap(), to.to_str().unwrap()]).unwrap();
    to
}

/// Copies an int8 checkpoint with f32 matrices of the same numbers. Returns the folder and the number of int8 matrices.
fn widened(folder: &Path, root: &Path) -> (PathBuf, usize) {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |view: &TensorView| -> Vec<f32> {
        view.data().as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect()
    };
    let mut all: BTreeMap<String, (Vec<usize>, Vec<f32>)> = BTreeMap::new();
    let mut matrices = 0;
    for (name, view) in stored.tensors() {
        let shape = view.shape().to_vec();
        if view.dtype() == Stored::I8 {
            matrices += 1;
            let scales = floats(&stored.tensor(&format!("{name}_scale")).unwrap());
            let rows = view.data().chunks(shape[1]).zip(scales);
            let numbers =
                rows.flat_map(|(row, scale)| row.iter().map(move |&byte| f32::from(byte.cast_signed()) * scale));
            all.insert(name, (shape, numbers.collect()));
        } else if !name.ends_with("_scale") {
            all.insert(name, (shape, floats(&view)));
        }
    }
    let copy = root.join("widened");
    fs::create_dir(&copy).unwrap();
    fs::copy(folder.join("config.json"), copy.join("config.json")).unwrap();
    let bytes: BTreeMap<&String, Vec<u8>> = all
        .iter()
        .map(|(name, (_, numbers))| (name, numbers.iter().flat_map(|number| number.to_le_bytes()).collect()))
        .collect();
    let views = all
        .iter()
        .map(|(name, (shape, _))| (name.clone(), TensorView::new(Stored::F32, shape.clone(), &bytes[name]).unwrap()));
    fs::write(copy.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    (copy, matrices)
}

#[test]
fn an_int8_checkpoint_computes_what_its_widened_copy_computes() {
    let root = TempDir::new().unwrap();
    let folder = created(root.path(), "int8");
    let (copy, matrices) = widened(&folder, root.path());
    assert!(matrices > 20, "{matrices}");
    let text = Dice::new(3).text(60, SYMBOLS.len());
    for dtype in Dtype::ALL {
        let settings = Settings { dtype, ..settings() };
        let [own, wide] = [&folder, &copy].map(|folder| {
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
    let inspected = printed(&["inspect", "--json", short.to_str().unwrap()]);
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
    let text = weir(&[], &["inspect", short.to_str().unwrap()]).unwrap();
    assert!(text.lines().any(|line| line.starts_with("ngrams.3.weight ") && line.contains("  I8  ")), "{text}");
}

#[cfg(feature = "candle")]
#[test]
fn the_second_implementation_reads_int8() {
    let root = TempDir::new().unwrap();
    let folder = created(root.path(), "int8");
    let text = root.path().join("text");
    fs::write(&text, "ea eał e語 a😀e\nשe").unwrap();
    for dtype in ["f32", "int8"] {
        let args = ["--model", folder.to_str().unwrap(), "--dtype", dtype, "--file", text.to_str().unwrap()];
        let (code, out, error) = crate::verify::run(&args);
        assert_eq!(code, 0, "{out}{error}");
    }
}
