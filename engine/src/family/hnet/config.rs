//! The `architecture` of an H-Net checkpoint and its bounds.

use crate::{
    decode::usage::MAX_LEVELS,
    error::Result,
    family::parts::check::Check,
    kernels::ssm::HEAD,
    nn::{ConfigError, window::Window},
};
use serde::Deserialize;
use std::path::Path;

/// Maximum stages, the innermost included.
const MAX_STAGES: usize = MAX_LEVELS + 1;
/// Maximum taps of a convolution.
const MAX_TAPS: usize = 64;
/// Maximum layers of a stack.
const MAX_LAYERS: usize = 1024;

/// The H-Net's `architecture` in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// The stages, outermost first. The innermost has `main`, all others `encoder` and `decoder`.
    pub stages: Vec<StageConfig>,
    /// Added to the mean square in every RMSNorm.
    pub norm_eps: f32,
    /// True if the head is the embedding.
    pub tied: bool,
}

/// One stage's part of the architecture.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// Width D; at least that of the stage around it.
    pub dim: usize,
    /// Layers before the router, such as `T1m4`: letters with counts. `m` is a Mamba-2 mixer, `t` self-attention; an upper-case
    /// letter adds a feed-forward.
    pub encoder: Option<String>,
    /// Layers after the moving average.
    pub decoder: Option<String>,
    /// Layers of the innermost stage.
    pub main: Option<String>,
    /// Inner width F of the feed-forwards.
    pub feed_forward: usize,
    /// Attention heads; each has width D / heads.
    pub heads: usize,
    /// Numbers of a head that rotary positions turn, from the first on.
    pub rotary_dim: usize,
    /// Positions of this stage that a position attends to.
    pub window: Window,
    /// Columns N of each Mamba-2 head's state.
    pub state_dim: usize,
    /// Taps W of the convolutions.
    pub conv_width: usize,
    /// Inner width of the Mamba-2 mixers, in units of D.
    pub expand: usize,
}

/// One layer of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKind {
    /// True for self-attention, false for a Mamba-2 mixer.
    pub attention: bool,
    /// True if a feed-forward follows.
    pub feed_forward: bool,
}

/// A stack of one stage. Stacks are in the order in which a symbol passes them.
#[derive(Debug, Clone)]
pub struct StackConfig {
    /// Index of its stage.
    pub stage: usize,
    /// Name within its stage, and prefix of its tensors' names there.
    pub name: &'static str,
    /// Its layers.
    pub layers: Vec<LayerKind>,
}

/// A validated H-Net.
#[derive(Debug, Clone)]
pub struct HnetBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Encoders from the outside in, the main stack, decoders from the inside out.
    pub stacks: Vec<StackConfig>,
    /// Vocabulary size V.
    pub symbols: usize,
    /// For each level, the symbols with which its chunks begin if the weights are those of `weir init`.
    pub beginnings: Vec<Vec<u32>>,
}

/// Parses layers such as `T1m4`: letters of `mMtT`, each with a count. An empty text means no layers.
pub fn parse_layers(text: &str) -> std::result::Result<Vec<LayerKind>, String> {
    let wrong = || format!("{text:?}");
    let mut layers = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if !"mMtT".contains(letter) {
            return Err(wrong());
        }
        let digits = rest[1..].len() - rest[1..].trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let count: usize = rest[1..=digits].parse().map_err(|_| wrong())?;
        if count > MAX_LAYERS - layers.len() {
            return Err(wrong());
        }
        let kind = LayerKind { attention: "tT".contains(letter), feed_forward: letter.is_ascii_uppercase() };
        layers.extend(std::iter::repeat_n(kind, count));
        rest = &rest[1 + digits..];
    }
    Ok(layers)
}

impl HnetBlueprint {
    /// Checks every bound of the architecture. The error names the first key that is out of bounds, and the bound.
    pub(in crate::family) fn new(architecture: Architecture, symbols: usize, file: &Path) -> Result<Self> {
        let check = Check { file };
        let count = architecture.stages.len();
        if !(2..=MAX_STAGES).contains(&count) {
            check.fail("stages", format!("2 to {MAX_STAGES} stages: one that chunks, and one inside it"), count)?;
        }
        check.fraction("norm_eps", architecture.norm_eps)?;
        let mut encoders = Vec::new();
        let mut decoders = Vec::new();
        for (stage, config) in architecture.stages.iter().enumerate() {
            let key = |name: &str| format!("stages[{stage}].{name}");
            check.dim(key("dim"), config.dim)?;
            let outer = stage.checked_sub(1).map_or(1, |outer| architecture.stages[outer].dim);
            if config.dim < outer {
                check.fail(key("dim"), format!("at least {outer}, the width of the stage around it"), config.dim)?;
            }
            let innermost = stage + 1 == count;
            for (name, layers) in [("encoder", &config.encoder), ("decoder", &config.decoder), ("main", &config.main)] {
                match layers {
                    None if (name == "main") == innermost => {
                        check.fail(key(name), "layers, such as \"m4\"", "nothing")?
                    }
                    Some(_) if (name == "main") != innermost => {
                        let expected =
                            if innermost { "nothing: the innermost stage has main alone" } else { "nothing" };
                        check.fail(key(name), expected, "layers")?;
                    }
                    None => {}
                    Some(text) => {
                        let layers = parse_layers(text).or_else(|found| {
                            let expected = format!("letters of mMtT with counts, at most {MAX_LAYERS} layers");
                            check.fail(key(name), expected, found).map(|()| Vec::new())
                        })?;
                        config.validate(stage, &layers, check)?;
                        let stack = StackConfig { stage, name, layers };
                        if name == "decoder" { decoders.push(stack) } else { encoders.push(stack) }
                    }
                }
            }
        }
        decoders.reverse();
        encoders.extend(decoders);
        let blueprint = Self { architecture, stacks: encoders, symbols, beginnings: Vec::new() };
        check.parameters("stages", blueprint.parameters())?;
        Ok(blueprint)
    }

