//! A naive implementation of the hourglass in f64, written from the SPEC with plain loops. It runs on shapes that the
//! official fixtures lack: d_head ≠ d_model / n_heads, a vocabulary with a newline and non-ASCII letters whose space is not
//! id 0, ReLU, last-token pooling, and boundaries at a companion's entropy spikes.

mod shapes;

pub(super) use shapes::{folder, shapes, write};

use super::support::{Alone, Dice, full, settings};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use shapes::{SYMBOLS, config, spikes, three_stacks};
use std::{collections::HashMap, fs, path::Path};
use tempfile::TempDir;
use weir::{
    decode::contract::{BoundaryOptions, Want, advance},
    family::load::load,
};

type Matrix = Vec<Vec<f64>>;

/// A naive implementation: the tensors and the architecture of a checkpoint.
pub(super) struct Naive {
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
    architecture: Value,
}

impl Naive {
    pub(super) fn read(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let numbers = |data: &[u8]| {
            data.chunks(4).map(|four| f64::from(f32::from_le_bytes(four.try_into().unwrap()))).collect::<Vec<_>>()
        };
        let tensors = file.tensors();
        let tensors = tensors.into_iter().map(|(name, view)| (name, (view.shape().to_vec(), numbers(view.data()))));
        let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        Self { tensors: tensors.collect(), architecture: config["architecture"].clone() }
    }

    fn get(&self, name: &str) -> &[f64] {
        &self.tensors[name].1
    }

    fn size(&self, key: &str) -> usize {
        self.architecture[key].as_u64().unwrap() as usize
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{name}.weight"));
        let bias = self.tensors.get(&format!("{name}.bias")).map(|(_, bias)| bias);
        let output =
            |o: usize| (0..x.len()).map(|k| weight[o * x.len() + k] * x[k]).sum::<f64>() + bias.map_or(0.0, |b| b[o]);
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
        if self.architecture["activation"] == "relu" {
            return x.max(0.0);
        }
        // Computes erf by Simpson's rule, which is slow but independent of the kernels.
        let limit = x / 2f64.sqrt();
        let steps = 200;
        let h = limit / f64::from(steps);
        let f = |i: i32| (-(f64::from(i) * h).powi(2)).exp();
        let sum: f64 =
            (0..=steps).map(|i| f(i) * if i == 0 || i == steps { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) }).sum();
        0.5 * x * (1.0 + sum * h / 3.0 * 2.0 / std::f64::consts::PI.sqrt())
    }

    fn encoding(&self, distance: usize) -> Vec<f64> {
        let angles: Vec<f64> = self.get("position.inverse_frequency").iter().map(|f| distance as f64 * f).collect();
        angles.iter().map(|a| a.sin()).chain(angles.iter().map(|a| a.cos())).collect()
    }

    /// Returns one head's score of a query and a key before the softmax. `distances` is for Transformer-XL only.
    fn score(&self, head: usize, distance: usize, q: &[f64], k: &[f64], distances: &Matrix) -> f64 {
        let h = q.len();
        if let Some(base) = self.architecture.pointer("/position/xpos/scale_base") {
            return rotated(q, k, distance, base.as_f64()) / (h as f64).sqrt();
        }
        let [u, v] = ["content", "distance"].map(|name| &self.get(&format!("position.{name}_bias"))[head * h..]);
        let far = &distances[distance][head * h..];
        (0..h).map(|n| (q[n] + u[n]) * k[n] + (q[n] + v[n]) * far[n]).sum::<f64>() / (h as f64).sqrt()
    }

    fn layer(&self, prefix: &str, x: &Matrix) -> Matrix {
        let heads = self.size("heads");
        let h = self.size("head_dim");
        let inner = heads * h;
        let qkv: Matrix = x.iter().map(|x| self.linear(&format!("{prefix}.attention.qkv"), x)).collect();
        let distances: Matrix = match self.architecture["position"] == "transformer-xl" {
            true => {
                let distance = |d: usize| self.linear(&format!("{prefix}.attention.distance"), &self.encoding(d));
                (0..x.len()).map(distance).collect()
            }
            false => Vec::new(),
        };
        let window = &self.architecture[if prefix.starts_with("middle") { "middle_window" } else { "window" }];
        (0..x.len())
            .map(|i| {
                let mut mixed = vec![0.0; inner];
                for a in 0..heads {
                    let head_part = |row: usize, part: usize| &qkv[row][part * inner + a * h..][..h];
                    let keys: Vec<usize> = (0..=i).filter(|&j| sees(window, i, j)).collect();
                    let score = |&j: &usize| self.score(a, i - j, head_part(i, 0), head_part(j, 1), &distances).exp();
                    let scores: Vec<f64> = keys.iter().map(score).collect();
                    let total: f64 = scores.iter().sum();
                    for n in 0..h {
                        mixed[a * h + n] =
                            keys.iter().zip(&scores).map(|(&j, score)| score / total * head_part(j, 2)[n]).sum();
                    }
                }
                let change = self.linear(&format!("{prefix}.attention.output"), &mixed);
                let y: Vec<f64> = x[i].iter().zip(change).map(|(x, c)| x + c).collect();
                let y = self.norm(&format!("{prefix}.attention.norm"), &y);
                let wide = self.linear(&format!("{prefix}.feed_forward.up"), &y);
                let wide: Vec<f64> = wide.into_iter().map(|x| self.activate(x)).collect();
                let change = self.linear(&format!("{prefix}.feed_forward.down"), &wide);
                let z: Vec<f64> = y.iter().zip(change).map(|(y, c)| y + c).collect();
                self.norm(&format!("{prefix}.feed_forward.norm"), &z)
            })
            .collect()
    }

    fn stack(&self, name: &str, mut x: Matrix) -> Matrix {
        for index in 0..self.architecture["layers"][name].as_u64().unwrap() {
            x = self.layer(&format!("{name}.{index}"), &x);
        }
        x
    }

    /// Returns logits and boundaries. `boundaries` decides from a position and the pre stack's output there.
    pub(super) fn forward(&self, symbols: &[u32], boundaries: &dyn Fn(usize, &[f64]) -> bool) -> (Matrix, Vec<bool>) {
        let dim = self.size("dim");
        let embedding = self.get("embedding.weight");
        let x = symbols.iter().map(|&s| embedding[s as usize * dim..][..dim].to_vec()).collect();
        let hidden = self.stack("pre", x);
        let closes: Vec<bool> = (0..symbols.len()).map(|t| boundaries(t, &hidden[t])).collect();
        let out = if self.architecture["layers"].get("middle").is_some() {
            self.middle_and_post(&hidden, &closes)
        } else {
            hidden
        };
        (out.iter().map(|x| self.linear("head", x)).collect(), closes)
    }

    fn middle_and_post(&self, hidden: &Matrix, closes: &[bool]) -> Matrix {
        let mut short = vec![self.get("null_group").to_vec()];
        let mut open: Matrix = Vec::new();
        for (hidden, closes) in hidden.iter().zip(closes) {
            open.push(hidden.clone());
            if *closes {
                short.push(self.pool(&std::mem::take(&mut open)));
            }
        }
        let short = short.iter().map(|x| self.norm("pool_norm", x)).collect();
        let middle = self.stack("middle", short);
        let mut closed = 0;
        let mut input = Vec::new();
        for (hidden, closes) in hidden.iter().zip(closes) {
            closed += usize::from(*closes);
            input.push(hidden.iter().zip(&middle[closed]).map(|(a, b)| a + b).collect());
        }
        self.stack("post", input)
    }

    fn pool(&self, segment: &Matrix) -> Vec<f64> {
        if self.architecture["pooling"] == "last" {
            return segment.last().unwrap().clone();
        }
        (0..segment[0].len()).map(|i| segment.iter().map(|x| x[i]).sum::<f64>() / segment.len() as f64).collect()
    }

    /// Returns p of a learned predictor.
    pub(super) fn probability(&self, hidden: &[f64]) -> f64 {
        let wide = self.linear("boundary.hidden", hidden).into_iter().map(|x| self.activate(x)).collect::<Vec<_>>();
        1.0 / (1.0 + (-self.linear("boundary.output", &wide)[0]).exp())
    }
}

