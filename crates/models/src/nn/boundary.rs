//! Boundary sources decide where segments end. A boundary at t means that the segment ends **with** symbol t. A source reads
//! [`Evidence`], which a family provides in bulk and step alike, so it is written once.

use crate::nn::{Activation, ConfigError, Position, sized};
use serde::Deserialize;
use weir_kernels::distribution::sigmoid;
use weir_kernels::error::Result;
use weir_kernels::linear::{Epilogue, Linear, QuantizedRows, WeightArena};
use weir_kernels::{Compute, Dtype};

/// `boundaries` of a checkpoint's architecture.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BoundaryConfig {
    /// No segments: the vanilla model.
    None {},
    /// A boundary at positions 0, k, 2k …
    Fixed {
        /// k
        every: usize,
    },
    /// A boundary after each separator.
    Whitespace {
        /// The separators: characters of the vocabulary, one or more.
        symbol: String,
    },
    /// A learned predictor on the pre stack's output.
    Learned {
        /// Width of its hidden layer.
        hidden: usize,
        /// A boundary needs a probability above this.
        threshold: f32,
    },
    /// Spikes in an entropy model's conditional entropy.
    EntropySpikes {
        /// Number of earlier entropies that a spike must exceed.
        window: usize,
        /// Subfolder of the entropy model.
        #[serde(rename = "companion")]
        entropy_model: String,
    },
}

impl BoundaryConfig {
    /// Returns true if the source can close segments.
    pub fn pools(&self) -> bool {
        !matches!(self, Self::None {})
    }

    /// Returns the kind's name in a checkpoint.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None {} => "none",
            Self::Fixed { .. } => "fixed",
            Self::Whitespace { .. } => "whitespace",
            Self::Learned { .. } => "learned",
            Self::EntropySpikes { .. } => "entropy-spikes",
        }
    }

    /// Returns a human-readable summary.
    pub fn describe(&self) -> String {
        match self {
            Self::None {} => "no boundaries (vanilla)".into(),
            Self::Fixed { every } => format!("boundaries every {every}"),
            Self::Whitespace { symbol } => format!("boundaries after {symbol:?}"),
            Self::Learned { .. } => "learned boundaries".into(),
            Self::EntropySpikes { window, .. } => format!("boundaries at entropy spikes, window {window}"),
        }
    }

    /// Returns the width of a learned predictor's hidden layer; 0 for other kinds.
    pub fn hidden(&self) -> usize {
        if let Self::Learned { hidden, .. } = self { *hidden } else { 0 }
    }

    /// Returns the entropy model's subfolder, if the source needs an entropy model.
    pub fn entropy_model(&self) -> Option<&str> {
        if let Self::EntropySpikes { entropy_model, .. } = self { Some(entropy_model) } else { None }
    }

    /// Checks every key against its bounds. Returns an error for the first key that is out of bounds.
    pub fn validate(&self, id_of: IdOf<'_>) -> Result<(), ConfigError> {
        const MAX: usize = 1 << 20;
        let bounded = |key, value: usize| {
            let within = (1..=MAX).contains(&value);
            if within { Ok(()) } else { Err(ConfigError::new(key, format!("1 to {MAX}"), value)) }
        };
        match self {
            Self::None {} => Ok(()),
            Self::Fixed { every } => bounded("every", *every),
            Self::Whitespace { symbol } => match Whitespace::new(symbol, id_of) {
                Some(_) => Ok(()),
                None => {
                    Err(ConfigError::new("symbol", "one or more characters of the vocabulary", format!("{symbol:?}")))
                }
            },
            Self::Learned { hidden, threshold } => {
                bounded("hidden", *hidden)?;
                let within = *threshold > 0.0 && *threshold < 1.0;
                if within { Ok(()) } else { Err(ConfigError::new("threshold", "above 0, below 1", threshold)) }
            }
            Self::EntropySpikes { window, entropy_model } => {
                bounded("window", *window)?;
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if !entropy_model.is_empty() && entropy_model.chars().all(plain) {
                    return Ok(());
                }
                let expected = "a subfolder's name: letters, digits, - and _";
                Err(ConfigError::new("companion", expected, format!("{entropy_model:?}")))
            }
        }
    }
}

