//! GPT-BigCode (Ben Allal et al. 2023, arXiv 2301.03988), the architecture of SantaCoder and StarCoder: learned positions, LayerNorm,
//! and one head of keys and values.
//!
//! Read from `modeling_gpt_bigcode.py` of transformers 5.23.0.

use crate::family::{
    TensorSpec,
    hugging_face::{
        memory::{LayerBlocks, LayerMemory, Memory, MemoryShape},
        transformer::{
            Activation, Architecture, Computed, Ends, HEAD, Keys, MAX_DIM, Masks, Network, Norm, Projection, Scores,
            Tensors, attend,
        },
    },
    parts::matrix,
    settings::Bounds,
};
use candle_core::Tensor;
use serde::Deserialize;
use weir_kernels::error::Result;

const EMBEDDING: &str = "transformer.wte.weight";
const POSITIONS: &str = "transformer.wpe.weight";

/// The keys of `config.json`. D = `n_embd`, F = `n_inner`, V = `vocab_size`.
#[derive(Debug, Clone, Deserialize)]
struct BigCode {
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: Option<usize>,
    activation_function: Activation,
    layer_norm_epsilon: f64,
    multi_query: bool,
    scale_attn_weights: bool,
    tie_word_embeddings: bool,
    add_cross_attention: bool,
}

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: BigCode = keys.parse()?;
    keys.layers("n_layer", config.n_layer)?;
    keys.dims([
        ("vocab_size", config.vocab_size),
        ("n_positions", config.n_positions),
        ("n_embd", config.n_embd),
        ("n_head", config.n_head),
        ("n_inner", config.n_inner.unwrap_or(1)),
    ])?;
    if config.inner() > MAX_DIM {
        return keys.fail("n_embd", format!("1 to {}, without n_inner", MAX_DIM / 4), config.n_embd);
    }
    if !config.n_embd.is_multiple_of(config.n_head) {
        return keys.fail("n_head", format!("a divisor of n_embd, {}", config.n_embd), config.n_head);
    }
    keys.fraction("layer_norm_epsilon", config.layer_norm_epsilon)?;
    keys.only("multi_query", true, config.multi_query)?;
    keys.only("scale_attn_weights", true, config.scale_attn_weights)?;
    keys.only("add_cross_attention", false, config.add_cross_attention)?;
    keys.parameters(config.tensors().iter().map(TensorSpec::numbers).fold(0, usize::saturating_add))?;
    Ok(Box::new(config))
}

impl BigCode {
    fn inner(&self) -> usize {
        self.n_inner.unwrap_or(self.n_embd.saturating_mul(4))
    }

    fn head_dim(&self) -> usize {
        self.n_embd / self.n_head
    }

    fn norm(&self, tensors: &mut Tensors, name: &str) -> Result<Norm> {
        let weight = tensors.take(&format!("{name}.weight"))?;
        let bias = Some(tensors.take(&format!("{name}.bias"))?);
        Ok(Norm { weight, bias, eps: self.layer_norm_epsilon })
    }
}

