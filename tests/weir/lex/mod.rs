//! The numbers of torchscale and of LeX's fork, case by case: logits in one pass, symbol by symbol and in chunks, greedy
//! text, the operator alone, and what a window leaves out.

mod layers;

use super::{
    naive_hourglass,
    support::{Alone, Dice, difference, full, settings, storms},
};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};
use tempfile::TempDir;
use weir::{
    decode::contract::{BoundaryOptions, Model, SequenceRow, Want, advance},
    family::{
        convert,
        load::{Settings, load},
    },
    kernels::{self, Isa},
    nn::position::rotary::Rotary,
};

/// Cases with a whole model.
pub(super) const CASES: [&str; 16] = [
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
const LOGITS: f32 = 5e-5;

pub(super) fn source(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torchscale").join(case)
}

/// A case, converted; the folder lives as long as the test run.
pub(super) fn converted(case: &str) -> PathBuf {
    static ROOT: LazyLock<TempDir> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        for case in CASES {
            convert::convert(convert::Source::Torchscale, &source(case), &root.path().join(case), false).unwrap();
        }
        root
    });
    ROOT.path().join(case)
}

pub(super) fn model(case: &str, dtype: kernels::Dtype) -> Arc<dyn Model> {
    load(&converted(case), &Settings { dtype, ..settings() }).unwrap()
}

/// A case's golden tensors: shape and numbers.
struct Golden(BTreeMap<String, (Vec<usize>, Vec<f64>)>);

impl Golden {
    fn read(case: &str) -> Self {
        let bytes = fs::read(source(case).join("golden.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let data = view.data();
            let numbers: Vec<f64> = match view.dtype() {
                Dtype::F32 => data.as_chunks().0.iter().map(|&four| f64::from(f32::from_le_bytes(four))).collect(),
                Dtype::I64 => data.as_chunks().0.iter().map(|&eight| i64::from_le_bytes(eight) as f64).collect(),
                other => panic!("{other:?}"),
            };
            (name, (view.shape().to_vec(), numbers))
        });
        Self(tensors.collect())
    }

    fn get(&self, name: &str) -> &[f64] {
        &self.0[name].1
    }

    /// The numbers at the first index, as f32.
    fn row(&self, name: &str, index: usize) -> Vec<f32> {
        let (shape, numbers) = &self.0[name];
        let size = numbers.len() / shape[0];
        numbers[index * size..(index + 1) * size].iter().map(|&x| x as f32).collect()
    }

    /// Its texts.
    fn texts(&self) -> Vec<Vec<u32>> {
        let count = self.0["tokens"].0[0];
        (0..count).map(|row| self.row("tokens", row).iter().map(|&id| id as u32).collect()).collect()
    }
}

#[test]
fn logits_in_every_mode() {
    for case in CASES {
        let golden = Golden::read(case);
        for isa in Isa::all() {
            let model = load(&converted(case), &Settings { isa, ..settings() }).unwrap();
            for (row, text) in golden.texts().iter().enumerate() {
                let want = golden.row("logits", row);
                let (logits, marks) = full(&*model, text, &BoundaryOptions::default());
                assert!(marks.iter().all(|mark| !mark.boundary));
                let off = difference(&logits, &want);
                assert!(off <= LOGITS, "{case} row {row}: {off}");
                for chunk in [1, 7, 37] {
                    let mut alone = Alone::new(&*model, BoundaryOptions::default());
                    let parts: Vec<f32> = text.chunks(chunk).flat_map(|part| alone.feed(part).0).collect();
                    assert!(parts == logits, "{case} in chunks of {chunk}: other bits");
                }
            }
        }
    }
}

#[test]
fn greedy_text() {
    let mut met = 0;
    for case in CASES.into_iter().filter(|case| Golden::read(case).0.contains_key("greedy.tokens")) {
        let (golden, model) = (Golden::read(case), model(case, kernels::Dtype::F32));
        let config: Value = serde_json::from_slice(&fs::read(source(case).join("config.json")).unwrap()).unwrap();
        let prompt = config["greedy_prompt_len"].as_u64().unwrap() as usize;
        let want: Vec<u32> = golden.row("greedy.tokens", 0).iter().map(|&id| id as u32).collect();
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let symbols = model.card().vocabulary.len();
        let mut logits = alone.feed(&want[..prompt]).0;
        for &symbol in &want[prompt..] {
            let last = &logits[logits.len() - symbols..];
            let best = (0..symbols).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
            assert_eq!(best as u32, symbol, "{case}");
            logits = alone.feed(&[symbol]).0;
        }
        met += 1;
    }
    assert_eq!(met, 14);
}

