//! Decoders in shapes that the official fixtures lack: every position scheme with every window, GPT-2, windows with and without
//! page alignment, and odd widths. The tests of `verify` compare their logits with a second implementation. The naive implementation
//! in f64, with plain loops, has what `verify` does not see: scores before the softmax, and other settings.

use super::{
    hourglass::write,
    support::{Dice, settings},
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};
use tempfile::TempDir;
use weir::{
    decode::contract::Model,
    family::{decoder::measure, load::load},
};

const SYMBOLS: [&str; 7] = [" ", "a", "b", "é", "語", "e", "\n"];

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
    all.push(("scaled".into(), config(&json!("rotary"), &json!({"sliding": {"keys": 3}}), &scaled)));
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

fn folders() -> &'static [(String, PathBuf)] {
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
pub(super) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    folders().iter().map(|(name, folder)| (name.clone(), load(folder, &settings()).unwrap())).collect()
}

/// Returns the folder of a shape.
pub(super) fn folder(name: &str) -> &'static Path {
    &folders().iter().find(|(own, _)| own == name).unwrap().1
}

type Matrix = Vec<Vec<f64>>;

/// A naive implementation: the tensors and the architecture of a checkpoint.
struct Naive {
    tensors: HashMap<String, Vec<f64>>,
    architecture: Value,
    /// Symbol at the start of each text.
    start: Option<u32>,
}

impl Naive {
    fn read(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let numbers = |data: &[u8]| -> Vec<f64> {
            data.as_chunks().0.iter().map(|&four| f64::from(f32::from_le_bytes(four))).collect()
        };
        let tensors = file.tensors().into_iter().map(|(name, view)| (name, numbers(view.data())));
        let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        let start = config["vocabulary"]["specials"]["start"].as_u64().map(|id| id as u32);
        Self { tensors: tensors.collect(), architecture: config["architecture"].clone(), start }
    }

