//! Trainable Representation Pooling (Pietruszka et al. 2022): an encoder with poolings between its layers, and a decoder that
//! attends to the vectors that are left. fairseq's Transformer layers.

use crate::verify::decoder::sinusoids;
use crate::verify::tensors::{Tensors, activate, attend, head_of, indices, mask, products, sigmoid, softmax, table};
use crate::verify::{Checkpoint, Given, Input, NearTie, Outputs, Reference};
use candle_core::{D, DType, Device, Result as CandleResult, Tensor, bail};
use weir_kernels::error::Result;
use weir_models::contract::{KeptVector, PoolingChoice};
use weir_models::family::pyramidion::{Architecture, AttentionKind, DocumentPooling, ScorerKind};
use weir_models::random::{Purpose, uniform};

/// Id of padding in all fairseq dictionaries.
const PAD: u32 = 1;

/// Position of the first token; lower ones belong to padding.
const FIRST_POSITION: usize = 2;

/// Maximum vectors that all attend to each other: every pair has a score in memory.
const MAX_BLOCK: usize = 8192;

struct Pyramidion {
    tensors: Tensors,
    architecture: Architecture,
}

/// A document between two layers.
struct Vectors {
    /// (n, D)
    x: Tensor,
    /// The token that each vector came from: (n). Padding is at least the number of tokens.
    origins: Vec<usize>,
    /// Attention weight that each vector received in the last layer, over all heads and queries: (n).
    mass: Vec<f64>,
}

/// The vectors that the decoder attends to, and how they were chosen.
struct EncodedVectors {
    /// (k, D)
    x: Tensor,
    choices: Vec<PoolingChoice>,
    smallest_gap: Option<f64>,
    near_ties: Vec<NearTie>,
}

/// Reads the model. Fails if a file cannot be read, or if more vectors attend to each other than fit into memory.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let architecture: Architecture = checkpoint.architecture()?;
    let block = architecture.block.unwrap_or(architecture.source_length).min(architecture.source_length);
    if block > MAX_BLOCK {
        let expected = format!("at most {MAX_BLOCK} vectors that attend to each other, to be verified");
        return Err(checkpoint.error("architecture.block", expected, block.to_string()));
    }
    Ok(Box::new(Pyramidion { tensors: checkpoint.tensors()?, architecture }))
}

impl Reference for Pyramidion {
    fn forward(&self, input: &Input, given: Given<'_>) -> CandleResult<Outputs> {
        let encoded = self.encode(&input.document, given.swapped)?; // (k, D)
        let mut x = self.embed(&input.symbols)?; // (len, D)
        if self.architecture.decoder_positions {
            x = (x + self.positions(FIRST_POSITION, input.symbols.len())?)?;
        }
        for layer in 0..self.architecture.decoder_layers {
            x = self.decoder_layer(&format!("decoder.layers.{layer}"), x, &encoded.x)?;
        }
        let x = self.final_norm("decoder", x)?;
        let logits = self.tensors.matrix("encoder.embed_tokens.weight", &x)?; // (len, V)
        let EncodedVectors { choices, smallest_gap, near_ties, .. } = encoded;
        Ok(Outputs { choices, smallest_gap, near_ties, ..Outputs::of_logits(&logits)? })
    }
}

impl Pyramidion {
    /// Returns the embeddings of tokens, multiplied by √D if the model does so: (len, D).
    fn embed(&self, tokens: &[u32]) -> CandleResult<Tensor> {
        let scale = if self.architecture.scale_embedding { (self.architecture.dim as f64).sqrt() } else { 1.0 };
        self.tensors.rows("encoder.embed_tokens.weight", tokens)? * scale
    }

    /// Returns fairseq's sinusoids, whose frequencies are rounded to f32: (count, D).
    fn positions(&self, first: usize, count: usize) -> CandleResult<Tensor> {
        let half = self.architecture.dim / 2;
        let step = (10_000f64.ln() / half.saturating_sub(1).max(1) as f64) as f32;
        let frequencies: Vec<f64> = (0..half).map(|i| f64::from((i as f32 * -step).exp())).collect();
        sinusoids(&frequencies, first, count)
    }