/// A symbol reaches as far as the official code lets it, and no further: `checks` of each case.
#[test]
fn receptive_fields_are_the_official_ones() {
    for case in CASES {
        let (golden, model) = (Golden::read(case), model(case, kernels::Dtype::F32));
        let config: Value = serde_json::from_slice(&fs::read(source(case).join("config.json")).unwrap()).unwrap();
        let (text, symbols) = (&golden.texts()[0], model.card().vocabulary.len());
        let before = full(&*model, text, &BoundaryOptions::default()).0;
        for (name, expected) in config["checks"].as_object().unwrap() {
            let Some(at) = name.strip_prefix("perturb_").and_then(|rest| rest.split('_').next()) else { continue };
            let (at, mut other) = (at.parse::<usize>().unwrap(), text.clone());
            other[at] = (other[at] + 1) % symbols as u32;
            let after = full(&*model, &other, &BoundaryOptions::default()).0;
            let differs = |t: &usize| before[t * symbols..][..symbols] != after[t * symbols..][..symbols];
            let changed: Vec<usize> = (0..text.len()).filter(differs).collect();
            let bounds = [changed.first(), changed.last()].map(|t| *t.unwrap() as u64);
            assert_eq!(serde_json::json!(bounds), *expected, "{case} {name}");
        }
    }
}

