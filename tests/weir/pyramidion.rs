//! Encoder-decoders with a pooled document: golden data, chunked documents, batched rows, and the top-k operator alone.

use crate::conformance::batched;
use crate::support::{PYRAMIDION_CASES, T5_CASES, encode, encoder, forced, read_json, remove_card, settings};
use crate::verify::edit_tensors;
use crate::*;
use weir::kernels::pages::PagePool;
use weir::models::checkpoint::files::read_limited;
use weir::models::contract::{Document, EncodingStage};
use weir::models::convert::convert;
use weir::models::family::parts::EncoderHookPoint;
use weir::models::family::pyramidion::Work;
use weir::models::load::init;
use weir::models::nn::kv_cache::PagedVectors;
use weir::models::nn::topk::{Halving, Pooler, PoolerInput};
use weir::verify::load::load as reference;
use weir::verify::{Input, verify};

/// FIXTURES.md: states and pooled vectors; logits.
const STATES: f32 = 1e-4;

const LOGITS: f32 = 5e-5;

/// Returns fairseq's greedy output: `min` to `max` symbols, then the end symbol.
fn greedy(model: &dyn Model, document: &Document, min: usize, max: usize, scratch: &mut Scratch) -> Vec<u32> {
    let specials = encoder(model).limits().marks;
    let mut rows = [SequenceRow::new(encoder(model).begin(document).unwrap())];
    let mut written = Vec::new();
    let mut next = specials.start;
    while written.last() != Some(&specials.end) {
        rows[0].set(&[next], Want::Last);
        advance(model, &mut rows, &[0], scratch).unwrap();
        let allowed = |id: u32| match id {
            id if id == specials.end => written.len() >= min,
            id => id != specials.pad && written.len() < max,
        };
        let logits = rows[0].logits.iter().zip(0..).filter(|(_, id)| allowed(*id));
        next = logits.max_by(|a, b| a.0.total_cmp(b.0)).unwrap().1;
        written.push(next);
    }
    written
}

/// Removes the padding at the end.
pub(crate) fn stripped(ids: &[u32]) -> &[u32] {
    let end = ids.iter().rposition(|&id| id != 1).map_or(0, |last| last + 1);
    &ids[..end]
}

/// A fixture with its golden data.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) golden: Golden,
    pub(crate) config: Value,
}

impl Case {
    pub(crate) fn load(name: &'static str) -> Self {
        let config = read_json(&golden_data("pyramidion").join(name).join("config.json"));
        let golden = Golden::open(&golden_data("pyramidion").join(name));
        Self { name, golden, config }
    }

    fn all() -> impl Iterator<Item = Self> {
        PYRAMIDION_CASES.into_iter().chain(["left_padded_batch"]).map(Self::load)
    }

    pub(crate) fn count(&self) -> usize {
        self.golden.shape("src_tokens")[0]
    }

    /// Returns the tokens of a document without padding on the right.
    pub(crate) fn source(&self, item: usize) -> Vec<u32> {
        stripped(&self.ids("src_tokens", item)).to_vec()
    }

    pub(crate) fn ids(&self, name: &str, item: usize) -> Vec<u32> {
        self.golden.row_ids(name, item)
    }
}

/// A shape with the folder of its weights.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    config: Value,
    dir: TempDir,
}

const HALVING: &str =
    r#"{"kind": "successive-halving", "lengths": {"0": 4, "1": 8}, "flip_right": true, "sort_back": true}"#;

const UNSORTED: &str =
    r#"{"kind": "successive-halving", "lengths": {"2": 16}, "flip_right": false, "sort_back": false, "scorer": "ffn"}"#;

const EMBEDDING: &str =
    r#"{"kind": "hard-top-k", "lengths": {"1": 4}, "sort_back": true, "scorer": {"embedding": {"dimension": 3}}}"#;

const INDEX: &str = r#"{"kind": "successive-halving", "lengths": {"1": 4}, "flip_right": true, "sort_back": true, "scorer": {"index": {"every": 4}}}"#;

const RANDOM: &str =
    r#"{"kind": "hard-top-k", "lengths": {"0": 2, "2": 4}, "sort_back": false, "scorer": {"random": {"seed": 9}}}"#;

