//! The decoder that llama, qwen2, qwen3 and gemma2 share: RMSNorm, rotary attention with grouped heads, a gated feed-forward.

use super::{
    architecture::{Architecture, Computed, Network},
    attention::{Masks, Scores, attend},
    keys::Keys,
    layers::{Activation, Norm, Projection, Tensors, failed, last_rows, soft_cap},
    memory::{LayerBlocks, LayerMemory, Memory, MemoryShape},
    rotary::{Angles, Rotary},
};
use crate::{
    error::Result,
    family::{TensorSpec, parts::matrix, settings::Bounds},
};
use candle_core::Tensor;

pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// An architecture of this kind. D = `dim`, H = `heads`, K = `kv_heads`, h = `head_dim`, F = `feed_forward`, V = `symbols`.
#[derive(Debug, Clone)]
pub(super) struct Transformer {
    /// The name in `config.json`.
    pub(super) model_type: &'static str,
    pub(super) symbols: usize,
    pub(super) dim: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) feed_forward: usize,
    pub(super) activation: Activation,
    pub(super) eps: f64,
    pub(super) rotary: Rotary,
    /// Keys that each layer's queries see; all, if `None`. One entry a layer.
    pub(super) windows: Vec<Option<usize>>,
    /// Biases of the query, key and value products.
    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    pub(super) feed_forward_bias: bool,
    /// True if each head's queries and keys are normalised.
    pub(super) head_norms: bool,
    /// True if attention and feed-forward are also normalised after they ran, and norms multiply by 1 + weight.
    pub(super) gemma: bool,
    pub(super) scores: Scores,
    /// Limits the logits smoothly, if given.
    pub(super) logit_cap: Option<f64>,
    /// Multiplies the embeddings.
    pub(super) embedding_scale: f64,
    pub(super) tied: bool,
    /// Positions that the model was made for.
    pub(super) positions: usize,
}

