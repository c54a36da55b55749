//! The Byte Latent Transformer (Pagnoni et al. 2024): a patcher, an encoder with vectors of n-grams, a global transformer over
//! patches, and a decoder that reads each symbol's latest closed patch.

use crate::verify::decoder::{rotate_by, sees};
use crate::verify::tensors::{Tensors, head_of, mask, products, softmax};
use crate::verify::{Checkpoint, Given, Input, Outputs, Reference};
use candle_core::{Device, Result as CandleResult, Tensor, bail};
use weir_kernels::Dtype;
use weir_kernels::error::{Error, Result};
use weir_models::checkpoint::row_table::RowTable;
use weir_models::contract::SymbolBoundary;
use weir_models::family::blt::{Architecture, BltStack, HashedNgrams};
use weir_models::load::{blueprint, weights};

/// The official primes (§3.2.1 and the official code).
const PRIMES: [u64; 11] = [
    1_000_000_007,
    5_915_587_277,
    1_500_450_271,
    3_267_000_013,
    5_754_853_343,
    4_093_082_899,
    9_576_890_767,
    3_628_273_133,
    2_860_486_313,
    5_463_458_053,
    3_367_900_313,
];

struct Blt {
    tensors: Tensors,
    /// Vectors of n-grams, of which only some rows are read.
    table: Option<RowTable>,
    architecture: Architecture,
}

/// Reads the model. Fails if a file cannot be read.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let architecture: Architecture = checkpoint.architecture()?;
    let blueprint = blueprint(&checkpoint.config, &checkpoint.file())?;
    let (mut weights, _) = weights(&checkpoint.source, &*blueprint, &mut |_, _| {})?;
    let table = architecture.ngrams.as_ref().map(|_| weights.take_table("ngrams.weight")).transpose()?;
    let dtype = |name: &str| match checkpoint.dtype {
        // the patcher keeps its boundaries
        Dtype::Int8 | Dtype::Int4 if name.starts_with("patcher.") => Dtype::Bf16,
        dtype => dtype,
    };
    let tensors = Tensors::of(&weights, &checkpoint.source)?.stored_as(dtype);
    let tensors = tensors.map_err(|error| Error::Internal(format!("the reference implementation: {error}")))?;
    Ok(Box::new(Blt { tensors, table, architecture }))
}

/// Rotates each position's pairs. The official code computes rates and angles in f32: (len, head_dim) → (len, head_dim).
fn rotate(x: &Tensor, base: f64) -> CandleResult<Tensor> {
    let head_dim = x.dim(1)? as f32;
    let angle = |n: usize, m: usize| {
        let rate = 1.0 / (base as f32).powf((2 * m) as f32 / head_dim);
        f64::from(n as f32 * rate)
    };
    rotate_by(x, angle, |_, _| 1.0)
}

impl Reference for Blt {
    fn forward(&self, input: &Input, given: Given<'_>) -> CandleResult<Outputs> {
        let Architecture { patcher, encoder, global, decoder, tied, .. } = &self.architecture;
        let symbols = &input.symbols;
        let (boundaries, margins) = self.decide(patcher, symbols, given)?;
        let own: Vec<bool> = boundaries.iter().map(|decision| decision.boundary).collect();
        let ends = given.boundaries.unwrap_or(&own);
        if ends.first() != Some(&true) {
            bail!("a text's first symbol is a patch");
        }
        let embedding = if *tied { "head.weight" } else { "encoder.embedding.weight" };
        let embedded = (self.tensors.rows(embedding, symbols)? + self.ngrams(symbols)?)?; // (len, E)
        let encoded = self.stack("encoder", encoder, &embedded, |_, x| Ok(x))?; // (len, E)
        let patches = self.patches(&encoded, ends)?; // (patches, k·E)
        let entered = match self.tensors.get("global.input.weight") {
            Ok(_) => self.tensors.matrix("global.input.weight", &patches)?,
            Err(_) => patches,
        }; // (patches, G)
        let global = self.stack("global", global, &entered, |_, x| Ok(x))?; // (patches, G)
        let contexts = self.tensors.matrix("decoder.patch.weight", &global)?; // (patches, k·E)
        let crosses = if self.architecture.cross_every_layer { decoder.layers } else { 1 };
        let decoded = self.stack("decoder", decoder, &encoded, |layer, x| {
            if layer < crosses { self.read_patches(layer, &x, &contexts, ends) } else { Ok(x) }
        })?; // (len, E)
        let decoded = self.tensors.rms_norm("decoder.norm", &decoded, decoder.norm_eps)?;
        let logits = self.tensors.matrix("head.weight", &decoded)?; // (len, V)
        Ok(Outputs { boundaries, margins, ..Outputs::of_logits(&logits)? })
    }
}

