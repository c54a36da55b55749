//! Dynamic Token Pooling (Nawrot et al. 2023): pre stack, boundaries, pooling, middle stack, upsampling, post stack.

use crate::verify::decoder::{CausalStack, Norms};
use crate::verify::tensors::{Tensors, activate, indices, log_sum_exp, pool_segments, sigmoid};
use crate::verify::{Checkpoint, Given, Input, Outputs, Reference};
use candle_core::{Result as CandleResult, Tensor, bail};
use weir_kernels::error::{Error, Result};
use weir_models::contract::SymbolBoundary;
use weir_models::family::hourglass::{Architecture, NgramConfig};
use weir_models::nn::{boundary::BoundaryConfig, window::Window};

struct Hourglass {
    tensors: Tensors,
    architecture: Architecture,
    vocabulary: usize,
    /// Ids after which a segment ends, if boundaries are separators.
    separators: Vec<u32>,
    /// The model whose entropies decide, if boundaries are spikes.
    entropy_model: Option<Box<dyn Reference>>,
}

/// Reads the model. Fails if a file cannot be read.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let architecture: Architecture = checkpoint.architecture()?;
    let vocabulary = checkpoint.vocabulary()?;
    let separators = match &architecture.boundaries {
        BoundaryConfig::Whitespace { symbol } => symbol.chars().map(|symbol| vocabulary.id_of(symbol)).collect(),
        _ => Some(Vec::new()),
    };
    let separators = separators.ok_or_else(|| Error::Internal("a separator is not in the vocabulary".into()))?;
    let entropy_model = match &architecture.boundaries {
        BoundaryConfig::EntropySpikes { entropy_model, .. } => {
            Some((checkpoint.load)(&checkpoint.source.entropy_model(entropy_model)?)?)
        }
        _ => None,
    };
    let vocabulary = vocabulary.len();
    Ok(Box::new(Hourglass { tensors: checkpoint.tensors()?, architecture, vocabulary, separators, entropy_model }))
}

impl Reference for Hourglass {
    fn forward(&self, input: &Input, given: Given<'_>) -> CandleResult<Outputs> {
        let Architecture { layers, pooling, window, middle_window, .. } = &self.architecture;
        let embedded = self.embed(&input.symbols)?; // (len, D)
        let hidden = self.stack("pre", layers.pre, *window).forward(&embedded)?; // (len, D)
        let (Some(middle), Some(post), Some(pooling)) = (layers.middle, layers.post, *pooling) else {
            return Outputs::of_logits(&self.tensors.linear("head", &hidden)?); // (len, V)
        };
        let decisions = self.decide(&input.symbols, &hidden)?;
        let own: Vec<bool> = decisions.boundaries.iter().map(|decision| decision.boundary).collect();
        let ends = given.boundaries.unwrap_or(&own);
        let null_group = self.tensors.get("null_group")?.reshape((1, self.architecture.dim))?;
        let pooled = pool_segments(pooling, &hidden, ends)?; // (segments, D)
        let groups = Tensor::cat(&std::iter::once(null_group).chain(pooled).collect::<Vec<_>>(), 0)?; // (1 + segments, D)
        let normed = self.tensors.layer_norm("pool_norm", &groups, self.architecture.layer_norm_eps)?;
        let groups = self.stack("middle", middle, *middle_window).forward(&normed)?; // (1 + segments, D)
        // A symbol gets the vector of the last segment that ended up to it, its own included.
        let mut closed = 0;
        let seen: Vec<u32> = ends
            .iter()
            .map(|&ends| {
                closed += u32::from(ends);
                closed
            })
            .collect();
        let upsampled = groups.index_select(&indices(&seen)?, 0)?; // (len, D)
        let x = self.stack("post", post, *window).forward(&(upsampled + hidden)?)?; // (len, D)
        let Outputs { logits, .. } = Outputs::of_logits(&self.tensors.linear("head", &x)?)?; // (len, V)
        Ok(Outputs { logits, ..decisions })
    }
}