    /// Runs the encoder with its poolings. Near ties that are `swapped` change places.
    fn encode(&self, tokens: &[u32], swapped: &[NearTie]) -> CandleResult<EncodedVectors> {
        let a = &self.architecture;
        let length = if a.padded { a.source_length } else { tokens.len() };
        let padded: Vec<u32> = (0..length).map(|position| tokens.get(position).copied().unwrap_or(PAD)).collect();
        let mut v = Vectors { x: self.embed_document(&padded)?, origins: (0..length).collect(), mass: Vec::new() };
        // Vanilla encoders mask padding; all others treat it as tokens.
        let masks = a.block.is_none() && a.pooling == DocumentPooling::None {};
        let hide = |&token: &u32| if token == PAD { f64::NEG_INFINITY } else { 0.0 };
        let hidden = Tensor::new(padded.iter().map(hide).collect::<Vec<f64>>(), &Device::Cpu)?;
        let hidden = (masks && padded.contains(&PAD)).then_some(hidden);
        // Vectors of the longest document.
        let mut longest = a.source_length;
        let mut factors = 1;
        let mut unpooled: Option<Tensor> = None;
        let mut choices = Vec::new();
        let mut order = ScoreOrder::new(swapped);
        for layer in 0..a.encoder_layers {
            v = self.encoder_layer(layer, v, hidden.as_ref())?; // (n, D)
            let lengths = a.pooling.lengths();
            let Some(&kept) = lengths.and_then(|lengths| lengths.get(&layer.to_string())) else { continue };
            let factor = longest / kept;
            let from = if a.padded { longest } else { v.origins.len().next_multiple_of(factor) };
            let scores = self.scores(layer, &v)?; // (n)
            let pooled = pool(&a.pooling, &v.x, scores, from, factor, &mut order)?; // (n, D) → (k, D)
            unpooled.get_or_insert(v.x);
            let Scored { x, scores, winners } = pooled;
            let origin = |&winner: &usize| v.origins.get(winner).copied().unwrap_or(tokens.len() + winner);
            let origins: Vec<usize> = match winners.is_empty() {
                true => (0..from / factor).collect(),
                false => winners.iter().map(origin).collect(),
            };
            if !winners.is_empty() {
                let kept = origins.iter().zip(scores).map(|(&token, score)| KeptVector { token, score: score as f32 });
                choices.push(PoolingChoice { layer, kept: kept.collect() });
            }
            order.pooling += 1;
            v = Vectors { x, origins, mass: Vec::new() };
            longest = kept;
            factors *= factor;
        }
        let x = match (unpooled, &a.pooling) {
            (Some(unpooled), DocumentPooling::Funnel { .. }) => {
                let windows: Vec<u32> = (0..unpooled.dim(0)?).map(|position| (position / factors) as u32).collect();
                (unpooled + v.x.index_select(&Tensor::new(windows, &Device::Cpu)?, 0)?)? // (n, D)
            }
            _ => v.x,
        };
        let ScoreOrder { smallest_gap, near_ties, .. } = order;
        Ok(EncodedVectors { x: self.final_norm("encoder", x)?, choices, smallest_gap, near_ties })
    }

    /// Embeds a document. Padding is zero and does not advance the positions: (n, D).
    fn embed_document(&self, tokens: &[u32]) -> CandleResult<Tensor> {
        let mut position = 0;
        let mut rows = Vec::with_capacity(tokens.len());
        for &token in tokens {
            rows.push(position as u32);
            position += usize::from(token != PAD);
        }
        let positions =
            self.positions(FIRST_POSITION, tokens.len())?.index_select(&Tensor::new(rows, &Device::Cpu)?, 0)?;
        let present = table(tokens.len(), 1, |row, _| if tokens[row] == PAD { 0.0 } else { 1.0 })?;
        (self.embed(tokens)? + positions)?.broadcast_mul(&present)
    }

