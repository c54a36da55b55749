//! A naive implementation of the latent segment model in f64, written from the paper's formulas with plain loops over whole
//! texts. It runs on shapes that the fixtures lack: special symbols among the text symbols, byte vocabularies with specials
//! after the bytes, unusual head widths, a tied head with two embeddings, other buckets, thresholds and epsilons.

use super::super::support::*;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};
use tempfile::TempDir;
use weir::{
    decode::{
        contract::{BoundaryOptions, Model},
        sampling::logprobs::log_probability,
        trace,
    },
    family::{init, load::load},
};

type NaiveVector = Vec<f64>;

fn stack(layers: usize, dim: usize, heads: usize, head_dim: usize) -> Value {
    json!({
        "layers": layers, "dim": dim, "heads": heads, "head_dim": head_dim, "feed_forward": 2 * dim + 3, "buckets": 10,
        "max_distance": 23, "bidirectional_buckets": false,
    })
}

fn config(vocabulary: Value, token: Value, context: Value, decoder: Value, extra: &[(&str, Value)]) -> Value {
    let mut architecture = json!({
        "token": token, "context": context, "decoder": decoder, "norm_eps": 1e-3, "pooling": {"hops": 2},
        "boundaries": {"kind": "learned", "hidden": 13, "threshold": 0.4}, "widths": "equal",
        "shared_embedding": false, "tied_head": false, "driver": "predictor",
    });
    for (key, value) in extra {
        architecture[*key] = value.clone();
    }
    json!({
        "format": "weir/1", "family": "lslm", "vocabulary": vocabulary, "normaliser": "none", "training_length": 64,
        "architecture": architecture,
    })
}

fn letters() -> Value {
    json!({
        "symbols": ["a", "<nxt>", "b", "語", "<BoS>", "é", "\n", "<oov>", "c", "<eos>", " ", "<bos>"],
        "specials": {"start": 4, "end": 9, "segment_start": 11, "segment_end": 1, "unknown": 7},
    })
}

/// Returns the shapes and their checkpoints with random weights.
pub(in super::super) fn shapes() -> &'static [(&'static str, PathBuf)] {
    static ALL: LazyLock<(TempDir, Vec<(&str, PathBuf)>)> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        let bytes = json!({
            "bytes": true, "first_byte": 2,
            "specials": {"start": 260, "end": 0, "segment_start": 1, "segment_end": 259, "unknown": 258},
        });
        let mut both = stack(2, 20, 3, 5);
        both["bidirectional_buckets"] = json!(true);
        let configs = [
            (
                "scattered",
                config(
                    letters(),
                    stack(2, 20, 3, 5),
                    stack(1, 20, 2, 7),
                    stack(2, 12, 3, 6),
                    &[("tied_head", json!(true))],
                ),
            ),
            (
                "bytes",
                config(
                    bytes,
                    both,
                    stack(2, 28, 4, 6),
                    stack(1, 20, 3, 4),
                    &[("widths", json!("first-layer")), ("shared_embedding", json!(true)), ("pooling", json!("mean"))],
                ),
            ),
            (
                "projected",
                config(
                    letters(),
                    stack(1, 12, 1, 9),
                    stack(2, 20, 5, 3),
                    stack(2, 20, 2, 9),
                    &[("widths", json!("projection"))],
                ),
            ),
        ];
        let write = |(name, config): (&'static str, Value)| {
            let file = root.path().join(format!("{name}.json"));
            let to = root.path().join(name);
            fs::write(&file, config.to_string()).unwrap();
            // Some random predictors decide the same for every symbol.
            let mixed = |seed: &u64| {
                init::init(&file, &to, *seed, true).unwrap();
                let model = load(&to, &settings()).unwrap();
                let shares = (1..4).map(|seed| {
                    let (_, marks) = full(&*model, &text(&*model, seed), &BoundaryOptions::default());
                    marks.iter().filter(|mark| mark.boundary).count() * 100 / marks.len()
                });
                shares.into_iter().all(|share| (10..=80).contains(&share))
            };
            assert!((1..100).any(|seed| mixed(&seed)), "{name}");
            (name, to)
        };
        let folders = configs.into_iter().map(write).collect();
        (root, folders)
    });
    &ALL.1
}

/// Returns a random text of the model's symbols.
fn text(model: &dyn Model, seed: u64) -> Vec<u32> {
    text_symbols(model, &Dice::new(seed).text(60, model.card().vocabulary.len()))
}

/// A naive implementation: the tensors and the configuration of a checkpoint.
struct Naive {
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
    config: Value,
}

