//! Boundary sources decide where segments end. A boundary at t means that the segment ends **with** symbol t.
//!
//! To add a source: its type, a variant of [`BoundaryConfig`] and of [`Boundaries`], and their arms. A source reads
//! [`Evidence`], which a family provides in bulk and step alike, so a source is written once.

pub mod evidence;
pub mod learned;
pub mod rules;
pub mod summed;

use crate::{
    error::Result,
    kernels::{Compute, linear::Linear},
    nn::ConfigError,
};
use evidence::{BoundaryDecision, Evidence};
use learned::{Learned, LearnedWork};
use rules::{Fixed, IdOf, Spikes, Whitespace};
use serde::Deserialize;

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
    /// Spikes in a companion model's conditional entropy.
    EntropySpikes {
        /// Number of earlier entropies that a spike must exceed.
        window: usize,
        /// Subfolder of the companion model.
        companion: String,
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

    /// Returns a short description for people.
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

    /// Returns the companion's subfolder, if the source needs a companion.
    pub fn companion(&self) -> Option<&str> {
        if let Self::EntropySpikes { companion, .. } = self { Some(companion) } else { None }
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
            Self::EntropySpikes { window, companion } => {
                bounded("window", *window)?;
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if !companion.is_empty() && companion.chars().all(plain) {
                    return Ok(());
                }
                let expected = "a subfolder's name: letters, digits, - and _";
                Err(ConfigError::new("companion", expected, format!("{companion:?}")))
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
    /// Appends one decision for each symbol of the step. Fails if the companion's entropies are missing.
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