impl Blt {
    /// Decides for each symbol whether a patch ends with it, from the patcher's entropies; also returns the decisions' margins.
    fn decide(
        &self,
        patcher: &BltStack,
        symbols: &[u32],
        given: Given<'_>,
    ) -> CandleResult<(Vec<SymbolBoundary>, Vec<f64>)> {
        let Architecture { threshold, max_patch, .. } = self.architecture;
        let embedded = self.tensors.rows("patcher.embedding.weight", symbols)?; // (len, P)
        let x = self.stack("patcher", patcher, &embedded, |_, x| Ok(x))?;
        let x = self.tensors.rms_norm("patcher.norm", &x, patcher.norm_eps)?;
        let logits = self.tensors.matrix("patcher.head.weight", &x)?; // (len, V)
        let logits: Vec<Vec<f64>> = logits.to_vec2()?;
        let mut start = 0;
        let mut boundaries = Vec::with_capacity(symbols.len());
        let mut margins = Vec::with_capacity(symbols.len());
        for (t, logits) in logits.iter().enumerate() {
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            let surprise = |logit: &f64| (largest + sum.ln() - logit) * (logit - largest).exp() / sum;
            let entropy: f64 = logits.iter().map(surprise).sum();
            let full = t == 0 || max_patch.is_some_and(|longest| t + 1 - start >= longest);
            let boundary = full || entropy > f64::from(threshold);
            boundaries.push(SymbolBoundary { boundary, entropy: Some(entropy as f32), ..SymbolBoundary::default() });
            let margin = (entropy - f64::from(threshold)).abs() / (logits.len() as f64).ln();
            margins.push(if full { f64::INFINITY } else { margin });
            if given.boundaries.map_or(boundary, |ends| ends.get(t) == Some(&true)) {
                start = t + 1;
            }
        }
        Ok((boundaries, margins))
    }

    /// Returns the sum of each symbol's vectors of n-grams: (len, E).
    fn ngrams(&self, symbols: &[u32]) -> CandleResult<Tensor> {
        let dim = self.architecture.encoder.dim;
        let mut sums = vec![0.0_f64; symbols.len() * dim];
        if let (Some(HashedNgrams { sizes, functions, rows }), Some(table)) = (&self.architecture.ngrams, &self.table) {
            let mut bytes = Vec::new();
            let mut vector = Vec::new();
            for (t, sums) in sums.chunks_exact_mut(dim).enumerate() {
                for index in 0..functions * sizes.len() {
                    let prime = PRIMES[index / sizes.len() % PRIMES.len()];
                    let size = sizes[index % sizes.len()];
                    let mut power = 1_u64;
                    let mut hash = 0_u64;
                    for place in 0..size {
                        let id = (t + 1 + place).checked_sub(size).map_or(0, |at| symbols[at]);
                        hash = hash.wrapping_add(u64::from(id).wrapping_mul(power));
                        power = power.wrapping_mul(prime);
                    }
                    let row = i128::from(hash.cast_signed()).rem_euclid(*rows as i128) as usize;
                    table
                        .read(index * rows + row, &mut bytes, &mut vector)
                        .map_err(|error| candle_core::Error::Msg(error.to_string()))?;
                    sums.iter_mut().zip(&vector).for_each(|(sum, &number)| *sum += f64::from(number));
                }
            }
        }
        Tensor::from_vec(sums, (symbols.len(), dim), &Device::Cpu)
    }