const MEAN: &str = r#"{"kind": "mean", "lengths": {"0": 4, "2": 20}}"#;
const MAX: &str = r#"{"kind": "max", "lengths": {"1": 5}}"#;
const POWER: &str = r#"{"kind": "hard-top-k", "lengths": {"0": 4, "1": 8}, "sort_back": true, "scorer": "attention"}"#;
const FUNNEL: &str = r#"{"kind": "funnel", "lengths": {"0": 4, "1": 8}}"#;
const NONE: &str = r#"{"kind": "none"}"#;

/// Shapes with other attention than softmax: name, attention, block of a local head, pooling, pre-norm.
const FAR: [(&str, &str, &str, &str, bool); 5] = [
    ("efficient", r#"{"efficient": {"local_heads": 1}}"#, "40", NONE, false),
    ("efficient alone", r#"{"efficient": {"local_heads": 0}}"#, "null", HALVING, true),
    ("lsh", r#"{"lsh": {"local_heads": 1, "chunk": 16, "hashes": 3, "buckets": 8}}"#, "600", NONE, true),
    ("lsh alone", r#"{"lsh": {"local_heads": 0, "chunk": 7, "hashes": 1, "buckets": 130}}"#, "null", NONE, false),
    ("pooled lsh", r#"{"lsh": {"local_heads": 1, "chunk": 64, "hashes": 2, "buckets": 4}}"#, "33", HALVING, false),
];

/// Shapes with softmax attention: name, block, pooling, pre-norm, decoder positions, padded.
const SHAPES: [(&str, &str, &str, bool, bool, bool); 17] = [
    ("pyramidion", "40", HALVING, false, false, true),
    ("transpooler", "64", UNSORTED, true, true, true),
    ("blockwise", "40", r#"{"kind": "none"}"#, false, true, true),
    ("vanilla", "null", r#"{"kind": "none"}"#, false, false, true),
    ("no blocks", "null", HALVING, true, false, true),
    ("dropped", "33", UNSORTED, false, false, true),
    ("embedding", "40", EMBEDDING, false, false, true),
    ("index", "40", INDEX, true, false, true),
    ("random", "null", RANDOM, false, false, true),
    ("mean", "40", MEAN, false, false, false),
    ("max", "32", MAX, true, true, true),
    ("power", "40", POWER, false, false, true),
    ("power over all", "null", POWER, true, false, true),
    ("funnel", "40", FUNNEL, false, false, true),
    ("unpadded funnel", "null", FUNNEL, true, false, false),
    ("unpadded", "40", HALVING, false, false, false),
    ("unpadded vanilla", "null", r#"{"kind": "none"}"#, true, true, false),
];

/// Maximum length of a document.
const SOURCE: usize = 1280;

/// Size of the vocabulary.
const SYMBOLS: usize = 37;

impl Shape {
    /// Returns all shapes for documents of up to [`SOURCE`] tokens.
    fn all() -> impl Iterator<Item = Self> {
        Self::with_length(SOURCE)
    }

    /// Returns all shapes for documents of up to `source` tokens.
    pub(crate) fn with_length(source: usize) -> impl Iterator<Item = Self> {
        let softmax = SHAPES.into_iter().map(|(name, block, pooling, pre_norm, positions, padded)| {
            (name, r#""softmax""#, block, pooling, pre_norm, (positions, padded))
        });
        let far = FAR.into_iter().map(|(name, attention, block, pooling, pre_norm)| {
            (name, attention, block, pooling, pre_norm, (false, false))
        });
        softmax.chain(far).map(move |(name, attention, block, pooling, pre_norm, (positions, padded))| {
            let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            let mut pooling = parsed(pooling);
            let lengths = pooling.get_mut("lengths").and_then(|lengths| lengths.as_object_mut());
            for share in lengths.into_iter().flat_map(|lengths| lengths.values_mut()) {
                *share = (source as u64 / share.as_u64().unwrap()).into();
            }
            let config = json!({
                "format": "weir/1", "family": "pyramidion", "vocabulary": {"size": SYMBOLS}, "normaliser": "none",
                "training_length": source,
                "architecture": {
                    "encoder_layers": 3, "decoder_layers": 2, "dim": 22, "heads": 2, "feed_forward": 37, "activation": "relu",
                    "layer_norm_eps": 1e-5, "pre_norm": pre_norm, "source_length": source, "target_length": 400,
                    "attention": parsed(attention), "block": parsed(block), "pooling": pooling, "decoder_positions": positions, "padded": padded,
                },
            });
            let dir = TempDir::new().unwrap();
            let file = dir.path().join("shape.json");
            fs::write(&file, config.to_string()).unwrap();
            init(&file, &dir.path().join("model"), 7, false).unwrap();
            let shape = Self { name, config, dir };
            shape.spread_scores();
            shape
        })
    }

    /// Scales the weights of scorers and queries, because random ones give almost equal scores.
    fn spread_scores(&self) {
        remove_card(&self.folder());
        edit_tensors(&self.folder(), |tensors| {
            for (name, (.., data)) in tensors {
                let factor = if name.contains("scorer") { 40.0 } else { 10.0 };
                if (name.contains("scorer") || name.contains("q_proj")) && name.ends_with("weight") {
                    data.as_chunks_mut()
                        .0
                        .iter_mut()
                        .for_each(|x| *x = (factor * f32::from_le_bytes(*x)).to_le_bytes());
                }
            }
        });
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    pub(crate) fn model(&self, dtype: Dtype) -> Arc<dyn Model> {
        load(&self.folder(), &Settings { dtype, ..settings() }).unwrap()
    }
}

/// Returns random tokens without special ids.
fn tokens(rng: &mut Random, count: usize) -> Vec<u32> {
    (0..count).map(|_| 4 + rng.below(SYMBOLS - 4) as u32).collect()
}

/// Outputs of the encoder for one document: the vectors of each stage in order, and of padding.
type Recorded = Arc<Mutex<BTreeMap<String, Vec<f32>>>>;

fn watch(scratch: &mut Scratch) -> Recorded {
    let recorded = Recorded::default();
    let record = recorded.clone();
    work_mut::<Work>(scratch).unwrap().hook = Some(Box::new(move |seen, first, x| {
        let mut all = record.lock().unwrap();
        let name = match seen {
            EncoderHookPoint::Embedded => "0".into(),
            EncoderHookPoint::Layer(layer) => format!("{}", layer + 1),
            EncoderHookPoint::Pooled(layer) => format!("pooled {}", layer + 1),
            EncoderHookPoint::Padding(None) => "padding 0".into(),
            EncoderHookPoint::Padding(Some(layer)) => format!("padding {}", layer + 1),
            EncoderHookPoint::Encoded => "out".into(),
        };
        let entry = all.entry(name).or_default();
        assert!(first == 0 || !entry.is_empty());
        entry.extend_from_slice(x);
    }));
    recorded
}

/// Compares a recorded state with a golden one. Positions beyond it hold the padding vector, or zeros if dropped.
fn check_state(case: &Case, item: usize, layer: usize, recorded: &BTreeMap<String, Vec<f32>>) {
    let name = format!("encoder.state.{layer}");
    let expected = case.golden.row(&name, item);
    let shape = case.golden.shape(&name);
    let dim = shape[2];
    let pooled = recorded.get(&format!("pooled {layer}"));
    let mut actual = pooled.or(recorded.get(&layer.to_string())).unwrap().clone();
    if pooled.is_none() && actual.len() < expected.len() {
        let fill = match recorded.get(&format!("padding {layer}")) {
            Some(padding) => padding.clone(),
            // With full attention, all padding equals the last vector.
            None if case.name.starts_with("vanilla") => actual[actual.len() - dim..].to_vec(),
            // fairseq's pooler fills the remainder of the last block.
            None => vec![0.0; dim],
        };
        while actual.len() < expected.len() {
            actual.extend_from_slice(&fill);
        }
    }
    actual.truncate(expected.len());
    if case.name == "tail_dropped" && pooled.is_none() {
        let block = case.config["chunk_size"].as_u64().unwrap() as usize;
        let blocks_end = shape[1] / block * block * dim;
        // The first state is recorded before anything is dropped, so only complete blocks are compared.
        let max_error = difference(&actual[..blocks_end], &expected[..blocks_end]);
        assert!(max_error <= STATES, "{} {item} {name}: {max_error}", case.name);
        return;
    }
    let max_error = difference(&actual, expected);
    assert!(max_error <= STATES, "{} {item} {name}: {max_error}", case.name);
}

fn check(case: &Case, isa: Isa) {
    let layers = case.config["encoder_layers"].as_u64().unwrap() as usize;
    for item in 0..case.count() {
        // A new model has no cached padding yet, so its padding is recorded too.
        let model = load(&checkpoint("pyramidion", case.name), &Settings { isa, ..settings() }).unwrap();
        let mut scratch = model.scratch();
        let recorded = watch(&mut scratch);
        let source = case.source(item);
        let document = encode(&*model, &source, &mut scratch);
        for layer in 0..=layers {
            check_state(case, item, layer, &recorded.lock().unwrap());
        }
        let poolings = encoder(&*model).limits().poolings.clone();
        assert_eq!(document.choices.len(), poolings.len(), "{}", case.name);
        for (choice, pooling) in document.choices.iter().zip(poolings) {
            let tensor_name = |name: &str| format!("pool.{}.{name}", pooling.layer);
            assert_eq!(choice.layer, pooling.layer);
            let scores: Vec<f32> = choice.kept.iter().map(|kept| kept.score).collect();
            let max_error = difference(&scores, case.golden.row(&tensor_name("scores_out"), item));
            assert!(max_error <= STATES, "{} {item} {}: {max_error}", case.name, tensor_name("scores_out"));
            let pooled = recorded.lock().unwrap()[&format!("pooled {}", pooling.layer + 1)].clone();
            let max_error = difference(&pooled, case.golden.row(&tensor_name("output"), item));
            assert!(max_error <= STATES, "{} {item} {}: {max_error}", case.name, tensor_name("output"));
        }
        let out = case.golden.row("encoder.out", item);
        let shape = case.golden.shape("encoder.out");
        assert_eq!(document.vectors, shape[1], "{}", case.name);
        let actual = &recorded.lock().unwrap()["out"];
        let same = actual.len().min(out.len());
        assert!(difference(&actual[..same], &out[..same]) <= STATES || case.name == "vanilla_padded", "{}", case.name);
        work_mut::<Work>(&mut scratch).unwrap().hook = None;
        let previous = case.ids("prev_output_tokens", item);
        let logits = forced(&*model, &document, &previous, &mut scratch);
        let max_error = difference(&logits, case.golden.row("decoder.logits", item));
        assert!(max_error <= LOGITS, "{} {item} logits: {max_error}", case.name);
        let settings = &case.config["generation"]["greedy"];
        let lengths = ["min_len", "max_len_b"].map(|key| settings[key].as_u64().unwrap() as usize);
        let written = greedy(&*model, &document, lengths[0], lengths[1], &mut scratch);
        let expected: Vec<u32> = case.ids("greedy.tokens", item).into_iter().take(written.len()).collect();
        assert_eq!(written, expected, "{} {item}", case.name);
        assert_eq!(case.golden.row("greedy.lengths", item)[0] as usize, written.len());
    }
}

#[test]
fn states_poolings_logits_and_greedy_text_equal_the_golden_data() {
    for case in Case::all() {
        Isa::all().into_iter().for_each(|isa| check(&case, isa));
    }
}

/// Converts a source. Returns its architecture and its weights.
fn converted(from: &Path, dest: &Path) -> (Value, Vec<u8>) {
    convert(Source::Pyramidions, from, dest, false).unwrap();
    let config = Config::read(dest).unwrap();
    (serde_json::from_str(config.architecture()).unwrap(), fs::read(dest.join("model.safetensors")).unwrap())
}

#[test]
fn a_training_checkpoint_converts_as_the_folder_with_its_tensors() {
    let dir = TempDir::new().unwrap();
    let source = golden_data("pyramidion/../pyramidion-pt");
    let path_of = |name: &str| dir.path().join(name);
    let folder = converted(&golden_data("pyramidion/transpooler"), &path_of("folder"));
    // One source has command-line arguments in a file of the usual name; the other has nested settings in its only
    // file.
    assert_eq!(converted(&source.join("arguments"), &path_of("arguments")), folder);
    assert_eq!(converted(&source.join("settings"), &path_of("settings")), folder);
    assert_eq!(converted(&source.join("settings/last.pt"), &path_of("file")), folder);
    // The settings are as in the fixture with the most hypotheses.
    let config = Config::read(&path_of("folder")).unwrap();
    let generation = config.generation.clone().unwrap();
    assert_eq!((generation.beam, generation.min_tokens, generation.max_tokens), (2, 4, 14));
    assert!(config.subwords().is_none());
    let model = load(&path_of("folder"), &settings()).unwrap();
    assert!(model.card().vocabulary.encode("document", "text", 9).unwrap_err().to_string().contains("ids"));
    // The characters come from the dictionary next to the file.
    let vocabulary = load(&path_of("arguments"), &settings()).unwrap().card().vocabulary.clone();
    let ids = vocabulary.encode("document", "ta e?", 9).unwrap();
    assert_eq!(ids, [6, 7, 4, 5, 3]);
    assert_eq!((vocabulary.decode(&[6, 7, 4, 5, 2]), vocabulary.len()), ("ta e".into(), 64));
    assert_eq!(read_limited(&path_of("arguments/tokenizer.json"), 1 << 20).unwrap()[0], b'{');
}

/// Returns the encoders of both families: all shapes in each dtype, and the cases of T5.
fn encoders() -> impl Iterator<Item = (String, Arc<dyn Model>)> {
    let shapes = Shape::all()
        .flat_map(|shape| Dtype::ALL.map(|dtype| (format!("{}, {}", shape.name, dtype.name()), shape.model(dtype))));
    shapes.chain(T5_CASES.map(|case| (case.to_owned(), model_of("t5", case, Dtype::F32))))
}

/// Encodes a document that is pushed in random chunks, some blocks at a time. Checks that its memory stays within the limit.
fn encode_in_chunks(model: &dyn Model, document: &[u32], rng: &mut Random, scratch: &mut Scratch) -> Arc<Document> {
    let encoder = encoder(model);
    let before = model.memory().in_use;
    let limit = encoder.bytes_for(document.len());
    let mut encoding = encoder.open(false).unwrap();
    let mut rest = document;
    let mut blocks = 0;
    while encoding.document().is_none() {
        if rng.below(2) == 0 && !rest.is_empty() {
            let (piece, later) = rest.split_at(rng.below(300).min(rest.len()));
            encoding.push(piece).unwrap();
            rest = later;
            if rest.is_empty() {
                encoding.close().unwrap();
            }
            continue;
        }
        let requested = 1 + rng.below(3);
        let ran = encoder.advance(&mut *encoding, requested, scratch).unwrap();
        blocks += ran;
        let progress = encoding.progress();
        assert_eq!(progress.blocks, blocks);
        assert!(
            ran == requested || matches!(progress.stage, EncodingStage::Waiting | EncodingStage::Done),
            "{progress:?}"
        );
        assert!(progress.total.is_none_or(|total| blocks <= total), "{progress:?}");
        assert_eq!(progress.total.is_some(), rest.is_empty());
        let held = model.memory().in_use - before;
        assert!(held <= limit && encoding.bytes() == held, "{} {held} {limit}", encoding.bytes());
    }
    let progress = encoding.progress();
    assert_eq!((progress.stage, progress.total), (EncodingStage::Done, Some(blocks)));
    encoding.document().unwrap()
}

#[test]
fn the_chunks_of_a_document_do_not_change_its_bits() {
    for (name, model) in encoders() {
        let mut scratch = model.scratch();
        let mut rng = Random::new(3);
        let limit = encoder(&*model).limits().tokens;
        for length in [1, 39, 500, 961.min(limit), SOURCE.min(limit)] {
            let vocabulary = model.card().vocabulary.len();
            let document: Vec<u32> = (0..length).map(|_| 4 + rng.below(vocabulary - 4) as u32).collect();
            let complete = encode(&*model, &document, &mut scratch);
            let deletes = name == "mrt5" && length > 1;
            assert!(!deletes || (1..length).contains(&complete.vectors), "{}", complete.vectors);
            let chunked = encode_in_chunks(&*model, &document, &mut rng, &mut scratch);
            assert_eq!(complete.choices, chunked.choices, "{name} {length}");
            assert_eq!((complete.vectors, complete.bytes), (chunked.vectors, chunked.bytes));
            assert_eq!((complete.tokens, chunked.tokens), (length, length));
            let symbols = tokens(&mut rng, 9);
            let [a, b] = [&complete, &chunked].map(|document| forced(&*model, document, &symbols, &mut scratch));
            assert!(a == b && a.iter().all(|x| x.is_finite()), "{name} {length}");
        }
        drop(scratch);
        assert_eq!(model.memory().in_use, 0, "{name}");
    }
}

#[test]
fn most_blocks_are_encoded_while_the_document_arrives() {
    let shape = Shape::all().find(|shape| shape.name == "blockwise").unwrap();
    let model = shape.model(Dtype::F32);
    let mut scratch = model.scratch();
    let mut encoding = encoder(&*model).open(false).unwrap();
    let document = tokens(&mut Random::new(1), SOURCE);
    for piece in document.chunks(100) {
        encoding.push(piece).unwrap();
        encoder(&*model).advance(&mut *encoding, usize::MAX, &mut scratch).unwrap();
    }
    // Two pages of 480 run through three layers each.
    assert_eq!((encoding.progress().blocks, encoding.progress().stage), (6, EncodingStage::Waiting));
    encoding.close().unwrap();
    assert_eq!(encoding.progress().total, Some(12));
    // Where the encoder looks both ways, no block can be encoded early.
    let vanilla = Shape::all().find(|shape| shape.name == "vanilla").unwrap();
    for model in [vanilla.model(Dtype::F32)].into_iter().chain(T5_CASES.map(|case| model_of("t5", case, Dtype::F32))) {
        let mut encoding = encoder(&*model).open(false).unwrap();
        encoding.push(&document[..500]).unwrap();
        assert_eq!(encoder(&*model).advance(&mut *encoding, 5, &mut model.scratch()).unwrap(), 0);
        assert_eq!(encoding.progress().stage, EncodingStage::Waiting);
    }
}

#[test]
fn batched_rows_of_several_documents_equal_single_rows() {
    for (name, model) in encoders() {
        let mut scratch = model.scratch();
        let mut rng = Random::new(11);
        let limit = encoder(&*model).limits().tokens;
        let documents = [700.min(limit), 1, 300].map(|length| encode(&*model, &tokens(&mut rng, length), &mut scratch));
        let document_of = |index: usize| &*documents[[0, 0, 0, 1, 2, 0, 2][index]];
        let texts: Vec<Vec<u32>> = (0..7).map(|index| tokens(&mut rng, 3 + 4 * index)).collect();
        let alone: Vec<_> =
            (0..7).map(|index| forced(&*model, document_of(index), &texts[index], &mut scratch)).collect();
        let rows = (0..7).map(|index| SequenceRow::new(encoder(&*model).begin(document_of(index)).unwrap()));
        let (together, _): (Vec<_>, Vec<_>) = batched(&*model, rows.collect(), &texts, &mut rng).into_iter().unzip();
        assert!(together == alone, "{name}");
    }
}

#[test]
fn hard_top_k_keeps_vectors_unchanged() {
    for shape in Shape::all() {
        let model = shape.model(Dtype::F32);
        let mut scratch = model.scratch();
        let document = tokens(&mut Random::new(2), SOURCE);
        let Ok(mut encoding) = encoder(&*model).open(true) else {
            assert!(
                ["none", "mean", "max", "funnel"]
                    .contains(&shape.config["architecture"]["pooling"]["kind"].as_str().unwrap())
            );
            continue;
        };
        encoding.push(&document).unwrap();
        encoding.close().unwrap();
        encoder(&*model).advance(&mut *encoding, usize::MAX, &mut scratch).unwrap();
        let hard = encoding.document().unwrap();
        let soft = encode(&*model, &document, &mut scratch);
        assert_eq!(hard.vectors, soft.vectors, "{}", shape.name);
        let tokens: Vec<usize> = hard.choices[0].kept.iter().map(|kept| kept.token).collect();
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), tokens.len());
        let logits = [&hard, &soft].map(|document| forced(&*model, document, &[2, 9], &mut scratch));
        // In f32 a score of 1 outweighs a score of 0 completely.
        let is_hard = shape.config["architecture"]["pooling"]["kind"] == "hard-top-k" || shape.name == "index";
        assert_eq!(logits[0] == logits[1], is_hard, "{}", shape.name);
    }
}

#[test]
fn invalid_input_is_rejected_and_does_not_change_the_encoding() {
    let message = |result: Result<(), Error>| result.unwrap_err().to_string();
    let vanilla = Shape::all().find(|shape| shape.name == "vanilla").unwrap().model(Dtype::F32);
    let byt5 = model_of("t5", "byt5", Dtype::F32);
    for model in [&byt5, &vanilla] {
        let mut encoding = encoder(&**model).open(false).unwrap();
        let limit = encoder(&**model).limits().tokens;
        let symbols = model.card().vocabulary.len();
        assert_eq!(message(encoding.close()), "document: expected at least one token, found none");
        let expected = format!("document: expected at most {limit} tokens, found {}", limit + 1);
        assert_eq!(message(encoding.push(&vec![5; limit + 1])), expected);
        let expected = format!(", found id {symbols} (the vocabulary has {symbols} symbols) at");
        assert!(message(encoding.push(&[5, symbols as u32])).contains(&expected));
        assert_eq!(encoding.tokens(), 0);
    }
    let mut encoding = encoder(&*vanilla).open(false).unwrap();
    encoding.push(&[1, 1]).unwrap();
    let padding = message(encoding.close());
    assert!(
        padding.starts_with("document: expected at least one token other than padding, found only padding"),
        "{padding}"
    );
    encoding.push(&vec![5; SOURCE - 2]).unwrap();
    assert!(encoding.push(&[5]).is_err());
    encoding.close().unwrap();
    encoding.close().unwrap();
    assert!(encoding.push(&[5]).is_err());
    encoder(&*vanilla).advance(&mut *encoding, usize::MAX, &mut vanilla.scratch()).unwrap();
    assert_eq!(encoding.document().unwrap().tokens, SOURCE);
    assert!(vanilla.begin(BoundaryOptions::default()).is_err());
    // The encoding of another family.
    assert!(encoder(&*vanilla).advance(&mut *encoder(&*byt5).open(false).unwrap(), 1, &mut vanilla.scratch()).is_err());
}

#[test]
fn too_little_memory_is_an_error_and_is_released() {
    for shape in Shape::all() {
        let model = shape.model(Dtype::F32);
        let document = tokens(&mut Random::new(8), SOURCE);
        let limit = encoder(&*model).bytes_for(SOURCE);
        drop(model);
        let mut failed = 0;
        for share in 0..6 {
            let settings = Settings { memory_bytes: limit * share / 5, ..settings() };
            let model = load(&shape.folder(), &settings).unwrap();
            let mut scratch = model.scratch();
            let mut encoding = encoder(&*model).open(false).unwrap();
            encoding.push(&document).unwrap();
            encoding.close().unwrap();
            let result = encoder(&*model).advance(&mut *encoding, usize::MAX, &mut scratch);
            match result {
                Ok(_) => assert!(encoding.document().is_some()),
                Err(error) => {
                    assert!(matches!(error, Error::OutOfPages { .. }), "{error}");
                    failed += 1;
                }
            }
            assert!(share < 5 || encoding.document().is_some(), "{}: the limit is too small", shape.name);
            drop(encoding);
            assert_eq!(model.memory().in_use, 0);
        }
        assert!(failed > 0, "{}", shape.name);
    }
}

/// Model with a fixed document. Each row encodes it again, so that the row alone owns its pages.
struct SingleDocument {
    model: Arc<dyn Model>,
    document: Vec<u32>,
    bytes: usize,
}

impl Model for SingleDocument {
    fn card(&self) -> &Card {
        self.model.card()
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        encoder(&*self.model).begin(&encode(&*self.model, &self.document, &mut self.model.scratch()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.model.symbol_step(rows, which, scratch)
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.model.segment_step(rows, which, scratch)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.model.finish_step(rows, which, scratch)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.model.bytes_for(symbols) + self.bytes
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        self.model.growth(state, more)
    }

    fn memory(&self) -> KvMemory {
        self.model.memory()
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        self.model.cost(symbols, segments)
    }
}

/// Returns shapes with post-norm and pre-norm, with and without decoder positions, in each dtype.
pub(crate) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    let mut all: Vec<(String, Arc<dyn Model>)> = Vec::new();
    for shape in Shape::with_length(160).filter(|shape| ["pyramidion", "transpooler"].contains(&shape.name)) {
        for dtype in Dtype::ALL {
            let model = shape.model(dtype);
            let document = tokens(&mut Random::new(4), 90);
            all.push((format!("{}, {}", shape.name, dtype.name()), with_document(model, document)));
        }
    }
    all
}

/// Returns a model that begins every row from `document`.
pub(crate) fn with_document(model: Arc<dyn Model>, document: Vec<u32>) -> Arc<dyn Model> {
    let bytes = encode(&*model, &document, &mut model.scratch()).bytes;
    Arc::new(SingleDocument { model, document, bytes })
}

const TOLERANCE: f32 = 1e-5;

#[test]
fn every_case_equals_the_published_operator() {
    let folder = golden_data("pyramidion/topk_operator");
    let pool = PagePool::new(1 << 20);
    let golden = Golden::open(&folder);
    let config = read_json(&folder.join("config.json"));
    let mut rejected = 0;
    let mut compared = 0;
    for case in config["cases"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let flag = |key: &str| case[key].as_bool().unwrap();
        let id = number("id");
        let kept = number("pooled_len");
        let halving = Halving::new(number("input_len"), kept, flag("flip_right"), flag("sort_back"));
        if case["status"] != "ok" || number("returned_len") != kept {
            let rule = halving.unwrap_err();
            assert!(rule.contains("every round takes an even number of vectors"), "case {id}: {rule}");
            rejected += 1;
            continue;
        }
        let halving = halving.unwrap();
        assert_eq!(halving.rounds() as usize, number("depth"), "case {id}");
        let count = number("n_actual");
        let dim = golden.shape(&format!("{id}.E"))[2];
        for item in 0..golden.shape(&format!("{id}.E"))[0] {
            let row = |name: &str| golden.row(&format!("{id}.{name}"), item);
            let new_vectors = || PagedVectors::new(pool.clone(), dim, 5);
            let mut rows = new_vectors();
            rows.extend(count).unwrap();
            for page in 0..rows.pages() {
                let to = rows.page_mut(page).unwrap();
                let len = to.len();
                to.copy_from_slice(&row("E")[page * 5 * dim..][..len]);
            }
            let positions: Vec<u32> = (0..count as u32).collect();
            let input = PoolerInput { vectors: &rows, index: &positions };
            let pooled = halving.pool(&input, row("v")[..count].to_vec(), &new_vectors).unwrap();
            let vectors: Vec<f32> = (0..kept).flat_map(|index| pooled.vectors.vector(index).to_vec()).collect();
            assert!(difference(&vectors, row("out")) <= TOLERANCE, "case {id}: {}", difference(&vectors, row("out")));
            assert!(difference(&pooled.scores, row("scores_out")) <= TOLERANCE, "case {id}");
            compared += 1;
        }
    }
    assert!(rejected >= 2 && compared >= 30, "{rejected} {compared}");
}

#[test]
fn short_documents_without_padding_are_verified() {
    for shape in Shape::with_length(160).filter(|shape| shape.config["architecture"]["padded"] == false) {
        let model = shape.model(Dtype::F32);
        let reference = reference(&shape.folder().as_path().into()).unwrap();
        let mut rng = Random::new(21);
        for length in [7, 41, 70] {
            let document = tokens(&mut rng, length);
            let input = Input { symbols: tokens(&mut rng, 6), document };
            let report = verify(&*model, &*reference, &input).unwrap();
            assert!(report.ok && report.boundaries_equal, "{} {length}: {report:?}", shape.name);
        }
    }
}
