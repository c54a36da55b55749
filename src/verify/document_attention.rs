//! Attention of a document's encoder: softmax within blocks, Efficient attention, and attention by hashing (Reformer).

use super::tensors::{products, softmax, table};
use candle_core::{D, Result as CandleResult, Tensor};
use serde::Deserialize;

/// Added to the mean square of a key before it is normalized (Reformer).
const KEY_EPSILON: f64 = 1e-6;

/// `attention` of a checkpoint. The first `local_heads` attend within blocks.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DocumentAttention {
    #[default]
    Softmax,
    Efficient {
        local_heads: usize,
    },
    Lsh {
        local_heads: usize,
        chunk: usize,
        hashes: usize,
    },
}

/// Queries, keys and values of one head: (n, head_dim) each.
pub(super) struct HeadInputs {
    pub(super) queries: Tensor,
    pub(super) keys: Tensor,
    pub(super) values: Tensor,
}

impl DocumentAttention {
    /// Returns how many of `heads` attend within blocks.
    pub(super) fn local_heads(self, heads: usize) -> usize {
        match self {
            Self::Softmax => heads,
            Self::Efficient { local_heads } | Self::Lsh { local_heads, .. } => local_heads,
        }
    }

    /// Returns the output of a head that attends across the document, (n, head_dim). `rotations` are its random rotations,
    /// (hashes, head_dim, buckets / 2), if it hashes.
    pub(super) fn global_head(self, head: &HeadInputs, rotations: Option<&Tensor>) -> CandleResult<Tensor> {
        match (self, rotations) {
            (Self::Lsh { chunk, hashes, .. }, Some(rotations)) => hashed(head, rotations, chunk, hashes),
            _ => efficient(head),
        }
    }
}

/// softmax(Q, over its columns)·(softmax(K, over its rows)ᵀ·V) (Shen et al. 2021, §3.2). Neither is scaled.
fn efficient(head: &HeadInputs) -> CandleResult<Tensor> {
    let keys = softmax(&head.keys.t()?.contiguous()?)?; // (head_dim, n)
    softmax(&head.queries)?.matmul(&keys.matmul(&head.values)?)
}

/// Attends within blocks of `block` vectors, (n, head_dim), and adds to `mass` the weight that each key receives. `mask` is added
/// to the scores of all keys: (n).
pub(super) fn blocks(head: &HeadInputs, block: usize, mask: Option<&Tensor>, mass: &mut [f64]) -> CandleResult<Tensor> {
    let (len, head_dim) = head.queries.dims2()?;
    let scaled = (&head.queries / (head_dim as f64).sqrt())?;
    let mut outputs = Vec::new();
    for start in (0..len).step_by(block) {
        let count = block.min(len - start);
        let part = |x: &Tensor| x.narrow(0, start, count);
        let scores = products(&part(&scaled)?, &part(&head.keys)?)?; // (count, count)
        let scores = match mask {
            Some(mask) => scores.broadcast_add(&mask.narrow(0, start, count)?)?,
            None => scores,
        };
        let weights = softmax(&scores)?;
        let received: Vec<f64> = weights.sum(0)?.to_vec1()?;
        mass[start..start + count].iter_mut().zip(received).for_each(|(mass, weight)| *mass += weight);
        outputs.push(weights.matmul(&part(&head.values)?)?);
    }
    Tensor::cat(&outputs, 0)
}

/// Attention by hashing (Kitaev et al. 2020, §2). Each round sorts the vectors by bucket and cuts the order into chunks. A vector
/// attends to its own chunk and the one before. A key that several rounds select counts that often, and a vector attends to itself
/// only if no other key is selected.
fn hashed(head: &HeadInputs, rotations: &Tensor, chunk: usize, hashes: usize) -> CandleResult<Tensor> {
    let (len, head_dim) = head.queries.dims2()?;
    let mut counts = vec![vec![0f64; len]; len];
    for round in 0..hashes {
        let rotated = head.queries.matmul(&rotations.get(round)?.contiguous()?)?; // (n, buckets / 2)
        let both: Vec<Vec<f64>> = Tensor::cat(&[&rotated, &rotated.neg()?], 1)?.to_vec2()?;
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_by_key(|&index| first_largest(&both[index]));
        let chunks: Vec<&[usize]> = order.chunks(chunk).collect();
        for (index, own) in chunks.iter().enumerate() {
            let before = index.checked_sub(1).unwrap_or(chunks.len() - 1);
            let earlier = if before == index { &[][..] } else { chunks[before] };
            for &query in *own {
                own.iter().chain(earlier).for_each(|&key| counts[query][key] += 1.0);
            }
        }
    }
    for (query, counts) in counts.iter_mut().enumerate() {
        if counts.iter().enumerate().any(|(key, &count)| key != query && count > 0.0) {
            counts[query] = 0.0;
        }
    }
    let root = head.keys.sqr()?.mean_keepdim(D::Minus1)?.affine(1.0, KEY_EPSILON)?.sqrt()?;
    let keys = (head.keys.broadcast_div(&root)? / (head_dim as f64).sqrt())?; // length one
    let scores = (products(&head.queries, &keys)? + table(len, len, |query, key| counts[query][key].ln())?)?;
    softmax(&scores)?.matmul(&head.values)
}

/// Returns the index of the largest number, the first one of equals.
fn first_largest(numbers: &[f64]) -> usize {
    let mut best = 0;
    for (index, number) in numbers.iter().enumerate() {
        if *number > numbers[best] {
            best = index;
        }
    }
    best
}