    fn get(&self, name: &str) -> &[f64] {
        self.tensors.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn size(&self, key: &str) -> usize {
        self.architecture[key].as_u64().unwrap() as usize
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{name}.weight"));
        let bias = self.tensors.get(&format!("{name}.bias"));
        let output = |o: usize| {
            (0..x.len()).map(|k| weight[o * x.len() + k] * x[k]).sum::<f64>() + bias.map_or(0.0, |bias| bias[o])
        };
        (0..weight.len() / x.len()).map(output).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{name}.weight"));
        let bias = self.get(&format!("{name}.bias"));
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        (0..x.len()).map(|i| (x[i] - mean) / (variance + 1e-5).sqrt() * weight[i] + bias[i]).collect()
    }

    fn activate(&self, x: f64) -> f64 {
        match self.architecture["activation"].as_str().unwrap() {
            "relu" => x.max(0.0),
            "gelu-tanh" => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
            _ => {
                // Computes erf by Simpson's rule.
                let steps = 200;
                let h = x / 2f64.sqrt() / f64::from(steps);
                let f = |t: f64| (-t * t).exp();
                let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
                let sum: f64 = (0..=steps).map(|i| weight(i) * f(f64::from(i) * h)).sum();
                0.5 * x * (1.0 + sum * h / 3.0 * 2.0 / std::f64::consts::PI.sqrt())
            }
        }
    }

    fn position(&self) -> (&str, &Value) {
        let position = &self.architecture["position"];
        match position.as_str() {
            Some(name) => (name, &Value::Null),
            None => position.as_object().map(|map| map.iter().next().unwrap()).map(|(k, v)| (k.as_str(), v)).unwrap(),
        }
    }

    /// Returns the absolute position encoding, which is added to the embedding.
    fn absolute(&self, n: usize) -> Vec<f64> {
        let dim = self.size("dim");
        match self.position().0 {
            "learned" => self.get("position.table")[n * dim..][..dim].to_vec(),
            "sinusoidal" => {
                let step = 10_000f64.ln() / (dim as f64 / 2.0 - 1.0);
                let angles: Vec<f64> = (0..dim / 2).map(|i| (n + 2) as f64 * (-(i as f64) * step).exp()).collect();
                angles.iter().map(|a| a.sin()).chain(angles.iter().map(|a| a.cos())).collect()
            }
            _ => vec![0.0; dim],
        }
    }

    /// Returns one head's score of a query and a key before the softmax.
    fn score(&self, prefix: &str, head: usize, distance: usize, q: &[f64], k: &[f64]) -> f64 {
        let h = q.len();
        let (scheme, options) = self.position();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let scale = 1.0 / (h as f64).sqrt();
        match scheme {
            "rotary" | "xpos" => rotated(q, k, distance, options["scale_base"].as_f64()) * scale,
            "transformer-xl" => {
                let angles: Vec<f64> =
                    self.get("position.inverse_frequency").iter().map(|f| distance as f64 * f).collect();
                let encoding: Vec<f64> = angles.iter().map(|a| a.sin()).chain(angles.iter().map(|a| a.cos())).collect();
                let far = &self.linear(&format!("{prefix}.attention.distance"), &encoding)[head * h..][..h];
                let biased = |name: &str| -> Vec<f64> {
                    q.iter().zip(&self.get(&format!("position.{name}_bias"))[head * h..]).map(|(q, b)| q + b).collect()
                };
                (dot(&biased("content"), k) + dot(&biased("distance"), far)) * scale
            }
            // Three heads have the two slopes of two heads, then the first slope of four.
            "alibi" => dot(q, k) * scale - [1.0 / 16.0, 1.0 / 256.0, 0.25][head] * distance as f64,
            "buckets" => {
                // The six buckets are 0, 1, 2, then thirds of the logarithm from 3 to 50.
                let third = (distance as f64 / 3.0).ln() / (50f64 / 3.0).ln() * 3.0;
                let bucket = if distance < 3 { distance } else { (3 + third as usize).min(5) };
                dot(q, k) * scale + self.get("position.bias")[bucket * self.size("heads") + head]
            }
            _ => dot(q, k) * scale,
        }
    }

    /// Returns queries, keys and values.
    fn projected(&self, prefix: &str, x: &Matrix) -> Matrix {
        let normed = x.iter().map(|x| self.norm(&format!("{prefix}.attention.norm"), x));
        normed.map(|x| self.linear(&format!("{prefix}.attention.qkv"), &x)).collect()
    }

    /// Returns s[n] of a layer (LeX, eq. 13): the mean score at each distance, over heads and queries.
    fn mean_scores(&self, prefix: &str, x: &Matrix) -> Vec<f64> {
        let heads = self.size("heads");
        let h = self.size("head_dim");
        let qkv = self.projected(prefix, x);
        let window = &self.architecture["window"];
        let mean = |distance: usize| {
            let pairs = (distance..x.len()).filter(|&i| sees(window, i, i - distance));
            let scores: Vec<f64> = pairs
                .flat_map(|i| (0..heads).map(move |head| (head, i)))
                .map(|(head, i)| {
                    let head_part = |row: usize, part: usize| &qkv[row][(part * heads + head) * h..][..h];
                    self.score(prefix, head, distance, head_part(i, 0), head_part(i - distance, 1))
                })
                .collect();
            (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
        };
        (0..x.len()).map_while(mean).collect()
    }

    fn layer(&self, prefix: &str, x: &Matrix) -> Matrix {
        let heads = self.size("heads");
        let h = self.size("head_dim");
        let inner = heads * h;
        let subs = self.architecture["sub_norms"] == true;
        let qkv = self.projected(prefix, x);
        let output = |i: usize| {
            let mut mixed = vec![0.0; inner];
            for head in 0..heads {
                let head_part = |row: usize, part: usize| &qkv[row][part * inner + head * h..][..h];
                let visible: Vec<usize> = (0..=i).filter(|&j| sees(&self.architecture["window"], i, j)).collect();
                let weight = |&j: &usize| self.score(prefix, head, i - j, head_part(i, 0), head_part(j, 1)).exp();
                let weights: Vec<f64> = visible.iter().map(weight).collect();
                let total: f64 = weights.iter().sum();
                for n in 0..h {
                    mixed[head * h + n] =
                        visible.iter().zip(&weights).map(|(&j, w)| w / total * head_part(j, 2)[n]).sum();
                }
            }
            if subs {
                mixed = self.norm(&format!("{prefix}.attention.inner_norm"), &mixed);
            }
            let change = self.linear(&format!("{prefix}.attention.output"), &mixed);
            let y: Vec<f64> = x[i].iter().zip(change).map(|(x, c)| x + c).collect();
            let wide = self
                .linear(&format!("{prefix}.feed_forward.up"), &self.norm(&format!("{prefix}.feed_forward.norm"), &y));
            let mut wide: Vec<f64> = wide.into_iter().map(|x| self.activate(x)).collect();
            if subs {
                wide = self.norm(&format!("{prefix}.feed_forward.inner_norm"), &wide);
            }
            let change = self.linear(&format!("{prefix}.feed_forward.down"), &wide);
            y.iter().zip(change).map(|(y, c)| y + c).collect()
        };
        (0..x.len()).map(output).collect()
    }

    fn embedded(&self, symbols: &[u32]) -> Matrix {
        let dim = self.size("dim");
        let embedding = self.get("embedding.weight");
        let scale = if self.architecture["scale_embedding"] == true { (dim as f64).sqrt() } else { 1.0 };
        let embed = |n: usize, symbol: u32| {
            let row = &embedding[symbol as usize * dim..][..dim];
            row.iter().zip(self.absolute(n)).map(|(x, add)| x * scale + add).collect()
        };
        symbols.iter().enumerate().map(|(n, &symbol)| embed(n, symbol)).collect()
    }

    /// Returns the logits after each symbol, preceded by those after the start symbol if the vocabulary has one.
    fn forward(&self, symbols: &[u32]) -> Matrix {
        let symbols: Vec<u32> = self.start.into_iter().chain(symbols.iter().copied()).collect();
        let mut x = self.embedded(&symbols);
        for index in 0..self.size("layers") {
            x = self.layer(&format!("layers.{index}"), &x);
        }
        let head = if self.architecture["tied"] == true { "embedding" } else { "head" };
        x.iter().map(|x| self.linear(head, &self.norm("norm", x))).collect()
    }
}

/// Returns true if the query at i sees the key at j, by the papers' definitions of windows.
fn sees(window: &Value, i: usize, j: usize) -> bool {
    let number = |pointer: &str| window.pointer(pointer).and_then(Value::as_u64).map(|n| n as usize);
    let blocks = number("/blockwise/length").is_none_or(|length| j / (length / 2) + 1 >= i / (length / 2));
    j <= i && blocks && number("/sliding/keys").is_none_or(|keys| i - j < keys)
}

/// Returns Σ Re(q_m · conj(k_m) · e^(i·n·θ_m)) · ζ_m^(n/B) at distance n. Without B there are no scales.
fn rotated(q: &[f64], k: &[f64], distance: usize, base: Option<f64>) -> f64 {
    let h = q.len() as f64;
    let pair = |m: usize| {
        let theta = 10_000f64.powf(-(m as f64) / (h / 2.0)) * distance as f64;
        let re = q[2 * m] * k[2 * m] + q[2 * m + 1] * k[2 * m + 1];
        let im = q[2 * m + 1] * k[2 * m] - q[2 * m] * k[2 * m + 1];
        let zeta = (2.0 * m as f64 + 0.4 * h) / (1.4 * h);
        (re * theta.cos() - im * theta.sin()) * base.map_or(1.0, |base| zeta.powf(distance as f64 / base))
    };
    (0..q.len() / 2).map(pair).sum()
}

/// Each scheme and each window changes the logits.
#[test]
fn schemes_and_windows_give_different_logits() {
    let text = Dice::new(5).text(100, SYMBOLS.len());
    for (name, folder) in folders() {
        let naive = Naive::read(folder);
        let logits = naive.forward(&text);
        let changed = |key: &str, value: Value| {
            let mut other = Naive::read(folder);
            other.architecture[key] = value;
            let others = other.forward(&text);
            logits.iter().flatten().zip(others.iter().flatten()).any(|(a, b)| (a - b).abs() > 1e-3)
        };
        assert_eq!(changed("window", json!("full")), naive.architecture["window"] != "full", "{name}");
        assert_eq!(changed("position", json!("none")), naive.architecture["position"] != "none", "{name}");
    }
}

#[test]
fn attention_resolution_equals_the_definition() {
    let text = Dice::new(6).text(90, SYMBOLS.len());
    let unmarked = |name: &str| !name.starts_with("marked");
    for ((name, folder), (_, model)) in folders().iter().zip(shapes()).filter(|((name, _), _)| unmarked(name)) {
        let naive = Naive::read(folder);
        let measured = measure(&*model, &text).unwrap();
        let mut x = naive.embedded(&text);
        let mut layers = Vec::new();
        for index in 0..naive.size("layers") {
            layers.push(naive.mean_scores(&format!("layers.{index}"), &x));
            x = naive.layer(&format!("layers.{index}"), &x);
        }
        let resolution = |s: &[f64]| {
            let e: Vec<f64> = s.iter().map(|s| s.exp()).collect();
            (0..e.len() - 1).map(|n| e[n] * (e[n] - e[n + 1])).sum::<f64>() / e.iter().sum::<f64>().powi(2)
        };
        for (measured, scores) in measured.layers.iter().zip(&layers) {
            assert!((measured - resolution(scores)).abs() < 1e-5, "{name}: {measured} {}", resolution(scores));
        }
        let mean: Vec<f64> = (0..layers[0].len()).map(|n| (layers[0][n] + layers[1][n]) / 2.0).collect();
        assert!((measured.all - resolution(&mean)).abs() < 1e-5, "{name}");
        assert_eq!((measured.layers.len(), measured.distances), (2, mean.len()), "{name}");
    }
}