    /// An upper bound on the numbers in all tensors; `None` if it overflows.
    fn parameters(&self) -> Option<usize> {
        let stages = &self.architecture.stages;
        let mut sum = self.symbols.checked_mul(2)?.checked_mul(stages.first()?.dim)?;
        for stage in stages {
            // two router matrices and the residual projection, with its bias, the padding and the norms
            sum = sum.checked_add(stage.dim.checked_mul(3)?.checked_add(8)?.checked_mul(stage.dim)?)?;
        }
        for stack in &self.stacks {
            let stage = &stages[stack.stage];
            let inner = stage.dim.checked_mul(stage.expand)?;
            let states = stage.state_dim.checked_mul(2)?;
            // x, z, the output and the step sizes; then B and C
            let mamba =
                inner.checked_mul(4)?.checked_add(states)?.checked_add(stage.conv_width)?.checked_mul(stage.dim)?;
            let convolution = inner.checked_add(states)?.checked_mul(stage.conv_width.checked_add(8)?)?;
            let attention = stage.dim.checked_mul(4)?.checked_mul(stage.dim)?;
            let feed_forward = stage.feed_forward.checked_mul(3)?.checked_mul(stage.dim)?;
            for layer in &stack.layers {
                let mixer = if layer.attention { attention } else { mamba.checked_add(convolution)? };
                let rest = if layer.feed_forward { feed_forward } else { 0 };
                sum = sum.checked_add(mixer)?.checked_add(rest)?.checked_add(8 * stage.dim)?;
            }
        }
        Some(sum)
    }

    /// Returns the number of stages that chunk.
    pub fn levels(&self) -> usize {
        self.architecture.stages.len() - 1
    }

    /// Returns the width of the padding that a stage appends to its input.
    pub fn padding(&self, stage: usize) -> usize {
        let stages = &self.architecture.stages;
        stage.checked_sub(1).map_or(0, |outer| stages[stage].dim - stages[outer].dim)
    }
}

impl StageConfig {
    /// Checks the window, and the dimensions that the stack's layers need.
    fn validate(&self, stage: usize, layers: &[LayerKind], check: Check<'_>) -> Result<()> {
        let key = |name: &str| format!("stages[{stage}].{name}");
        // memory and cost are computed with the window even if no layer attends
        if let Err(ConfigError { key: name, expected, found }) = self.window.validate() {
            check.fail(key(&format!("window.{name}")), expected, found)?;
        }
        if layers.iter().any(|layer| layer.feed_forward) {
            check.dim(key("feed_forward"), self.feed_forward)?;
        }
        if layers.iter().any(|layer| layer.attention) {
            check.dim(key("heads"), self.heads)?;
            if !self.dim.is_multiple_of(self.heads) {
                check.fail(key("heads"), format!("a divisor of dim, {}", self.dim), self.heads)?;
            }
            let limit = self.dim / self.heads;
            if self.rotary_dim > limit || !self.rotary_dim.is_multiple_of(2) {
                let expected = format!("an even number of at most {limit}, the width of a head");
                check.fail(key("rotary_dim"), expected, self.rotary_dim)?;
            }
        }
        if layers.iter().any(|layer| !layer.attention) {
            check.dim(key("state_dim"), self.state_dim)?;
            check.dim(key("expand"), self.expand)?;
            if !(1..=MAX_TAPS).contains(&self.conv_width) {
                check.fail(key("conv_width"), format!("1 to {MAX_TAPS}"), self.conv_width)?;
            }
            let inner = self.inner();
            if !inner.is_multiple_of(HEAD) {
                check.fail(key("expand"), format!("expand · dim divisible by {HEAD}, the width of a head"), inner)?;
            }
        }
        Ok(())
    }

    /// Returns the inner width E of a Mamba-2 mixer.
    pub fn inner(&self) -> usize {
        self.expand.saturating_mul(self.dim)
    }

    /// Returns the channels of a Mamba-2 mixer's convolution: x, B and C.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.state_dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_letters_with_counts() {
        let mixer = |attention, feed_forward| LayerKind { attention, feed_forward };
        let expected = vec![mixer(true, true), mixer(false, false), mixer(false, false), mixer(false, true)];
        assert_eq!(parse_layers("T1m2M1t0"), Ok(expected));
        assert_eq!(parse_layers(""), Ok(Vec::new()));
        for wrong in ["m", "4", "x1", "m4 T1", "m4T", "m-1", "m99999999999999999999", "m1025", "é1"] {
            assert_eq!(parse_layers(wrong), Err(format!("{wrong:?}")));
        }
    }
}