impl Architecture for BigCode {
    fn tensors(&self) -> Vec<TensorSpec> {
        let dim = self.n_embd;
        let mut out = vec![self.embedding_tensor(self.vocab_size, dim), matrix(POSITIONS, vec![self.n_positions, dim])];
        let mut with_bias = |name: String, shape: Vec<usize>| {
            out.push(matrix(format!("{name}.bias"), shape[..1].to_vec()));
            out.push(matrix(format!("{name}.weight"), shape));
        };
        for layer in 0..self.n_layer {
            let key = |name: &str| format!("transformer.h.{layer}.{name}");
            with_bias(key("ln_1"), vec![dim]);
            with_bias(key("attn.c_attn"), vec![dim + 2 * self.head_dim(), dim]);
            with_bias(key("attn.c_proj"), vec![dim, dim]);
            with_bias(key("ln_2"), vec![dim]);
            with_bias(key("mlp.c_fc"), vec![self.inner(), dim]);
            with_bias(key("mlp.c_proj"), vec![dim, self.inner()]);
        }
        with_bias("transformer.ln_f".into(), vec![dim]);
        if !self.is_tied() {
            out.push(matrix(HEAD, vec![self.vocab_size, dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let Self { n_layer, n_embd, n_head, .. } = self;
        format!("gpt_bigcode: {n_layer} layers × {n_embd}, {n_head} heads × {}, 1 of keys", self.head_dim())
    }

    fn bounds(&self) -> Bounds {
        Bounds { longest: Some((self.n_positions, "the checkpoint learned no more positions")), endless: false }
    }

    fn memory(&self) -> MemoryShape {
        MemoryShape::Keys { layers: self.n_layer, heads: 1, head_dim: self.head_dim() }
    }

    fn embedding(&self) -> &'static str {
        EMBEDDING
    }

    fn is_tied(&self) -> bool {
        self.tie_word_embeddings
    }

    fn memory_products(&self) -> usize {
        2 * self.n_layer * self.n_embd
    }

    fn build(&self, tensors: &mut Tensors) -> Result<Box<dyn Network>> {
        let norm = self.norm(tensors, "transformer.ln_f")?;
        let ends = Ends::load(self, norm, tensors)?;
        let positions = tensors.take(POSITIONS)?;
        let mut layers = Vec::new();
        for layer in 0..self.n_layer {
            let key = |name: &str| format!("transformer.h.{layer}.{name}");
            layers.push(Layer {
                attention_norm: self.norm(tensors, &key("ln_1"))?,
                qkv: tensors.projection(&key("attn.c_attn"), true)?,
                output: tensors.projection(&key("attn.c_proj"), true)?,
                feed_forward_norm: self.norm(tensors, &key("ln_2"))?,
                up: tensors.projection(&key("mlp.c_fc"), true)?,
                down: tensors.projection(&key("mlp.c_proj"), true)?,
            });
        }
        Ok(Box::new(BigCodeNetwork { config: self.clone(), ends, positions, layers }))
    }
}

struct Layer {
    attention_norm: Norm,
    /// Queries of all heads, then the only keys, then the only values.
    qkv: Projection,
    output: Projection,
    feed_forward_norm: Norm,
    up: Projection,
    down: Projection,
}

struct BigCodeNetwork {
    config: BigCode,
    ends: Ends,
    /// (positions, D)
    positions: Tensor,
    layers: Vec<Layer>,
}

impl Network for BigCodeNetwork {
    /// Embed + position → layers → norm → logits.
    fn forward(&self, tokens: &Tensor, memory: &Memory, wanted: usize) -> candle_core::Result<Computed> {
        let len = tokens.dim(0)?;
        let positions = self.positions.narrow(0, memory.len(), len)?;
        let mut x = (self.ends.embed(tokens)? + positions)?; // (len, D)
        let mask = Masks::new(len, memory.len() + len).of(None, tokens.device())?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let past = memory.blocks(index)?;
            let (next, computed) = self.layer(layer, &x, mask.as_ref(), past)?;
            x = next;
            layers.push(computed);
        }
        Ok(Computed { logits: self.ends.logits(&x, wanted)?, layers })
    }
}

impl BigCodeNetwork {
    /// Returns `x` (len, D) after a layer, and the layer's keys and values of these tokens.
    fn layer(
        &self,
        layer: &Layer,
        x: &Tensor,
        mask: Option<&Tensor>,
        past: LayerBlocks,
    ) -> candle_core::Result<(Tensor, LayerMemory)> {
        let len = x.dim(0)?;
        let dim = self.config.n_embd;
        let head_dim = self.config.head_dim();
        let qkv = layer.qkv.apply(&layer.attention_norm.apply(x)?)?; // (len, D + 2·h)
        let queries = qkv.narrow(1, 0, dim)?.reshape((len, self.config.n_head, head_dim))?;
        let queries = queries.transpose(0, 1)?.contiguous()?; // (heads, len, h)
        let keys = qkv.narrow(1, dim, head_dim)?.contiguous()?.unsqueeze(0)?; // (1, len, h)
        let values = qkv.narrow(1, dim + head_dim, head_dim)?.contiguous()?.unsqueeze(0)?;
        let all = past.joined(&keys, &values)?;
        let scores = Scores { scale: 1.0 / (head_dim as f64).sqrt(), cap: None };
        let context = attend(&queries, &all.first, &all.second, scores, mask)?; // (len, D)
        let x = (x + layer.output.apply(&context)?)?;
        let hidden = layer.up.apply(&layer.feed_forward_norm.apply(&x)?)?; // (len, F)
        let activation = self.config.activation_function;
        let x = (&x + layer.down.apply(&activation.apply(&hidden)?)?)?;
        Ok((x, LayerMemory { first: keys, second: values }))
    }
}
