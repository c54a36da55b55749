//! Boundary sources: where segments end. A boundary at t means that the segment ends **with** symbol t.
//!
//! To add one: a file with its type, a variant of [`BoundaryConfig`], and its arms in the tables below. What a source may
//! look at is [`Evidence`]; a family provides all of it, in bulk and step alike, so a source is written once.

pub mod evidence;
pub mod learned;
pub mod rules;
pub mod summed;

use crate::{
    error::Result,
    kernels::{Compute, linear::Linear},
};
use evidence::{BoundaryDecision, Evidence};
use learned::Learned;
use rules::{Fixed, IdOf, Spikes, Whitespace};
use serde::Deserialize;

/// What a checkpoint's `boundaries` says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BoundaryConfig {
    /// No segments: the vanilla model.
    None {},
    /// Positions 0, k, 2k …
    Fixed {
        /// k
        every: usize,
    },
    /// After this symbol.
    Whitespace {
        /// One character of the vocabulary.
        symbol: String,
    },
    /// A learned predictor on the pre stack's output.
    Learned {
        /// Width of its hidden layer.
        hidden: usize,
        /// Boundary if the probability is above this.
        threshold: f32,
    },
    /// Spikes in a companion model's conditional entropy.
    EntropySpikes {
        /// How many earlier entropies a spike must exceed.
        window: usize,
        /// The companion's subfolder.
        companion: String,
    },
}

/// A key that is wrong, what was expected, what was found.
type Wrong = (&'static str, String, String);

impl BoundaryConfig {
    /// Whether it ever closes a segment.
    pub fn pools(&self) -> bool {
        !matches!(self, Self::None {})
    }

    /// Its name in a checkpoint.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None {} => "none",
            Self::Fixed { .. } => "fixed",
            Self::Whitespace { .. } => "whitespace",
            Self::Learned { .. } => "learned",
            Self::EntropySpikes { .. } => "entropy-spikes",
        }
    }

    /// A few words for people.
    pub fn describe(&self) -> String {
        match self {
            Self::None {} => "no boundaries (vanilla)".into(),
            Self::Fixed { every } => format!("boundaries every {every}"),
            Self::Whitespace { symbol } => format!("boundaries after {symbol:?}"),
            Self::Learned { .. } => "learned boundaries".into(),
            Self::EntropySpikes { window, .. } => format!("boundaries at entropy spikes, window {window}"),
        }
    }

    /// Width of a learned predictor's hidden layer; 0 if there is none.
    pub fn hidden(&self) -> usize {
        if let Self::Learned { hidden, .. } = self { *hidden } else { 0 }
    }

    /// The companion's subfolder, if one is needed.
    pub fn companion(&self) -> Option<&str> {
        if let Self::EntropySpikes { companion, .. } = self { Some(companion) } else { None }
    }

    /// Checks bounds.
    ///
    /// # Errors
    /// The key, what it must be, and what it is.
    pub fn validate(&self, id_of: IdOf<'_>) -> Result<(), Wrong> {
        const MAX: usize = 1 << 20;
        let bounded = |key, value: usize| {
            let within = (1..=MAX).contains(&value);
            if within { Ok(()) } else { Err((key, format!("1 to {MAX}"), value.to_string())) }
        };
        match self {
            Self::None {} => Ok(()),
            Self::Fixed { every } => bounded("every", *every),
            Self::Whitespace { symbol } => match Whitespace::new(symbol, id_of) {
                Some(_) => Ok(()),
                None => Err(("symbol", "one character of the vocabulary".into(), format!("{symbol:?}"))),
            },
            Self::Learned { hidden, threshold } => {
                bounded("hidden", *hidden)?;
                let within = *threshold > 0.0 && *threshold < 1.0;
                if within { Ok(()) } else { Err(("threshold", "above 0, below 1".into(), threshold.to_string())) }
            }
            Self::EntropySpikes { window, companion } => {
                bounded("window", *window)?;
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if !companion.is_empty() && companion.chars().all(plain) {
                    return Ok(());
                }
                Err(("companion", "a subfolder's name: letters, digits, - and _".into(), format!("{companion:?}")))
            }
        }
    }
}

/// A boundary source, ready to decide.
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
    /// Appends one decision for each row.
    ///
    /// # Errors
    /// Evidence that is missing.
    pub fn decide(
        &self,
        compute: &Compute,
        evidence: &Evidence<'_>,
        work: &mut learned::LearnedWork,
        decisions: &mut Vec<BoundaryDecision>,
    ) -> Result<()> {
        let positions = evidence.positions.iter();
        match self {
            Self::None => decisions.extend(positions.map(|_| BoundaryDecision::certain(false))),
            Self::Fixed(source) => {
                decisions
                    .extend(evidence.stream_positions.iter().map(|&t| BoundaryDecision::certain(source.closes(t))));
            }
            Self::Whitespace(source) => {
                decisions
                    .extend(evidence.symbols.iter().map(|&symbol| BoundaryDecision::certain(source.closes(symbol))));
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

    /// The matrices that a decision multiplies with.
    pub fn matrices(&self) -> Vec<&Linear> {
        match self {
            Self::Learned(source) => vec![&source.hidden, &source.output],
            Self::None | Self::Fixed(_) | Self::Whitespace(_) | Self::Spikes(_) => Vec::new(),
        }
    }

    /// The most segments that so many symbols can close.
    pub fn max_segments(&self, symbols: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Fixed(source) => source.segments(symbols),
            Self::Whitespace(_) | Self::Learned(_) | Self::Spikes(_) => symbols,
        }
    }
}