    fn encoder_layer(&self, layer: usize, v: Vectors, hidden: Option<&Tensor>) -> CandleResult<Vectors> {
        let a = &self.architecture;
        let prefix = format!("encoder.layers.{layer}");
        let Vectors { mut x, mut origins, .. } = v;
        let mut len = x.dim(0)?;
        let block = a.block.unwrap_or(len).min(len);
        if a.padded && matches!(a.attention, AttentionKind::Softmax) {
            // The published code drops what does not fill a block.
            len = len / block * block;
            x = x.narrow(0, 0, len)?;
            origins.truncate(len);
        }
        let mut mass = vec![0.0; len];
        let x = self.residual(&prefix, "self_attn_layer_norm", &x, |x| {
            self.document_attention(&prefix, x, block, hidden, &mut mass)
        })?;
        let x = self.feed_forward(&prefix, &x)?;
        Ok(Vectors { x, origins, mass })
    }

    /// Attention of an encoder layer: (n, D) → (n, D).
    fn document_attention(
        &self,
        prefix: &str,
        x: &Tensor,
        block: usize,
        hidden: Option<&Tensor>,
        mass: &mut [f64],
    ) -> CandleResult<Tensor> {
        let Architecture { dim, heads, attention, .. } = self.architecture;
        let head_dim = dim / heads;
        let local = local_heads(attention, heads);
        let project = |part: &str| self.tensors.linear(&format!("{prefix}.self_attn.{part}"), x); // (n, D)
        let queries = project("q_proj")?;
        let values = project("v_proj")?;
        // Heads that hash have no keys of their own.
        let hashes = matches!(attention, AttentionKind::Lsh { .. });
        let keys = if hashes && local == 0 { queries.clone() } else { project("k_proj")? };
        let mut outputs = Vec::with_capacity(heads);
        for head in 0..heads {
            let shares_keys = hashes && head >= local;
            let inputs = HeadInputs {
                queries: head_of(&queries, head, head_dim)?,
                keys: head_of(if shares_keys { &queries } else { &keys }, head, head_dim)?,
                values: head_of(&values, head, head_dim)?,
            };
            outputs.push(match head.checked_sub(local) {
                None => blocks(&inputs, block, hidden, mass)?,
                Some(global) => match attention {
                    AttentionKind::Lsh { chunk, hashes, .. } => {
                        let rotations = self.tensors.get(&format!("{prefix}.self_attn.rotations"))?.get(global)?;
                        hashed(&inputs, &rotations, chunk, hashes)?
                    }
                    _ => efficient(&inputs)?,
                },
            });
        }
        self.tensors.linear(&format!("{prefix}.self_attn.out_proj"), &Tensor::cat(&outputs, 1)?)
    }

    /// Returns the scores by which the pooling after `layer` selects: (n). Empty if it selects nothing.
    fn scores(&self, layer: usize, v: &Vectors) -> CandleResult<Vec<f64>> {
        let prefix = format!("encoder.pooler.scorer.{layer}");
        let positions = 0..v.origins.len();
        let logits = match self.architecture.pooling.scorer() {
            None => return Ok(Vec::new()),
            Some(ScorerKind::Attention) => return Ok(v.mass.clone()),
            Some(ScorerKind::Index { every }) => {
                return Ok(positions.map(|position| if position % every == 0 { 1.0 } else { 0.0 }).collect());
            }
            Some(ScorerKind::Random { seed }) => {
                let seed = seed.wrapping_add(layer as u64);
                return Ok(positions.map(|position| f64::from(uniform(seed, Purpose::Scores, position))).collect());
            }
            Some(ScorerKind::Linear) => self.tensors.linear(&prefix, &v.x)?, // (n, 1)
            Some(ScorerKind::Ffn) => {
                let inner = self.tensors.linear(&format!("{prefix}.dense"), &v.x)?.tanh()?; // (n, D)
                self.tensors.linear(&format!("{prefix}.out_proj"), &inner)?
            }
            Some(ScorerKind::Embedding { dimension }) => v.x.narrow(1, dimension, 1)?.contiguous()?,
        };
        sigmoid(&logits)?.affine(1.0, SCORE_EPSILON)?.flatten_all()?.to_vec1()
    }