/// A boundary source with its weights.
pub enum Boundaries {
    /// No segments.
    None,
    /// See [`Fixed`].
    Fixed(Fixed),
    /// See [`Whitespace`].
    Whitespace(Whitespace),
    /// See [`Learned`].
    Learned(Learned),
    /// See [`Spikes`].
    Spikes(Spikes),
}

impl Boundaries {
    /// Appends one decision for each symbol of the step. Fails if the entropy model's entropies are missing.
    pub fn decide(
        &self,
        compute: &Compute,
        evidence: &Evidence<'_>,
        work: &mut LearnedWork,
        decisions: &mut Vec<BoundaryDecision>,
    ) -> Result<()> {
        let positions = evidence.positions.iter();
        match self {
            Self::None => decisions.extend(positions.map(|_| BoundaryDecision::certain(false))),
            Self::Fixed(source) => {
                let closes = evidence.stream_positions.iter().map(|&position| source.closes(position));
                decisions.extend(closes.map(BoundaryDecision::certain));
            }
            Self::Whitespace(source) => {
                let closes = evidence.symbols.iter().map(|&symbol| source.closes(symbol));
                decisions.extend(closes.map(BoundaryDecision::certain));
            }
            Self::Learned(source) => source.decide(compute, evidence, work, decisions),
            Self::Spikes(source) => {
                for position in positions {
                    let entropies = (evidence.entropies)(position.sequence)?;
                    decisions.push(BoundaryDecision::certain(source.closes(entropies, position.index)));
                }
            }
        }
        Ok(())
    }

    /// Returns the matrices of a decision.
    pub fn matrices(&self) -> Vec<&Linear> {
        match self {
            Self::Learned(source) => vec![&source.hidden, &source.output],
            Self::None | Self::Fixed(_) | Self::Whitespace(_) | Self::Spikes(_) => Vec::new(),
        }
    }

    /// Returns the maximum segments that `symbols` symbols can close.
    pub fn max_segments(&self, symbols: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Fixed(source) => source.segments(symbols),
            Self::Whitespace(_) | Self::Learned(_) | Self::Spikes(_) => symbols,
        }
    }
}

/// Everything that a boundary source may read: one entry or row for each symbol of a step.
pub struct Evidence<'a> {
    /// Positions of the symbols.
    pub positions: &'a [Position],
    /// The symbols.
    pub symbols: &'a [u32],
    /// Positions of the symbols in the streams that the sequences are cut from.
    pub stream_positions: &'a [usize],
    /// Output of the pre stack: (positions, D).
    pub hidden: &'a [f32],
    /// Uniform noise where the boundary is sampled; `None` where a threshold decides.
    pub noise: &'a [Option<f32>],
    /// Returns a sequence's conditional entropies (nats) by the entropy model, from position 0 to at least its last position in
    /// this step; empty without an entropy model.
    pub entropies: &'a dyn Fn(usize) -> Result<&'a [f64]>,
}

/// Decision of a boundary source for one symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundaryDecision {
    /// True if a segment ends with the symbol.
    pub closes: bool,
    /// Output of a learned predictor.
    pub probability: Option<f32>,
}

impl BoundaryDecision {
    fn certain(closes: bool) -> Self {
        Self { closes, probability: None }
    }
}

/// Finds the id of a character in a vocabulary, if it is a symbol.
pub type IdOf<'a> = &'a dyn Fn(char) -> Option<u32>;

/// A boundary at stream positions 0, k, 2k …: the first segment is one symbol long (official phase).
pub struct Fixed {
    /// k ≥ 1
    pub every: usize,
}

impl Fixed {
    /// Returns true if a segment ends at `position` of the stream.
    pub fn closes(&self, position: usize) -> bool {
        position.is_multiple_of(self.every)
    }

    /// Returns the maximum segments that `symbols` symbols can close, at any position of the stream.
    pub fn segments(&self, symbols: usize) -> usize {
        symbols.div_ceil(self.every)
    }
}

/// A boundary after each separator, which belongs to the word before it. White space that is not listed is no boundary.
pub struct Whitespace {
    separators: Vec<u32>,
}

