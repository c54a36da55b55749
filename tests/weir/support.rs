//! Helpers for tests: the official fixtures, converted once per run, sequences without an engine, and random choices.

use crate::*;
use std::collections::HashMap;
use weir::models::contract::{Document, DocumentEncoder};
use weir::models::convert;

/// Fixture cases of the hourglass family.
pub(crate) const CASES: [&str; 8] =
    ["vanilla", "fixed_sf2", "fixed_sf3", "fixed_sf4", "whitespaces", "unigram", "entropy", "gumbel"];

/// Maximum difference of a row's logits in a batch and alone. It is zero: kernels keep one order of summation per row.
pub(crate) const BATCH_TOLERANCE: f32 = 0.0;

/// Maximum wait for an expected event. A busy machine has needed more than 60 s.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);

/// Returns true if the environment requests long random runs: `WEIR_LONG_RUNS=1`.
pub(crate) fn long_runs() -> bool {
    std::env::var_os("WEIR_LONG_RUNS").is_some_and(|value| value == "1")
}

/// Returns a folder of tests/golden.
pub(crate) fn golden_data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder)
}

/// The complete models of tests/golden: folder and cases.
pub(crate) const GOLDEN: [(&str, &[&str]); 8] = [
    ("dynamic-pooling", &CASES),
    ("torchscale", &decoder::CASES),
    ("lslm", &LSLM_CASES),
    ("hnet", &HNET_CASES),
    ("pyramidion", &PYRAMIDION_CASES),
    ("t5", &T5_CASES),
    ("hugging-face", &hugging_face::MODEL_TYPES),
    ("blt", &BLT_CASES),
];

/// Returns what converts a case of a folder of tests/golden, unless weir reads it as it is.
pub(crate) fn source_of(folder: &str, case: &str) -> Option<Source> {
    Some(match folder {
        "dynamic-pooling" => Source::DynamicPooling,
        "torchscale" => Source::Torchscale,
        "lslm" => Source::Lslm,
        "hnet" => Source::Hnet,
        "pyramidion" => Source::Pyramidions,
        "t5" if case.starts_with("mrt5") => Source::MrT5,
        "t5" => Source::T5,
        _ => return None,
    })
}

/// Returns the folder from which weir loads such a case: converted, unless weir reads it as it is. It lives as long as the test run.
pub(crate) fn checkpoint(folder: &str, case: &str) -> PathBuf {
    static ROOT: LazyLock<(TempDir, Mutex<HashMap<PathBuf, PathBuf>>)> =
        LazyLock::new(|| (TempDir::new().unwrap(), Mutex::default()));
    let from = golden_data(folder).join(case);
    let Some(source) = source_of(folder, case) else { return from };
    let (root, done) = &*ROOT;
    let convert = || {
        // A model has the name of its folder.
        let name = if ["dynamic-pooling", "torchscale"].contains(&folder) {
            case.to_owned()
        } else {
            format!("{folder}-{case}")
        };
        let to = root.path().join(name);
        convert::convert(source, &from, &to, false).unwrap();
        to
    };
    done.lock().unwrap().entry(from.clone()).or_insert_with(convert).clone()
}

/// Loads such a case with its weights in `dtype`.
pub(crate) fn model_of(folder: &str, case: &str, dtype: Dtype) -> Arc<dyn Model> {
    load(&checkpoint(folder, case), &Settings { dtype, ..settings() }).unwrap()
}

/// Returns the folder of a converted hourglass.
pub(crate) fn converted(case: &str) -> PathBuf {
    checkpoint("dynamic-pooling", case)
}

/// Removes the card of a checkpoint whose weights a test has changed: it states the digest of the earlier ones.
pub(crate) fn remove_card(checkpoint: &Path) {
    std::fs::remove_file(checkpoint.join("card.json")).unwrap();
}

/// Fixture cases of the latent segment models.
pub(crate) const LSLM_CASES: [&str; 7] =
    ["dp", "hops0", "hops1", "hops3", "small_encoder", "both_small_first_layer", "byte_vocab"];

/// Copies the files of a folder.
pub(crate) fn copied(folder: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|file| file.is_file()) {
        fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    copy
}

pub(crate) fn read_json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// Changes a JSON file.
pub(crate) fn edit_json(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = read_json(file);
    change(&mut json);
    fs::write(file, json.to_string()).unwrap();
}

/// Copies the files of a checkpoint and changes its configuration.
pub(crate) fn configured(folder: &Path, change: impl FnOnce(&mut Value)) -> TempDir {
    let copy = copied(folder);
    edit_json(&copy.path().join("config.json"), change);
    copy
}

/// Returns the error for a configuration.
pub(crate) fn config_error(config: &Value) -> String {
    let file = Path::new("config.json");
    let config = Config::parse(config.to_string().as_bytes(), file);
    config.and_then(|config| blueprint(&config, file)).unwrap_err().to_string()
}