    fn decoder_layer(&self, prefix: &str, x: Tensor, encoded: &Tensor) -> CandleResult<Tensor> {
        let len = x.dim(0)?;
        let causal = mask(len, |query, key| key <= query)?;
        let x = self
            .residual(prefix, "self_attn_layer_norm", &x, |x| self.attend(prefix, "self_attn", x, x, Some(&causal)))?;
        let attend = |x: &Tensor| self.attend(prefix, "encoder_attn", x, encoded, None);
        let x = self.residual(prefix, "encoder_attn_layer_norm", &x, attend)?;
        self.feed_forward(prefix, &x)
    }

    /// Attention of the decoder from `x`, (len, D), to `seen`, (keys, D).
    fn attend(
        &self,
        prefix: &str,
        name: &str,
        x: &Tensor,
        seen: &Tensor,
        mask: Option<&Tensor>,
    ) -> CandleResult<Tensor> {
        let Architecture { dim, heads, .. } = self.architecture;
        let head_dim = dim / heads;
        let project = |part: &str, x: &Tensor| self.tensors.linear(&format!("{prefix}.{name}.{part}"), x);
        let queries = (project("q_proj", x)? / (head_dim as f64).sqrt())?;
        let weights = |_, scores: Tensor| match mask {
            Some(mask) => softmax(&(scores + mask)?), // (len, keys)
            None => softmax(&scores),
        };
        let mixed = attend(&queries, &project("k_proj", seen)?, &project("v_proj", seen)?, head_dim, weights)?;
        project("out_proj", &mixed)
    }

    fn feed_forward(&self, prefix: &str, x: &Tensor) -> CandleResult<Tensor> {
        self.residual(prefix, "final_layer_norm", x, |x| {
            let hidden = activate(self.architecture.activation, &self.tensors.linear(&format!("{prefix}.fc1"), x)?)?; // (n, F)
            self.tensors.linear(&format!("{prefix}.fc2"), &hidden)
        })
    }

    /// Adds a sub-layer's output to its input, with the norm before the sub-layer or after the sum.
    fn residual(
        &self,
        prefix: &str,
        norm: &str,
        x: &Tensor,
        sublayer: impl FnOnce(&Tensor) -> CandleResult<Tensor>,
    ) -> CandleResult<Tensor> {
        let norm =
            |x: &Tensor| self.tensors.layer_norm(&format!("{prefix}.{norm}"), x, self.architecture.layer_norm_eps);
        if self.architecture.pre_norm { x + sublayer(&norm(x)?)? } else { norm(&(x + sublayer(x)?)?) }
    }

    /// Applies the norm after a stack's last layer, if norms precede the sub-layers.
    fn final_norm(&self, stack: &str, x: Tensor) -> CandleResult<Tensor> {
        match self.architecture.pre_norm {
            true => self.tensors.layer_norm(&format!("{stack}.layer_norm"), &x, self.architecture.layer_norm_eps),
            false => Ok(x),
        }
    }
}

/// Added to every score; also the score of zero vectors that fill up the input.
const SCORE_EPSILON: f64 = 1e-5;

/// Base of the weights in successive halving.
const HALVING_BASE: f64 = 20.0;

/// Scores that differ by at most this differ by rounding alone: padding has such scores.
const TIE: f64 = 1e-12;

/// Scores that differ by less may come in the other order in f32, whose scores differ by up to 4e-6 from those in f64.
const NEAR: f64 = 1e-5;