/// Returns true if the query at i sees the key at j, by the papers' definitions of windows.
pub(super) fn sees(window: &Value, i: usize, j: usize) -> bool {
    let number = |pointer: &str| window.pointer(pointer).and_then(Value::as_u64).map(|n| n as usize);
    let blocks = number("/blockwise/length").is_none_or(|length| j / (length / 2) + 1 >= i / (length / 2));
    j <= i && blocks && number("/sliding/keys").is_none_or(|keys| i - j < keys)
}

/// Returns Σ Re(q_m · conj(k_m) · e^(i·n·θ_m)) · ζ_m^(n/B) at distance n. Without B there are no scales.
pub(super) fn rotated(q: &[f64], k: &[f64], distance: usize, base: Option<f64>) -> f64 {
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

/// Returns the entropy of softmax(x).
pub(super) fn entropy(x: &[f64]) -> f64 {
    let total: f64 = x.iter().map(|x| x.exp()).sum();
    -x.iter().map(|x| (x.exp() / total) * (x.exp() / total).ln()).sum::<f64>()
}

/// Compares a shape's logits and boundaries with the naive implementation.
fn check(name: &str, naive: &Naive, boundaries: &dyn Fn(&[u32], usize, &[f64]) -> bool) {
    let (_, model) = shapes().into_iter().find(|(own, _)| own == name).unwrap();
    for seed in 1..4 {
        let mut text = Dice::new(seed).text(70, SYMBOLS.len());
        text.iter_mut().step_by(6).for_each(|symbol| *symbol = 3); // spaces
        let (expected, closes) = naive.forward(&text, &|t, hidden| boundaries(&text, t, hidden));
        let (actual, marks) = full(&*model, &text, &BoundaryOptions::default());
        assert_eq!(marks.iter().map(|mark| mark.boundary).collect::<Vec<_>>(), closes, "{name}");
        if !name.starts_with("plain") {
            assert!(closes.iter().any(|&closes| closes) && (name == "every-symbol" || !closes.iter().all(|&c| c)));
        }
        let spread = expected.iter().flatten().fold(0f64, |top, x| top.max(x.abs()));
        assert!(spread > 0.5, "{name}: logits too small to show a mistake");
        for (actual, expected) in actual.iter().zip(expected.iter().flatten()) {
            assert!((f64::from(*actual) - expected).abs() < 2e-5, "{name}: {actual} {expected}");
        }
    }
}

#[test]
fn shapes_without_fixtures_equal_the_naive_implementation() {
    let naive = |name| Naive::read(folder(name));
    check("odd-shape", &naive("odd-shape"), &|text, t, _| text[t] == 3);
    check("last", &naive("last"), &|text, t, _| text[t] == 3);
    check("relu", &naive("relu"), &|_, t, _| t % 5 == 0);
    check("every-symbol", &naive("every-symbol"), &|_, _, _| true);
    check("plain", &naive("plain"), &|_, _, _| false);
    check("plain-windows", &naive("plain-windows"), &|_, _, _| false);
    for windows in ["windows", "xpos-windows", "xpos-last"] {
        check(windows, &naive(windows), &|text, t, _| text[t] == 3);
    }
    for name in ["learned", "learned-windows"] {
        let learned = naive(name);
        check(name, &learned, &|_, _, hidden| learned.probability(hidden) > 0.4);
    }
}

#[test]
fn entropy_spikes_of_a_companion_are_boundaries() {
    let companion = Naive::read(&folder("spikes").join("companion"));
    check("spikes", &Naive::read(folder("spikes")), &|text, t, _| {
        let (logits, _) = companion.forward(&text[..=t], &|_, _| false);
        let entropies: Vec<f64> = logits.iter().map(|logits| entropy(logits)).collect();
        entropies[t.saturating_sub(2)..t].iter().all(|&before| entropies[t] > before)
    });
}

/// A companion with a shorter training length accepts texts as long as its model's, because a prefill feeds both.
#[test]
fn a_companion_accepts_the_lengths_of_its_model() {
    let root = TempDir::new().unwrap();
    let folder = spikes(root.path(), &config(json!({"pre": 1}), json!({"kind": "none"}), &[]));
    let file = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["training_length"] = json!(2500);
    fs::write(&file, config.to_string()).unwrap();
    let model = load(&folder, &settings()).unwrap();
    assert_eq!(model.card().max_symbols, 10_000);
    let mut alone = Alone::new(&*model, BoundaryOptions::default());
    // The limit of the companion alone is 8,192.
    for chunk in Dice::new(5).text(8_200, SYMBOLS.len()).chunks(512) {
        alone.rows[0].set(chunk, Want::Nothing);
        advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
    }
    assert_eq!(alone.rows[0].state.len(), 8_200);
}

/// Fixed boundaries of a companion count from the start of the whole stream.
#[test]
fn a_companion_keeps_the_phase_of_the_stream() {
    let root = TempDir::new().unwrap();
    let folder = spikes(root.path(), &config(three_stacks(), json!({"kind": "fixed", "every": 5}), &[]));
    let model = load(&folder, &settings()).unwrap();
    let companion = load(&folder.join("companion"), &settings()).unwrap();
    let text = Dice::new(3).text(70, SYMBOLS.len());
    let closes = |offset| {
        let (_, marks) = full(&*model, &text, &BoundaryOptions { offset, ..Default::default() });
        marks.iter().map(|mark| mark.boundary).collect::<Vec<_>>()
    };
    let (logits, _) = full(&*companion, &text, &BoundaryOptions { offset: 3, ..Default::default() });
    let wide = |logits: &[f32]| logits.iter().map(|&logit| f64::from(logit)).collect::<Vec<_>>();
    let entropies: Vec<f64> = logits.chunks(SYMBOLS.len()).map(|logits| entropy(&wide(logits))).collect();
    let spike = |t: usize| entropies[t.saturating_sub(2)..t].iter().all(|&before| entropies[t] > before);
    assert_eq!(closes(3), (0..text.len()).map(spike).collect::<Vec<_>>());
    assert_ne!(closes(3), closes(0));
}

#[test]
fn text_of_an_unusual_vocabulary_round_trips() {
    let (_, model) = shapes().into_iter().find(|(name, _)| name == "odd-shape").unwrap();
    let vocabulary = &model.card().vocabulary;
    let text = "語 é\nł😀 שa";
    let ids = vocabulary.encode("text", text, usize::MAX).unwrap();
    assert_eq!(ids, [6, 3, 2, 1, 4, 8, 3, 5, 7]);
    assert_eq!(vocabulary.decode(&ids), text);
    // A newline closes no segment, a space does.
    let (_, marks) = full(&*model, &ids, &BoundaryOptions::default());
    let closes: Vec<bool> = marks.iter().map(|mark| mark.boundary).collect();
    assert_eq!(closes, [false, true, false, false, false, false, true, false, false]);
}