impl Transformer {
    /// Checks all dimensions. The error names the first key that is out of bounds, and the bound.
    pub(super) fn checked(self, keys: Keys<'_>) -> Result<Box<dyn Architecture>> {
        keys.layers("num_hidden_layers", self.windows.len())?;
        keys.dims([
            ("vocab_size", self.symbols),
            ("hidden_size", self.dim),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("intermediate_size", self.feed_forward),
            ("max_position_embeddings", self.positions),
        ])?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of num_attention_heads, {}", self.heads);
            return keys.fail("num_key_value_heads", expected, self.kv_heads);
        }
        keys.fraction("rms_norm_eps", self.eps)?;
        keys.parameters(self.tensors().iter().map(TensorSpec::numbers).fold(0, usize::saturating_add))?;
        Ok(Box::new(self))
    }

    /// Width of the queries, and of the keys.
    fn widths(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }

    /// Names of a layer's norms before and after attention, and before and after the feed-forward.
    fn norm_names(&self) -> &'static [&'static str] {
        match self.gemma {
            true => &[
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ],
            false => &["input_layernorm", "post_attention_layernorm"],
        }
    }

    fn layer_tensors(&self, out: &mut Vec<TensorSpec>, layer: usize) {
        let key = |name: &str| format!("model.layers.{layer}.{name}");
        let (queries, keys) = self.widths();
        let mut linear = |name: &str, outputs: usize, inputs: usize, bias: bool| {
            out.push(matrix(key(&format!("{name}.weight")), vec![outputs, inputs]));
            if bias {
                out.push(matrix(key(&format!("{name}.bias")), vec![outputs]));
            }
        };
        linear("self_attn.q_proj", queries, self.dim, self.qkv_bias);
        linear("self_attn.k_proj", keys, self.dim, self.qkv_bias);
        linear("self_attn.v_proj", keys, self.dim, self.qkv_bias);
        linear("self_attn.o_proj", self.dim, queries, self.output_bias);
        linear("mlp.gate_proj", self.feed_forward, self.dim, self.feed_forward_bias);
        linear("mlp.up_proj", self.feed_forward, self.dim, self.feed_forward_bias);
        linear("mlp.down_proj", self.dim, self.feed_forward, self.feed_forward_bias);
        let norms = self.norm_names().iter().map(|name| matrix(key(&format!("{name}.weight")), vec![self.dim]));
        out.extend(norms);
        if self.head_norms {
            let norms =
                ["q_norm", "k_norm"].map(|name| matrix(key(&format!("self_attn.{name}.weight")), vec![self.head_dim]));
            out.extend(norms);
        }
    }

    fn norm(&self, tensors: &mut Tensors, name: &str) -> Result<Norm> {
        let weight = tensors.take(&format!("{name}.weight"))?;
        let weight = if self.gemma { (weight + 1.0).map_err(failed)? } else { weight };
        Ok(Norm { weight, bias: None, eps: self.eps })
    }

    fn layer(&self, tensors: &mut Tensors, layer: usize) -> Result<Layer> {
        let key = |name: &str| format!("model.layers.{layer}.{name}");
        let mut norms = Vec::new();
        for name in self.norm_names() {
            norms.push(self.norm(tensors, &key(name))?);
        }
        let mut head_norms = Vec::new();
        if self.head_norms {
            for name in ["self_attn.q_norm", "self_attn.k_norm"] {
                head_norms.push(self.norm(tensors, &key(name))?);
            }
        }
        Ok(Layer {
            norms,
            query: tensors.projection(&key("self_attn.q_proj"), self.qkv_bias)?,
            key: tensors.projection(&key("self_attn.k_proj"), self.qkv_bias)?,
            value: tensors.projection(&key("self_attn.v_proj"), self.qkv_bias)?,
            head_norms,
            output: tensors.projection(&key("self_attn.o_proj"), self.output_bias)?,
            gate: tensors.projection(&key("mlp.gate_proj"), self.feed_forward_bias)?,
            up: tensors.projection(&key("mlp.up_proj"), self.feed_forward_bias)?,
            down: tensors.projection(&key("mlp.down_proj"), self.feed_forward_bias)?,
            window: self.windows[layer],
        })
    }
}