/// Vectors with their scores.
struct Scored {
    /// (n, D)
    x: Tensor,
    /// (n)
    scores: Vec<f64>,
    /// Input position of each vector's winner: (n)
    winners: Vec<usize>,
}

/// Sorts the scores of all poolings of a document, and records how clear their order is.
struct ScoreOrder<'a> {
    /// Near ties that change places.
    swapped: &'a [NearTie],
    /// Number of the current pooling.
    pooling: usize,
    /// The smallest difference between neighbours that are no ties.
    smallest_gap: Option<f64>,
    near_ties: Vec<NearTie>,
}

impl<'a> ScoreOrder<'a> {
    fn new(swapped: &'a [NearTie]) -> Self {
        Self { swapped, pooling: 0, smallest_gap: None, near_ties: Vec::new() }
    }

    /// Returns the positions from the highest score to the lowest. Scores are f32 by definition; of equal scores the one at the
    /// earlier position comes first.
    fn sort(&mut self, round: usize, scores: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| (scores[b] as f32).total_cmp(&(scores[a] as f32)));
        for (rank, pair) in order.windows(2).enumerate() {
            let gap = (scores[pair[0]] - scores[pair[1]]).abs();
            if gap > TIE {
                self.smallest_gap = Some(self.smallest_gap.map_or(gap, |smallest| smallest.min(gap)));
                if gap < NEAR {
                    self.near_ties.push(NearTie { pooling: self.pooling, round, rank });
                }
            }
        }
        let own = |tie: &&NearTie| tie.pooling == self.pooling && tie.round == round && tie.rank + 1 < scores.len();
        self.swapped.iter().filter(own).for_each(|tie| order.swap(tie.rank, tie.rank + 1));
        order
    }
}

/// Pools (n, D) to (`from` / `factor`, D). Vectors that are missing to `from` are zero. Without a scorer there are no winners.
fn pool(
    pooling: &DocumentPooling,
    x: &Tensor,
    scores: Vec<f64>,
    from: usize,
    factor: usize,
    order: &mut ScoreOrder<'_>,
) -> CandleResult<Scored> {
    match *pooling {
        DocumentPooling::SuccessiveHalving { flip_right, sort_back, .. } => {
            let missing = from - x.dim(0)?;
            let zeros = Tensor::zeros((missing, x.dim(1)?), DType::F64, &Device::Cpu)?;
            let mut scored = Scored {
                x: if missing > 0 { Tensor::cat(&[x, &zeros], 0)? } else { x.clone() },
                scores: scores.into_iter().chain(vec![SCORE_EPSILON; missing]).collect(),
                winners: (0..from).collect(),
            };
            let mut round = 0;
            while scored.scores.len() > from / factor {
                let order = order.sort(round, &scored.scores);
                scored = halve(scored, &order, flip_right, sort_back)?;
                round += 1;
            }
            Ok(scored)
        }
        DocumentPooling::HardTopK { sort_back, .. } => {
            let mut winners = order.sort(0, &scores);
            winners.truncate(from / factor);
            if sort_back {
                winners.sort_unstable();
            }
            let scores = winners.iter().map(|&winner| scores[winner]).collect();
            Ok(Scored { x: select(x, &winners)?, scores, winners })
        }
        DocumentPooling::Mean { .. } | DocumentPooling::Funnel { .. } => windows(x, from, factor, false),
        DocumentPooling::Max { .. } => windows(x, from, factor, true),
        DocumentPooling::None {} => bail!("no pooling"),
    }
}

