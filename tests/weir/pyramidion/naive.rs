//! A naive implementation of the whole model in f64. It computes every position of the padded document without caches.

use super::{
    super::support::*,
    naive_attention,
    shapes::{Shape, tokens},
    *,
};
use std::{cell::RefCell, collections::BTreeMap, path::Path};
use weir::{
    decode::random::{Purpose, uniform},
    family::{
        checkpoint::{Config, Weights, read_weights},
        load::blueprint,
    },
    kernels::Dtype,
};

type Vector = Vec<f64>;

struct Naive {
    weights: Weights,
    dim: usize,
    heads: usize,
    pre_norm: bool,
    source: usize,
    config: serde_json::Value,
    /// Weight of each key in the last attention, summed over heads and queries.
    mass: RefCell<Vector>,
}

impl Naive {
    fn read(shape: &Shape) -> Self {
        let config = Config::read(&shape.folder()).unwrap();
        let specs = blueprint(&config, Path::new("config.json")).unwrap().tensors();
        let (weights, _) = read_weights(&shape.folder(), &specs).unwrap();
        let a = shape.config["architecture"].clone();
        let number = |key: &str| a[key].as_u64().unwrap() as usize;
        Self {
            weights,
            dim: number("dim"),
            heads: number("heads"),
            pre_norm: a["pre_norm"] == true,
            source: number("source_length"),
            config: a,
            mass: RefCell::default(),
        }
    }

    fn get(&self, name: &str) -> Vector {
        self.weights.get(name).unwrap().numbers.iter().map(|&x| f64::from(x)).collect()
    }