/// The operator alone, at lengths where absolute scales would span seventeen orders of magnitude: turned by blocks, every
/// score of a key and a later query is the official one.
#[test]
fn the_operator_alone() {
    let golden = Golden::read("xpos_operator");
    let config: Value =
        serde_json::from_slice(&fs::read(source("xpos_operator").join("config.json")).unwrap()).unwrap();
    for case in config["cases"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let (id, dim, length, base) = (number("id"), number("head_dim"), number("key_len"), number("scale_base"));
        let rotary = Rotary::new(dim, Some(base as f64), None, length);
        let block = rotary.block();
        let rows = |name: &str| golden.get(&format!("{id}.{name}")).iter().map(|&n| n as usize).collect::<Vec<_>>();
        let (q_rows, k_rows) = (rows("q_rows"), rows("k_rows"));
        // the official angles are rounded to f32, which at n leaves n · 6e-8 of a turn
        let tolerance = 1e-5 + 2.0 * length as f64 * 6e-8;
        let mut compared = 0;
        for head in 0..2 {
            let vectors = |name: &str| golden.row(&format!("{id}.{name}"), head);
            let (q, k, scores) = (vectors("q"), vectors("k"), vectors("scores"));
            for (i, &q_at) in q_rows.iter().enumerate() {
                for (j, &k_at) in k_rows.iter().enumerate().filter(|&(_, &k_at)| k_at <= q_at) {
                    let (mut query, mut key) = (q[i * dim..][..dim].to_vec(), k[j * dim..][..dim].to_vec());
                    rotary.rotate_query(q_at - k_at / block * block, std::iter::once(&mut query[..]));
                    rotary.rotate_key(k_at % block, std::iter::once(&mut key[..]));
                    let products = || query.iter().zip(&key).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let (got, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
                    let want = f64::from(scores[i * k_rows.len() + j]);
                    assert!((got - want).abs() <= tolerance * size, "{id}, {q_at} − {k_at}: {got} {want} of {size}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 20, "{id}: {compared} scores");
    }
}

/// What a sequence holds does not grow with its length, nor does a rollback across a block's edge lose anything.
#[test]
fn a_long_stream_holds_no_more_than_a_window() {
    for case in ["xpos_bca", "rope_bca", "alibi_bca", "xpos_sliding"] {
        for dtype in kernels::Dtype::ALL {
            let model = model(case, dtype);
            let symbols = model.card().vocabulary.len() as u32;
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let (mut most, bound) = (0, model.bytes_for(1 << 20));
            for at in 0..3000_u32 {
                let chunk: Vec<u32> =
                    (0..if at % 500 == 0 { 700 } else { 1 }).map(|i| (at * 7 + i) % symbols).collect();
                alone.rows[0].set(&chunk, Want::Last);
                advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
                assert!(model.memory().in_use <= bound, "{case}");
                if at % 500 > 100 {
                    most = most.max(model.memory().in_use);
                }
            }
            // 32 keys of the window, 32 for rollbacks, in whole pages
            assert!(most <= 3 * model.bytes_for(1), "{case}: {most} bytes");
            let state = &mut alone.rows[0].state;
            let (len, earliest) = (state.len(), state.earliest());
            assert!(earliest + 32 <= len && state.rollback(earliest - 1).is_err() && state.rollback(earliest).is_ok());
        }
    }
}

/// Models whose windows move on, decoders and hourglasses.
fn endless() -> Vec<(String, Arc<dyn Model>)> {
    let cases = ["xpos_bca", "alibi_bca", "xpos_sliding"];
    let official = cases.into_iter().map(|case| (case.to_string(), model(case, kernels::Dtype::F32)));
    let own = naive_hourglass::shapes().into_iter().filter(|(name, _)| name.contains("windows") || name == "xpos-last");
    let all: Vec<_> = official.chain(own).collect();
    assert_eq!(all.len(), 8);
    all
}

/// A chunk longer than what a stack takes at a time: the same bits, and no more memory than is foretold.
#[test]
fn long_chunks_pass_in_pieces() {
    for (name, model) in endless() {
        let symbols = model.card().vocabulary.len();
        let text = Dice::new(3).text(1_300, symbols);
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let steps: Vec<_> = text.iter().map(|&symbol| alone.feed(&[symbol])).collect();
        let (logits, marks): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        let (logits, marks) = (logits.concat(), marks.concat());
        for chunk in [1_300, 700, 45] {
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            let mut at = 0;
            for part in text.chunks(chunk) {
                let growth = model.growth(&*alone.rows[0].state, part.len());
                let before = model.memory().in_use;
                let got = alone.feed(part);
                assert!(model.memory().in_use <= before + growth, "{name}: more than {growth} in chunks of {chunk}");
                assert!(got.0 == logits[at * symbols..(at + part.len()) * symbols], "{name} in chunks of {chunk}");
                assert!(got.1 == marks[at..at + part.len()], "{name} in chunks of {chunk}");
                at += part.len();
            }
            assert!(model.memory().in_use <= model.bytes_for(text.len()), "{name}");
        }
        assert!(model.bytes_for(1 << 20) == model.bytes_for(1 << 21), "{name}: no end");
    }
}

/// What is in flight belongs to one row; where a chunk was so long that nothing from before it is left, its fork has seen
/// nothing.
#[test]
fn a_fork_in_flight_is_whole_or_new() {
    for (name, model) in endless() {
        let symbols = model.card().vocabulary.len();
        let text = Dice::new(4).text(1_000, symbols);
        let whole = full(&*model, &text, &BoundaryOptions::default()).0;
        for (before, more, left) in [(100, 30, 100), (100, 900, 0)] {
            let mut main = Alone::new(&*model, BoundaryOptions::default());
            main.feed(&text[..before]);
            main.rows[0].set(&text[before..before + more], Want::All);
            model.symbol_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            let fork = main.rows[0].state.fork();
            assert_eq!(fork.len(), left, "{name}");
            let mut fork = Alone::from(&*model, SequenceRow::new(fork));
            let got = fork.feed(&text[left..left + 200]).0;
            assert!(got == whole[left * symbols..(left + 200) * symbols], "{name}");
        }
    }
}

/// Symbol by symbol for a long time: pages and lists stay as they are.
#[test]
fn a_long_generation_holds_what_it_held() {
    let symbols = if storms() { 200_000 } else { 12_000 };
    for (name, model) in endless() {
        let vocabulary = model.card().vocabulary.len();
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let (mut dice, mut own) = (Dice::new(9), Vec::new());
        let most = model.bytes_for(2 * 64 + 32 + 32);
        for at in 0..symbols {
            // a symbol of each kind, a boundary about every fifth
            let symbol = if dice.below(5) == 0 { 3 } else { dice.below(vocabulary) as u32 };
            alone.rows[0].set(&[symbol], Want::Last);
            advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
            assert!(model.memory().in_use <= most, "{name} at {at}: {} of {most}", model.memory().in_use);
            if at % (symbols / 4) == symbols / 4 - 1 {
                own.push(alone.rows[0].state.own_bytes());
            }
        }
        assert!(own.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {own:?}");
    }
}

/// Logits depend on the last symbols alone, wherever in a stream they stand: whole blocks less at the front change nothing
/// behind the receptive field.
#[test]
fn a_stream_forgets_its_beginning() {
    let model = model("xpos_bca", kernels::Dtype::F32);
    let text = &Golden::read("xpos_bca").texts()[0];
    let symbols = model.card().vocabulary.len();
    let whole = full(&*model, text, &BoundaryOptions::default()).0;
    let later = full(&*model, &text[32..], &BoundaryOptions::default()).0;
    // two layers of blocks of 16
    let off = difference(&whole[64 * symbols..], &later[32 * symbols..]);
    assert!(off <= 2e-6, "{off}");
    let shifted = full(&*model, &text[5..], &BoundaryOptions::default()).0;
    assert!(difference(&whole[64 * symbols..], &shifted[59 * symbols..]) > 1e-3, "blocks count from the start");
}