impl Architecture for Transformer {
    fn tensors(&self) -> Vec<TensorSpec> {
        let mut out = vec![matrix(EMBEDDING, vec![self.symbols, self.dim])];
        (0..self.windows.len()).for_each(|layer| self.layer_tensors(&mut out, layer));
        out.push(matrix("model.norm.weight", vec![self.dim]));
        if !self.tied {
            out.push(matrix(HEAD, vec![self.symbols, self.dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let Self { model_type, dim, heads, kv_heads, head_dim, .. } = self;
        let windows = match self.windows.iter().flatten().max() {
            Some(keys) => format!(", windows of {keys} keys"),
            None => String::new(),
        };
        let layers = self.windows.len();
        format!("{model_type}: {layers} layers × {dim}, {heads} heads × {head_dim}, {kv_heads} of keys{windows}")
    }

    fn bounds(&self) -> Bounds {
        Bounds { longest: Some((self.positions, "the checkpoint's max_position_embeddings")), endless: false }
    }

    fn memory(&self) -> MemoryShape {
        MemoryShape::Keys { layers: self.windows.len(), heads: self.kv_heads, head_dim: self.head_dim }
    }

    fn embedding(&self) -> &'static str {
        EMBEDDING
    }

    fn head(&self) -> &'static str {
        if self.tied { EMBEDDING } else { HEAD }
    }

    fn memory_products(&self) -> usize {
        2 * self.windows.len() * self.heads * self.head_dim
    }

    fn build(&self, tensors: &mut Tensors) -> Result<Box<dyn Network>> {
        let embedding = tensors.take(EMBEDDING)?;
        let weight = if self.tied { embedding.clone() } else { tensors.take(HEAD)? };
        let layers = (0..self.windows.len()).map(|layer| self.layer(tensors, layer)).collect::<Result<_>>()?;
        let norm = self.norm(tensors, "model.norm")?;
        let head = Projection { weight, bias: None };
        Ok(Box::new(TransformerNetwork { config: self.clone(), embedding, layers, norm, head }))
    }
}

struct Layer {
    /// The norms that [`Transformer::norm_names`] lists, in its order.
    norms: Vec<Norm>,
    query: Projection,
    key: Projection,
    value: Projection,
    /// The norms of queries and of keys, if heads are normalised.
    head_norms: Vec<Norm>,
    output: Projection,
    gate: Projection,
    up: Projection,
    down: Projection,
    window: Option<usize>,
}

/// The parts of a step that all layers share.
struct Step {
    angles: Angles,
    masks: Masks,
}

struct TransformerNetwork {
    config: Transformer,
    /// (V, D)
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    head: Projection,
}

impl Network for TransformerNetwork {
    /// Embed → layers → norm → logits.
    fn forward(&self, tokens: &Tensor, memory: &Memory, wanted: usize) -> candle_core::Result<Computed> {
        let len = tokens.dim(0)?;
        let mut step = Step {
            angles: self.config.rotary.angles(memory.len(), len, tokens.device())?,
            masks: Masks::new(len, memory.len() + len),
        };
        let mut x = self.embedding.index_select(tokens, 0)?; // (len, D)
        if self.config.embedding_scale != 1.0 {
            x = (x * self.config.embedding_scale)?;
        }
        let mut layers = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let past = memory.blocks(index)?;
            let (next, computed) = self.layer(layer, &x, &mut step, past)?;
            x = next;
            layers.push(computed);
        }
        let logits = match last_rows(&x, wanted)? {
            Some(x) => Some(soft_cap(self.head.apply(&self.norm.apply(&x)?)?, self.config.logit_cap)?), // (wanted, V)
            None => None,
        };
        Ok(Computed { logits, layers })
    }
}

impl TransformerNetwork {
    /// Returns `x` (len, D) after a layer, and the layer's keys and values of these tokens.
    fn layer(
        &self,
        layer: &Layer,
        x: &Tensor,
        step: &mut Step,
        past: LayerBlocks,
    ) -> candle_core::Result<(Tensor, LayerMemory)> {
        let Transformer { heads, kv_heads, head_dim, activation, scores, gemma, .. } = self.config;
        let len = x.dim(0)?;
        let split = |x: Tensor, heads: usize, norm: Option<&Norm>| {
            let x = x.reshape((len, heads, head_dim))?;
            let x = norm.map_or(Ok(x.clone()), |norm| norm.apply(&x))?;
            x.transpose(0, 1)?.contiguous() // (heads, len, h)
        };
        let normed = layer.norms[0].apply(x)?;
        let queries = step.angles.rotate(&split(layer.query.apply(&normed)?, heads, layer.head_norms.first())?)?;
        let keys = step.angles.rotate(&split(layer.key.apply(&normed)?, kv_heads, layer.head_norms.get(1))?)?;
        let values = split(layer.value.apply(&normed)?, kv_heads, None)?;
        let all = past.joined(&keys, &values)?;
        let mask = step.masks.of(layer.window, x.device())?;
        let context = attend(&queries, &all.first, &all.second, scores, mask.as_ref())?; // (len, H·h)
        let mut attended = layer.output.apply(&context)?;
        if gemma {
            attended = layer.norms[1].apply(&attended)?;
        }
        let x = (x + attended)?;
        let normed = layer.norms[if gemma { 2 } else { 1 }].apply(&x)?;
        let hidden = (activation.apply(&layer.gate.apply(&normed)?)? * layer.up.apply(&normed)?)?; // (len, F)
        let mut fed = layer.down.apply(&hidden)?;
        if gemma {
            fed = layer.norms[3].apply(&fed)?;
        }
        Ok(((x + fed)?, LayerMemory { first: keys, second: values }))
    }
}
