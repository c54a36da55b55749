//! Golden data of torchscale and of LeX's fork: the output of every layer, the xPos operator alone, and receptive fields of windows;
//! long streams; lengths.

use crate::{
    hourglass::{self, write},
    process::{weir, weir_json},
    support::{read_json, settings},
    *,
};
use weir::models::{
    family::decoder::Work,
    nn::{
        attention::HookPoint,
        position::{ROTARY_BASE, Rotary},
    },
};

/// Fixture cases with a complete model.
pub(crate) const CASES: [&str; 16] = [
    "alibi_bca",
    "alibi_full",
    "bucket_full",
    "rope_bca",
    "rope_full",
    "sinusoidal_bca",
    "sinusoidal_full",
    "xpos_bca",
    "xpos_bca_base16",
    "xpos_bca_lmexample",
    "xpos_bca_ragged",
    "xpos_full",
    "xpos_full_base16",
    "xpos_short",
    "xpos_sliding",
    "xpos_sliding_incremental",
];

/// FIXTURES.md: 5e-5 absolute.
pub(crate) const LOGITS: f32 = 5e-5;

fn golden(case: &str) -> Golden {
    Golden::open(&golden_data("torchscale").join(case))
}

fn golden_config(case: &str) -> Value {
    read_json(&golden_data("torchscale").join(case).join("config.json"))
}

/// A symbol changes exactly the positions that it changes in the official code (`checks` of each case).
#[test]
fn receptive_fields_equal_the_official_ones() {
    for case in CASES {
        let golden = golden(case);
        let model = model_of("torchscale", case, Dtype::F32);
        let config = golden_config(case);
        let text = &golden.texts("tokens")[0];
        let symbols = model.card().vocabulary.len();
        let before = full(&*model, text, &BoundaryOptions::default()).0;
        for (name, expected) in config["checks"].as_object().unwrap() {
            let Some(position) = name.strip_prefix("perturb_").and_then(|rest| rest.split('_').next()) else {
                continue;
            };
            let position: usize = position.parse().unwrap();
            let mut other = text.clone();
            other[position] = (other[position] + 1) % symbols as u32;
            let after = full(&*model, &other, &BoundaryOptions::default()).0;
            let differs = |t: &usize| before[t * symbols..][..symbols] != after[t * symbols..][..symbols];
            let changed: Vec<usize> = (0..text.len()).filter(differs).collect();
            let bounds = [changed.first(), changed.last()].map(|t| *t.unwrap() as u64);
            assert_eq!(serde_json::json!(bounds), *expected, "{case} {name}");
        }
    }
}

/// The xPos operator alone, at lengths where absolute scales span seventeen orders of magnitude. Rotated in blocks, every
/// score of a key and a later query equals the official one.
#[test]
fn the_operator_equals_the_official_one_at_great_lengths() {
    let golden = golden("xpos_operator");
    let config = golden_config("xpos_operator");
    for case in config["cases"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let id = number("id");
        let dim = number("head_dim");
        let length = number("key_len");
        let base = number("scale_base");
        let rotary = Rotary::new(dim, ROTARY_BASE, Some(base as f64), None, length);
        let block = rotary.block();
        let rows = |name: &str| golden.ids(&format!("{id}.{name}"));
        let q_rows = rows("q_rows");
        let k_rows = rows("k_rows");
        // The official angles are rounded to f32, which gives an error of n · 6e-8 of a turn at position n.
        let tolerance = 1e-5 + 2.0 * length as f64 * 6e-8;
        let mut compared = 0;
        for head in 0..2 {
            let vectors = |name: &str| golden.row(&format!("{id}.{name}"), head);
            let q = vectors("q");
            let k = vectors("k");
            let scores = vectors("scores");
            for (i, q_at) in q_rows.iter().map(|&at| at as usize).enumerate() {
                for (j, k_at) in k_rows.iter().map(|&at| at as usize).enumerate().filter(|&(_, k_at)| k_at <= q_at) {
                    let mut query = q[i * dim..][..dim].to_vec();
                    let mut key = k[j * dim..][..dim].to_vec();
                    rotary.rotate_query(q_at - k_at / block * block, std::iter::once(&mut query[..]));
                    rotary.rotate_key(k_at % block, std::iter::once(&mut key[..]));
                    let products = || query.iter().zip(&key).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let actual = products().sum::<f64>();
                    let size = products().map(f64::abs).sum::<f64>();
                    let expected = f64::from(scores[i * k_rows.len() + j]);
                    assert!(
                        (actual - expected).abs() <= tolerance * size,
                        "{id}, {q_at} − {k_at}: {actual} {expected} of {size}"
                    );
                    compared += 1;
                }
            }
        }
        assert!(compared > 20, "{id}: {compared} scores");
    }
}

