//! Matrices in int8: `NAME` has type I8, and `NAME_scale` has an f32 scale for each of its rows. The names follow Hugging Face's
//! compressed-tensors. The value of an element is its integer times the scale of its row, computed in f32.

use super::{
    TensorSpec,
    header::{FileDtype, Header, TensorEntry},
};
use crate::error::{Error, Result};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

/// Suffix of the name of a matrix's scales.
const SUFFIX: &str = "_scale";
/// The largest integer. The range is symmetric, as in the kernels, so −128 is refused.
const MAX: f32 = 127.0;
/// The largest scale whose product with [`MAX`] is finite.
const MAX_SCALE: f32 = (f32::MAX / MAX).next_down();

/// Returns the name of the scales of a matrix.
pub(super) fn scale_name(matrix: &str) -> String {
    format!("{matrix}{SUFFIX}")
}

/// Returns the names of the scales that files may hold in addition to the tensors of `specs`: those of its matrices.
pub(super) fn possible_scales(specs: &[TensorSpec]) -> BTreeSet<String> {
    let matrices = specs.iter().filter(|spec| spec.shape.len() == 2);
    let mut scales: BTreeSet<String> = matrices.map(|spec| scale_name(&spec.name)).collect();
    // A tensor of the model is never a scale.
    for spec in specs {
        scales.remove(&spec.name);
    }
    scales
}

/// Checks the scales in the headers of all files of a checkpoint, and returns their names. Fails unless each I8 matrix has
/// scales of type F32, one for each row, and no other tensor has scales.
pub(super) fn check_scales<'a>(
    files: impl Iterator<Item = (&'a Path, &'a Header)>,
    specs: &HashMap<&str, &TensorSpec>,
) -> Result<BTreeSet<String>> {
    let entries = |(file, header): (&'a Path, &'a Header)| header.tensors.iter().map(move |entry| (file, entry));
    let all: BTreeMap<&str, (&Path, &TensorEntry)> =
        files.flat_map(entries).map(|(file, entry)| (entry.name.as_str(), (file, entry))).collect();
    let mut scales = BTreeSet::new();
    for (file, matrix) in all.values().filter(|(_, entry)| entry.dtype == FileDtype::I8) {
        let name = scale_name(&matrix.name);
        let found = all.get(name.as_str()).filter(|_| !specs.contains_key(name.as_str()));
        check_entry(file, matrix, &name, found)?;
        scales.insert(name);
    }
    match all.iter().find(|(name, _)| !specs.contains_key(*name) && !scales.contains(**name)) {
        Some((name, (file, _))) => {
            let expected = "no tensor of this name, because its matrix is not of type I8";
            Err(Error::checkpoint(*file, *name, expected, "one"))
        }
        None => Ok(scales),
    }
}

/// Checks type and shape of the scales `name` of a matrix in `file`.
fn check_entry(file: &Path, matrix: &TensorEntry, name: &str, found: Option<&(&Path, &TensorEntry)>) -> Result<()> {
    let shape = matrix.shape.get(..1).unwrap_or_default();
    let expected = format!("the scales of {}: dtype F32, shape {shape:?}", matrix.name);
    match found {
        None => Err(Error::checkpoint(file, name, expected, "none")),
        Some((file, scales)) if scales.dtype != FileDtype::F32 || scales.shape != shape => {
            let found = format!("dtype {}, shape {:?}", scales.dtype.name(), scales.shape);
            Err(Error::checkpoint(*file, name, expected, found))
        }
        Some(_) => Ok(()),
    }
}

/// Checks the numbers of scales. The error names the first one that is not positive, or so large that a number would not be finite.
pub(super) fn check_scale_numbers(file: &Path, name: &str, scales: &[f32]) -> Result<()> {
    match scales.iter().position(|scale| !(*scale > 0.0 && *scale <= MAX_SCALE)) {
        None => Ok(()),
        Some(index) => {
            let expected = format!("scales above 0 and at most {MAX_SCALE:e}");
            Err(Error::checkpoint(file, name, expected, format!("{:e} at index {index}", scales[index])))
        }
    }
}