impl Hourglass {
    /// Returns the embeddings of symbols and of the n-grams that end with them, (len, D).
    fn embed(&self, symbols: &[u32]) -> CandleResult<Tensor> {
        let mut embedded = self.tensors.rows("embedding.weight", symbols)?; // (len, D)
        let Some(NgramConfig { sizes, rows }) = &self.architecture.ngrams else { return Ok(embedded) };
        for &size in sizes {
            // zeros precede the text
            let padded = [&vec![0; size - 1], symbols].concat();
            let hash = |ngram: &[u32]| {
                let step = |hash: u64, &id: &u32| (hash * 1_000_003 + u64::from(id) + 1) % ((1 << 31) - 1);
                (ngram.iter().rev().fold(0, step) % *rows as u64) as u32
            };
            let chosen: Vec<u32> = padded.windows(size).map(hash).collect();
            embedded = (embedded + self.tensors.rows(&format!("ngrams.{size}.weight"), &chosen)?)?;
        }
        Ok(embedded)
    }

    fn stack<'a>(&'a self, name: &'a str, layers: usize, window: Window) -> CausalStack<'a> {
        let shape = self.architecture.stack_shape();
        let eps = self.architecture.layer_norm_eps;
        CausalStack { tensors: &self.tensors, name, layers, shape, eps, window, norms: Norms::AfterSublayers }
    }

    /// Decides for each symbol whether a segment ends with it; returns boundaries and margins. `hidden` is the pre stack's output.
    fn decide(&self, symbols: &[u32], hidden: &Tensor) -> CandleResult<Outputs> {
        match &self.architecture.boundaries {
            BoundaryConfig::None {} => Ok(Outputs::default()),
            BoundaryConfig::Fixed { every } => Ok(by_rule((0..symbols.len()).map(|position| position % every == 0))),
            BoundaryConfig::Whitespace { .. } => {
                Ok(by_rule(symbols.iter().map(|symbol| self.separators.contains(symbol))))
            }
            BoundaryConfig::Learned { threshold, .. } => {
                let threshold = f64::from(*threshold);
                let inner = self.tensors.linear("boundary.hidden", hidden)?;
                let inner = activate(self.architecture.activation, &inner)?; // (len, boundary width)
                let probabilities = sigmoid(&self.tensors.linear("boundary.output", &inner)?)?; // (len, 1)
                let probabilities: Vec<f64> = probabilities.flatten_all()?.to_vec1()?;
                let decide = |&p: &f64| decision(p > threshold, Some(p as f32));
                let margins = probabilities.iter().map(|p| (p - threshold).abs()).collect();
                Ok(Outputs { boundaries: probabilities.iter().map(decide).collect(), margins, ..Outputs::default() })
            }
            BoundaryConfig::EntropySpikes { window, .. } => self.spikes(symbols, *window),
        }
    }

    /// A segment ends where the entropy model's entropy exceeds each of the `window` before it (eq. 6).
    fn spikes(&self, symbols: &[u32], window: usize) -> CandleResult<Outputs> {
        let Some(entropy_model) = &self.entropy_model else { bail!("the entropy model was not loaded") };
        let input = Input { symbols: symbols.to_vec(), document: Vec::new() };
        let logits = entropy_model.forward(&input, Given::default())?.logits;
        let entropies: Vec<f64> = logits.chunks_exact(self.vocabulary).map(entropy).collect();
        let highest = |position: usize| {
            entropies[position.saturating_sub(window)..position].iter().copied().fold(f64::NEG_INFINITY, f64::max)
        };
        let excess: Vec<f64> = entropies.iter().enumerate().map(|(t, entropy)| entropy - highest(t)).collect();
        let boundaries = excess.iter().map(|&excess| decision(excess > 0.0, None)).collect();
        Ok(Outputs { boundaries, margins: excess.into_iter().map(f64::abs).collect(), ..Outputs::default() })
    }
}

fn decision(boundary: bool, probability: Option<f32>) -> SymbolBoundary {
    SymbolBoundary { boundary, probability, ..SymbolBoundary::default() }
}

/// Returns decisions that depend on the symbols alone.
fn by_rule(ends: impl Iterator<Item = bool>) -> Outputs {
    let boundaries: Vec<_> = ends.map(|ends| decision(ends, None)).collect();
    Outputs { margins: vec![f64::INFINITY; boundaries.len()], boundaries, ..Outputs::default() }
}

/// Returns the entropy of a distribution, in nats, given its logits.
fn entropy(logits: &[f64]) -> f64 {
    let total = log_sum_exp(logits);
    logits.iter().map(|logit| (total - logit) * (logit - total).exp()).sum()
}