fn add(x: &mut NaiveVector, y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

impl Naive {
    fn read(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let number = |four: &[u8]| f64::from(f32::from_le_bytes(four.try_into().unwrap()));
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, (view.shape().to_vec(), view.data().chunks(4).map(number).collect())));
        let config = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        Self { tensors: tensors.collect(), config }
    }

    fn option(&self, key: &str) -> &Value {
        self.config["architecture"].pointer(key).unwrap()
    }

    fn size(&self, key: &str) -> usize {
        self.option(key).as_u64().unwrap() as usize
    }

    fn apply(&self, name: &str, x: &[f64]) -> NaiveVector {
        let (shape, weight) = &self.tensors[&format!("{name}.weight")];
        assert_eq!(shape[1], x.len(), "{name}");
        weight.chunks(x.len()).map(|row| dot(row, x)).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> NaiveVector {
        let scale = 1.0 / (dot(x, x) / x.len() as f64 + self.option("/norm_eps").as_f64().unwrap()).sqrt();
        x.iter().zip(&self.tensors[&format!("{name}.weight")].1).map(|(x, g)| x * scale * g).collect()
    }

    fn embedding(&self, stack: &str, symbol: u32) -> NaiveVector {
        let own = self.tensors.get(&format!("{stack}.embedding.weight"));
        let (shape, table) = own.unwrap_or_else(|| &self.tensors["embedding.weight"]);
        table[symbol as usize * shape[1]..][..shape[1]].to_vec()
    }

    /// Returns b[head][bucket(distance)]. By definition this is the last bucket that starts at or before the distance.
    fn bias(&self, stack: &str, head: usize, distance: usize) -> f64 {
        let (shape, table) = &self.tensors[&format!("{stack}.distance_bias.weight")];
        let both = self.option(&format!("/{stack}/bidirectional_buckets")).as_bool().unwrap();
        let used = if both { shape[0] / 2 } else { shape[0] };
        let exact = used / 2;
        let max_distance = self.size(&format!("/{stack}/max_distance")) as f64;
        let begins = |bucket: usize| match bucket < exact {
            true => bucket as f64,
            false => exact as f64 * (max_distance / exact as f64).powf((bucket - exact) as f64 / (used - exact) as f64),
        };
        let bucket = (0..used).filter(|&bucket| begins(bucket) <= distance as f64 + 1e-9).max().unwrap();
        table[bucket * shape[1] + head]
    }

    /// Returns the values of each head, weighted by the softmax of the products of query and keys.
    fn attend(
        &self,
        heads: usize,
        query: &[f64],
        pairs: &[(NaiveVector, NaiveVector)],
        bias: &dyn Fn(usize, usize) -> f64,
    ) -> NaiveVector {
        let width = query.len() / heads;
        let mut mixed = NaiveVector::new();
        for head in 0..heads {
            let part = |row: &[f64]| row[head * width..][..width].to_vec();
            let scores: NaiveVector = pairs
                .iter()
                .enumerate()
                .map(|(index, (key, _))| dot(&part(query), &part(key)) + bias(head, index))
                .collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = scores.iter().map(|score| (score - top).exp()).sum();
            let mut out = vec![0.0; width];
            for (score, (_, value)) in scores.iter().zip(pairs) {
                let share = (score - top).exp() / total;
                add(&mut out, &part(value).iter().map(|value| value * share).collect::<NaiveVector>());
            }
            mixed.extend(out);
        }
        mixed
    }

    /// Runs a stack over all its rows. The rows of a decoder attend to `memory`.
    fn run(&self, stack: &str, mut rows: Vec<NaiveVector>, memory: &[NaiveVector]) -> Vec<NaiveVector> {
        let heads = self.size(&format!("/{stack}/heads"));
        for layer in 0..self.size(&format!("/{stack}/layers")) {
            let tensor_name = |name: &str| format!("{stack}.{layer}.{name}");
            let normed: Vec<NaiveVector> = rows.iter().map(|x| self.norm(&tensor_name("attention.norm"), x)).collect();
            let pair = |x: &NaiveVector| {
                (self.apply(&tensor_name("attention.key"), x), self.apply(&tensor_name("attention.value"), x))
            };
            let pairs: Vec<_> = normed.iter().map(pair).collect();
            for (position, x) in rows.iter_mut().enumerate() {
                let query = self.apply(&tensor_name("attention.query"), &normed[position]);
                let bias = |head, key| self.bias(stack, head, position - key);
                let mixed = self.attend(heads, &query, &pairs[..=position], &bias);
                let change = self.apply(&tensor_name("attention.output"), &mixed);
                if change.len() == x.len() {
                    add(x, &change)
                } else {
                    *x = change
                }
                if !memory.is_empty() {
                    let pair = |m: &NaiveVector| {
                        (self.apply(&tensor_name("memory.key"), m), self.apply(&tensor_name("memory.value"), m))
                    };
                    let pairs: Vec<_> = memory.iter().map(pair).collect();
                    let query = self.apply(&tensor_name("memory.query"), &self.norm(&tensor_name("memory.norm"), x));
                    let mixed = self.attend(heads, &query, &pairs, &|_, _| 0.0);
                    add(x, &self.apply(&tensor_name("memory.output"), &mixed));
                }
                let mut wide =
                    self.apply(&tensor_name("feed_forward.up"), &self.norm(&tensor_name("feed_forward.norm"), x));
                wide.iter_mut().for_each(|x| *x = x.max(0.0));
                add(x, &self.apply(&tensor_name("feed_forward.down"), &wide));
            }
        }
        rows.iter().map(|x| self.norm(&format!("{stack}.norm"), x)).collect()
    }

    fn logits(&self, x: &[f64]) -> NaiveVector {
        let tied = self.option("/tied_head").as_bool().unwrap();
        let scale = 1.0 / (x.len() as f64).sqrt();
        let mut logits = match tied {
            true => self.apply("decoder.embedding", &x.iter().map(|x| x * scale).collect::<NaiveVector>()),
            false => self.apply("head", x),
        };
        add(&mut logits, &self.tensors["head.bias"].1);
        logits
    }

    /// Returns the segment ends of a text and the logits of each row of the decoder.
    fn forward(&self, text: &[u32], forced_ends: Option<&[bool]>) -> (Vec<bool>, Vec<Vec<NaiveVector>>) {
        let special = |name: &str| self.config["vocabulary"]["specials"][name].as_u64().unwrap() as u32;
        let all = [&[special("start")][..], text].concat();
        let hidden = self.run("token", all.iter().map(|&symbol| self.embedding("token", symbol)).collect(), &[]);
        let threshold = self.option("/boundaries/threshold").as_f64().unwrap();
        let closes = |h: &NaiveVector| {
            let inner: NaiveVector = self.apply("boundary.hidden", h).iter().map(|x| x.max(0.0)).collect();
            1.0 / (1.0 + (-self.apply("boundary.output", &inner).iter().sum::<f64>()).exp()) >= threshold
        };
        let mut ends: Vec<bool> = hidden.iter().map(closes).collect();
        ends[0] = true;
        if let Some(forced_ends) = forced_ends {
            ends[1..].copy_from_slice(forced_ends);
        }
        let hops = self.option("/pooling").get("hops").and_then(Value::as_u64);
        let mut pooled = Vec::new();
        let mut texts = Vec::new();
        let mut open = Vec::new();
        for (t, &ends) in ends.iter().enumerate() {
            open.push(t);
            if ends {
                let kept = hops.map_or(open.len(), |hops| open.len().min(hops as usize + 1));
                let mut sum = vec![0.0; hidden[0].len()];
                open[open.len() - kept..].iter().for_each(|&t| add(&mut sum, &hidden[t]));
                sum.iter_mut().for_each(|x| *x /= kept as f64);
                let projected = self.tensors.contains_key("context.projection.weight");
                pooled.push(if projected { self.apply("context.projection", &sum) } else { sum });
                texts.push(std::mem::take(&mut open));
            }
        }
        texts.push(open);
        let context = self.run("context", pooled, &[]);
        let row = |(k, symbols): (usize, &Vec<usize>)| {
            let inputs = std::iter::once(special("segment_start")).chain(symbols.iter().map(|&t| all[t]));
            let inputs = inputs.map(|symbol| self.embedding("decoder", symbol)).collect();
            self.run("decoder", inputs, &context[..k]).iter().map(|x| self.logits(x)).collect()
        };
        let rows = texts.iter().enumerate().skip(1).map(row).collect();
        (ends[1..].to_vec(), rows)
    }
}