impl Whitespace {
    /// Creates a source that cuts after each character of `separators`; `None` if there are none or one is not in the
    /// vocabulary.
    pub fn new(separators: &str, id_of: IdOf<'_>) -> Option<Self> {
        let separators: Vec<u32> = separators.chars().map(id_of).collect::<Option<_>>()?;
        (!separators.is_empty()).then_some(Self { separators })
    }

    /// Returns true if a segment ends with `symbol`.
    pub fn closes(&self, symbol: u32) -> bool {
        self.separators.contains(&symbol)
    }
}

/// A boundary where the conditional entropy of a small entropy model spikes (Dynamic Token Pooling, §3.1.3, eq. 6): H_t exceeds,
/// strictly, each of the k entropies before it. Position 0 is always a boundary.
pub struct Spikes {
    /// k ≥ 1
    pub window: usize,
}

impl Spikes {
    /// Returns true if a segment ends at `position`, given the entropies up to it.
    pub fn closes(&self, entropies: &[f64], position: usize) -> bool {
        let before = &entropies[position.saturating_sub(self.window)..position];
        before.iter().all(|&earlier| entropies[position] > earlier)
    }
}

// A learned predictor on the pre stack's output (Dynamic Token Pooling, §3.1, eq. 3): p = sigmoid(w₂·act(W₁·h + b₁) + b₂). The
// threshold mode sets a boundary if p > threshold, strictly, as the official code does. The sampled mode sets one if u > 1 − p
// for uniform u: the rounded Gumbel-sigmoid of eq. 4, whose temperature has no effect.

/// Weights of the predictor.
pub struct Learned {
    /// (hidden, D)
    pub hidden: Linear,
    /// (1, hidden)
    pub output: Linear,
    /// Nonlinearity of the hidden layer.
    pub activation: Activation,
    /// A boundary needs a probability above this.
    pub threshold: f32,
}

/// Buffers, kept between steps.
#[derive(Default)]
pub struct LearnedWork {
    quantized: QuantizedRows,
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

impl Learned {
    fn decide(
        &self,
        compute: &Compute,
        evidence: &Evidence<'_>,
        work: &mut LearnedWork,
        decisions: &mut Vec<BoundaryDecision>,
    ) {
        let positions = evidence.positions.len();
        let hidden = sized(&mut work.hidden, positions * self.hidden.outputs());
        let epilogue = self.activation.epilogue();
        self.hidden.apply(compute, evidence.hidden, epilogue, &mut work.quantized, hidden); // (positions, hidden)
        let logits = sized(&mut work.logits, positions);
        self.output.apply(compute, hidden, Epilogue::None, &mut work.quantized, logits); // (positions, 1)
        for (logit, noise) in logits.iter().zip(evidence.noise) {
            let probability = sigmoid(*logit);
            let closes = match noise {
                Some(noise) => *noise > 1.0 - probability.clamp(f32::EPSILON, 1.0 - f32::EPSILON),
                None => probability > self.threshold,
            };
            decisions.push(BoundaryDecision { closes, probability: Some(probability) });
        }
    }
}

// A learned predictor without biases whose logit is a sum: b = Σ_j (W₂·relu(W₁·h))_j (Latent Segment Language Models, eq. 2).
// Loading folds the sum over j into W₂. A boundary is sigmoid(b) ≥ threshold, tested on the logit. Weights are f32 for every
// storage type, because one changed boundary would change everything after it.

/// Weights of the predictor.
pub struct Summed {
    /// W₁: (hidden, D)
    hidden: Linear,
    /// 1ᵀ·W₂: (1, hidden)
    output: Linear,
    min_logit: f32,
}

/// Buffers, kept between steps.
#[derive(Default)]
pub struct SummedWork {
    quantized: QuantizedRows,
    hidden: Vec<f32>,
}

impl Summed {
    /// Packs W₁, (hidden, dim), and W₂, (dim, hidden). Fails if memory runs out.
    pub fn new(first: &[f32], second: &[f32], hidden: usize, threshold: f32) -> Result<Self> {
        let arena = WeightArena::new(Dtype::F32);
        let mut folded = vec![0f64; hidden];
        for row in second.chunks_exact(hidden) {
            folded.iter_mut().zip(row).for_each(|(sum, &weight)| *sum += f64::from(weight));
        }
        let folded: Vec<f32> = folded.into_iter().map(|sum| sum as f32).collect();
        let threshold = f64::from(threshold);
        Ok(Self {
            hidden: Linear::pack(&arena, first, &[], hidden, first.len() / hidden)?,
            output: Linear::pack(&arena, &folded, &[], 1, hidden)?,
            min_logit: (threshold / (1.0 - threshold)).ln() as f32,
        })
    }