/// The memory of a sequence does not grow with its length, and a rollback may cross the edge of a block.
#[test]
fn a_long_stream_holds_only_its_windows() {
    for case in ["xpos_bca", "rope_bca", "alibi_bca", "xpos_sliding"] {
        for dtype in Dtype::ALL {
            let model = model_of("torchscale", case, dtype);
            let symbols = model.card().vocabulary.len() as u32;
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let mut peak = 0;
            let limit = model.bytes_for(1 << 20);
            for position in 0..3000_u32 {
                let chunk: Vec<u32> =
                    (0..if position % 500 == 0 { 700 } else { 1 }).map(|i| (position * 7 + i) % symbols).collect();
                alone.rows[0].set(&chunk, Want::Last);
                advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
                assert!(model.memory().in_use <= limit, "{case}");
                if position % 500 > 100 {
                    peak = peak.max(model.memory().in_use);
                }
            }
            // The row keeps 32 keys of the window and 32 for rollbacks, rounded up to pages.
            assert!(peak <= 3 * model.bytes_for(1), "{case}: {peak} bytes");
            let state = &mut alone.rows[0].state;
            let len = state.len();
            let earliest = state.earliest();
            assert!(earliest + 32 <= len && state.rollback(earliest - 1).is_err() && state.rollback(earliest).is_ok());
        }
    }
}

/// Returns decoders and hourglasses with moving windows.
fn endless() -> Vec<(String, Arc<dyn Model>)> {
    let cases = ["xpos_bca", "alibi_bca", "xpos_sliding"];
    let official = cases.into_iter().map(|case| (case.to_string(), model_of("torchscale", case, Dtype::F32)));
    let own = hourglass::shapes().into_iter().filter(|(name, _)| name.contains("windows") || name == "xpos-last");
    let all: Vec<_> = official.chain(own).collect();
    assert_eq!(all.len(), 10);
    all
}

/// A chunk that a stack must split gives the same bits, and uses at most the predicted memory.
#[test]
fn long_chunks_are_split() {
    for (name, model) in endless() {
        let symbols = model.card().vocabulary.len();
        let text = Random::new(3).text(1_300, symbols);
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let steps: Vec<_> = text.iter().map(|&symbol| alone.feed(&[symbol])).collect();
        let (logits, marks): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        let logits = logits.concat();
        let marks = marks.concat();
        for chunk in [1_300, 700, 45] {
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let mut position = 0;
            for part in text.chunks(chunk) {
                let growth = model.growth(&*alone.rows[0].state, part.len());
                let before = model.memory().in_use;
                let actual = alone.feed(part);
                assert!(model.memory().in_use <= before + growth, "{name}: more than {growth} in chunks of {chunk}");
                assert!(
                    actual.0 == logits[position * symbols..(position + part.len()) * symbols],
                    "{name} in chunks of {chunk}"
                );
                assert!(actual.1 == marks[position..position + part.len()], "{name} in chunks of {chunk}");
                position += part.len();
            }
            assert!(model.memory().in_use <= model.bytes_for(text.len()), "{name}");
        }
        assert!(model.bytes_for(1 << 20) == model.bytes_for(1 << 21), "{name}: the limit grows with the length");
    }
}