/// Checks that the integers of an I8 matrix, of which the first has index `first`, are in the symmetric range. The error names the
/// first −128.
pub(super) fn check_range(file: &Path, name: &str, first: usize, integers: &[f32]) -> Result<()> {
    match integers.iter().position(|integer| *integer < -MAX) {
        None => Ok(()),
        Some(index) => {
            let found = format!("{} at index {}", integers[index], first + index);
            Err(Error::checkpoint(file, name, "integers from -127 to 127", found))
        }
    }
}

/// Rounds a matrix, row-major, to int8. Returns the scales of its `rows`, and its integers. The scale of a row maps its largest
/// magnitude to 127. Loading the matrix with `--dtype int8` gives the same integers, because the kernels round in the same way. A
/// row whose magnitudes have no finite inverse becomes zeros with scale 1.
pub(super) fn quantize(numbers: &[f32], rows: usize) -> (Vec<f32>, Vec<u8>) {
    let columns = (numbers.len() / rows.max(1)).max(1);
    let mut scales = Vec::with_capacity(rows);
    let mut bytes = Vec::with_capacity(numbers.len());
    for row in numbers.chunks_exact(columns) {
        let scale = (row.iter().fold(0.0_f32, |max, number| max.max(number.abs())) / MAX).min(MAX_SCALE);
        let inverse = 1.0 / scale;
        let (scale, inverse) = if inverse.is_finite() { (scale, inverse) } else { (1.0, 0.0) };
        let scaled: Vec<f32> = row.iter().map(|number| number * inverse).collect();
        FileDtype::I8.narrow(&scaled, &mut bytes);
        scales.push(scale);
    }
    // A matrix without columns has scales too.
    scales.resize(rows, 1.0);
    (scales, bytes)
}