    /// Runs the layers of a stack, without a norm after the last; `before` changes the input of each: (len, D) → (len, D).
    fn stack(
        &self,
        name: &str,
        stack: &BltStack,
        x: &Tensor,
        before: impl Fn(usize, Tensor) -> CandleResult<Tensor>,
    ) -> CandleResult<Tensor> {
        let BltStack { layers, heads, kv_heads, rotary_base, norm_eps, window, .. } = *stack;
        let head_dim = stack.dim / heads;
        let mask = mask(x.dim(0)?, |query, key| sees(window, query, key))?; // (len, len)
        let mut x = x.clone();
        for index in 0..layers {
            x = before(index, x)?;
            let key = |part: &str| format!("{name}.{index}.{part}");
            let normed = self.tensors.rms_norm(&key("attention.norm"), &x, norm_eps)?;
            let project = |part: &str| self.tensors.matrix(&key(&format!("attention.{part}.weight")), &normed);
            let queries = project("query")?;
            let keys = project("key")?;
            let values = project("value")?;
            let mut outputs = Vec::with_capacity(heads);
            for head in 0..heads {
                let shared = head / (heads / kv_heads);
                let query = rotate(&head_of(&queries, head, head_dim)?, rotary_base)?;
                let key = rotate(&head_of(&keys, shared, head_dim)?, rotary_base)?;
                let scores = ((products(&query, &key)? / (head_dim as f64).sqrt())? + &mask)?; // (len, len)
                outputs.push(softmax(&scores)?.matmul(&head_of(&values, shared, head_dim)?)?);
            }
            x = (&x + self.tensors.matrix(&key("attention.output.weight"), &Tensor::cat(&outputs, 1)?)?)?;
            let normed = self.tensors.rms_norm(&key("feed_forward.norm"), &x, norm_eps)?;
            let matrix = |part: &str, x: &Tensor| self.tensors.matrix(&key(&format!("feed_forward.{part}.weight")), x);
            let hidden = (matrix("gate", &normed)?.silu()? * matrix("up", &normed)?)?;
            x = (&x + matrix("down", &hidden)?)?;
        }
        Ok(x)
    }

    /// Returns 2·x + attention(rms(x), rms(y)) without positions: (len, E), (rows, E) → (len, E).
    fn cross(&self, name: &str, stack: &BltStack, x: &Tensor, y: &Tensor) -> CandleResult<Tensor> {
        let BltStack { dim, heads, kv_heads, norm_eps, .. } = *stack;
        let head_dim = dim / heads;
        let matrix = |part: &str, x: &Tensor| self.tensors.matrix(&format!("{name}.{part}.weight"), x);
        let queries = matrix("query", &self.tensors.rms_norm(&format!("{name}.query_norm"), x, norm_eps)?)?;
        let read = self.tensors.rms_norm(&format!("{name}.key_norm"), y, norm_eps)?;
        let keys = matrix("key", &read)?;
        let values = matrix("value", &read)?;
        let mut outputs = Vec::with_capacity(heads);
        for head in 0..heads {
            let shared = head / (heads / kv_heads);
            let scores = products(&head_of(&queries, head, head_dim)?, &head_of(&keys, shared, head_dim)?)?;
            let weights = softmax(&(scores / (head_dim as f64).sqrt())?)?; // (len, rows)
            outputs.push(weights.matmul(&head_of(&values, shared, head_dim)?)?);
        }
        (x * 2.0)? + matrix("output", &Tensor::cat(&outputs, 1)?)?
    }

    /// Returns the vectors of the closed patches, from the encoder's outputs: (len, E) → (patches, k·E).
    fn patches(&self, encoded: &Tensor, ends: &[bool]) -> CandleResult<Tensor> {
        let Architecture { encoder, patch_vectors, .. } = &self.architecture;
        let mut start = 0;
        let mut patches = Vec::new();
        for (t, _) in ends.iter().enumerate().filter(|(_, end)| **end) {
            let own = encoded.narrow(0, start, t + 1 - start)?; // (symbols, E)
            let queries = self.tensors.matrix("encoder.patch.weight", &own.max(0)?.unsqueeze(0)?)?; // (1, k·E)
            let queries = queries.reshape((*patch_vectors, encoder.dim))?;
            patches.push(self.cross("encoder.cross", encoder, &queries, &own)?.flatten_all()?);
            start = t + 1;
        }
        Tensor::stack(&patches, 0)
    }

    /// Runs a cross-attention of the decoder: each symbol reads its latest closed patch. (len, E), (patches, k·E) → (len, E).
    fn read_patches(&self, layer: usize, x: &Tensor, contexts: &Tensor, ends: &[bool]) -> CandleResult<Tensor> {
        let Architecture { decoder, patch_vectors, .. } = &self.architecture;
        // symbols from one end up to the next one read the same patch
        let starts: Vec<usize> = (0..ends.len()).filter(|&t| ends[t]).collect();
        let mut outputs = Vec::with_capacity(starts.len());
        for (patch, &start) in starts.iter().enumerate() {
            let stop = starts.get(patch + 1).copied().unwrap_or(ends.len());
            let own = x.narrow(0, start, stop - start)?;
            let vectors = contexts.narrow(0, patch, 1)?.reshape((*patch_vectors, decoder.dim))?;
            outputs.push(self.cross(&format!("decoder.cross.{layer}"), decoder, &own, &vectors)?);
        }
        Tensor::cat(&outputs, 0)
    }
}