/// A fork excludes symbols in flight. If their chunk has displaced all earlier keys, the fork is empty.
#[test]
fn a_fork_in_flight_is_complete_or_empty() {
    for (name, model) in endless() {
        let symbols = model.card().vocabulary.len();
        let text = Random::new(4).text(1_000, symbols);
        let complete = full(&*model, &text, &BoundaryOptions::default()).0;
        for (before, more, fork_len) in [(100, 30, 100), (100, 900, 0)] {
            let mut main = Alone::new(&*model, BoundaryOptions::default());
            main.feed(&text[..before]);
            main.rows[0].set(&text[before..before + more], Want::All);
            model.symbol_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            let fork = main.rows[0].state.fork();
            assert_eq!(fork.len(), fork_len, "{name}");
            let mut fork = Alone::from(&*model, SequenceRow::new(fork));
            let actual = fork.feed(&text[fork_len..fork_len + 200]).0;
            assert!(actual == complete[fork_len * symbols..(fork_len + 200) * symbols], "{name}");
        }
    }
}

/// Memory and lists do not grow during a long generation, symbol by symbol.
#[test]
fn a_long_generation_uses_constant_memory() {
    let symbols = if long_runs() { 200_000 } else { 12_000 };
    for (name, model) in endless() {
        let vocabulary = model.card().vocabulary.len();
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let mut rng = Random::new(9);
        let mut own = Vec::new();
        let limit = model.bytes_for(2 * 64 + 32 + 32);
        for position in 0..symbols {
            // The symbols are random; about one in five is a boundary.
            let symbol = if rng.below(5) == 0 { 3 } else { rng.below(vocabulary) as u32 };
            alone.rows[0].set(&[symbol], Want::Last);
            advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
            assert!(model.memory().in_use <= limit, "{name} at {position}: {} of {limit}", model.memory().in_use);
            if position % (symbols / 4) == symbols / 4 - 1 {
                own.push(alone.rows[0].state.own_bytes());
            }
        }
        assert!(own.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {own:?}");
    }
}

/// Logits depend only on the last symbols, at any position of a stream. Removing whole blocks at the start changes nothing
/// beyond the receptive field.
#[test]
fn logits_depend_only_on_the_receptive_field() {
    let model = model_of("torchscale", "xpos_bca", Dtype::F32);
    let text = &golden("xpos_bca").texts("tokens")[0];
    let symbols = model.card().vocabulary.len();
    let complete = full(&*model, text, &BoundaryOptions::default()).0;
    let later = full(&*model, &text[32..], &BoundaryOptions::default()).0;
    // The receptive field is two layers of blocks of 16.
    let max_error = difference(&complete[64 * symbols..], &later[32 * symbols..]);
    assert!(max_error <= 2e-6, "{max_error}");
    let shifted = full(&*model, &text[5..], &BoundaryOptions::default()).0;
    assert!(difference(&complete[64 * symbols..], &shifted[59 * symbols..]) > 1e-3, "blocks count from the start");
}

#[test]
fn every_layer_equals_the_golden_data() {
    let mut compared = 0;
    for case in CASES {
        let golden = golden(case);
        let model = model_of("torchscale", case, Dtype::F32);
        for (row, text) in golden.texts("tokens").iter().enumerate() {
            let seen: Arc<Mutex<BTreeMap<String, Vec<f32>>>> = Arc::default();
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let record = seen.clone();
            work_mut::<Work>(&mut alone.scratch).unwrap().watch(Box::new(move |stage, layer, positions, numbers| {
                let name = match stage {
                    HookPoint::Heads => "attn_concat",
                    HookPoint::Attention => "self_attn_out",
                    HookPoint::Layer => "out",
                };
                assert!(numbers.len().is_multiple_of(positions.len()));
                record.lock().unwrap().entry(format!("layer.{layer}.{name}")).or_default().extend(numbers);
            }));
            text.chunks(41).for_each(|piece| drop(alone.feed(piece)));
            let seen = seen.lock().unwrap();
            for name in golden.names().filter(|name| name.starts_with("layer.")) {
                let max_error = difference(&seen[name], golden.row(name, row));
                assert!(max_error <= LOGITS, "{case} {name} row {row}: {max_error}");
                compared += 1;
            }
        }
    }
    // The data has two tensors in each of 15 cases, and the outputs of both layers for two texts.
    assert_eq!(compared, 15 * 2 + 2 + 2 * 2);
}

pub(crate) const SYMBOLS: [&str; 7] = [" ", "a", "b", "é", "語", "e", "\n"];

fn config(position: &Value, window: &Value, extra: &[(&str, Value)]) -> Value {
    let mut architecture = json!({
        "layers": 2, "dim": 20, "heads": 3, "head_dim": 6, "feed_forward": 28, "activation": "gelu",
        "layer_norm_eps": 1e-5, "position": position, "window": window, "sub_norms": true, "scale_embedding": false,
        "tied": false,
    });
    for (key, value) in extra {
        architecture[*key] = value.clone();
    }
    json!({
        "format": "weir/1", "family": "decoder", "vocabulary": {"symbols": SYMBOLS}, "normaliser": "none",
        "training_length": 64, "architecture": architecture,
    })
}

fn list() -> Vec<(String, Value)> {
    let positions = [
        ("txl", json!("transformer-xl")),
        ("rotary", json!("rotary")),
        ("xpos", json!({"xpos": {"scale_base": 40}})),
        ("alibi", json!("alibi")),
        ("buckets", json!({"buckets": {"count": 6, "max_distance": 50}})),
        ("sinusoidal", json!("sinusoidal")),
        ("learned", json!({"learned": {"positions": 1000}})),
        ("none", json!("none")),
    ];
    let windows = [
        ("full", json!("full")),
        ("blocks of 32", json!({"blockwise": {"length": 64}})),
        ("blocks of 11", json!({"blockwise": {"length": 22}})),
        ("last 40", json!({"sliding": {"keys": 40}})),
    ];
    let mut all = Vec::new();
    for (position_name, position) in &positions {
        for (window_name, window) in &windows {
            all.push((format!("{position_name}, {window_name}"), config(position, window, &[])));
        }
    }
    let learned = json!({"learned": {"positions": 1000}});
    let gpt2 = [("sub_norms", json!(false)), ("activation", json!("gelu-tanh")), ("tied", json!(true))];
    all.push(("gpt-2".into(), config(&learned, &json!("full"), &gpt2)));
    let scaled = [("scale_embedding", json!(true)), ("activation", json!("relu"))];
    let mut ended = config(&json!("rotary"), &json!({"sliding": {"keys": 3}}), &scaled);
    ended["vocabulary"] = json!({"bytes": true, "end": 3});
    all.push(("scaled".into(), ended));
    // Texts begin with a start symbol, which takes the first position and leaves the window like any other symbol.
    for (position_name, position) in &positions {
        for (window_name, window) in &windows {
            let mut marked = config(position, window, &[]);
            marked["vocabulary"] = WITH_SPECIALS.clone();
            all.push((format!("marked {position_name}, {window_name}"), marked));
        }
    }
    all
}

/// The same symbols with special symbols between them.
static WITH_SPECIALS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "symbols": [" ", "a", "<BoS>", "b", "<bos>", "é", "語", "<eos>", "e", "<nxt>", "\n", "<oov>"],
        "specials": {"start": 2, "end": 7, "segment_start": 4, "segment_end": 9, "unknown": 11},
    })
});