/// Multiplies the integers of a matrix, row-major, with the scales of its rows.
pub(super) fn widen(bytes: &[u8], scales: &[f32]) -> Vec<f32> {
    let columns = (bytes.len() / scales.len().max(1)).max(1);
    let mut numbers = Vec::with_capacity(bytes.len());
    for (row, scale) in bytes.chunks_exact(columns).zip(scales) {
        numbers.extend(row.iter().map(|byte| f32::from(byte.cast_signed()) * scale));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Config, Tensor, Weights, Writer, read_from, read_weights,
            reader::{check_headers, shapes_in},
        },
        *,
    };
    use crate::kernels::{
        Compute, Dtype, Isa, ThreadPool,
        linear::{Epilogue, Linear, QuantizedRows, WeightArena},
    };
    use serde_json::{Value, json};
    use std::{fs, sync::Arc};
    use tempfile::TempDir;

    const CONFIG: &[u8] = br#"{"format": "weir/1", "family": "x", "vocabulary": {"bytes": true}, "normaliser": "none",
        "training_length": 8, "architecture": {}}"#;
    const ROWS: usize = 5;
    const COLUMNS: usize = 7;

    /// A vector, a matrix whose numbers end unaligned, a tensor of three axes, and another matrix.
    fn specs() -> Vec<TensorSpec> {
        let shapes = [("b", vec![3]), ("odd.weight", vec![ROWS, COLUMNS]), ("taps", vec![2, 1, 2]), ("e", vec![2, 4])];
        shapes.map(|(name, shape)| TensorSpec::zeros(name, shape)).into()
    }

    /// Numbers of very different magnitudes in each row of seven. The second row is zeros.
    fn numbers(count: usize) -> Vec<f32> {
        let number = |index: usize| match index / COLUMNS {
            1 => 0.0,
            row => ((index * 37 + 11) % 101) as f32 / 50.5 * 10_f32.powi(row as i32 * 9 - 18) - 0.3,
        };
        (0..count).map(number).collect()
    }

    /// Writes a checkpoint in int8.
    fn written() -> TempDir {
        let dir = TempDir::new().unwrap();
        let config = Config::parse(CONFIG, dir.path()).unwrap();
        let mut writer = Writer::create(dir.path(), &config, &specs(), FileDtype::I8, false).unwrap();
        for spec in specs() {
            writer.tensor(&spec.name, &numbers(spec.numbers())).unwrap();
        }
        writer.finish().unwrap();
        dir
    }

    fn header_of(file: &[u8]) -> Value {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        serde_json::from_slice(&file[8..8 + length]).unwrap()
    }

    #[test]
    fn written_matrices_are_read_with_their_scales() {
        let dir = written();
        let (mut weights, _) = read_weights(dir.path(), &specs()).unwrap();
        assert_eq!(weights.len(), specs().len());
        for spec in specs() {
            let exact = numbers(spec.numbers());
            let tensor = weights.take_tensor(&spec.name).unwrap();
            if spec.shape.len() != 2 {
                assert_eq!((tensor.dtype(), tensor.into_numbers()), (FileDtype::F32, exact));
                continue;
            }
            assert_eq!((tensor.dtype(), &tensor.shape), (FileDtype::I8, &spec.shape));
            assert_eq!(tensor.file_bytes(), spec.numbers() + 4 * spec.shape[0]);
            let read = tensor.numbers();
            for (row, exact) in read.chunks(spec.shape[1]).zip(exact.chunks(spec.shape[1])) {
                let step = exact.iter().fold(0.0_f32, |max, number| max.max(number.abs())) / MAX;
                let near = |(read, exact): (&f32, &f32)| (read - exact).abs() <= 0.5001 * step;
                assert!(row.iter().zip(exact).all(near), "{row:?} {exact:?}");
            }
        }
    }

    #[test]
    fn written_numbers_of_four_bytes_are_aligned() {
        let dir = written();
        let header = header_of(&fs::read(dir.path().join("model.safetensors")).unwrap());
        for (name, entry) in header.as_object().unwrap() {
            let start = entry["data_offsets"][0].as_u64().unwrap();
            assert!(entry["dtype"] == "I8" || start.is_multiple_of(4), "{name}: {entry}");
        }
        assert_eq!(header["odd.weight_scale"]["shape"], json!([ROWS]));
    }

    #[test]
    fn the_kernels_round_a_loaded_matrix_to_the_stored_integers() {
        let exact = numbers(ROWS * COLUMNS);
        let (scales, bytes) = quantize(&exact, ROWS);
        let widened = widen(&bytes, &scales);
        // The kernels' integers, as products with the rows of an identity matrix.
        let identity: Vec<f32> = (0..COLUMNS * COLUMNS).map(|cell| f32::from(cell % (COLUMNS + 1) == 0)).collect();
        let compute = Compute { isa: Isa::detect(), pool: Arc::new(ThreadPool::new(1)) };
        let served = |matrix: &[f32]| {
            let linear = Linear::pack(&WeightArena::new(Dtype::Int8), matrix, &[], ROWS, COLUMNS).unwrap();
            let mut columns = vec![0.0; COLUMNS * ROWS];
            linear.apply(&compute, &identity, Epilogue::None, &mut QuantizedRows::default(), &mut columns);
            let integer = |row: usize, column: usize| (columns[column * ROWS + row] / scales[row]).round() as i8;
            (0..ROWS * COLUMNS).map(|cell| integer(cell / COLUMNS, cell % COLUMNS)).collect::<Vec<_>>()
        };
        let stored: Vec<i8> = bytes.iter().map(|byte| byte.cast_signed()).collect();
        assert!(stored.chunks(COLUMNS).enumerate().all(|(row, all)| row == 1 || all.iter().any(|x| x.abs() == 127)));
        assert_eq!(served(&exact), stored);
        assert_eq!(served(&widened), stored);
        assert_eq!(quantize(&widened, ROWS).1, bytes);
    }

    #[test]
    fn rows_at_the_ends_of_the_range_are_finite() {
        let tiny = f32::from_bits(1);
        let (scales, bytes) = quantize(&[f32::MAX, -f32::MAX, tiny, 0.0], 2);
        assert_eq!((bytes.as_slice(), scales[1]), (&[127, 129, 0, 0][..], 1.0));
        check_scale_numbers(Path::new("x"), "x", &scales).unwrap();
        assert!(widen(&bytes, &scales).iter().all(|number| number.is_finite()));
        assert!((MAX_SCALE.next_up() * MAX).is_infinite());
        assert_eq!(quantize(&[], 2), (vec![1.0; 2], vec![]));
        assert_eq!(widen(&[], &[1.0; 2]), [0.0; 0]);
    }

    /// A tensor of a file: name, type, shape and numbers.
    type Entry<'a> = (&'a str, &'a str, &'a [usize], &'a [u8]);

    fn file(entries: &[Entry]) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        let mut numbers = Vec::new();
        for (name, dtype, shape, bytes) in entries {
            let start = numbers.len();
            numbers.extend_from_slice(bytes);
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, numbers.len()]});
            header.insert((*name).to_owned(), entry);
        }
        let header = Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &numbers].concat()
    }

    fn read(entries: &[Entry]) -> Result<Weights> {
        let specs = [TensorSpec::zeros("m", vec![2, 3]), TensorSpec::zeros("v", vec![2])];
        let bytes = file(entries);
        read_from(&*bytes, bytes.len() as u64, Path::new("f"), &specs).map(|(weights, _)| weights)
    }

    const INTEGERS: &[u8] = &[1, 255, 127, 129, 0, 2];
    const V: Entry = ("v", "F32", &[2], &[0; 8]);
    const M: Entry = ("m", "I8", &[2, 3], INTEGERS);

    fn f32s(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    #[test]
    fn each_row_has_its_scale() {
        let scales = f32s(&[0.5, 0.1]);
        let expected = Tensor::f32(vec![2, 3], vec![0.5, -0.5, 63.5, -127.0 * 0.1, 0.0, 2.0 * 0.1]);
        for entries in [[("m_scale", "F32", &[2][..], &scales[..]), V, M], [M, V, ("m_scale", "F32", &[2], &scales)]] {
            let weights = read(&entries).unwrap();
            let tensor = weights.get("m").unwrap();
            assert!(
                tensor.has_numbers_of(&expected) && expected.has_numbers_of(tensor) && tensor.has_numbers_of(tensor)
            );
            assert!(weights.get("m_scale").is_none());
        }
        let mut other = read(&[V, M, ("m_scale", "F32", &[2], &f32s(&[0.5, 0.2]))]).unwrap();
        assert!(!other.take_tensor("m").unwrap().has_numbers_of(&expected));
    }

    #[test]
    fn errors_name_the_tensor() {
        let good = f32s(&[0.5, 0.1]);
        let scale = |numbers: [f32; 2]| read(&[V, M, ("m_scale", "F32", &[2], &f32s(&numbers))]);
        let narrow: Entry = ("m_scale", "BF16", &[2], &[0; 4]);
        let range = "m_scale: expected scales above 0 and at most 2.6793884e36, found";
        let cases = [
            (read(&[V, M]), "m_scale: expected the scales of m: dtype F32, shape [2], found none"),
            (read(&[V, M, narrow]), "shape [2], found dtype BF16, shape [2]"),
            (read(&[V, M, ("m_scale", "F32", &[2, 1], &good)]), "shape [2], found dtype F32, shape [2, 1]"),
            (read(&[V, M, ("m_scale", "F32", &[1], &good[..4])]), "shape [2], found dtype F32, shape [1]"),
            (scale([0.5, 0.0]), &format!("{range} 0e0 at index 1")),
            (scale([-1.0, 1.0]), &format!("{range} -1e0 at index 0")),
            (scale([1.0, 3e36]), &format!("{range} 3e36 at index 1")),
            (scale([f32::NAN, 1.0]), "m_scale: expected finite numbers, found NaN at index 0"),
            (
                read(&[V, ("m", "I8", &[2, 3], &[0, 0, 0, 0, 128, 0]), ("m_scale", "F32", &[2], &good)]),
                "m: expected integers from -127 to 127, found -128 at index 4",
            ),
            (
                read(&[V, ("m", "F32", &[2, 3], &[0; 24]), ("m_scale", "F32", &[2], &good)]),
                "m_scale: expected no tensor of this name, because its matrix is not of type I8, found one",
            ),
            (read(&[M, ("v", "I8", &[2], &[0; 2])]), "v: expected two axes for dtype I8, found shape [2]"),
            (read(&[V, M, ("v_scale", "F32", &[2], &good)]), "v_scale: expected no tensor of this name, found one"),
            (read(&[V, ("m_scale", "F32", &[2], &good)]), "m: expected a tensor, found none"),
        ];
        for (read, expected) in cases {
            let message = read.unwrap_err().to_string();
            assert!(message.starts_with("f: ") && message.contains(expected), "{message}\nshould contain: {expected}");
        }
    }

    #[test]
    fn a_tensor_of_the_model_is_not_a_scale() {
        let specs = [TensorSpec::zeros("m", vec![1, 1]), TensorSpec::zeros("m_scale", vec![1])];
        assert!(possible_scales(&specs).is_empty());
        let bytes = file(&[("m", "I8", &[1, 1], &[1]), ("m_scale", "F32", &[1], &f32s(&[1.0]))]);
        let error = read_from(&*bytes, bytes.len() as u64, Path::new("f"), &specs).unwrap_err().to_string();
        assert!(error.contains("m_scale: expected the scales of m"), "{error}");
    }

    #[test]
    fn scales_may_be_in_another_shard() {
        let specs = [TensorSpec::zeros("m", vec![2, 3]), TensorSpec::zeros("v", vec![2])];
        let dir = TempDir::new().unwrap();
        let scales = f32s(&[0.5, 0.1]);
        let write = |name: &str, bytes: Vec<u8>| fs::write(dir.path().join(name), bytes).unwrap();
        let index = |map: Value| write("model.safetensors.index.json", json!({ "weight_map": map }).to_string().into());
        let names = json!({"m": "1.safetensors", "v": "2.safetensors", "m_scale": "2.safetensors"});
        write("1.safetensors", file(&[M]));
        write("2.safetensors", file(&[V, ("m_scale", "F32", &[2], &scales)]));
        index(names.clone());
        let (mut weights, _) = read_weights(dir.path(), &specs).unwrap();
        assert_eq!(weights.take("m").unwrap()[..3], [0.5, -0.5, 63.5]);
        check_headers(dir.path(), &specs).unwrap();
        assert_eq!(shapes_in(dir.path()).unwrap().into_keys().collect::<Vec<_>>(), ["m", "v"]);

        let refusal = || {
            let error = read_weights(dir.path(), &specs).unwrap_err().to_string();
            assert_eq!(check_headers(dir.path(), &specs).unwrap_err().to_string(), error);
            error
        };
        index(json!({"m": "1.safetensors", "v": "2.safetensors"}));
        assert!(refusal().contains("m_scale: expected no tensor of this name, found one"), "{}", refusal());
        write("2.safetensors", file(&[V]));
        assert!(refusal().contains("1.safetensors: m_scale: expected the scales of m"), "{}", refusal());
        index(names);
        assert!(refusal().contains("2.safetensors: m_scale: expected a tensor, found none"), "{}", refusal());
        write("1.safetensors", file(&[("m", "F32", &[2, 3], &[0; 24])]));
        write("2.safetensors", file(&[V, ("m_scale", "F32", &[2], &scales)]));
        assert!(
            refusal().contains("2.safetensors: m_scale: expected no tensor of this name, because"),
            "{}",
            refusal()
        );
    }
}