    fn linear(&self, name: &str, x: &Vector) -> Vector {
        let weight = self.get(&format!("{name}.weight"));
        let bias = self.get(&format!("{name}.bias"));
        weight
            .chunks(x.len())
            .zip(bias)
            .map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias)
            .collect()
    }

    fn norm(&self, name: &str, x: &Vector) -> Vector {
        let weight = self.get(&format!("{name}.weight"));
        let bias = self.get(&format!("{name}.bias"));
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (variance + f64::from(1e-5f32)).sqrt();
        x.iter().zip(weight.iter().zip(&bias)).map(|(x, (w, b))| (x - mean) * scale * w + b).collect()
    }

    /// Attends from each query to the keys that `sees` allows. Records the weight of each key in `mass`.
    fn attention(
        &self,
        name: &str,
        queries: &[Vector],
        keys: &[Vector],
        sees: &dyn Fn(usize, usize) -> bool,
    ) -> Vec<Vector> {
        let project = |part: &str, all: &[Vector]| -> Vec<Vector> {
            all.iter().map(|x| self.linear(&format!("{name}.{part}_proj"), x)).collect()
        };
        let queries = project("q", queries);
        let projected_keys = project("k", keys);
        let values = project("v", keys);
        let width = self.dim / self.heads;
        let mut mass = self.mass.borrow_mut();
        *mass = vec![0.0; keys.len()];
        let mut output = |position: usize, query: &Vector| {
            let mut out = vec![0.0; self.dim];
            for head in 0..self.heads {
                let own = head * width..(head + 1) * width;
                let score = |key: &Vector| -> f64 {
                    key[own.clone()].iter().zip(&query[own.clone()]).map(|(k, q)| k * q).sum::<f64>()
                        / (width as f64).sqrt()
                };
                let seen: Vec<usize> = (0..keys.len()).filter(|&key| sees(position, key)).collect();
                let weights: Vec<f64> = seen.iter().map(|&key| score(&projected_keys[key]).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (&key, weight) in seen.iter().zip(&weights) {
                    mass[key] += weight / total;
                    for index in own.clone() {
                        out[index] += weight / total * values[key][index];
                    }
                }
            }
            self.linear(&format!("{name}.out_proj"), &out)
        };
        queries.iter().enumerate().map(|(position, query)| output(position, query)).collect()
    }

    /// Encoder attention of the kinds `efficient` and `lsh`. The first heads attend within their block of `size` positions.
    fn mixed(&self, name: &str, x: &[Vector], size: usize) -> Vec<Vector> {
        let attention = &self.config["attention"];
        let width = self.dim / self.heads;
        let (kind, options) = attention.as_object().unwrap().iter().next().unwrap();
        let local = options["local_heads"].as_u64().unwrap() as usize;
        let project =
            |part: &str| -> Vec<Vector> { x.iter().map(|x| self.linear(&format!("{name}.{part}_proj"), x)).collect() };
        let queries = project("q");
        let values = project("v");
        let keys = if kind == "lsh" && local == 0 { vec![Vec::new(); x.len()] } else { project("k") };
        let rotations = if kind == "lsh" { self.get(&format!("{name}.rotations")) } else { Vec::new() };
        let mut out = vec![vec![0.0; self.dim]; x.len()];
        for head in 0..self.heads {
            let own = head * width..(head + 1) * width;
            let part = |all: &[Vector]| -> Vec<Vector> {
                all.iter().map(|x| x.get(own.clone()).map_or(Vec::new(), <[f64]>::to_vec)).collect()
            };
            let q = part(&queries);
            let k = part(&keys);
            let v = part(&values);
            let actual = match head.checked_sub(local) {
                None => naive_attention::blocks(size, &q, &k, &v),
                Some(other) => {
                    let length = rotations.len() / (self.heads - local);
                    naive_attention::head(attention, &q, &k, &v, &rotations[other * length..][..length])
                }
            };
            out.iter_mut().zip(actual).for_each(|(out, actual)| out[own.clone()].copy_from_slice(&actual));
        }
        out.iter().map(|x| self.linear(&format!("{name}.out_proj"), x)).collect()
    }

    /// Applies `change` with a residual connection, and the norm before or after it.
    fn residual(&self, norm: &str, x: &mut [Vector], change: &dyn Fn(&[Vector]) -> Vec<Vector>) {
        let normed: Vec<Vector> =
            if self.pre_norm { x.iter().map(|x| self.norm(norm, x)).collect() } else { x.to_vec() };
        for (x, change) in x.iter_mut().zip(change(&normed)) {
            x.iter_mut().zip(change).for_each(|(x, change)| *x += change);
            if !self.pre_norm {
                *x = self.norm(norm, x);
            }
        }
    }

    fn feed_forward(&self, prefix: &str, x: &mut [Vector]) {
        self.residual(&format!("{prefix}.final_layer_norm"), x, &|x| {
            let wide = |x: &Vector| -> Vector {
                self.linear(&format!("{prefix}.fc1"), x).iter().map(|x| x.max(0.0)).collect()
            };
            x.iter().map(|x| self.linear(&format!("{prefix}.fc2"), &wide(x))).collect()
        });
    }

    fn embed(&self, token: u32, position: Option<usize>) -> Vector {
        let table = self.get("encoder.embed_tokens.weight");
        let mut x: Vector =
            table[token as usize * self.dim..][..self.dim].iter().map(|x| x * (self.dim as f64).sqrt()).collect();
        if let Some(position) = position {
            let half = self.dim / 2;
            for index in 0..half {
                let angle = (position + 2) as f64 * (-(10_000f64.ln()) / (half - 1) as f64 * index as f64).exp();
                x[index] += angle.sin();
                x[half + index] += angle.cos();
            }
        }
        x
    }

    fn encode(&self, document: &[u32]) -> Vec<Vector> {
        let padded = self.config["padded"] == true;
        let length = if padded { self.source } else { document.len() };
        let mut x: Vec<Vector> = (0..length)
            .map(|position| {
                document.get(position).map_or(vec![0.0; self.dim], |&token| self.embed(token, Some(position)))
            })
            .collect();
        let block = self.config["block"].as_u64().map(|block| block as usize);
        let lengths: BTreeMap<usize, usize> = self.config["pooling"]["lengths"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(layer, kept)| (layer.parse().unwrap(), kept.as_u64().unwrap() as usize))
            .collect();
        let mut first: Option<Vec<Vector>> = None;
        let mut longest = self.source;
        let hides_padding = block.is_none() && lengths.is_empty();
        for layer in 0..self.config["encoder_layers"].as_u64().unwrap() as usize {
            let before = x.len();
            let size = block.map_or(x.len(), |block| block.min(x.len()));
            if padded {
                x.truncate(x.len() / size * size);
            }
            let prefix = format!("encoder.layers.{layer}");
            let sees = |from: usize, to: usize| from / size == to / size && (!hides_padding || to < document.len());
            self.residual(&format!("{prefix}.self_attn_layer_norm"), &mut x, &|x| match self.config["attention"]
                == "softmax"
            {
                true => self.attention(&format!("{prefix}.self_attn"), x, x, &sees),
                false => self.mixed(&format!("{prefix}.self_attn"), x, size),
            });
            self.feed_forward(&prefix, &mut x);
            match lengths.get(&layer) {
                Some(&kept) => {
                    if self.config["pooling"]["kind"] == "funnel" && first.is_none() {
                        first = Some(x.clone());
                    }
                    let factor = longest / kept;
                    let from = if padded { longest } else { before.next_multiple_of(factor) };
                    x = self.pool(layer, x, from, from / factor);
                    longest = kept;
                }
                None => x.resize(before, vec![0.0; self.dim]),
            }
        }
        if let Some(first) = first {
            let stride = self.source / longest;
            let sum = |position: usize, before: &Vector| {
                before.iter().zip(&x[position / stride]).map(|(a, b)| a + b).collect()
            };
            x = first.iter().enumerate().map(|(position, before)| sum(position, before)).collect();
        }
        if self.pre_norm { x.iter().map(|x| self.norm("encoder.layer_norm", x)).collect() } else { x }
    }

    /// Returns the score of each vector.
    fn scores(&self, layer: usize, x: &[Vector]) -> Vec<f64> {
        let scorer = &self.config["pooling"]["scorer"];
        let prefix = format!("encoder.pooler.scorer.{layer}");
        let trained = |x: &Vector| -> f64 {
            let logit = match scorer["embedding"]["dimension"].as_u64() {
                Some(dimension) => x[dimension as usize],
                None if scorer == "ffn" => {
                    let inner: Vector = self.linear(&format!("{prefix}.dense"), x).iter().map(|x| x.tanh()).collect();
                    self.linear(&format!("{prefix}.out_proj"), &inner)[0]
                }
                None => self.linear(&prefix, x)[0],
            };
            1.0 / (1.0 + (-logit).exp()) + 1e-5
        };
        let every = scorer["index"]["every"].as_u64();
        let seed = scorer["random"]["seed"].as_u64();
        let mass = self.mass.borrow();
        let score = |position: usize, x: &Vector| match (every, seed) {
            _ if scorer == "attention" => mass[position],
            (Some(every), _) => f64::from(u8::from((position as u64).is_multiple_of(every))),
            (_, Some(seed)) => f64::from(uniform(seed + layer as u64, Purpose::Scores, position)),
            _ => trained(x),
        };
        x.iter().enumerate().map(|(position, x)| score(position, x)).collect()
    }

    fn pool(&self, layer: usize, x: Vec<Vector>, from: usize, kept: usize) -> Vec<Vector> {
        let pooling = &self.config["pooling"];
        let kind = pooling["kind"].as_str().unwrap();
        if ["mean", "max", "funnel"].contains(&kind) {
            let size = from / kept;
            let window = |vectors: &[Vector]| -> Vector {
                let number = |index: usize| -> f64 {
                    let numbers = vectors.iter().map(|x| x[index]);
                    if kind != "max" {
                        numbers.sum::<f64>() / vectors.len() as f64
                    } else {
                        numbers.fold(f64::MIN, f64::max)
                    }
                };
                (0..self.dim).map(number).collect()
            };
            let mut all: Vec<Vector> = x.chunks(size).map(window).collect();
            all.resize(kept, vec![0.0; self.dim]);
            return all;
        }
        let scores = self.scores(layer, &x);
        if kind == "hard-top-k" {
            let mut order: Vec<usize> = (0..x.len()).collect();
            order.sort_by(|&a, &b| (scores[b] as f32).total_cmp(&(scores[a] as f32)).then(a.cmp(&b)));
            order.truncate(kept);
            if pooling["sort_back"] == true {
                order.sort_unstable();
            }
            return order.into_iter().map(|index| x[index].clone()).collect();
        }
        let mut all: Vec<(f64, Vector)> = scores.into_iter().zip(x).collect();
        all.resize(from, (1e-5, vec![0.0; self.dim]));
        while all.len() > kept {
            let mut order: Vec<usize> = (0..all.len()).collect();
            // Scores that are equal in f32 tie, as in the server.
            order.sort_by(|&a, &b| (all[b].0 as f32).total_cmp(&(all[a].0 as f32)).then(a.cmp(&b)));
            let half = order.len() / 2;
            let mut next: Vec<(usize, (f64, Vector))> = (0..half)
                .map(|rank| {
                    let other = if pooling["flip_right"] == true { order.len() - 1 - rank } else { half + rank };
                    let l = &all[order[rank]];
                    let r = &all[order[other]];
                    let w = 1.0 / (1.0 + (20f64.powf(r.0) - 20f64.powf(l.0)).exp());
                    let mixed = l.1.iter().zip(&r.1).map(|(a, b)| w * a + (1.0 - w) * b).collect();
                    (order[rank], (w * l.0 + (1.0 - w) * r.0, mixed))
                })
                .collect();
            if pooling["sort_back"] == true {
                next.sort_by_key(|entry| entry.0);
            }
            all = next.into_iter().map(|entry| entry.1).collect();
        }
        all.into_iter().map(|entry| entry.1).collect()
    }

    /// Returns the logits after each symbol.
    fn logits(&self, memory: &[Vector], symbols: &[u32]) -> Vec<f64> {
        let positions = self.config["decoder_positions"] == true;
        let mut x: Vec<Vector> = symbols
            .iter()
            .enumerate()
            .map(|(position, &symbol)| self.embed(symbol, positions.then_some(position)))
            .collect();
        for layer in 0..self.config["decoder_layers"].as_u64().unwrap() as usize {
            let prefix = format!("decoder.layers.{layer}");
            self.residual(&format!("{prefix}.self_attn_layer_norm"), &mut x, &|x| {
                self.attention(&format!("{prefix}.self_attn"), x, x, &|from, to| to <= from)
            });
            self.residual(&format!("{prefix}.encoder_attn_layer_norm"), &mut x, &|x| {
                self.attention(&format!("{prefix}.encoder_attn"), x, memory, &|_, _| true)
            });
            self.feed_forward(&prefix, &mut x);
        }
        let table = self.get("encoder.embed_tokens.weight");
        let out = |x: &Vector| -> Vec<f64> {
            let x = if self.pre_norm { self.norm("decoder.layer_norm", x) } else { x.clone() };
            table.chunks(self.dim).map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum()).collect()
        };
        x.iter().flat_map(out).collect()
    }
}

#[test]
fn every_kind_of_encoder_equals_the_naive_implementation() {
    // Documents are short, because with more vectors the difference of the closest two scores is too small.
    for shape in Shape::with_length(160) {
        let naive = Naive::read(&shape);
        let model = shape.model(Dtype::F32);
        let mut scratch = model.scratch();
        let mut dice = Dice::new(21);
        for length in [1, 70, 160] {
            let document = tokens(&mut dice, length);
            let symbols = tokens(&mut dice, 6);
            let encoded = encode(&*model, &document, &mut scratch);
            let memory = naive.encode(&document);
            assert_eq!(encoded.vectors(), memory.len(), "{} {length}", shape.name);
            let actual = forced(&*model, &*encoded, &symbols, &mut scratch);
            let expected = naive.logits(&memory, &symbols);
            let max_error = actual
                .iter()
                .zip(&expected)
                .map(|(actual, expected)| (f64::from(*actual) - expected).abs())
                .fold(0.0, f64::max);
            assert!(max_error < 1e-4, "{} {length}: {max_error}", shape.name);
        }
    }
}