pub(crate) fn folders() -> &'static [(String, PathBuf)] {
    static SHAPES: LazyLock<(TempDir, Vec<(String, PathBuf)>)> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        let folders = list()
            .into_iter()
            .enumerate()
            .map(|(seed, (name, config))| {
                (name, write(root.path(), &format!("decoder-{seed}"), &config, seed as u64 + 21))
            })
            .collect();
        (root, folders)
    });
    &SHAPES.1
}

/// Loads all shapes.
pub(crate) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    folders().iter().map(|(name, folder)| (name.clone(), load(folder, &settings()).unwrap())).collect()
}

fn ids(count: usize) -> String {
    Random::new(8).text(count, 56).iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn model_folder(case: &str) -> String {
    checkpoint("torchscale", case).to_str().unwrap().to_owned()
}

#[test]
fn bits_by_length_equal_those_of_windows() {
    let model = model_folder("xpos_bca");
    let ids = ids(301);
    let scored = weir_json(&["score", "--json", "--model", &model, "--ids", &ids, "--lengths", "16,32,100,300"]);
    let entries = scored["lengths"].as_array().unwrap();
    assert_eq!(entries.len(), 4);
    for entry in entries {
        let length = entry["length"].as_u64().unwrap();
        let windows = format!("{length},{length}");
        let windowed = weir_json(&["score", "--json", "--model", &model, "--ids", &ids, "--windowed", &windows]);
        assert_eq!(entry["bits_per_char"], windowed["bits_per_char"], "{length}");
        // Each length scores the same symbols.
        assert_eq!((&entry["scored"], &entry["pieces"]), (&300.into(), &windowed["windows"]));
        assert_eq!(entry["extrapolates"], length > 32);
    }
    let table = weir(&["score", "--model", &model, "--ids", &ids, "--lengths", "16,32,100,300"]).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["length", "16", "32", "100", "300"]);
    assert_eq!(lines[1][3..], ["inter", "inter", "extra", "extra"]);
    for (cell, entry) in lines[2][3..].iter().zip(entries) {
        assert_eq!(*cell, format!("{:.4}", entry["bits_per_char"].as_f64().unwrap()));
    }
}