/// Returns a configuration of models/shapes.
pub(crate) fn published_shape(name: &str) -> Value {
    read_json(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes").join(name))
}

pub(crate) fn encoder(model: &dyn Model) -> &dyn DocumentEncoder {
    model.document_encoder().expect("a model with a document encoder")
}

/// Encodes a document in one call.
pub(crate) fn encode(model: &dyn Model, tokens: &[u32], scratch: &mut Scratch) -> Arc<Document> {
    let mut encoding = encoder(model).open(false).unwrap();
    encoding.push(tokens).unwrap();
    encoding.close().unwrap();
    encoder(model).advance(&mut *encoding, usize::MAX, scratch).unwrap();
    encoding.document().expect("the document is complete")
}

/// Returns the logits after each symbol of a row that is fed in one chunk: `(symbols, V)`.
pub(crate) fn forced(model: &dyn Model, document: &Document, symbols: &[u32], scratch: &mut Scratch) -> Vec<f32> {
    let mut rows = [SequenceRow::new(encoder(model).begin(document).unwrap())];
    rows[0].set(symbols, Want::All);
    advance(model, &mut rows, &[0], scratch).unwrap();
    rows[0].logits.clone()
}

/// Writes T5 v1.0 with another maximum length of documents.
pub(crate) fn t5_shortened(source_length: usize) -> TempDir {
    configured(&checkpoint("t5", "t5_v10"), |config| config["architecture"]["source_length"] = source_length.into())
}

/// Fixture cases of the H-Nets.
pub(crate) const HNET_CASES: [&str; 6] =
    ["one_stage", "one_stage_padded", "two_stage", "two_stage_padded", "mixed_letters", "attention_only"];

/// Fixture cases of the Byte Latent Transformer.
pub(crate) const BLT_CASES: [&str; 8] =
    ["base", "widths", "all_layers", "max_patch", "windows", "published_form", "tied", "no_hash"];

/// Fixture cases of the encoder-decoders with a pooled document.
pub(crate) const PYRAMIDION_CASES: [&str; 11] = [
    "vanilla_full",
    "vanilla_padded",
    "blockwise",
    "transpooler",
    "no_block",
    "tail_dropped",
    "prenorm",
    "pyramidion",
    "pyramidion_padded",
    "pyramidion_unsorted",
    "deep",
];

/// Fixture cases of the T5 family.
pub(crate) const T5_CASES: [&str; 7] =
    ["t5_v10", "t5_v11", "byt5", "longt5_local", "longt5_tglobal", "mrt5", "mrt5_plain"];

/// Maps numbers to text symbols of a model. Special symbols are left out.
pub(crate) fn text_symbols(model: &dyn Model, numbers: &[u32]) -> Vec<u32> {
    let ids: Vec<u32> = model.card().vocabulary.text_ids().collect();
    numbers.iter().map(|&number| ids[number as usize % ids.len()]).collect()
}

/// Returns settings for small models.
pub(crate) fn settings() -> Settings {
    Settings { threads: 2, memory_bytes: 1 << 30, ..Settings::default() }
}

/// Loads a fixture's model.
pub(crate) fn fixture(case: &str) -> Arc<dyn Model> {
    load(&converted(case), &settings()).unwrap()
}

/// Loads a fixture's model with its weights in `dtype`.
pub(crate) fn fixture_in(case: &str, dtype: Dtype) -> Arc<dyn Model> {
    model_of("dynamic-pooling", case, dtype)
}

/// A single sequence with its scratch.
pub(crate) struct Alone<'a> {
    pub(crate) model: &'a dyn Model,
    pub(crate) rows: Vec<SequenceRow>,
    pub(crate) scratch: Scratch,
}

impl<'a> Alone<'a> {
    pub(crate) fn new(model: &'a dyn Model, boundaries: BoundaryOptions) -> Self {
        Self { model, rows: vec![SequenceRow::new(model.begin(boundaries).unwrap())], scratch: model.scratch() }
    }

    pub(crate) fn from(model: &'a dyn Model, row: SequenceRow) -> Self {
        Self { model, rows: vec![row], scratch: model.scratch() }
    }

    /// Feeds symbols in one step. Returns logits `(symbols, V)` and boundary decisions.
    pub(crate) fn feed(&mut self, symbols: &[u32]) -> (Vec<f32>, Vec<SymbolBoundary>) {
        self.feed_for(symbols, Want::All)
    }

    /// Feeds symbols in one step for these logits.
    pub(crate) fn feed_for(&mut self, symbols: &[u32], want: Want) -> (Vec<f32>, Vec<SymbolBoundary>) {
        self.rows[0].set(symbols, want);
        advance(self.model, &mut self.rows, &[0], &mut self.scratch).unwrap();
        (self.rows[0].logits.clone(), self.rows[0].decisions.clone())
    }
}

/// Returns all logits and boundary decisions of a text from one forward pass.
pub(crate) fn full(
    model: &dyn Model,
    symbols: &[u32],
    boundaries: &BoundaryOptions,
) -> (Vec<f32>, Vec<SymbolBoundary>) {
    Alone::new(model, boundaries.clone()).feed(symbols)
}

/// Returns the maximum absolute difference, or infinity if it is NaN. Panics if the lengths differ.
pub(crate) fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
}

/// Pseudo-random generator for test data.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    /// Returns random symbols. About one in five is a space (id 0).
    pub(crate) fn text(&mut self, symbols: usize, vocabulary: usize) -> Vec<u32> {
        (0..symbols).map(|_| if self.below(5) == 0 { 0 } else { self.below(vocabulary) as u32 }).collect()
    }
}