/// One round: pairs the better half of `order` with the other. Each pair becomes the mean weighted by softmax(20^v).
fn halve(scored: Scored, order: &[usize], flip_right: bool, sort_back: bool) -> CandleResult<Scored> {
    let Scored { x, scores, winners } = scored;
    let half = order.len() / 2;
    let partner = |rank: usize| if flip_right { order[order.len() - 1 - rank] } else { order[half + rank] };
    let mut pairs: Vec<(usize, usize)> = (0..half).map(|rank| (order[rank], partner(rank))).collect();
    if sort_back {
        pairs.sort_unstable();
    }
    let (left, right): (Vec<usize>, Vec<usize>) = pairs.into_iter().unzip();
    let weight = |(&left, &right): (&usize, &usize)| {
        1.0 / (1.0 + (HALVING_BASE.powf(scores[right]) - HALVING_BASE.powf(scores[left])).exp())
    };
    let weights: Vec<f64> = left.iter().zip(&right).map(weight).collect();
    let mixed_scores = left.iter().zip(&right).zip(&weights);
    let mixed_scores = mixed_scores.map(|((&left, &right), w)| w * scores[left] + (1.0 - w) * scores[right]).collect();
    let weights = Tensor::new(weights, &Device::Cpu)?.reshape((half, 1))?;
    let mixed_left = select(&x, &left)?.broadcast_mul(&weights)?; // (half, D)
    let mixed_right = select(&x, &right)?.broadcast_mul(&weights.affine(-1.0, 1.0)?)?;
    Ok(Scored {
        x: (mixed_left + mixed_right)?,
        scores: mixed_scores,
        winners: left.iter().map(|&left| winners[left]).collect(),
    })
}

/// Returns means or maxima of windows of `size`. The last one may be shorter; an empty one is zero.
fn windows(x: &Tensor, from: usize, size: usize, largest: bool) -> CandleResult<Scored> {
    let (len, dim) = x.dims2()?;
    let window = |index: usize| {
        let start = (index * size).min(len);
        let end = (start + size).min(len);
        match (end - start, largest) {
            (0, _) => Tensor::zeros((1, dim), DType::F64, &Device::Cpu),
            (count, true) => x.narrow(0, start, count)?.max_keepdim(0),
            (count, false) => x.narrow(0, start, count)?.mean_keepdim(0),
        }
    };
    let x = Tensor::cat(&(0..from / size).map(window).collect::<CandleResult<Vec<_>>>()?, 0)?;
    Ok(Scored { x, scores: Vec::new(), winners: Vec::new() })
}

fn select(x: &Tensor, positions: &[usize]) -> CandleResult<Tensor> {
    x.index_select(&indices(&positions.iter().map(|&position| position as u32).collect::<Vec<_>>())?, 0)
}

/// Added to the mean square of a key before it is normalized (Reformer).
const KEY_EPSILON: f64 = 1e-6;

/// Queries, keys and values of one head: (n, head_dim) each.
struct HeadInputs {
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
}

/// Returns how many of `heads`, the first ones, attend within blocks.
fn local_heads(attention: AttentionKind, heads: usize) -> usize {
    match attention {
        AttentionKind::Softmax => heads,
        AttentionKind::Efficient { local_heads } | AttentionKind::Lsh { local_heads, .. } => local_heads,
    }
}

/// softmax(Q, over its columns)·(softmax(K, over its rows)ᵀ·V) (Shen et al. 2021, §3.2). Neither is scaled.
fn efficient(head: &HeadInputs) -> CandleResult<Tensor> {
    let keys = softmax(&head.keys.t()?.contiguous()?)?; // (head_dim, n)
    softmax(&head.queries)?.matmul(&keys.matmul(&head.values)?)
}

/// Attends within blocks of `block` vectors, (n, head_dim), and adds to `mass` the weight that each key receives. `mask` is added
/// to the scores of all keys: (n).
fn blocks(head: &HeadInputs, block: usize, mask: Option<&Tensor>, mass: &mut [f64]) -> CandleResult<Tensor> {
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
/// only if no other key is selected. `rotations` are random: (hashes, head_dim, buckets / 2).
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
    (0..numbers.len()).fold(0, |best, index| if numbers[index] > numbers[best] { index } else { best })
}