    /// Writes the logit b of each row of `x`, (positions, D), to `logits`: (positions).
    pub fn logits(&self, compute: &Compute, x: &[f32], work: &mut SummedWork, logits: &mut Vec<f32>) {
        let positions = x.len() / self.hidden.inputs();
        let hidden = sized(&mut work.hidden, positions * self.hidden.outputs());
        self.hidden.apply(compute, x, Epilogue::Relu, &mut work.quantized, hidden); // (positions, hidden)
        let logits = sized(logits, positions);
        self.output.apply(compute, hidden, Epilogue::None, &mut work.quantized, logits); // (positions, 1)
    }

    /// Returns true if a segment ends with a symbol of this logit.
    pub fn closes(&self, logit: f32) -> bool {
        logit >= self.min_logit
    }

    /// Returns the matrices of a decision.
    pub fn matrices(&self) -> [&Linear; 2] {
        [&self.hidden, &self.output]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weir_kernels::{Isa, ThreadPool};

    #[test]
    fn segments_end_after_each_listed_separator() {
        let id_of = |character: char| " \nab".find(character).map(|index| index as u32);
        let closes = |separators: &str| {
            Whitespace::new(separators, &id_of).map(|source| (0..4).map(|id| source.closes(id)).collect::<Vec<_>>())
        };
        assert_eq!(closes(" "), Some(vec![true, false, false, false]));
        assert_eq!(closes(" \n"), Some(vec![true, true, false, false]));
        assert_eq!(closes(""), None);
        assert_eq!(closes(" x"), None);
    }

    #[test]
    fn a_spike_exceeds_its_whole_window_strictly() {
        let entropies = [1.0, 1.0, 2.0, 3.0, 1.0, 2.5, 2.6, 0.1];
        let closes = |window| {
            let spikes = Spikes { window };
            (0..entropies.len()).map(|t| u8::from(spikes.closes(&entropies, t))).collect::<Vec<_>>()
        };
        assert_eq!(closes(1), [1, 0, 1, 1, 0, 1, 1, 0]);
        assert_eq!(closes(2), [1, 0, 1, 1, 0, 0, 1, 0]);
        assert_eq!(closes(9), [1, 0, 1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn the_folded_sum_equals_the_sum() {
        const HIDDEN: usize = 5;
        const DIM: usize = 3;
        let numbers = |count: usize, k: f32| (0..count).map(|i| (i as f32 * k).sin()).collect::<Vec<_>>();
        let first = numbers(HIDDEN * DIM, 0.7);
        let second = numbers(DIM * HIDDEN, 1.9);
        let predictor = Summed::new(&first, &second, HIDDEN, 0.5).unwrap();
        let compute = Compute { isa: Isa::detect(), pool: Arc::new(ThreadPool::new(1)) };
        let x = numbers(2 * DIM, 0.3);
        let mut logits = Vec::new();
        predictor.logits(&compute, &x, &mut SummedWork::default(), &mut logits);
        for (x, logit) in x.chunks(DIM).zip(&logits) {
            let dot = |row: &[f32], x: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
            let inner: Vec<f32> = first.chunks(DIM).map(|row| dot(row, x).max(0.0)).collect();
            let expected: f32 = second.chunks(HIDDEN).map(|row| dot(row, &inner)).sum();
            assert!((expected - logit).abs() < 1e-5, "{expected} {logit}");
        }
    }

    #[test]
    fn the_threshold_itself_is_a_boundary() {
        let predictor = |threshold| Summed::new(&[1.0], &[1.0], 1, threshold).unwrap();
        // A logit of 0 means that no hidden unit is active.
        assert!(predictor(0.5).closes(0.0) && predictor(0.5).closes(-0.0) && !predictor(0.5).closes(-1e-8));
        assert!(!predictor(0.6).closes(0.4) && predictor(0.6).closes(0.41) && predictor(0.4).closes(-0.4));
    }
}