fn near(actual: &[f32], expected: &[f64], context: &str) {
    for (actual, expected) in actual.iter().zip(expected) {
        assert!(
            (f64::from(*actual) - expected).abs() < 5e-5 * (1.0 + expected.abs()),
            "{context}: {actual} {expected}"
        );
    }
}

#[test]
fn shapes_without_fixtures_equal_the_naive_implementation() {
    for (name, folder) in shapes() {
        let naive = Naive::read(folder);
        let model = load(folder, &settings()).unwrap();
        let vocabulary = &model.card().vocabulary;
        let nxt = model.card().vocabulary.specials().unwrap().segment_end;
        for seed in 1..4 {
            let mut dice = Dice::new(seed);
            let text = text(&*model, seed);
            // The model runs once with the predictor's boundaries and once with those of a trace.
            let random_ends: Vec<bool> = (0..text.len()).map(|_| dice.below(4) == 0).collect();
            for forced_ends in [None, Some(&random_ends[..])] {
                let (ends, rows) = naive.forward(&text, forced_ends);
                let item = |t: usize| forced_ends.map_or(text[t], |ends| trace::item(text[t], ends[t]));
                let items: Vec<u32> = (0..text.len()).map(item).collect();
                let (logits, marks) = full(&*model, &items, &BoundaryOptions::default());
                assert_eq!(marks.iter().map(|mark| mark.boundary).collect::<Vec<_>>(), ends, "{name} {seed}");
                assert!(forced_ends.is_some() || (ends.contains(&true) && ends.contains(&false)), "{name}: {ends:?}");
                near(model.card().first_logits.as_ref().unwrap(), &rows[0][0], name);
                let mut row = 0;
                let mut position = 0;
                for (t, actual) in logits.chunks(vocabulary.len()).enumerate() {
                    position += 1;
                    if ends[t] {
                        let last: Vec<f32> = rows[row][position].iter().map(|&x| x as f32).collect();
                        let expected = log_probability(&last, nxt).unwrap();
                        near(&[marks[t].end_logprob.unwrap()], &[expected], name);
                        row += 1;
                        position = 0;
                    }
                    near(actual, &rows[row][position], &format!("{name} {seed} after {t}"));
                }
            }
        }
    }
}
