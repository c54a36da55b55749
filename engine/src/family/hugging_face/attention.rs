//! Attention of the tokens of a step to all keys of their sequence, with grouped heads, a window and capped scores.

use super::layers::soft_cap;
use candle_core::{Device, Tensor};

/// The conversion of scores to weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scores {
    /// Multiplies the products of queries and keys.
    pub(super) scale: f64,
    /// Limits them smoothly, if given.
    pub(super) cap: Option<f64>,
}

/// Returns (len, heads · head_dim) for queries (heads, len, head_dim) and keys and values (kv_heads, keys, head_dim). The queries
/// are those of the last `len` keys. The mask (len, keys) is added to the scores. Fails if candle fails.
pub(super) fn attend(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    scores: Scores,
    mask: Option<&Tensor>,
) -> candle_core::Result<Tensor> {
    let (heads, len, head_dim) = queries.dims3()?;
    let (kv_heads, count, _) = keys.dims3()?;
    let group = heads / kv_heads;
    // The heads that share keys are neighbours, so their queries are rows of one matrix.
    let grouped = queries.reshape((kv_heads, group * len, head_dim))?;
    let products = (grouped.matmul(&keys.t()?)? * scores.scale)?; // (kv_heads, group · len, keys)
    let mut products = soft_cap(products, scores.cap)?;
    if let Some(mask) = mask {
        products =
            products.reshape((heads, len, count))?.broadcast_add(mask)?.reshape((kv_heads, group * len, count))?;
    }
    let context = candle_nn::ops::softmax_last_dim(&products)?.matmul(values)?; // (kv_heads, group · len, head_dim)
    context.reshape((heads, len, head_dim))?.transpose(0, 1)?.reshape((len, heads * head_dim))
}

/// The masks of one step's tokens. Layers with equal windows share one.
pub(super) struct Masks {
    len: usize,
    keys: usize,
    /// The mask of each window that a layer has asked for.
    built: Vec<(Option<usize>, Option<Tensor>)>,
}

impl Masks {
    /// Creates the masks of `len` queries, those of the last of `keys` keys.
    pub(super) fn new(len: usize, keys: usize) -> Self {
        Self { len, keys, built: Vec::new() }
    }

    /// Returns the mask of a window; none if all queries see all keys. With a window, a query sees that many keys, its own included.
    /// Fails if candle fails.
    pub(super) fn of(&mut self, window: Option<usize>, device: &Device) -> candle_core::Result<Option<Tensor>> {
        if let Some((_, mask)) = self.built.iter().find(|(built, _)| *built == window) {
            return Ok(mask.clone());
        }
        let mask = mask(self.len, self.keys, window, device)?;
        self.built.push((window, mask.clone()));
        Ok(mask)
    }
}

/// Returns (len, keys): 0 where a query sees a key, −∞ elsewhere; none if all queries see all keys.
fn mask(len: usize, keys: usize, window: Option<usize>, device: &Device) -> candle_core::Result<Option<Tensor>> {
    let window = window.unwrap_or(usize::MAX);
    if len == 1 && keys <= window {
        return Ok(None);
    }
    let row = |query: usize| {
        let position = keys - len + query;
        let sees = move |key: usize| key <= position && position - key < window;
        (0..keys).map(move |key| if sees(key) { 0.0_f32 } else { f32::NEG_INFINITY })
    };
    let mask: Vec<f32> = (0..len).flat_map(row).collect();
    Tensor::from_vec(mask, (len, keys), device).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes attention with loops, in f64.
    fn naive(
        queries: &[f32],
        keys: &[f32],
        values: &[f32],
        shape: [usize; 5],
        scores: Scores,
        window: usize,
    ) -> Vec<f64> {
        let [heads, kv_heads, len, count, dim] = shape;
        let mut out = vec![0.0; len * heads * dim];
        for head in 0..heads {
            let shared = head * kv_heads / heads;
            for query in 0..len {
                let position = count - len + query;
                let product = |key: usize| -> f64 {
                    let terms = (0..dim).map(|d| {
                        f64::from(queries[(head * len + query) * dim + d])
                            * f64::from(keys[(shared * count + key) * dim + d])
                    });
                    let score = terms.sum::<f64>() * scores.scale;
                    scores.cap.map_or(score, |cap| (score / cap).tanh() * cap)
                };
                let seen: Vec<usize> = (0..=position).filter(|key| position - key < window).collect();
                let total: f64 = seen.iter().map(|&key| product(key).exp()).sum();
                for d in 0..dim {
                    let weighted = seen
                        .iter()
                        .map(|&key| product(key).exp() / total * f64::from(values[(shared * count + key) * dim + d]));
                    out[(query * heads + head) * dim + d] = weighted.sum();
                }
            }
        }
        out
    }

    #[test]
    fn attention_equals_its_definition() {
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|index| (((index * 7919 + seed * 104_729) % 1000) as f32 / 500.0) - 1.0).collect()
        };
        for (shape, cap, window) in [
            ([4, 2, 3, 7, 4], None, usize::MAX),
            ([4, 4, 1, 9, 2], Some(2.0), usize::MAX),
            ([6, 1, 5, 5, 4], Some(0.5), 3),
            ([2, 1, 1, 8, 4], None, 4),
        ] {
            let [heads, kv_heads, len, count, dim] = shape;
            let scores = Scores { scale: 0.7, cap };
            let q = numbers(heads * len * dim, 1);
            let k = numbers(kv_heads * count * dim, 2);
            let v = numbers(kv_heads * count * dim, 3);
            let tensor = |data: &[f32], a, b| Tensor::from_slice(data, (a, b, dim), &Device::Cpu).unwrap();
            let limit = (window != usize::MAX).then_some(window);
            let mask = Masks::new(len, count).of(limit, &Device::Cpu).unwrap();
            let fast = attend(
                &tensor(&q, heads, len),
                &tensor(&k, kv_heads, count),
                &tensor(&v, kv_heads, count),
                scores,
                mask.as_ref(),
            );
            let fast = fast.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let slow = naive(&q, &k, &v, shape, scores, window);
            let difference = fast.iter().zip(&slow).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(difference < 1e-5, "{shape:?}: {difference}");
        }
    }
}