#[test]
fn the_maximum_length_follows_from_scheme_and_window() {
    let max_symbols = |case: &str, max_symbols: Option<usize>| {
        let settings = Settings { max_symbols, ..settings() };
        load(&checkpoint("torchscale", case), &settings).map(|model| model.card().max_symbols)
    };
    // Schemes without a limit accept four training windows, but at least 8,192 symbols.
    assert_eq!(max_symbols("rope_full", None).unwrap(), 8192);
    assert_eq!(max_symbols("rope_full", Some(100_000)).unwrap(), 100_000);
    assert_eq!(max_symbols("xpos_full", None).unwrap(), 8192);
    assert_eq!(max_symbols("xpos_full", Some(35_694)).unwrap(), 35_694);
    assert_eq!(max_symbols("xpos_full_base16", None).unwrap(), 1115);
    // A window limits the kept keys.
    assert_eq!(max_symbols("xpos_bca", None).unwrap(), 1 << 24);
    assert_eq!(max_symbols("xpos_bca", Some(50)).unwrap(), 50);
    for (case, requested, expected) in
        [("xpos_full", 35_695, "at most 35694 (without a window"), ("xpos_full_base16", 2000, "1115")]
    {
        let message = max_symbols(case, Some(requested)).unwrap_err().to_string();
        assert!(message.contains("--max-symbols") && message.contains(expected), "{message}");
    }
    let learned = shapes().into_iter().find(|(name, _)| name == "gpt-2").unwrap().1;
    assert_eq!(learned.card().max_symbols, 1000);
}

/// Logits stay finite up to the last symbol that xPos without a window accepts.
#[test]
fn the_longest_text_has_finite_logits() {
    for dtype in Dtype::ALL {
        let model = model_of("torchscale", "xpos_full_base16", dtype);
        let text = Random::new(2).text(1115, 56);
        let (logits, _) = crate::support::full(&*model, &text, &Default::default());
        assert!(logits.iter().all(|logit| logit.is_finite()));
    }
}
